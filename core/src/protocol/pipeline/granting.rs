//! Grants: waiters at the head of the queue become holders.

use mongodb::bson::{Bson, Document, doc};

use super::{
    ALL, adopts_a_hold, capacity,
    expression::{bind, cond, filter, literal, map},
    is_not_among, tries,
};
use crate::protocol::{AT_ONCE, Location, NOTIFIES_UP_TO, Operation};

/// Grants the lock to the head of the queue as long as it fits the free capacity, and cuts the queue to its room. The
/// words for the entries that did not ask are in `granted`.
///
/// It first counts the grants, and then cuts the queue there: an array that grew by an element for each waiter would be
/// copied as often.
pub(super) fn grant_as_fits(at: &Location, queue: Bson, operation: &Operation, now: &Bson) -> Bson {
    let capacity = operation
        .requests
        .as_ref()
        .map_or_else(|| at.value("capacity").into(), capacity);
    let room = room_or_more(operation);
    let upgrades = operation.upgrades().next().is_some();
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
    let mut behind = Bson::from(doc! { "$slice": ["$$line", "$$count", ALL] });
    let tries = tries(operation);
    if !tries.is_empty() {
        behind = filter(behind, is_not_among(literal(tries)));
    }
    let granted = bind(
        doc! { "behind": doc! { "$ne": [behind, []] }, "came": map(doc! { "$range": [0, "$$count"] }, came) },
        doc! {
            "holders": { "$concatArrays": ["$$holders", "$$came"] },
            "token": with_reserve(doc! { "$add": ["$$first", "$$count", -1] }.into(), "$$came.id".into(), operation),
            "queue": { "$slice": ["$$line", "$$count", &room] },
            "granted": { "$reduce": {
                "input": "$$came",
                "initialValue": "",
                "in": words_of_grant("$$value".into(), ("$$this", "$$this.token"), "$$behind", operation),
            } },
        },
    );
    let line = match operation.requests {
        Some(_) => Bson::from(doc! { "$slice": ["$$line", room] }),
        None => Bson::from("$$line"),
    };
    // There may be no document yet.
    let token = match operation.sets() || upgrades {
        true => doc! { "$ifNull": [at.value("token"), 0_i64] }.into(),
        false => Bson::from(at.value("token")),
    };
    let unchanged = doc! { "holders": "$$holders", "token": token, "queue": line, "granted": "" };
    // Only for a grant: a counter to which nothing can be added must keep nobody from leaving.
    let granted = bind(doc! { "first": next_token(at.value("token"), now) }, granted);
    let after = cond(doc! { "$eq": ["$$count", 0] }, unchanged, granted);
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

/// Returns the counter after grants of which the last was under `token`; `ids`: the entries that were granted.
fn with_reserve(token: Bson, ids: Bson, operation: &Operation) -> Bson {
    let Some(reserving) = operation.reserving() else {
        return token;
    };
    let reserved = doc! { "$toLong": { "$add": [&token, reserving.reserve] } };
    cond(doc! { "$in": [literal(reserving.id.as_str()), ids] }, reserved, token)
}

/// Returns the words for the holders that are asked for; mostly none. `None`: the operation asks for none.
///
/// Read from the conditions that are mostly wrong to those that need strings: an entry that another program wrote can
/// have an id of any type.
pub(super) fn asked_for(at: &Location, operation: &Operation) -> Option<Bson> {
    let (holders, queue) = ("$$after.holders", "$$after.queue");
    let (asks_as, sets) = (operation.asks_as(), operation.sets());
    if asks_as.is_none() && !sets {
        return None;
    }
    let mut is_asked_for = vec![
        doc! { "$lte": ["$$this.token", at.value("token")] },
        doc! { "$eq": [{ "$type": "$$this.id" }, "string"] },
    ];
    is_asked_for
        .extend(asks_as.map(|asks_as| doc! { "$ne": [{ "$indexOfBytes": ["$$this.id", literal(asks_as)] }, 0] }));
    let word = cond(
        doc! { "$and": is_asked_for },
        doc! { "$concat": ["$$this.id", "?;"] },
        "",
    );
    let mut conditions = Vec::new();
    if !sets {
        let few = i64::try_from(NOTIFIES_UP_TO).unwrap_or(ALL);
        conditions.extend([doc! { "$ne": [queue, []] }, doc! { "$lte": [{ "$size": queue }, few] }]);
    }
    conditions.push(doc! { "$lte": [{ "$size": holders }, i64::try_from(AT_ONCE).unwrap_or(ALL)] });
    let words = doc! { "$reduce": {
        "input": holders,
        "initialValue": "",
        "in": { "$concat": ["$$value", word] },
    } };
    Some(cond(doc! { "$and": conditions }, words, ""))
}

/// Appends the words for a grant to an entry that did not ask; `others_wait`: the condition that others wait behind it.
pub(super) fn words_of_grant(
    words: Bson,
    (waiter, token): (&str, &str),
    others_wait: impl Into<Bson>,
    operation: &Operation,
) -> Bson {
    let id = format!("{waiter}.id");
    let behind = cond(others_wait, doc! { "$concat": [&id, "?;"] }, "");
    let word = doc! { "$concat": [&words, &id, "+", { "$toString": token }, ";", behind] };
    if_asking(waiter, operation, words, word.into())
}

fn if_asking(waiter: &str, operation: &Operation, yes: Bson, no: Bson) -> Bson {
    let asking: Vec<&str> = operation.entries().map(|entry| entry.id.as_str()).collect();
    if asking.is_empty() {
        return no;
    }
    cond(doc! { "$in": [format!("{waiter}.id"), literal(asking)] }, yes, no)
}

/// Returns the number of waiters to which the queue, `$$line`, is cut. An operation that requests nothing has added
/// nothing.
fn room_or_more(operation: &Operation) -> Bson {
    if operation.requests.is_none() {
        return ALL.into();
    }
    // The queue before the request, and with it where it is in the place of a holder.
    let mut stay = Bson::from(doc! { "$size": "$$queue" });
    let upgrades = operation
        .entries()
        .filter(|entry| entry.wait && entry.upgrades.is_some());
    let upgrades: Vec<&str> = upgrades.map(|entry| entry.id.as_str()).collect();
    if !upgrades.is_empty() {
        let come = doc! { "$setDifference": [{ "$setIntersection": ["$$line.id", literal(upgrades)] }, "$$queue.id"] };
        stay = doc! { "$add": [stay, { "$size": come }] }.into();
    }
    if operation.adopts().is_some() {
        stay = cond(adopts_a_hold(), doc! { "$size": "$$line" }, stay);
    }
    let room = i64::try_from(operation.room).unwrap_or(ALL).clamp(1, ALL);
    doc! { "$max": [room, stay] }.into()
}

/// Returns the token of a grant: see [`super::state`]. A missing counter, or a value that nothing can be added to,
/// counts for nothing.
///
/// A counter that somebody set by hand can be of any numeric type; a token is always a whole number of 64 bits.
pub(super) fn next_token(last: String, now: &Bson) -> Document {
    doc! { "$toLong": { "$max": [{ "$add": [last, 1_i64] }, { "$multiply": [{ "$toLong": now }, 1000_i64] }] } }
}
