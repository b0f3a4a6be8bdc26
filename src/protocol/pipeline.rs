//! The transitions of [`super::state`] as aggregation pipelines for `findOneAndUpdate` and `updateMany`.
//!
//! Only operators of MongoDB 4.4 are used. Whatever a user can choose (names, owners, reasons) and every id goes in
//! under `$literal`, so that no string is ever read as an expression or a field path.

use mongodb::bson::{Bson, Document, doc};

use super::{Operation, Request, Requests, wake::Left};

/// Where a pipeline keeps its intermediate values; gone again when it ends.
const SCRATCH: &str = "_watchlock";

/// The pipeline of [`super::state::apply`]. `now` is the server's clock, `"$$NOW"`, except in tests.
pub(crate) fn operation(operation: &Operation, now: &Bson) -> Vec<Document> {
    let mut stages = vec![
        doc! { "$set": { SCRATCH: {
            "holders": live("$holders", now),
            "queue": live("$queue", now),
            "expired": { "$concat": [words("$holders", lapsed(now), "-;"), words("$queue", lapsed(now), "-;")] },
        } } },
        doc! { "$set": { SCRATCH: {
            "left": { "$concat": operation.leave.iter().map(|id| left(id)).collect::<Vec<_>>() },
            "holders": stay(scratch("holders"), operation, operation.evict),
            "queue": stay(scratch("queue"), operation, false),
            "evicted": if operation.evict { evicted(operation) } else { doc! { "words": "" } },
        } } },
    ];
    if let Some((id, value)) = &operation.proclaim {
        stages.push(doc! { "$set": { SCRATCH: { "holders": proclaim(id, value) } } });
    }
    if let Some(requests) = &operation.requests {
        stages.push(doc! { "$set": { SCRATCH: used_as(requests) } });
        stages.push(doc! { "$set": { SCRATCH: { "queue": enqueue(requests, now) } } });
    }
    stages.push(doc! { "$set": { SCRATCH: { "after": advance(operation, now) } } });
    stages.extend(take_out_tries(operation));
    stages.push(conclude(operation, now));
    stages.push(doc! { "$unset": SCRATCH });
    stages
}

/// The pipeline of [`super::state::renew`], for all documents at once that hold one of `ids`.
pub(crate) fn renewal(operation: &str, ids: &[String], retention: i64, now: &Bson) -> Vec<Document> {
    let renewed = doc! { "$and": [
        { "$gt": ["$$this.until", now] },
        { "$in": ["$$this.id", literal(ids)] },
    ] };
    let holders = doc! { "$map": { "input": "$holders", "in": { "$cond": [
        renewed,
        { "$mergeObjects": ["$$this", { "until": { "$add": [now, "$$this.lease"] } }] },
        "$$this",
    ] } } };
    let renewed = format!("${SCRATCH}");
    let choose = |field: &str, new: Bson| {
        let kept = format!("${field}");
        doc! { "$cond": [{ "$ne": [&renewed, "$holders"] }, new, kept] }
    };
    vec![
        doc! { "$set": { SCRATCH: holders } },
        doc! { "$set": {
            "wake": choose("wake", literal(format!("{operation}:;"))),
            "version": choose("version", doc! { "$add": ["$version", 1_i64] }.into()),
            "purge_at": choose("purge_at", purge_at(format!("{renewed}.until"), "$queue.until".into(), retention, now)),
            "holders": &renewed,
        } },
        doc! { "$unset": SCRATCH },
    ]
}

fn scratch(field: &str) -> String {
    format!("${SCRATCH}.{field}")
}

fn literal(value: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$literal": value.into() })
}

fn or_empty(list: &str) -> Bson {
    Bson::from(doc! { "$ifNull": [list, []] })
}

fn live(list: &str, now: &Bson) -> Bson {
    Bson::from(doc! { "$filter": { "input": or_empty(list), "cond": { "$gt": ["$$this.until", now] } } })
}

fn lapsed(now: &Bson) -> Bson {
    Bson::from(doc! { "$lte": ["$$this.until", now] })
}

/// One word per entry of `list` that meets `condition`.
fn words(list: &str, condition: Bson, ending: &str) -> Bson {
    Bson::from(doc! { "$reduce": {
        "input": or_empty(list),
        "initialValue": "",
        "in": { "$cond": [condition, { "$concat": ["$$value", "$$this.id", ending] }, "$$value"] },
    } })
}

fn left(id: &str) -> Bson {
    Bson::from(doc! { "$cond": [
        { "$in": [literal(id), scratch("holders.id")] },
        Left::HOLDER,
        { "$cond": [{ "$in": [literal(id), scratch("queue.id")] }, Left::WAITER, Left::NOWHERE] },
    ] })
}

fn stay(list: String, operation: &Operation, evict: bool) -> Bson {
    if evict {
        return Bson::Array(Vec::new());
    }
    if operation.leave.is_empty() {
        return list.into();
    }
    Bson::from(doc! { "$filter": {
        "input": list,
        "cond": { "$not": { "$in": ["$$this.id", literal(operation.leave.as_slice())] } },
    } })
}

/// The words for those put out, and the largest token among them.
fn evicted(operation: &Operation) -> Document {
    let stays = Bson::from(doc! { "$not": { "$in": ["$$this.id", literal(operation.leave.as_slice())] } });
    doc! {
        "words": words(&scratch("holders"), stays.clone(), "!;"),
        "token": { "$max": { "$map": {
            "input": { "$filter": { "input": scratch("holders"), "cond": stays } },
            "in": "$$this.token",
        } } },
    }
}

fn proclaim(id: &str, value: &str) -> Bson {
    let owner = doc! { "$mergeObjects": ["$$this.owner", { "value": literal(value) }] };
    Bson::from(doc! { "$map": { "input": scratch("holders"), "in": { "$cond": [
        { "$eq": ["$$this.id", literal(id)] },
        { "$mergeObjects": ["$$this", { "owner": owner }] },
        "$$this",
    ] } } })
}

/// What the lock is used as: as asked when it is idle or already used so, else as before and then nothing is asked.
fn used_as(requests: &Requests) -> Document {
    let fits = doc! { "$or": [
        { "$and": [{ "$eq": [scratch("holders"), []] }, { "$eq": [scratch("queue"), []] }] },
        { "$and": [{ "$eq": ["$kind", requests.kind.as_str()] }, { "$eq": ["$capacity", requests.capacity] }] },
    ] };
    doc! { "fits": fits }
}

fn enqueue(requests: &Requests, now: &Bson) -> Bson {
    let mut queue = Bson::from(scratch("queue"));
    for entry in &requests.entries {
        queue = enqueue_one(queue, entry, now);
    }
    Bson::from(doc! { "$cond": [scratch("fits"), queue, scratch("queue")] })
}

fn enqueue_one(queue: Bson, entry: &Request, now: &Bson) -> Bson {
    let until = doc! { "$add": [now, entry.lease] };
    let refreshed = doc! { "$map": { "input": "$$queue", "in": { "$cond": [
        { "$and": [
            { "$eq": ["$$this.id", literal(entry.id.as_str())] },
            { "$lt": ["$$this.until", { "$add": [now, entry.refresh_below()] }] },
        ] },
        { "$mergeObjects": ["$$this", { "until": &until }] },
        "$$this",
    ] } } };
    let added = doc! { "$concatArrays": ["$$queue", [{
        "id": literal(entry.id.as_str()),
        "permits": entry.permits,
        "lease": entry.lease,
        "claim": entry.claim,
        "since": now,
        "until": &until,
        "owner": literal(entry.owner.to_document()),
    }]] };
    Bson::from(doc! { "$let": { "vars": { "queue": queue }, "in": { "$cond": [
        { "$in": [literal(entry.id.as_str()), scratch("holders.id")] },
        "$$queue",
        { "$cond": [{ "$in": [literal(entry.id.as_str()), "$$queue.id"] }, refreshed, added] },
    ] } } })
}

/// Folds the queue into holders, token, what stays in the queue, and the words for those who did not ask.
fn advance(operation: &Operation, now: &Bson) -> Bson {
    let asking: Vec<&str> = operation
        .requests
        .iter()
        .flat_map(|requests| &requests.entries)
        .map(|entry| entry.id.as_str())
        .collect();
    let asks = Bson::from(doc! { "$in": ["$$this.id", literal(asking)] });
    let capacity = match &operation.requests {
        Some(requests) => Bson::from(doc! { "$cond": [scratch("fits"), requests.capacity, "$capacity"] }),
        None => Bson::from("$capacity"),
    };
    let fits = doc! { "$and": [
        { "$not": ["$$value.blocked"] },
        { "$lte": [{ "$add": [{ "$sum": "$$value.holders.permits" }, "$$this.permits"] }, capacity] },
    ] };
    let grant = doc! { "$let": {
        "vars": {
            "token": { "$add": ["$$value.token", 1_i64] },
            "until": { "$add": [now, { "$cond": [&asks, "$$this.lease", "$$this.claim"] }] },
        },
        "in": {
            "holders": { "$concatArrays": ["$$value.holders", [{
                "id": "$$this.id", "permits": "$$this.permits", "token": "$$token",
                "since": now, "until": "$$until", "lease": "$$this.lease", "owner": "$$this.owner",
            }]] },
            "token": "$$token",
            "queue": "$$value.queue",
            "blocked": false,
            "granted": { "$cond": [&asks, "$$value.granted", { "$concat": [
                "$$value.granted", "$$this.id", "+", { "$toString": "$$token" },
                "@", { "$toString": { "$toLong": "$$until" } }, ";",
            ] }] },
        },
    } };
    let wait = doc! {
        "holders": "$$value.holders",
        "token": "$$value.token",
        "queue": { "$concatArrays": ["$$value.queue", ["$$this"]] },
        "blocked": true,
        "granted": "$$value.granted",
    };
    let advanced = doc! { "$reduce": {
        "input": scratch("queue"),
        "initialValue": {
            "holders": scratch("holders"),
            "token": { "$ifNull": ["$token", first_token(now)] },
            "queue": [],
            "blocked": false,
            "granted": "",
        },
        "in": { "$cond": [fits, grant, wait] },
    } };
    Bson::from(advanced)
}

/// Takes out again what asked not to wait.
fn take_out_tries(operation: &Operation) -> Option<Document> {
    let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
    let trying: Vec<&str> = entries
        .filter(|entry| !entry.wait)
        .map(|entry| entry.id.as_str())
        .collect();
    if trying.is_empty() {
        return None;
    }
    let stays = doc! { "$not": { "$in": ["$$this.id", literal(trying)] } };
    let queue = doc! { "$filter": { "input": scratch("after.queue"), "cond": stays } };
    Some(doc! { "$set": { SCRATCH: { "after": { "queue": queue } } } })
}

/// Writes the new fields, or every field as it was when neither holders nor queue differ: the server logs no write
/// and raises no event for a document that stays the same.
fn conclude(operation: &Operation, now: &Bson) -> Document {
    let changed = doc! { "$or": [
        { "$ne": [scratch("after.holders"), "$holders"] },
        { "$ne": [scratch("after.queue"), "$queue"] },
    ] };
    let choose = |field: &str, new: Bson| doc! { "$cond": [&changed, new, format!("${field}")] };
    let (kind, capacity) = match &operation.requests {
        Some(requests) => (
            Bson::from(doc! { "$cond": [scratch("fits"), requests.kind.as_str(), "$kind"] }),
            Bson::from(doc! { "$cond": [scratch("fits"), requests.capacity, "$capacity"] }),
        ),
        None => ("$kind".into(), "$capacity".into()),
    };
    let wake = doc! { "$concat": [
        literal(format!("{}:", operation.id)), scratch("left"), ";",
        scratch("after.granted"), scratch("expired"), scratch("evicted.words"),
    ] };
    let version = doc! { "$add": [{ "$ifNull": ["$version", first_token(now)] }, 1_i64] };
    let purge = purge_at(
        scratch("after.holders.until"),
        scratch("after.queue.until"),
        operation.retention,
        now,
    );
    let mut fields = doc! {
        "kind": choose("kind", kind),
        "capacity": choose("capacity", capacity),
        "token": choose("token", scratch("after.token").into()),
        "holders": choose("holders", scratch("after.holders").into()),
        "queue": choose("queue", scratch("after.queue").into()),
        "wake": choose("wake", wake.into()),
        "version": choose("version", version.into()),
        "purge_at": choose("purge_at", purge),
    };
    if operation.evict {
        let broken = doc! { "$ifNull": [scratch("evicted.token"), "$broken"] };
        fields.insert("broken", choose("broken", broken.into()));
    }
    doc! { "$set": fields }
}

/// See [`super::state::first_token`].
fn first_token(now: &Bson) -> Bson {
    Bson::from(doc! { "$multiply": [{ "$toLong": now }, 1000_i64] })
}

fn purge_at(holders: String, waiters: String, retention: i64, now: &Bson) -> Bson {
    Bson::from(doc! { "$add": [
        { "$max": [now, { "$max": holders }, { "$max": waiters }] },
        retention,
    ] })
}
