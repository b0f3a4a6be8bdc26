//! The documents that an operation acts on: by its filter, and by the conditions on top of its pipeline.

use mongodb::bson::{Bson, Document, doc};

use crate::protocol::{
    Downgrade, Evict, Expects, Location, Operation, Proclaim,
    document::{NUMBER_MOST, PROTOCOL},
};

/// Returns the filter for the document; for the rare operations, only if there is anything to do in it.
pub(crate) fn selection(at: &Location, id: &Bson, operation: &Operation) -> Document {
    let mut selection = doc! { "_id": id };
    if operation.expects == Expects::Room {
        // A full queue has an entry at its last place. An operation that finds it full gets no document, and costs the
        // server little.
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
    if let Some(Downgrade { id, .. }) = &operation.downgrade {
        concerned.push(doc! { at.key("holders.id"): { "$in": [id] } });
    }
    match operation.evict {
        Evict::Nobody => {}
        Evict::Everybody => concerned.push(doc! { at.key("holders.0"): { "$exists": true } }),
        Evict::Holder(token) => concerned.push(doc! { at.key("holders.token"): token }),
        Evict::Kept(last) => {
            let kept = doc! { "token": { "$lte": last }, "released": { "$type": "date" } };
            concerned.push(doc! { at.key("holders"): { "$elemMatch": kept } });
        }
    }
    if operation.evict != Evict::Nobody || operation.proclaim.is_some() || operation.downgrade.is_some() {
        // The caller must learn that the document is of a later protocol, whatever is in it.
        concerned.push(doc! { at.key("protocol"): { "$gt": PROTOCOL } });
    }
    selection.insert("$or", concerned);
    selection
}

/// Returns whether [`selection`] is by the `_id` alone.
pub(crate) fn is_by_id(operation: &Operation) -> bool {
    match operation.expects {
        Expects::Nothing => operation.creates(),
        Expects::Holding | Expects::Alone => true,
        Expects::Room => false,
    }
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

/// Returns the condition that the document is of a protocol that this client speaks, or of the first one, which had no
/// number. To the server, a value that is no number is larger than all numbers.
pub(crate) fn is_known(at: &Location) -> Document {
    doc! { "$lte": [at.value("protocol"), PROTOCOL] }
}
