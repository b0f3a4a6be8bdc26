//! Updates in memory: the part of the server's update operators that tests of services need.
//!
//! Anything else is refused by name when it is read, before any document is looked at.

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use super::matching::read_path;
use crate::error::InvalidInput;

/// Supported operators, as shown to users.
const UPDATE_OPERATORS: &str = "$set, $unset and $inc";

/// A parsed update: the changes to each field, in the order in which they are made.
#[derive(Debug)]
pub(super) struct Update(Vec<(Vec<String>, FieldChange)>);

#[derive(Debug)]
enum FieldChange {
    Set(Bson),
    Unset,
    Add(Bson),
}

/// Reads the change of a field from its value in an update.
type ReadChange = fn(&Bson) -> Result<FieldChange, InvalidInput>;

impl Update {
    pub(super) fn read(update: &UpdateModifications) -> Result<Self, InvalidInput> {
        let UpdateModifications::Document(operators) = update else {
            return Err(InvalidInput::new(format!(
                "updates by a pipeline are not supported in memory; updates can have {UPDATE_OPERATORS}"
            )));
        };
        if operators.is_empty() {
            return Err(InvalidInput::new(format!(
                "an update needs operators; it can have {UPDATE_OPERATORS}"
            )));
        }
        let mut changes = Vec::new();
        for (operator, fields) in operators {
            let read = FieldChange::reader(operator)?;
            let fields = fields
                .as_document()
                .ok_or_else(|| InvalidInput::new(format!("`{operator}` needs a document of fields")))?;
            for (path, value) in fields {
                let path = read_path(path)?;
                if path[0] == "_id" {
                    return Err(InvalidInput::new("the `_id` of a document can't be changed"));
                }
                changes.push((path, read(value)?));
            }
        }
        // As on the server: new fields are added in the order of their names.
        changes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for pair in changes.windows(2) {
            let [(one, _), (other, _)] = pair else { continue };
            if other.starts_with(one) {
                return Err(InvalidInput::new(format!(
                    "the update changes `{}` and `{}`, which is a conflict",
                    one.join("."),
                    other.join(".")
                )));
            }
        }
        Ok(Self(changes))
    }

    /// Returns the document after the update, which is applied as a whole or not at all.
    pub(super) fn apply(&self, document: &Document) -> Result<Document, InvalidInput> {
        let mut updated = document.clone();
        for (path, change) in &self.0 {
            change.apply(&mut updated, path)?;
        }
        Ok(updated)
    }
}

impl FieldChange {
    /// Returns the function that reads the change of a field by this operator.
    fn reader(operator: &str) -> Result<ReadChange, InvalidInput> {
        match operator {
            "$set" => Ok(|value| Ok(Self::Set(value.clone()))),
            "$unset" => Ok(|_| Ok(Self::Unset)),
            "$inc" => Ok(|value| match value {
                Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) => Ok(Self::Add(value.clone())),
                other => Err(InvalidInput::new(format!("`$inc` needs a number, and not {other}"))),
            }),
            _ => Err(InvalidInput::new(format!(
                "`{}` is not supported in memory; updates can have {UPDATE_OPERATORS}",
                operator.escape_debug()
            ))),
        }
    }

    fn apply(&self, document: &mut Document, path: &[String]) -> Result<(), InvalidInput> {
        let refused = |problem: &str| InvalidInput::new(format!("the field `{}` {problem}", path.join(".")));
        let Some((field, above)) = path.split_last() else {
            return Ok(());
        };
        let mut parent = document;
        for segment in above {
            if matches!(self, Self::Unset) && parent.get_document(segment).is_err() {
                return Ok(());
            }
            let entry = parent.entry(segment.clone());
            match entry.or_insert_with(|| Bson::Document(Document::new())) {
                Bson::Document(inner) => parent = inner,
                _ => return Err(refused(&format!("can't be created, as `{segment}` is not a document"))),
            }
        }
        let value = match (self, parent.get(field)) {
            (Self::Unset, _) => {
                parent.remove(field);
                return Ok(());
            }
            (Self::Add(value), Some(present)) => sum(present, value).map_err(refused)?,
            (Self::Set(value) | Self::Add(value), _) => value.clone(),
        };
        parent.insert(field, value);
        Ok(())
    }
}

/// Adds two numbers. The sum has the wider of their types; 32 bits become 64 when they are too few.
fn sum(one: &Bson, other: &Bson) -> Result<Bson, &'static str> {
    if let (Some(first), Some(second)) = (integer(one), integer(other)) {
        let sum = first.checked_add(second).ok_or("would exceed 64 bits")?;
        let is_narrow = matches!((one, other), (Bson::Int32(_), Bson::Int32(_)));
        return Ok(match i32::try_from(sum) {
            Ok(sum) if is_narrow => Bson::Int32(sum),
            _ => Bson::Int64(sum),
        });
    }
    match (double(one), double(other)) {
        (Some(one), Some(other)) => Ok(Bson::Double(one + other)),
        _ => Err("is not a number of a type that `$inc` supports in memory"),
    }
}

fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss, reason = "as the server adds whole numbers to doubles")]
fn double(value: &Bson) -> Option<f64> {
    value.as_f64().or_else(|| integer(value).map(|number| number as f64))
}
