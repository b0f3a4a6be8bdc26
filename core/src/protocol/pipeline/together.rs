//! Operations on several locks in one statement, which the server parses once.
//!
//! Each lock is a document, and the pipeline decides for each by itself, as it would alone. Only the ids and owners of
//! the entries differ; the pipeline finds them by the document's `_id`.

use mongodb::bson::{Bson, Document, doc};

use super::{
    expression::{bind, cond, literal},
    selecting::in_order,
    short::{alone, hand_over, holder, is_alone, is_the_holder},
};
use crate::protocol::{Expects, Location, Operation};

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
                let mut own = holder(at, entry, now);
                own.extend(doc! { "id": OWN_ID, "owner": OWN_OWNER });
                fields.insert("holders", vec![own]);
            }
            (is_alone(at, first, leaving, now), at.merged([fields.into()]))
        }
        _ => (is_the_holder(at, leaving, now), hand_over(at, first, now)),
    };
    let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
    let own: Vec<Document> = asked.iter().map(|(_, operation)| own(operation)).collect();
    let own = doc! { "$arrayElemAt": [literal(own), { "$indexOfArray": [literal(names), "$_id"] }] };
    let decided = cond(in_order(at, [expected]), written, "$$ROOT");
    vec![doc! { "$replaceWith": bind(doc! { "own": own }, decided) }]
}

fn own(operation: &Operation) -> Document {
    match operation.entries().next() {
        Some(entry) => doc! { "id": &entry.id, "owner": entry.owner.to_document() },
        None => doc! { "id": operation.leave.first() },
    }
}
