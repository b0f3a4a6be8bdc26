//! The specification: the state of one lock and its pure transitions.
//!
//! [`apply`] takes an operation through the phases of [`super`], a function each: leave, adopt, change,
//! evict, enqueue, advance, record, stamp. [`super::pipeline`] has functions of the same names in the same order, to be
//! read beside these, and helpers of the phases by the same names. Only the removal of elements' free locks
//! ([`super::pipeline::sweep`]) has none here: it is no transition of one lock.

mod renewing;
#[cfg(test)]
mod tests;

use super::{
    AT_ONCE, CapacityIs, Change, Ended, Entry, Evict, Expects, Identity, Kind, NOTIFIES_UP_TO, Operation, Request,
    ServerTime, Use,
    wake::{self, Signal},
};

pub use renewing::{guard, renew, renew_and_show};

/// The document of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub kind: Kind,
    pub capacity: i64,
    /// Whether the capacity was set: it then stays while nobody holds the lock. The number of the protocol shows it.
    pub is_set: bool,
    /// The last token issued.
    pub token: i64,
    pub holders: Vec<Entry>,
    /// First come, first served; head first.
    pub queue: Vec<Entry>,
    pub wake: String,
    /// The number of writes.
    pub version: i64,
    /// The time of the last write.
    pub at: ServerTime,
    pub purge_at: ServerTime,
    /// The largest token that an operator evicted by breaking the lock. It outlives `wake`, so that a client that only
    /// reads the document later still learns why it lost the lock.
    pub broken: Option<i64>,
    /// The tokens that the last adoption removed, kept for the same reason.
    pub adopted: Vec<i64>,
    /// The token of the last holder that an operator evicted by itself, kept for the same reason.
    pub evicted: Option<i64>,
    /// The last holds that ended, newest first, as far as clients recorded them.
    pub ends: Vec<Ended>,
}

impl State {
    /// Returns the document of a lock before its first operation.
    fn new((kind, capacity): (Kind, i64), now: ServerTime) -> Self {
        Self {
            kind,
            capacity,
            is_set: false,
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
            ends: Vec::new(),
        }
    }

    /// Returns whether an operator has evicted the holder that had this token and no longer has it.
    pub fn was_broken(&self, token: i64) -> bool {
        self.evicted == Some(token) || self.broken.is_some_and(|broken| token <= broken)
    }

    /// Returns whether the grant of this token was taken from its holder, by an operator or by a later incarnation of its
    /// owner; `None` if that is not known, as a later grant was taken since. Of several holders that were put out one after
    /// the other, only the last is known.
    pub fn was_taken(&self, token: i64) -> Option<bool> {
        let taken = || self.broken.iter().chain(&self.evicted).chain(&self.adopted);
        match taken().max() {
            _ if taken().any(|taken| *taken == token) => Some(true),
            Some(last) if *last > token => None,
            _ => Some(false),
        }
    }

    /// Returns whether nobody holds the lock or waits for it.
    pub fn is_free(&self, now: ServerTime) -> bool {
        self.entries().all(|entry| !entry.is_live(now))
    }

    /// Returns all entries, holders first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.holders.iter().chain(&self.queue)
    }

    /// Returns whether an entry with so many permits that is requested in this way can't be in the lock as it is used
    /// now.
    pub fn refuses(&self, (kind, capacity): Use, by: CapacityIs, permits: i64) -> bool {
        let is_alike = kind == self.kind && (by != CapacityIs::Demanded || capacity == self.capacity);
        !is_alike || permits > self.capacity
    }

    /// Returns whether any of these entries is in the lock.
    pub fn has_any(&self, ids: &[String]) -> bool {
        self.entries().any(|entry| ids.contains(&entry.id))
    }

    fn has_holder(&self, id: &str) -> bool {
        self.holders.iter().any(|holder| holder.id == id)
    }

    /// Returns whether the entry `id` holds the lock, and has not released it.
    fn is_held_by(&self, id: &str, now: ServerTime) -> bool {
        let mut holders = self
            .holders
            .iter()
            .filter(|holder| holder.is_live(now) && !holder.is_kept());
        holders.any(|holder| holder.id == id)
    }

    fn has_waiter(&self, id: &str) -> bool {
        self.queue.iter().any(|waiter| waiter.id == id)
    }

    /// Sets the fields that are new in every write.
    fn stamp(&mut self, wake: String, keep: i64, now: ServerTime) {
        self.wake = wake;
        self.version += 1;
        self.at = now;
        // Never before the latest time that any operation asked for: entries of other clients stay covered.
        if self.purge_at < now.plus_millis(keep) {
            self.purge_at = now.plus_millis(kept_in_reserve(keep));
        }
    }
}

impl Operation {
    /// Returns whether a shareable operation was done, by the document as it was read after its command; `None` if the
    /// document does not show it. Its entries decide, and not what the command replied.
    pub fn is_done_in(&self, state: Option<&State>) -> Option<bool> {
        // Without a document nothing was granted, and there is nothing to release.
        let Some(state) = state else { return Some(false) };
        if self.requests.is_some() {
            return Some(self.entries().any(|entry| state.has_holder(&entry.id)));
        }
        match wake::left(&state.wake, &self.id) {
            Some(_) => Some(true),
            // It has left, by this operation or before, and others have written since.
            None => state.has_any(&self.leave).then_some(false),
        }
    }

    /// Returns whether the document is as expected, and has anything for the operation to do.
    fn concerns(&self, state: &State, now: ServerTime) -> bool {
        let mut holders = state.holders.iter();
        match self.expects {
            Expects::Holding | Expects::OnlyHolder => {
                // The only permit is the only holder's, but where the number was set meanwhile.
                let may_leave = self.expects == Expects::Holding || holders.len() == self.leave.len();
                may_leave && self.leave.iter().all(|id| state.is_held_by(id, now))
            }
            Expects::Alone => {
                let mut requests = self.requests.iter();
                requests.all(|requests| (requests.kind, requests.capacity) == (state.kind, state.capacity))
                    && holders.clone().map(|holder| &holder.id).eq(&self.leave)
                    && holders.all(|holder| holder.is_live(now) && !holder.is_kept())
                    && state.queue.is_empty()
            }
            Expects::Nothing => {
                self.requests.is_some()
                    || state.has_any(&self.leave)
                    || self.change.iter().flat_map(Change::ids).any(|id| state.has_holder(id))
                    || holders.any(|holder| self.evicts(holder, now))
            }
        }
    }

    /// Returns whether the operation evicts the holder. An operator evicts nobody whose time is over.
    fn evicts(&self, holder: &Entry, now: ServerTime) -> bool {
        self.evict.includes(holder) && (holder.is_live(now) || !self.breaks())
    }
}

/// Runs one operation on the lock's document (`None`: there is none) and returns the document afterwards.
///
/// A document that the operation does not concern stays as it is. A no-op returns the state as it was, `wake` included:
/// no write, no event.
pub fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
    match (before, &operation.requests) {
        (Some(before), _) if operation.concerns(before, now) => Some(step(before, operation, now)),
        (Some(before), _) => Some(before.clone()),
        (None, Some(requests)) if operation.creates() => {
            let created = State::new((requests.kind, requests.capacity), now);
            Some(step(&created, operation, now))
        }
        (None, _) => None,
    }
}

fn step(before: &State, operation: &Operation, now: ServerTime) -> State {
    let mut step = Step {
        operation,
        now,
        before,
        state: before.clone(),
        adopts_a_hold: false,
        room: usize::MAX,
        words: wake::Announcement::default(),
    };
    step.leave();
    step.adopt();
    step.change();
    step.evict();
    if !step.is_used_as_requested() {
        return before.clone();
    }
    step.enqueue();
    step.advance();
    if operation.may_be_no_op() && !step.is_changed() {
        return before.clone();
    }
    step.record();
    step.stamp()
}

/// A step on its way through the phases.
struct Step<'a> {
    operation: &'a Operation,
    now: ServerTime,
    /// The document before the step.
    before: &'a State,
    /// The document as the phases so far have left it.
    state: State,
    /// Whether a holder was among the entries that adopt removed.
    adopts_a_hold: bool,
    /// The number of waiters to which advance cuts the queue.
    room: usize,
    words: wake::Announcement,
}

impl Step<'_> {
    /// Removes the entries that are asked to leave, and all whose lease has run out. The holders whose lock is to be
    /// kept stay, marked as released unless they are to stay until their lease is over.
    fn leave(&mut self) {
        let (operation, before, now) = (self.operation, self.before, self.now);
        let held = |holder: &&Entry| holder.is_live(now) && !operation.spares(holder);
        for id in &operation.leave {
            let mut held = before.holders.iter().filter(held);
            self.words.left(if held.any(|holder| holder.id == *id) {
                wake::Left::Holder
            } else if before.has_waiter(id) {
                wake::Left::Waiter
            } else {
                wake::Left::Nowhere
            });
        }
        self.mark_kept();
        let leaves = |id: &String| operation.leave.contains(id);
        let stays = |holder: &Entry| holder.is_kept() || operation.spares(holder) || !leaves(&holder.id);
        let holders = &mut self.state.holders;
        holders.retain(|holder| holder.is_live(now) && stays(holder));
        self.state
            .queue
            .retain(|waiter| waiter.is_live(now) && !leaves(&waiter.id));
    }

    /// Marks the holders that leave and whose lock is to be kept as released, if that is to end later than now.
    fn mark_kept(&mut self) {
        let (operation, now) = (self.operation, self.now);
        for holder in &mut self.state.holders {
            let leaves = holder.is_live(now) && !holder.is_kept() && operation.leave.contains(&holder.id);
            if let Some(until) = operation.kept_until(holder, now).filter(|_| leaves) {
                (holder.until, holder.released) = (until, Some(now));
            }
        }
    }

    /// Removes the entries of earlier incarnations of the owner that requests.
    fn adopt(&mut self) {
        let Some(identity) = self.operation.adopts() else {
            return;
        };
        let superseded = superseded(self.before, identity, self.now);
        let ids: Vec<&String> = superseded.iter().map(|entry| &entry.id).collect();
        ids.iter().for_each(|id| self.words.announce(id, Signal::Adopted));
        self.state.holders.retain(|holder| !ids.contains(&&holder.id));
        self.state.queue.retain(|waiter| !ids.contains(&&waiter.id));
        // A waiter has none.
        let tokens = superseded.iter().map(|entry| entry.token);
        let tokens: Vec<i64> = tokens.filter(|token| *token > 0).collect();
        if !tokens.is_empty() {
            self.adopts_a_hold = true;
            self.state.adopted = tokens;
        }
    }

    /// Renews a holder with fewer permits, a longer lease, or under another entry.
    fn change(&mut self) {
        let Some(change) = &self.operation.change else { return };
        if let Some(holder) = self.state.holders.iter_mut().find(|holder| change.is_for(holder)) {
            holder.id.clone_from(&change.becomes);
            holder.permits = holder.permits.min(change.permits);
            holder.lease = holder.lease.max(change.lease);
            holder.until = holder.until.max(self.now.plus_millis(holder.lease));
            if let Some(owner) = &change.owner {
                holder.owner.clone_from(owner);
            }
            if let Some((value, number)) = &change.value
                && holder.owner.proclaimed < *number
            {
                (holder.owner.value, holder.owner.proclaimed) = (Some(value.clone()), *number);
            }
        }
    }

    /// Removes the holders that are evicted. Those whose time is over were removed before, and lose nothing.
    fn evict(&mut self) {
        let evict = self.operation.evict;
        if let Evict::Kept(last) = evict
            && self
                .state
                .holders
                .iter()
                .any(|holder| !holder.is_kept() && holder.token <= last)
        {
            return;
        }
        let (operation, before, now) = (self.operation, self.before, self.now);
        let evicted = || before.holders.iter().filter(|holder| operation.evicts(holder, now));
        evicted()
            .filter(|_| operation.breaks())
            .for_each(|Entry { id, token, .. }| self.words.announce(id, Signal::Evicted { token: *token }));
        self.state.holders.retain(|holder| !evict.includes(holder));
        match evict {
            Evict::Nobody | Evict::Kept(_) => {}
            Evict::Everybody => self.state.broken = evicted().map(|holder| holder.token).max(),
            // `broken` would cover the smaller tokens of other holders, which stay.
            Evict::Holder(token) => self.state.evicted = Some(token),
        }
    }

    /// Returns whether the requested entries can be in the lock: it is of their kind and capacity, or can become so.
    fn is_used_as_requested(&self) -> bool {
        let mut requests = self.operation.requests.iter();
        self.is_open() || requests.all(|it| !self.state.refuses((it.kind, it.capacity), it.by, 0))
    }

    /// Returns whether the next request decides what the lock is: nobody is in it, and its capacity was not set.
    fn is_open(&self) -> bool {
        self.state.holders.is_empty() && self.state.queue.is_empty() && !self.state.is_set
    }

    /// Appends the requested entries to the queue, unless they are in the document already, or have more permits than
    /// the lock. If adopt removed a holder, they take its place: the head of the queue, whether or not there is room. So
    /// nobody is cut off who was there before. An entry that upgrades a holder goes before all of them.
    fn enqueue(&mut self) {
        let Some(requests) = &self.operation.requests else {
            return;
        };
        if self.is_open() || requests.by == CapacityIs::Set {
            (self.state.kind, self.state.capacity) = (requests.kind, requests.capacity);
        }
        if requests.by == CapacityIs::Set {
            self.state.is_set = true;
            self.refuse_too_large();
        }
        let others = self.state.queue.len();
        let (fresh, repeated): (Vec<_>, Vec<_>) = requests.entries.iter().partition(|entry| entry.fresh);
        for entry in repeated.into_iter().chain(fresh) {
            self.append(entry);
        }
        let upgrades = |waiter: &&Entry| {
            let mut entries = self.operation.entries();
            entries.any(|entry| entry.wait && entry.upgrades.is_some() && entry.id == waiter.id)
        };
        let mut stay = others + self.state.queue[others..].iter().filter(upgrades).count();
        if self.adopts_a_hold {
            self.state.queue.rotate_left(others);
            stay = self.state.queue.len();
        }
        self.put_upgrades_first();
        self.room = self.operation.room.max(stay);
    }

    /// Moves the entries that upgrade a holder to the head of the queue: everybody else there waits for that holder, or
    /// may not be let in beside the writer that it becomes. One that does not wait, and does not fit, stays behind them:
    /// they may fit without it.
    fn put_upgrades_first(&mut self) {
        let state = &mut self.state;
        let held: i64 = state.holders.iter().map(|holder| holder.permits).sum();
        let goes_first = |waiter: &Entry| {
            self.operation.entries().any(|entry| {
                let mut holders = state.holders.iter();
                entry.id == waiter.id
                    && holders.any(|holder| Some(&holder.id) == entry.upgrades.as_ref())
                    && (entry.wait || held + waiter.permits <= state.capacity)
            })
        };
        let (mut queue, others): (Vec<_>, Vec<_>) = state.queue.drain(..).partition(goes_first);
        queue.extend(others);
        state.queue = queue;
    }

    /// Removes the waiters for more permits than the lock has: they would keep out all behind them. They are to ask,
    /// and are refused then.
    fn refuse_too_large(&mut self) {
        let most = self.state.capacity;
        let too_large = self.state.queue.iter().filter(|waiter| waiter.permits > most);
        too_large.for_each(|waiter| self.words.announce(&waiter.id, Signal::Ask));
        self.state.queue.retain(|waiter| waiter.permits <= most);
    }

    /// Appends one entry to the queue. An entry that is there keeps its place; a repeated request refreshes its lease.
    fn append(&mut self, entry: &Request) {
        if self.state.has_holder(&entry.id) {
            return;
        }
        let until = self.now.plus_millis(entry.lease);
        if let Some(waiter) = self.state.queue.iter_mut().find(|waiter| waiter.id == entry.id) {
            if !entry.fresh && waiter.until < self.now.plus_millis(entry.refresh_below()) {
                waiter.until = until;
            }
            return;
        }
        let is_stranded = |reader: &String| !self.state.has_holder(reader);
        if entry.permits > self.state.capacity || entry.upgrades.as_ref().is_some_and(is_stranded) {
            return;
        }
        self.state.queue.push(Entry {
            id: entry.id.clone(),
            permits: entry.permits,
            lease: entry.lease,
            claim: entry.claim,
            since: self.now,
            until,
            owner: entry.owner.clone(),
            token: 0,
            released: None,
            shown: None,
        });
    }

    /// Grants the lock to the head of the queue as long as it fits the free capacity. Then cuts the queue to its room,
    /// and removes the requests that are not to wait.
    fn advance(&mut self) {
        let operation = self.operation;
        let mut held: i64 = self.state.holders.iter().map(|holder| holder.permits).sum();
        let mut reserved: i64 = 0;
        let mut woken = Vec::new();
        while let Some(head) = self.state.queue.first()
            && held + head.permits <= self.state.capacity
        {
            held += head.permits;
            let head = self.state.queue.remove(0);
            reserved = reserved.saturating_add(operation.reserve_for(&head.id));
            woken.extend(self.grant(head));
        }
        // The tokens in between are that holder's, for more tasks of its process.
        self.state.token = self.state.token.saturating_add(reserved);
        let is_a_try = |id: &String| operation.entries().any(|entry| !entry.wait && entry.id == *id);
        let others_wait = self.state.queue.iter().any(|waiter| !is_a_try(&waiter.id));
        for (id, token) in woken {
            self.words.granted(&id, token, others_wait);
        }
        self.state.queue.truncate(self.room);
        self.state.queue.retain(|waiter| !is_a_try(&waiter.id));
    }

    /// Makes the waiter a holder with the next token. Returns the entry and its token, unless it asks.
    fn grant(&mut self, waiter: Entry) -> Option<(String, i64)> {
        let token = next_token(self.state.token, self.now);
        self.state.token = token;
        // A client that asks is alive and gets its full lease; one that is woken must first show that it is.
        let asking = self.operation.asks_for(&waiter.id);
        let lease = if asking { waiter.lease } else { waiter.claim };
        let woken = (!asking).then(|| (waiter.id.clone(), token));
        self.state.holders.push(Entry {
            since: self.now,
            until: self.now.plus_millis(lease),
            token,
            ..waiter
        });
        woken
    }

    /// Returns whether any entry has changed, or the document is new. An operation that may be a no-op must not write
    /// otherwise.
    fn is_changed(&self) -> bool {
        let is_new = self.before.version == 0;
        is_new || self.state.holders != self.before.holders || self.state.queue != self.before.queue
    }

    /// Records the holds that ended, if the client keeps a history.
    fn record(&mut self) {
        let (operation, now) = (self.operation, self.now);
        if operation.history == 0 {
            return;
        }
        let stays = |token| self.state.holders.iter().any(|holder| holder.token == token);
        let gone = self.before.holders.iter().filter(|holder| !stays(holder.token));
        let mut ends: Vec<Ended> = gone.map(|holder| operation.end_of(holder, now)).collect();
        if ends.is_empty() {
            return;
        }
        ends.extend(self.before.ends.iter().cloned());
        ends.truncate(operation.history);
        self.state.ends = ends;
    }

    /// Sets `wake`, the version and the times.
    fn stamp(mut self) -> State {
        if let Some(head) = self.asks() {
            self.words.announce(&head, Signal::Ask);
        }
        for id in self.asked_for() {
            self.words.announce(&id, Signal::AskedFor);
        }
        let wake = self.words.into_wake(&self.operation.id);
        self.state.stamp(wake, self.operation.keep, self.now);
        self.state
    }

    /// Returns the waiter that is to ask, if a lock is kept: that can end sooner than its waiters know, and no event
    /// reports that end.
    fn asks(&self) -> Option<String> {
        let head = self.state.queue.first().filter(|_| !self.operation.kept.is_empty());
        head.map(|head| head.id.clone())
    }

    /// Returns the holders that are to hear that another session has lined up behind them, or that the capacity was set.
    /// Those that were granted by this write hear of the queue by its answer, or by the words of their grants.
    fn asked_for(&self) -> Vec<String> {
        let (state, sets) = (&self.state, self.operation.sets());
        let asks_as = self.operation.asks_as();
        let lines_up = asks_as.is_some() && (1..=NOTIFIES_UP_TO).contains(&state.queue.len());
        if !(lines_up || sets) || state.holders.len() > AT_ONCE {
            return Vec::new();
        }
        let is_theirs = |id: &str| asks_as.is_some_and(|asks_as| id.starts_with(asks_as));
        let held_before = state.holders.iter().filter(|holder| holder.token <= self.before.token);
        let asked_for = held_before.filter(|holder| !is_theirs(&holder.id));
        asked_for.map(|holder| holder.id.clone()).collect()
    }
}

/// Returns the entries of earlier incarnations, holders first. A kept lock has done its work, and is kept for the owner's
/// later incarnations too.
fn superseded<'a>(before: &'a State, identity: &Identity, now: ServerTime) -> Vec<&'a Entry> {
    let is_superseded = |entry: &&Entry| entry.is_live(now) && !entry.is_kept() && identity.supersedes(&entry.owner);
    before.entries().filter(is_superseded).collect()
}

/// Returns the token of a grant at `now`, where `last` is the document's counter.
///
/// It is above the counter, and not below the server's clock in microseconds. The counter of a document can be older
/// than tokens that were issued for its name: the document was deleted, or somebody wrote an earlier copy of it back.
/// The clock is not, as long as fewer than a thousand tokens are issued in a millisecond and none is issued over such a
/// copy in the same millisecond. It stays below 2^53 until the year 2255.
fn next_token(last: i64, now: ServerTime) -> i64 {
    last.saturating_add(1).max(clock_token(now))
}

/// Returns for how long a document is kept that must be kept for at least this time.
///
/// An eighth is added when its `purge_at` is set, which then stays the same until the addition is used up. So most writes
/// leave the TTL index alone, which otherwise costs the server a removal and an insertion for each.
pub(crate) fn kept_in_reserve(keep: i64) -> i64 {
    keep.saturating_add(keep / 8)
}

/// Returns the smallest token that is issued at `now`.
pub fn clock_token(now: ServerTime) -> i64 {
    now.0.saturating_mul(1000)
}

/// Returns whether a token was issued later than this, by the server's clock, from which every token starts.
///
/// Where the counter was ahead of the clock, it can be `true` for a time that was later.
pub fn is_issued_after(token: i64, at: ServerTime) -> bool {
    clock_token(at.plus_millis(1)) <= token
}
