//! The commands of a session that are on their way, and the operations that wait for one.
//!
//! Few commands are on their way at once, as the pool is the user's. While all their slots are taken, operations queue
//! up. A slot that becomes free takes the first of them, and with it those that can share its command: the more there
//! is to do, the more locks go into a command, and nothing ever waits for company.
//!
//! A command without a prompt answer moves to a slow slot, so that it doesn't block the others, and its operation begins
//! there the next time. An operation that was not done in time again and again is most likely held up by its own
//! document, such as by a transaction that has written it. The server may try it for long, so it has slots of its own:
//! an operation that was slow for a moment waits behind no such operation. Two more slots are for entries that leave
//! while all slow ones are taken, so that a release gets through even when everything else hangs.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use crate::{protocol::Expects, store::Asked, waitlist::TimedOut};

/// Maximum number of slow commands beside the prompt ones: those without a prompt answer, or whose operation was not
/// done in time when it was last sent. Each can occupy a connection of the pool for as long as the server may try.
const SLOW_AT_ONCE: usize = 4;

/// Maximum number of operations that were not done in time again and again, beside all of these. The server may try
/// each for ten seconds.
const STUCK_AT_ONCE: usize = 2;

/// Number of tries in a row that were not done in time, after which an operation is stuck. A server that stood still
/// for a second makes two of them.
const STUCK_AFTER: u32 = 3;

/// Maximum number of operations with leaving entries beside all of these, while all slow slots are taken.
const LEAVES_AT_ONCE: usize = 2;

/// Maximum number of operations in a command: more of them hardly cost the server less, and all wait for the last.
const TOGETHER: usize = 64;

/// The same where one of them may hand its lock over: the next holder waits for all of the command.
const TOGETHER_HANDING_OVER: usize = 16;

/// The slots of a session's commands, and the queue for them.
#[derive(Debug)]
pub(super) struct InFlight {
    most: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    shares: bool,
    /// The number of free slots of each lane.
    free: [usize; 4],
    /// By the lane that they wait for.
    waiting: [VecDeque<Waiting>; 3],
}

/// The kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// It must be left to others once the answer is not prompt.
    Prompt,
    Slow,
    Stuck,
    Leaving,
}

impl Lane {
    /// Returns the lane for an operation after these tries in vain.
    fn after(timed_out: TimedOut) -> Self {
        match timed_out.overdue {
            0 => Self::Prompt,
            1..STUCK_AFTER => Self::Slow,
            _ => Self::Stuck,
        }
    }
}

impl Asked {
    /// Whether it has entries that leave: others may get the lock by it.
    fn leaves(&self) -> bool {
        !self.operation.leave.is_empty()
    }

    /// Returns the maximum number of operations in a command with this one.
    fn together(&self) -> usize {
        match self.operation.expects {
            _ if !self.operation.is_shareable() => 1,
            Expects::Holding => TOGETHER_HANDING_OVER,
            _ => TOGETHER,
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

impl Waiting {
    fn leaves(&self) -> bool {
        self.asked.as_ref().is_some_and(Asked::leaves)
    }

    fn together(&self) -> usize {
        self.asked.as_ref().map_or(0, Asked::together)
    }
}

/// A slot for a command that is on its way. Dropping it gives it to the next.
#[derive(Debug)]
pub(super) struct Slot {
    in_flight: Arc<InFlight>,
    lane: Lane,
}

impl Slot {
    pub(super) fn is_prompt(&self) -> bool {
        self.lane == Lane::Prompt
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.queue().free[self.lane as usize] += 1;
        self.in_flight.give();
    }
}

impl InFlight {
    /// Creates the slots, of which so many are prompt; `shares`: whether the store runs several operations in a command.
    pub(super) fn new(most: usize, shares: bool) -> Arc<Self> {
        let queue = Mutex::new(Queue {
            shares,
            free: [most, SLOW_AT_ONCE, STUCK_AT_ONCE, LEAVES_AT_ONCE],
            waiting: Default::default(),
        });
        Arc::new(Self { most, queue })
    }

    /// Waits for the turn of an operation, and of those that go along; `None` if it goes along itself.
    pub(super) async fn turn(self: &Arc<Self>, asked: Asked, timed_out: TimedOut) -> Option<Turn> {
        self.wait(Lane::after(timed_out), Some(asked)).await
    }

    /// Waits for a prompt slot, or a slow one after tries in vain, for another command. Cancel safe.
    pub(super) async fn slot(self: &Arc<Self>, timed_out: TimedOut) -> Option<Slot> {
        self.wait(Lane::after(timed_out), None).await.map(|(slot, _)| slot)
    }

    /// Waits for a slow slot, for a command that is on its way. Cancel safe.
    pub(super) async fn slow(self: &Arc<Self>) -> Option<Slot> {
        self.wait(Lane::Slow, None).await.map(|(slot, _)| slot)
    }

    async fn wait(self: &Arc<Self>, lane: Lane, asked: Option<Asked>) -> Option<Turn> {
        let (to, turn) = oneshot::channel();
        self.queue().waiting[lane as usize].push_back(Waiting { asked, to });
        self.give();
        turn.await.ok()
    }

    /// Gives the free slots to those that wait for them.
    fn give(self: &Arc<Self>) {
        loop {
            let Some((lane, to, together)) = self.queue().next() else {
                return;
            };
            let in_flight = self.clone();
            // If nothing waits there any more, the slot is dropped, and given to the next.
            drop(to.send((Slot { in_flight, lane }, together)));
        }
    }

    /// Whether no prompt command is on its way; slow ones don't count.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue().free[Lane::Prompt as usize] == self.most
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing under it panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Takes a free slot, and the first that waits for one of its lane, with those that go along.
    fn next(&mut self) -> Option<(Lane, oneshot::Sender<Turn>, Vec<Asked>)> {
        let lanes = [Lane::Prompt, Lane::Slow, Lane::Stuck, Lane::Leaving];
        let (lane, first) = lanes.into_iter().find_map(|lane| Some((lane, self.first(lane)?)))?;
        self.free[lane as usize] -= 1;
        let mut most = if self.shares { first.together() } else { 0 };
        let mut together: Vec<Asked> = first.asked.into_iter().collect();
        let (mut stay, waiting) = (Vec::new(), &mut self.waiting[Lane::Prompt as usize]);
        // Only those with not too many others before them.
        while together.len() < most && stay.len() < TOGETHER {
            let Some(next) = waiting.pop_front() else { break };
            let is_served = lane == Lane::Prompt || (lane == Lane::Leaving && next.leaves());
            let with_it = most.min(next.together());
            match next.asked {
                Some(mut asked) if is_served && together.len() < with_it => {
                    most = with_it;
                    // To its documents, a command is one operation.
                    asked.operation.id.clone_from(&together[0].operation.id);
                    together.push(asked);
                }
                asked => stay.push(Waiting { asked, to: next.to }),
            }
        }
        stay.into_iter().rev().for_each(|next| waiting.push_front(next));
        Some((lane, first.to, together))
    }

    /// Takes out the first that waits for a slot of this lane, if one is free.
    fn first(&mut self, lane: Lane) -> Option<Waiting> {
        let all_hang = self.free[Lane::Slow as usize] == 0;
        // Whoever was dropped meanwhile needs none. Thousands of them, one after the other, would be as many drops of a
        // slot within each other.
        for waiting in &mut self.waiting {
            while waiting.front().is_some_and(|waiting| waiting.to.is_closed()) {
                waiting.pop_front();
            }
        }
        match lane {
            _ if self.free[lane as usize] == 0 => None,
            Lane::Leaving if !all_hang => None,
            Lane::Leaving => [Lane::Prompt, Lane::Slow].into_iter().find_map(|lane| {
                let waiting = &mut self.waiting[lane as usize];
                waiting.remove(waiting.iter().position(Waiting::leaves)?)
            }),
            _ => self.waiting[lane as usize].pop_front(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::protocol::{Operation, made_up, made_up::leaving};

    const MOST: usize = 6;

    fn overdue(overdue: u32) -> TimedOut {
        TimedOut { overdue, unanswered: 0 }
    }

    fn asked(name: &str, operation: Operation) -> Asked {
        let name = name.to_owned();
        Asked { name, operation }
    }

    /// A request for a lock that is expected to be free.
    fn request(name: &str) -> Asked {
        let operation = made_up::asking(&format!("a.{name}"), made_up::request(&format!("a-{name}")));
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
    async fn full() -> (Arc<InFlight>, Vec<Option<Slot>>) {
        let in_flight = InFlight::new(MOST, true);
        let mut taken = Vec::new();
        while let Some(slot) = soon(in_flight.slot(overdue(0))).await {
            taken.push(slot);
        }
        assert_eq!(taken.len(), MOST);
        (in_flight, taken)
    }

    /// Queues these up, and frees a slot once all of them wait. Returns the names of each command, each of which ends
    /// at once.
    async fn commands(queued: impl IntoIterator<Item = Asked>) -> Vec<Vec<String>> {
        let (in_flight, mut taken) = full().await;
        let (commands, mut tasks) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
        for asked in queued {
            let (in_flight, commands) = (in_flight.clone(), commands.clone());
            tasks.push(tokio::spawn(async move {
                let Some((_slot, together)) = in_flight.turn(asked, overdue(0)).await else {
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
        let in_flight = InFlight::new(MOST, true);
        let mut turns = Vec::new();
        for number in 0..MOST {
            let turn = soon(in_flight.turn(request(&number.to_string()), overdue(0)));
            let (slot, alone) = turn.await.flatten().expect("a slot is free");
            assert_eq!(alone.len(), 1);
            turns.push(slot);
        }
        let names: Vec<String> = (0..TOGETHER + 6).map(|number| number.to_string()).collect();
        let commands = commands(names.iter().map(|name| request(name))).await;
        assert_eq!(commands, [&names[..TOGETHER], &names[TOGETHER..]]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_others_may_wait_for_goes_with_few() {
        let names: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let all = names.iter().enumerate();
        let queued = all.map(|(number, name)| if number == 10 { release(name) } else { request(name) });
        let commands = commands(queued).await;
        assert_eq!(
            commands,
            [&names[..TOGETHER_HANDING_OVER], &names[TOGETHER_HANDING_OVER..]]
        );
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
        let in_flight = InFlight::new(MOST, true);
        for number in 0..40 {
            let in_flight = in_flight.clone();
            tokio::spawn(async move {
                for tries in 0.. {
                    let mut asked = release(&number.to_string());
                    asked.operation.expects = Expects::Nothing;
                    let turn = in_flight.turn(asked, overdue(tries)).await;
                    sleep(Duration::from_millis(200 << tries.min(5))).await;
                    drop(turn);
                }
            });
        }
        // Each of them has been tried three times by then.
        sleep(Duration::from_secs(20)).await;
        for tries in 0..STUCK_AFTER {
            for asked in [request("x"), release("x")] {
                let entered = soon(in_flight.turn(asked, overdue(tries))).await;
                assert!(matches!(entered, Some(Some(_))), "{tries}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leaving_entry_gets_through_when_all_others_hang() {
        let (in_flight, mut hanging) = full().await;
        while let Some(slot) = soon(in_flight.slot(overdue(1))).await {
            hanging.push(slot);
        }
        assert_eq!(hanging.len(), MOST + SLOW_AT_ONCE);
        let mut turns = Vec::new();
        for tries in [0, 1] {
            turns.push(
                soon(in_flight.turn(release("x"), overdue(tries)))
                    .await
                    .expect("it leaves"),
            );
        }
        // The next one is served as soon as one of them has left.
        let mut waiting = std::pin::pin!(in_flight.turn(release("y"), overdue(0)));
        assert!(soon(waiting.as_mut()).await.is_none());
        turns.pop();
        assert!(matches!(soon(waiting).await, Some(Some(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_gives_up_its_wait_takes_no_slot_along() {
        let (in_flight, taken) = full().await;
        for _ in 0..3 {
            assert!(soon(in_flight.slot(overdue(0))).await.is_none());
        }
        assert!(!in_flight.is_quiet());
        drop(taken);
        assert!(in_flight.is_quiet());
        assert!(soon(in_flight.slot(overdue(0))).await.is_some());
    }
}
