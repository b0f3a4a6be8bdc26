//! Filters and sorts in memory: the part of the server's query language that tests of services need.
//!
//! Anything else is refused by name when it is read, before any document is looked at.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document};

use crate::{
    error::InvalidInput,
    protocol::document::whole,
    store::{name, number::Number},
};

/// Supported operators, as shown to users.
const FILTER_OPERATORS: &str = "$eq, $gt, $gte, $lt, $lte, $in, $exists, $and and $or";

/// A parsed filter.
#[derive(Debug)]
pub(super) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Field(Vec<String>, Test),
}

/// A condition on the values at a path.
#[derive(Debug)]
pub(super) enum Test {
    /// One of the values is equal to one of these.
    In(Vec<Bson>),
    /// One of the values is in this order to another.
    Compare(fn(Ordering) -> bool, Bson),
    Exists(bool),
}

impl Filter {
    pub(super) fn read(filter: &Document) -> Result<Self, InvalidInput> {
        let mut parts = Vec::new();
        for (key, value) in filter {
            match (key.as_str(), value) {
                ("$and", _) => parts.extend(read_all(key, value)?),
                ("$or", _) => parts.push(Self::Or(read_all(key, value)?)),
                _ if key.starts_with('$') => return Err(unknown(key)),
                (_, Bson::Document(operators)) if has_operators(operators) => {
                    for (operator, value) in operators {
                        parts.push(Self::Field(read_path(key)?, Test::read(operator, value)?));
                    }
                }
                _ => parts.push(Self::Field(read_path(key)?, Test::read("$eq", value)?)),
            }
        }
        Ok(Self::And(parts))
    }

    pub(super) fn matches(&self, document: &Document) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.matches(document)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(document)),
            Self::Field(path, test) => {
                let mut values = Vec::new();
                collect(document, path, &mut values);
                test.holds(&values)
            }
        }
    }
}

fn read_all(operator: &str, value: &Bson) -> Result<Vec<Filter>, InvalidInput> {
    let needs = || InvalidInput::new(format!("`{operator}` needs an array of filters that is not empty"));
    let filters = value.as_array().filter(|filters| !filters.is_empty());
    let read = |filter: &Bson| Filter::read(filter.as_document().ok_or_else(needs)?);
    filters.ok_or_else(needs)?.iter().map(read).collect()
}

fn has_operators(value: &Document) -> bool {
    value.keys().any(|key| key.starts_with('$'))
}

/// Returns the segments of a path. Numbers would be indexes of arrays, which are not supported here.
pub(super) fn read_path(path: &str) -> Result<Vec<String>, InvalidInput> {
    let is_any = |test: fn(&str) -> bool| path.split('.').any(test);
    let problem = if is_any(str::is_empty) {
        "has an empty part"
    } else if is_any(|part| part.starts_with('$')) {
        "has a part that starts with `$`"
    } else if is_any(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
        "has a number as a part; indexes of arrays are not supported in memory"
    } else {
        return Ok(path.split('.').map(str::to_owned).collect());
    };
    Err(InvalidInput::new(format!(
        "the path `{}` {problem}",
        path.escape_debug()
    )))
}

impl Test {
    fn read(operator: &str, value: &Bson) -> Result<Self, InvalidInput> {
        let compare = |holds| match rank(value) {
            Some(_) => Ok(Self::Compare(holds, value.clone())),
            None => Err(InvalidInput::new(format!(
                "`{operator}` of values such as {value} is not supported in memory"
            ))),
        };
        match operator {
            "$eq" => Ok(Self::In(vec![read_operand(value)?])),
            "$in" => match value {
                Bson::Array(values) => Ok(Self::In(values.iter().map(read_operand).collect::<Result<_, _>>()?)),
                _ => Err(InvalidInput::new("`$in` needs an array")),
            },
            "$gt" => compare(Ordering::is_gt),
            "$gte" => compare(Ordering::is_ge),
            "$lt" => compare(Ordering::is_lt),
            "$lte" => compare(Ordering::is_le),
            "$exists" => match value {
                Bson::Boolean(exists) => Ok(Self::Exists(*exists)),
                _ => Err(InvalidInput::new("`$exists` needs true or false")),
            },
            _ => Err(unknown(operator)),
        }
    }

    /// Reports whether it is true of the values at a path; `None` stands for a missing one, which equals null.
    fn holds(&self, values: &[Option<&Bson>]) -> bool {
        let mut or_null = values.iter().map(|value| value.unwrap_or(&Bson::Null));
        match self {
            Self::In(wanted) => or_null.any(|value| wanted.iter().any(|wanted| is_same(value, wanted))),
            Self::Compare(holds, than) => or_null.any(|value| {
                let order = compare(value, than);
                // NaN is less or greater than nothing.
                rank(value) == rank(than) && holds(order) && (order.is_eq() || !(is_nan(value) || is_nan(than)))
            }),
            Self::Exists(exists) => values.iter().any(|value| value.is_some()) == *exists,
        }
    }
}

/// Returns a value that must be equal.
fn read_operand(value: &Bson) -> Result<Bson, InvalidInput> {
    match value {
        Bson::RegularExpression(_) => Err(InvalidInput::new("regular expressions are not supported in memory")),
        Bson::Document(operators) if has_operators(operators) => Err(InvalidInput::new(
            "operators beside fields, or where a value must be, are not supported in memory",
        )),
        value => Ok(value.clone()),
    }
}

fn unknown(operator: &str) -> InvalidInput {
    InvalidInput::new(format!(
        "`{}` is not supported in memory; filters can have {FILTER_OPERATORS}",
        operator.escape_debug()
    ))
}

/// Collects the values at a path. In arrays the path continues in each document; an array at its end counts as itself
/// and as each of its elements.
fn collect<'a>(document: &'a Document, path: &[String], values: &mut Vec<Option<&'a Bson>>) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    match document.get(first) {
        Some(value) if rest.is_empty() => {
            values.extend(value.as_array().into_iter().flatten().map(Some));
            values.push(Some(value));
        }
        Some(Bson::Document(inner)) => collect(inner, rest, values),
        Some(Bson::Array(elements)) => {
            for inner in elements.iter().filter_map(Bson::as_document) {
                collect(inner, rest, values);
            }
        }
        None | Some(_) => values.push(None),
    }
}

/// The order of documents: by the values at paths, each ascending or, with `true`, descending.
#[derive(Debug, Default)]
pub(super) struct Sort(Vec<(Vec<String>, bool)>);

impl Sort {
    pub(super) fn read(sort: &Document) -> Result<Self, InvalidInput> {
        let read = |(path, direction): (&String, &Bson)| match whole(direction) {
            Some(direction @ (1 | -1)) => Ok((read_path(path)?, direction < 0)),
            _ => Err(InvalidInput::new(format!(
                "a sort by {direction} is not supported in memory; it can be 1 or -1"
            ))),
        };
        Ok(Self(sort.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Returns the values by which a document is ordered.
    pub(super) fn key<'a>(&self, document: &'a Document) -> Result<Vec<&'a Bson>, InvalidInput> {
        let key = |(path, _): &(Vec<String>, bool)| {
            let mut value = document.get(&path[0]);
            for segment in &path[1..] {
                value = match value {
                    Some(Bson::Document(inner)) => inner.get(segment),
                    Some(Bson::Array(_)) => break,
                    _ => None,
                };
            }
            let value = value.unwrap_or(&Bson::Null);
            rank(value).map(|_| value).ok_or_else(|| {
                InvalidInput::new(format!(
                    "a sort by the field `{}` is not supported in memory where a document has {value} there",
                    path.join(".")
                ))
            })
        };
        self.0.iter().map(key).collect()
    }

    /// Compares the keys of two documents.
    pub(super) fn compare(&self, one: &[&Bson], other: &[&Bson]) -> Ordering {
        let pairs = one.iter().zip(other).zip(&self.0);
        let orders = pairs.map(|((one, other), (_, descends))| match descends {
            false => compare(one, other),
            true => compare(other, one),
        });
        orders.fold(Ordering::Equal, Ordering::then)
    }
}

/// Returns whether two values are equal to the server: numbers are compared by value, whatever their types.
pub(super) fn is_same(one: &Bson, other: &Bson) -> bool {
    name::of_id(one) == name::of_id(other)
}

/// Returns the rank of a value's type: values of different types, except numbers, are ordered by their types. `None`
/// for a type that is not ordered in memory.
fn rank(value: &Bson) -> Option<u8> {
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
fn compare(one: &Bson, other: &Bson) -> Ordering {
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
fn is_nan(value: &Bson) -> bool {
    Number::of(value) == Some(Number::Nan)
}
