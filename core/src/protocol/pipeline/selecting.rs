//! The documents that an operation acts on: by its filter, and by the conditions on top of its pipeline.

use mongodb::bson::{Bson, Document, doc};

use crate::protocol::{
    Location, Operation,
    document::{NUMBER_MOST, PROTOCOL},
};

/// Returns the filter for the document. Whether there is anything to do in it is decided in the pipeline: the server
/// finds a document by its `_id` alone in less time.
pub fn selection(at: &Location, id: Bson, operation: &Operation) -> Document {
    let mut selection = doc! { "_id": id };
    if operation.requests.is_some() && !operation.creates() && !at.is_root() {
        // A document of the user's is there without a lock too, in which none may be made.
        selection.insert(at.key("queue"), doc! { "$exists": true });
    }
    selection
}

/// Returns the condition that the document is of a known protocol and its counter can be counted up, and meets these
/// conditions too.
///
/// The protocol is compared before anything else of the document: another protocol may have something else in its
/// place.
pub(super) fn in_order(at: &Location, conditions: impl IntoIterator<Item = Document>) -> Document {
    let mut all = vec![is_known(at), doc! { "$lte": [at.value("token"), NUMBER_MOST] }];
    all.extend(conditions);
    doc! { "$and": all }
}

/// Returns the condition of a request that the document is a lock's, or was made just now and has nothing but its `_id`.
/// With a lock's fields, the document of somebody else would be purged as a lock is: those with a time for that are. A
/// document of the user's own, which has its lock within, needs none.
pub(super) fn is_lock_or_new(at: &Location, operation: &Operation) -> Option<Document> {
    let is_lock = doc! { "$eq": [{ "$type": at.value("purge_at") }, "date"] };
    let is_new = doc! { "$eq": ["$$ROOT", { "_id": "$_id" }] };
    let asks_at_root = operation.requests.is_some() && at.is_root();
    asks_at_root.then(|| doc! { "$or": [is_lock, is_new] })
}

/// Returns the condition that the document is of a protocol that this client speaks, or of the first one, which had no
/// number. To the server, a value that is no number is larger than all numbers.
pub fn is_known(at: &Location) -> Document {
    doc! { "$lte": [at.value("protocol"), PROTOCOL] }
}
