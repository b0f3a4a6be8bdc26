//! The short forms: the phases of the frequent operations, without those that have nothing to do.
//!
//! The fewer cases a pipeline provides for, the less it costs the server. The condition under which phases may be left
//! out is compared in the same atomic write; where the document does not meet it, nothing is written. No form has
//! change: such operations are rare, and take the general form. All forms have stamp, and record where
//! something leaves.
//!
//! ```text
//! form              used for                     leaves out                    why it may
//! ------------------------------------------------------------------------------------------------------------------
//! alone             request, Expects::Alone      leave, adopt, enqueue;        the document has no entry and is of the
//!                                                of advance all but a grant    same kind, or no lock so far
//!
//! alone             release, Expects::Alone      expiry, adopt, enqueue,       the entry that leaves is the only one, and
//!                                                advance                       live: none is left to expire or advance
//!
//! alone             claim of any free document   leave, adopt, enqueue;        the filter `free` selects documents
//!                                                of advance all but a grant    without live entries, free for any kind
//!
//! hand_over         release, Expects::Holding,   leave in the queue but for    the entry that leaves is the only
//!                   one permit                   expiry, expiry of holders,    holder, and live: it does not wait, nobody
//!                                                adopt, enqueue; of advance    holds after it, and the one permit is for
//!                                                all but the grant to the      the head
//!                                                head
//!
//! hand_over_among   release, Expects::Holding,   leave in the queue but for    the entry that leaves is a holder, so
//!                   more permits, or unknown     expiry, adopt, enqueue        it does not wait; nothing is requested
//!
//! line_up           first requests that wait,    leave but for expiry, adopt,  nothing leaves or adopts; such requests
//!                   one permit, nothing leaves   no-op; of advance all but     may write in any case; the one permit
//!                   or adopts                    the grant to the head         is for the head, if nobody holds
//! ```

use mongodb::bson::{Bson, Document, doc};

use super::{
    append, ending,
    expression::{bind, cond, literal},
    fields_of_enqueue, fields_of_stamp,
    granting::{asked_for, grant, grant_as_fits, next_token, room, with_reserve, with_room, words_of_grant},
    is_not_kept, is_used_as_requested, leave, live, remaining, waiter,
};
use crate::protocol::{Expects, Location, Operation, Request, Requests, wake::Left};

/// Returns the short form of an operation, if it has one: the condition that the document must meet, and the expression
/// for the document afterwards.
pub(super) fn form(at: &Location, operation: &Operation, now: &Bson) -> Option<(Option<Document>, Bson)> {
    match operation.expects {
        Expects::Alone => {
            let written = at.merged([alone(at, operation, now).into()]);
            Some((Some(is_alone(at, operation, leaving(operation), now)), written))
        }
        Expects::Holding if operation.leave_capacity == Some(1) => Some((
            Some(is_the_holder(at, leaving(operation), now)),
            hand_over(at, operation, now),
        )),
        Expects::Holding => Some((
            Some(is_a_holder(at, operation, now)),
            hand_over_among(at, operation, now),
        )),
        Expects::Nothing | Expects::Room => {
            let requests = operation.requests.as_ref()?;
            lines_up(operation, requests).then(|| (None, line_up(at, operation, requests, now)))
        }
    }
}

/// Returns the ids of the entries that leave.
fn leaving(operation: &Operation) -> Bson {
    literal(operation.leave.as_slice())
}

/// Returns the condition that the document is as [`Expects::Alone`] says; these ids leave.
pub(super) fn is_alone(at: &Location, operation: &Operation, leaving: Bson, now: &Bson) -> Document {
    match &operation.requests {
        None => doc! { "$and": [
            { "$eq": [
                [at.value("holders.id"), at.value("holders.released"), at.value("queue")],
                [leaving, [], []],
            ] },
            any_live(at, now),
        ] },
        // In a document that has no lock so far, these are missing, which in an array is null.
        Some(requests) => doc! { "$in": [
            [at.value("kind"), at.value("capacity"), at.value("holders"), at.value("queue")],
            [[requests.kind.as_str(), requests.capacity, [], []], [null, null, null, null]],
        ] },
    }
}

/// Returns the condition that the time of a holder is not over.
fn any_live(at: &Location, now: &Bson) -> Document {
    doc! { "$gt": [{ "$max": at.value("holders.until") }, now] }
}

/// Returns the fields of a lock after its only entry comes or leaves.
pub(super) fn alone(at: &Location, operation: &Operation, now: &Bson) -> Document {
    let token = next_token(at.value("token"), now);
    let holders: Vec<Document> = operation.entries().map(|entry| holder(at, entry, now)).collect();
    let left = if operation.leave.is_empty() { "" } else { Left::HOLDER };
    let mut fields = doc! { "wake": literal(format!("{}:{left};", operation.id)) };
    if !holders.is_empty() {
        let reserve = operation.reserving().map_or(0, |reserving| reserving.reserve);
        let counter = match reserve {
            0 => token,
            _ => doc! { "$toLong": { "$add": [token, reserve] } },
        };
        fields.insert("token", counter);
    }
    fields.insert("holders", holders);
    if let Some(requests) = &operation.requests {
        fields.extend(fields_of_enqueue(at, requests, requests.capacity.into()));
        fields.insert("queue", Bson::Array(Vec::new()));
    }
    fields.extend(fields_of_stamp(at, operation.keep, now));
    if !operation.leave.is_empty() {
        fields.extend(ending::record_of_release(at, operation, now));
    }
    fields
}

/// Returns the entry of a request that is granted at once.
pub(super) fn holder(at: &Location, entry: &Request, now: &Bson) -> Document {
    let mut holder = waiter(entry, now);
    holder.insert("token", next_token(at.value("token"), now));
    holder
}

/// Returns the condition that the entry that leaves is the only holder, and has not left before.
pub(super) fn is_the_holder(at: &Location, leaving: Bson, now: &Bson) -> Document {
    doc! { "$and": [
        { "$eq": [
            [at.value("holders.id"), at.value("holders.released")],
            [leaving, []],
        ] },
        any_live(at, now),
    ] }
}

/// Removes the only holder, and grants the lock to the head of the queue.
pub(super) fn hand_over(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let after = after_the_holder(at, format!("{}:{};", operation.id, Left::HOLDER), operation, now);
    let mut stamped = fields_of_stamp(at, operation.keep, now);
    stamped.extend(ending::record_of_release(at, operation, now));
    let written = at.merged([after, stamped.into()]);
    bind(doc! { "queue": remaining(at, "queue", &live(now)) }, written)
}

/// Returns the condition that the entry that leaves is one of the holders, and has not left before.
fn is_a_holder(at: &Location, operation: &Operation, now: &Bson) -> Document {
    let holds = doc! { "$and": [live(now), is_not_kept()] };
    let holders = doc! { "holders": remaining(at, "holders", &holds) };
    doc! { "$setIsSubset": [literal(operation.leave.as_slice()), bind(holders, "$$holders.id")] }
}

/// Removes one of the holders, and grants the lock to the head of the queue as long as it fits.
fn hand_over_among(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let wake = literal(format!("{}:{};", operation.id, Left::HOLDER));
    let queue = remaining(at, "queue", &live(now));
    let after = grant_as_fits(at, queue, ("wake", wake), operation, now);
    let mut stamped = fields_of_stamp(at, operation.keep, now);
    stamped.extend(ending::record_of_leave(at, operation, now));
    let written = at.merged([after, stamped.into()]);
    bind(
        doc! { "holders": remaining(at, "holders", &leave(operation, now)) },
        written,
    )
}

/// Returns whether the operation only requests entries, for the first time and to wait, in a lock with one permit: most
/// requests. A semaphore with one permit can get more.
fn lines_up(operation: &Operation, requests: &Requests) -> bool {
    operation.capacity() == Some(1)
        && operation.leave.is_empty()
        && requests.adopts.is_none()
        && operation.upgrades().next().is_none()
        && !operation.may_be_no_op()
}

/// Appends the requested entries to the queue, and grants the lock to the head if nobody holds it.
fn line_up(at: &Location, operation: &Operation, requests: &Requests, now: &Bson) -> Bson {
    let wake = literal(format!("{}:;", operation.id));
    let queue = with_room("$$all", operation);
    // Cut to its room, the queue is no shorter than what the word depends on.
    let words = asked_for(at, ("$$holders", "$$all"), operation);
    let words = match words {
        Some(words) => doc! { "$concat": [&wake, words] }.into(),
        None => wake.clone(),
    };
    let unchanged = doc! { "holders": "$$holders", "queue": queue, "wake": words };
    let granted = grant_to_head(at, "$$all", wake, operation, now);
    let after = cond(doc! { "$eq": ["$$holders", []] }, granted, unchanged);
    let mut stamped = fields_of_stamp(at, operation.keep, now);
    stamped.extend(ending::record_of_leave(at, operation, now));
    let enqueued = fields_of_enqueue(at, requests, requests.capacity.into());
    let written = at.merged([enqueued.into(), after, stamped.into()]);
    let written = bind(doc! { "all": append(operation, now) }, written);
    let live = leave(operation, now);
    bind(
        doc! { "holders": remaining(at, "holders", &live), "queue": remaining(at, "queue", &live) },
        cond(is_used_as_requested(at, requests), written, "$$ROOT"),
    )
}

/// Returns the entries after the only holder is gone, and the lock is granted to the head of the queue, if there is one.
fn after_the_holder(at: &Location, wake: String, operation: &Operation, now: &Bson) -> Bson {
    let wake = literal(wake);
    let free = doc! { "holders": [], "queue": [], "wake": &wake };
    let granted = grant_to_head(at, "$$queue", wake, operation, now);
    cond(doc! { "$eq": ["$$queue", []] }, free, granted)
}

/// Grants the lock to the first of a list that is not empty; the others are the queue.
fn grant_to_head(at: &Location, list: &str, wake: Bson, operation: &Operation, now: &Bson) -> Bson {
    let others_wait = doc! { "$gt": [{ "$size": list }, 1] };
    bind(
        doc! { "head": { "$arrayElemAt": [list, 0] }, "token": next_token(at.value("token"), now) },
        doc! {
            "token": with_reserve("$$token".into(), vec!["$$head.id"].into(), operation),
            "holders": [grant("$$head", operation, now)],
            "queue": { "$slice": [list, 1, room(operation)] },
            "wake": words_of_grant(wake, ("$$head", "$$token"), others_wait, operation),
        },
    )
}
