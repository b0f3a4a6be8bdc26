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
//! A task that upgrades a reader of this process goes before all others in line, with an entry beside the one that is the
//! queue position of the process.
//!
//! A try, which does not wait, stands in line like any other task until an operation that was sent after it came is
//! answered. The next operation asks for all tries in line together, behind the waiters that came before them, and its
//! answer decides also those for which there was no room in it. Only that answer refuses a try: whatever was known
//! before, the operation on its way can change.
//!
//! Time and events come in by a [`Step`], which knows the [`Context`]: [`join`](Step::join), [`cancel`](Step::cancel),
//! [`let_go`](Step::let_go), [`answered`](Step::answered), [`failed`](Step::failed), [`signalled`](Step::signalled),
//! [`doubt`](Step::doubt), [`verified`](Step::verified). Three things come out: the [`Effect`]s, which carry the
//! channels by which tasks and releases are answered; the [next operation](Step::next_operation) to send; and the
//! [instant](Waitlist::due_at) at which the waitlist wants to be asked again. Its [`Hold`]s say what these channels are,
//! so that it can be cloned and compared where they are numbers. The session runs it for real tasks against a real
//! server, and the model (`model/`) runs the same value through every state that a few clients get into.

pub mod answers;
pub mod clock;
pub mod deadline;
mod expiring;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
pub mod handing_on;
mod hold;
pub mod idling;
pub mod ids;
mod leaving;
#[cfg(any(test, feature = "testing"))]
mod model_access;
mod news;
mod prospect;
mod sending;
pub mod timing;
mod upgrading;
mod waiting;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

pub use crate::grant_path::How;
use crate::{
    backoff::Backoff,
    config::Config,
    lost_reason::LostReason,
    protocol::{Use, wake},
};
use clock::ServerClock;
use expiring::Expired;
use handing_on::HandingOn;
pub use hold::{Grant, Hold, LeftAs, RemainingLease};
use idling::Idle;
use ids::Ids;
use leaving::Leaving;
pub use leaving::SWEEPS;
#[cfg(any(test, feature = "testing"))]
pub use model_access::Word;
use prospect::Prospect;
use waiting::Stage;
pub use waiting::{AcquireOptions, Patience, Waiting};

/// Names a task that waits.
pub type Key = u64;

/// The local queue of one process before one lock, with what it holds there and what is to leave the document.
#[derive(Clone, Debug, PartialEq)]
pub struct Waitlist<H: Hold> {
    /// The name of the lock.
    name: String,
    waiting: VecDeque<Waiting<H::Task>>,
    /// By their entries.
    holds: BTreeMap<String, Held<H>>,
    /// The holds that were over here before the server has ended them.
    expired: Vec<Expired>,
    leaving: Vec<Leaving<H::Release>>,
    /// The entries that leave with the operation that is on its way.
    under_way: Option<Vec<Leaving<H::Release>>>,
    /// What is owed to the outside since it was taken last.
    effects: Vec<Effect<H>>,
    /// Whether another client waits; `None`: that is not known, as nobody has seen the queue since something changed it.
    others_wait: Option<bool>,
    /// Whether the document changed since the operation was sent, so that its answer may be older than that.
    overtaken: bool,
    /// When the document was last seen with no entries but ours.
    alone_at: Option<Instant>,
    /// When the head asks again if nothing wakes it.
    ask_at: Option<Instant>,
    /// The prospect of the head, as far as it is known.
    prospect: Option<Prospect>,
    /// The time of a hand-over in the queue, rather less than more.
    pace: Duration,
    /// Whether the head is not in the server's queue because that was full.
    is_full: bool,
    /// Nothing is sent before this, as the last try failed.
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Races for a new document lost in a row.
    races: u32,
    /// Number of operations in a row that the server reported as not done in time.
    overdue: u32,
    /// Whether a reader asked alone, so that others would share its hold, and none has since.
    asked_alone: bool,
    /// The hold that no task has, if there is one: the one in its `tasks` is the client's own.
    idle: Option<Idle>,
    /// Whether there may be a try in line.
    may_have_tries: bool,
    /// Whether there may be a task in line that joins a hold of this client.
    may_have_reentering: bool,
    /// Whether a transaction was guarded by a hold: such holds are not handed on, nor shared with more readers.
    guards: bool,
    /// Whether the client shuts down: nothing stays with it.
    closed: bool,
    /// The longest time for which the server may still work on a request that has failed, once it has it.
    applied_within: Duration,
    /// Whether the client shuts down, and waits for the sweeps.
    hastens: bool,
}

/// An entry that holds the lock, with the holds of its tasks.
#[derive(Clone, Debug, PartialEq)]
struct Held<H> {
    used: Use,
    permits: i64,
    /// The token of its entry in the document: that of the first task that had it.
    token: i64,
    /// `None`: it goes through the server.
    handing_on: Option<HandingOn>,
    /// More than one if readers share it, in the order in which they came.
    tasks: Vec<Arc<H>>,
    /// The length of its lease.
    lease: Duration,
    /// An early request for this entry may still reach the server and put it in once more.
    uncertain: bool,
    /// The document's version when a hold was taken up under the token that it had: one of a smaller version is older.
    taken_up_at: Option<i64>,
}

/// An effect owed to the outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect<H: Hold> {
    /// The task has this hold.
    Granted {
        to: H::Task,
        hold: Arc<H>,
    },
    /// The task does not get the lock.
    Refused {
        to: H::Task,
        why: Refusal,
    },
    /// A release was answered, or needs no answer.
    Released {
        to: H::Release,
        /// `None`: it was refused, was not answered until its entry was left to the server's expiry, or its answer does
        /// not show what an earlier try has found.
        found: Option<wake::Left>,
    },
    /// A hold has begun. Like the next one, it is not to be late: see to it before the waitlist is asked again.
    Came(Arc<H>),
    /// A hold has ended by its release.
    Gone(Arc<H>),
    Lost {
        hold: Arc<H>,
        reason: LostReason,
    },
    /// The document has to be read to see whether the hold is still there.
    Doubted(Arc<H>),
    /// Somebody waits for the lock.
    Wanted(Arc<H>),
}

/// The reason why a task does not get the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A try found the lock taken, with so many waiters ahead of it.
    Denied { before: usize },
    /// The lock is used as another kind, or with another capacity, than the task wants, or has fewer permits.
    Mismatched { wanted: Use, permits: i64 },
    /// There is no document to lock, and none may be made.
    Missing,
    /// The operation that asked for it failed, and is not repeated.
    Failed,
    /// The client shuts down.
    Closed,
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
}

/// The reason why an operation failed, as far as the waitlist acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// Another client created the document first, or has the lock that was expected to be free: nothing was written.
    Raced,
    /// The operation shared a command with others, and may have been done. Nothing of it is done later.
    Unsaid,
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

/// The lock's need of the change stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Need {
    #[default]
    Nothing,
    /// Its head is far from its turn, and asks for its queue position from time to time.
    Position,
    /// It is held, and the holder has to hear of a loss: by the stream, or by reads.
    Losses,
    /// A task waits to be served soon, or a lock is idle until another client waits.
    Stream,
}

/// A step of a waitlist, in the present context.
#[derive(Debug)]
pub struct Step<'a, H: Hold> {
    list: &'a mut Waitlist<H>,
    context: &'a Context<'a>,
}

impl<H: Hold> Deref for Step<'_, H> {
    type Target = Waitlist<H>;

    fn deref(&self) -> &Waitlist<H> {
        self.list
    }
}

impl<H: Hold> DerefMut for Step<'_, H> {
    fn deref_mut(&mut self) -> &mut Waitlist<H> {
        self.list
    }
}

impl<H: Hold> Step<'_, H> {
    /// Adds a task at the end, unless it may join a hold of this client. A try gets in line too: its answer is that of
    /// the server to an operation that is sent after it came, and whatever is known before can change until then.
    pub fn join(&mut self, key: Key, to: H::Task, options: AcquireOptions) {
        let entry = self.context.ids.entry();
        let waiting = Waiting::new(key, to, entry, options, self.context.now, self.context.config);
        if let Some(hold) = self.reenter(&waiting) {
            return self.effects.push(Effect::Granted { to: waiting.to, hold });
        }
        self.may_have_tries |= !waiting.waits();
        self.may_have_reentering |= waiting.wants.reentrant;
        if waiting.upgrades() {
            self.is_full = false;
            let place = self.place();
            self.waiting.insert(place, waiting);
        } else {
            self.waiting.push_back(waiting);
        }
        self.share();
    }

    /// Takes out the upgrades whose reader is over, and sees to the hold that no task has. Call it after each input.
    pub fn settle(&mut self) {
        self.end_upgrades();
        self.attend_to_idle();
    }

    /// Takes out a task that gives up; `None`: it no longer waits.
    pub fn cancel(&mut self, key: Key) -> Option<H::Task> {
        let position = self.position(key)?;
        let waiting = self.waiting.remove(position)?;
        self.abandon(&waiting);
        Some(waiting.to)
    }

    /// Takes all tasks out, as the client shuts down: nothing of its own comes to this lock any more, and a hold that no
    /// task has is one like any other from now on.
    pub fn close(&mut self) {
        (self.closed, self.idle) = (true, None);
        self.expired.clear();
        while let Some(waiting) = self.waiting.pop_front() {
            self.abandon(&waiting);
            self.refuse(waiting, Refusal::Closed);
        }
    }

    /// Takes out the entry of a task that no longer waits, if the server can have it.
    fn abandon(&mut self, waiting: &Waiting<H::Task>) {
        // While an operation is on its way, its requests can be anywhere.
        let on_its_way = waiting.stage != Stage::New && self.under_way.is_some();
        if waiting.is_queued() || waiting.uncertain || on_its_way {
            let leaving = Leaving {
                used: Some(waiting.wants.used),
                sweep: waiting.uncertain.then_some(0),
                ..Leaving::new(waiting.entry.clone(), waiting.lease.length, self.context)
            };
            self.leaving.push(leaving);
        }
    }

    /// Takes out an entry with this lease that no task here holds or waits for.
    pub fn take_out(&mut self, entry: String, used: Use, lease: Duration) {
        let leaving = Leaving {
            used: Some(used),
            may_hold: true,
            ..Leaving::new(entry, lease, self.context)
        };
        self.leaving.push(leaving);
    }

    /// Adds the hold of a grant.
    fn hold(&mut self, entry: String, grant: &Grant, uncertain: bool) -> Arc<H> {
        let hold = Arc::new(H::of_grant(&self.name, &entry, grant, None, self.context));
        let held = Held {
            used: grant.used,
            permits: i64::try_from(grant.permits).unwrap_or(i64::MAX),
            token: grant.granted_as,
            handing_on: None,
            tasks: vec![hold.clone()],
            lease: grant.lease.length,
            uncertain,
            taken_up_at: None,
        };
        self.forget(&entry);
        self.holds.insert(entry, held);
        self.effects.push(Effect::Came(hold.clone()));
        hold
    }
}

impl<H: Hold> Waitlist<H> {
    /// Creates a waitlist before the lock `name`; `alone_at`: when the lock was last seen free, or is expected to be;
    /// `pace`: the time of a hand-over, as an earlier waitlist has seen it.
    pub fn new(name: String, alone_at: Option<Instant>, pace: Duration) -> Self {
        Self {
            name,
            waiting: VecDeque::new(),
            holds: BTreeMap::new(),
            expired: Vec::new(),
            leaving: Vec::new(),
            under_way: None,
            effects: Vec::new(),
            others_wait: None,
            overtaken: false,
            alone_at,
            ask_at: None,
            prospect: None,
            pace,
            is_full: false,
            retry_at: None,
            backoff: Backoff::default(),
            races: 0,
            overdue: 0,
            asked_alone: false,
            idle: None,
            may_have_tries: false,
            may_have_reentering: false,
            guards: false,
            closed: false,
            applied_within: Duration::ZERO,
            hastens: false,
        }
    }

    /// Begins a step in the present context.
    pub fn step<'a>(&'a mut self, context: &'a Context<'_>) -> Step<'a, H> {
        Step { list: self, context }
    }

    /// Returns what is owed to the outside since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect<H>> {
        let others_wait = self.others_wait == Some(true);
        let mut waiting = self.waiting.iter().filter(|waiting| waiting.waits());
        if others_wait || waiting.clone().next().is_some() {
            let is_queued = waiting.clone().any(Waiting::is_queued);
            // Beside a part of the permits a task may be granted at once: it waits when the server says so.
            let is_in_the_way = |held: &Held<H>| others_wait || is_queued || held.permits >= held.used.1;
            // A hold is not in the way of its own upgrade.
            let own = waiting.next().and_then(|head| head.wants.upgrades.as_ref());
            let own = own.filter(|_| !others_wait && waiting.next().is_none());
            let idle = self.idle.as_ref().map(|idle| &idle.entry);
            let held = self
                .holds
                .iter()
                .filter(|(entry, _)| Some(*entry) != idle && Some(*entry) != own);
            let held = held.filter(|(_, held)| is_in_the_way(held));
            let unaware = held.flat_map(|(_, held)| &held.tasks).filter(|hold| !hold.is_wanted());
            self.effects.extend(unaware.cloned().map(Effect::Wanted));
        }
        std::mem::take(&mut self.effects)
    }

    /// Returns what is owed to the outside so far.
    pub fn effects(&self) -> &[Effect<H>] {
        &self.effects
    }

    /// Ends the waitlist, as nothing more is sent: all that wait for an answer have failed.
    pub fn stop(mut self) -> Vec<Effect<H>> {
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse(waiting, Refusal::Failed);
        }
        let leaving = self.under_way.into_iter().flatten().chain(self.leaving);
        let releases = leaving.filter_map(|leaving| leaving.release);
        self.effects
            .extend(releases.map(|to| Effect::Released { to, found: None }));
        self.effects
    }

    fn refuse(&mut self, waiting: Waiting<H::Task>, why: Refusal) {
        self.effects.push(Effect::Refused { to: waiting.to, why });
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

    /// Returns the number of operations in a row that the server reported as not done in time.
    pub fn overdue(&self) -> u32 {
        self.overdue
    }

    /// Returns the tasks that wait, in their order.
    pub fn waiting(&self) -> &VecDeque<Waiting<H::Task>> {
        &self.waiting
    }

    pub fn position(&self, key: Key) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.key == key)
    }

    /// Whether the server's queue has our head.
    pub fn is_queued(&self) -> bool {
        self.waiting.front().is_some_and(Waiting::is_queued)
    }

    /// Whether the server's queue had no room for our head. An upgrade needs none.
    pub fn is_kept_out(&self) -> bool {
        let needs_room = |head: &Waiting<H::Task>| !head.is_queued() && !head.upgrades();
        self.is_full && self.waiting.front().is_some_and(needs_room)
    }

    /// Returns the need of the holders and the head once the stream is open.
    pub fn need(&self) -> Need {
        match self.waiting.front() {
            None if self.leaving.is_empty() && self.idle.is_none() && !self.holds.is_empty() => Need::Losses,
            _ if !self.holds.is_empty() => Need::Stream,
            Some(_) if self.is_far() => Need::Position,
            Some(_) if self.is_kept_out() => Need::Nothing,
            None if self.is_at_rest() => Need::Nothing,
            // A head without an answer to its request may be next; and a client that leaves may come again.
            _ => Need::Stream,
        }
    }

    /// Whether a task expects to be served within moments.
    pub fn waits_for_event(&self) -> bool {
        self.is_queued() && !self.is_far()
    }

    /// Returns when the queue was seen last, and most of the time that the hand-overs before the head's turn took from
    /// then on, at the pace of the queue; but for the last two, as those ahead may leave together.
    pub fn hand_overs(&self, config: &Config) -> Option<(Instant, Duration)> {
        let prospect = self.prospect_of_head().filter(|_| self.is_queued())?;
        Some((prospect.seen_at, prospect.hand_overs(2, self.pace, config)))
    }

    /// Returns the time of a hand-over in the queue, as it was seen so far.
    pub fn pace(&self) -> Duration {
        self.pace
    }

    fn prospect_of_head(&self) -> Option<&Prospect> {
        let head = self.waiting.front()?;
        self.prospect.as_ref().filter(|prospect| prospect.entry == head.entry)
    }

    fn is_far(&self) -> bool {
        self.prospect_of_head().is_some_and(|prospect| !prospect.is_near)
    }

    pub fn knows(&self, entry: &str) -> bool {
        self.wants(entry) || self.leaving.iter().any(|leaving| leaving.entry == entry)
    }

    /// Whether a task holds or awaits the lock by this entry.
    fn wants(&self, entry: &str) -> bool {
        self.holds.contains_key(entry) || self.waiting.iter().any(|waiting| waiting.entry == entry)
    }

    /// Notes that the lease of an entry is no shorter than this.
    pub fn note_lease(&mut self, entry: &str, lease: Duration) {
        if let Some(held) = self.holds.get_mut(entry) {
            held.lease = held.lease.max(lease);
        }
    }

    /// Notes that a transaction is guarded by a hold.
    pub fn note_guarded(&mut self) {
        self.guards = true;
    }

    /// Returns the holds of this process, each once for each task that has it.
    pub fn holds(&self) -> impl Iterator<Item = &Arc<H>> {
        self.holds.values().flat_map(|held| &held.tasks)
    }

    /// Whether the hold is not over here. Its entry alone does not show it: the hold may have been handed on.
    pub fn has(&self, hold: &H) -> bool {
        let held = self.holds.get(hold.entry());
        held.is_some_and(|held| held.tasks.iter().any(|task| task.is_same(hold)))
    }

    fn remove_hold(&mut self, entry: &str) -> Option<Held<H>> {
        self.idle.take_if(|idle| idle.entry == entry);
        self.holds.remove(entry)
    }

    /// Forgets a hold that is known to be gone from the document.
    pub fn forget(&mut self, entry: &str) {
        let gone = self.remove_hold(entry).into_iter().flat_map(|held| held.tasks);
        self.effects.extend(gone.map(Effect::Gone));
    }
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{
        fixtures::{self, MUTEX, PlainHold, ahead, in_context, queued, task, waitlist},
        *,
    };

    /// A waitlist with this head, which has seen so many hand-overs before its turn: with seven it is far from that.
    fn seen(head: Waiting<u64>, turns: u64) -> Waitlist<PlainHold> {
        Waitlist {
            prospect: Some(ahead(turns, 1_000)),
            ..waitlist([head])
        }
    }

    fn held() -> Held<PlainHold> {
        let now = Instant::now();
        fixtures::held(MUTEX, (now, now))
    }

    #[tokio::test(start_paused = true)]
    async fn the_stream_is_needed_for_holds_and_by_heads_that_may_be_next() {
        in_context(|context| {
            assert_eq!(waitlist([]).need(), Need::Nothing);
            assert_eq!(waitlist([task(1, MUTEX)]).need(), Need::Stream);
            let mut far = seen(queued(1, MUTEX), 7);
            assert_eq!(far.need(), Need::Position);
            far.holds.insert("me-0".to_owned(), held());
            assert_eq!(far.need(), Need::Stream);
            let mut kept_out = waitlist([task(1, MUTEX)]);
            kept_out.step(context).keep_out();
            assert_eq!(kept_out.need(), Need::Nothing);
            let mut leaves = waitlist([]);
            leaves
                .leaving
                .push(Leaving::new("me-1".to_owned(), Duration::ZERO, context));
            assert_eq!(leaves.need(), Need::Stream, "it may come again");
            let mut holds = waitlist([]);
            holds.holds.insert("me-1".to_owned(), held());
            assert_eq!(holds.need(), Need::Losses);
            holds.idle = Some(Idle {
                entry: "me-1".to_owned(),
                until: context.now,
                attend_at: context.now,
            });
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
                let waitlist = seen(head, turns);
                assert_eq!(waitlist.waits_for_event(), waits, "{waitlist:?}");
                // At a pace of a millisecond, as none is known.
                let most = Duration::from_micros(750) * u32::try_from(turns - 2).unwrap();
                assert_eq!(
                    waitlist.hand_overs(context.config),
                    is_queued.then_some((context.now, most))
                );
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_shuts_down_answers_its_tasks_and_takes_out_the_entry_in_the_queue() {
        in_context(|context| {
            let mut waitlist = waitlist([queued(1, MUTEX), task(2, MUTEX)]);
            waitlist.step(context).close();
            let closed = waitlist.effects.iter().map(|effect| match effect {
                Effect::Refused {
                    to,
                    why: Refusal::Closed,
                } => *to,
                other => panic!("{other:?}"),
            });
            assert_eq!(closed.collect::<Vec<u64>>(), [1, 2]);
            let leaves: Vec<&str> = waitlist.leaving.iter().map(|it| it.entry.as_str()).collect();
            assert_eq!((waitlist.waiting.is_empty(), &leaves[..]), (true, &["me-1"][..]));
        });
    }
}
