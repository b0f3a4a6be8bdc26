//! The transitions of [`super::state`] as aggregation pipelines for `findAndModify` and `update`.
//!
//! Only operators of MongoDB 4.4 are used. Whatever a user can choose (names, owners, reasons) and every id goes in
//! under `$literal`, so that no string is ever read as an expression or a field path.
//!
//! What a pipeline costs the server is mostly its size (about 0.1 ms a kilobyte, against 0.25 ms for a trivial command),
//! so each operation sends just what it needs: a release compares nothing, a first request refreshes nothing, and where
//! one holder is all there can be the queue needs no folding. A filter by more than `_id` costs as much again, as the
//! server then plans a query; so the frequent operations decide in the pipeline whether there is anything to do.

use mongodb::bson::{Bson, Document, doc};

use super::{
    Evict, Expects, Identity, Operation, Proclaim, Request, Requests,
    document::{DOUBLE_MOST, ID_MOST, NUMBER_MOST, PROTOCOL},
    location::Location,
    wake::Left,
};

/// Longer than any queue: `$slice` from a position on wants a length.
const ALL: i64 = 1 << 30;

/// Selects the document; for the operations that are rare, only if there is anything to do in it.
pub(crate) fn selection(at: &Location, id: &Bson, operation: &Operation) -> Document {
    let mut selection = doc! { "_id": id };
    if operation.expects == Expects::Room {
        // A full queue has an entry at its last place. Who knocks at it gets no document, and costs the server little.
        let last = format!("queue.{}", operation.room.saturating_sub(1));
        selection.insert(at.key(&last), doc! { "$exists": false });
    }
    if operation.creates() || operation.expects != Expects::Nothing {
        return selection;
    }
    let mut concerned = Vec::new();
    if !operation.leave.is_empty() {
        concerned.push(doc! { at.key("holders.id"): { "$in": &operation.leave } });
        concerned.push(doc! { at.key("queue.id"): { "$in": &operation.leave } });
    }
    if let Some(Proclaim { id, .. }) = &operation.proclaim {
        concerned.push(doc! { at.key("holders.id"): { "$in": [id] } });
    }
    match operation.evict {
        Evict::Nobody => {}
        Evict::Everybody => concerned.push(doc! { at.key("holders.0"): { "$exists": true } }),
        Evict::Holder(token) => concerned.push(doc! { at.key("holders.token"): token }),
    }
    if operation.evict != Evict::Nobody || operation.proclaim.is_some() {
        // Who asks for that is to be told that the document is of a later protocol, whatever is in it.
        concerned.push(doc! { at.key("protocol"): { "$gt": PROTOCOL } });
    }
    selection.insert("$or", concerned);
    selection
}

/// The pipeline of [`super::state::apply`] for a document that is selected. `now` is the server's clock, `"$$NOW"`,
/// except in tests.
pub(crate) fn operation(at: &Location, operation: &Operation, now: &Bson) -> Vec<Document> {
    if operation.expects == Expects::Alone {
        let as_expected = cond(
            in_order(at, [is_alone(at, operation)]),
            at.merged([alone(at, operation, now).into()]),
            "$$ROOT",
        );
        return vec![doc! { "$replaceWith": as_expected }];
    }
    if operation.expects == Expects::Holding {
        let (holds, gone) = match operation.leave_capacity {
            Some(1) => (is_holder(at, operation), goes(at, operation, now)),
            capacity => (is_among(at, operation), goes_from_among(at, operation, capacity, now)),
        };
        return vec![doc! { "$replaceWith": cond(in_order(at, [holds]), gone, "$$ROOT") }];
    }
    if let Some(requests) = operation
        .requests
        .as_ref()
        .filter(|requests| comes_plainly(operation, requests))
    {
        let comes = comes(at, operation, requests, now);
        return vec![doc! { "$replaceWith": cond(in_order(at, []), comes, "$$ROOT") }];
    }
    let mut holders = stay(at.value("holders"), operation, now);
    if let Some(proclaims) = &operation.proclaim {
        holders = proclaim(holders, proclaims);
    }
    // Variables: what is left of holders and queue, then both after the queue has advanced.
    let written = bind(doc! { "after": advance(at, operation, now) }, write(at, operation, now));
    let decided = match &operation.requests {
        Some(requests) => cond(used_as(at, requests), written, "$$ROOT"),
        None => written,
    };
    let holders = match operation.evict {
        Evict::Nobody => holders,
        Evict::Everybody => Bson::Array(Vec::new()),
        Evict::Holder(token) => {
            Bson::from(doc! { "$filter": { "input": holders, "cond": { "$ne": ["$$this.token", token] } } })
        }
    };
    let variables = doc! { "holders": holders, "queue": stay(at.value("queue"), operation, now) };
    let mut whole = bind(variables, decided);
    if let Some(identity) = adopts(operation) {
        whole = bind(doc! { "adopted": superseded(at, identity, now) }, whole);
    }
    vec![doc! { "$replaceWith": cond(in_order(at, []), whole, "$$ROOT") }]
}

/// The document is of a protocol that is known, and its counter can be counted on; then these conditions.
///
/// Nothing else of the document is looked at before: another protocol may have something else in its place.
fn in_order(at: &Location, conditions: impl IntoIterator<Item = Document>) -> Document {
    let mut all = vec![is_known(at), doc! { "$lte": [at.value("token"), NUMBER_MOST] }];
    all.extend(conditions);
    doc! { "$and": all }
}

/// The document is of a protocol that this client speaks, or of the first one, which had no number. Whatever is no number
/// is larger, to the server.
pub(crate) fn is_known(at: &Location) -> Document {
    doc! { "$lte": [at.value("protocol"), PROTOCOL] }
}

fn adopts(operation: &Operation) -> Option<&Identity> {
    operation.requests.as_ref()?.adopts.as_ref()
}

/// The entries of earlier incarnations, holders first. Only these have a token.
fn superseded(at: &Location, identity: &Identity, now: &Bson) -> Bson {
    let entries = |list| doc! { "$ifNull": [at.value(list), []] };
    Bson::from(doc! { "$filter": {
        "input": { "$concatArrays": [entries("holders"), entries("queue")] },
        "cond": { "$and": [
            { "$gt": ["$$this.until", now] },
            { "$eq": ["$$this.owner.id", literal(identity.id.as_str())] },
            { "$lt": ["$$this.owner.born", identity.born] },
        ] },
    } })
}

fn adopts_a_hold() -> Document {
    doc! { "$ne": ["$$adopted.token", []] }
}

/// As [`Operation::concerns`] says it of one that expects to be alone.
fn is_alone(at: &Location, operation: &Operation) -> Document {
    match &operation.requests {
        None => {
            doc! { "$eq": [[at.value("holders.id"), at.value("queue")], [literal(operation.leave.as_slice()), []]] }
        }
        Some(requests) => doc! { "$eq": [
            [at.value("kind"), at.value("capacity"), at.value("holders"), at.value("queue")],
            [requests.kind.as_str(), requests.capacity, [], []],
        ] },
    }
}

/// What leaves is the one holder there is.
fn is_holder(at: &Location, operation: &Operation) -> Document {
    doc! { "$eq": [at.value("holders.id"), literal(operation.leave.as_slice())] }
}

/// What leaves is one of the holders.
fn is_among(at: &Location, operation: &Operation) -> Document {
    doc! { "$setIsSubset": [
        literal(operation.leave.as_slice()),
        { "$ifNull": [at.value("holders.id"), []] },
    ] }
}

/// The only entry comes or goes, and that is all.
fn alone(at: &Location, operation: &Operation, now: &Bson) -> Document {
    come(at, operation, now)
}

/// What is asked for is held, by itself.
fn come(at: &Location, operation: &Operation, now: &Bson) -> Document {
    let token = next_token(at.value("token"), now);
    let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
    let holders: Vec<Document> = entries
        .map(|entry| {
            let mut holder = waiter(entry, now);
            holder.insert("token", &token);
            holder
        })
        .collect();
    let left = if operation.leave.is_empty() { "" } else { Left::HOLDER };
    let mut fields = doc! { "wake": literal(format!("{}:{left};", operation.id)) };
    if !holders.is_empty() {
        fields.insert("token", token);
    }
    fields.insert("holders", holders);
    fields.extend(stamp(at, operation.keep, now));
    fields
}

/// Selects the documents whose lock nobody holds and nobody waits for, those without one among them, as far as they are
/// [`fit`].
pub(crate) fn free(at: &Location, now: &Bson) -> Document {
    // First the condition that most documents fail that are not free.
    doc! { "$expr": { "$and": [{ "$lte": [last(at), now] }, fit(at)] } }
}

/// The latest end of any entry; there is none where there is no entry, and that comes before every date.
pub(crate) fn last(at: &Location) -> Document {
    doc! { "$max": [{ "$max": at.value("holders.until") }, { "$max": at.value("queue.until") }] }
}

/// Whether a document can be claimed once it is free: no lock is there so far, or one that stays readable when it is
/// written, and its `_id` is not too long. Every other document would fail the command for all.
pub(crate) fn fit(at: &Location) -> Document {
    let is = |value: &str, types: &[&str]| Bson::from(doc! { "$in": [{ "$type": value }, types.to_vec()] });
    let segments: Vec<&str> = at.segments().collect();
    // What leads to the lock must be sub-documents or missing.
    let mut conditions: Vec<Bson> = (1..segments.len())
        .map(|depth| {
            is(
                &format!("${}", segments[..depth].join(".")),
                &["missing", "null", "object"],
            )
        })
        .collect();
    conditions.push(Bson::from(is_known(at)));
    let lock = format!("${}", at.path());
    let of_a_lock = [
        is(&lock, &["object"]),
        is(&at.value("holders"), &["missing", "null", "array"]),
        is(&at.value("queue"), &["missing", "null", "array"]),
        is(&at.value("purge_at"), &["missing", "null", "date"]),
        is_counter(&at.value("token")),
        is_counter(&at.value("version")),
    ];
    conditions.push(Bson::from(doc! { "$or": [
        is(&lock, &["missing", "null"]),
        { "$and": of_a_lock.to_vec() },
    ] }));
    // The document around it has eight bytes more.
    let most = i64::try_from(ID_MOST + 8).unwrap_or(i64::MAX);
    conditions.push(Bson::from(doc! { "$lte": [{ "$bsonSize": { "i": "$_id" } }, most] }));
    doc! { "$and": conditions }
}

/// Whether it is missing, or a number that can be counted up, as [`super::document`] reads them.
fn is_counter(value: &str) -> Bson {
    let of_type = doc! { "$type": value };
    let most = cond(doc! { "$eq": [&of_type, "double"] }, DOUBLE_MOST, NUMBER_MOST);
    let number = doc! { "$ifNull": [value, 0_i64] };
    // To the server, what is not a number (NaN) is less than every number.
    Bson::from(doc! { "$and": [
        { "$in": [of_type, ["missing", "null", "int", "long", "double"]] },
        { "$gte": [&number, 0_i64] },
        { "$lt": [&number, most] },
        { "$eq": [{ "$trunc": &number }, &number] },
    ] })
}

/// The pipeline of [`super::state::apply`] for an operation with one fresh request, and for a document that is selected
/// by [`free`].
pub(crate) fn claim(at: &Location, operation: &Operation, requests: &Requests, now: &Bson) -> Vec<Document> {
    let mut fields = come(at, operation, now);
    fields.extend(used(requests));
    fields.insert("queue", Bson::Array(Vec::new()));
    vec![doc! { "$replaceWith": at.merged([fields.into()]) }]
}

/// The pipeline of [`super::state::renew`], for all documents at once that hold one of `ids`.
pub(crate) fn renewal(at: &Location, operation: &str, ids: &[String], keep: i64, now: &Bson) -> Vec<Document> {
    let renewed = doc! { "$and": [
        { "$gt": ["$$this.until", now] },
        { "$in": ["$$this.id", literal(ids)] },
    ] };
    // Renewals overtake each other, and the server's clock is read when a command begins.
    let until = doc! { "$max": ["$$this.until", { "$add": [now, "$$this.lease"] }] };
    let holders = doc! { "$map": { "input": at.value("holders"), "in": cond(
        renewed,
        doc! { "$mergeObjects": ["$$this", { "until": until }] },
        "$$this",
    ) } };
    let mut fields = doc! { "holders": "$$holders", "wake": literal(format!("{operation}:;")) };
    fields.extend(stamp(at, keep, now));
    let written = cond(
        doc! { "$ne": ["$$holders", at.value("holders")] },
        at.merged([fields.into()]),
        "$$ROOT",
    );
    let renewed = bind(doc! { "holders": holders }, written);
    vec![doc! { "$replaceWith": cond(is_known(at), renewed, "$$ROOT") }]
}

/// Selects the document while a holder with this id and token holds it.
pub(crate) fn holding(at: &Location, document: &Bson, (id, token): (&str, i64), now: &Bson) -> Document {
    let holders = at.value("holders");
    let holders = cond(doc! { "$isArray": &holders }, holders, Bson::Array(Vec::new()));
    let live = doc! { "$filter": { "input": holders, "cond": { "$gt": ["$$this.until", now] } } };
    doc! {
        "_id": document,
        at.key("holders"): { "$elemMatch": { "id": id, "token": token } },
        "$expr": { "$and": [
            is_known(at),
            bind(doc! { "live": live }, doc! { "$in": [literal(id), "$$live.id"] }),
        ] },
    }
}

/// The pipeline of [`super::state::renew`] for one holder in a document that is selected by [`holding`], except that it
/// writes even where the lease is as long already.
pub(crate) fn guard(at: &Location, operation: &str, id: &str, keep: i64, now: &Bson) -> Vec<Document> {
    let until = doc! { "$max": ["$$this.until", { "$add": [now, "$$this.lease"] }] };
    let mut fields = doc! {
        "holders": { "$map": { "input": at.value("holders"), "in": cond(
            doc! { "$eq": ["$$this.id", literal(id)] },
            doc! { "$mergeObjects": ["$$this", { "until": until }] },
            "$$this",
        ) } },
        "wake": literal(format!("{operation}:;")),
    };
    fields.extend(stamp(at, keep, now));
    vec![doc! { "$replaceWith": at.merged([fields.into()]) }]
}

fn literal(value: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$literal": value.into() })
}

fn bind(variables: Document, value: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$let": { "vars": variables, "in": value.into() } })
}

fn cond(condition: impl Into<Bson>, then: impl Into<Bson>, or: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$cond": [condition.into(), then.into(), or.into()] })
}

/// The entries of a list whose time is not over and that do not leave.
fn stay(list: String, operation: &Operation, now: &Bson) -> Bson {
    let mut stays = doc! { "$gt": ["$$this.until", now] };
    let among = |ids: Bson| doc! { "$not": { "$in": ["$$this.id", ids] } };
    if !operation.leave.is_empty() {
        stays = doc! { "$and": [stays, among(literal(operation.leave.as_slice()))] };
    }
    if adopts(operation).is_some() {
        stays = doc! { "$and": [stays, among("$$adopted.id".into())] };
    }
    Bson::from(doc! { "$filter": { "input": { "$ifNull": [list, []] }, "cond": stays } })
}

fn proclaim(holders: Bson, Proclaim { id, value, number }: &Proclaim) -> Bson {
    let owner = doc! { "$mergeObjects": ["$$this.owner", { "value": literal(value.as_str()), "proclaimed": *number }] };
    let earlier = doc! { "$lt": [{ "$ifNull": ["$$this.owner.proclaimed", 0_i64] }, *number] };
    Bson::from(doc! { "$map": { "input": holders, "in": cond(
        doc! { "$and": [{ "$eq": ["$$this.id", literal(id.as_str())] }, earlier] },
        doc! { "$mergeObjects": ["$$this", { "owner": owner }] },
        "$$this",
    ) } })
}

/// The lock is idle, or used as it is asked for.
fn used_as(at: &Location, requests: &Requests) -> Document {
    doc! { "$or": [
        { "$eq": [[at.value("kind"), at.value("capacity")], [requests.kind.as_str(), requests.capacity]] },
        { "$eq": [["$$holders", "$$queue"], [[], []]] },
    ] }
}

/// The queue with what is asked for at its end, or before it where that adopts a hold.
fn enqueue(operation: &Operation, now: &Bson) -> Bson {
    let queue = enqueue_last(operation, now);
    if adopts(operation).is_none() {
        return queue;
    }
    let others = doc! { "$size": "$$queue" };
    let first = doc! { "$concatArrays": [
        { "$slice": ["$$asked", &others, ALL] },
        { "$slice": ["$$asked", &others] },
    ] };
    bind(doc! { "asked": queue }, cond(adopts_a_hold(), first, "$$asked"))
}

/// The queue with what is asked for at its end. What is there already stays where it is; its lease is refreshed, if much
/// of it is over and this is no first request, which was overtaken by its own repetition then.
///
/// However many entries are asked for, it nests no deeper: the server refuses what nests too deep.
fn enqueue_last(operation: &Operation, now: &Bson) -> Bson {
    let requests = operation.requests.iter().flat_map(|requests| &requests.entries);
    let (fresh, known): (Vec<_>, Vec<_>) = requests.partition(|entry| entry.fresh);
    let mut queue = Bson::from("$$queue");
    if !known.is_empty() {
        let branches: Vec<_> = known.iter().map(|entry| refresh(entry, now)).collect();
        let refreshed = doc! { "$switch": { "branches": branches, "default": "$$this" } };
        queue = Bson::from(doc! { "$map": { "input": queue, "in": refreshed } });
    }
    let added: Vec<_> = known.into_iter().chain(fresh).map(|entry| waiter(entry, now)).collect();
    if added.is_empty() {
        return queue;
    }
    let there = doc! { "$concatArrays": ["$$holders.id", "$$queue.id"] };
    let absent = doc! { "$not": { "$in": ["$$this.id", there] } };
    let added = doc! { "$filter": { "input": added, "cond": absent } };
    Bson::from(doc! { "$concatArrays": [queue, added] })
}

fn refresh(entry: &Request, now: &Bson) -> Document {
    let stale = doc! { "$and": [
        { "$eq": ["$$this.id", literal(entry.id.as_str())] },
        { "$lt": ["$$this.until", { "$add": [now, entry.refresh_below()] }] },
    ] };
    let until = doc! { "until": { "$add": [now, entry.lease] } };
    doc! { "case": stale, "then": { "$mergeObjects": ["$$this", until] } }
}

fn waiter(entry: &Request, now: &Bson) -> Document {
    doc! {
        "id": literal(entry.id.as_str()),
        "permits": entry.permits,
        "lease": entry.lease,
        "claim": entry.claim,
        "since": now,
        "until": { "$add": [now, entry.lease] },
        "owner": literal(entry.owner.to_document()),
    }
}

/// Entries come for the first time to a lock of one permit: what most requests are.
fn comes_plainly(operation: &Operation, requests: &Requests) -> bool {
    requests.capacity == 1 && operation.leave.is_empty() && requests.adopts.is_none() && !operation.may_be_no_op()
}

/// The holder goes, and who is first in line becomes the holder.
fn goes(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let wake = literal(format!("{}:{};", operation.id, Left::HOLDER));
    let unchanged = doc! { "holders": [], "queue": [], "wake": &wake };
    let after = cond(
        doc! { "$eq": ["$$queue", []] },
        unchanged,
        let_in(at, "$$queue", wake, operation, now),
    );
    let written = at.merged([after, stamp(at, operation.keep, now).into()]);
    let live = doc! { "$gt": ["$$this.until", now] };
    let queue = doc! { "$filter": { "input": { "$ifNull": [at.value("queue"), []] }, "cond": live } };
    bind(doc! { "queue": queue }, written)
}

/// One of the holders goes, and who is first in line comes in as long as it fits.
fn goes_from_among(at: &Location, operation: &Operation, capacity: Option<i64>, now: &Bson) -> Bson {
    let wake = literal(format!("{}:{};", operation.id, Left::HOLDER));
    let live = doc! { "$gt": ["$$this.until", now] };
    let queue = doc! { "$filter": { "input": { "$ifNull": [at.value("queue"), []] }, "cond": live } };
    let after = fold(
        at,
        queue.into(),
        ("wake", wake),
        capacity_of(at, capacity),
        operation,
        now,
    );
    let written = at.merged([after, stamp(at, operation.keep, now).into()]);
    bind(doc! { "holders": stay(at.value("holders"), operation, now) }, written)
}

/// Somebody comes, and who is then first in line becomes the holder if there is none.
fn comes(at: &Location, operation: &Operation, requests: &Requests, now: &Bson) -> Bson {
    let wake = literal(format!("{}:;", operation.id));
    let unchanged = doc! { "holders": "$$holders", "queue": with_room("$$all", operation), "wake": &wake };
    let after = cond(
        doc! { "$eq": ["$$holders", []] },
        let_in(at, "$$all", wake, operation, now),
        unchanged,
    );
    let written = at.merged([used(requests).into(), after, stamp(at, operation.keep, now).into()]);
    let written = bind(doc! { "all": enqueue(operation, now) }, written);
    let variables =
        doc! { "holders": stay(at.value("holders"), operation, now), "queue": stay(at.value("queue"), operation, now) };
    bind(variables, cond(used_as(at, requests), written, "$$ROOT"))
}

/// The first of a list that is not empty is the holder, and the others are the queue.
fn let_in(at: &Location, list: &str, wake: Bson, operation: &Operation, now: &Bson) -> Bson {
    bind(
        doc! { "head": { "$arrayElemAt": [list, 0] }, "token": next_token(at.value("token"), now) },
        doc! {
            "token": "$$token",
            "holders": [holder("$$head", operation, now)],
            "queue": { "$slice": [list, 1, room(operation)] },
            "wake": granted(wake, "$$head", "$$token", operation),
        },
    )
}

/// As much of the queue as it has room for. Where nothing is asked for, nothing was added.
fn with_room(queue: &str, operation: &Operation) -> Bson {
    match operation.requests {
        Some(_) => Bson::from(doc! { "$slice": [queue, room(operation)] }),
        None => Bson::from(queue),
    }
}

fn room(operation: &Operation) -> i64 {
    i64::try_from(operation.room).unwrap_or(ALL).clamp(1, ALL)
}

/// Holders, queue and token after the head of the queue was let in as long as it fits, and the words for those who
/// did not ask.
fn advance(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let queue = enqueue(operation, now);
    let mut after = match operation.capacity() {
        Some(1) => bind(doc! { "all": queue }, advance_by_one(at, operation, now)),
        capacity => {
            let capacity = capacity_of(at, capacity);
            fold(at, queue, ("granted", "".into()), capacity, operation, now)
        }
    };
    let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
    let trying: Vec<&str> = entries
        .filter(|entry| !entry.wait)
        .map(|entry| entry.id.as_str())
        .collect();
    if !trying.is_empty() {
        // What asked not to wait goes out again.
        let stays = doc! { "$not": { "$in": ["$$this.id", literal(trying)] } };
        let queue = doc! { "$filter": { "input": "$$advanced.queue", "cond": stays } };
        after = bind(
            doc! { "advanced": after },
            doc! { "$mergeObjects": ["$$advanced", { "queue": queue }] },
        );
    }
    after
}

/// Where there is but one permit, the head is let in if nobody holds, and nobody else can be.
fn advance_by_one(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let lets_in = doc! { "$and": [{ "$eq": ["$$holders", []] }, { "$ne": ["$$all", []] }] };
    let granted = bind(
        doc! { "head": { "$arrayElemAt": ["$$all", 0] }, "token": next_token(at.value("token"), now) },
        doc! {
            "holders": [holder("$$head", operation, now)],
            "token": "$$token",
            "queue": { "$slice": ["$$all", 1, room(operation)] },
            "granted": granted("".into(), "$$head", "$$token", operation),
        },
    );
    let queue = with_room("$$all", operation);
    let unchanged = doc! { "holders": "$$holders", "token": at.value("token"), "queue": queue, "granted": "" };
    cond(lets_in, granted, unchanged)
}

/// The capacity, where it is not known the document's.
fn capacity_of(at: &Location, capacity: Option<i64>) -> Bson {
    capacity.map_or(Bson::from(at.value("capacity")), Bson::from)
}

/// Holders, queue and token after the head of the queue was let in as long as it fits. The words for those who did not
/// ask follow what the named field begins with.
///
/// Counts first how many are let in, and then cuts the queue there: an array that grew by an element for each waiter
/// would be copied as often.
fn fold(
    at: &Location,
    queue: Bson,
    (words, first): (&str, Bson),
    capacity: Bson,
    operation: &Operation,
    now: &Bson,
) -> Bson {
    let held = doc! { "$add": ["$$value.held", "$$this.permits"] };
    let comes = bind(
        doc! { "held": held },
        cond(
            doc! { "$lte": ["$$held", capacity] },
            doc! { "held": "$$held", "count": { "$add": ["$$value.count", 1] } },
            // Behind one that has to wait, all wait.
            doc! { "held": f64::INFINITY, "count": "$$value.count" },
        ),
    );
    let counted = doc! { "$reduce": {
        "input": "$$line",
        "initialValue": { "held": { "$sum": "$$holders.permits" }, "count": 0 },
        "in": comes,
    } };
    let came = bind(
        doc! { "head": { "$arrayElemAt": ["$$line", "$$this"] }, "token": { "$add": ["$$first", "$$this"] } },
        holder("$$head", operation, now),
    );
    let let_in = bind(
        doc! { "came": { "$map": { "input": { "$range": [0, "$$count"] }, "in": came } } },
        doc! {
            "holders": { "$concatArrays": ["$$holders", "$$came"] },
            "token": { "$add": ["$$first", "$$count", -1] },
            "queue": { "$slice": ["$$line", "$$count", room(operation)] },
            words: { "$reduce": {
                "input": "$$came",
                "initialValue": &first,
                "in": granted("$$value".into(), "$$this", "$$this.token", operation),
            } },
        },
    );
    let line = with_room("$$line", operation);
    let unchanged = doc! { "holders": "$$holders", "token": at.value("token"), "queue": line, words: first };
    let counted = doc! { "count": { "$let": { "vars": { "counted": counted }, "in": "$$counted.count" } } };
    let after = bind(
        doc! { "first": next_token(at.value("token"), now) },
        cond(doc! { "$eq": ["$$count", 0] }, unchanged, let_in),
    );
    bind(doc! { "line": queue }, bind(counted, after))
}

/// A waiter as a holder: on its full lease if it asks, as it is alive then, else on its claim.
fn holder(waiter: &str, operation: &Operation, now: &Bson) -> Document {
    let of = |field: &str| Bson::from(format!("{waiter}.{field}"));
    let until = doc! { "$add": [now, if_asking(waiter, operation, of("lease"), of("claim"))] };
    doc! { "$mergeObjects": [waiter, { "token": "$$token", "since": now, "until": until }] }
}

fn granted(words: Bson, waiter: &str, token: &str, operation: &Operation) -> Bson {
    let word = doc! { "$concat": [&words, format!("{waiter}.id"), "+", { "$toString": token }, ";"] };
    if_asking(waiter, operation, words, word.into())
}

fn if_asking(waiter: &str, operation: &Operation, yes: Bson, no: Bson) -> Bson {
    let entries = operation.requests.iter().flat_map(|requests| &requests.entries);
    let asking: Vec<&str> = entries.map(|entry| entry.id.as_str()).collect();
    if asking.is_empty() {
        return no;
    }
    cond(doc! { "$in": [format!("{waiter}.id"), literal(asking)] }, yes, no)
}

/// What a lock is used as, by whoever asks for it. The number of the protocol is written with it: see [`super`].
fn used(requests: &Requests) -> Document {
    doc! { "protocol": PROTOCOL, "kind": requests.kind.as_str(), "capacity": requests.capacity }
}

/// The document as it is to be, or as it was where nothing came of it: the server logs no write and raises no event
/// for a document that stays the same.
fn write(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let mut fields = Document::new();
    if let Some(requests) = &operation.requests {
        fields.extend(used(requests));
    }
    let mut wake = vec![literal(format!("{}:", operation.id))];
    wake.extend(operation.leave.iter().map(|id| left(at, id)));
    wake.extend([Bson::from(";"), Bson::from("$$after.granted")]);
    let evicted = match operation.evict {
        Evict::Nobody => None,
        Evict::Everybody => Some(Bson::from(at.value("holders"))),
        Evict::Holder(token) => Some(Bson::from(doc! { "$filter": {
            "input": at.value("holders"),
            "cond": { "$eq": ["$$this.token", token] },
        } })),
    };
    wake.extend(evicted.map(|list| put_out(list, "!", doc! { "$toString": "$$this.token" }.into())));
    if adopts(operation).is_some() {
        wake.push(put_out("$$adopted".into(), "~", "".into()));
        // What is missing stays so.
        fields.insert("adopted", cond(adopts_a_hold(), "$$adopted.token", at.value("adopted")));
    }
    fields.extend(doc! {
        "token": "$$after.token",
        "holders": "$$after.holders",
        "queue": "$$after.queue",
        "wake": { "$concat": wake },
    });
    fields.extend(stamp(at, operation.keep, now));
    match operation.evict {
        Evict::Nobody => {}
        Evict::Everybody => drop(fields.insert("broken", doc! { "$max": at.value("holders.token") })),
        Evict::Holder(token) => drop(fields.insert("evicted", token)),
    }
    if !operation.may_be_no_op() {
        return at.merged([fields.into()]);
    }
    let changed = doc! { "$ne": [["$$after.holders", "$$after.queue"], [at.value("holders"), at.value("queue")]] };
    cond(changed, at.merged([fields.into()]), "$$ROOT")
}

fn left(at: &Location, id: &str) -> Bson {
    // Who leaves may be told of a lock that is gone.
    let there = |list: String| doc! { "$in": [literal(id), { "$ifNull": [list, []] }] };
    cond(
        there(at.value("holders.id")),
        Left::HOLDER,
        cond(there(at.value("queue.id")), Left::WAITER, Left::NOWHERE),
    )
}

/// The words for entries that were put out.
fn put_out(list: Bson, mark: &str, token: Bson) -> Bson {
    Bson::from(doc! { "$reduce": {
        "input": list,
        "initialValue": "",
        "in": { "$concat": ["$$value", "$$this.id", mark, token, ";"] },
    } })
}

/// See [`super::state::next_token`]. A missing counter counts for nothing, as does what is no number to be added to.
///
/// A counter that somebody set by hand can be of any numeric type; a token is none but a whole number of 64 bits.
fn next_token(last: String, now: &Bson) -> Document {
    doc! { "$toLong": { "$max": [{ "$add": [last, 1_i64] }, { "$multiply": [{ "$toLong": now }, 1000_i64] }] } }
}

/// What every write renews.
fn stamp(at: &Location, keep: i64, now: &Bson) -> Document {
    doc! {
        "version": { "$add": [{ "$ifNull": [at.value("version"), 0_i64] }, 1_i64] },
        "at": now,
        "purge_at": { "$max": [at.value("purge_at"), { "$add": [now, keep] }] },
    }
}
