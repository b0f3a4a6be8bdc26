//! Grants: waiters at the head of the queue become holders.

use mongodb::bson::{Bson, Document, doc};

use super::{
    ALL,
    expression::{bind, cond, literal, map},
};
use crate::protocol::{Location, Operation};

/// Grants the lock to the head of the queue as long as it fits the free capacity, and cuts the queue to its room. The
/// words for the entries that did not ask follow the first value of the named field.
///
/// It first counts the grants, and then cuts the queue there: an array that grew by an element for each waiter would be
/// copied as often.
pub(super) fn grant_as_fits(
    at: &Location,
    queue: Bson,
    words: (&str, Bson),
    operation: &Operation,
    now: &Bson,
) -> Bson {
    let (words, first) = words;
    let capacity = operation
        .capacity()
        .map_or_else(|| at.value("capacity").into(), Bson::from);
    let counted = cond(
        doc! { "$lte": ["$$held", capacity] },
        doc! { "held": "$$held", "count": { "$add": ["$$value.count", 1] } },
        // Behind one that has to wait, all wait.
        doc! { "held": f64::INFINITY, "count": "$$value.count" },
    );
    let counted = doc! { "$reduce": {
        "input": "$$line",
        "initialValue": { "held": { "$sum": "$$holders.permits" }, "count": 0 },
        "in": bind(doc! { "held": { "$add": ["$$value.held", "$$this.permits"] } }, counted),
    } };
    let came = bind(
        doc! { "head": { "$arrayElemAt": ["$$line", "$$this"] }, "token": { "$add": ["$$first", "$$this"] } },
        grant("$$head", operation, now),
    );
    let granted = bind(
        doc! { "came": map(doc! { "$range": [0, "$$count"] }, came) },
        doc! {
            "holders": { "$concatArrays": ["$$holders", "$$came"] },
            "token": { "$add": ["$$first", "$$count", -1] },
            "queue": { "$slice": ["$$line", "$$count", room(operation)] },
            words: { "$reduce": {
                "input": "$$came",
                "initialValue": &first,
                "in": words_of_grant("$$value".into(), "$$this", "$$this.token", operation),
            } },
        },
    );
    let line = with_room("$$line", operation);
    let unchanged = doc! { "holders": "$$holders", "token": at.value("token"), "queue": line, words: first };
    let after = bind(
        doc! { "first": next_token(at.value("token"), now) },
        cond(doc! { "$eq": ["$$count", 0] }, unchanged, granted),
    );
    let counted = bind(doc! { "counted": counted }, "$$counted.count");
    bind(doc! { "line": queue }, bind(doc! { "count": counted }, after))
}

/// Makes the waiter a holder with the next token, `$$token`.
pub(super) fn grant(waiter: &str, operation: &Operation, now: &Bson) -> Document {
    let of = |field: &str| Bson::from(format!("{waiter}.{field}"));
    // A client that asks is alive and gets its full lease; one that is woken must first show that it is.
    let until = doc! { "$add": [now, if_asking(waiter, operation, of("lease"), of("claim"))] };
    doc! { "$mergeObjects": [waiter, { "token": "$$token", "since": now, "until": until }] }
}

pub(super) fn words_of_grant(words: Bson, waiter: &str, token: &str, operation: &Operation) -> Bson {
    let word = doc! { "$concat": [&words, format!("{waiter}.id"), "+", { "$toString": token }, ";"] };
    if_asking(waiter, operation, words, word.into())
}

fn if_asking(waiter: &str, operation: &Operation, yes: Bson, no: Bson) -> Bson {
    let asking: Vec<&str> = operation.entries().map(|entry| entry.id.as_str()).collect();
    if asking.is_empty() {
        return no;
    }
    cond(doc! { "$in": [format!("{waiter}.id"), literal(asking)] }, yes, no)
}

/// Returns the part of the queue that it has room for. An operation that requests nothing has added nothing.
pub(super) fn with_room(queue: &str, operation: &Operation) -> Bson {
    match operation.requests {
        Some(_) => Bson::from(doc! { "$slice": [queue, room(operation)] }),
        None => Bson::from(queue),
    }
}

pub(super) fn room(operation: &Operation) -> i64 {
    i64::try_from(operation.room).unwrap_or(ALL).clamp(1, ALL)
}

/// Returns the token of a grant: see [`super::state`]. A missing counter, or a value that nothing can be added to,
/// counts for nothing.
///
/// A counter that somebody set by hand can be of any numeric type; a token is always a whole number of 64 bits.
pub(super) fn next_token(last: String, now: &Bson) -> Document {
    doc! { "$toLong": { "$max": [{ "$add": [last, 1_i64] }, { "$multiply": [{ "$toLong": now }, 1000_i64] }] } }
}
