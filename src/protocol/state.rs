//! The specification: the state of one lock and its pure transitions.

use std::{fmt, time::Duration};

use super::wake;

/// A reading of the server's clock, in milliseconds since the Unix epoch (the resolution of a BSON date).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerTime(pub(crate) i64);

impl ServerTime {
    pub(crate) fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    /// How far `self` lies ahead of `earlier`; zero when it does not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// What a name is used as. One name is one kind with one capacity as long as anybody holds it or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// Up to a number of permits at a time.
    Semaphore,
    /// Many readers or one writer at a time.
    RwLock,
    /// One leader at a time.
    Election,
    /// A document of the user's own, with one holder at a time.
    Document,
}

impl Kind {
    /// The name of the kind in the lock's document: `mutex`, `semaphore`, `rwlock`, `election` or `document`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Semaphore => "semaphore",
            Self::RwLock => "rwlock",
            Self::Election => "election",
            Self::Document => "document",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [
            Self::Mutex,
            Self::Semaphore,
            Self::RwLock,
            Self::Election,
            Self::Document,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a name is used as: the kind, and its capacity.
pub(crate) type Use = (Kind, i64);

/// Who an entry belongs to, for people to read: nothing is decided by it but by its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) host: String,
    pub(crate) pid: i64,
    pub(crate) label: Option<String>,
    pub(crate) reason: Option<String>,
    /// What a leader proclaims.
    pub(crate) value: Option<String>,
    /// The number of that value among those that this entry has proclaimed; zero for the one that it came with.
    pub(crate) proclaimed: i64,
    pub(crate) identity: Option<Identity>,
}

/// Who an owner is over its restarts, and which of its incarnations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) id: String,
    /// The server's clock when this incarnation began, in microseconds: of two, the one with the larger is the younger.
    pub(crate) born: i64,
}

impl Identity {
    /// Whether the entry is that of an earlier incarnation.
    ///
    /// Never the other way round, and never its own: so a request of a dead incarnation that is applied late takes
    /// nothing from the living one, and of two that live at once only the younger takes.
    fn supersedes(&self, owner: &Owner) -> bool {
        let other = owner.identity.as_ref();
        other.is_some_and(|other| other.id == self.id && other.born < self.born)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) permits: i64,
    /// What a renewal adds to the server's now, in milliseconds.
    pub(crate) lease: i64,
    pub(crate) claim: i64,
    pub(crate) since: ServerTime,
    pub(crate) until: ServerTime,
    pub(crate) owner: Owner,
    pub(crate) token: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) id: String,
    pub(crate) permits: i64,
    /// The lease of the entry itself, and of the hold it becomes, in milliseconds.
    pub(crate) lease: i64,
    /// The first, short lease after a hand-over: what a waiter that died unnoticed costs, in milliseconds.
    pub(crate) claim: i64,
    pub(crate) since: ServerTime,
    pub(crate) until: ServerTime,
    pub(crate) owner: Owner,
}

/// The document of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) token: i64,
    pub(crate) holders: Vec<Holder>,
    pub(crate) queue: Vec<Waiter>,
    pub(crate) wake: String,
    /// Counts the writes.
    pub(crate) version: i64,
    /// When it was written last.
    pub(crate) at: ServerTime,
    pub(crate) purge_at: ServerTime,
    /// The largest token that was put out by an operator: it outlives `wake`, so that whoever only reads the document
    /// later can still tell why it lost the lock.
    pub(crate) broken: Option<i64>,
    /// The tokens that were put out by the last adoption, likewise.
    pub(crate) adopted: Vec<i64>,
    /// The token of the last holder that an operator put out by itself, likewise.
    pub(crate) evicted: Option<i64>,
}

impl State {
    /// Whether this is an earlier state of the document than `other`. A document created anew counts from one again.
    pub(crate) fn is_before(&self, other: &Self) -> bool {
        self.version < other.version && self.at <= other.at
    }

    /// Whether an operator has put out the holder that had this token and has it no more.
    pub(crate) fn was_broken(&self, token: i64) -> bool {
        self.evicted == Some(token) || self.broken.is_some_and(|broken| token <= broken)
    }

    /// Whether nobody holds it or waits for it.
    pub(crate) fn is_free(&self, now: ServerTime) -> bool {
        let holders = self.holders.iter().map(|holder| holder.until);
        let waiters = self.queue.iter().map(|waiter| waiter.until);
        holders.chain(waiters).all(|until| until <= now)
    }

    fn stamp(&mut self, keep: i64, now: ServerTime) {
        self.version += 1;
        self.at = now;
        // The longest that anybody asked for: entries of others stay covered.
        self.purge_at = self.purge_at.max(now.plus_millis(keep));
    }
}

/// One atomic step on one lock: entries leave, entries are requested, and the queue advances.
///
/// Leaving and requesting in one step is what lets a process hand a lock from one of its tasks to the next with a
/// single command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// New for every operation; the first word of `wake`.
    pub(crate) id: String,
    /// Entries that go, whether they hold or wait. Unknown ones are passed over.
    pub(crate) leave: Vec<String>,
    /// The capacity of the lock that all of these entries are in, where it is known.
    ///
    /// As long as one of them is there it is the document's: a capacity changes only while a lock is idle.
    pub(crate) leave_capacity: Option<i64>,
    /// Who is put out and told so.
    pub(crate) evict: Evict,
    pub(crate) proclaim: Option<Proclaim>,
    pub(crate) requests: Option<Requests>,
    /// What the operation may take for granted; where it is wrong, nothing is done.
    pub(crate) expects: Expects,
    /// The number of entries that the queue has room for. Those that come last are not in it where there are more.
    pub(crate) room: usize,
    /// How long the document is kept after this write at least, in milliseconds. Longer than the lease of every entry
    /// that is written by it.
    pub(crate) keep: i64,
}

/// The holders that an operator puts out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    Nobody,
    Everybody,
    /// The one with this token.
    Holder(i64),
}

impl Evict {
    fn puts_out(self, holder: &Holder) -> bool {
        match self {
            Self::Nobody => false,
            Self::Everybody => true,
            Self::Holder(token) => holder.token == token,
        }
    }
}

/// A holder gets another value, unless it has proclaimed a later one: a command that was sent again may come late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proclaim {
    pub(crate) id: String,
    pub(crate) value: String,
    /// Of two values of one entry the one with the larger number is the later.
    pub(crate) number: i64,
}

/// The most entries that stand in the queue of one lock; see [`Operation::room`].
///
/// Every write of a document rewrites its queue and every answer brings it, about 300 bytes for an entry. More than so
/// many would make each hand-over slower, and in the end the document too large for the server.
pub(crate) const QUEUE_MOST: usize = 256;

/// The most entries that one operation asks for: the head of a line, and those behind it that fit the capacity with it.
pub(crate) const ASK_TOGETHER: usize = 64;

/// What is expected of the document. The less an operation has to be prepared for, the less it costs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expects {
    Nothing,
    /// The one entry that leaves is a holder.
    Holding,
    /// The lock is of one permit, and nobody is there but for the one entry that leaves as the holder, or comes.
    Alone,
    /// There is a document, and room in its queue.
    Room,
}

/// Entries, one at least, wanted in a lock that is used as `kind` with `capacity`.
///
/// They go together with entries that leave only where these are of the same use: where the lock turns out to be used
/// otherwise nothing is changed at all, and none of those can be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) kind: Kind,
    pub(crate) capacity: i64,
    pub(crate) entries: Vec<Request>,
    /// Entries of earlier incarnations of this owner are put out; where one of them held, what is asked for comes first
    /// in the queue. Not together with an expectation.
    pub(crate) adopts: Option<Identity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) permits: i64,
    pub(crate) lease: i64,
    pub(crate) claim: i64,
    /// Whether to stay in the queue when the request can't be granted at once.
    pub(crate) wait: bool,
    /// It was never sent before. If it is there all the same, this is a first request that was overtaken by its own
    /// repetition, and it adds nothing.
    pub(crate) fresh: bool,
    pub(crate) owner: Owner,
}

impl Request {
    /// A queued entry that has less than this left is refreshed when it is asked for again. Above it a repeated
    /// request changes nothing, so that polling costs the server no writes.
    pub(crate) fn refresh_below(&self) -> i64 {
        self.lease - self.lease / 10
    }
}

impl Operation {
    /// The entries that this operation asks for: they learn of a grant from the answer, so it is not announced to them.
    pub(crate) fn asks_for(&self, id: &str) -> bool {
        self.requests
            .iter()
            .flat_map(|r| &r.entries)
            .any(|entry| entry.id == id)
    }

    /// Whether the operation may create the document of a lock that has none.
    pub(crate) fn creates(&self) -> bool {
        self.requests.is_some() && self.expects == Expects::Nothing
    }

    /// The capacity that the document has when the operation applies, where it is known.
    pub(crate) fn capacity(&self) -> Option<i64> {
        self.requests
            .as_ref()
            .map(|requests| requests.capacity)
            .or(self.leave_capacity)
    }

    /// Whether it can come to nothing, and then is to write nothing: a try, or a question asked again.
    pub(crate) fn may_change_nothing(&self) -> bool {
        let entries = self.requests.iter().flat_map(|requests| &requests.entries);
        self.leave.is_empty() && entries.into_iter().any(|entry| !entry.wait || !entry.fresh)
    }

    /// Whether the document is selected by the operation's filter.
    pub(crate) fn selects(&self, state: &State) -> bool {
        matches!(self.expects, Expects::Holding | Expects::Alone) || self.concerns(state)
    }

    /// Whether it has anything to do with a document.
    fn concerns(&self, state: &State) -> bool {
        let holds = |id: &String| state.holders.iter().any(|holder| holder.id == *id);
        match self.expects {
            Expects::Nothing => {}
            Expects::Holding => return self.leave.iter().all(holds),
            Expects::Room => return state.queue.len() < self.room,
            Expects::Alone => {
                let fits = |wanted: &Requests| (wanted.kind, wanted.capacity) == (state.kind, state.capacity);
                let used = self.requests.as_ref().is_none_or(fits);
                let leaves = state.holders.iter().map(|holder| &holder.id).eq(&self.leave);
                return used && leaves && state.queue.is_empty();
            }
        }
        let waits = |id: &String| state.queue.iter().any(|waiter| waiter.id == *id);
        self.creates()
            || self.leave.iter().any(|id| holds(id) || waits(id))
            || self.proclaim.as_ref().is_some_and(|proclaim| holds(&proclaim.id))
            || state.holders.iter().any(|holder| self.evict.puts_out(holder))
    }
}

/// The token that a grant at `now` gets, where `last` is the document's counter.
///
/// It is above the counter, and not below the server's clock in microseconds. The counter of a document can be older than
/// tokens that were issued for its name: the document was deleted, or somebody wrote an earlier copy of it back. The
/// clock is not, as long as fewer than a thousand tokens are issued in a millisecond and none is issued over such a copy in
/// the same millisecond. It stays below 2^53 until the year
/// 2255.
pub(crate) fn next_token(last: i64, now: ServerTime) -> i64 {
    last.saturating_add(1).max(clock_token(now))
}

/// The least token that is issued at `now`.
pub(crate) fn clock_token(now: ServerTime) -> i64 {
    now.0.saturating_mul(1000)
}

/// Runs one operation on the lock's document (`None`: there is none) and returns the document afterwards.
///
/// A document that the operation does not concern stays as it is. A step that changes nothing returns the state as it
/// was, `wake` included: no write, no event.
pub(crate) fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
    match (before, &operation.requests) {
        (Some(original), _) if !operation.concerns(original) => Some(original.clone()),
        (Some(original), _) => Some(step(original, operation, now)),
        (None, _) if !operation.creates() => None,
        (None, None) => None,
        (None, Some(requests)) => {
            let fresh = State {
                kind: requests.kind,
                capacity: requests.capacity,
                // None was issued yet.
                token: 0,
                holders: Vec::new(),
                queue: Vec::new(),
                wake: String::new(),
                version: 0,
                at: now,
                purge_at: now,
                broken: None,
                adopted: Vec::new(),
                evicted: None,
            };
            Some(step(&fresh, operation, now))
        }
    }
}

fn step(original: &State, operation: &Operation, now: ServerTime) -> State {
    let mut state = original.clone();
    let mut announce = wake::Announcement::default();

    for id in &operation.leave {
        announce.left(if original.holders.iter().any(|holder| holder.id == *id) {
            wake::Left::Holder
        } else if original.queue.iter().any(|waiter| waiter.id == *id) {
            wake::Left::Waiter
        } else {
            wake::Left::Nowhere
        });
    }
    let adopts = operation
        .requests
        .as_ref()
        .and_then(|requests| requests.adopts.as_ref());
    let superseded = |owner: &Owner| adopts.is_some_and(|identity| identity.supersedes(owner));
    let mut adopted = Vec::new();
    for holder in &original.holders {
        if holder.until > now && superseded(&holder.owner) {
            adopted.push(holder.token);
            announce.adopted(&holder.id);
        }
    }
    for waiter in &original.queue {
        if waiter.until > now && superseded(&waiter.owner) {
            announce.adopted(&waiter.id);
        }
    }
    state
        .holders
        .retain(|holder| holder.until > now && !operation.leave.contains(&holder.id) && !superseded(&holder.owner));
    state
        .queue
        .retain(|waiter| waiter.until > now && !operation.leave.contains(&waiter.id) && !superseded(&waiter.owner));
    if let Some(Proclaim { id, value, number }) = &operation.proclaim
        && let Some(holder) = state.holders.iter_mut().find(|holder| holder.id == *id)
        && holder.owner.proclaimed < *number
    {
        (holder.owner.value, holder.owner.proclaimed) = (Some(value.clone()), *number);
    }
    state.holders.retain(|holder| !operation.evict.puts_out(holder));
    for holder in original
        .holders
        .iter()
        .filter(|holder| operation.evict.puts_out(holder))
    {
        announce.evicted(&holder.id, holder.token);
    }
    match operation.evict {
        Evict::Nobody => {}
        Evict::Everybody => state.broken = original.holders.iter().map(|holder| holder.token).max(),
        // Not the largest one broken: others have smaller tokens, and go on.
        Evict::Holder(token) => state.evicted = Some(token),
    }

    if let Some(requests) = &operation.requests {
        let idle = state.holders.is_empty() && state.queue.is_empty();
        if !idle && (state.kind, state.capacity) != (requests.kind, requests.capacity) {
            return original.clone();
        }
        state.kind = requests.kind;
        state.capacity = requests.capacity;
        let others = state.queue.len();
        for known in [true, false] {
            for entry in requests.entries.iter().filter(|entry| entry.fresh != known) {
                enqueue(&mut state, entry, now);
            }
        }
        if !adopted.is_empty() {
            // Who comes takes the place of who held.
            state.queue.rotate_left(others);
            state.adopted = adopted;
        }
    }
    advance(&mut state, operation, now, &mut announce);
    state.queue.truncate(operation.room);
    if let Some(requests) = &operation.requests {
        state.queue.retain(|waiter| {
            !requests
                .entries
                .iter()
                .any(|entry| !entry.wait && entry.id == waiter.id)
        });
    }

    if operation.may_change_nothing() && state.holders == original.holders && state.queue == original.queue {
        return original.clone();
    }
    state.wake = announce.into_wake(&operation.id);
    state.stamp(operation.keep, now);
    state
}

fn enqueue(state: &mut State, entry: &Request, now: ServerTime) {
    if state.holders.iter().any(|holder| holder.id == entry.id) {
        return;
    }
    if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.id == entry.id) {
        if !entry.fresh && waiter.until < now.plus_millis(entry.refresh_below()) {
            waiter.until = now.plus_millis(entry.lease);
        }
        return;
    }
    state.queue.push(Waiter {
        id: entry.id.clone(),
        permits: entry.permits,
        lease: entry.lease,
        claim: entry.claim,
        since: now,
        until: now.plus_millis(entry.lease),
        owner: entry.owner.clone(),
    });
}

fn advance(state: &mut State, operation: &Operation, now: ServerTime, announce: &mut wake::Announcement) {
    let mut held: i64 = state.holders.iter().map(|holder| holder.permits).sum();
    while let Some(head) = state.queue.first() {
        if held + head.permits > state.capacity {
            return;
        }
        let head = state.queue.remove(0);
        held += head.permits;
        state.token = next_token(state.token, now);
        // Who asks is alive and gets its full lease; who is woken must first show that it is.
        let asking = operation.asks_for(&head.id);
        let until = now.plus_millis(if asking { head.lease } else { head.claim });
        if !asking {
            announce.granted(&head.id, state.token);
        }
        state.holders.push(Holder {
            id: head.id,
            permits: head.permits,
            lease: head.lease,
            claim: head.claim,
            since: now,
            until,
            owner: head.owner,
            token: state.token,
        });
    }
}

/// Renews the holders named in `ids` that still hold, and says whether that changed anything.
///
/// The document stays as it is where none of them holds: a renewal neither revives nor re-creates.
pub(crate) fn renew(state: &mut State, operation: &str, ids: &[String], keep: i64, now: ServerTime) -> bool {
    let mut renewed = false;
    for holder in &mut state.holders {
        if holder.until > now && ids.contains(&holder.id) {
            // Renewals overtake each other, and none is to take away what another gave.
            let until = holder.until.max(now.plus_millis(holder.lease));
            renewed |= holder.until != until;
            holder.until = until;
        }
    }
    if renewed {
        state.wake = wake::Announcement::default().into_wake(operation);
        state.stamp(keep, now);
    }
    renewed
}

/// Renews the holder `id` if it holds under this token, and says whether it does; with a write in any case then.
///
/// It is a step of a transaction of the user's, which memory has none of: here to be compared with the pipeline.
#[cfg(test)]
pub(crate) fn guard(state: &mut State, operation: &str, (id, token): (&str, i64), keep: i64, now: ServerTime) -> bool {
    let holds = |holder: &&mut Holder| holder.id == id && holder.token == token && holder.until > now;
    let Some(holder) = state.holders.iter_mut().find(holds) else {
        return false;
    };
    holder.until = holder.until.max(now.plus_millis(holder.lease));
    state.wake = wake::Announcement::default().into_wake(operation);
    state.stamp(keep, now);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that was frozen runs what is still in its sockets, in any order.
    #[test]
    fn a_first_request_that_its_own_repetition_overtook_adds_nothing() {
        let first = request("a-1");
        let repeated = Request {
            fresh: false,
            ..first.clone()
        };
        for holder in [None, Some(request("b-1"))] {
            let before = holder.and_then(|holder| apply(None, &asking("b.1", holder), ServerTime(0)));
            let there = apply(before.as_ref(), &asking("a.2", repeated.clone()), ServerTime(1)).expect("it is created");
            let after = apply(Some(&there), &asking("a.1", first.clone()), ServerTime(2)).expect("it stays");
            assert_eq!((after.holders, after.queue), (there.holders, there.queue));
        }
    }

    #[test]
    fn a_value_that_comes_late_does_not_replace_a_later_one() {
        let mut state = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
        for (number, value, stands) in [
            (2, "two", "two"),
            (1, "one", "two"),
            (2, "again", "two"),
            (3, "three", "three"),
        ] {
            let proclaim = Proclaim {
                id: "a-1".to_owned(),
                value: value.to_owned(),
                number,
            };
            let operation = Operation {
                proclaim: Some(proclaim),
                requests: None,
                ..asking("a.2", request("a-1"))
            };
            state = apply(Some(&state), &operation, ServerTime(1)).expect("it stays");
            assert_eq!(state.holders[0].owner.value.as_deref(), Some(stands));
        }
    }

    /// Unanswered renewals are sent again beside, so an old one can come after a new one.
    #[test]
    fn a_renewal_never_shortens() {
        let mut state = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
        let ids = ["a-1".to_owned()];
        assert!(renew(&mut state, "a.2", &ids, 1_000, ServerTime(50)));
        assert!(!renew(&mut state, "a.3", &ids, 1_000, ServerTime(20)));
        assert_eq!(state.holders[0].until, ServerTime(150));
    }

    fn request(id: &str) -> Request {
        Request {
            id: id.to_owned(),
            permits: 1,
            lease: 100,
            claim: 10,
            wait: true,
            fresh: true,
            owner: Owner::default(),
        }
    }

    fn asking(id: &str, request: Request) -> Operation {
        Operation {
            id: id.to_owned(),
            leave: Vec::new(),
            leave_capacity: None,
            evict: Evict::Nobody,
            proclaim: None,
            requests: Some(Requests {
                kind: Kind::Mutex,
                capacity: 1,
                entries: vec![request],
                adopts: None,
            }),
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep: 1_000,
        }
    }
}
