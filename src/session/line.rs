//! The line of one process before one lock: a state machine without I/O.
//!
//! At most one operation per name is on its way at a time, so that a leave can never overtake the request it undoes,
//! and everything that comes up meanwhile goes into the next operation together. The tasks of the process wait in a
//! local queue. Only its head stands in the server's, so that the document grows with the waiting processes and not
//! with their tasks; when the process lets go of a hold while its head waits already, the next joins in the same
//! write, unless others wait. Handing a lock from task to task inside a process thereby costs one command, and beside
//! other processes each has one place in the queue.
//!
//! Callers feed in what happened and then ask for the next operation ([`Line::next`]) and for the instant at which the
//! line wants to be asked again ([`Line::due_at`]). What is owed to the outside comes back as [`Effect`]s, to be
//! carried out when no lock is held.

use std::{
    collections::{BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    clock::ServerClock,
    deadline::Deadline,
    hold::{Grant, Hold},
    holds::{Change, Holds},
    ids::Ids,
    prospect::{self, Prospect, Turn},
};
use crate::{
    config::Config,
    contention::{Contention, Sighting},
    error::{AcquireError, KindMismatch, ServerError},
    protocol::{
        ASK_TOGETHER, Ahead, Evict, Expects, Kind, Operation, Owner, QUEUE_MOST, Request, Requests, ServerTime, State,
        Use, document::Malformed, wake,
    },
    status::LostReason,
    store::{Answer, Exchange, Failure, StoreError},
    telemetry::How,
};

/// A waiter that was woken shows that it is alive by a renewal this long after; until then it holds on the claim lease.
/// Most critical sections are over by then, and cost no further write.
const CLAIM_CHECK: Duration = Duration::from_millis(300);

/// When an answer leaves the head nowhere for no reason known, it asks again this much later.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Expiry raises no event, so the head of the queue asks when the holder's lease ends, and everybody behind it this
/// much later for each place before it, in case those before it are dead.
const EXPIRY_STAGGER: Duration = Duration::from_millis(25);

/// A lock that was idle this long ago is expected to be idle still.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// A holder that was alone this long ago is expected to be alone still: only the shortest critical sections are over by
/// then, and these are the ones that feel what a release costs.
const ALONE_FOR: Duration = Duration::from_millis(2);

/// The most that the stagger adds up to.
const EXPIRY_STAGGER_MOST: Duration = Duration::from_secs(1);

/// A client that found the queue full knocks again this much later, a quarter more or less.
///
/// Often enough to come in soon after there is room, and seldom enough for the server to bear a thousand of them.
const KNOCK: Duration = Duration::from_secs(1);

/// Every so many knocks are requests in full. The others are answered only if there is a document with room in its queue,
/// so they don't show that it was deleted, or who holds it now, and they put nobody out whose time is over.
const KNOCKS: u32 = 8;

/// The server's clock has reached a time in milliseconds when it shows the next one.
pub(super) const CLOCK_RESOLUTION: Duration = Duration::from_millis(1);

/// Pauses between tries while the server can't be reached: the first, and the longest.
pub(crate) const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Losing the race for a new document this often in a row is no race: some other unique index is in the way.
const RACES: u32 = 8;

/// When the outcome of a request is unknown, its entry is taken out once more after each of these, in case the request
/// was applied late.
pub(super) const SWEEPS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// A try is repeated for this long while the server does not get it done. Who wants to know sooner sets a timeout.
pub(super) const TRY_FOR: Duration = Duration::from_secs(10);

/// A server that has not answered for this long is not merely slow.
pub(super) const UNANSWERED: Duration = Duration::from_secs(1);

/// What became of an acquire.
pub(crate) type Outcome = Result<Option<Arc<Hold>>, AcquireError>;

/// What became of a release.
pub(crate) type Left = Result<wake::Left, ServerError>;

/// One task that wants the lock.
#[derive(Debug)]
pub(crate) struct Pending {
    /// By which its future finds it again.
    pub(crate) key: u64,
    /// Its entry in the document.
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
    /// `false`: a try.
    pub(crate) wait: bool,
    /// Of a try: its failure is to tell who holds the lock.
    tell: bool,
    reentrant: bool,
    pub(crate) owner: Owner,
    pub(crate) since: Instant,
    pub(crate) to: oneshot::Sender<Outcome>,
    /// A request for it has been sent.
    sent: bool,
    /// The server's queue has it, as far as we know.
    queued: bool,
    /// The last token that had been issued when it was seen in the queue: its own will be larger.
    above: i64,
    /// A request for it may have been applied, or may still be.
    uncertain: bool,
    /// How a grant would come that is heard of now.
    how: How,
}

impl Pending {
    fn used(&self) -> Use {
        (self.kind, self.capacity)
    }

    pub(crate) fn new(key: u64, id: String, wanted: Wanted, to: oneshot::Sender<Outcome>) -> Self {
        let Wanted {
            kind,
            capacity,
            permits,
            wait,
            tell,
            reentrant,
            owner,
        } = wanted;
        let since = Instant::now();
        Self {
            key,
            id,
            kind,
            capacity,
            permits,
            wait,
            tell,
            reentrant,
            owner,
            since,
            to,
            sent: false,
            queued: false,
            above: 0,
            uncertain: false,
            how: How::AtOnce,
        }
    }
}

/// What a task wants of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) permits: i64,
    /// `false`: a try.
    pub(crate) wait: bool,
    /// Of a try: it fails with [`AcquireError::Held`] and not with `None`.
    pub(crate) tell: bool,
    /// A hold of this client in the same use will do.
    pub(crate) reentrant: bool,
    pub(crate) owner: Owner,
}

/// How a task stood in line, by what was heard last.
#[derive(Debug)]
pub(crate) struct Standing {
    seen: Option<Seen>,
    /// The server's queue had no room for this client.
    full: bool,
    /// How many come before it.
    before: usize,
    trouble: Option<StoreError>,
    age: Duration,
}

/// What the server said last.
#[derive(Clone, Debug)]
struct Seen {
    state: Arc<State>,
    as_of: ServerTime,
    at: Instant,
}

impl Standing {
    /// Apart from the line, as it copies what it tells.
    pub(crate) fn tell(self, ids: &Ids) -> (Option<Contention>, Option<StoreError>) {
        let contention = self.seen.map(|seen| {
            let sighting = Sighting {
                state: &seen.state,
                as_of: seen.as_of,
                age: self.age,
            };
            Contention {
                queue_full: self.full,
                ..Contention::new(&sighting, self.before, |id| ids.made(id))
            }
        });
        (contention, self.trouble)
    }
}

/// An entry that is to leave the document.
#[derive(Debug)]
struct Leave {
    id: String,
    /// What the lock was used as by it, where that is known.
    used: Option<Use>,
    held: bool,
    to: Option<oneshot::Sender<Left>>,
    /// An earlier try may have been applied, so that not finding the entry says nothing.
    uncertain: bool,
    not_before: Instant,
    /// When it is left to the server's expiry.
    give_up: Instant,
    /// Further times that it is to be taken out, an index into [`SWEEPS`].
    sweep: usize,
}

/// Tries in a row that came to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vain {
    /// They were not answered in time.
    pub(crate) unanswered: u32,
    /// The server did not get them done in time, and said so.
    pub(crate) overdue: u32,
}

/// Something owed to the outside, to be done when no lock is held.
#[derive(Debug)]
pub(crate) enum Effect {
    Answer(oneshot::Sender<Outcome>, Outcome),
    Left(oneshot::Sender<Left>, Left),
    Lost(Arc<Hold>, LostReason),
    /// Whether the document still has it is to be looked up.
    Doubted(Arc<Hold>),
}

/// What the line may know of the world outside it.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) clock: &'a ServerClock,
    /// Grants arrive as events, so asking is only the back-stop.
    pub(crate) streaming: bool,
    /// They don't, as nobody needs the stream so far; it opens when somebody does.
    pub(crate) resting: bool,
    pub(crate) ids: &'a Ids,
}

/// A look at the place of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) entry: String,
    plan: u64,
}

/// What a line needs of the change stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Need {
    #[default]
    Nothing,
    /// Its head is far from its turn, and looks at its place.
    Looks,
    /// Somebody waits to be served soon, or to hear that a hold is lost.
    Stream,
}

/// A queue that had no room.
#[derive(Clone, Copy, Debug)]
struct Full {
    knock_at: Instant,
    /// The knocks since the last request in full.
    knocks: u32,
}

#[derive(Debug)]
pub(crate) struct Line {
    name: String,
    waiting: VecDeque<Pending>,
    holds: Holds,
    leaving: Vec<Leave>,
    /// What goes out with the operation that is on its way.
    under_way: Option<Vec<Leave>>,
    /// When that operation was sent, or last one was.
    sent_at: Option<Instant>,
    /// What the server said last to those who wait now. Only kept while somebody waits.
    seen: Option<Seen>,
    /// Why the last operation failed, if it did.
    trouble: Option<StoreError>,
    /// Something happened to the document since then, so the answer may be older than that.
    overtaken: bool,
    /// When the document was last seen with nobody in it but ourselves.
    alone_at: Option<Instant>,
    /// When the head asks again although nothing woke it.
    ask_at: Option<Instant>,
    /// By when its place in the queue is to be confirmed.
    confirm_at: Option<Instant>,
    /// How soon the head may be served, as far as that is known.
    prospect: Option<Prospect>,
    /// When the head looks at its place.
    look_at: Option<Instant>,
    /// Counts the plans for asking and looking: what was looked at for an earlier one is not to overthrow a later.
    plan: u64,
    /// What the line counts as, in the session's books.
    pub(super) counted: Need,
    /// The head is not in the server's queue, as it was full.
    full: Option<Full>,
    /// Nothing is sent before, as the last try failed.
    retry_at: Option<Instant>,
    failures: u32,
    vain: Vain,
    /// When the first of the tries was sent that the server has not answered since.
    silent_since: Option<Instant>,
}

impl Line {
    /// `alone_at`: when the document was last seen idle.
    pub(crate) fn new(name: String, alone_at: Option<Instant>) -> Self {
        Self {
            name,
            waiting: VecDeque::new(),
            holds: Holds::default(),
            leaving: Vec::new(),
            under_way: None,
            sent_at: None,
            seen: None,
            trouble: None,
            overtaken: false,
            alone_at,
            ask_at: None,
            confirm_at: None,
            prospect: None,
            look_at: None,
            plan: 0,
            counted: Need::Nothing,
            full: None,
            retry_at: None,
            failures: 0,
            vain: Vain::default(),
            silent_since: None,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.holds.is_empty() && self.leaving.is_empty() && self.under_way.is_none()
    }

    /// When the document was last seen with nobody in it but ourselves; of an idle line: with nobody.
    pub(crate) fn alone_at(&self) -> Option<Instant> {
        self.alone_at
    }

    /// When entries are to be taken out next that no operation on its way takes out.
    pub(crate) fn leaves_at(&self) -> Option<Instant> {
        let at = self
            .leaving
            .iter()
            .map(|leave| leave.not_before)
            .min()
            .filter(|_| self.under_way.is_none())?;
        Some(self.retry_at.map_or(at, |retry| at.max(retry)))
    }

    /// Whether somebody waits to hear what the operation on its way found.
    pub(super) fn is_asked_what_it_finds(&self) -> bool {
        self.under_way.iter().flatten().any(|leave| leave.to.is_some())
    }

    /// The server's queue has our head.
    pub(crate) fn is_queued(&self) -> bool {
        self.waiting.front().is_some_and(|head| head.queued)
    }

    /// What those who hold, and the head, need of the change stream once it is open.
    pub(crate) fn need(&self) -> Need {
        match self.waiting.front() {
            _ if !self.holds.is_empty() => Need::Stream,
            Some(_) if self.is_far() => Need::Looks,
            Some(head) if self.knocks(head).is_some() => Need::Nothing,
            None if self.is_idle() => Need::Nothing,
            // Whose request is not answered yet may be next; and whoever leaves may come again.
            _ => Need::Stream,
        }
    }

    /// Somebody waits to be served within moments.
    pub(crate) fn waits_for_event(&self) -> bool {
        self.is_queued() && !self.is_far()
    }

    fn is_far(&self) -> bool {
        let head = self.waiting.front();
        self.prospect.as_ref().is_some_and(|prospect| {
            head.is_some_and(|head| head.id == prospect.entry) && matches!(prospect.turn, Turn::Far(_))
        })
    }

    /// The look at the head's place that is due, once: what was seen is to be told by [`looked`](Self::looked).
    pub(crate) fn next_look(&mut self, context: &Context<'_>) -> Option<Look> {
        let head = self.waiting.front().filter(|head| head.queued)?;
        if self.under_way.is_some() || self.look_at.is_none_or(|at| at > context.now) {
            return None;
        }
        self.look_at = None;
        Some(Look {
            entry: head.id.clone(),
            plan: self.plan,
        })
    }

    /// What the head saw of its place. Who is not in the queue any more asks, and so does who has come near the front.
    pub(crate) fn looked(&mut self, look: &Look, ahead: Option<Ahead>, context: &Context<'_>) {
        let entry = look.entry.as_str();
        let is_head = self.waiting.front().is_some_and(|head| head.id == entry);
        if look.plan != self.plan || self.under_way.is_some() || !self.is_queued() || !is_head {
            // It knows better by now, or soon.
            return;
        }
        let Some(ahead) = ahead else {
            self.ask_at = Some(context.now);
            return;
        };
        let was_far = self.is_far();
        let prospect = Prospect::new(entry, &ahead, self.prospect.as_ref(), context.config);
        self.look_at = self.next_look_at(&prospect, &ahead, context);
        let comes_near = was_far && prospect.turn == Turn::Near;
        self.prospect = Some(prospect);
        if comes_near || (self.look_at.is_none() && !context.streaming) {
            self.ask_at = Some(context.now);
            return;
        }
        let expiry = ahead.first_end.and_then(|end| expiry(end, ahead.turns, context));
        let at = expiry.into_iter().chain(self.confirm_at).min();
        self.ask_at = Some(
            at.unwrap_or(context.now)
                .max(context.now + context.config.poll_interval.0),
        );
    }

    fn next_look_at(&self, prospect: &Prospect, ahead: &Ahead, context: &Context<'_>) -> Option<Instant> {
        match prospect.turn {
            Turn::Far(after) if context.resting => Some(context.now + after),
            // Who has it open because of its place alone may find that it is not needed.
            Turn::Near if context.streaming && ahead.turns >= context.config.near => {
                Some(context.now + prospect::reconsider(context.config))
            }
            _ => None,
        }
    }

    /// How the last tries ended.
    pub(crate) fn vain(&self) -> Vain {
        self.vain
    }

    /// Which holds came and which went since this was asked last.
    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        self.holds.take_changes()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.holds.contains_key(id)
    }

    pub(crate) fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.holds.values()
    }

    /// A task gets in line. A try that would stand behind somebody has failed already.
    pub(crate) fn join(&mut self, pending: Pending, context: &Context<'_>, effects: &mut Vec<Effect>) {
        if let Some(hold) = self.reenter(&pending) {
            effects.push(Effect::Answer(pending.to, Ok(Some(hold))));
            return;
        }
        if !pending.wait && !self.waiting.is_empty() {
            let contention = pending.tell.then(|| {
                let standing = self.standing(self.waiting.len(), context);
                let before = standing.before;
                standing
                    .tell(context.ids)
                    .0
                    .unwrap_or_else(|| Contention::behind(before))
            });
            let denied = self.denied(contention);
            effects.push(Effect::Answer(pending.to, denied));
            return;
        }
        self.waiting.push_back(pending);
    }

    /// A hold of this client in which the task may join, with a handle more.
    ///
    /// Re-entrancy is by client, and only into the very same share: as many permits of the same kind. So a reader gets in
    /// although a writer waits, which would else wait for the reader; and a reader never becomes a writer.
    fn reenter(&self, pending: &Pending) -> Option<Arc<Hold>> {
        if !pending.reentrant {
            return None;
        }
        let mut holds: Vec<&Arc<Hold>> = self
            .holds
            .values()
            .filter(|hold| hold.used == pending.used() && hold.permits == unsigned(pending.permits))
            .collect();
        // The oldest that is not over.
        holds.sort_unstable_by_key(|hold| hold.token);
        holds.into_iter().find(|hold| hold.enter()).cloned()
    }

    /// Those in line who may join a hold that was granted since.
    fn let_reenter(&mut self, context: &Context<'_>, effects: &mut Vec<Effect>) {
        let mut position = 0;
        while let Some(pending) = self.waiting.get(position) {
            let Some(hold) = self.reenter(pending) else {
                position += 1;
                continue;
            };
            if let Some(pending) = self.waiting.remove(position) {
                let to = self.abandon(pending, context);
                effects.push(Effect::Answer(to, Ok(Some(hold))));
            }
        }
    }

    /// A task gives up waiting, unless it was answered before. Returns how it stood.
    pub(crate) fn cancel(&mut self, key: u64, context: &Context<'_>) -> Option<Standing> {
        let position = self.waiting.iter().position(|pending| pending.key == key)?;
        let standing = self.standing(position, context);
        if let Some(pending) = self.waiting.remove(position) {
            self.abandon(pending, context);
        }
        Some(standing)
    }

    /// What is known of the lock to who stands in the line of this process behind so many others.
    fn standing(&self, position: usize, context: &Context<'_>) -> Standing {
        let since = |at: Instant| context.now.saturating_duration_since(at);
        let ahead = self.seen.as_ref().map_or(0, |seen| {
            let head = self.waiting.front().map(|head| head.id.as_str());
            let queue = seen.state.queue.iter().map(|waiter| waiter.id.as_str());
            queue
                .take_while(|id| Some(*id) != head)
                .filter(|id| !context.ids.made(id))
                .count()
        });
        // An operation can hang for longer than anybody wants to wait, so there need not be an error yet.
        let unanswered = || {
            let sent_at = self.sent_at.filter(|_| self.under_way.is_some())?;
            let for_long = since(self.silent_since.unwrap_or(sent_at));
            (self.seen.is_none() || for_long >= UNANSWERED).then(|| StoreError::unanswered(for_long))
        };
        let trouble = match &self.trouble {
            Some(error) if error.is_unanswered() => unanswered().or_else(|| self.trouble.clone()),
            trouble => trouble.clone().or_else(unanswered),
        };
        Standing {
            before: position + ahead,
            trouble,
            age: self.seen.as_ref().map_or(Duration::ZERO, |seen| since(seen.at)),
            seen: self.seen.clone(),
            full: self.full.is_some() && !self.is_queued(),
        }
    }

    /// Keeps an answer for those who wait, should they give up.
    pub(crate) fn remember(&mut self, answer: Answer, context: &Context<'_>) {
        self.trouble = None;
        if self.waiting.is_empty() {
            self.seen = None;
        } else if let Some(state) = answer.state {
            self.seen = Some(Seen {
                as_of: answer.exchange.now.unwrap_or(state.at),
                state: Arc::new(state),
                at: context.now,
            });
        }
    }

    /// What a try is told that came to nothing.
    fn denied(&self, contention: Option<Contention>) -> Outcome {
        match contention {
            None => Ok(None),
            Some(contention) => Err(AcquireError::Held {
                name: self.name.clone(),
                contention: Box::new(contention),
            }),
        }
    }

    /// Nothing is sent any more: whoever waits for an answer gets the error.
    pub(crate) fn stop(self, error: &StoreError, effects: &mut Vec<Effect>) {
        let error = || ServerError::from(error.clone());
        let waiting = self.waiting.into_iter();
        effects.extend(waiting.map(|pending| Effect::Answer(pending.to, Err(error().into()))));
        let leaves = self.under_way.into_iter().flatten().chain(self.leaving);
        effects.extend(
            leaves
                .filter_map(|leave| leave.to)
                .map(|to| Effect::Left(to, Err(error()))),
        );
    }

    /// Everybody gives up waiting, as the client shuts down.
    pub(crate) fn close(&mut self, context: &Context<'_>, effects: &mut Vec<Effect>) {
        while let Some(pending) = self.waiting.pop_front() {
            let to = self.abandon(pending, context);
            effects.push(Effect::Answer(to, Err(AcquireError::Closed)));
        }
    }

    /// Takes out the entry of a task that no longer waits, if the server can have it. Returns where to answer it.
    fn abandon(&mut self, pending: Pending, context: &Context<'_>) -> oneshot::Sender<Outcome> {
        // While an operation is on its way its requests can be anywhere.
        if pending.queued || pending.uncertain || (pending.sent && self.under_way.is_some()) {
            let used = Some(pending.used());
            self.leave(pending.id, used, false, pending.uncertain, None, context);
        }
        pending.to
    }

    /// A holder lets go: by release, by drop, or because it lost the lock.
    pub(crate) fn let_go(&mut self, hold: &Hold, to: Option<oneshot::Sender<Left>>, context: &Context<'_>) {
        self.holds.remove(&hold.id);
        self.leave(hold.id.clone(), Some(hold.used), true, hold.is_uncertain(), to, context);
    }

    /// A hold that was not waited for here.
    pub(crate) fn hold(&mut self, hold: Arc<Hold>) {
        self.holds.insert(hold.id.clone(), hold);
    }

    /// A hold that is gone from the document, as we know.
    pub(crate) fn forget(&mut self, id: &str) {
        self.holds.remove(id);
    }

    /// An entry that nobody here holds or waits for is to leave.
    pub(crate) fn take_out(&mut self, id: String, used: Use, context: &Context<'_>) {
        self.leave(id, Some(used), true, false, None, context);
    }

    fn leave(
        &mut self,
        id: String,
        used: Option<Use>,
        held: bool,
        unsettled: bool,
        to: Option<oneshot::Sender<Left>>,
        context: &Context<'_>,
    ) {
        self.leaving.push(Leave {
            id,
            used,
            held,
            to,
            uncertain: false,
            not_before: context.now,
            give_up: context.now + context.config.lease,
            sweep: if unsettled { 0 } else { SWEEPS.len() },
        });
    }

    /// When the line wants [`Line::next`] to be called, at the latest.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        let head = self.waiting.front().and_then(|head| {
            if head.queued {
                self.ask_at.into_iter().chain(self.look_at).min()
            } else {
                Some(self.knocks(head).map_or(head.since, |full| full.knock_at))
            }
        });
        let leaves = self.leaving.iter().map(|leave| leave.not_before).min();
        let due = head.into_iter().chain(leaves).min()?;
        Some(self.retry_at.map_or(due, |retry| due.max(retry)))
    }

    /// The next operation, if there is cause for one; it is then on its way until it is answered or has failed.
    pub(crate) fn next(&mut self, context: &Context<'_>) -> Option<Operation> {
        if self.under_way.is_some() || self.retry_at.is_some_and(|retry| context.now < retry) {
            return None;
        }
        let (leaves, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|leave| leave.not_before <= context.now);
        self.leaving = later;
        let knocks = |head| self.knocks(head).is_none_or(|full| full.knock_at <= context.now);
        let asks = self.waiting.front().is_some_and(|head| !head.queued && knocks(head))
            || (self.is_queued() && self.ask_at.is_none_or(|ask_at| ask_at <= context.now));
        if leaves.is_empty() && !asks {
            return None;
        }
        let used = leaves.first().and_then(|leave| leave.used);
        let used = used.filter(|used| leaves.iter().all(|leave| leave.used == Some(*used)));
        let together = leaves.is_empty() || self.waiting.front().map(Pending::used) == used;
        let letting_go = leaves.iter().any(|leave| leave.held);
        let expects = self.expects(&leaves, context.now);
        let operation = Operation {
            id: context.ids.operation(),
            leave: leaves.iter().map(|leave| leave.id.clone()).collect(),
            leave_capacity: used.map(|(_, capacity)| capacity),
            evict: Evict::Nobody,
            proclaim: None,
            requests: if together {
                // Nobody is there whose place could be taken, where nobody is expected.
                let follows = letting_go && self.is_alone_in_line(context);
                self.requests(follows, expects == Expects::Nothing, context.config)
            } else {
                None
            },
            expects,
            room: QUEUE_MOST,
            keep: context.config.keep_millis(),
        };
        self.under_way = Some(leaves);
        self.sent_at = Some(context.now);
        self.overtaken = false;
        Some(operation)
    }

    /// Whether the head only asks from time to time, as there was no room for it. A try is not kept waiting.
    fn knocks(&self, head: &Pending) -> Option<Full> {
        self.full.filter(|_| head.wait && !head.queued)
    }

    /// There is no room in the queue.
    fn knock_later(&mut self, context: &Context<'_>) {
        // Those who came together are not to knock together: the sessions are numbers drawn at random.
        let mut hasher = DefaultHasher::new();
        let knocks = self.full.map_or(0, |full| full.knocks);
        (context.ids.session(), &self.name, knocks).hash(&mut hasher);
        let part = u32::try_from(hasher.finish() % 1_024).unwrap_or(0);
        self.full = Some(Full {
            knock_at: context.now + KNOCK - KNOCK / 4 + KNOCK / 2 * part / 1_024,
            knocks: knocks + 1,
        });
    }

    /// What the next operation may take for granted.
    ///
    /// To be wrong costs another round trip. Before an acquire that is a matter of course; a release that hands over
    /// must not be late, so nobody is expected in line only where hardly anybody can have got there.
    fn expects(&self, leaves: &[Leave], now: Instant) -> Expects {
        let alone_for = |limit| {
            self.alone_at
                .is_some_and(|at| now.saturating_duration_since(at) <= limit)
        };
        match (leaves, self.waiting.len()) {
            ([], 1..)
                if self
                    .knocks(&self.waiting[0])
                    .is_some_and(|full| full.knocks % KNOCKS != 0) =>
            {
                Expects::Room
            }
            ([], 1) => {
                let head = &self.waiting[0];
                let alone = head.capacity == 1 && !head.sent && alone_for(IDLE_FOR);
                if alone { Expects::Alone } else { Expects::Nothing }
            }
            ([leave], 0) => {
                let settled = leave.held && !leave.uncertain && leave.sweep == SWEEPS.len();
                match leave.used {
                    Some((_, 1)) if settled && alone_for(ALONE_FOR) => Expects::Alone,
                    Some(_) if settled => Expects::Holding,
                    _ => Expects::Nothing,
                }
            }
            _ => Expects::Nothing,
        }
    }

    /// Nobody of another client waits, as far as is known.
    ///
    /// The next in line joins the queue together with the release of a hold, so that handing the lock from task to task
    /// costs one command. While its head is queued already that is a second place, which is nobody's loss as long as
    /// nobody else waits; beside others a client has one place, however many of its tasks wait.
    fn is_alone_in_line(&self, context: &Context<'_>) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.state.queue.iter().all(|waiter| context.ids.made(&waiter.id)))
    }

    /// The head; with it the next in line where it `follows`; and tries for whoever fits beside them.
    ///
    /// What asks for the first time puts earlier incarnations of its owner out; who is in line already has done so.
    fn requests(&mut self, may_follow: bool, adopting: bool, config: &Config) -> Option<Requests> {
        let head = self.waiting.front()?;
        let (used, head_queued) = (head.used(), head.queued);
        let mut entries = Vec::new();
        let mut adopts = None;
        let mut permits = 0;
        for (position, pending) in self.waiting.iter_mut().enumerate().take(ASK_TOGETHER) {
            if pending.used() != used {
                break;
            }
            permits += pending.permits;
            if position > 0 && pending.queued {
                continue;
            }
            let follows = position == 1 && may_follow && head_queued && pending.wait;
            if position > 0 && !follows && permits > used.1 {
                break;
            }
            entries.push(request(pending, pending.wait && (position == 0 || follows), config));
            pending.sent = true;
            if adopting && !pending.queued {
                adopts = pending.owner.identity.clone();
            }
        }
        Some(Requests {
            kind: used.0,
            capacity: used.1,
            entries,
            adopts,
        })
    }

    /// The operation was answered.
    pub(crate) fn answered(
        &mut self,
        operation: &Operation,
        answer: &Answer,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        self.failures = 0;
        (self.vain, self.silent_since) = (Vain::default(), None);
        self.retry_at = None;
        self.alone_at = None;
        let wake = answer.state.as_ref().map(|state| &state.wake);
        let done = wake.is_some_and(|wake| wake::left(wake, &operation.id).is_some());
        if operation.expects == Expects::Alone && !done {
            // There is somebody else, or nothing of ours: nothing was done, and it is asked for in full.
            self.leaving.extend(self.under_way.take().unwrap_or_default());
            for pending in self
                .waiting
                .iter_mut()
                .filter(|pending| operation.asks_for(&pending.id))
            {
                pending.sent = false;
            }
            return;
        }
        if operation.expects == Expects::Room && answer.state.is_none() {
            self.under_way = None;
            if self.overtaken {
                self.doubt(context);
                effects.extend(self.holds().cloned().map(Effect::Doubted));
            } else {
                self.knock_later(context);
            }
            return;
        }
        let left = answer
            .state
            .as_ref()
            .and_then(|state| wake::left(&state.wake, &operation.id))
            .unwrap_or_default();
        let mut let_go = false;
        for (position, leave) in self.under_way.take().unwrap_or_default().into_iter().enumerate() {
            let found = match left.get(position).copied().unwrap_or(wake::Left::Nowhere) {
                // Our earlier try took it out: that answer was lost on the way.
                wake::Left::Nowhere if leave.uncertain => wake::Left::Holder,
                found => found,
            };
            let_go |= found == wake::Left::Holder;
            self.left(leave, found, context, effects);
        }
        let Some(state) = &answer.state else {
            // A document that may not be made.
            self.missing(operation, context, effects);
            return;
        };
        if let Some(requests) = &operation.requests {
            if let_go {
                let asked = |pending: &&mut Pending| operation.asks_for(&pending.id);
                self.waiting
                    .iter_mut()
                    .filter(asked)
                    .for_each(|pending| pending.how = How::Local);
            }
            for entry in &requests.entries {
                self.requested(entry, requests, state, &answer.exchange, context, effects);
            }
        }
        self.let_reenter(context, effects);
        let alone = state.queue.is_empty() && state.holders.iter().all(|holder| self.holds.contains_key(&holder.id));
        self.alone_at = alone.then_some(context.now);
        self.compare_holds(state, effects);
        self.take_out_strangers(state, context);
        self.plan_asking(state, answer.exchange.now, context);
        if self.overtaken {
            self.doubt(context);
            effects.extend(self.holds().cloned().map(Effect::Doubted));
        }
    }

    /// There is no document to lock.
    fn missing(&mut self, operation: &Operation, context: &Context<'_>, effects: &mut Vec<Effect>) {
        let (missing, waiting): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|pending| operation.expects == Expects::Nothing && operation.asks_for(&pending.id));
        self.waiting = waiting;
        for pending in missing {
            let name = self.name.clone();
            // An earlier request may find a document yet.
            let to = self.abandon(pending, context);
            effects.push(Effect::Answer(to, Err(AcquireError::NoDocument { name })));
        }
    }

    fn left(&mut self, leave: Leave, found: wake::Left, context: &Context<'_>, effects: &mut Vec<Effect>) {
        if let Some(to) = leave.to {
            effects.push(Effect::Left(to, Ok(found)));
        }
        if let Some(pause) = SWEEPS.get(leave.sweep) {
            let not_before = context.now + *pause;
            self.leaving.push(Leave {
                to: None,
                not_before,
                sweep: leave.sweep + 1,
                ..leave
            });
        }
    }

    /// What the document says of one entry that was asked for.
    fn requested(
        &mut self,
        entry: &Request,
        requests: &Requests,
        state: &State,
        exchange: &Exchange,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        // Cancelled meanwhile, and then it leaves with the next operation; or granted by an event.
        let Some(position) = self.waiting.iter().position(|pending| pending.id == entry.id) else {
            return;
        };
        if let Some(holder) = state.holders.iter().find(|holder| holder.id == entry.id) {
            let deadline = Deadline::of_answer(exchange, holder.until, context.clock, context.now, context.config);
            let full = holder.until.since(holder.since) >= Duration::from_millis(unsigned(holder.lease));
            let renew_at = if full {
                exchange.sent + context.config.renewal_interval
            } else {
                check(context)
            };
            return self.grant(position, holder.token, deadline, renew_at, context, effects);
        }
        self.waiting[position].how = How::Asking;
        if state.queue.iter().any(|waiter| waiter.id == entry.id) {
            let pending = &mut self.waiting[position];
            (pending.queued, pending.above) = (true, state.token);
            self.full = None;
        } else if (state.kind, state.capacity) != (requests.kind, requests.capacity) {
            if let Some(pending) = self.waiting.remove(position) {
                let error = KindMismatch::new(&self.name, state, requests.kind, requests.capacity);
                // An earlier request may still find it used otherwise again.
                let to = self.abandon(pending, context);
                effects.push(Effect::Answer(to, Err(error.into())));
            }
        } else if !entry.wait {
            // A try that stands behind others in line was only asked for on the chance.
            if !self.waiting[position].wait
                && let Some(pending) = self.waiting.remove(position)
            {
                let sighting = Sighting {
                    state,
                    as_of: exchange.now.unwrap_or(state.at),
                    age: Duration::ZERO,
                };
                let others = state
                    .queue
                    .iter()
                    .filter(|waiter| !context.ids.made(&waiter.id))
                    .count();
                let tell = || Contention::new(&sighting, position + others, |id| context.ids.made(id));
                let denied = self.denied(pending.tell.then(tell));
                // An earlier request may still find the lock free.
                let to = self.abandon(pending, context);
                effects.push(Effect::Answer(to, denied));
            }
        } else {
            self.waiting[position].queued = false;
            if state.queue.len() >= QUEUE_MOST {
                self.knock_later(context);
            } else {
                self.retry_at = Some(context.now + ASK_AGAIN);
            }
        }
    }

    fn grant(
        &mut self,
        position: usize,
        token: i64,
        deadline: Option<Deadline>,
        renew_at: Instant,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deadline) = deadline.filter(|deadline| deadline.instant() > context.now) else {
            // The news came too late to be believed.
            return self.ask_anew(position, true, context);
        };
        let Some(pending) = self.waiting.remove(position) else {
            return;
        };
        let grant = Grant {
            token,
            used: pending.used(),
            permits: unsigned(pending.permits),
            lease: context.config.lease,
            uncertain: pending.uncertain,
            how: pending.how,
            deadline,
            renew_at,
        };
        // The next head, if it is queued already, stands behind ourselves; the answer to our own leave will tell more.
        let routine = if context.streaming {
            refresh(context.config)
        } else {
            context.config.poll_interval.0
        };
        self.ask_at = Some(context.now + routine);
        self.full = None;
        let hold = Arc::new(Hold::new(pending.id.clone(), self.name.clone(), &grant));
        self.holds.insert(pending.id, hold.clone());
        // What was seen before is over.
        self.seen = None;
        effects.push(Effect::Answer(pending.to, Ok(Some(hold))));
    }

    /// The waiter asks again with a new entry, so that whatever is left of this one can't be mistaken for it.
    fn ask_anew(&mut self, position: usize, unsettled: bool, context: &Context<'_>) {
        let pending = &mut self.waiting[position];
        let stale = std::mem::replace(&mut pending.id, context.ids.entry());
        let used = Some(pending.used());
        let unsettled = unsettled || pending.uncertain;
        // Not as a first request: these go to the end, behind those that were only tried beside it.
        (pending.sent, pending.queued, pending.above) = (true, false, 0);
        pending.how = How::Asking;
        self.leave(stale, used, false, unsettled, None, context);
    }

    /// Holds that the document no longer has are lost. A document with a smaller token is older than the hold.
    fn compare_holds(&mut self, state: &State, effects: &mut Vec<Effect>) {
        let gone = |hold: &Arc<Hold>| {
            hold.token.as_i64() <= state.token && !state.holders.iter().any(|holder| hold.is(holder))
        };
        for hold in self.holds.take_if(gone) {
            let reason = reason_of_absence(state, &hold);
            effects.push(Effect::Lost(hold, reason));
        }
    }

    /// Entries of this session that nobody here knows: requests applied late.
    fn take_out_strangers(&mut self, state: &State, context: &Context<'_>) {
        let ids = state
            .holders
            .iter()
            .map(|holder| &holder.id)
            .chain(state.queue.iter().map(|waiter| &waiter.id));
        let strangers: Vec<String> = ids
            .filter(|id| context.ids.made(id) && !self.knows(id))
            .cloned()
            .collect();
        for id in strangers {
            self.leave(id, Some((state.kind, state.capacity)), false, false, None, context);
        }
    }

    fn knows(&self, id: &str) -> bool {
        self.holds.contains_key(id)
            || self.waiting.iter().any(|pending| pending.id == id)
            || self.leaving.iter().any(|leave| leave.id == id)
    }

    /// Sets when the head asks again, by what it knows of those before it.
    fn plan_asking(&mut self, state: &State, now: Option<ServerTime>, context: &Context<'_>) {
        (self.ask_at, self.look_at) = (None, None);
        self.plan += 1;
        let Some(head) = self.waiting.front().filter(|head| head.queued) else {
            return;
        };
        let (entry, waits_since) = (head.id.clone(), head.since);
        let Some(place) = state.queue.iter().position(|waiter| waiter.id == entry) else {
            return;
        };
        let holders = state.holders.iter().map(|holder| holder.until);
        let before = state.queue[..place].iter().map(|waiter| waiter.until);
        let first_end = holders.chain(before).min();
        let expiry = first_end.and_then(|end| expiry(end, place as u64, context));
        let ahead = now.and_then(|now| Ahead::of(state, &entry, now));
        let prospect = ahead.map(|ahead| Prospect::new(&entry, &ahead, self.prospect.as_ref(), context.config));
        self.look_at = match (&prospect, &ahead) {
            (Some(prospect), Some(ahead)) => self.next_look_at(prospect, ahead, context),
            _ => None,
        };
        self.prospect = prospect;
        let looks = context.resting && self.look_at.is_some();
        let routine = if context.streaming || looks {
            // Should the head be granted the lock and be dead, no event tells: the next in line is to notice when its
            // claim lease ends. Who stands further back is served by that.
            let claim = state
                .queue
                .first()
                .filter(|_| place == 1)
                .map(|head| unsigned(head.claim));
            let claim = claim.map(|claim| Duration::from_millis(claim).max(context.config.poll_interval.1));
            claim.map_or(refresh(context.config), |claim| claim.min(refresh(context.config)))
        } else {
            // A grant is to be seen while its claim runs.
            let interval = poll_interval(
                context.config,
                place,
                context.now.saturating_duration_since(waits_since),
            );
            interval.min(context.config.claim_lease / 4)
        };
        let routine = context.now + routine;
        self.confirm_at = Some(routine);
        let soonest = context.now + context.config.poll_interval.0;
        // Never at once: a new primary's clock can be behind the one by which the expiry was reckoned.
        self.ask_at = Some(expiry.map_or(routine, |expiry| expiry.min(routine)).max(soonest));
    }

    /// The operation failed.
    pub(crate) fn failed(
        &mut self,
        operation: &Operation,
        error: &StoreError,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        self.alone_at = None;
        self.plan += 1;
        let asked = |pending: &Pending| operation.asks_for(&pending.id);
        // A waiter asks until it is granted or gives up; whoever is refused is told. So is a try, when it has failed once
        // more: a fail-over or a cut connection fails whatever is on its way, and the next command comes through. Where
        // there was no answer in time, several may have to be sent until one does.
        let refused = error.kind != Failure::Unavailable;
        let in_time = !(error.is_unanswered() || error.ran_out_of_time());
        let tried_for = |pending: &Pending| context.now.saturating_duration_since(pending.since);
        let in_vain = |pending: &&Pending| {
            let again = if in_time {
                pending.uncertain
            } else {
                tried_for(pending) >= TRY_FOR
            };
            !pending.wait && (again || error.found_no_server())
        };
        let told = self.waiting.iter().filter(|pending| asked(pending));
        let told = told.filter(|pending| refused || in_vain(pending));
        let told: BTreeSet<u64> = told.map(|pending| pending.key).collect();
        let leaves = self.under_way.take().unwrap_or_default();
        self.trouble = (error.kind == Failure::Unavailable).then(|| error.clone());
        if error.is_unanswered() {
            let since = *self.silent_since.get_or_insert(self.sent_at.unwrap_or(context.now));
            self.trouble = Some(StoreError::unanswered(context.now.saturating_duration_since(since)));
        } else {
            self.silent_since = None;
        }
        match error.kind {
            Failure::Raced if self.failures < RACES => {
                self.failures += 1;
                self.leaving.extend(leaves);
                return;
            }
            Failure::Unavailable => {
                self.retry_at = if error.is_unanswered() {
                    // That was pause enough.
                    self.vain.unanswered = self.vain.unanswered.saturating_add(1);
                    None
                } else {
                    let overdue = error.ran_out_of_time();
                    self.vain.overdue = if overdue {
                        self.vain.overdue.saturating_add(1)
                    } else {
                        0
                    };
                    self.failures = self.failures.saturating_add(1);
                    let pause = BACKOFF
                        .0
                        .saturating_mul(2_u32.saturating_pow(self.failures - 1))
                        .min(BACKOFF.1);
                    Some(context.now + pause)
                };
                for leave in leaves {
                    if leave.give_up > context.now {
                        self.leaving.push(Leave {
                            uncertain: true,
                            ..leave
                        });
                    } else if let Some(to) = leave.to {
                        effects.push(Effect::Left(to, Err(error.clone().into())));
                    }
                }
                for pending in self.waiting.iter_mut().filter(|pending| asked(pending)) {
                    pending.uncertain = true;
                }
                // Granted by an event while the request was on its way.
                let mut holds = self.holds.values();
                holds
                    .by_ref()
                    .filter(|hold| operation.asks_for(&hold.id))
                    .for_each(|hold| hold.doubt());
                // Given up while the request was on its way.
                for leave in self.leaving.iter_mut().filter(|leave| operation.asks_for(&leave.id)) {
                    leave.sweep = 0;
                }
            }
            Failure::Refused | Failure::Raced => {
                for to in leaves.into_iter().filter_map(|leave| leave.to) {
                    effects.push(Effect::Left(to, Err(error.clone().into())));
                }
            }
        }
        let (told, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|pending| told.contains(&pending.key));
        self.waiting = rest;
        for mut pending in told {
            // What can't be read may have been written.
            pending.uncertain |= error.is_malformed();
            let to = self.abandon(pending, context);
            effects.push(Effect::Answer(to, Err(ServerError::from(error.clone()).into())));
        }
    }

    /// An operation that was given up has been answered, and put in an entry of ours. Should nobody want that any more, it
    /// is taken out.
    pub(crate) fn applied_late(&mut self, operation: &Operation, state: &State, context: &Context<'_>) {
        let ids: Vec<String> = asked_for(operation, state).map(str::to_owned).collect();
        for id in ids {
            if let Some(leave) = self.leaving.iter_mut().find(|leave| leave.id == id) {
                leave.not_before = leave.not_before.min(context.now);
            } else if !self.knows(&id) {
                let used = operation
                    .requests
                    .as_ref()
                    .map(|requests| (requests.kind, requests.capacity));
                self.leave(id, used, true, false, None, context);
            }
        }
    }

    /// An operation that was given up has failed: that tells more than that nothing was heard.
    pub(crate) fn failed_late(&mut self, error: &StoreError) {
        if self.trouble.as_ref().is_some_and(StoreError::is_unanswered) && error.kind == Failure::Unavailable {
            self.trouble = Some(error.clone());
        }
    }

    /// A write of somebody else, at a time, that names one of our entries.
    pub(crate) fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let waiting = self.waiting.iter().position(|pending| pending.id == id);
        match (signal, waiting) {
            // An event that comes late: that grant is over, and it has got in line again.
            (wake::Signal::Granted { token }, Some(position)) if token <= self.waiting[position].above => {}
            (wake::Signal::Granted { token }, Some(position)) => {
                let deadline = Deadline::of_event(at, context.clock, context.now, context.config);
                self.waiting[position].how = How::Event;
                self.grant(position, token, deadline, check(context), context, effects);
                self.let_reenter(context, effects);
            }
            (wake::Signal::Granted { .. }, None) => {
                let leaves = self
                    .under_way
                    .as_ref()
                    .is_some_and(|leaves| leaves.iter().any(|leave| leave.id == id));
                if !leaves && !self.knows(id) {
                    self.leave(id.to_owned(), None, true, false, None, context);
                }
            }
            (wake::Signal::Evicted { token }, Some(position)) if token <= self.waiting[position].above => {}
            // An answer that is on its way may still say of this entry that it waits, or even holds.
            (wake::Signal::Evicted { .. } | wake::Signal::Adopted, Some(position)) => {
                self.ask_anew(position, false, context);
            }
            // It may have asked again since, and been granted anew: the event is of another hold then.
            (wake::Signal::Evicted { token }, None) => {
                if self.holds.get(id).is_some_and(|hold| hold.token.as_i64() == token) {
                    self.put_out(id, LostReason::Broken, context, effects);
                }
            }
            (wake::Signal::Adopted, None) => self.put_out(id, LostReason::Adopted, context, effects),
        }
    }

    /// A hold was put out by somebody else.
    fn put_out(&mut self, id: &str, reason: LostReason, context: &Context<'_>, effects: &mut Vec<Effect>) {
        let Some(hold) = self.holds.remove(id) else { return };
        // A request that is on its way, or whose outcome is unknown, can put the entry in once more.
        let uncertain = hold.is_uncertain();
        if self.under_way.is_some() || uncertain {
            self.leave(hold.id.clone(), Some(hold.used), false, uncertain, None, context);
        }
        effects.push(Effect::Lost(hold, reason));
    }

    /// Whatever is known of the document may be wrong: the head asks, at once.
    pub(crate) fn doubt(&mut self, context: &Context<'_>) {
        self.overtaken = self.under_way.is_some();
        self.full = None;
        if self.is_queued() {
            self.plan += 1;
            self.ask_at = Some(context.now);
        }
    }

    /// The document was read after every hold in `held` had been granted.
    pub(crate) fn verified(
        &mut self,
        document: Option<&Result<State, Malformed>>,
        held: &[String],
        context: &Context<'_>,
        effects: &mut Vec<Effect>,
    ) {
        let state = document.and_then(|document| document.as_ref().ok());
        for id in held {
            let Some(hold) = self.holds.get(id).cloned() else {
                continue;
            };
            if state.is_some_and(|state| state.holders.iter().any(|holder| hold.is(holder))) {
                continue;
            }
            self.holds.remove(id);
            let reason = match (document, state) {
                (None, _) => LostReason::Deleted,
                (Some(_), Some(state)) => reason_of_absence(state, &hold),
                (Some(_), None) => LostReason::Overwritten,
            };
            effects.push(Effect::Lost(hold, reason));
            if let Some(state) = state {
                self.take_out_strangers(state, context);
            }
        }
    }
}

/// Why a holder is missing in the document.
fn reason_of_absence(state: &State, hold: &Hold) -> LostReason {
    if state.adopted.contains(&hold.token.as_i64()) {
        LostReason::Adopted
    } else if state.was_broken(hold.token.as_i64()) {
        LostReason::Broken
    } else {
        LostReason::Overwritten
    }
}

/// The entries in the document that the operation asked for.
pub(super) fn asked_for<'a>(operation: &'a Operation, state: &'a State) -> impl Iterator<Item = &'a str> {
    let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
    let there = |id: &String| {
        state.holders.iter().any(|holder| holder.id == *id) || state.queue.iter().any(|waiter| waiter.id == *id)
    };
    entries
        .map(|entry| &entry.id)
        .filter(move |id| there(id))
        .map(String::as_str)
}

fn request(pending: &Pending, wait: bool, config: &Config) -> Request {
    Request {
        id: pending.id.clone(),
        permits: pending.permits,
        lease: config.lease_millis(),
        claim: config.claim_millis(),
        wait,
        fresh: !pending.sent,
        owner: pending.owner.clone(),
    }
}

/// When whoever stands at this place asks because a lease before it ends.
fn expiry(end: ServerTime, place: u64, context: &Context<'_>) -> Option<Instant> {
    let stagger = EXPIRY_STAGGER.saturating_mul(u32::try_from(place).unwrap_or(u32::MAX));
    Some(context.clock.after(end)? + CLOCK_RESOLUTION + stagger.min(EXPIRY_STAGGER_MOST))
}

/// How often a place in the queue is confirmed: also the back-stop should an event be lost.
pub(super) fn refresh(config: &Config) -> Duration {
    config.lease / 2
}

/// When a hold on a claim lease is renewed first.
fn check(context: &Context<'_>) -> Instant {
    context.now + CLAIM_CHECK.min(context.config.claim_lease / 4)
}

/// The head asks often, who is far back seldom; and everybody the less often the longer it has waited already, as
/// then the same delay matters less.
pub(super) fn poll_interval(config: &Config, place: usize, waited: Duration) -> Duration {
    let (least, most) = config.poll_interval;
    let places = u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1);
    (waited / 50).max(least).saturating_mul(places).min(most)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

#[cfg(test)]
mod tests;
