//! Locks that share a document: those of the elements of one array, side by side in one map.
//!
//! The base is the place of the map; each lock has a place inside it. Every operation is that of one lock, as it would be
//! without the others; here is what concerns several of them.

use mongodb::bson::{Bson, Document, doc};

use super::{
    expression::{bind, cond, filter, literal},
    last,
    renewing::{extended, fields_of_renewal, is_renewed},
    selecting::is_known,
};
use crate::protocol::Location;

/// The holders to be renewed in one lock: its place, and their ids.
pub(crate) type Renewed = (Location, Vec<String>);

/// Returns the condition that each lock is held by one of its `ids`: then [`renewal_of_all`] renews all of them.
pub(crate) fn all_held(locks: &[Renewed], now: &Bson) -> Document {
    let has_holders = |at: &Location| doc! { "$isArray": [at.value("holders")] };
    let held = locks.iter().map(|(at, ids)| {
        let held = filter(at.value("holders"), is_renewed(ids, now));
        doc! { "$and": [is_known(at), has_holders(at), { "$ne": [held, []] }] }
    });
    doc! { "$and": held.collect::<Vec<_>>() }
}

/// Returns the pipeline of [`crate::protocol::state::renew`] for several locks in a document that [`all_held`] selects.
pub(crate) fn renewal_of_all(
    base: &Location,
    locks: &[Renewed],
    operation: &str,
    keep: i64,
    now: &Bson,
) -> Vec<Document> {
    let mut map = Document::new();
    for (at, ids) in locks {
        let Some(code) = at.segments().next_back() else {
            continue;
        };
        let fields = fields_of_renewal(at, operation, "$$holders".into(), keep, now);
        let written = cond(
            doc! { "$ne": ["$$holders", at.value("holders")] },
            at.merged_lock([fields.into()]),
            format!("${}", at.path()),
        );
        let holders = extended(at, is_renewed(ids, now), now);
        map.insert(code, bind(doc! { "holders": holders }, written));
    }
    vec![doc! { "$replaceWith": base.merged([map.into()]) }]
}

/// Returns a stage that removes idle locks from the map: those that a collection of locks would have purged by now, by
/// the time that their last writes set. It follows the pipeline of an operation on the lock `at`, and does nothing unless
/// that wrote: a removal alone would be taken for another program's.
pub(crate) fn sweep(base: &Location, at: &Location, operation: &str, now: &Bson) -> Document {
    let lock = Location::of_variable("this.v");
    let purge_at = lock.value("purge_at");
    let is_purged = doc! { "$and": [
        is_known(&lock),
        { "$eq": [{ "$type": &purge_at }, "date"] },
        { "$lte": [purge_at, now] },
        { "$lte": [last(&lock), now] },
    ] };
    let wake = at.value("wake");
    let wrote = doc! { "$and": [
        { "$eq": [{ "$type": &wake }, "string"] },
        { "$eq": [{ "$indexOfBytes": [wake, literal(format!("{operation}:"))] }, 0] },
    ] };
    let locks = doc! { "$objectToArray": format!("${}", base.path()) };
    let purged = bind(
        doc! { "kept": filter("$$locks", doc! { "$not": [is_purged] }) },
        cond(
            doc! { "$eq": [{ "$size": "$$kept" }, { "$size": "$$locks" }] },
            "$$ROOT",
            base.with_lock(doc! { "$arrayToObject": "$$kept" }.into()),
        ),
    );
    doc! { "$replaceWith": cond(wrote, bind(doc! { "locks": locks }, purged), "$$ROOT") }
}
