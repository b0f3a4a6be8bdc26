//! The documents that an operation acts on: by its filter, and by the conditions on top of its pipeline.

use mongodb::bson::{Bson, Document, doc};

use crate::protocol::{
    Evict, Expects, Location, Operation,
    document::{NUMBER_MOST, PROTOCOL},
};

/// Returns the filter for the document; for the rare operations, only if there is anything to do in it. An operator who
/// takes a lock away waits for the answer, so that is decided in the pipeline instead: the server finds a document by
/// its `_id` alone in less time.
pub fn selection(at: &Location, id: Bson, operation: &Operation) -> Document {
    let mut selection = doc! { "_id": id };
    if operation.requests.is_some() && !operation.creates() && !at.is_root() {
        // A document of the user's is there without a lock too, in which none may be made.
        selection.insert(at.key("queue"), doc! { "$exists": true });
    }
    if operation.requests.is_some() || operation.breaks() || operation.expects != Expects::Nothing {
        return selection;
    }
    let mut concerned = Vec::new();
    if !operation.leave.is_empty() {
        concerned.push(doc! { at.key("holders.id"): { "$in": &operation.leave } });
        concerned.push(doc! { at.key("queue.id"): { "$in": &operation.leave } });
    }
    if let Some(change) = &operation.change {
        concerned.push(doc! { at.key("holders.id"): { "$in": change.ids().to_vec() } });
    }
    if let Evict::Kept(last) = operation.evict {
        let kept = doc! { "token": { "$lte": last }, "released": { "$type": "date" } };
        concerned.push(doc! { at.key("holders"): { "$elemMatch": kept } });
    }
    if operation.evict != Evict::Nobody || operation.change.is_some() {
        // The caller must learn that the document is of a later protocol, whatever is in it.
        concerned.push(doc! { at.key("protocol"): { "$gt": PROTOCOL } });
    }
    selection.insert("$or", concerned);
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
/// With a lock's fields, the document of somebody else would be purged as a lock is. A document of the user's own, which
/// has its lock within, needs none.
pub(super) fn is_lock_or_new(at: &Location, operation: &Operation) -> Option<Document> {
    let is_new = doc! { "$eq": ["$$ROOT", { "_id": "$_id" }] };
    let asks_at_root = operation.requests.is_some() && at.is_root();
    asks_at_root.then(|| doc! { "$or": [{ "$isArray": [at.value("queue")] }, is_new] })
}

/// Returns the condition that the document is of a protocol that this client speaks, or of the first one, which had no
/// number. To the server, a value that is no number is larger than all numbers.
pub fn is_known(at: &Location) -> Document {
    doc! { "$lte": [at.value("protocol"), PROTOCOL] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        Change,
        fixtures::{asking, leaving, operation, request},
    };

    fn evicting(operation: Operation, evict: Evict) -> Operation {
        Operation { evict, ..operation }
    }

    fn changing() -> Operation {
        Operation {
            change: Some(Change::of("a-1".to_owned(), 7)),
            ..operation("a.1")
        }
    }

    #[test]
    fn who_clears_or_changes_learns_of_a_later_protocol() {
        let root = Location::default();
        let later = doc! { "protocol": { "$gt": PROTOCOL } };
        let tells = |operation: &Operation| {
            let selection = selection(&root, "x".into(), operation);
            let concerned = selection.get_array("$or").unwrap();
            concerned
                .iter()
                .any(|condition| condition.as_document() == Some(&later))
        };
        assert!(tells(&evicting(operation("a.1"), Evict::Kept(7))));
        assert!(tells(&changing()));
        // Who only takes out entries leaves any other document alone.
        assert!(!tells(&leaving("a.1", "a-1")));
    }

    #[test]
    fn only_a_rare_operation_is_selected_by_more_than_its_id() {
        let root = Location::default();
        let expecting = |operation: Operation, expects| Operation { expects, ..operation };
        let requests = asking("a.1", request("a-1"));
        let operations = [
            requests.clone(),
            expecting(requests, Expects::Alone),
            expecting(leaving("a.1", "a-1"), Expects::Holding),
            leaving("a.1", "a-1"),
            changing(),
            evicting(operation("a.1"), Evict::Kept(7)),
            evicting(operation("a.1"), Evict::Everybody),
            evicting(operation("a.1"), Evict::Holder(7)),
        ];
        let by_id = operations.map(|operation| selection(&root, "x".into(), &operation) == doc! { "_id": "x" });
        assert_eq!(by_id, [true, true, true, false, false, false, true, true]);
    }
}
