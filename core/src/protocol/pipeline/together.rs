//! Operations on several locks in one statement, which the server parses once.
//!
//! Each lock is a document, or in one of its own, and the pipeline decides for each by itself, as it would alone. Only
//! the ids and owners of the entries differ; the pipeline finds them by the document's `_id`.

use mongodb::bson::{Bson, Document, doc};

use super::{
    claiming,
    expression::{bind, cond, literal},
    selecting::{in_order, is_lock_or_new},
    short::{alone, hand_over, holder, is_alone, is_the_holder},
};
use crate::protocol::{Expects, Location, Operation, Request};

/// The entry that comes to the document or leaves it.
const OWN_ID: &str = "$$own.id";
const OWN_OWNER: &str = "$$own.owner";

/// Returns the pipeline for the documents with these names. Their operations are
/// [shareable](Operation::is_shareable), [alike](Operation::is_like), and have the same id. It creates no document.
pub fn together(asked: &[(&str, &Operation)], now: &Bson) -> Vec<Document> {
    let Some((_, first)) = asked.first() else {
        return Vec::new();
    };
    let at = &Location::default();
    let leaving = Bson::from(vec![OWN_ID]);
    let (expected, written) = match first.expects {
        Expects::Alone => {
            let mut fields = alone(at, first, now);
            if let Some(entry) = first.entries().next() {
                fields.insert("holders", vec![own_holder(at, entry, now)]);
            }
            (is_alone(at, first, leaving, now), at.merged([fields.into()]))
        }
        _ => (is_the_holder(at, leaving, now), hand_over(at, first, now)),
    };
    let conditions = is_lock_or_new(at, first).into_iter().chain([expected]);
    let decided = cond(in_order(at, conditions), written, "$$ROOT");
    let asked = asked.iter().map(|(name, operation)| (Bson::from(*name), *operation));
    vec![doc! { "$replaceWith": bind(doc! { "own": own_by_id(asked) }, decided) }]
}

/// Returns the pipeline of [`super::claim`] for the documents with these `_id`s: the first operation shows what all of
/// them have in common.
pub fn claim_together(at: &Location, asked: &[(&Bson, &Operation)], counts: bool, now: &Bson) -> Vec<Document> {
    let Some((_, first)) = asked.first() else {
        return Vec::new();
    };
    let mut fields = claiming::fields(at, first, counts, now);
    if let Some(entry) = first.entries().next() {
        fields.insert("holders", vec![own_holder(at, entry, now)]);
    }
    let asked = asked.iter().map(|(id, operation)| ((*id).clone(), *operation));
    let claimed = bind(doc! { "own": own_by_id(asked) }, at.merged([fields.into()]));
    vec![doc! { "$replaceWith": claimed }]
}

/// Returns a holder like that of this entry, with the document's own id and owner.
fn own_holder(at: &Location, like: &Request, now: &Bson) -> Document {
    let mut own = holder(at, like, now);
    own.extend(doc! { "id": OWN_ID, "owner": OWN_OWNER });
    own
}

/// Returns the expression for the entry of the document, by its `_id`.
fn own_by_id<'a>(asked: impl Iterator<Item = (Bson, &'a Operation)>) -> Document {
    let (ids, own): (Vec<Bson>, Vec<Document>) = asked.map(|(id, operation)| (id, own(operation))).unzip();
    doc! { "$arrayElemAt": [literal(own), { "$indexOfArray": [literal(ids), "$_id"] }] }
}

fn own(operation: &Operation) -> Document {
    match operation.entries().next() {
        Some(entry) => doc! { "id": &entry.id, "owner": entry.owner.to_document() },
        None => doc! { "id": operation.leave.first() },
    }
}
