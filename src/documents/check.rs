//! Checks of updates: they leave the locks alone.

use mongodb::{bson::Bson, options::UpdateModifications};

use crate::{
    error::InvalidInput,
    input::check_document,
    store::{
        element::ElementKey,
        lock_layout::{LockLayout, overlap},
    },
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

/// Returns the operators or stages of an update, each with the paths that it writes, among them those to which it
/// renames. `None`: it is no operator, or a stage that may write anywhere.
pub(crate) fn written(update: &UpdateModifications) -> Vec<(&str, Option<Vec<&str>>)> {
    match update {
        UpdateModifications::Document(operators) => operators
            .iter()
            .map(|(operator, fields)| (operator.as_str(), by_operator(operator, fields)))
            .collect(),
        UpdateModifications::Pipeline(stages) => stages
            .iter()
            .flatten()
            .map(|(stage, fields)| (stage.as_str(), by_stage(stage, fields)))
            .collect(),
        _ => Vec::new(),
    }
}

fn by_operator<'a>(operator: &str, fields: &'a Bson) -> Option<Vec<&'a str>> {
    let fields = fields.as_document().filter(|_| operator.starts_with('$'))?;
    let to = fields
        .values()
        .filter(|_| operator == "$rename")
        .filter_map(Bson::as_str);
    Some(fields.keys().map(String::as_str).chain(to).collect())
}

fn by_stage<'a>(stage: &str, fields: &'a Bson) -> Option<Vec<&'a str>> {
    match (stage, fields) {
        ("$set" | "$addFields" | "$project", Bson::Document(fields)) => {
            Some(fields.keys().map(String::as_str).collect())
        }
        ("$unset", Bson::String(field)) => Some(vec![field]),
        ("$unset", Bson::Array(fields)) => Some(fields.iter().filter_map(Bson::as_str).collect()),
        _ => None,
    }
}

/// Checks that an update of the user's own document can be written, and leaves its lock alone, and the locks of other
/// parts of the document.
pub(crate) fn check_update(update: &UpdateModifications, place: &LockLayout) -> Result<(), InvalidInput> {
    check_encodable(update)?;
    let refused = |problem: String| {
        InvalidInput::new(format!(
            "the update of a document locked in `{}` is refused: {problem}",
            place.base().path()
        ))
    };
    let is_pipeline = match update {
        UpdateModifications::Document(operators) if operators.is_empty() => {
            return Err(refused("it is empty".to_owned()));
        }
        UpdateModifications::Document(_) => false,
        UpdateModifications::Pipeline(_) => true,
        _ => return Err(refused("it is neither a document nor a pipeline".to_owned())),
    };
    let locks = place.paths();
    for (by, fields) in written(update) {
        let Some(fields) = fields.filter(|_| by != "$project") else {
            let by = shown_in_a_line(by);
            return Err(refused(match is_pipeline {
                true => format!("the stage `{by}` is not `$set`, `$addFields` or `$unset`"),
                false => format!("`{by}` is not an update operator"),
            }));
        };
        for field in fields {
            let shown = shown_in_a_line(field);
            if !is_pipeline && field.split('.').any(|name| name == "$") {
                return Err(refused(format!(
                    "the `$` in `{shown}` would point to the holder's entry in the lock; name the element in a \
                     pipeline, or by `$[identifier]` with the array filters of `fence().update_one(..)`"
                )));
            }
            if locks.iter().any(|lock| overlap(field, lock)) {
                return Err(refused(format!("`{by}` of `{shown}` would touch the lock")));
            }
        }
    }
    Ok(())
}

/// Checks that an update by operators changes an element and leaves its key alone.
pub(super) fn check_update_of_element(
    update: &UpdateModifications,
    array: &str,
    key: &ElementKey,
) -> Result<(), InvalidInput> {
    let refused = |problem: String| {
        InvalidInput::new(format!(
            "the update of an element locked in `{array}` is refused: {problem}"
        ))
    };
    check_encodable(update).map_err(|problem| refused(problem.to_string()))?;
    match update {
        UpdateModifications::Document(_) => {}
        UpdateModifications::Pipeline(_) => {
            return Err(refused(
                "it is a pipeline, which would have to write the whole array; use operators".to_owned(),
            ));
        }
        _ => return Err(refused("it is neither a document nor a pipeline".to_owned())),
    }
    let mut is_empty = true;
    for (operator, fields) in written(update) {
        let called = shown_in_a_line(operator);
        let fields = fields.ok_or_else(|| refused(format!("`{called}` is not an update operator")))?;
        if operator == "$rename" {
            return Err(refused(
                "the server does not support `$rename` in an element of an array; use `$set` and `$unset`".to_owned(),
            ));
        }
        for path in fields {
            check_path_in_element(path, key)
                .map_err(|problem| refused(format!("`{called}` of `{}` {problem}", shown_in_a_line(path))))?;
            is_empty = false;
        }
    }
    match is_empty {
        true => Err(refused("it changes no field".to_owned())),
        false => Ok(()),
    }
}

fn check_path_in_element(path: &str, key: &ElementKey) -> Result<(), &'static str> {
    let mut names = path.split('.');
    if key.has_field(names.clone().next().unwrap_or_default()) {
        return Err("would change the key of the element");
    }
    if names.clone().any(str::is_empty) {
        return Err("has an empty name in its path");
    }
    if names.any(|name| name.starts_with('$')) {
        return Err("has `$` in its path; the positional `$` and array filters are not supported in an element");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    fn key() -> ElementKey {
        ElementKey::new(&doc! { "sku": "x" })
    }

    #[test]
    fn an_update_of_the_element_is_let_through() {
        let update = doc! { "$set": { "picked": true, "by.name": "$$NOW" }, "$inc": { "tries": 1 }, "$unset": {} };
        assert!(check_update_of_element(&update.into(), "of.lines", &key()).is_ok());
    }

    #[test]
    fn an_update_of_more_than_the_element_is_refused() {
        for (update, problem) in [
            (doc! {}, "changes no field"),
            (doc! { "$set": {} }, "changes no field"),
            (doc! { "picked": true }, "`picked` is not an update operator"),
            (doc! { "$set": 1 }, "`$set` is not an update operator"),
            (doc! { "$set": { "sku": "y" } }, "would change the key"),
            (doc! { "$set": { "sku": "x" } }, "would change the key"),
            (doc! { "$unset": { "sku.a": "" } }, "would change the key"),
            (doc! { "$rename": { "a": "sku" } }, "does not support `$rename`"),
            (doc! { "$set": { "tags.$": 1 } }, "`$` in its path"),
            (doc! { "$set": { "tags.$[].a": 1 } }, "`$` in its path"),
            (doc! { "$set": { "$[watchlocked].a": 1 } }, "`$` in its path"),
            (doc! { "$set": { "": 1 } }, "empty name"),
            (doc! { "$set": { "a..b": 1 } }, "empty name"),
            (doc! { "$set": { "a\0": 1 } }, "NUL"),
        ] {
            let error = check_update_of_element(&update.clone().into(), "lines", &key())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(problem) && error.contains("`lines`"),
                "{update}: {error}"
            );
        }
        let pipeline = vec![doc! { "$set": { "a": 1 } }];
        let error = check_update_of_element(&pipeline.into(), "lines", &key())
            .unwrap_err()
            .to_string();
        assert!(error.contains("pipeline"), "{error}");
    }
}
