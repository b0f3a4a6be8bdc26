//! Updates in memory: a part of the server's update operators.
//!
//! Anything unsupported is refused when the update is read, before any document is looked at.

use std::cmp::Ordering;

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::{
    Refused,
    matching::read_path,
    order::{compare, is_same},
};
use crate::protocol::ServerTime;

/// Supported operators, as shown to users.
const UPDATE_OPERATORS: &str = "$set, $unset, $inc, $min, $max, $push, $addToSet, $pull and $currentDate";

/// A parsed update: the changes to each field, in the order in which they are made.
#[derive(Debug)]
pub(super) struct Update(Vec<(Vec<String>, FieldChange)>);

#[derive(Debug)]
enum FieldChange {
    Set(Bson),
    Unset,
    Add(Bson),
    Min(Bson),
    Max(Bson),
    Push(Bson),
    AddToSet(Bson),
    Pull(Bson),
    CurrentDate,
}

impl Update {
    pub(super) fn read(update: &UpdateModifications) -> Result<Self, Refused> {
        match update {
            UpdateModifications::Document(operators) => Self::read_operators(operators),
            _ => Err(Refused::new(format!(
                "updates by a pipeline are not supported in memory; updates can have {UPDATE_OPERATORS}"
            ))),
        }
    }

    pub(super) fn read_operators(operators: &Document) -> Result<Self, Refused> {
        if operators.is_empty() {
            return Err(Refused::new(format!(
                "an update needs operators; it can have {UPDATE_OPERATORS}"
            )));
        }
        let mut changes = Vec::new();
        for (operator, fields) in operators {
            let fields = fields
                .as_document()
                .ok_or_else(|| Refused::new(format!("`{}` needs a document of fields", operator.escape_debug())))?;
            for (path, value) in fields {
                let path = read_path(path)?;
                if path[0] == "_id" {
                    return Err(Refused::new("the `_id` of a document can't be changed"));
                }
                changes.push((path, FieldChange::read(operator, value)?));
            }
            if fields.is_empty() {
                // The operator must exist all the same.
                FieldChange::read(operator, &Bson::Int32(1)).or_else(|error| match operator.as_str() {
                    "$currentDate" => Ok(FieldChange::CurrentDate),
                    _ => Err(error),
                })?;
            }
        }
        // As on the server: new fields are added in the order of their names.
        changes.sort_by(|(one, _), (other, _)| one.cmp(other));
        for pair in changes.windows(2) {
            let [(one, _), (other, _)] = pair else { continue };
            if other.starts_with(one) {
                return Err(Refused::new(format!(
                    "the update changes `{}` and `{}`, which is a conflict",
                    one.join("."),
                    other.join(".")
                )));
            }
        }
        Ok(Self(changes))
    }

    /// Returns the document after the update, which is applied as a whole or not at all.
    pub(super) fn apply(&self, document: &Document, now: ServerTime) -> Result<Document, Refused> {
        let mut updated = document.clone();
        for (path, change) in &self.0 {
            change.apply(&mut updated, path, now)?;
        }
        Ok(updated)
    }
}

impl FieldChange {
    fn read(operator: &str, value: &Bson) -> Result<Self, Refused> {
        let has_operators =
            matches!(value, Bson::Document(value) if value.keys().next().is_some_and(|key| key.starts_with('$')));
        let plain = || match has_operators {
            true => Err(Refused::new(format!(
                "`{operator}` with operators in it is not supported in memory"
            ))),
            false => Ok(value.clone()),
        };
        Ok(match operator {
            "$set" => Self::Set(value.clone()),
            "$unset" => Self::Unset,
            "$inc" => match value {
                Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) => Self::Add(value.clone()),
                other => return Err(Refused::new(format!("`$inc` needs a number, and not {other}"))),
            },
            "$min" => Self::Min(value.clone()),
            "$max" => Self::Max(value.clone()),
            "$push" => Self::Push(plain()?),
            "$addToSet" => Self::AddToSet(plain()?),
            "$pull" => match value {
                // The server treats documents as conditions here, and looks into arrays.
                Bson::Document(_) | Bson::Array(_) | Bson::RegularExpression(_) => {
                    return Err(Refused::new(
                        "`$pull` of documents, arrays and patterns is not supported in memory",
                    ));
                }
                value => Self::Pull(value.clone()),
            },
            "$currentDate" => match value {
                Bson::Boolean(_) => Self::CurrentDate,
                Bson::Document(kind) if kind.len() == 1 && kind.get_str("$type").is_ok_and(|kind| kind == "date") => {
                    Self::CurrentDate
                }
                _ => return Err(Refused::new("`$currentDate` supports only the type `date` in memory")),
            },
            _ => {
                return Err(Refused::new(format!(
                    "`{}` is not supported in memory; updates can have {UPDATE_OPERATORS}",
                    operator.escape_debug()
                )));
            }
        })
    }

    fn apply(&self, document: &mut Document, path: &[String], now: ServerTime) -> Result<(), Refused> {
        let (makes, passes) = match self {
            Self::Unset => (false, true),
            Self::Pull(_) => (false, false),
            _ => (true, false),
        };
        let (parent, field) = match parent(document, path, makes) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(()),
            Err(_) if passes => return Ok(()),
            Err(refused) => return Err(refused),
        };
        let refused = |problem: &str| Refused::new(format!("the field `{}` {problem}", path.join(".")));
        let set = |parent: &mut Document, value: &Bson| drop(parent.insert(field, value.clone()));
        match (self, parent.get_mut(field)) {
            (Self::Set(value), _) => set(parent, value),
            (Self::Unset, _) => drop(parent.remove(field)),
            (Self::Add(value), None) => set(parent, value),
            (Self::Add(value), Some(present)) => *present = sum(present, value).map_err(refused)?,
            (Self::Min(value) | Self::Max(value), None) => set(parent, value),
            (Self::Min(value), Some(present)) => {
                if compare(value, present) == Ordering::Less {
                    *present = value.clone();
                }
            }
            (Self::Max(value), Some(present)) => {
                if compare(value, present) == Ordering::Greater {
                    *present = value.clone();
                }
            }
            (Self::Push(value) | Self::AddToSet(value), None) => {
                parent.insert(field, vec![value.clone()]);
            }
            (Self::Push(value), Some(Bson::Array(elements))) => elements.push(value.clone()),
            (Self::AddToSet(value), Some(Bson::Array(elements))) => {
                if !elements.iter().any(|element| is_same(element, value)) {
                    elements.push(value.clone());
                }
            }
            (Self::Pull(_), None) => {}
            (Self::Pull(value), Some(Bson::Array(elements))) => elements.retain(|element| !is_same(element, value)),
            (Self::Push(_) | Self::AddToSet(_) | Self::Pull(_), Some(_)) => return Err(refused("is not an array")),
            (Self::CurrentDate, _) => set(parent, &Bson::from(now)),
        }
        Ok(())
    }
}

/// Returns the document that contains the last field of a path; `None` when there is none and none is to be created.
fn parent<'a, 'p>(
    document: &'a mut Document,
    path: &'p [String],
    makes: bool,
) -> Result<Option<(&'a mut Document, &'p str)>, Refused> {
    let Some((field, above)) = path.split_last() else {
        return Ok(None);
    };
    let mut parent = document;
    for segment in above {
        if !parent.contains_key(segment) {
            if !makes {
                return Ok(None);
            }
            parent.insert(segment, Document::new());
        }
        match parent.get_mut(segment) {
            Some(Bson::Document(inner)) => parent = inner,
            _ => {
                return Err(Refused::new(format!(
                    "the field `{}` can't be created, as `{segment}` is not a document",
                    path.join(".")
                )));
            }
        }
    }
    Ok(Some((parent, field)))
}

/// Adds two numbers. The sum has the wider of their types; 32 bits become 64 when they are too few.
fn sum(one: &Bson, other: &Bson) -> Result<Bson, &'static str> {
    const OVERFLOW: &str = "would exceed 64 bits";
    let wide = |one: i64, other: i64| one.checked_add(other).ok_or(OVERFLOW);
    Ok(match (one, other) {
        (Bson::Int32(one), Bson::Int32(other)) => match one.checked_add(*other) {
            Some(sum) => Bson::Int32(sum),
            None => Bson::Int64(i64::from(*one) + i64::from(*other)),
        },
        (Bson::Int32(one), Bson::Int64(other)) | (Bson::Int64(other), Bson::Int32(one)) => {
            Bson::Int64(wide(i64::from(*one), *other)?)
        }
        (Bson::Int64(one), Bson::Int64(other)) => Bson::Int64(wide(*one, *other)?),
        (one, other) => match (double(one), double(other)) {
            (Some(one), Some(other)) => Bson::Double(one + other),
            _ => return Err("is not a number of a type that `$inc` supports in memory"),
        },
    })
}

#[allow(clippy::cast_precision_loss, reason = "as the server adds whole numbers to doubles")]
fn double(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}
