//! Checks of updates of elements: their paths lead from the element, and leave its key alone.

use mongodb::options::UpdateModifications;

use crate::{
    documents::check_encodable, error::InvalidInput, store::element::ElementKey, truncated_debug::shown_in_a_line,
};

/// Checks that an update by operators changes an element and leaves its key alone.
pub(super) fn check_update(update: &UpdateModifications, array: &str, key: &ElementKey) -> Result<(), InvalidInput> {
    let refused = |problem: String| {
        InvalidInput::new(format!(
            "the update of an element locked in `{array}` is refused: {problem}"
        ))
    };
    check_encodable(update).map_err(|problem| refused(problem.to_string()))?;
    let operators = match update {
        UpdateModifications::Document(operators) => operators,
        UpdateModifications::Pipeline(_) => {
            return Err(refused(
                "it is a pipeline, which would have to write the whole array; use operators".to_owned(),
            ));
        }
        _ => return Err(refused("it is neither a document nor a pipeline".to_owned())),
    };
    let mut is_empty = true;
    for (operator, fields) in operators {
        let called = shown_in_a_line(operator).to_string();
        let Some(fields) = fields.as_document().filter(|_| operator.starts_with('$')) else {
            return Err(refused(format!("`{called}` is not an update operator")));
        };
        if operator == "$rename" {
            return Err(refused(
                "the server does not support `$rename` in an element of an array; use `$set` and `$unset`".to_owned(),
            ));
        }
        for path in fields.keys() {
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
        assert!(check_update(&update.into(), "of.lines", &key()).is_ok());
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
            let error = check_update(&update.clone().into(), "lines", &key())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(problem) && error.contains("`lines`"),
                "{update}: {error}"
            );
        }
        let pipeline = vec![doc! { "$set": { "a": 1 } }];
        let error = check_update(&pipeline.into(), "lines", &key()).unwrap_err().to_string();
        assert!(error.contains("pipeline"), "{error}");
    }
}
