//! Values for `_id`.

use mongodb::bson::{Bson, Document};

use super::InvalidInput;
use crate::protocol::document::{ID_MOST, size_of_id};

/// Checks the `_id` of a document: an operator or a pattern is not an id, and no document can have it.
pub(crate) fn check_id(id: &Bson) -> Result<(), InvalidInput> {
    let operator = |document: &Document| document.keys().any(|key| key.starts_with('$'));
    let kind = match id {
        Bson::Array(_) => "an array",
        Bson::RegularExpression(_) => "a regular expression",
        Bson::Undefined => "undefined",
        Bson::Document(document) if operator(document) => "a document with operators",
        Bson::Document(document) if has_nul(document) => "a document with NUL in a field name",
        _ => return Ok(()),
    };
    let shown: String = id.to_string().chars().take(200).collect();
    Err(InvalidInput::new(format!(
        "the id {} is {kind}; no document has such an `_id`",
        shown.escape_debug()
    )))
}

/// Checks that an `_id` is short enough to lock. Claims pass over longer ones, by the same bound.
pub(crate) fn check_size(id: &Bson) -> Result<(), InvalidInput> {
    let size = size_of_id(id);
    if size > ID_MOST {
        return Err(InvalidInput::new(format!(
            "the id of the document has {size} bytes as BSON; it must have at most {ID_MOST} to be locked"
        )));
    }
    Ok(())
}

/// Returns whether a field name contains a NUL: BSON ends field names with one, and a document that can't be written
/// has no name of its own.
fn has_nul(document: &Document) -> bool {
    let within = |value: &Bson| match value {
        Bson::Document(inner) => has_nul(inner),
        Bson::Array(values) => values.iter().filter_map(Bson::as_document).any(has_nul),
        _ => false,
    };
    document
        .iter()
        .any(|(field, value)| field.contains('\0') || within(value))
}
