//! Builders of aggregation expressions.

use mongodb::bson::{Bson, Document, doc};

/// Keeps the server from reading a value as an expression or a field path.
pub(super) fn literal(value: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$literal": value.into() })
}

/// Binds variables, none of which sees the others, for use in `value`.
pub(super) fn bind(variables: Document, value: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$let": { "vars": variables, "in": value.into() } })
}

pub(super) fn cond(condition: impl Into<Bson>, then: impl Into<Bson>, or: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$cond": [condition.into(), then.into(), or.into()] })
}

/// Keeps the elements of a list, `$$this`, that meet the condition.
pub(super) fn filter(list: impl Into<Bson>, condition: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$filter": { "input": list.into(), "cond": condition.into() } })
}

/// Replaces each element of a list, `$$this`.
pub(super) fn map(list: impl Into<Bson>, element: impl Into<Bson>) -> Bson {
    Bson::from(doc! { "$map": { "input": list.into(), "in": element.into() } })
}
