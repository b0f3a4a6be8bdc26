//! The timers of the waitlist: when it asks again, looks at its queue position, knocks, or takes entries out.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Context, Full, Hold, PositionLook, Setback, Step, Waiting, Waitlist,
    blind::Blind,
    deadline::Deadline,
    prospect::{self, Distance, Prospect},
    unsigned,
};
use crate::{
    config::Config,
    hold_options::Lease,
    protocol::{Ahead, Exchange, Holder, ServerTime, State},
};

/// Delay of the first renewal of a waiter that was woken, which shows that it is alive; until then it holds on the
/// claim lease. Most critical sections are over by then, and cost no further write.
pub const CLAIM_CHECK: Duration = Duration::from_millis(300);

/// Pause before the head asks again after an answer that shows it neither as a holder nor in the queue, although the
/// queue had room.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Stagger between the waiters that ask because a lease ends, for each queue position: those further back ask in case
/// those before them are dead. Expiry raises no event.
const EXPIRY_STAGGER: Duration = Duration::from_millis(25);

/// Upper limit of the staggers added up.
const EXPIRY_STAGGER_MOST: Duration = Duration::from_secs(1);

/// Age up to which a lock that was seen free is expected to be free still.
pub(super) const FREE_FOR: Duration = Duration::from_secs(10);

/// Age up to which a holder that was seen alone is expected to be alone still. Only the shortest critical sections are
/// over by then, and these are the ones that feel what a release costs.
pub(super) const ALONE_FOR: Duration = Duration::from_millis(2);

/// Time that an answer may take to show the present. A slower one may have waited for its majority, and others have
/// come since it was read; so where a majority always takes longer, every release expects others.
pub(super) const RECENT: Duration = Duration::from_millis(20);

/// Pause before a client that found the queue full knocks again, a quarter more or less.
///
/// Often enough to come in soon after there is room, and seldom enough for the server to bear a thousand of them.
pub const KNOCK: Duration = Duration::from_secs(1);

/// Number of knocks of which one is a request in full.
pub(super) const KNOCKS: u32 = 8;

/// Factor by which a waiter without a stream that only asks does so less often than one that looks: a request costs the
/// server about twice as much, and looks fail where the server has too much to do.
const ASKING_COSTS: u32 = 2;

/// Resolution of the server's clock: it has reached a time in milliseconds when it shows the next one.
pub const CLOCK_RESOLUTION: Duration = Duration::from_millis(1);

/// The question of the head that is due because a lease ahead of it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Expiry {
    /// The end of that lease, as it was seen last.
    end: ServerTime,
    at: Instant,
}

impl<H: Hold> Step<'_, H> {
    /// Sets when the head asks again, by the leases of those ahead of it.
    pub(super) fn plan_asking(&mut self, state: &State, now: Option<ServerTime>) {
        let (list, context) = (&mut *self.list, self.context);
        (list.ask_at, list.expiry, list.look_at) = (None, None, None);
        let was_seen_gone = std::mem::take(&mut list.was_seen_gone);
        list.plan += 1;
        let Some(head) = list.waiting.front().filter(|head| head.is_queued()) else {
            return;
        };
        let Some(position) = state.queue.iter().position(|waiter| waiter.id == head.entry) else {
            return;
        };
        if was_seen_gone {
            // A look has shown the opposite, and the next one may too: an old primary answers looks for a while.
            list.blind.failed(context.now);
        }
        let lease = head.terms.lease(context.config);
        // By half of what is left of the entry: where the answer was slow, part of that is gone already.
        let end = context.clock.until(state.queue[position].until).map(|(_, end)| end);
        let left = end.map(|end| end.saturating_duration_since(context.now).max(ASK_AGAIN * 2));
        let refresh = refresh(&lease, context.config);
        let refresh = context.now + left.map_or(refresh, |left| refresh.min(left / 2));
        let holders = state.holders.iter().map(|holder| holder.until);
        let before = state.queue[..position].iter().map(|waiter| waiter.until);
        let first_end = holders.chain(before).min();
        list.expiry = first_end.and_then(|end| Expiry::of(end, position as u64, context));
        let ahead = now.and_then(|now| Ahead::of(state, &head.entry, now));
        let prospect = ahead.map(|ahead| Prospect::new(head, &ahead, list.prospect.as_ref(), &mut list.pace, context));
        list.look_at = match (&prospect, &ahead) {
            (Some(prospect), Some(ahead)) => list.next_look_at(prospect, ahead, context),
            _ => None,
        };
        list.prospect = prospect;
        let looks = list.look_at.is_some();
        let routine = if context.stream.is_open() || looks {
            // If the head is granted the lock and is dead, no event shows it. So the next in line must notice when the
            // head's claim lease ends; this serves those further back too.
            let claim = state
                .queue
                .first()
                .filter(|_| position == 1)
                .map(|head| unsigned(head.claim));
            let claim = claim.map(|claim| Duration::from_millis(claim).max(context.config.poll_interval.1));
            claim.map_or(refresh, |claim| refresh.min(context.now + claim))
        } else {
            let prospect = list.prospect.as_ref();
            let pace = prospect.and_then(|it| it.pause(list.pace, context.config));
            let pace = pace.map(|pace| pace.saturating_mul(ASKING_COSTS));
            context.now + poll_pause(head, position as u64, pace, context)
        };
        list.ask_at = Some(routine);
    }

    /// Returns the due look at the head's queue position, once. It is sent if it is [admitted](Self::admit) then, and
    /// [`looked`](Self::looked) or [`look_failed`](Self::look_failed) notes the result.
    pub fn next_look(&mut self) -> Option<PositionLook> {
        let context = self.context;
        let entry = self.waiting.front().filter(|head| head.is_queued())?.entry.clone();
        if self.under_way.is_some() || self.look_at.is_none_or(|at| at > context.now) {
            return None;
        }
        self.look_at = None;
        let plan = self.plan;
        Some(PositionLook { entry, plan })
    }

    /// Notes the head's sight of its queue position. A head that is no longer in the queue asks, and so does one that
    /// has come near the front and is about to have the stream.
    ///
    /// A look grants nothing, so each hand-over costs a request on top of it. A look is answered by one member alone,
    /// which may be the primary no more, and what it shows can still be undone. The answer to a request, also to one
    /// that writes nothing, is what a majority has; and it brings the token and the end of the lease, which a look does
    /// not show.
    pub fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>) {
        if !self.admit(look) {
            return;
        }
        let (list, context) = (&mut *self.list, self.context);
        let head = &list.waiting[0];
        // Every write of the protocol grants to all that fit. If the first in line fits now, another program's write
        // has made room, and no client has written since.
        let Some(ahead) = ahead.filter(|ahead| ahead.position > 0 || head.permits > ahead.free) else {
            (list.ask_at, list.was_seen_gone) = (Some(context.now), true);
            return;
        };
        list.blind = Blind::default();
        let was_far = list.is_far();
        let prospect = Prospect::new(head, &ahead, list.prospect.as_ref(), &mut list.pace, context);
        list.look_at = list.next_look_at(&prospect, &ahead, context);
        let comes_near = context.stream.opens_on_demand() && was_far && prospect.turn == Distance::Near;
        list.prospect = Some(prospect);
        if comes_near {
            list.ask_at = Some(context.now);
            return;
        }
        let expiry = ahead
            .first_end
            .and_then(|end| Expiry::of(end, ahead.position, context))
            .map(|expiry| expiry.after(list.expiry));
        list.expiry = expiry.or(list.expiry.filter(|_| ahead.first_end.is_some()));
    }

    /// Notes that the head has not seen its queue position: it asks, and only asks for a while.
    pub fn look_failed(&mut self, look: &PositionLook, setback: Setback) {
        let context = self.context;
        if setback.is_final() {
            self.blind.refused(context.now);
        } else {
            self.blind.failed(context.now);
        }
        if self.admit(look) {
            self.ask_at = Some(context.now);
        }
    }

    /// Admits a look, before it is sent and with what it has shown, if it is of the present plan. It is not while an
    /// operation is on its way, whose answer knows better. Another look is due then, in case there is no answer.
    pub fn admit(&mut self, look: &PositionLook) -> bool {
        let context = self.context;
        let is_head = self
            .head()
            .is_some_and(|head| head.is_queued() && head.entry == look.entry);
        if look.plan != self.plan || !is_head {
            return false;
        }
        if self.under_way.is_some() {
            self.look_at = Some(context.now);
            return false;
        }
        true
    }

    /// Plans the next knock, as there is no room in the queue.
    pub(super) fn knock_later(&mut self) {
        let context = self.context;
        // Clients that came together should not knock together: their sessions are random numbers.
        let mut hasher = DefaultHasher::new();
        let knocks = self.full.map_or(0, |full| full.knocks);
        (self.head().map(|head| &head.entry), knocks).hash(&mut hasher);
        let part = u32::try_from(hasher.finish() % 1_024).unwrap_or(0);
        self.full = Some(Full {
            knock_at: context.now + KNOCK - KNOCK / 4 + KNOCK / 2 * part / 1_024,
            knocks: knocks + 1,
        });
    }
}

impl<H: Hold> Waitlist<H> {
    /// Returns the latest instant at which [`next_operation`](Step::next_operation) wants to be called.
    pub fn due_at(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        let head = self.waiting.front().map(|head| {
            if head.is_queued() {
                // As in `next_operation`: where nothing says when, it asks now.
                let ask_at = self.asks_at().unwrap_or(head.since);
                self.look_at.map_or(ask_at, |look_at| look_at.min(ask_at))
            } else {
                self.knocks(head).map_or(head.since, |full| full.knock_at)
            }
        });
        // A try asks at once, wherever it stands in line.
        let mut tries = self.waiting.iter().filter(|waiting| !waiting.waits());
        let tries = if self.may_have_tries { tries.next() } else { None };
        let leaves = self.leaving.iter().map(|leaving| leaving.not_before).min();
        let forgets_at = self.forgets_at().filter(|_| self.is_at_rest());
        let due = head.into_iter().chain(leaves).chain(tries.map(|it| it.since));
        let due = due.chain(forgets_at).min();
        let due = due.map(|due| self.retry_at.map_or(due, |retry| due.max(retry)));
        due.into_iter().chain(self.attend_at()).min()
    }

    /// Returns when the head asks again if nothing wakes it; `None` if nothing says when.
    pub(super) fn asks_at(&self) -> Option<Instant> {
        let ask_at = self.ask_at?;
        Some(self.expiry.map_or(ask_at, |expiry| expiry.at.min(ask_at)))
    }

    /// Has the next head ask now, if it is queued already, unless the answer that shows the grant says more. It got in
    /// line together with a release: nobody confirmed its entry while another was the head, and it may fit beside this
    /// hold.
    pub(super) fn ask_after_grant(&mut self) {
        (self.ask_at, self.expiry, self.look_at, self.was_seen_gone) = (None, None, None, false);
    }

    fn next_look_at(&self, prospect: &Prospect, ahead: &Ahead, context: &Context<'_>) -> Option<Instant> {
        match prospect.turn {
            Distance::Far(after) if context.stream.opens_on_demand() => Some(context.now + after),
            // A look costs the server a part of what it costs to ask, and only one that shows something is followed by
            // that.
            _ if !context.stream.is_open() && self.blind.is_over(context.now) => {
                let pause = poll_pause(
                    self.head()?,
                    ahead.position,
                    prospect.pause(self.pace, context.config),
                    context,
                );
                Some(context.now + pause)
            }
            // A client that has the stream open only because of its queue position may find that it does not need it.
            Distance::Near if context.stream.is_open() && ahead.turns >= context.config.near => {
                let claim = self.head()?.terms.lease(context.config).claim;
                Some(context.now + prospect::look_most(claim))
            }
            _ => None,
        }
    }
}

impl Expiry {
    /// Plans the question of a waiter at this queue position; `None` while the server's clock is not known.
    fn of(end: ServerTime, position: u64, context: &Context<'_>) -> Option<Self> {
        let stagger = EXPIRY_STAGGER.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX));
        let at = context.clock.after(end)? + CLOCK_RESOLUTION + stagger.min(EXPIRY_STAGGER_MOST);
        // Never at once: a new primary's clock can be behind the one by which the expiry was reckoned.
        let soonest = context.now + context.config.poll_interval.0;
        Some(Self {
            end,
            at: at.max(soonest),
        })
    }

    /// Follows an earlier plan. Only a write makes the first lease end later: a renewal, or a new holder. Without one a
    /// look must not put the question off, as there may be another look before that.
    fn after(self, before: Option<Self>) -> Self {
        match before {
            Some(before) if self.end <= before.end => Self {
                at: self.at.min(before.at),
                ..self
            },
            _ => self,
        }
    }
}

/// Returns the pause between two confirmations of a queue position: also the back-stop if an event is lost, so it is no
/// longer for a long lease.
pub(crate) fn refresh(lease: &Lease, config: &Config) -> Duration {
    lease.length.min(config.lease) / 2
}

/// Returns when a hold on a claim lease is renewed first: sooner if the news of it came late, and little of that is
/// left; and at once if the lock is to stay taken for longer, also where its holder dies in the next moment.
pub(super) fn check(lease: &Lease, deadline: Deadline, now: Instant) -> Instant {
    if lease.at_least > lease.claim {
        return now;
    }
    let left = deadline.instant().saturating_duration_since(now);
    now + CLAIM_CHECK.min(lease.claim / 4).min(left / 4)
}

/// Returns when a hold that an answer shows is renewed first, if at all.
///
/// It may have been granted long before: where the answer to its request was lost or is late, the answer to a later one
/// shows it. So the time that is left counts, not the time of the request.
pub(crate) fn first_renewal(
    lease: &Lease,
    holder: &Holder,
    exchange: &Exchange,
    deadline: Deadline,
    now: Instant,
) -> Option<Instant> {
    if holder.until.since(holder.since) < Duration::from_millis(unsigned(holder.lease)) {
        return Some(check(lease, deadline, now));
    }
    let interval = lease.interval?;
    // A repeated command is answered from the server's record of it, which has no time: so it is not known what is
    // left.
    let Some(read) = exchange.now else {
        return Some(check(lease, deadline, now));
    };
    let gone = lease.length.saturating_sub(holder.until.since(read));
    Some(in_time(exchange.sent + interval.saturating_sub(gone), deadline, now))
}

/// Brings a first renewal forward to the middle of the time that is left, if it comes later: the server's clock may
/// have been set ahead since the request was sent.
pub fn in_time(renew_at: Instant, deadline: Deadline, now: Instant) -> Instant {
    let left = deadline.instant().saturating_duration_since(now);
    renew_at.max(now).min(now + left / 2)
}

/// Returns the pause of a waiter without a stream, by the pace of the lock where that is known. It is never longer than
/// where it is not; and a grant must be noticed while its claim lease runs.
fn poll_pause<T>(head: &Waiting<T>, position: u64, pace: Option<Duration>, context: &Context<'_>) -> Duration {
    let waited = context.now.saturating_duration_since(head.since);
    let usual = poll_interval(context.config, position, waited);
    let claim = head.terms.lease(context.config).claim;
    pace.unwrap_or(usual).min(usual).min(claim / 4)
}

/// Returns the pause between two questions without a stream. The head asks often, a waiter far back seldom. All of
/// them ask less often the longer they have waited, as the same delay then matters less.
pub fn poll_interval(config: &Config, position: u64, waited: Duration) -> Duration {
    let (least, most) = config.poll_interval;
    let turns = u32::try_from(position).unwrap_or(u32::MAX).saturating_add(1);
    (waited / 50).max(least).saturating_mul(turns).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Settings,
        hold_options::Terms,
        protocol::{Kind, Owner, Waiter},
        waitlist::{
            Leaving, Stage, StreamState,
            clock::ServerClock,
            made_up::{MUTEX, NOW, PERMIT, PlainHold, ahead, in_context, queued, task, waitlist},
            prospect::Pace,
        },
    };

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// An exchange that took no time, just now.
    fn exchange(context: &Context<'_>) -> Exchange {
        Exchange {
            sent: context.now,
            received: context.now,
            now: Some(NOW),
        }
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

    /// A holder since now, until so many milliseconds later.
    fn holder(lasts: i64) -> Holder {
        Holder {
            id: "other-0".to_owned(),
            permits: 1,
            lease: 30_000,
            claim: 5_000,
            since: NOW,
            until: NOW.plus_millis(lasts),
            owner: Owner::default(),
            token: 1,
            released: None,
            shown: None,
        }
    }

    /// A waiter since now, until so many milliseconds later.
    fn waiter(id: &str, lasts: i64) -> Waiter {
        Waiter {
            id: id.to_owned(),
            permits: 1,
            lease: 30_000,
            claim: 5_000,
            since: NOW,
            until: NOW.plus_millis(lasts),
            owner: Owner::default(),
        }
    }

    /// A mutex that another client holds for a minute.
    fn state(queue: Vec<Waiter>) -> State {
        State {
            kind: Kind::Mutex,
            capacity: 1,
            token: 1,
            holders: vec![holder(60_000)],
            queue,
            wake: String::new(),
            version: 1,
            at: NOW,
            purge_at: NOW,
            broken: None,
            adopted: Vec::new(),
            evicted: None,
            ends: Vec::new(),
        }
    }

    /// A look of the head under the present plan.
    fn look_of(waitlist: &Waitlist<PlainHold>) -> PositionLook {
        PositionLook {
            entry: waitlist.waiting[0].entry.clone(),
            plan: waitlist.plan,
        }
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
                    ..Leaving::new("me-1".to_owned(), context)
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
                let other = |number| Waiter {
                    claim,
                    ..waiter(&format!("other-{number}"), 30_000)
                };
                let mut queue: Vec<Waiter> = (1..=others).map(other).collect();
                queue.push(waiter("me-1", left));
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                waitlist.step(context).plan_asking(&state(queue), Some(NOW));
                let ask_at = waitlist.ask_at.expect("it is in the queue");
                (ask_at - context.now).as_millis()
            };
            // After half of what is left of its entry; not at once, even if nothing is left.
            let alone = [30_000, 60, 40, 0].map(|left| asks(0, 5_000, left));
            assert_eq!(alone, [15_000, 30, 20, 20]);
            // No more often than the longest pause of whoever polls.
            let second = [5_000, 501, 499].map(|claim| asks(1, claim, 30_000));
            assert_eq!(second, [5_000, 501, 500]);
            assert_eq!(asks(2, 5_000, 30_000), 15_000);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_is_of_use_to_the_head_that_it_was_for_until_an_answer_comes() {
        in_context(|context| {
            let mut waitlist = waitlist([queued(1, MUTEX), queued(2, MUTEX)]);
            waitlist.look_at = Some(context.now + millis(1));
            assert_eq!(waitlist.step(context).next_look(), None);
            waitlist.look_at = Some(context.now);
            let look = waitlist.step(context).next_look().expect("it is due");
            assert!(waitlist.step(context).admit(&look));
            let mut answered = waitlist.clone();
            answered
                .step(context)
                .plan_asking(&state(vec![waiter("me-1", 30_000)]), Some(NOW));
            assert!(!answered.step(context).admit(&look));
            let mut unqueued = waitlist.clone();
            unqueued.waiting[0].stage = Stage::Asked;
            assert!(!unqueued.step(context).admit(&look));
            waitlist.waiting.pop_front();
            assert!(!waitlist.step(context).admit(&look), "another is the head");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_shows_the_head_as_the_first_in_line_and_as_fitting_has_it_ask() {
        in_context(|context| {
            let stream = StreamState::Unavailable;
            let context = Context { stream, ..*context };
            for (position, free, asks) in [(0, 1, true), (0, 0, false), (1, 3, false)] {
                let mut waitlist = waitlist([queued(1, PERMIT)]);
                waitlist.ask_at = Some(context.now + millis(9));
                let seen = Ahead {
                    position,
                    free,
                    ..ahead(0, 1_000)
                };
                let look = look_of(&waitlist);
                waitlist.step(&context).looked(&look, Some(seen));
                assert_eq!(waitlist.ask_at == Some(context.now), asks, "{seen:?}");
                assert_eq!(waitlist.was_seen_gone, asks, "{seen:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_has_the_head_ask_if_it_comes_near_the_front_and_is_about_to_have_the_stream() {
        in_context(|context| {
            let (far, near) = (ahead(7, 1_000), ahead(3, 1_000));
            for (stream, before, seen, asks) in [
                (StreamState::OnDemand, far, near, true),
                (StreamState::OnDemand, near, near, false),
                (StreamState::OnDemand, far, far, false),
                (StreamState::Open, far, near, false),
                (StreamState::Unavailable, far, near, false),
            ] {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                let head = &waitlist.waiting[0];
                waitlist.prospect = Some(Prospect::new(head, &before, None, &mut Pace::default(), &context));
                waitlist.ask_at = Some(context.now + millis(9));
                let look = look_of(&waitlist);
                waitlist.step(&context).looked(&look, Some(seen));
                let has_asked = waitlist.ask_at == Some(context.now);
                assert_eq!(has_asked, asks, "{stream:?}, {before:?}, {seen:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_looks_again_by_its_distance_from_the_front_and_by_the_stream_that_it_has() {
        in_context(|context| {
            let looks = |stream, seen: Ahead, is_blind: bool| {
                let context = Context { stream, ..*context };
                let mut waitlist = waitlist([queued(1, MUTEX)]);
                if is_blind {
                    waitlist.blind.failed(context.now);
                }
                let head = &waitlist.waiting[0];
                let prospect = Prospect::new(head, &seen, None, &mut Pace::default(), &context);
                let look_at = waitlist.next_look_at(&prospect, &seen, &context);
                look_at.map(|at| (at - context.now).as_millis())
            };
            // Its turn is four holds of a second away, and it looks after one.
            let far = ahead(7, 1_000);
            assert_eq!(looks(StreamState::OnDemand, far, false), Some(1_000));
            assert_eq!(looks(StreamState::OnDemand, far, true), Some(1_000));
            assert_eq!(looks(StreamState::Open, far, false), None);
            // Who polls does so after 10 ms for itself and for each waiter ahead, unless it only asks for a while.
            assert_eq!(looks(StreamState::Unavailable, far, false), Some(80));
            assert_eq!(looks(StreamState::OnDemand, ahead(3, 1_000), false), Some(40));
            assert_eq!(looks(StreamState::Unavailable, far, true), None);
            assert_eq!(looks(StreamState::Unavailable, ahead(4, 10), true), None);
            // Near the front only as the lock changes hands fast; and one of the next.
            assert_eq!(looks(StreamState::Open, ahead(4, 10), false), Some(1_666));
            assert_eq!(looks(StreamState::Open, ahead(3, 10), false), None);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_found_the_queue_full_at_once_knock_at_different_times() {
        in_context(|context| {
            let pause = |key| {
                let mut waitlist = waitlist([task(key, MUTEX)]);
                waitlist.step(context).knock_later();
                let full = waitlist.full.expect("it is to knock");
                (full.knock_at - context.now).as_millis()
            };
            let pauses: Vec<u128> = (1..=100).map(pause).collect();
            let within = |from: u128, to: u128| pauses.iter().filter(|pause| (from..to).contains(*pause)).count();
            assert_eq!(within(750, 1_250), 100, "{pauses:?}");
            assert!(within(750, 850) > 0 && within(1_150, 1_250) > 0, "{pauses:?}");
            let different: std::collections::BTreeSet<&u128> = pauses.iter().collect();
            assert!(different.len() > 50, "{pauses:?}");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_asks_after_the_end_of_a_lease_by_its_position_and_never_at_once() {
        by_the_clock(|context| {
            let asks = |lasts: i64, position: u64| {
                let expiry = Expiry::of(NOW.plus_millis(lasts), position, context).expect("the clock is known");
                (expiry.at - context.now).as_millis()
            };
            assert_eq!([0, 1, 3].map(|position| asks(1_000, position)), [1_001, 1_026, 1_076]);
            assert_eq!(
                [39, 40, u64::MAX].map(|position| asks(1_000, position)),
                [1_976, 2_001, 2_001]
            );
            assert_eq!([-1_000, 0, 9, 10].map(|lasts| asks(lasts, 0)), [10, 10, 10, 11]);
            // A look puts the question off only if that lease ends later by now.
            let expiry = |end, at| Expiry {
                end: NOW.plus_millis(end),
                at: context.now + millis(at),
            };
            for (end, at, follows) in [(5, 9, 7), (5, 6, 6), (4, 9, 7), (6, 9, 9)] {
                let (seen, before) = (expiry(end, at), expiry(5, 7));
                assert_eq!(seen.after(Some(before)), expiry(end, follows));
                assert_eq!(seen.after(None), seen);
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_on_its_claim_lease_is_renewed_soon_and_any_other_in_its_time() {
        in_context(|context| {
            let lease = Terms::default().lease(context.config);
            let left = |left| Deadline::at(context.now + millis(left));
            let checked = |claim, remains| {
                let claim = millis(claim);
                let check_at = check(&Lease { claim, ..lease }, left(remains), context.now);
                (check_at - context.now).as_millis()
            };
            // A quarter of the claim lease, and of what is left of it.
            assert_eq!(checked(5_000, 4_000), 300);
            assert_eq!((checked(1_000, 4_000), checked(5_000, 800)), (250, 200));
            // It must not end before the lock may open.
            let at_least = millis(6_000);
            let check_at = check(&Lease { at_least, ..lease }, left(4_000), context.now);
            assert_eq!(check_at, context.now);
            let renewed = |lasts, remains| {
                let (holder, exchange) = (holder(lasts), exchange(context));
                let renew_at = first_renewal(&lease, &holder, &exchange, left(remains), context.now);
                renew_at.map(|at| (at - context.now).as_millis())
            };
            assert_eq!((renewed(5_000, 4_000), renewed(29_999, 25_000)), (Some(300), Some(300)));
            // In full, and with less time left than it has by the server.
            assert_eq!(
                (renewed(30_000, 25_000), renewed(30_000, 8_000)),
                (Some(6_000), Some(4_000))
            );
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_is_confirmed_at_half_of_its_lease_and_of_the_clients_own() {
        in_context(|context| {
            let confirmed = |seconds| {
                let length = Duration::from_secs(seconds);
                let lease = Terms::default().lease(context.config);
                refresh(&Lease { length, ..lease }, context.config).as_secs()
            };
            assert_eq!([10, 30, 3_600].map(confirmed), [5, 15, 15]);
        });
    }

    #[test]
    fn who_polls_does_so_less_often_the_further_back_it_is_and_the_longer_it_has_waited() {
        let config = Settings::default().validate().unwrap();
        let pause = |position, waited| poll_interval(&config, position, millis(waited)).as_millis();
        assert_eq!(
            [0, 500, 1_000, 60_000].map(|waited| pause(0, waited)),
            [10, 10, 20, 500]
        );
        assert_eq!(
            [3, 48, 49, u64::MAX].map(|position| pause(position, 0)),
            [40, 490, 500, 500]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_polls_follows_the_pace_of_the_lock_and_notices_a_grant_while_its_claim_lease_runs() {
        in_context(|context| {
            let mut config = context.config.clone();
            let head = queued(1, MUTEX);
            let pause = |pace: Option<u64>, context: &Context<'_>| {
                let pause = poll_pause(&head, 9, pace.map(millis), context);
                pause.as_millis()
            };
            assert_eq!(
                [None, Some(3), Some(200)].map(|pace| pause(pace, context)),
                [100, 3, 100]
            );
            config.claim_lease = millis(40);
            let config = &config;
            assert_eq!(pause(None, &Context { config, ..*context }), 10);
        });
    }
}
