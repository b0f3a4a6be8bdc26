//! Checks of updates: they leave the locks alone.

use mongodb::{bson::Bson, options::UpdateModifications};

use crate::{
    error::InvalidInput,
    input::check_document,
    store::lock_layout::{LockLayout, overlap},
    truncated_debug::shown_in_a_line,
};

/// Checks that an update can be written as BSON.
pub(crate) fn check_encodable(update: &UpdateModifications) -> Result<(), InvalidInput> {
    match update {
        UpdateModifications::Document(operators) => check_document("the update", operators),
        UpdateModifications::Pipeline(stages) => stages
            .iter()
            .try_for_each(|stage| check_document("a stage of the update", stage)),
        // The checks that follow refuse it.
        _ => Ok(()),
    }
}

/// Checks that an update of the user's own document can be written, and leaves its lock alone, and the locks of other
/// parts of the document.
pub(crate) fn check_update(update: &UpdateModifications, place: &LockLayout) -> Result<(), InvalidInput> {
    check_encodable(update)?;
    let paths = place.paths();
    let touches = |field: &str| paths.iter().any(|path| overlap(field, path));
    let path = place.base().path();
    let mut problem = None;
    match update {
        UpdateModifications::Document(operators) => {
            if operators.is_empty() {
                problem = Some("it is empty".to_owned());
            }
            for (operator, fields) in operators {
                let fields = fields.as_document();
                if !operator.starts_with('$') || fields.is_none() {
                    problem = Some(format!("`{}` is not an update operator", shown_in_a_line(operator)));
                }
                for (field, value) in fields.into_iter().flatten() {
                    let renamed = value.as_str().filter(|_| operator == "$rename");
                    if field.split('.').any(|name| name == "$") {
                        problem = Some(format!(
                            "the `$` in `{}` would point to the holder's entry in the lock; name the element in a \
                             pipeline, or by `$[identifier]` with the array filters of `fence().update_one(..)`",
                            shown_in_a_line(field)
                        ));
                    }
                    if touches(field) || renamed.is_some_and(touches) {
                        problem = Some(format!(
                            "`{operator}` of `{}` would touch the lock",
                            shown_in_a_line(field)
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
                            shown_in_a_line(stage)
                        ));
                        continue;
                    }
                };
                if let Some(field) = fields.into_iter().find(|field| touches(field)) {
                    problem = Some(format!(
                        "`{stage}` of `{}` would touch the lock",
                        shown_in_a_line(field)
                    ));
                }
            }
        }
        _ => problem = Some("it is neither a document nor a pipeline".to_owned()),
    }
    problem.map_or(Ok(()), |problem| {
        Err(InvalidInput::new(format!(
            "the update of a document locked in `{path}` is refused: {problem}"
        )))
    })
}
