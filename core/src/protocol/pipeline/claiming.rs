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
///
/// It has few expressions, as the server parses them for each claim.
pub fn fit(at: &Location) -> Document {
    let segments: Vec<&str> = at.segments().collect();
    let way = (1..=segments.len()).map(|depth| format!("${}", segments[..depth].join(".")));
    let counters = ["token", "version"].map(|counter| at.value(counter));
    // The document around it has eight bytes more.
    let longest = i64::try_from(ID_MOST + 8).unwrap_or(i64::MAX);
    doc! { "$and": [
        is_known(at),
        // The way to the lock and the lock itself.
        are(way, &["object"]),
        are(["holders", "queue"].map(|list| at.value(list)), &["array"]),
        are([at.value("purge_at")], &["date"]),
        are(counters.clone(), &NUMBERS),
        are_whole(&counters),
        { "$lte": [{ "$bsonSize": { "i": "$_id" } }, longest] },
    ] }
}

/// Returns the filter for the documents that were claimed less than `most` times, by the claims that count. Where the
/// count is something else than a whole number, it can't be counted up: that document is passed over.
pub fn is_attempted_below(at: &Location, most: i64) -> Document {
    let attempts = at.value("attempts");
    let types = are([attempts.clone()], &NUMBERS);
    doc! { "$expr": { "$and": [types, are_whole(std::slice::from_ref(&attempts)), { "$lt": [attempts, most] }] } }
}

/// The types of numbers that a counter can have.
const NUMBERS: [&str; 3] = ["int", "long", "double"];

/// Returns the condition that each of the values is of one of these types, or missing.
fn are(values: impl IntoIterator<Item = String>, types: &[&str]) -> Document {
    let values: Vec<Document> = values.into_iter().map(|value| doc! { "$type": value }).collect();
    let types = [&["missing", "null"], types].concat();
    doc! { "$setIsSubset": [values, types] }
}

/// Returns the condition that each of these numbers is one that can be counted up, as [`crate::protocol::document`] reads
/// them; or missing.
fn are_whole(values: &[String]) -> Document {
    let (mut with_zero, mut rests) = (vec![Bson::from(0_i64)], Vec::new());
    for value in values {
        with_zero.push(value.into());
        rests.push(doc! { "$mod": [value, 1_i64] });
    }
    let types: Vec<Document> = values.iter().map(|value| doc! { "$type": value }).collect();
    // One double is enough for the lower bound: no lock has a number beyond it, but by hand.
    let most = cond(doc! { "$in": ["double", types] }, DOUBLE_MOST, NUMBER_MOST);
    // To the server, NaN is less than every number, and infinity has no rest.
    doc! { "$and": [
        { "$eq": [{ "$min": &with_zero }, 0_i64] },
        { "$lt": [{ "$max": with_zero }, most] },
        { "$setIsSubset": [rests, [0_i64, Bson::Null]] },
    ] }
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
    fields.extend(ending::record_of(at, || existing(at, "holders"), operation, now));
    fields
}
