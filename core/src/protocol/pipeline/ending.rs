//! Phase record: the holds that an operation ends. Most clients make none, and their pipelines have nothing of this.

use mongodb::bson::{Bson, Document, doc};

use super::{
    existing,
    expression::{bind, cond, filter, literal, map},
    live,
};
use crate::protocol::{Evict, HoldEnd, Location, Operation};

/// Records the holds that ended, if the client keeps a history: the holders that are not in `$$after`.
pub(super) fn record(at: &Location, operation: &Operation, now: &Bson) -> Document {
    let gone = doc! { "$not": { "$in": ["$$this.token", "$$after.holders.token"] } };
    record_of(at, || filter(existing(at, "holders"), gone), operation, now)
}

/// Returns the field after these holders are gone, if there are any.
pub(super) fn record_of(at: &Location, gone: impl FnOnce() -> Bson, operation: &Operation, now: &Bson) -> Document {
    if operation.history == 0 {
        return Document::new();
    }
    let hold = doc! {
        "token": "$$this.token", "permits": "$$this.permits", "since": "$$this.since", "owner": "$$this.owner",
    };
    let ended = doc! { "$mergeObjects": [hold, how_it_ended(operation, now)] };
    let ends = in_front(at, map("$$gone", ended), operation);
    // A missing field stays missing.
    let ends = cond(doc! { "$eq": ["$$gone", []] }, at.value("ends"), ends);
    doc! { "ends": bind(doc! { "gone": gone() }, ends) }
}

/// Returns when and how the hold of an entry ended: [`Operation::end_of`](crate::protocol::Operation::end_of).
fn how_it_ended(operation: &Operation, now: &Bson) -> Bson {
    let end = |ended: Bson, how: HoldEnd| doc! { "ended": ended, "how": how.as_str() };
    let is_among = |ids: &[String]| doc! { "$in": ["$$this.id", literal(ids)] };
    let released = doc! { "$gt": ["$$this.released", null] };
    let mut branches = vec![doc! { "case": released, "then": end(Bson::from("$$this.released"), HoldEnd::Released) }];
    let expired = end(Bson::from("$$this.until"), HoldEnd::Expired);
    let mut otherwise = expired.clone();
    if !operation.leave.is_empty() || operation.adopts().is_some() || operation.evict != Evict::Nobody {
        branches.push(doc! { "case": { "$not": [live(now)] }, "then": expired });
        // Of several locks in one statement each has its own entry that leaves.
        let how = match operation.evict {
            Evict::Nobody => HoldEnd::Released,
            _ => HoldEnd::Broken,
        };
        otherwise = end(now.clone(), how);
    }
    for (ids, how) in [
        (&operation.held_too_long, HoldEnd::HeldTooLong),
        (&operation.leave, HoldEnd::Released),
    ] {
        if !ids.is_empty() {
            branches.push(doc! { "case": is_among(ids), "then": end(now.clone(), how) });
        }
    }
    if operation.adopts().is_some() {
        let adopted = doc! { "$in": ["$$this.id", "$$adopted.id"] };
        branches.push(doc! { "case": adopted, "then": end(now.clone(), HoldEnd::Adopted) });
    }
    Bson::from(doc! { "$switch": { "branches": branches, "default": otherwise } })
}

/// Returns these ends in front of those in the document: as many in all as the operation records.
fn in_front(at: &Location, ends: Bson, operation: &Operation) -> Bson {
    let most = i64::try_from(operation.history).unwrap_or(i64::MAX);
    // People read it and nothing depends on it, so another program's nonsense in its place must not stop the lock.
    let earlier = cond(
        doc! { "$isArray": [at.value("ends")] },
        at.value("ends"),
        Bson::Array(Vec::new()),
    );
    Bson::from(doc! { "$slice": [{ "$concatArrays": [ends, earlier] }, most] })
}
