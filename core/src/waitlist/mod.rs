//! The waiting client as a value: the queue of one process before one lock, without I/O, tasks or a clock of its own.
//!
//! At most one operation per name is on its way at a time, so a leave can never overtake the request that it undoes,
//! and everything that comes up meanwhile goes into the next operation together. The tasks of the process wait in a
//! local queue. Only its head stands in the server's queue, so the document grows with the waiting processes and not
//! with their tasks. When the process lets go of a hold while its head is queued already, the next task joins in the
//! same write, unless other clients wait. So handing a lock from task to task inside a process costs one command at
//! most, and beside other processes each has one queue position. While nobody else is known to wait, it costs no
//! command, and readers share one hold: [`handing_on`].
//!
//! A try, which does not wait, stands in line like any other task until an operation that was sent after it came is
//! answered. The next operation asks for all tries in line together, behind the waiters that came before them, and its
//! answer decides also those for which there was no room in it. Only that answer refuses a try: whatever was known
//! before, the operation on its way can change.
//!
//! Time and events come in: [`join`](Waitlist::join), [`cancel`](Waitlist::cancel), [`let_go`](Waitlist::let_go),
//! [`share`](Waitlist::share), [`answered`](Waitlist::answered), [`failed`](Waitlist::failed),
//! [`signalled`](Waitlist::signalled), [`doubt`](Waitlist::doubt), [`verified`](Waitlist::verified),
//! [`looked`](Waitlist::looked), [`look_failed`](Waitlist::look_failed). Four things come out: the [`Effect`]s, which
//! name tasks and releases by the keys that these brought; the [next operation](Waitlist::next) to send; the [next
//! look](Waitlist::next_look) at the queue position; and the [instant](Waitlist::due_at) at which the waitlist wants to
//! be asked again. It can be cloned, compared and hashed. `session::line` runs it for real tasks against a real server,
//! and the model (`model/`) runs the same value through every state that a few clients get into.

pub mod answers;
mod blind;
pub mod clock;
pub mod deadline;
mod expiring;
pub mod handing_on;
pub mod idling;
pub mod ids;
mod inheritance;
pub mod letting_go;
#[cfg(test)]
mod made_up;
#[cfg(any(test, feature = "testing"))]
mod model_access;
mod news;
pub mod pending_claims;
pub mod prospect;
mod sending;
mod sweeping;
pub mod timing;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

pub use crate::grant_path::How;
use crate::{
    backoff::Backoff,
    config::Config,
    hold_options::{Lease, Terms},
    lost_reason::LostReason,
    protocol::{Owner, Use, wake},
};
use blind::Blind;
use clock::ServerClock;
use deadline::Deadline;
use expiring::Expired;
use handing_on::HandingOn;
use idling::Idle;
use ids::Ids;
pub use inheritance::Inheritance;
use letting_go::LeftAs;
#[cfg(any(test, feature = "testing"))]
pub use model_access::Word;
use prospect::{Distance, Prospect};
pub use sweeping::SWEEPS;
use sweeping::Unsettled;
use timing::Expiry;

/// Names a task that waits, or a release that awaits its answer.
pub type Key = u64;

/// The local queue of one process before one lock, with what it holds there and what is to leave the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Waitlist {
    waiting: VecDeque<Waiting>,
    /// By their entries.
    holds: BTreeMap<String, Held>,
    /// The holds that were over here before the server has ended them.
    expired: Vec<Expired>,
    leaving: Vec<Leaving>,
    /// The entries that leave with the operation that is on its way.
    under_way: Option<Vec<Leaving>>,
    /// Whether no other client was in the queue when it was last seen, and nothing has changed it since.
    others_absent: bool,
    /// Whether the document changed since the operation was sent, so that its answer may be older than that.
    overtaken: bool,
    /// When the document was last seen with no entries but ours.
    alone_at: Option<Instant>,
    /// When the head asks again if nothing wakes it. A look at its queue position brings that forward at most.
    ask_at: Option<Instant>,
    /// When it asks before that, as a lease ahead of it ends.
    expiry: Option<Expiry>,
    /// The prospect of the head, as far as it is known.
    prospect: Option<Prospect>,
    /// When the head looks at its queue position.
    look_at: Option<Instant>,
    /// Whether the last look has shown that the head is not in the queue any more, or fits.
    was_seen_gone: bool,
    blind: Blind,
    /// The number of plans for asking and looking, so that a look made for an earlier plan can't overthrow a later
    /// one.
    plan: u64,
    /// Set while the head is not in the server's queue because that was full.
    full: Option<Full>,
    /// Nothing is sent before this, as the last try failed.
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Races for a new document lost in a row.
    races: u32,
    timed_out: TimedOut,
    /// Whether a reader asked alone, so that others would share its hold, and none has since.
    asked_alone: bool,
    /// Whether there may be a hold that no task has.
    may_have_idle: bool,
    /// Whether there may be a try in line.
    may_have_tries: bool,
    /// The requests that may still be applied, as far as a client that shuts down waits for them.
    unsettled: Option<Unsettled>,
    /// Whether the client shuts down, and waits for the sweeps.
    hastens: bool,
}

/// A task that wants the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    pub key: Key,
    /// Its entry in the document.
    pub entry: String,
    pub used: Use,
    pub permits: i64,
    pub patience: Patience,
    pub terms: Terms,
    pub owner: Owner,
    /// Whether it may share a hold of this client.
    reenters: bool,
    pub since: Instant,
    stage: Stage,
    /// The last token that had been issued when the entry was seen in the queue: its own will be larger.
    above: i64,
    /// Whether a request for it may have been applied, or may still be.
    uncertain: bool,
    /// Whether the operation that is on its way was sent after the task came: to a try its answer is an answer.
    covered: bool,
    /// Whether such an operation has failed.
    let_down: bool,
    /// The way in which a grant would come that arrives now.
    how: How,
}

/// The time that a task stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Until its turn comes.
    Wait,
    /// Not at all: it takes the lock at once or not.
    Try,
}

/// The progress of a task's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Nothing was sent.
    New,
    /// A request was sent.
    Asked,
    /// The server's queue has the entry, as far as we know.
    Queued,
}

impl Waiting {
    pub fn new(key: Key, entry: String, (used, permits): (Use, i64), patience: Patience, since: Instant) -> Self {
        Self {
            key,
            entry,
            used,
            permits,
            patience,
            terms: Terms::default(),
            owner: Owner::default(),
            reenters: false,
            since,
            stage: Stage::New,
            above: 0,
            uncertain: false,
            covered: false,
            let_down: false,
            how: How::AtOnce,
        }
    }

    pub fn owned_by(self, owner: Owner) -> Self {
        Self { owner, ..self }
    }

    pub fn reentering(self, reenters: bool) -> Self {
        Self { reenters, ..self }
    }

    pub fn on(self, terms: Terms) -> Self {
        Self { terms, ..self }
    }

    fn waits(&self) -> bool {
        self.patience == Patience::Wait
    }

    fn is_queued(&self) -> bool {
        self.stage == Stage::Queued
    }

    /// Whether it is a try that the answer on its way decides.
    fn is_covered_try(&self) -> bool {
        !self.waits() && self.covered
    }
}

/// A hold, as far as the waitlist needs it: the deadline is its holder's business.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub used: Use,
    pub permits: i64,
    /// The token of its entry in the document: that of the first task that had it.
    pub token: i64,
    /// `None`: it goes through the server.
    handing_on: Option<HandingOn>,
    /// Number of tasks that have it: more than one if readers share it.
    sharers: u32,
    /// Set while no task has it.
    idle: Option<Idle>,
    /// The length of its lease.
    pub lease: Duration,
    /// An early request for this entry may still reach the server and put it in once more.
    pub uncertain: bool,
}

impl Held {
    /// Creates a hold that is not handed on, and whose request came to its end.
    pub fn new((used, permits): (Use, i64), token: i64, lease: Duration) -> Self {
        Self {
            used,
            permits,
            token,
            handing_on: None,
            sharers: 1,
            idle: None,
            lease,
            uncertain: false,
        }
    }
}

/// An entry that is to leave the document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leaving {
    entry: String,
    /// The use of the lock by this entry, if that is known.
    used: Option<Use>,
    /// The state in which it leaves the lock.
    left_as: LeftAs,
    /// The release that awaits the answer.
    release: Option<Key>,
    /// Whether it may be a holder, so that its going can let others in.
    may_hold: bool,
    /// Whether an earlier try may have been applied, so that not finding the entry is no surprise.
    repeated: bool,
    not_before: Instant,
    /// When the entry is left to the server's expiry.
    give_up: Instant,
    /// The number of sweeps so far, if there are any to be.
    sweep: Option<usize>,
}

impl Leaving {
    /// Creates a leave of a waiting entry whose request came to its end.
    fn new(entry: String, context: &Context<'_>) -> Self {
        Self {
            entry,
            used: None,
            left_as: LeftAs::Free,
            release: None,
            may_hold: false,
            repeated: false,
            not_before: context.now,
            give_up: context.now + context.config.lease,
            sweep: None,
        }
    }

    fn used_as(self, used: Use) -> Self {
        let used = Some(used);
        Self { used, ..self }
    }

    fn holding(self) -> Self {
        let may_hold = true;
        Self { may_hold, ..self }
    }

    fn left_as(self, left_as: LeftAs) -> Self {
        Self { left_as, ..self }
    }

    /// Goes on for as long as the entry can be live.
    fn of_lease(self, lease: Duration, context: &Context<'_>) -> Self {
        let give_up = self.give_up.max(context.now + lease);
        Self { give_up, ..self }
    }

    fn answering(self, release: Option<Key>) -> Self {
        Self { release, ..self }
    }

    /// Whether it is a holder whose request came to its end, and which leaves for the first time and for good.
    fn is_plain_release(&self) -> bool {
        self.may_hold && !self.repeated && self.sweep.is_none() && self.left_as.kept().is_none()
    }
}

/// An effect owed to the outside.
#[derive(Clone, Debug)]
pub enum Effect {
    Granted {
        key: Key,
        entry: String,
        grant: Box<Grant>,
    },
    /// A try that found the lock taken.
    Denied {
        key: Key,
        /// Number of waiters ahead of it.
        before: usize,
    },
    /// The lock is used as another kind, or with another capacity, than the task wants.
    Mismatched {
        key: Key,
        wanted: Use,
    },
    /// There is no document to lock, and none may be made.
    Missing {
        key: Key,
    },
    /// The operation that asked for it failed, and is not repeated.
    Failed {
        key: Key,
    },
    /// The client shuts down.
    Closed {
        key: Key,
    },
    /// A release was answered.
    Released {
        release: Key,
        found: wake::Left,
    },
    /// A release was refused, or was not answered until its entry was left to the server's expiry.
    NotReleased {
        release: Key,
    },
    Lost {
        entry: String,
        reason: LostReason,
    },
    /// The document has to be read to see whether the holds are still there.
    Doubted,
}

/// The initial values of a new hold.
#[derive(Clone, Debug)]
pub struct Grant {
    pub token: i64,
    /// The token of its entry in the document: a smaller one, if the hold was handed on.
    pub granted_as: i64,
    pub used: Use,
    pub permits: u64,
    pub lease: Lease,
    pub how: How,
    pub deadline: Deadline,
    /// `None`: not at all.
    pub renew_at: Option<Instant>,
}

/// The outside world, as far as the waitlist may know it.
#[derive(Debug)]
pub struct Context<'a> {
    pub now: Instant,
    pub config: &'a Config,
    pub clock: &'a ServerClock,
    pub stream: StreamState,
    pub ids: &'a Ids,
    /// The number of entries that the server's queue has room for.
    pub room: usize,
}

/// The state of the change stream that reports grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Grants arrive as events, so that asking is only the back-stop.
    Open,
    /// Somebody needs it, and there is reason to expect that it opens soon.
    Opening,
    /// Nobody has needed it so far; it is expected to open as soon as somebody does.
    OnDemand,
    /// There is none, or no reason to expect that it opens.
    Unavailable,
}

impl StreamState {
    pub fn is_open(self) -> bool {
        self == Self::Open
    }

    pub(crate) fn opens_on_demand(self) -> bool {
        self == Self::OnDemand
    }

    /// Whether it is open, or expected to be as soon as it is needed.
    pub(crate) fn is_expected(self) -> bool {
        self != Self::Unavailable
    }
}

/// The reason why an operation failed, as far as the waitlist acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// Another client created the document first: nothing was written.
    Raced,
    /// The server refused: nothing was written.
    Refused,
    /// The answer could not be read: something may have been written.
    Unreadable,
    /// There was no server to send it to.
    NoServer,
    /// The server gave up after the time that it was given; something may have been written.
    Overdue,
    /// There was no answer in time; it may still be applied.
    Unanswered,
    /// The connection was cut, or the primary changed: it may have been applied.
    Interrupted,
}

impl Setback {
    /// Whether asking again would bring the same answer.
    fn is_final(self) -> bool {
        matches!(self, Self::Raced | Self::Refused | Self::Unreadable)
    }
}

/// The numbers of operations in a row that failed for want of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimedOut {
    /// Number without an answer in time.
    pub unanswered: u32,
    /// Number that the server reported as not done in time.
    pub overdue: u32,
}

/// A look at the queue position of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionLook {
    pub entry: String,
    plan: u64,
}

/// The lock's need of the change stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    #[default]
    Nothing,
    /// Its head is far from its turn, and looks at its queue position.
    Looks,
    /// It is held, and the holder has to hear of a loss: by the stream, or by reads.
    Losses,
    /// A task waits to be served soon, or a lock is idle until another client waits.
    Stream,
}

/// The state of a head that found the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Full {
    knock_at: Instant,
    /// Number of knocks since the last request in full.
    knocks: u32,
}

impl Waitlist {
    /// Creates a waitlist; `alone_at`: when the lock was last seen free, or is expected to be.
    pub fn new(alone_at: Option<Instant>) -> Self {
        Self {
            alone_at,
            ..Self::default()
        }
    }

    /// Whether nothing is held, waited for or about to leave, and there is nothing to remember.
    pub fn is_unused(&self) -> bool {
        self.is_at_rest() && self.expired.is_empty()
    }

    /// Whether nothing is held, waited for or about to leave.
    pub fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && self.holds.is_empty() && self.leaving.is_empty() && self.under_way.is_none()
    }

    /// Returns when the document was last seen with no entries but ours; of an unused waitlist: with none.
    pub fn alone_at(&self) -> Option<Instant> {
        self.alone_at
    }

    /// Whether an operation is on its way.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Whether a release awaits the answer that is on its way.
    pub fn is_awaited_by_release(&self) -> bool {
        self.under_way.iter().flatten().any(|leaving| leaving.release.is_some())
    }

    /// Returns the numbers of operations in a row that failed for want of time.
    pub fn timed_out(&self) -> TimedOut {
        self.timed_out
    }

    pub fn head(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn position(&self, key: Key) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.key == key)
    }

    /// Returns the number of tasks ahead of one that wait for their turn.
    pub fn waiters_before(&self, key: Key) -> Option<usize> {
        let ahead = self.waiting.range(..self.position(key)?);
        Some(ahead.filter(|waiting| waiting.waits()).count())
    }

    /// Returns when a task came that has no answer to its try so far.
    pub fn tries_since(&self, key: Key) -> Option<Instant> {
        let waiting = self.waiting.get(self.position(key)?)?;
        (!waiting.waits()).then_some(waiting.since)
    }

    /// Returns the waiting tasks, in order.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.waiting.iter().map(|waiting| waiting.key)
    }

    /// Whether the server's queue has our head.
    pub fn is_queued(&self) -> bool {
        self.waiting.front().is_some_and(Waiting::is_queued)
    }

    /// Whether the server's queue had no room for our head.
    pub fn is_kept_out(&self) -> bool {
        self.full.is_some() && !self.is_queued()
    }

    /// Returns the need of the holders and the head once the stream is open.
    pub fn need(&self) -> Need {
        match self.waiting.front() {
            None if self.leaving.is_empty() && !self.may_have_idle && !self.holds.is_empty() => Need::Losses,
            _ if !self.holds.is_empty() => Need::Stream,
            Some(_) if self.is_far() => Need::Looks,
            Some(head) if self.knocks(head).is_some() => Need::Nothing,
            None if self.is_at_rest() => Need::Nothing,
            // A head without an answer to its request may be next; and a client that leaves may come again.
            _ => Need::Stream,
        }
    }

    /// Whether a task expects to be served within moments.
    pub fn waits_for_event(&self) -> bool {
        self.is_queued() && !self.is_far()
    }

    /// Returns the head's entry, and the hand-overs before its turn as they were seen last.
    pub fn turns(&self) -> Option<(&str, u64)> {
        let prospect = self.prospect_of_head().filter(|_| self.is_queued())?;
        Some((&prospect.entry, prospect.turns()))
    }

    /// Returns the number of waiters ahead of the head in the server's queue, as they were seen last.
    pub fn waiters_ahead(&self) -> Option<u64> {
        self.prospect_of_head().map(|prospect| prospect.position)
    }

    fn prospect_of_head(&self) -> Option<&Prospect> {
        let head = self.waiting.front()?;
        self.prospect.as_ref().filter(|prospect| prospect.entry == head.entry)
    }

    fn is_far(&self) -> bool {
        let prospect = self.prospect_of_head();
        prospect.is_some_and(|prospect| matches!(prospect.turn, Distance::Far(_)))
    }

    pub fn knows(&self, entry: &str) -> bool {
        self.holds.contains_key(entry)
            || self.waiting.iter().any(|waiting| waiting.entry == entry)
            || self.leaving.iter().any(|leaving| leaving.entry == entry)
    }

    /// Adds a task at the end. A try gets in line too: its answer is that of the server to an operation that is sent
    /// after it came, and whatever is known before can change until then.
    pub fn join(&mut self, waiting: Waiting) {
        self.may_have_tries |= !waiting.waits();
        self.waiting.push_back(waiting);
    }

    /// Takes out a task that gives up or got its lock in another way. `false`: it no longer waits.
    pub fn cancel(&mut self, key: Key, context: &Context<'_>) -> bool {
        let position = self.position(key);
        let waiting = position.and_then(|position| self.waiting.remove(position));
        let waits = waiting.is_some();
        if let Some(waiting) = waiting {
            self.abandon(waiting, context);
        }
        waits
    }

    /// Takes all tasks out, as the client shuts down: nothing of its own comes to this lock any more.
    pub fn close(&mut self, context: &Context<'_>, effects: &mut Vec<Effect>) {
        self.end_idling();
        self.expired.clear();
        while let Some(waiting) = self.waiting.pop_front() {
            effects.push(Effect::Closed { key: waiting.key });
            self.abandon(waiting, context);
        }
    }

    /// Takes out the entry of a task that no longer waits, if the server can have it.
    fn abandon(&mut self, waiting: Waiting, context: &Context<'_>) {
        // While an operation is on its way, its requests can be anywhere.
        let on_its_way = waiting.stage != Stage::New && self.under_way.is_some();
        if waiting.is_queued() || waiting.uncertain || on_its_way {
            let lease = waiting.terms.lease(context.config).length;
            let leaving = Leaving::new(waiting.entry, context).used_as(waiting.used);
            let leaving = leaving.of_lease(lease, context);
            self.leaving.push(leaving.swept_if(waiting.uncertain));
        }
    }

    /// Adds a hold that no task here waited for.
    pub fn hold(&mut self, entry: String, held: Held) {
        self.holds.insert(entry, held);
    }

    /// Forgets a hold that is known to be gone from the document.
    pub fn forget(&mut self, entry: &str) {
        self.holds.remove(entry);
    }

    /// Takes out an entry with this lease that no task here holds or waits for.
    pub fn take_out(&mut self, entry: String, used: Use, lease: Duration, context: &Context<'_>) {
        let leaving = Leaving::new(entry, context).used_as(used).holding();
        let leaving = leaving.of_lease(lease, context);
        self.leaving.push(leaving);
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{
        made_up::{MUTEX, ahead, in_context, queued, task, waitlist},
        *,
    };

    /// A waitlist with this head, which has seen so many hand-overs before its turn: with seven it is far from that.
    fn seen(head: Waiting, turns: u64, context: &Context<'_>) -> Waitlist {
        let prospect = Prospect::new(&head, &ahead(turns, 1_000), None, context.config);
        Waitlist {
            prospect: Some(prospect),
            ..waitlist([head])
        }
    }

    fn held() -> Held {
        Held::new(MUTEX, 1, Duration::from_secs(30))
    }

    #[test]
    fn a_negative_number_of_a_document_counts_as_zero() {
        assert_eq!([-1, 0, 7].map(unsigned), [0, 0, 7]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_leaves_for_as_long_as_its_lease_or_the_clients_can_run() {
        in_context(|context| {
            let given_up_after = |seconds| {
                let leaving = Leaving::new("me-1".to_owned(), context).of_lease(Duration::from_secs(seconds), context);
                (leaving.give_up - context.now).as_secs()
            };
            assert_eq!([1, 30, 90].map(given_up_after), [30, 30, 90]);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_awaited_while_its_answer_is_on_its_way() {
        in_context(|context| {
            let leaving = |release| Leaving::new("me-1".to_owned(), context).answering(release);
            let mut waitlist = waitlist([]);
            waitlist.leaving.push(leaving(Some(1)));
            assert!(!waitlist.is_awaited_by_release(), "it was not sent");
            waitlist.under_way = Some(vec![leaving(None)]);
            assert!(!waitlist.is_awaited_by_release(), "nobody waits for it");
            waitlist.under_way = Some(vec![leaving(None), leaving(Some(1))]);
            assert!(waitlist.is_awaited_by_release());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_is_kept_out_while_the_queue_is_full_and_does_not_have_it() {
        in_context(|context| {
            let cases = [
                (task(1, MUTEX), false, false),
                (queued(1, MUTEX), false, false),
                (queued(1, MUTEX), true, false),
                (task(1, MUTEX), true, true),
            ];
            for (head, is_full, is_kept_out) in cases {
                let mut waitlist = waitlist([head]);
                if is_full {
                    waitlist.knock_later(context);
                }
                assert_eq!(waitlist.is_kept_out(), is_kept_out, "{waitlist:?}");
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_is_needed_for_holds_and_by_heads_that_may_be_next() {
        in_context(|context| {
            assert_eq!(waitlist([]).need(), Need::Nothing);
            assert_eq!(waitlist([task(1, MUTEX)]).need(), Need::Stream);
            let mut far = seen(queued(1, MUTEX), 7, context);
            assert_eq!(far.need(), Need::Looks);
            far.hold("me-0".to_owned(), held());
            assert_eq!(far.need(), Need::Stream);
            let mut kept_out = waitlist([task(1, MUTEX)]);
            kept_out.knock_later(context);
            assert_eq!(kept_out.need(), Need::Nothing);
            let mut leaves = waitlist([]);
            leaves.leaving.push(Leaving::new("me-1".to_owned(), context));
            assert_eq!(leaves.need(), Need::Stream, "it may come again");
            let mut holds = waitlist([]);
            holds.hold("me-1".to_owned(), held());
            assert_eq!(holds.need(), Need::Losses);
            holds.may_have_idle = true;
            assert_eq!(holds.need(), Need::Stream, "it is idle until another client waits");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_in_the_queue_waits_for_an_event_if_it_is_near_the_front() {
        in_context(|context| {
            for (head, turns, waits) in [
                (task(1, MUTEX), 3, false),
                (queued(1, MUTEX), 7, false),
                (queued(1, MUTEX), 3, true),
            ] {
                let is_queued = head.is_queued();
                let waitlist = seen(head, turns, context);
                assert_eq!(waitlist.waits_for_event(), waits, "{waitlist:?}");
                assert_eq!(waitlist.turns(), is_queued.then_some(("me-1", turns)));
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_known_that_is_held_waits_or_is_to_leave() {
        in_context(|context| {
            let mut waitlist = waitlist([task(1, MUTEX)]);
            waitlist.hold("me-2".to_owned(), held());
            waitlist.leaving.push(Leaving::new("me-3".to_owned(), context));
            let known = ["me-1", "me-2", "me-3", "me-4"].map(|entry| waitlist.knows(entry));
            assert_eq!(known, [true, true, true, false]);
            waitlist.forget("me-2");
            assert!(!waitlist.knows("me-2"));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_shuts_down_answers_its_tasks_and_takes_out_the_entry_in_the_queue() {
        in_context(|context| {
            let mut waitlist = waitlist([queued(1, MUTEX), task(2, MUTEX)]);
            let mut effects = Vec::new();
            waitlist.close(context, &mut effects);
            let closed = effects.iter().map(|effect| match effect {
                Effect::Closed { key } => *key,
                other => panic!("{other:?}"),
            });
            assert_eq!(closed.collect::<Vec<Key>>(), [1, 2]);
            let leaves: Vec<&str> = waitlist.leaving.iter().map(|it| it.entry.as_str()).collect();
            assert_eq!((waitlist.is_empty(), &leaves[..]), (true, &["me-1"][..]));
        });
    }
}
