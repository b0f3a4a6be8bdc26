//! Handing a hold on inside the process: the next task in line gets it without the server. Sharing a hold: more readers
//! get in.
//!
//! The document keeps the entry, with its lease, for as long as the tasks of this process pass the hold along; only the
//! right to the entry changes hands. A grant reserves a range of tokens in the document's counter
//! ([`Request::reserve`](crate::protocol::Request)), so each task has a larger token than the task before, and the next
//! grant by the server has a larger one still.
//!
//! Meanwhile the head of the process's line has its own entry in the server's queue. That entry is the queue position
//! of the process, so the task that becomes the next head takes it over: other clients are served in the order in which
//! they came. If there is no such task, the entry leaves.
//!
//! Once another client is known to wait, the lock goes through the server. An event notifies the holder
//! ([`Signal::AskedFor`](crate::protocol::wake::Signal)). If the event is lost, the lock still goes through the server
//! when the range is used up, or when the document was last seen some time ago.
//!
//! A read hold is not handed on but shared: while a reader of this process has it, each further reader at the head of
//! the line gets its own token from the same kind of range ([`Step::share`]). The entry leaves with the last of
//! them ([`Waitlist::part`]), and sharing ends by the same rules. A writer of this process ends it too: it waits in
//! line, and readers come after it. Other clients can be granted tokens beside a reader, so of the tokens between its
//! own and the counter, only the range that the write of its grant has reserved is its own.
//!
//! A task that may re-enter joins the hold of another task of this client. It joins only the very same share: as many
//! permits of the same kind. So a reader gets in although a writer waits: behind the writer, which waits for the reader's
//! own hold, it would be stuck. And no reader becomes a writer by it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Context, Effect, Grant, Held, Hold, How, Key, RemainingLease, Stage, Step, Waiting, Waitlist, answers::others_wait,
    idling, unsigned,
};
use crate::{
    hold_options::Terms,
    protocol::{Kind, Request, State, kind::is_handed_on},
};

/// Number of tokens of one grant, which limits how often the lock is handed on past a client whose event was lost; a
/// longer range would spare hardly any more commands.
pub const RANGE: i64 = 64;

/// Maximum time for which a hold is handed on after the document was seen without other waiters. If the event of
/// another client was lost, that client waits no longer than this beyond the present critical section.
pub const HANDED_ON_FOR: Duration = Duration::from_millis(500);

/// The right to hand a hold on, or to share a reader's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HandingOn {
    /// The last token that a task has got.
    pub(super) token: i64,
    /// The last token of the range.
    pub(super) last: i64,
    /// When the document was seen without other waiters; for a lock that stays, when it was let go of, if that was later
    /// and it had not been seen for long.
    pub(super) seen_at: Instant,
    /// When anything known of the document was last in doubt, until a reading that was asked for after that. Only for a
    /// lock that is to stay with the client: any other goes through the server then.
    pub(super) doubted_at: Option<Instant>,
    pub(super) terms: Terms,
}

impl HandingOn {
    /// Whether a hold may go on to the next task, or be shared; `is_idle`: no task has it.
    fn may_go_on(&self, is_idle: bool, context: &Context<'_>) -> bool {
        let most = idling::unseen(&self.terms, context).filter(|_| is_idle);
        let most = most.unwrap_or(match context.stream.is_open() {
            true => HANDED_ON_FOR,
            // No event shows other waiters then: as long as a few tries of a polling client.
            false => HANDED_ON_FOR / 10,
        });
        self.doubted_at.is_none() && self.has_tokens() && self.was_seen_within(most, context)
    }

    /// Whether a token of the range is left.
    pub(super) fn has_tokens(&self) -> bool {
        self.token < self.last
    }

    pub(super) fn was_seen_within(&self, most: Duration, context: &Context<'_>) -> bool {
        context.now.saturating_duration_since(self.seen_at) < most
    }
}

impl<T> Waiting<T> {
    /// Whether its hold may be handed on, or be one that was: it needs all permits of a lock whose holders are all
    /// alike, on terms under which the lease is renewed and a release opens the lock.
    pub(super) fn may_be_handed_on(&self) -> bool {
        let (kind, capacity) = self.wants.used;
        let alike = is_handed_on(kind) && !self.wants.reentrant;
        alike && self.wants.permits == capacity && self.wants.terms.is_plain()
    }

    /// Whether it may have this hold next. A try may while it has not asked the server itself.
    fn may_take_over<H>(&self, held: &Held<H>, handing: &HandingOn) -> bool {
        let may = self.may_be_handed_on() && (self.waits() || self.was_never_sent());
        may && self.is_like(held) && self.wants.terms.are_like(&handing.terms)
    }

    /// Whether it is a plain reader that may share a hold, on terms as above.
    fn may_share(&self) -> bool {
        let is_reader = self.wants.used.0 == Kind::RwLock && self.wants.permits == 1;
        is_reader && !self.wants.reentrant && self.wants.terms.is_plain()
    }

    fn is_like<H>(&self, held: &Held<H>) -> bool {
        (self.wants.used, self.wants.permits) == (held.used, held.permits)
    }

    /// Whether the server can't have its entry.
    fn was_never_sent(&self) -> bool {
        self.stage == Stage::New && !self.uncertain
    }
}

impl<H: Hold> Step<'_, H> {
    /// Returns the number of tokens that a grant to the head is to take beyond its own: a range where several tasks of
    /// this process want the lock. It is so, too, if the head gets the lock `from_here`, or is a reader beside another,
    /// or if the lock is to stay with the client after its release.
    pub(super) fn reserve(&self, from_here: bool) -> i64 {
        let context = self.context;
        let wants = |waiting: Option<&Waiting<H::Task>>| waiting.is_some_and(|it| it.waits() && it.may_be_handed_on());
        let several = wants(self.waiting.front()) && (from_here || wants(self.waiting.get(1)));
        let stays =
            |head: &Waiting<H::Task>| head.may_be_handed_on() && !head.wants.terms.keep_idle(context.config).is_zero();
        if context.config.hands_on && (several || self.shares() || self.waiting.front().is_some_and(stays)) {
            RANGE - 1
        } else {
            0
        }
    }

    /// Returns the right to hand a hold on or to share it that the answer to a request gives to a waiting task, if the
    /// document shows its entry with a range of tokens, and no waiter of another client.
    pub(super) fn handing_on(
        &self,
        position: usize,
        request: &Request,
        state: &State,
        sent: Instant,
    ) -> Option<HandingOn> {
        let context = self.context;
        let waiting = &self.waiting[position];
        if !context.config.hands_on || others_wait(state, context) {
            return None;
        }
        let (token, last) = if waiting.may_share() {
            // A first request finds no entry of its own: the grant that its answer shows is its own, with its range.
            let reserved = if request.fresh { request.reserve } else { 0 };
            (state.token.saturating_sub(reserved), state.token)
        } else {
            // While the entry holds all permits nobody else is granted a token. So whatever lies between the entry's
            // token and the counter is its own, even if another operation than the present one put it in.
            let [holder] = &state.holders[..] else { return None };
            // The number of permits may have been set.
            let is_whole = holder.permits == state.capacity;
            if holder.id != waiting.entry || !is_whole || !waiting.may_be_handed_on() {
                return None;
            }
            // Since it came, others may have been beside it, and the number have been lowered to its own.
            if state.kind == Kind::Semaphore && !(request.fresh && request.reserve > 0) {
                return None;
            }
            // Another program may have set the counter ahead.
            let last = state.token.min(holder.token.saturating_add(RANGE - 1));
            (holder.token, last)
        };
        (token < last).then_some(HandingOn {
            token,
            last,
            // The document is no older than the request.
            seen_at: sent,
            doubted_at: None,
            terms: waiting.wants.terms,
        })
    }

    /// Hands a hold that its holder lets go of on to the next task, without the server. `false`: the lock has to go
    /// through the server.
    pub(super) fn hand_on(&mut self, hold: &H) -> bool {
        let (list, context) = (&mut *self.list, self.context);
        let Some(left) = hold.released_lease().filter(|left| left.is_sound(context.now)) else {
            return false;
        };
        let held = list.holds.get(hold.entry()).filter(|held| !held.uncertain);
        let Some(held) = held.filter(|_| !list.guards) else {
            return false;
        };
        let is_idle = list.is_idle(hold.entry());
        let may_go_on = |handing: &&HandingOn| handing.may_go_on(is_idle, context);
        let Some(handing) = held.handing_on.as_ref().filter(may_go_on) else {
            return false;
        };
        let mut line = list.waiting.iter_mut();
        let (Some(head), after) = (line.next(), line.next()) else {
            return false;
        };
        if !head.may_take_over(held, handing) {
            return false;
        }
        let leaves_queue = match after {
            _ if head.was_never_sent() => false,
            // The head gets the hold, and the task after it the head's position in the server's queue, which a try would
            // give up.
            Some(after) if after.waits() && after.may_take_over(held, handing) && after.was_never_sent() => {
                std::mem::swap(&mut head.entry, &mut after.entry);
                (after.stage, after.above) = (head.stage, head.above);
                (after.uncertain, after.how) = (head.uncertain, head.how);
                false
            }
            // A task that uses the lock otherwise can't have it.
            Some(_) => return false,
            None => true,
        };
        let Some(next) = self.waiting.pop_front() else {
            return false;
        };
        if leaves_queue {
            self.abandon(&next);
        }
        self.go_on(next, hold.entry(), left, false);
        true
    }

    /// Lets readers at the head of the line in without the server, as long as there is a hold that they may share.
    pub(super) fn share(&mut self) {
        while let Some((entry, left)) = self.shared_with_head()
            && let Some(next) = self.waiting.pop_front()
        {
            self.asked_alone = false;
            self.go_on(next, &entry, left, true);
        }
    }

    /// Gives a task the next token of an entry, with what is left of its lease: in place of the hold that has it, or
    /// beside those that `share` it.
    fn go_on(&mut self, next: Waiting<H::Task>, entry: &str, left: RemainingLease, share: bool) {
        let (list, context) = (&mut *self.list, self.context);
        let Some(held) = list.holds.get_mut(entry) else { return };
        let Some(handing) = &mut held.handing_on else { return };
        handing.token += 1;
        let grant = Grant {
            token: handing.token,
            granted_as: held.token,
            used: next.wants.used,
            permits: unsigned(next.wants.permits),
            lease: next.lease,
            how: How::Local,
            deadline: left.deadline,
            renew_at: Some(left.renew_at),
        };
        let before = held.tasks.first().map(Arc::as_ref);
        let hold = Arc::new(H::of_grant(&list.name, entry, &grant, before, context));
        if !share {
            list.idle.take_if(|idle| idle.entry == entry);
            handing.terms = next.wants.terms;
            list.effects.extend(held.tasks.drain(..).map(Effect::Gone));
        }
        held.tasks.push(hold.clone());
        list.effects.push(Effect::Came(hold.clone()));
        list.effects.push(Effect::Granted { to: next.to, hold });
    }

    /// Returns the entry that the head of the line may share, with what is left of its lease.
    fn shared_with_head(&self) -> Option<(String, RemainingLease)> {
        let context = self.context;
        let head = self.waiting.front().filter(|_| !self.guards)?;
        if !head.may_share() || !head.was_never_sent() {
            return None;
        }
        self.holds.iter().find_map(|(entry, held)| {
            let handing = held.handing_on.as_ref()?;
            let alike = head.is_like(held) && head.wants.terms.are_like(&handing.terms);
            if !alike || held.uncertain || !handing.may_go_on(false, context) {
                return None;
            }
            // The oldest of those that share it: it is the first to be held too long.
            let oldest = held.tasks.iter().find(|hold| !hold.is_over())?;
            let left = oldest.shared_lease().filter(|left| left.is_sound(context.now))?;
            Some((entry.clone(), left))
        })
    }

    /// Answers the tasks that may join a hold granted since they came.
    pub(super) fn let_reenter(&mut self) {
        if !self.may_have_reentering {
            // Of thousands that wait, hardly ever one may: this is part of each hand-over.
            return;
        }
        let reentering = self.waiting.iter().filter(|waiting| waiting.wants.reentrant);
        let keys: Vec<Key> = reentering.map(|waiting| waiting.key).collect();
        self.may_have_reentering = !keys.is_empty();
        for key in keys {
            let waiting = self.waiting.iter().find(|waiting| waiting.key == key);
            if let Some(hold) = waiting.and_then(|waiting| self.reenter(waiting))
                && let Some(to) = self.cancel(key)
            {
                self.effects.push(Effect::Granted { to, hold });
            }
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Whether a grant to the head would be shared: the head is a reader that was never requested, and there is
    /// another.
    pub(super) fn shares(&self) -> bool {
        let Some(head) = self.waiting.front().filter(|head| head.may_share()) else {
            return false;
        };
        let another = self.waiting.get(1);
        let another =
            another.is_some_and(|another| another.may_share() && another.wants.terms.are_like(&head.wants.terms));
        head.was_never_sent() && (another || self.holds.values().any(|held| head.is_like(held)))
    }

    /// Notes that a task lets go of a hold, if others share its entry still: that stays. `false`: it was the last.
    pub(super) fn part(&mut self, hold: &H) -> bool {
        let Some(held) = self.holds.get_mut(hold.entry()) else {
            return false;
        };
        let place = held.tasks.iter().position(|task| task.is_same(hold));
        let Some(place) = place.filter(|_| held.tasks.len() > 1) else {
            return false;
        };
        let gone = held.tasks.remove(place);
        self.effects.push(Effect::Gone(gone));
        true
    }

    /// Notes that others may wait for a hold: it goes through the server next.
    pub(super) fn asked_for(&mut self, entry: &str) {
        if let Some(held) = self.holds.get_mut(entry) {
            held.handing_on = None;
            self.others_wait = Some(true);
        }
    }

    /// Notes that others may wait for any of the holds.
    pub(super) fn hand_on_no_more(&mut self) {
        self.holds.values_mut().for_each(|held| held.handing_on = None);
    }

    /// Returns a hold of this client that the task may join, with one more handle: the oldest that is not over.
    pub(super) fn reenter(&self, waiting: &Waiting<H::Task>) -> Option<Arc<H>> {
        if !waiting.wants.reentrant {
            return None;
        }
        let same = |(entry, held): &(&String, &Held<H>)| held.used == waiting.wants.used && !self.is_idle(entry);
        let mut holds: Vec<_> = self.holds.iter().filter(same).collect();
        holds.sort_unstable_by_key(|(_, held)| held.token);
        let mut tasks = holds.into_iter().flat_map(|(_, held)| &held.tasks);
        tasks.find(|hold| hold.enter(waiting.wants.permits)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{
            Use,
            fixtures::{holder, lock, request, waiter},
        },
        waitlist::{
            Patience,
            fixtures::{MUTEX, PERMIT, PlainHold, READER, WRITER, held, in_context, queued, task, waitlist},
        },
    };

    /// A hold that may go on for a while, under the entry `me-0`.
    fn hold(used: (Use, i64), context: &Context<'_>) -> Held<PlainHold> {
        let later = context.now + Duration::from_secs(1);
        lasting(used, (later, later), context)
    }

    /// The same with this deadline, and due to be renewed then.
    fn lasting(used: (Use, i64), times: (Instant, Instant), context: &Context<'_>) -> Held<PlainHold> {
        let handing_on = HandingOn {
            token: 1,
            last: RANGE,
            seen_at: context.now,
            doubted_at: None,
            terms: Terms::default(),
        };
        Held {
            handing_on: Some(handing_on),
            ..held(used, times)
        }
    }

    /// Its hold as the task has released it.
    fn released(line: &Waitlist<PlainHold>) -> PlainHold {
        let hold = PlainHold::clone(&line.holds["me-0"].tasks[0]);
        PlainHold { released: true, ..hold }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_task_that_wants_the_same_may_have_a_hold_of_another() {
        in_context(|context| {
            let held = hold(MUTEX, context);
            let handing = held.handing_on.as_ref().unwrap();
            assert!(task(1, MUTEX).may_take_over(&held, handing));
            let mut tries = task(1, MUTEX);
            tries.wants.patience = Patience::Try;
            assert!(tries.may_take_over(&held, handing), "its holder has just let go of it");
            tries.stage = Stage::Asked;
            assert!(!tries.may_take_over(&held, handing), "the server answers it");
            assert!(!task(1, WRITER).may_take_over(&held, handing));
            assert!(task(1, READER).may_share() && !task(1, WRITER).may_share());
            let upgradeable = task(1, (READER.0, 501));
            assert!(!upgradeable.may_share() && !upgradeable.may_be_handed_on());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_is_reserved_where_tasks_can_hand_the_hold_on() {
        in_context(|context| {
            let reserved = |used| waitlist([task(1, used), task(2, used)]).step(context).reserve(false);
            assert_eq!((reserved(MUTEX), reserved(PERMIT)), (RANGE - 1, 0));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_gives_the_right_to_hand_on_only_of_a_hold_of_ones_own_with_a_range() {
        let request = Request {
            reserve: RANGE - 1,
            ..request("me-1")
        };
        let again = Request {
            fresh: false,
            ..request.clone()
        };
        let alone = Request {
            reserve: 0,
            ..request.clone()
        };
        in_context(|context| {
            let requested =
                |request: &Request, waiting: Waiting<u64>, id: &str, counter: i64, others: bool, hands_on: bool| {
                    let state = State {
                        token: counter,
                        ..lock(waiting.wants.used, [holder(id, 100)], others.then(|| waiter("other-1")))
                    };
                    let mut config = context.config.clone();
                    config.hands_on = hands_on;
                    let context = Context {
                        config: &config,
                        ..*context
                    };
                    let mut waitlist = waitlist([waiting]);
                    let right = waitlist.step(&context).handing_on(0, request, &state, context.now);
                    right.map(|right| (right.token, right.last))
                };
            let range = |waiting, id: &str, counter, others, hands_on| {
                requested(&request, waiting, id, counter, others, hands_on)
            };
            // Others may have had permits beside one that has all since their number was lowered.
            for (request, right) in [(&request, Some((100, 140))), (&again, None), (&alone, None)] {
                let permit = task(1, ((Kind::Semaphore, 1), 1));
                assert_eq!(requested(request, permit, "me-1", 140, false, true), right);
            }
            let task = || task(1, MUTEX);
            let mut reenters = task();
            reenters.wants.reentrant = true;
            assert_eq!(range(task(), "me-1", 140, false, true), Some((100, 140)));
            // Another program has set the counter ahead.
            assert_eq!(range(task(), "me-1", 9_999, false, true), Some((100, 99 + RANGE)));
            assert_eq!(
                range(task(), "me-1", 100, false, true),
                None,
                "there is no further token"
            );
            assert_eq!(range(task(), "me-1", 140, false, false), None, "it is not wanted");
            assert_eq!(range(task(), "me-1", 140, true, true), None, "another client waits");
            assert_eq!(range(task(), "me-9", 140, false, true), None, "it is another's");
            assert_eq!(range(reenters, "me-1", 140, false, true), None);
        });
    }

    /// The position in the server's queue is that of the process, and the waiters behind the try would lose it.
    #[tokio::test(start_paused = true)]
    async fn a_try_is_not_given_the_position_in_the_queue_that_it_would_give_up() {
        in_context(|context| {
            for (patience, goes_on) in [(Patience::Wait, true), (Patience::Try, false)] {
                let mut second = task(2, MUTEX);
                second.wants.patience = patience;
                let mut line = waitlist([queued(1, MUTEX), second, task(3, MUTEX)]);
                line.holds.insert("me-0".to_owned(), hold(MUTEX, context));
                let released = released(&line);
                assert_eq!(line.step(context).hand_on(&released), goes_on);
                assert!(line.leaving.is_empty() && line.is_queued(), "{line:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_is_handed_on_only_while_its_lease_lasts_and_wants_no_renewal() {
        in_context(|context| {
            let later = context.now + Duration::from_secs(1);
            for (deadline, renew_at, goes_on) in [
                (later, later, true),
                (context.now, later, false),
                (later, context.now, false),
            ] {
                let hold = |used| lasting(used, (deadline, renew_at), context);
                let mut mutex = waitlist([task(1, MUTEX)]);
                mutex.holds.insert("me-0".to_owned(), hold(MUTEX));
                let hold_of_task = released(&mutex);
                assert_eq!(mutex.step(context).hand_on(&hold_of_task), goes_on);
                assert!(mutex.leaving.is_empty(), "the server never had an entry of that task");
                // Whatever a task after it wants: the first has no place that would have to be taken over.
                let mut mixed = waitlist([task(1, MUTEX), task(2, PERMIT)]);
                mixed.holds.insert("me-0".to_owned(), hold(MUTEX));
                assert_eq!(mixed.step(context).hand_on(&hold_of_task), goes_on);
                let mut read = waitlist([task(1, READER)]);
                read.holds.insert("me-0".to_owned(), hold(READER));
                read.step(context).share();
                assert_eq!(read.waiting.is_empty(), goes_on);
                let granted = |effect: &&Effect<PlainHold>| matches!(effect, Effect::Granted { to: 1, .. });
                let granted = [&mutex, &read].map(|list| list.effects.iter().filter(granted).count());
                assert_eq!(granted, [usize::from(goes_on); 2]);
            }
        });
    }
}
