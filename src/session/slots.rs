//! The commands of a session that are on their way, and the operations that wait for one.
//!
//! Few commands are on their way at once, as the pool is the user's. While all their slots are taken, operations queue
//! up. A slot that becomes free takes the first of them, and with it those that can share its command: the more there
//! is to do, the more locks go into a command, and nothing ever waits for company.
//!
//! A command without a prompt answer moves to a slow slot, so that it doesn't block the others, and its operation begins
//! there the next time. An operation that was not done in time again and again is most likely held up by its own
//! document, such as by a transaction that has written it, and the server may try it for long. So it gets only half of
//! the slow slots: an operation that was slow for a moment waits behind no such operation. One slow slot that comes free
//! is theirs, so that each is tried in the end. The last quarter is for entries that leave, so that a release gets
//! through even when everything else hangs.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::store::Asked;

/// Maximum number of slow commands beside the prompt ones: those without a prompt answer, or whose operation was not
/// done in time when it was last sent. Each can occupy a connection of the pool for as long as the server may try.
const SLOW_AT_ONCE: usize = 8;

/// Number of tries in a row that were not done in time, after which an operation is stuck. A server that stood still
/// for a second makes two of them.
const STUCK_AFTER: u32 = 3;

/// Maximum number of operations in a command: more of them hardly cost the server less, and all wait for the last.
pub(crate) const TOGETHER: usize = 64;

/// The slots of a session's commands, and the queue for them.
#[derive(Debug)]
pub(super) struct Slots {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    shares: bool,
    /// Number of prompt slots that are free.
    free: usize,
    /// Number of slow commands.
    slow: usize,
    /// Number of those among them whose operation is stuck.
    stuck: usize,
    /// By the lane that they wait for.
    waiting: [VecDeque<Waiting>; 3],
}

/// The way of an operation, by the number of its tries in a row that the server reported as overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Prompt,
    Slow,
    Stuck,
}

impl Lane {
    fn after(overdue: u32) -> Self {
        match overdue {
            0 => Self::Prompt,
            1..STUCK_AFTER => Self::Slow,
            _ => Self::Stuck,
        }
    }
}

/// A slot, and the operations that have it together.
type Turn = (Slot, Vec<Asked>);

/// An operation that waits for its turn, or any other command, which waits for a slot.
#[derive(Debug)]
struct Waiting {
    asked: Option<Asked>,
    /// Dropped when the operation goes along in another's command.
    to: oneshot::Sender<Turn>,
}

/// Whether an operation has entries that leave: others may get the lock by it.
fn leaves(asked: &Asked) -> bool {
    !asked.operation.leave.is_empty()
}

/// A slot for a command that is on its way. Dropping it gives it to the next.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    lane: Lane,
}

impl Slot {
    /// Whether it must be left to others once the answer is not prompt.
    pub(super) fn is_prompt(&self) -> bool {
        self.lane == Lane::Prompt
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut queue = self.slots.queue();
            match self.lane {
                Lane::Prompt => queue.free += 1,
                Lane::Slow => queue.slow -= 1,
                Lane::Stuck => (queue.slow, queue.stuck) = (queue.slow - 1, queue.stuck - 1),
            }
        }
        self.slots.give();
    }
}

impl Slots {
    /// Creates the slots, of which so many are prompt; `shares`: whether the store runs several operations in a command.
    pub(super) fn new(most: usize, shares: bool) -> Arc<Self> {
        let queue = Mutex::new(Queue {
            shares,
            free: most,
            slow: 0,
            stuck: 0,
            waiting: Default::default(),
        });
        Arc::new(Self { most, queue })
    }

    /// Waits for the turn of an operation that was overdue in so many tries in a row, and of those that go along; `None`
    /// if it goes along itself. Without an operation, it is the turn of another command.
    pub(super) async fn turn(self: &Arc<Self>, asked: Option<Asked>, overdue: u32) -> Option<Turn> {
        let (to, turn) = oneshot::channel();
        self.queue().waiting[Lane::after(overdue) as usize].push_back(Waiting { asked, to });
        self.give();
        turn.await.ok()
    }

    /// Waits for a slot for another command, after so many tries that were overdue. Cancel safe.
    pub(super) async fn slot(self: &Arc<Self>, overdue: u32) -> Option<Slot> {
        self.turn(None, overdue).await.map(|(slot, _)| slot)
    }

    /// Gives the free slots to those that wait for them.
    fn give(self: &Arc<Self>) {
        loop {
            let Some((lane, to, together)) = self.queue().next() else {
                return;
            };
            let slots = self.clone();
            // If nothing waits there any more, the slot is dropped, and given to the next.
            drop(to.send((Slot { slots, lane }, together)));
        }
    }

    /// Whether no prompt command is on its way; slow ones don't count.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue().free == self.most
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing under it panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Takes a free slot, and the first that waits for one, with those that go along; with the lane of the slot.
    fn next(&mut self) -> Option<(Lane, oneshot::Sender<Turn>, Vec<Asked>)> {
        // Whoever was dropped meanwhile needs none. Thousands of them, one after the other, would be as many drops of a
        // slot within each other.
        for waiting in &mut self.waiting {
            while waiting.front().is_some_and(|waiting| waiting.to.is_closed()) {
                waiting.pop_front();
            }
        }
        let [prompt, slow, stuck] = &mut self.waiting;
        let all_hang = self.slow >= SLOW_AT_ONCE / 4 * 3;
        let is_prompt = self.free > 0 && !prompt.is_empty();
        // There can always be some that were slow for a moment.
        let is_theirs = self.stuck == 0 && !stuck.is_empty();
        let (lane, first) = if is_prompt {
            (Lane::Prompt, prompt.pop_front())
        } else if !(all_hang || is_theirs || slow.is_empty()) {
            (Lane::Slow, slow.pop_front())
        } else if self.slow < SLOW_AT_ONCE / 2 || is_theirs && !all_hang {
            (Lane::Stuck, stuck.pop_front())
        } else if all_hang && self.slow < SLOW_AT_ONCE {
            let lanes = [(Lane::Slow, &mut *prompt), (Lane::Slow, slow), (Lane::Stuck, stuck)];
            // One of those that are stuck: the other slot is for those that need it for a moment.
            let lanes = lanes.into_iter().filter(|(lane, _)| *lane == Lane::Slow || is_theirs);
            lanes
                .filter_map(|(lane, waiting)| {
                    let mut entries = waiting.iter();
                    let position = entries.position(|waiting| waiting.asked.as_ref().is_some_and(leaves))?;
                    Some((lane, waiting.remove(position)))
                })
                .next()?
        } else {
            return None;
        };
        let first = first?;
        match lane {
            Lane::Prompt => self.free -= 1,
            Lane::Slow => self.slow += 1,
            Lane::Stuck => (self.slow, self.stuck) = (self.slow + 1, self.stuck + 1),
        }
        let mut together: Vec<Asked> = first.asked.into_iter().collect();
        let goes_along = |asked: &Asked| asked.operation.is_shareable() && (is_prompt || leaves(asked));
        if self.shares && (is_prompt || all_hang) && together.first().is_some_and(goes_along) {
            let mut stay = Vec::new();
            // Only those with not too many others before them.
            while together.len() < TOGETHER
                && stay.len() < TOGETHER
                && let Some(next) = prompt.pop_front()
            {
                match next.asked {
                    Some(mut asked) if goes_along(&asked) => {
                        // To its documents, a command is one operation.
                        asked.operation.id.clone_from(&together[0].operation.id);
                        together.push(asked);
                    }
                    asked => stay.push(Waiting { asked, to: next.to }),
                }
            }
            stay.into_iter().rev().for_each(|next| prompt.push_front(next));
        }
        Some((lane, first.to, together))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::protocol::{Expects, Operation, fixtures, fixtures::leaving};

    const MOST: usize = 6;

    fn asked(name: &str, operation: Operation) -> Asked {
        let name = name.to_owned();
        Asked { name, operation }
    }

    /// A request for a lock that is expected to be free.
    fn request(name: &str) -> Asked {
        let operation = fixtures::asking(&format!("a.{name}"), fixtures::request(&format!("a-{name}")));
        let expects = Expects::Alone;
        asked(name, Operation { expects, ..operation })
    }

    /// A release that may hand its lock over.
    fn release(name: &str) -> Asked {
        let operation = leaving(&format!("a.{name}"), &format!("a-{name}"));
        let (expects, leave_capacity) = (Expects::Holding, Some(1));
        asked(
            name,
            Operation {
                expects,
                leave_capacity,
                ..operation
            },
        )
    }

    async fn soon<T>(turn: impl Future<Output = T>) -> Option<T> {
        timeout(Duration::from_millis(1), turn).await.ok()
    }

    /// Takes all prompt slots.
    async fn full() -> (Arc<Slots>, Vec<Option<Slot>>) {
        let slots = Slots::new(MOST, true);
        let mut taken = Vec::new();
        while let Some(slot) = soon(slots.slot(0)).await {
            taken.push(slot);
        }
        assert_eq!(taken.len(), MOST);
        (slots, taken)
    }

    /// Queues these up, and frees a slot once all of them wait. Returns the names of each command, each of which ends
    /// at once.
    async fn commands(queued: impl IntoIterator<Item = Asked>) -> Vec<Vec<String>> {
        let (slots, mut taken) = full().await;
        let (commands, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for asked in queued {
            let (slots, commands) = (slots.clone(), commands.clone());
            tasks.push(tokio::spawn(async move {
                let Some((_slot, together)) = slots.turn(Some(asked), 0).await else {
                    return;
                };
                let id = &together[0].operation.id;
                assert!(together.iter().all(|asked| asked.operation.id == *id));
                let names = together.iter().map(|asked| asked.name.clone());
                commands.lock().unwrap().push(names.collect());
            }));
            tokio::task::yield_now().await;
        }
        taken.pop();
        for task in tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut *commands.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn operations_that_queue_up_share_the_next_command_and_nothing_waits_for_company() {
        let slots = Slots::new(MOST, true);
        let mut turns = Vec::new();
        for number in 0..MOST {
            let turn = soon(slots.turn(Some(request(&number.to_string())), 0));
            let (slot, alone) = turn.await.flatten().expect("a slot is free");
            assert_eq!(alone.len(), 1);
            turns.push(slot);
        }
        let names: Vec<String> = (0..TOGETHER + 6).map(|number| number.to_string()).collect();
        let commands = commands(names.iter().map(|name| request(name))).await;
        assert_eq!(commands, [&names[..TOGETHER], &names[TOGETHER..]]);
    }

    /// Those that go alone come in their order.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_cannot_share_a_command_goes_alone() {
        let in_full = |name: &str| {
            let mut asked = request(name);
            asked.operation.expects = Expects::Nothing;
            asked
        };
        let commands = commands([request("1"), in_full("2"), request("3"), in_full("4")]).await;
        assert_eq!(commands, [vec!["1", "3"], vec!["2"], vec!["4"]]);
    }

    /// Forty documents that a transaction has written: the server tries each for longer every time.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_was_slow_once_waits_behind_none_that_is_stuck() {
        let slots = Slots::new(MOST, true);
        for number in 0..40 {
            let slots = slots.clone();
            tokio::spawn(async move {
                for tries in 0.. {
                    let mut asked = release(&number.to_string());
                    asked.operation.expects = Expects::Nothing;
                    let turn = slots.turn(Some(asked), tries).await;
                    sleep(Duration::from_millis(200 << tries.min(5))).await;
                    drop(turn);
                }
            });
        }
        // Each of them has been tried three times by then.
        sleep(Duration::from_secs(20)).await;
        for tries in 0..STUCK_AFTER {
            for asked in [request("x"), release("x")] {
                let entered = soon(slots.turn(Some(asked), tries)).await;
                assert!(matches!(entered, Some(Some(_))), "{tries}");
            }
        }
    }

    /// There is always another that was slow for a moment.
    #[tokio::test(start_paused = true)]
    async fn an_operation_that_is_stuck_gets_its_turn_beside_any_number_that_are_slow() {
        let second = Duration::from_secs(1);
        let (slots, _taken) = full().await;
        for _ in 0..4 * SLOW_AT_ONCE {
            let slots = slots.clone();
            tokio::spawn(async move {
                loop {
                    let slot = slots.slot(1).await;
                    sleep(second).await;
                    drop(slot);
                }
            });
        }
        sleep(second / 2).await;
        let left = soon(slots.turn(Some(release("x")), STUCK_AFTER)).await.flatten();
        assert!(left.is_some(), "it leaves");
        // The last slot is for others that leave.
        assert!(soon(slots.turn(Some(release("y")), STUCK_AFTER)).await.is_none());
        assert!(matches!(soon(slots.turn(Some(release("z")), 0)).await, Some(Some(_))));
        drop(left);
        let served = timeout(2 * second, slots.turn(Some(request("y")), STUCK_AFTER)).await;
        assert!(matches!(served, Ok(Some(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_entry_gets_through_when_all_others_hang() {
        let (slots, mut hanging) = full().await;
        while let Some(slot) = soon(slots.slot(1)).await {
            hanging.push(slot);
        }
        assert_eq!(hanging.len(), MOST + SLOW_AT_ONCE / 4 * 3);
        let mut turns = Vec::new();
        for tries in [0, 1] {
            turns.push(soon(slots.turn(Some(release("x")), tries)).await.expect("it leaves"));
        }
        // The next one is served as soon as one of them has left.
        let mut waiting = std::pin::pin!(slots.turn(Some(release("y")), 0));
        assert!(soon(waiting.as_mut()).await.is_none());
        turns.pop();
        assert!(matches!(soon(waiting).await, Some(Some(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_gives_up_its_wait_takes_no_slot_along() {
        let (slots, taken) = full().await;
        for _ in 0..3 {
            assert!(soon(slots.slot(0)).await.is_none());
        }
        assert!(!slots.is_quiet());
        drop(taken);
        assert!(slots.is_quiet());
        assert!(soon(slots.slot(0)).await.is_some());
    }
}
