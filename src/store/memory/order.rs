//! The order of BSON values, as the server has it.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document, spec::BinarySubtype};

/// Values of different types, but for numbers, are ordered by their types.
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
        _ => match (number(one), number(other)) {
            (Some(one), Some(other)) => compare_numbers(one, other),
            // What is left of equal types are those that nobody compares: they are as their text is.
            _ if rank(one) == rank(other) && one != other => one.to_string().cmp(&other.to_string()),
            _ => rank(one).cmp(&rank(other)),
        },
    }
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

#[derive(Clone, Copy)]
enum Number {
    Whole(i64),
    Double(f64),
}

fn number(value: &Bson) -> Option<Number> {
    match value {
        Bson::Int32(number) => Some(Number::Whole(i64::from(*number))),
        Bson::Int64(number) => Some(Number::Whole(*number)),
        Bson::Double(number) => Some(Number::Double(*number)),
        // Decimals are compared as the doubles next to them.
        Bson::Decimal128(number) => Some(Number::Double(number.to_string().parse().unwrap_or(f64::NAN))),
        _ => None,
    }
}

fn compare_numbers(one: Number, other: Number) -> Ordering {
    match (one, other) {
        (Number::Whole(one), Number::Whole(other)) => one.cmp(&other),
        (Number::Double(one), Number::Double(other)) => one
            .partial_cmp(&other)
            // Not a number comes before all numbers.
            .unwrap_or_else(|| other.is_nan().cmp(&one.is_nan())),
        (Number::Whole(one), Number::Double(other)) => compare_mixed(one, other),
        (Number::Double(one), Number::Whole(other)) => compare_mixed(other, one).reverse(),
    }
}

fn compare_mixed(whole: i64, double: f64) -> Ordering {
    /// Two to the power of 63: the first double above all whole numbers.
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if double.is_nan() || double < -BEYOND {
        return Ordering::Greater;
    }
    if double >= BEYOND {
        return Ordering::Less;
    }
    #[allow(clippy::cast_possible_truncation, reason = "whole, and within the bounds")]
    let floor = double.floor() as i64;
    whole.cmp(&floor).then(if double.fract() == 0.0 {
        Ordering::Equal
    } else {
        Ordering::Less
    })
}

/// Whether it is the number that is not a number.
pub(super) fn is_nan(value: &Bson) -> bool {
    matches!(number(value), Some(Number::Double(number)) if number.is_nan())
}
