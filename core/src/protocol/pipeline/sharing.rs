//! Locks that share a document: those of the elements of one array, side by side in one map.
//!
//! The base is the place of the map; each lock has a place inside it. Every operation is that of one lock, as it would
//! be without the others; here is what concerns several of them.

use mongodb::bson::{Bson, Document, doc};

use super::{
    expression::{bind, cond, filter, literal},
    last,
    selecting::is_known,
};
use crate::protocol::Location;

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
