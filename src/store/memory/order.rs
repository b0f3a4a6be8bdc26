//! The order of BSON values, the same as the server's.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document, spec::BinarySubtype};

use crate::store::number::Number;

/// Returns the rank of a value's type: values of different types, except numbers, are ordered by their types.
pub(super) fn rank(value: &Bson) -> u8 {
    match value {
        Bson::MinKey => 0,
        Bson::Undefined => 1,
        Bson::Null => 2,
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => 3,
        Bson::String(_) | Bson::Symbol(_) => 4,
        Bson::Document(_) => 5,
        Bson::Array(_) => 6,
        Bson::Binary(_) => 7,
        Bson::ObjectId(_) => 8,
        Bson::Boolean(_) => 9,
        Bson::DateTime(_) => 10,
        Bson::Timestamp(_) => 11,
        Bson::RegularExpression(_) => 12,
        Bson::DbPointer(_) => 13,
        Bson::JavaScriptCode(_) => 14,
        Bson::JavaScriptCodeWithScope(_) => 15,
        Bson::MaxKey => 16,
    }
}

/// Compares two values of any types. Numbers are compared by value, and documents field by field, in their order.
pub(super) fn compare(one: &Bson, other: &Bson) -> Ordering {
    match (one, other) {
        (Bson::String(one) | Bson::Symbol(one), Bson::String(other) | Bson::Symbol(other)) => one.cmp(other),
        (Bson::Document(one), Bson::Document(other)) => compare_documents(one, other),
        (Bson::Array(one), Bson::Array(other)) => compare_arrays(one, other),
        (Bson::Binary(one), Bson::Binary(other)) => {
            let subtype = |subtype: BinarySubtype| u8::from(subtype);
            let (one, other) = (
                (one.bytes.len(), subtype(one.subtype), &one.bytes),
                (other.bytes.len(), subtype(other.subtype), &other.bytes),
            );
            one.cmp(&other)
        }
        (Bson::ObjectId(one), Bson::ObjectId(other)) => one.cmp(other),
        (Bson::Boolean(one), Bson::Boolean(other)) => one.cmp(other),
        (Bson::DateTime(one), Bson::DateTime(other)) => one.cmp(other),
        (Bson::Timestamp(one), Bson::Timestamp(other)) => (one.time, one.increment).cmp(&(other.time, other.increment)),
        _ => match (Number::of(one), Number::of(other)) {
            (Some(one), Some(other)) => one.compare(other),
            // The remaining equal types are those that nobody compares: they are ordered by their text.
            _ if rank(one) == rank(other) && one != other => one.to_string().cmp(&other.to_string()),
            _ => rank(one).cmp(&rank(other)),
        },
    }
}

/// Returns whether two values are equal to the server: numbers are compared by value, whatever their types.
pub(super) fn is_same(one: &Bson, other: &Bson) -> bool {
    rank(one) == rank(other) && compare(one, other) == Ordering::Equal
}

fn compare_documents(one: &Document, other: &Document) -> Ordering {
    let mut others = other.iter();
    for (key, value) in one {
        let Some((other_key, other)) = others.next() else {
            return Ordering::Greater;
        };
        let order = rank(value)
            .cmp(&rank(other))
            .then_with(|| key.cmp(other_key))
            .then_with(|| compare(value, other));
        if order != Ordering::Equal {
            return order;
        }
    }
    if others.next().is_some() {
        Ordering::Less
    } else {
        Ordering::Equal
    }
}

fn compare_arrays(one: &[Bson], other: &[Bson]) -> Ordering {
    let orders = one.iter().zip(other).map(|(one, other)| compare(one, other));
    let first = orders.into_iter().find(|order| *order != Ordering::Equal);
    first.unwrap_or_else(|| one.len().cmp(&other.len()))
}

/// Reports whether the value is NaN.
pub(super) fn is_nan(value: &Bson) -> bool {
    Number::of(value).is_some_and(Number::is_nan)
}
