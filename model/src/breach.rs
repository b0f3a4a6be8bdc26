//! The properties that must hold of each write.

use super::client::Line;
use crate::protocol::{CapacityIs, Entry, Evict, Expects, KeptUntil, Operation, ServerTime, State, wake};

/// The breaches that a write must never commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// More permits are held than there are; or their number has changed, and nobody set it, although it was set or
    /// somebody was in the lock.
    Capacity,
    /// A token that is not above all that were issued before.
    Token,
    /// A client was let in before a client that came earlier.
    Overtaken,
    /// An entry is there twice.
    Twice,
    /// An entry that had run out got more time.
    Revived,
    /// An entry that was to leave is still there.
    Stayed,
    /// The queue is longer than it may be.
    Crowded,
    /// A lock that is or should be kept taken is free, or is kept for another time, and no operator broke it. Or a hold
    /// was taken out whose time was over at its client, and not at the server.
    Opened,
}

/// The situation before a write, and the bounds of the write.
pub(super) struct Before<'a> {
    pub(super) state: Option<&'a State>,
    /// The last token that was issued.
    pub(super) token: i64,
    pub(super) room: usize,
    /// The clients with the holds whose time was over there.
    pub(super) lines: Vec<&'a Line>,
}

/// A write, between the states before and after it.
struct Write<'a> {
    was: &'a Before<'a>,
    /// `None` for a renewal.
    operation: Option<&'a Operation>,
    after: &'a State,
    now: ServerTime,
}

/// Judges a write; `operation` is `None` for a renewal.
pub(super) fn check_write(
    was: &Before<'_>,
    operation: Option<&Operation>,
    after: Option<&State>,
    now: ServerTime,
) -> Option<Breach> {
    let after = after?;
    let write = Write {
        was,
        operation,
        after,
        now,
    };
    if write.leaves_behind() {
        return Some(Breach::Stayed);
    }
    if was.state == Some(after) {
        return None;
    }
    if write.grants_too_much() || write.changes_capacity() {
        return Some(Breach::Capacity);
    }
    if write.opens() {
        return Some(Breach::Opened);
    }
    if after.queue.len() > was.room {
        return Some(Breach::Crowded);
    }
    let let_in = match write.let_in() {
        Ok(let_in) => let_in,
        Err(breach) => return Some(breach),
    };
    if write.has_an_entry_twice() {
        return Some(Breach::Twice);
    }
    write.overtakes(&let_in).then_some(Breach::Overtaken)
}

impl<'a> Write<'a> {
    /// Returns the operation, unless it found the document other than expected: then it is a no-op, and is repeated in
    /// full.
    fn done(&self) -> Option<&'a Operation> {
        self.operation.filter(|operation| {
            operation.expects == Expects::Nothing || wake::left(&self.after.wake, &operation.id).is_some()
        })
    }

    /// Whether it grants a permit while more are held than the capacity in force.
    fn grants_too_much(&self) -> bool {
        let held: i64 = self.after.holders.iter().map(|holder| holder.permits).sum();
        let before = self.holders_before();
        let is_new = |holder: &Entry| {
            before
                .iter()
                .all(|it| it.token != holder.token || it.permits < holder.permits)
        };
        held > self.after.capacity && self.after.holders.iter().any(is_new)
    }

    /// Whether the capacity changes, or is no longer one that was set, by an operation that does not set it: unless it was
    /// not set, and nobody has stayed in the lock.
    fn changes_capacity(&self) -> bool {
        let Some(before) = self.was.state else { return false };
        let mut requests = self.operation.into_iter().flat_map(|operation| &operation.requests);
        if requests.any(|requests| requests.by == CapacityIs::Set) {
            return false;
        }
        let mut holders = before.holders.iter().map(|holder| holder.token);
        let mut queue = before.queue.iter();
        let stays = holders.any(|token| self.after.holders.iter().any(|holder| holder.token == token))
            || queue.any(|waiter| self.after.queue.iter().any(|after| after.id == waiter.id));
        let is_changed = before.capacity != self.after.capacity;
        (is_changed && (before.is_set || stays)) || (before.is_set && !self.after.is_set)
    }

    fn holders_before(&self) -> &'a [Entry] {
        self.was.state.map_or(&[][..], |before| &before.holders[..])
    }

    /// Whether an entry that was to leave is still there.
    fn leaves_behind(&self) -> bool {
        let mut left = self.done().into_iter().flat_map(|operation| &operation.leave);
        left.any(|id| {
            let spared = |holder: &Entry| self.operation.is_some_and(|operation| operation.spares(holder));
            let holds = |holder: &Entry| holder.id == *id && !holder.is_kept() && !spared(holder);
            self.after.holders.iter().any(holds) || self.after.queue.iter().any(|waiter| waiter.id == *id)
        })
    }

    /// Whether it frees a lock that is or should be kept taken, or changes the time for which it is.
    fn opens(&self) -> bool {
        if self.operation.is_some_and(|operation| operation.evict != Evict::Nobody) {
            return false;
        }
        let done = self.done();
        let keeps = |holder: &Entry| {
            let mut kept = done.iter().flat_map(|operation| &operation.kept);
            kept.any(|kept| kept.id == holder.id && kept.token == holder.token && kept.until != KeptUntil::Expiry)
        };
        let stays = |before: &Entry| {
            let mut after = self.after.holders.iter();
            let after = after.find(|holder| holder.id == before.id && holder.token == before.token);
            let kept = after.filter(|after| after.is_kept() && after.until > self.now);
            kept.is_some_and(|after| !before.is_kept() || after.until == before.until)
        };
        let is_there = |before: &Entry| self.after.holders.iter().any(|holder| holder.token == before.token);
        let has_ended = |holder: &Entry| self.was.lines.iter().any(|line| line.has_ended(holder));
        let mut live = self.holders_before().iter().filter(|holder| holder.until > self.now);
        live.any(|holder| {
            ((holder.is_kept() || keeps(holder)) && !stays(holder)) || (has_ended(holder) && !is_there(holder))
        })
    }

    /// Returns the entries that it lets in, in the order of their tokens, each above all that were issued before.
    fn let_in(&self) -> Result<Vec<&'a String>, Breach> {
        let before = self.holders_before();
        let mut last = self.was.token;
        let mut issued = self.was.state.map_or(0, |before| before.token);
        let mut let_in = Vec::new();
        for holder in &self.after.holders {
            let mut same = before.iter().filter(|before| before.id == holder.id);
            match same.find(|before| before.token == holder.token) {
                Some(before) if before.until <= self.now && holder.until > before.until => return Err(Breach::Revived),
                Some(_) => {}
                None if holder.token <= last => return Err(Breach::Token),
                None => {
                    (last, issued) = (holder.token, holder.token);
                    let_in.push(&holder.id);
                }
            }
        }
        // Of a document that somebody else has set back, the counter is behind what was issued.
        if self.after.token < issued {
            return Err(Breach::Token);
        }
        Ok(let_in)
    }

    fn has_an_entry_twice(&self) -> bool {
        let mut ids: Vec<&String> = self.after.holders.iter().map(|holder| &holder.id).collect();
        ids.extend(self.after.queue.iter().map(|waiter| &waiter.id));
        ids.sort();
        ids.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Whether the operation asks as a try for an entry that waits, and takes it out of the line: the answer to an earlier
    /// one was lost, or it has been overtaken by a later request for the same entry.
    fn withdraws(&self, id: &str) -> bool {
        let requests = self.operation.and_then(|operation| operation.requests.as_ref());
        let mut entries = requests.into_iter().flat_map(|requests| &requests.entries);
        let mut after = self.after.holders.iter().map(|holder| &holder.id);
        let mut waiting = self.after.queue.iter().map(|waiter| &waiter.id);
        entries.any(|entry| entry.id == id && !entry.wait)
            && !after.any(|other| other == id)
            && !waiting.any(|other| other == id)
    }

    /// Whether an entry is let in before another that came earlier, or the queue is in another order than before.
    fn overtakes(&self, let_in: &[&String]) -> bool {
        let queue = self.was.state.map(|before| &before.queue);
        let Some(operation) = self.operation else {
            return queue != Some(&self.after.queue);
        };
        // The entry by which a holder becomes a writer goes before all others.
        let upgrades = |id: &&String| {
            let requests = operation.requests.as_ref();
            let mut entries = requests.into_iter().flat_map(|requests| &requests.entries);
            let reader = entries
                .find(|entry| entry.id == **id)
                .and_then(|entry| entry.upgrades.as_ref());
            let mut holders = self.after.holders.iter();
            reader.is_some_and(|reader| holders.any(|holder| holder.id == *reader))
        };
        let leaves = |id: &String| operation.leave.contains(id) || upgrades(&id);
        // The entries that were in the queue and stay in it, in the order in which they came.
        let line = queue.into_iter().flatten();
        let line = line.filter(|waiter| waiter.until > self.now && !leaves(&waiter.id));
        let mut let_in = let_in.iter().copied().filter(|id| !upgrades(id));
        let mut still_waiting = self
            .after
            .queue
            .iter()
            .map(|waiter| &waiter.id)
            .filter(|id| !upgrades(id));
        let mut blocked = false;
        for waiter in line {
            if self.withdraws(&waiter.id) {
                // It did not fit, and behind one that does not fit all wait.
                blocked = true;
                continue;
            }
            blocked = blocked || let_in.clone().next().is_none_or(|first| *first != waiter.id);
            let next = if blocked { still_waiting.next() } else { let_in.next() };
            if next != Some(&waiter.id) {
                return true;
            }
        }
        blocked && let_in.next().is_some()
    }
}
