//! The transitions of [`super::state`] as aggregation pipelines for `findAndModify` and `update`.
//!
//! [`general`] is the form of an operation for any document: the phases of [`super`] by the names of the specification
//! and in its order, each a function of its own. [`short`] has the short forms of the frequent operations, under a
//! table of the phases that each leaves out and why it may.
//!
//! [`together()`] has two of the short forms for many documents at once, and [`claim_together`] the claim.
//!
//! The conditions between the phases, `is_used_as_requested` and `is_changed`, have the same names in both too, and so
//! have the helpers of the phases: `mark_kept` of leave, `superseded` and `adopts_a_hold` of adopt, `append` of
//! enqueue, `grant` and `next_token` of advance, `asks` and `asked_for` of stamp. All other functions are only here: an
//! expression has one value, so what else a phase changes is apart from it, as `fields_of_` or `words_of_` that phase,
//! and stamp puts these together; and leave and adopt return the condition under which an entry stays, which is applied
//! once for both.
//!
//! Only operators of MongoDB 4.4 are used. Everything that a user can choose (names, owners, reasons) and every id goes
//! in under `$literal`, so that no string is ever read as an expression or a field path.
//!
//! The cost of a pipeline to the server is mostly its size (about 0.1 ms a kilobyte, against 0.25 ms for a trivial
//! command), so each operation sends only what it needs: a release compares nothing, and a first request refreshes
//! nothing. A filter by more than `_id` costs as much again,
//! as the server then plans a query; so every operation decides in the pipeline whether there is anything to do.

mod claiming;
mod ending;
mod expression;
mod granting;
mod renewing;
mod selecting;
mod sharing;
mod short;
mod together;

use mongodb::bson::{Bson, Document, doc};

use super::{
    CapacityIs, Change, Evict, Expects, Identity, Kept, KeptUntil, Operation, Owner, Request, Requests,
    document::{PROTOCOL, protocol},
    location::Location,
    state::kept_in_reserve,
    wake::Left,
};
use expression::{bind, cond, filter, literal, map};
use granting::{asked_for, grant_as_fits};
use selecting::{in_order, is_lock_or_new};

pub use claiming::{claim, fit, free, is_attempted_below, last};
pub use renewing::{guard, holding, renewal};
pub use selecting::{is_known, selection};
pub use sharing::{renewal_of_all, sweep};
pub use together::{claim_together, together};

/// Maximum length of a slice: longer than any queue. From a position on, `$slice` requires a length.
const ALL: i64 = 1 << 30;

/// Returns the pipeline of [`super::state::apply`] for a document that [`selection`] selects. `now` is the server's
/// clock, `"$$NOW"`, except in tests.
pub fn operation(at: &Location, operation: &Operation, now: &Bson) -> Vec<Document> {
    let (expected, written) = match short::form(at, operation, now) {
        Some((expected, written)) => (Some(expected), written),
        None => (concerns(at, operation, now), general(at, operation, now)),
    };
    let conditions = is_lock_or_new(at, operation).into_iter().chain(expected);
    vec![doc! { "$replaceWith": cond(in_order(at, conditions), written, "$$ROOT") }]
}

/// Returns the condition that the document is as expected, and has anything for the operation to do, as every document
/// has for a request.
fn concerns(at: &Location, operation: &Operation, now: &Bson) -> Option<Document> {
    if operation.requests.is_some() {
        return None;
    }
    if operation.expects == Expects::Holding {
        let holders = remaining(at, "holders", &doc! { "$and": [live(now), is_not_kept()] });
        let ids = bind(doc! { "holders": holders }, "$$holders.id");
        return Some(doc! { "$setIsSubset": [literal(operation.leave.as_slice()), ids] });
    }
    let ids = |list: &str| {
        let ids = at.value(list);
        cond(doc! { "$isArray": [&ids] }, ids, Bson::Array(Vec::new()))
    };
    let mut concerned = Vec::new();
    if !operation.leave.is_empty() {
        let there = doc! { "$concatArrays": [ids("holders.id"), ids("queue.id")] };
        concerned.push(doc! { "$setIntersection": [literal(operation.leave.as_slice()), there] }.into());
    }
    if let Some(change) = &operation.change {
        let either = change.ids().map(|id| Bson::from(id.as_str()));
        concerned.push(doc! { "$setIntersection": [literal(either.to_vec()), ids("holders.id")] }.into());
    }
    if operation.evict != Evict::Nobody {
        concerned.push(evicted(at, operation, now));
    }
    let any: Vec<Document> = concerned.into_iter().map(|some| doc! { "$ne": [some, []] }).collect();
    Some(doc! { "$or": any })
}

/// Takes the document through all phases.
///
/// Each phase reads the variables that earlier ones were bound to: `$$adopted`, then `$$holders` and `$$queue`, then
/// `$$after`. An expression nests later phases inside earlier ones, so they are bound from the last to the first.
fn general(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let stays = leave(operation, now);
    let stays = adopt(stays, operation);
    let holders = filter(mark_kept(existing(at, "holders"), operation, now), &stays);
    let holders = change(holders, operation, now);
    let holders = evict(holders, operation);
    let queue = enqueue(operation, now);
    let after = advance(at, queue, operation, now);
    let ends = ending::record(at, operation, now);
    let mut written = stamp(at, operation, ends, now);

    if operation.may_be_no_op() {
        written = cond(is_changed(at), written, "$$ROOT");
    }
    written = bind(doc! { "after": after }, written);
    if let Some(requests) = &operation.requests {
        if requests.by == CapacityIs::Offered {
            written = bind(doc! { "capacity": offered(at, requests) }, written);
        }
        written = cond(is_used_as_requested(at, requests), written, "$$ROOT");
    }
    written = bind(
        doc! { "holders": holders, "queue": remaining(at, "queue", &stays) },
        written,
    );
    if let Some(identity) = operation.adopts() {
        written = bind(doc! { "adopted": superseded(at, identity, now) }, written);
    }
    written
}

/// Removes the entries that are asked to leave, and all whose lease has run out: the condition under which one stays. A
/// lock that is kept goes by expiry alone.
fn leave(operation: &Operation, now: &Bson) -> Document {
    if operation.leave.is_empty() {
        return live(now);
    }
    let mut stays = vec![
        is_not_among(literal(operation.leave.as_slice())),
        doc! { "$not": is_not_kept() },
    ];
    stays.extend(spared(operation));
    doc! { "$and": [live(now), { "$or": stays }] }
}

/// Returns the conditions that a holder is spared when its entry leaves, one for each that is.
fn spared(operation: &Operation) -> impl Iterator<Item = Document> {
    let spared = operation.kept.iter().filter(|kept| kept.until == KeptUntil::Expiry);
    spared.map(|kept| is_grant(&kept.id, kept.token))
}

/// Returns the condition that a holder is this grant of an entry.
fn is_grant(id: &str, token: i64) -> Document {
    doc! { "$eq": [["$$this.id", "$$this.token"], [literal(id), token]] }
}

/// Marks the holders that leave and whose lock is to be kept as released, if that is to end later than now.
fn mark_kept(holders: Bson, operation: &Operation, now: &Bson) -> Bson {
    let branches = operation.kept.iter().filter_map(|Kept { id, token, until }| {
        let until = match *until {
            KeptUntil::Expiry => return None,
            KeptUntil::AfterGrant(millis) => Bson::from(doc! { "$add": ["$$this.since", millis] }),
            KeptUntil::AfterRelease(millis) => doc! { "$add": [now, millis] }.into(),
            KeptUntil::WindowEnd { length, offset } => {
                let into = doc! { "$mod": [
                    { "$subtract": [{ "$toLong": "$$this.since" }, offset] },
                    length.max(1),
                ] };
                doc! { "$add": ["$$this.since", { "$subtract": [length, into] }] }.into()
            }
        };
        let leaves = doc! { "$and": [is_grant(id, *token), live(now), is_not_kept(), { "$gt": [&until, now] }] };
        Some(doc! { "case": leaves, "then": { "$mergeObjects": ["$$this", { "until": until, "released": now }] } })
    });
    let branches: Vec<Document> = branches.collect();
    if branches.is_empty() {
        return holders;
    }
    map(
        holders,
        doc! { "$switch": { "branches": branches, "default": "$$this" } },
    )
}

/// Returns the condition that an entry's holder has not released it. To the server, a missing value is less than null.
fn is_not_kept() -> Document {
    doc! { "$lte": ["$$this.released", null] }
}

fn live(now: &Bson) -> Document {
    doc! { "$gt": ["$$this.until", now] }
}

fn is_not_among(ids: Bson) -> Document {
    doc! { "$not": { "$in": ["$$this.id", ids] } }
}

/// Returns the entries of a list that stay.
fn remaining(at: &Location, list: &str, stays: &Document) -> Bson {
    filter(existing(at, list), stays)
}

/// Returns the entries of a list, which is missing where there is no lock.
fn existing(at: &Location, list: &str) -> Bson {
    Bson::from(doc! { "$ifNull": [at.value(list), []] })
}

fn words_of_leave(at: &Location, operation: &Operation, now: &Bson) -> Option<Bson> {
    if operation.leave.is_empty() {
        return None;
    }
    if operation.expects == Expects::Holding {
        return Some(Left::HOLDER.into());
    }
    let words = operation.leave.iter().map(|id| {
        // The list is missing where the lock is gone.
        let waits = doc! { "$in": [literal(id.as_str()), existing(at, "queue.id")] };
        let holds = doc! { "$in": [literal(id.as_str()), "$$held.id"] };
        cond(holds, Left::HOLDER, cond(waits, Left::WAITER, Left::NOWHERE))
    });
    let words: Vec<Bson> = words.collect();
    let mut held = vec![live(now)];
    held.extend(spared(operation).map(|spared| doc! { "$not": [spared] }));
    let held = remaining(at, "holders", &doc! { "$and": held });
    Some(bind(doc! { "held": held }, doc! { "$concat": words }))
}

/// Removes the entries of earlier incarnations of the owner that requests.
fn adopt(stays: Document, operation: &Operation) -> Document {
    match operation.adopts() {
        Some(_) => doc! { "$and": [stays, is_not_among("$$adopted.id".into())] },
        None => stays,
    }
}

/// Returns the entries of earlier incarnations, holders first. Only holders have a token.
fn superseded(at: &Location, identity: &Identity, now: &Bson) -> Bson {
    let earlier = doc! { "$and": [
        live(now),
        is_not_kept(),
        { "$eq": ["$$this.owner.id", literal(identity.id.as_str())] },
        { "$lt": ["$$this.owner.born", identity.born] },
    ] };
    filter(
        doc! { "$concatArrays": [existing(at, "holders"), existing(at, "queue")] },
        earlier,
    )
}

fn adopts_a_hold() -> Document {
    doc! { "$ne": ["$$adopted.token", []] }
}

fn fields_of_adopt(at: &Location, operation: &Operation) -> Document {
    match operation.adopts() {
        // A missing field stays missing.
        Some(_) => doc! { "adopted": cond(adopts_a_hold(), "$$adopted.token", at.value("adopted")) },
        None => Document::new(),
    }
}

fn words_of_adopt(operation: &Operation) -> Option<Bson> {
    operation
        .adopts()
        .map(|_| words_for("$$adopted".into(), "~", "".into()))
}

/// Renews a holder with fewer permits, a longer lease, or under another entry.
fn change(holders: Bson, operation: &Operation, now: &Bson) -> Bson {
    let Some(change) = &operation.change else {
        return holders;
    };
    let Change {
        token,
        permits,
        lease,
        becomes,
        owner,
        value,
        ..
    } = change;
    let is_it = change.ids().map(|id| is_grant(id, *token));
    let is_it = doc! { "$and": [{ "$or": is_it.to_vec() }, is_not_kept()] };
    let lease = doc! { "$max": ["$$this.lease", *lease] };
    let mut changed = doc! {
        "id": literal(becomes.as_str()),
        "permits": { "$min": ["$$this.permits", *permits] },
        "until": { "$max": ["$$this.until", { "$add": [now, &lease] }] },
        "lease": lease,
    };
    if let Some(owner) = owner_after(owner.as_ref(), value.as_ref()) {
        changed.insert("owner", owner);
    }
    map(
        holders,
        cond(is_it, doc! { "$mergeObjects": ["$$this", changed] }, "$$this"),
    )
}

/// Returns the owner of a holder after a change; `None`: it stays as it is.
fn owner_after(owner: Option<&Owner>, value: Option<&(String, i64)>) -> Option<Bson> {
    let present = owner.map(|owner| literal(owner.to_document()));
    let Some((value, number)) = value else {
        return present;
    };
    let proclaimed = match owner {
        Some(owner) => Bson::from(owner.proclaimed),
        None => doc! { "$ifNull": ["$$this.owner.proclaimed", 0_i64] }.into(),
    };
    let present = present.unwrap_or_else(|| "$$this.owner".into());
    let shown = doc! { "value": literal(value.as_str()), "proclaimed": *number };
    Some(cond(
        doc! { "$lt": [proclaimed, *number] },
        doc! { "$mergeObjects": [&present, shown] },
        present,
    ))
}

/// Returns the holders that the operation evicts. An operator evicts none whose time is over.
fn evicted(at: &Location, operation: &Operation, now: &Bson) -> Bson {
    let live = live(now);
    let evicted = match operation.evict {
        Evict::Holder(token) => doc! { "$and": [live, { "$eq": ["$$this.token", token] }] },
        Evict::Kept(last) => doc! { "$and": [{ "$not": is_not_kept() }, { "$lte": ["$$this.token", last] }] },
        Evict::Everybody | Evict::Nobody => live,
    };
    remaining(at, "holders", &evicted)
}

/// Removes the holders that are evicted. Those whose time is over were removed before, and lose nothing.
fn evict(holders: Bson, operation: &Operation) -> Bson {
    match operation.evict {
        Evict::Nobody => holders,
        Evict::Everybody => Bson::Array(Vec::new()),
        Evict::Holder(token) => filter(holders, doc! { "$ne": ["$$this.token", token] }),
        Evict::Kept(last) => {
            let up_to_it = doc! { "$lte": ["$$this.token", last] };
            let held = filter("$$present", doc! { "$and": [is_not_kept(), &up_to_it] });
            let rest = filter("$$present", doc! { "$or": [is_not_kept(), { "$not": [up_to_it] }] });
            let evicted = cond(doc! { "$eq": [held, []] }, rest, "$$present");
            bind(doc! { "present": holders }, evicted)
        }
    }
}

fn fields_of_evict(at: &Location, operation: &Operation, now: &Bson) -> Document {
    match operation.evict {
        Evict::Nobody | Evict::Kept(_) => Document::new(),
        Evict::Everybody => {
            let evicted = doc! { "evicted": evicted(at, operation, now) };
            doc! { "broken": bind(evicted, doc! { "$max": "$$evicted.token" }) }
        }
        Evict::Holder(token) => doc! { "evicted": token },
    }
}

fn words_of_evict(at: &Location, operation: &Operation, now: &Bson) -> Option<Bson> {
    let words = || {
        words_for(
            evicted(at, operation, now),
            "!",
            doc! { "$toString": "$$this.token" }.into(),
        )
    };
    operation.breaks().then(words)
}

/// Returns the words for entries that evict or adopt removed.
fn words_for(removed: Bson, mark: &str, token: Bson) -> Bson {
    Bson::from(doc! { "$reduce": {
        "input": removed,
        "initialValue": "",
        "in": { "$concat": ["$$value", "$$this.id", mark, token, ";"] },
    } })
}

/// Returns the condition that the requested entries can be in the lock: it is of their kind and capacity, or can become
/// so.
fn is_used_as_requested(at: &Location, requests: &Requests) -> Document {
    let is_alike = match requests.by {
        CapacityIs::Demanded => doc! {
            "$eq": [[at.value("kind"), at.value("capacity")], [requests.kind.as_str(), requests.capacity]],
        },
        CapacityIs::Offered | CapacityIs::Set => doc! { "$eq": [at.value("kind"), requests.kind.as_str()] },
    };
    doc! { "$or": [is_alike, is_open(at)] }
}

/// Returns the condition that the next request decides what the lock is: nobody is in it, and its capacity was not set.
fn is_open(at: &Location) -> Document {
    doc! { "$eq": [["$$holders", "$$queue", { "$eq": [at.value("protocol"), PROTOCOL] }], [[], [], false]] }
}

/// Returns the capacity of a lock to which one is offered.
fn offered(at: &Location, requests: &Requests) -> Bson {
    cond(is_open(at), requests.capacity, at.value("capacity"))
}

/// Returns the capacity of the lock from these requests on.
fn capacity(requests: &Requests) -> Bson {
    match requests.by {
        CapacityIs::Demanded | CapacityIs::Set => Bson::from(requests.capacity),
        CapacityIs::Offered => Bson::from("$$capacity"),
    }
}

/// Returns the kind and capacity of the lock from this request on. The number of the protocol is written with them: see
/// [`super`].
fn fields_of_enqueue(at: &Location, requests: &Requests, capacity: Bson) -> Document {
    let protocol = doc! { "$max": [at.value("protocol"), protocol(requests.by == CapacityIs::Set)] };
    doc! { "protocol": protocol, "kind": requests.kind.as_str(), "capacity": capacity }
}

/// Returns the condition that a waiter for more permits than the lock has is among those in line.
fn is_too_large(operation: &Operation) -> Option<Document> {
    let requests = operation.requests.as_ref()?;
    Some(doc! { "$gt": ["$$this.permits", capacity(requests)] })
}

/// Returns the words for the waiters for more permits than are set: they are to ask, and are refused then.
fn words_of_too_large(operation: &Operation) -> Option<Bson> {
    let too_large = is_too_large(operation).filter(|_| operation.sets())?;
    Some(words_for(filter("$$queue", too_large), "*", "".into()))
}

/// Appends the requested entries to the queue, unless they are in the document already, or have more permits than the
/// lock. If adopt removed a holder, they take its place: the head of the queue, whether or not there is room. So nobody
/// is cut off who was there before. An entry that upgrades a holder goes before all of them.
fn enqueue(operation: &Operation, now: &Bson) -> Bson {
    let mut queue = append(operation, now);
    if operation.sets() {
        let fits = is_too_large(operation).map(|too_large| doc! { "$not": [too_large] });
        queue = filter(queue, fits.unwrap_or_default());
    }
    if operation.adopts().is_some() {
        let others = doc! { "$size": "$$queue" };
        let first = doc! { "$concatArrays": [
            { "$slice": ["$$asked", &others, ALL] },
            { "$slice": ["$$asked", &others] },
        ] };
        queue = bind(doc! { "asked": queue }, cond(adopts_a_hold(), first, "$$asked"));
    }
    put_upgrades_first(queue, operation)
}

/// Moves the entries that upgrade a holder to the head of the queue, except those that don't wait and don't fit.
fn put_upgrades_first(queue: Bson, operation: &Operation) -> Bson {
    let (Some(mut upgrades), Some(requests)) = (upgrades_a_holder(operation), &operation.requests) else {
        return queue;
    };
    let tries = tries(operation);
    if !tries.is_empty() {
        let held = doc! { "$add": [{ "$sum": "$$holders.permits" }, "$$this.permits"] };
        let waits = is_not_among(literal(tries));
        upgrades = doc! { "$and": [upgrades, { "$or": [waits, { "$lte": [held, capacity(requests)] }] }] };
    }
    let first = doc! { "$concatArrays": [
        filter("$$ordered", upgrades.clone()),
        filter("$$ordered", doc! { "$not": [upgrades] }),
    ] };
    bind(doc! { "ordered": queue }, first)
}

/// Returns the condition that an entry upgrades a holder, if the operation requests one that may.
fn upgrades_a_holder(operation: &Operation) -> Option<Document> {
    let upgrades = operation.upgrades().map(|(id, reader)| {
        doc! { "$and": [
            { "$eq": ["$$this.id", literal(id.as_str())] },
            { "$in": [literal(reader.as_str()), "$$holders.id"] },
        ] }
    });
    let upgrades: Vec<Document> = upgrades.collect();
    (!upgrades.is_empty()).then(|| doc! { "$or": upgrades })
}

/// Appends the requested entries to the queue. An entry that is there keeps its place; a repeated request refreshes its
/// lease.
///
/// The depth is the same for any number of entries: the server refuses expressions that nest too deep.
fn append(operation: &Operation, now: &Bson) -> Bson {
    let (fresh, repeated): (Vec<_>, Vec<_>) = operation.entries().partition(|entry| entry.fresh);
    let mut queue = Bson::from("$$queue");
    if !repeated.is_empty() {
        let branches: Vec<_> = repeated.iter().map(|entry| refresh(entry, now)).collect();
        queue = map(queue, doc! { "$switch": { "branches": branches, "default": "$$this" } });
    }
    let added: Vec<_> = repeated
        .into_iter()
        .chain(fresh)
        .map(|entry| waiter(entry, now))
        .collect();
    if added.is_empty() {
        return queue;
    }
    let there = doc! { "$concatArrays": ["$$holders.id", "$$queue.id"] };
    let mut joins = is_not_among(there.into());
    let is_offered = operation
        .requests
        .as_ref()
        .is_some_and(|requests| requests.by == CapacityIs::Offered);
    if let Some(too_large) = is_too_large(operation).filter(|_| is_offered) {
        joins = doc! { "$and": [joins, { "$not": [too_large] }] };
    }
    if let Some(upgrades) = upgrades_a_holder(operation) {
        let ids: Vec<&str> = operation.upgrades().map(|(id, _)| id.as_str()).collect();
        joins = doc! { "$and": [joins, { "$or": [is_not_among(literal(ids)), upgrades] }] };
    }
    let added = filter(added, joins);
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

/// Grants the lock to the head of the queue as long as it fits the free capacity. Then cuts the queue to its room, and
/// removes the requests that are not to wait.
///
/// The result has the holders, the queue and the token, and in `granted` the words for the entries that did not ask.
fn advance(at: &Location, queue: Bson, operation: &Operation, now: &Bson) -> Bson {
    let after = grant_as_fits(at, queue, operation, now);
    let tries = tries(operation);
    if tries.is_empty() {
        return after;
    }
    let queue = filter("$$advanced.queue", is_not_among(literal(tries)));
    let without = doc! { "$mergeObjects": ["$$advanced", { "queue": queue }] };
    bind(doc! { "advanced": after }, without)
}

/// Returns the requested entries that are not to wait.
fn tries(operation: &Operation) -> Vec<&str> {
    let tries = operation.entries().filter(|entry| !entry.wait);
    tries.map(|entry| entry.id.as_str()).collect()
}

/// Returns the condition that any entry has changed. Otherwise an operation that may be a no-op leaves the document the
/// same, so that the server logs no write and raises no event.
fn is_changed(at: &Location) -> Document {
    doc! { "$ne": [["$$after.holders", "$$after.queue"], [at.value("holders"), at.value("queue")]] }
}

/// Sets `wake`, the version and the times, together with the fields of the earlier phases; `ends` is that of record.
fn stamp(at: &Location, operation: &Operation, ends: Document, now: &Bson) -> Bson {
    let mut wake = vec![literal(format!("{}:", operation.id))];
    wake.extend(words_of_leave(at, operation, now));
    wake.extend([Bson::from(";"), Bson::from("$$after.granted")]);
    wake.extend(words_of_evict(at, operation, now));
    wake.extend(words_of_adopt(operation));
    wake.extend(words_of_too_large(operation));
    wake.extend(asks(operation));
    wake.extend(asked_for(at, operation));

    let requests = operation.requests.as_ref();
    let mut fields = requests.map_or_else(Document::new, |requests| {
        fields_of_enqueue(at, requests, capacity(requests))
    });
    fields.extend(fields_of_adopt(at, operation));
    fields.extend(doc! {
        "token": "$$after.token",
        "holders": "$$after.holders",
        "queue": "$$after.queue",
        "wake": { "$concat": wake },
    });
    fields.extend(fields_of_stamp(at, operation.keep, now));
    fields.extend(fields_of_evict(at, operation, now));
    fields.extend(ends);
    at.merged([fields.into()])
}

/// Returns the word for the waiter that is to ask, if a lock is kept.
fn asks(operation: &Operation) -> Option<Bson> {
    let head = doc! { "$arrayElemAt": ["$$after.queue.id", 0] };
    // Without a waiter the word is null.
    let word = doc! { "$ifNull": [{ "$concat": [head, "*;"] }, ""] };
    (!operation.kept.is_empty()).then(|| word.into())
}

/// Returns the fields that are new in every write, except for `wake`.
fn fields_of_stamp(at: &Location, keep: i64, now: &Bson) -> Document {
    let purge_at = at.value("purge_at");
    let is_kept = doc! { "$gte": [&purge_at, { "$add": [now, keep] }] };
    doc! {
        "version": { "$add": [{ "$ifNull": [at.value("version"), 0_i64] }, 1_i64] },
        "at": now,
        "purge_at": cond(is_kept, purge_at, doc! { "$add": [now, kept_in_reserve(keep)] }),
    }
}
