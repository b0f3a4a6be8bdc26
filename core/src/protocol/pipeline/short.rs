//! The short forms: the phases of the frequent operations, without those that have nothing to do.
//!
//! The fewer cases a pipeline provides for, the less it costs the server. The condition under which phases may be left
//! out is compared in the same atomic write; where the document does not meet it, nothing is written. No form has
//! change: such operations are rare, and take the general form. All forms have stamp, and record where
//! something leaves.
//!
//! ```text
//! form        used for                     leaves out                    why it may
//! ------------------------------------------------------------------------------------------------------------
//! alone       request, Expects::Alone      leave, adopt, enqueue;        the document has no entry and is of the
//!                                          of advance all but a grant    same kind, or no lock so far
//!
//! alone       release, Expects::Alone      expiry, adopt, enqueue,       the entry that leaves is the only one, and
//!                                          advance                       live: none is left to expire or advance
//!
//! alone       claim of any free document   leave, adopt, enqueue;        the filter `free` selects documents
//!                                          of advance all but a grant    without live entries, free for any kind
//!
//! hand_over   release,                     leave in the queue but for    the entry that leaves is the only
//!             Expects::OnlyHolder          expiry, expiry of holders,    holder, and live: it does not wait, nobody
//!                                          adopt, enqueue; of advance    holds after it, and the one permit is for
//!                                          all but the grant to the      the head
//!                                          head
//! ```

use mongodb::bson::{Bson, Document, doc};

use super::{
    ALL, ending, existing,
    expression::{bind, cond, literal},
    fields_of_enqueue, fields_of_stamp,
    granting::{grant, next_token, words_of_grant},
    live, remaining, waiter,
};
use crate::protocol::{Expects, Location, Operation, Request, wake::Left};

/// Returns the short form of an operation, if it has one: the condition that the document must meet, and the expression
/// for the document afterwards.
pub(super) fn form(at: &Location, operation: &Operation, now: &Bson) -> Option<(Document, Bson)> {
    let leaving = literal(operation.leave.as_slice());
    match operation.expects {
        Expects::Alone => {
            let written = at.merged([alone(at, operation, now).into()]);
            Some((is_alone(at, operation, leaving, now), written))
        }
        Expects::OnlyHolder => Some((is_the_holder(at, leaving, now), hand_over(at, operation, now))),
        Expects::Holding | Expects::Nothing => None,
    }
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
        fields.extend(ending::record_of(at, || existing(at, "holders"), operation, now));
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

/// Removes the only holder, and grants the lock to the head of the queue, if there is one.
pub(super) fn hand_over(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let wake = literal(format!("{}:{};", operation.id, Left::HOLDER));
    let free = doc! { "holders": [], "queue": [], "wake": &wake };
    let others_wait = doc! { "$gt": [{ "$size": "$$queue" }, 1] };
    let granted = bind(
        doc! { "head": { "$arrayElemAt": ["$$queue", 0] }, "token": next_token(at.value("token"), now) },
        doc! {
            "token": "$$token",
            "holders": [grant("$$head", operation, now)],
            "queue": { "$slice": ["$$queue", 1, ALL] },
            "wake": words_of_grant(wake, ("$$head", "$$token"), others_wait, operation),
        },
    );
    let after = cond(doc! { "$eq": ["$$queue", []] }, free, granted);
    let mut stamped = fields_of_stamp(at, operation.keep, now);
    stamped.extend(ending::record_of(at, || existing(at, "holders"), operation, now));
    let written = at.merged([after, stamped.into()]);
    bind(doc! { "queue": remaining(at, "queue", &live(now)) }, written)
}
