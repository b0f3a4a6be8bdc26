//! Equality and order of BSON values, the same as the server's.

use std::cmp::Ordering;

use mongodb::bson::Bson;

use crate::store::{name, number::Number};

/// Returns whether two values are equal to the server: numbers are compared by value, whatever their types.
pub(super) fn is_same(one: &Bson, other: &Bson) -> bool {
    name::of_id(one) == name::of_id(other)
}

/// Returns the rank of a value's type: values of different types, except numbers, are ordered by their types. `None`
/// for a type that is not ordered in memory.
pub(super) fn rank(value: &Bson) -> Option<u8> {
    match value {
        Bson::Null => Some(0),
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => Some(1),
        Bson::String(_) => Some(2),
        Bson::ObjectId(_) => Some(3),
        Bson::Boolean(_) => Some(4),
        Bson::DateTime(_) => Some(5),
        _ => None,
    }
}

/// Compares two values of types that are ordered.
pub(super) fn compare(one: &Bson, other: &Bson) -> Ordering {
    let within = || match (one, other) {
        (Bson::String(one), Bson::String(other)) => one.cmp(other),
        (Bson::ObjectId(one), Bson::ObjectId(other)) => one.cmp(other),
        (Bson::Boolean(one), Bson::Boolean(other)) => one.cmp(other),
        (Bson::DateTime(one), Bson::DateTime(other)) => one.cmp(other),
        _ => Number::of(one).cmp(&Number::of(other)),
    };
    rank(one).cmp(&rank(other)).then_with(within)
}

/// Reports whether the value is NaN.
pub(super) fn is_nan(value: &Bson) -> bool {
    Number::of(value) == Some(Number::Nan)
}
