//! The properties that must hold of each write.

use crate::protocol::{Evict, Expects, Holder, Operation, ServerTime, State, wake};

/// The breaches that a write must never commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// More permits are held than there are.
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
    /// A lock that is or should be kept taken is free, or is kept for another time, and no operator broke it.
    Opened,
}

/// The situation before a write, and the bounds of the write.
pub(super) struct Before<'a> {
    pub(super) state: Option<&'a State>,
    /// The last token that was issued.
    pub(super) token: i64,
    pub(super) capacity: i64,
    pub(super) room: usize,
}

/// Judges a write; `operation` is `None` for a renewal.
pub(super) fn check_write(
    was: &Before<'_>,
    operation: Option<&Operation>,
    after: Option<&State>,
    now: ServerTime,
) -> Option<Breach> {
    let after = after?;
    let before = was.state;
    // An operation that finds the document other than expected is a no-op, and is repeated in full.
    let did = operation
        .filter(|operation| operation.expects == Expects::Nothing || wake::left(&after.wake, &operation.id).is_some());
    let gone = did.into_iter().flat_map(|operation| &operation.leave);
    let is_there = |id: &String| {
        let holds = |holder: &Holder| holder.id == *id && !holder.is_kept();
        after.holders.iter().any(holds) || after.queue.iter().any(|waiter| waiter.id == *id)
    };
    if gone.into_iter().any(is_there) {
        return Some(Breach::Stayed);
    }
    if before == Some(after) {
        return None;
    }
    let (holders, queue) = before.map_or((&[][..], &[][..]), |before| (&before.holders[..], &before.queue[..]));
    if after.holders.iter().map(|holder| holder.permits).sum::<i64>() > was.capacity {
        return Some(Breach::Capacity);
    }
    let evicts = operation.is_some_and(|operation| operation.evict != Evict::Nobody);
    let keeps = |holder: &Holder| {
        let mut kept = did.iter().flat_map(|operation| &operation.kept);
        kept.any(|kept| kept.id == holder.id && kept.token == holder.token)
    };
    let stays = |before: &Holder| {
        let same = |holder: &&Holder| holder.id == before.id && holder.token == before.token;
        let after = after
            .holders
            .iter()
            .find(same)
            .filter(|after| after.is_kept() && after.until > now);
        after.is_some_and(|after| !before.is_kept() || after.until == before.until)
    };
    let live = holders.iter().filter(|holder| holder.until > now);
    if !evicts
        && live
            .filter(|holder| holder.is_kept() || keeps(holder))
            .any(|holder| !stays(holder))
    {
        return Some(Breach::Opened);
    }
    let was_there = |id: &str, token: i64| holders.iter().find(|holder| holder.id == id && holder.token == token);
    if after.queue.len() > was.room {
        return Some(Breach::Crowded);
    }
    let mut last = was.token;
    let mut issued = before.map_or(0, |before| before.token);
    let mut let_in = Vec::new();
    for holder in &after.holders {
        match was_there(&holder.id, holder.token) {
            Some(before) if before.until <= now && holder.until > before.until => return Some(Breach::Revived),
            Some(_) => {}
            None if holder.token <= last => return Some(Breach::Token),
            None => {
                (last, issued) = (holder.token, holder.token);
                let_in.push(&holder.id);
            }
        }
    }
    // Of a document that somebody else has set back, the counter is behind what was issued.
    if after.token < issued {
        return Some(Breach::Token);
    }
    let mut ids: Vec<&String> = after.holders.iter().map(|holder| &holder.id).collect();
    ids.extend(after.queue.iter().map(|waiter| &waiter.id));
    ids.sort();
    if ids.windows(2).any(|pair| pair[0] == pair[1]) {
        return Some(Breach::Twice);
    }
    let Some(operation) = operation else {
        return (before.map(|before| &before.queue) != Some(&after.queue)).then_some(Breach::Overtaken);
    };
    let leaves = |id: &String| operation.leave.contains(id);
    // The entries that were in the queue and stay in it, in the order in which they came.
    let line = queue.iter().filter(|waiter| waiter.until > now && !leaves(&waiter.id));
    let mut let_in = let_in.into_iter();
    let mut still_waiting = after.queue.iter().map(|waiter| &waiter.id);
    let mut blocked = false;
    for waiter in line {
        blocked = blocked || let_in.as_slice().first().is_none_or(|first| **first != waiter.id);
        let next = if blocked { still_waiting.next() } else { let_in.next() };
        if next != Some(&waiter.id) {
            // A try whose answer was lost goes out of the line when it is asked again.
            let mut entries = operation.requests.iter().flat_map(|requests| &requests.entries);
            if !entries.any(|entry| entry.id == waiter.id && !entry.wait) {
                return Some(Breach::Overtaken);
            }
        }
    }
    if blocked && let_in.next().is_some() {
        return Some(Breach::Overtaken);
    }
    None
}
