//! Filters and sorts in memory: a part of the server's query language.
//!
//! Anything unsupported is refused when the filter is read, before any document is looked at.

use std::cmp::Ordering;

use mongodb::bson::{Bson, Document};

use super::{
    Refused,
    order::{compare, is_nan, is_same, rank},
};

/// Supported operators, as shown to users.
const FILTER_OPERATORS: &str = "$eq, $ne, $gt, $gte, $lt, $lte, $in, $nin, $exists, $not, $and, $or and $nor";

/// A parsed filter.
#[derive(Debug)]
pub(super) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Nor(Vec<Filter>),
    Field(Vec<String>, Test),
}

/// A condition on the values at a path.
#[derive(Debug)]
pub(super) enum Test {
    Equal(Bson),
    Compare(Comparison, Bson),
    In(Vec<Bson>),
    Exists,
    Not(Box<Test>),
    All(Vec<Test>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Filter {
    pub(super) fn read(filter: &Document) -> Result<Self, Refused> {
        let mut parts = Vec::new();
        for (key, value) in filter {
            parts.push(match key.as_str() {
                "$and" => Self::And(read_all(key, value)?),
                "$or" => Self::Or(read_all(key, value)?),
                "$nor" => Self::Nor(read_all(key, value)?),
                _ if key.starts_with('$') => return Err(unknown(key)),
                _ => Self::Field(read_path(key)?, Test::read_value(value)?),
            });
        }
        Ok(Self::And(parts))
    }

    pub(super) fn matches(&self, document: &Document) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.matches(document)),
            Self::Or(parts) => parts.iter().any(|part| part.matches(document)),
            Self::Nor(parts) => !parts.iter().any(|part| part.matches(document)),
            Self::Field(path, test) => {
                let mut values = Vec::new();
                collect(document, path, &mut values);
                test.holds(&values)
            }
        }
    }
}

fn read_all(operator: &str, value: &Bson) -> Result<Vec<Filter>, Refused> {
    let filters = value.as_array().filter(|filters| !filters.is_empty());
    let filters = filters.ok_or_else(|| Refused::new(format!("`{operator}` needs an array that is not empty")))?;
    let read = |filter: &Bson| match filter {
        Bson::Document(filter) => Filter::read(filter),
        _ => Err(Refused::new(format!("`{operator}` needs an array of filters"))),
    };
    filters.iter().map(read).collect()
}

/// Returns the segments of a path. Numbers would be indexes of arrays, which are not supported here.
pub(super) fn read_path(path: &str) -> Result<Vec<String>, Refused> {
    let problem = if path.split('.').any(str::is_empty) {
        "has an empty part"
    } else if path.split('.').any(|part| part.starts_with('$')) {
        "has a part that starts with `$`"
    } else if path
        .split('.')
        .any(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    {
        "has a number as a part; indexes of arrays are not supported in memory"
    } else {
        return Ok(path.split('.').map(str::to_owned).collect());
    };
    Err(Refused::new(format!("the path `{}` {problem}", path.escape_debug())))
}

impl Test {
    /// Reads the value of a field in a filter: operators, or a value that it must equal.
    fn read_value(value: &Bson) -> Result<Self, Refused> {
        match value {
            Bson::Document(operators) if operators.keys().next().is_some_and(|key| key.starts_with('$')) => {
                Self::read_operators(operators)
            }
            Bson::Document(literal) if literal.keys().any(|key| key.starts_with('$')) => {
                Err(Refused::new("operators and fields are mixed in one document"))
            }
            value => Ok(Self::Equal(read_operand(value)?)),
        }
    }

    fn read_operators(operators: &Document) -> Result<Self, Refused> {
        let mut tests = Vec::new();
        for (operator, value) in operators {
            let comparison = |comparison| Ok(Self::Compare(comparison, read_operand(value)?));
            tests.push(match operator.as_str() {
                "$eq" => Self::Equal(read_operand(value)?),
                "$ne" => Self::Not(Box::new(Self::Equal(read_operand(value)?))),
                "$gt" => comparison(Comparison::Greater)?,
                "$gte" => comparison(Comparison::GreaterOrEqual)?,
                "$lt" => comparison(Comparison::Less)?,
                "$lte" => comparison(Comparison::LessOrEqual)?,
                "$in" => Self::In(read_list(operator, value)?),
                "$nin" => Self::Not(Box::new(Self::In(read_list(operator, value)?))),
                "$exists" => match value {
                    Bson::Boolean(true) | Bson::Int32(1) | Bson::Int64(1) => Self::Exists,
                    Bson::Boolean(false) | Bson::Int32(0) | Bson::Int64(0) => Self::Not(Box::new(Self::Exists)),
                    _ => return Err(Refused::new("`$exists` needs true or false")),
                },
                "$not" => match value {
                    Bson::Document(operators) if operators.keys().all(|key| key.starts_with('$')) => {
                        if operators.is_empty() {
                            return Err(Refused::new("`$not` needs operators"));
                        }
                        Self::Not(Box::new(Self::read_operators(operators)?))
                    }
                    _ => return Err(Refused::new("`$not` needs operators")),
                },
                _ => return Err(unknown(operator)),
            });
        }
        Ok(Self::All(tests))
    }

    /// Reports whether it is true of the values at a path; `None` stands for a missing one.
    fn holds(&self, values: &[Option<&Bson>]) -> bool {
        let any = |test: &dyn Fn(Option<&Bson>) -> bool| values.iter().any(|value| test(*value));
        match self {
            Self::Equal(wanted) => any(&|value| is_equal(value, wanted)),
            Self::Compare(comparison, than) => any(&|value| comparison.holds(value, than)),
            Self::In(wanted) => any(&|value| wanted.iter().any(|wanted| is_equal(value, wanted))),
            Self::Exists => any(&|value| value.is_some()),
            Self::Not(test) => !test.holds(values),
            Self::All(tests) => tests.iter().all(|test| test.holds(values)),
        }
    }
}

impl Comparison {
    /// Compares only values of one type; a missing value is null.
    fn holds(self, value: Option<&Bson>, than: &Bson) -> bool {
        let value = value.unwrap_or(&Bson::Null);
        if rank(value) != rank(than) {
            return false;
        }
        let order = compare(value, than);
        if is_nan(value) || is_nan(than) {
            return order == Ordering::Equal && matches!(self, Self::GreaterOrEqual | Self::LessOrEqual);
        }
        match self {
            Self::Greater => order == Ordering::Greater,
            Self::GreaterOrEqual => order != Ordering::Less,
            Self::Less => order == Ordering::Less,
            Self::LessOrEqual => order != Ordering::Greater,
        }
    }
}

fn is_equal(value: Option<&Bson>, wanted: &Bson) -> bool {
    is_same(value.unwrap_or(&Bson::Null), wanted)
}

fn read_list(operator: &str, value: &Bson) -> Result<Vec<Bson>, Refused> {
    let list = value.as_array();
    let list = list.ok_or_else(|| Refused::new(format!("`{operator}` needs an array")))?;
    let read = |value: &Bson| match value {
        Bson::Document(operators) if operators.keys().next().is_some_and(|key| key.starts_with('$')) => {
            Err(Refused::new(format!(
                "`{operator}` with operators in its list is not supported in memory"
            )))
        }
        value => read_operand(value),
    };
    list.iter().map(read).collect()
}

/// Returns a value that can be compared with.
fn read_operand(value: &Bson) -> Result<Bson, Refused> {
    fn check(value: &Bson) -> Result<(), Refused> {
        let kind = match value {
            Bson::Array(values) => return values.iter().try_for_each(check),
            Bson::Document(document) => return document.values().try_for_each(check),
            Bson::RegularExpression(_) => "regular expressions",
            Bson::MinKey | Bson::MaxKey => "MinKey and MaxKey",
            Bson::JavaScriptCode(_) | Bson::JavaScriptCodeWithScope(_) => "scripts",
            Bson::Undefined | Bson::Symbol(_) | Bson::DbPointer(_) => "values of deprecated types",
            _ => return Ok(()),
        };
        Err(Refused::new(format!("{kind} are not supported in memory")))
    }
    check(value)?;
    Ok(value.clone())
}

fn unknown(operator: &str) -> Refused {
    Refused::new(format!(
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

/// The order of documents.
#[derive(Debug, Default)]
pub(super) struct Sort(Vec<(Vec<String>, Direction)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ascending,
    Descending,
}

impl Sort {
    pub(super) fn read(sort: &Document) -> Result<Self, Refused> {
        let read = |(path, direction): (&String, &Bson)| {
            let direction = match direction {
                Bson::Int32(1) | Bson::Int64(1) => Direction::Ascending,
                Bson::Int32(-1) | Bson::Int64(-1) => Direction::Descending,
                Bson::Double(direction) if *direction == 1.0 => Direction::Ascending,
                Bson::Double(direction) if *direction == -1.0 => Direction::Descending,
                other => {
                    return Err(Refused::new(format!(
                        "a sort by {other} is not supported in memory; it can be 1 or -1"
                    )));
                }
            };
            Ok((read_path(path)?, direction))
        };
        Ok(Self(sort.iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Returns the key by which a document is ordered.
    pub(super) fn key(&self, document: &Document) -> Result<SortKey, Refused> {
        let (mut key, mut through_arrays) = (Vec::new(), 0);
        for (path, direction) in &self.0 {
            let (mut values, mut through_array) = (Vec::new(), false);
            collect_keys(document, path, &mut values, &mut through_array);
            through_arrays += usize::from(through_array);
            let first = match direction {
                Direction::Ascending => values.into_iter().min_by(compare),
                Direction::Descending => values.into_iter().max_by(compare),
            };
            key.push((first.unwrap_or(Bson::Null), *direction));
        }
        if through_arrays > 1 {
            return Err(Refused::new(
                "a sort by two fields with arrays is not supported in memory",
            ));
        }
        Ok(SortKey(key))
    }
}

#[derive(Debug)]
pub(super) struct SortKey(Vec<(Bson, Direction)>);

impl SortKey {
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let orders = self
            .0
            .iter()
            .zip(&other.0)
            .map(|((one, direction), (other, _))| match direction {
                Direction::Ascending => compare(one, other),
                Direction::Descending => compare(other, one),
            });
        orders.fold(Ordering::Equal, Ordering::then)
    }
}

/// Collects the values by which a document is ordered: each element of an array, and for an empty one a value before
/// all others.
fn collect_keys(document: &Document, path: &[String], keys: &mut Vec<Bson>, through_array: &mut bool) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    match document.get(first) {
        Some(Bson::Array(elements)) => {
            *through_array = true;
            if elements.is_empty() {
                keys.push(if rest.is_empty() { Bson::Undefined } else { Bson::Null });
            }
            for element in elements {
                match element {
                    element if rest.is_empty() => keys.push(element.clone()),
                    Bson::Document(inner) => collect_keys(inner, rest, keys, through_array),
                    _ => keys.push(Bson::Null),
                }
            }
        }
        Some(value) if rest.is_empty() => keys.push(value.clone()),
        Some(Bson::Document(inner)) => collect_keys(inner, rest, keys, through_array),
        None | Some(_) => keys.push(Bson::Null),
    }
}
