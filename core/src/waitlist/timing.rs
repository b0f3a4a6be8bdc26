//! The timers of the waitlist: when it asks again, or takes entries out.

use std::time::Duration;

use tokio::time::Instant;

use super::{Context, Hold, Step, Waitlist, unsigned};
use crate::{
    backoff::LONGEST_PAUSE,
    config::Config,
    hold_options::Lease,
    protocol::{Entry, ServerTime, State},
};

/// Time within which the shortest critical sections are over: these are the ones that feel what a release costs. A
/// holder that was seen alone is expected to be alone still, and nobody to be served next.
pub const SHORT_HOLD: Duration = Duration::from_millis(2);

/// Time within which an answer shows the present, and brings all news. A slower one may have waited for its majority,
/// and others have come since it was read; so where a majority always takes longer, every release expects others. Nor
/// does a head ask sooner about a lease that ends.
pub const PROMPT: Duration = Duration::from_millis(20);

/// Longest pause between two questions of a head that does without the stream: how late it may be served if its turn comes
/// before it asks again. A head whose turn may come sooner needs the stream. A head for which the queue has no room asks
/// as often, however long it has waited, so none of a crowd has less of a chance than the others.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(2_500);

impl<H: Hold> Waitlist<H> {
    /// Returns the latest instant at which [`next_operation`](Step::next_operation) wants to be called.
    pub fn due_at(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        let leaves_at = self.leaving.iter().map(|leaving| leaving.not_before).min();
        let forgets_at = self.forgets_at().filter(|_| self.is_at_rest());
        let due = [self.asks_at(), leaves_at, forgets_at].into_iter().flatten().min();
        let due = due.map(|due| self.retry_at.map_or(due, |retry| due.max(retry)));
        due.into_iter().chain(self.attend_at()).min()
    }

    /// Returns when the tasks in line ask; `None`: nobody waits.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        let head = self.waiting.front()?;
        if self.may_have_tries
            && let Some(first) = self.waiting.iter().find(|waiting| !waiting.waits())
        {
            // A try asks at once, wherever it stands in line.
            return Some(first.since);
        }
        // Where nothing says when, it asks now.
        let waits = (head.is_queued() && !self.is_out_of_line()) || self.is_kept_out();
        Some(self.ask_at.filter(|_| waits).unwrap_or(head.since))
    }
}

impl<H: Hold> Step<'_, H> {
    /// Sets when the head asks again: to confirm its queue position, when a lease ahead of it ends, or to see how far it
    /// has come.
    pub(super) fn plan_asking(&mut self, state: &State, now: Option<ServerTime>) {
        let (list, context) = (&mut *self.list, self.context);
        let Some(head) = list.waiting.front().filter(|head| head.is_queued()) else {
            return;
        };
        let lease = head.lease;
        // The server's record of a repeated command has no time.
        let prospect = list.sees(state, now.unwrap_or(state.at), context);
        // One that has left the queue asks at once.
        list.ask_at = None;
        let Some(prospect) = prospect else { return };
        let position = prospect.position;
        let before = &state.queue[..position];
        let pause = confirmation(state, position, &lease, context);
        // A task behind an upgrade has a lease of its own, or has found no room and finds it by the same question.
        let behind = list.waiting.get(list.place()).filter(|behind| behind.is_queued());
        let pause = behind.map_or(pause, |behind| {
            let entry = state.queue.iter().find(|entry| entry.id == behind.entry);
            pause.min(until_half(entry, behind.lease.length, context))
        });
        let pause = if list.is_full { pause.min(ASK_EVERY) } else { pause };
        let first_end = state.holders.iter().chain(before).map(|entry| entry.until).min();
        let expires = first_end.and_then(|end| asks_after(end, position, context));
        let sees = list.see_ahead(prospect, context).map(|pause| context.now + pause);
        list.ask_at = [Some(context.now + pause), expires, sees].into_iter().flatten().min();
    }

    /// Has the head, for which the queue has no room, ask again after a while.
    pub(super) fn keep_out(&mut self) {
        self.list.is_full = true;
        self.list.ask_at = Some(self.context.now + ASK_EVERY);
    }
}

/// Returns when a waiter at this queue position asks because a lease ahead of it ends then; `None` while the server's clock
/// is not known.
fn asks_after(end: ServerTime, position: usize, context: &Context<'_>) -> Option<Instant> {
    // Those further back ask in case those before them are dead.
    let stagger = PROMPT.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX));
    let at = context.clock.after(end)? + stagger.min(LONGEST_PAUSE);
    // Never at once: a new primary's clock can be behind the one by which the expiry was reckoned.
    Some(at.max(context.now + PROMPT))
}

/// Returns the pause until half of the lease of an entry in the queue is left. It is also the back-stop if an event is
/// lost, so it is no longer for a long lease.
fn until_half(entry: Option<&Entry>, lease: Duration, context: &Context<'_>) -> Duration {
    let routine = lease.min(context.config.lease) / 2;
    // An answer refreshes no entry that has much of its lease left, and a slow one comes when part of that is gone.
    let end = entry.and_then(|entry| context.clock.until(entry.until));
    end.map_or(routine, |(_, end)| {
        let left = end.saturating_duration_since(context.now);
        left.saturating_sub(lease / 2).max(PROMPT).min(routine)
    })
}

/// Returns the pause before a queue position is confirmed.
fn confirmation(state: &State, position: usize, lease: &Lease, context: &Context<'_>) -> Duration {
    let config = context.config;
    let pause = until_half(state.queue.get(position), lease.length, context);
    // If the first in line is granted the lock and is dead, no event shows it. So the next must notice when the claim
    // lease of the first ends; this serves those further back too.
    match &state.queue[..position] {
        [first] => pause.min(Duration::from_millis(unsigned(first.claim)).max(config.poll_interval.1)),
        _ => pause,
    }
}

/// Returns when a hold on a claim lease is renewed first, which shows that the woken waiter is alive: sooner if the news
/// of it came late, and little of that is left; and at once if the lock is to stay taken for longer, also where its holder dies in the next moment.
pub(super) fn check(lease: &Lease, deadline: Instant, now: Instant) -> Instant {
    if lease.at_least > lease.claim {
        return now;
    }
    // Most critical sections are over by then, and cost no further write.
    now + lease.claim.min(deadline.saturating_duration_since(now)) / 16
}

/// Returns when a hold that an answer shows is renewed first, if at all.
///
/// It may have been granted long before: where the answer to its request was lost or is late, the answer to a later one
/// shows it. So the time that is left counts, not the time of the request.
pub(crate) fn first_renewal(
    lease: &Lease,
    holder: &Entry,
    deadline: Instant,
    context: &Context<'_>,
) -> Option<Instant> {
    let now = context.now;
    if holder.until.since(holder.since) < Duration::from_millis(unsigned(holder.lease)) {
        return Some(check(lease, deadline, now));
    }
    let last = context.config.usable(lease.length).saturating_sub(lease.interval?);
    Some(in_time(deadline.checked_sub(last).unwrap_or(now), deadline, now))
}

/// Brings a first renewal forward to the middle of the time that is left, if it comes later: the server's clock may
/// have been set ahead since the request was sent.
pub fn in_time(renew_at: Instant, deadline: Instant, now: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    renew_at.max(now).min(now + left / 2)
}

/// Returns the pause between two questions without a stream. The head asks often, a waiter far back seldom. All of
/// them ask less often the longer they have waited, as the same delay then matters less.
pub fn poll_interval(config: &Config, position: usize, waited: Duration) -> Duration {
    let (least, most) = config.poll_interval;
    let turns = u32::try_from(position).unwrap_or(u32::MAX).saturating_add(1);
    (waited / 50).max(least).saturating_mul(turns).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        hold_options::Terms,
        protocol::{Entry, Exchange},
        waitlist::{
            clock::ServerClock,
            fixtures::{MUTEX, NOW, holder, in_context, queued, state, waiter, waitlist},
            leaving::Leaving,
        },
    };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// An exchange that took no time, just now.
    fn exchange(context: &Context<'_>) -> Exchange {
        Exchange::new(context.now, context.now, Some(NOW))
    }

    /// Acts where the server's clock is known by such an exchange.
    fn by_the_clock<T>(act: impl FnOnce(&Context<'_>) -> T) -> T {
        in_context(|context| {
            let mut clock = ServerClock::default();
            assert_eq!(clock.note(&exchange(context), context.config), None);
            act(&Context {
                clock: &clock,
                ..*context
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn entries_leave_once_the_first_of_them_may_and_no_sooner_than_the_next_try() {
        in_context(|context| {
            let (soon, later) = (context.now + millis(1), context.now + millis(2));
            let mut waitlist = waitlist([]);
            assert_eq!(waitlist.due_at(), None);
            for not_before in [later, soon] {
                waitlist.leaving.push(Leaving {
                    not_before,
                    ..Leaving::new("me-1".to_owned(), Duration::ZERO, context)
                });
            }
            assert_eq!(waitlist.due_at(), Some(soon));
            waitlist.retry_at = Some(later);
            assert_eq!(waitlist.due_at(), Some(later));
            waitlist.under_way = Some(Vec::new());
            assert_eq!(waitlist.due_at(), None);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_confirms_its_position_in_time_and_the_next_asks_as_the_claim_of_the_first_ends() {
        by_the_clock(|context| {
            let asks = |others: usize, claim: i64, left: i64| {
                let other = |number| Entry {
                    claim,
                    ..waiter(&format!("other-{number}"), 30_000)
                };
                let mut queue: Vec<Entry> = (1..=others).map(other).collect();
                queue.push(waiter("me-1", left));
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                waitlist.step(context).plan_asking(&state(queue), Some(NOW));
                let ask_at = waitlist.ask_at.expect("it is in the queue");
                (ask_at - context.now).as_millis()
            };
            // When half of its lease is left, also where the answer did not refresh it; not at once, even if less is.
            let alone = [30_000, 20_100, 15_030, 15_010, 0].map(|left| asks(0, 5_000, left));
            assert_eq!(alone, [15_000, 5_100, 30, 20, 20]);
            // No more often than the longest pause of whoever polls.
            let second = [5_000, 501, 499].map(|claim| asks(1, claim, 30_000));
            assert_eq!(second, [5_000, 501, 500]);
            assert_eq!(asks(2, 5_000, 30_000), 15_000);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_asks_after_the_end_of_a_lease_by_its_position_and_never_at_once() {
        by_the_clock(|context| {
            let asks = |lasts: i64, position: usize| {
                let at = asks_after(NOW.plus_millis(lasts), position, context).expect("the clock is known");
                (at - context.now).as_millis()
            };
            assert_eq!([0, 1, 3].map(|position| asks(1_000, position)), [1_001, 1_021, 1_061]);
            assert_eq!(
                [49, 50, usize::MAX].map(|position| asks(1_000, position)),
                [1_981, 2_001, 2_001]
            );
            assert_eq!([-1_000, 0, 19, 20].map(|lasts| asks(lasts, 0)), [20, 20, 20, 21]);
        });
    }

    /// However seldom it polls: a crash is noticed by the clock.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_ends_is_asked_about_whatever_the_pause_of_who_polls() {
        by_the_clock(|context| {
            let mut config = context.config.clone();
            config.poll_interval = (millis(10_000), millis(60_000));
            let config = &config;
            let asks_at = asks_after(NOW.plus_millis(1_000), 3, &Context { config, ..*context });
            assert_eq!(asks_at, Some(context.now + millis(1_061)));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_on_its_claim_lease_is_renewed_soon_and_any_other_in_its_time() {
        in_context(|context| {
            let lease = Terms::default().lease(context.config);
            let left = |left| context.now + millis(left);
            let checked = |remains| {
                let check_at = check(&lease, left(remains), context.now);
                (check_at - context.now).as_millis()
            };
            assert_eq!((checked(4_000), checked(800)), (250, 50));
            // It must not end before the lock may open.
            let at_least = millis(6_000);
            let check_at = check(&Lease { at_least, ..lease }, left(4_000), context.now);
            assert_eq!(check_at, context.now);
            let renewed = |lasts, remains| {
                let renew_at = first_renewal(&lease, &holder(lasts), left(remains), context);
                renew_at.map(|at| (at - context.now).as_millis())
            };
            assert_eq!((renewed(5_000, 4_000), renewed(29_999, 25_000)), (Some(250), Some(312)));
            // In full; late by two seconds; and with less time left than the last of them has.
            let full = context.config.usable(lease.length).as_millis().try_into().unwrap();
            let renewed = [full, full - 2_000, 8_000].map(|left| renewed(30_000, left));
            assert_eq!(renewed, [Some(6_000), Some(4_000), Some(0)]);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_is_confirmed_at_half_of_its_lease_and_of_the_clients_own() {
        in_context(|context| {
            let confirmed = |seconds| {
                let length = Duration::from_secs(seconds);
                let lease = Terms::default().lease(context.config);
                let state = state(vec![waiter("me-1", 30_000)]);
                confirmation(&state, 0, &Lease { length, ..lease }, context).as_secs()
            };
            assert_eq!([10, 30, 3_600].map(confirmed), [5, 15, 15]);
        });
    }

    #[test]
    fn who_polls_does_so_less_often_the_further_back_it_is_and_the_longer_it_has_waited() {
        let config = Config::default();
        let pause = |position, waited| poll_interval(&config, position, millis(waited)).as_millis();
        assert_eq!(
            [0, 500, 1_000, 60_000].map(|waited| pause(0, waited)),
            [10, 10, 20, 500]
        );
        assert_eq!(
            [3, 48, 49, usize::MAX].map(|position| pause(position, 0)),
            [40, 490, 500, 500]
        );
    }
}
