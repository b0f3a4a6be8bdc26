//! Locks that share a document: those of the elements of one array, side by side in one map.
//!
//! The base is the place of the map; each lock has a place inside it. Every operation is that of one lock, as it would
//! be without the others; here is what concerns several of them.

use mongodb::bson::{Bson, Document, doc};

use super::{
    expression::{bind, cond, filter, literal},
    last,
    renewing::{extended, fields_of_renewal, is_renewed},
    selecting::is_known,
};
use crate::protocol::Location;

/// The variables for a lock of the map, its name, and the lock itself: those of `$map` and `$filter` are in use.
const LOCK: &str = "lock";
const CODE: &str = "$$lock.k";
const STATE: &str = "$$lock.v";

/// Returns the pipeline of [`crate::protocol::state::renew`] for the holders with these ids, in whichever locks of a
/// document they are; it has the map. A lock that none of them holds stays as it is. The length of the pipeline hardly
/// depends on their number.
pub fn renewal_of_all(base: &Location, ids: &[String], operation: &str, keep: i64, now: &Bson) -> Vec<Document> {
    let lock = Location::of_variable("lock.v");
    let fields = fields_of_renewal(&lock, operation, "$$holders".into(), keep, now);
    let written = cond(
        doc! { "$ne": ["$$holders", lock.value("holders")] },
        lock.merged_lock([fields.into()]),
        STATE,
    );
    let holders = extended(&lock, is_renewed(ids, now), now);
    let is_readable = doc! { "$and": [is_known(&lock), { "$isArray": [lock.value("holders")] }] };
    let renewed = cond(is_readable, bind(doc! { "holders": holders }, written), STATE);
    let map = doc! { "$map": { "input": locks(base), "as": LOCK, "in": { "k": CODE, "v": renewed } } };
    vec![doc! { "$replaceWith": base.with_lock(doc! { "$arrayToObject": map }.into()) }]
}

/// Returns the locks of the map with their names, as a list.
fn locks(base: &Location) -> Document {
    let map = format!("${}", base.path());
    doc! { "$objectToArray": cond(doc! { "$eq": [{ "$type": &map }, "object"] }, map, doc! {}) }
}

/// Returns a stage that removes the locks from the map that a collection of locks would have purged by now: those that
/// are free and due. It follows the pipeline of an operation on the lock `at`, and does nothing unless that wrote: a
/// removal alone would be taken for another program's.
pub fn sweep(base: &Location, at: &Location, operation: &str, now: &Bson) -> Document {
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
    let purged = bind(
        doc! { "kept": filter("$$locks", doc! { "$not": [is_purged] }) },
        cond(
            doc! { "$eq": [{ "$size": "$$kept" }, { "$size": "$$locks" }] },
            "$$ROOT",
            base.with_lock(doc! { "$arrayToObject": "$$kept" }.into()),
        ),
    );
    doc! { "$replaceWith": cond(wrote, bind(doc! { "locks": locks(base) }, purged), "$$ROOT") }
}
