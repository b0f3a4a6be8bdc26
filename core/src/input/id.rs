//! Values for `_id`.

use mongodb::bson::{Bson, Document, doc};

use super::{InvalidInput, check_document};
use crate::{
    protocol::document::{ID_MOST, size_of_id},
    truncated_debug::shown,
};

/// Checks the `_id` of a document: a value that is not BSON, an operator or a pattern is not an id, and no document can
/// have it.
pub fn check_id(id: &Bson) -> Result<(), InvalidInput> {
    if matches!(
        id,
        Bson::Document(_) | Bson::Array(_) | Bson::JavaScriptCodeWithScope(_)
    ) {
        check_document("the id", &doc! { "_id": id })?;
    }
    let operator = |document: &Document| document.keys().any(|key| key.starts_with('$'));
    let kind = match id {
        Bson::Array(_) => "an array",
        Bson::RegularExpression(_) => "a regular expression",
        Bson::Undefined => "undefined",
        Bson::Document(document) if operator(document) => "a document with operators",
        _ => return Ok(()),
    };
    let id = id.to_string();
    Err(InvalidInput::new(format!(
        "the id {} is {kind}; no document has such an `_id`",
        shown(id.escape_debug())
    )))
}

/// Checks that an `_id` is short enough to lock. Claims pass over longer ones, by the same bound.
pub fn check_size(id: &Bson) -> Result<(), InvalidInput> {
    let size = size_of_id(id);
    if size > ID_MOST {
        return Err(InvalidInput::new(format!(
            "the id of the document has {size} bytes as BSON; it must have at most {ID_MOST} to be locked"
        )));
    }
    Ok(())
}
