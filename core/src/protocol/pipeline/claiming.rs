//! Claims: locks in documents of the user's own, taken by a filter for any document that is free.

use mongodb::bson::{Bson, Document, doc};

use super::{ending, existing, expression::cond, selecting::is_known, short::alone};
use crate::protocol::{
    Location, Operation,
    document::{DOUBLE_MOST, ID_MOST, NUMBER_MOST},
};

/// Returns the filter for the documents whose lock nobody holds and nobody waits for, as far as they are [`fit`]. It
/// includes documents without a lock.
pub fn free(at: &Location, now: &Bson) -> Document {
    // The condition that rules out most documents comes first.
    doc! { "$expr": { "$and": [{ "$lte": [last(at), now] }, fit(at)] } }
}

/// Returns the latest `until` of any entry. Without entries that is a missing value, which sorts before every date.
pub fn last(at: &Location) -> Document {
    doc! { "$max": [{ "$max": at.value("holders.until") }, { "$max": at.value("queue.until") }] }
}

/// Returns the condition that a document can be claimed once it is free: it has no lock so far, or one that stays
/// readable when it is written, and its `_id` is not too long. Any other document would fail the command for all.
pub fn fit(at: &Location) -> Document {
    let is = |value: &str, types: &[&str]| Bson::from(doc! { "$in": [{ "$type": value }, types.to_vec()] });
    let segments: Vec<&str> = at.segments().collect();
    // The path to the lock must consist of sub-documents, or be missing.
    let mut conditions: Vec<Bson> = (1..segments.len())
        .map(|depth| {
            is(
                &format!("${}", segments[..depth].join(".")),
                &["missing", "null", "object"],
            )
        })
        .collect();
    conditions.push(Bson::from(is_known(at)));
    let lock = format!("${}", at.path());
    let of_a_lock = [
        is(&lock, &["object"]),
        is(&at.value("holders"), &["missing", "null", "array"]),
        is(&at.value("queue"), &["missing", "null", "array"]),
        is(&at.value("purge_at"), &["missing", "null", "date"]),
        is_counter(&at.value("token")),
        is_counter(&at.value("version")),
    ];
    conditions.push(Bson::from(doc! { "$or": [
        is(&lock, &["missing", "null"]),
        { "$and": of_a_lock.to_vec() },
    ] }));
    // The document around it has eight bytes more.
    let most = i64::try_from(ID_MOST + 8).unwrap_or(i64::MAX);
    conditions.push(Bson::from(doc! { "$lte": [{ "$bsonSize": { "i": "$_id" } }, most] }));
    doc! { "$and": conditions }
}

/// Returns the filter for the documents that were claimed less than `most` times, by the claims that count. Where the
/// count is something else than a whole number, it can't be counted up: that document is passed over.
pub fn is_attempted_below(at: &Location, most: i64) -> Document {
    let attempts = doc! { "$ifNull": [at.value("attempts"), 0_i64] };
    doc! { "$expr": { "$and": [is_counter(&at.value("attempts")), { "$lt": [attempts, most] }] } }
}

/// Returns the condition that a value is missing, or a number that can be counted up, as [`crate::protocol::document`]
/// reads them.
fn is_counter(value: &str) -> Bson {
    let of_type = doc! { "$type": value };
    let most = cond(doc! { "$eq": [&of_type, "double"] }, DOUBLE_MOST, NUMBER_MOST);
    let number = doc! { "$ifNull": [value, 0_i64] };
    // To the server, NaN is less than every number.
    Bson::from(doc! { "$and": [
        { "$in": [of_type, ["missing", "null", "int", "long", "double"]] },
        { "$gte": [&number, 0_i64] },
        { "$lt": [&number, most] },
        { "$eq": [{ "$trunc": &number }, &number] },
    ] })
}

/// Returns the pipeline of [`crate::protocol::state::apply`] for an operation with one fresh request, and for a
/// document that [`free`] selects. The table of [`super::short`] has it too. If the claim `counts`, the lock counts it
/// as one more attempt: a field that all other operations leave alone.
pub fn claim(at: &Location, operation: &Operation, counts: bool, now: &Bson) -> Vec<Document> {
    vec![doc! { "$replaceWith": at.merged([fields(at, operation, counts, now).into()]) }]
}

/// Returns the fields of a lock after a claim.
pub(super) fn fields(at: &Location, operation: &Operation, counts: bool, now: &Bson) -> Document {
    let mut fields = alone(at, operation, now);
    if counts {
        let attempts = doc! { "$ifNull": [at.value("attempts"), 0_i64] };
        fields.insert("attempts", doc! { "$add": [attempts, 1_i64] });
    }
    fields.extend(ending::record_of(at, existing(at, "holders"), operation, now));
    fields
}
