//! Checks of ids, paths and updates.

use mongodb::{
    bson::{Bson, Document},
    options::UpdateModifications,
};

use crate::{
    error::InvalidInput,
    protocol::document::ID_MOST,
    store::{
        place::{InPlace, overlap},
        size_of_id,
    },
};

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
pub(super) fn check_size(id: &Bson) -> Result<(), InvalidInput> {
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

/// Checks the path of the locks in documents: 1 to 16 field names with dots between them, 200 bytes at most.
pub(crate) fn check_path(path: &str) -> Result<(), InvalidInput> {
    let problem = if path.len() > 200 {
        "is longer than 200 bytes"
    } else if path.contains('\0') {
        "contains NUL"
    } else if path.split('.').count() > 16 {
        "has more than 16 parts"
    } else if path.split('.').any(str::is_empty) {
        "has an empty part"
    } else if path.split('.').any(|part| part.starts_with('$')) {
        "has a part that starts with `$`"
    } else if path
        .split('.')
        .any(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    {
        "has a number as a part, which would be an array index"
    } else if path.split('.').next() == Some("_id") {
        "is in the `_id`"
    } else {
        return Ok(());
    };
    let shown: String = path.chars().take(200).collect();
    let path = shown.escape_debug();
    Err(InvalidInput::new(format!("the field `{path}` for the locks {problem}")))
}

/// Checks that an update of a document of the user's own leaves the lock alone, and those of other parts of the
/// document.
pub(crate) fn check_update(update: &UpdateModifications, place: &InPlace) -> Result<(), InvalidInput> {
    let paths = place.paths();
    let touches = |field: &str| paths.iter().any(|path| overlap(field, path));
    let path = place.path();
    let mut problem = None;
    match update {
        UpdateModifications::Document(operators) => {
            if operators.is_empty() {
                problem = Some("it is empty".to_owned());
            }
            for (operator, fields) in operators {
                let fields = fields.as_document();
                if !operator.starts_with('$') || fields.is_none() {
                    problem = Some(format!("`{}` is not an update operator", operator.escape_debug()));
                }
                for (field, value) in fields.into_iter().flatten() {
                    let renamed = value.as_str().filter(|_| operator == "$rename");
                    if field.split('.').any(|name| name == "$") {
                        problem = Some(format!(
                            "the `$` in `{}` would stand for the holder's place in the lock: a pipeline can \
                             name the element, or `$[identifier]` with the array filters of `fence().update_one(..)`",
                            field.escape_debug()
                        ));
                    }
                    if touches(field) || renamed.is_some_and(touches) {
                        problem = Some(format!(
                            "`{operator}` of `{}` would touch the lock",
                            field.escape_debug()
                        ));
                    }
                }
            }
        }
        UpdateModifications::Pipeline(stages) => {
            for (stage, value) in stages.iter().flatten() {
                let fields: Vec<&str> = match (stage.as_str(), value) {
                    ("$set" | "$addFields", Bson::Document(fields)) => fields.keys().map(String::as_str).collect(),
                    ("$unset", Bson::String(field)) => vec![field],
                    ("$unset", Bson::Array(fields)) => fields.iter().filter_map(Bson::as_str).collect(),
                    _ => {
                        problem = Some(format!(
                            "the stage `{}` is not `$set`, `$addFields` or `$unset`",
                            stage.escape_debug()
                        ));
                        continue;
                    }
                };
                if let Some(field) = fields.into_iter().find(|field| touches(field)) {
                    problem = Some(format!("`{stage}` of `{}` would touch the lock", field.escape_debug()));
                }
            }
        }
        _ => problem = Some("it is of an unknown kind".to_owned()),
    }
    problem.map_or(Ok(()), |problem| {
        Err(InvalidInput::new(format!(
            "the update of a document locked in `{path}` is refused: {problem}"
        )))
    })
}
