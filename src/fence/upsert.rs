//! The filters that are allowed for an upsert under a fence.

use mongodb::bson::{Bson, Document, doc};

use crate::{error::InvalidInput, store::lock_layout::overlap, truncated_debug::shown_in_a_line};

/// Returns the document that an upsert's filter names by its `_id`.
///
/// # Errors
///
/// If it names none, or names the fence's field: the server starts a new document with the values that the filter asks
/// for, and a value there that is not a token, or is a larger one, would fence everybody out.
pub(super) fn named_id(filter: &Document, field: &str) -> Result<Document, InvalidInput> {
    if let Some(path) = path_of_token(filter, field) {
        return Err(InvalidInput::new(format!(
            "the filter of a fenced upsert has a condition on `{}`, but the fence keeps its token in `{}`",
            shown_in_a_line(path),
            shown_in_a_line(field)
        )));
    }
    let id = match filter.get("_id") {
        Some(Bson::Document(operators)) if operators.keys().any(|key| key.starts_with('$')) => {
            operators.get("$eq").filter(|_| operators.len() == 1)
        }
        Some(Bson::RegularExpression(_)) | None => None,
        Some(id) => Some(id),
    };
    match id {
        Some(id) => Ok(doc! { "_id": { "$eq": id } }),
        None => Err(InvalidInput::new(
            "a fenced upsert must name the `_id` in its filter; otherwise a refused write would insert a second document",
        )),
    }
}

/// Returns the path of a condition on the fence's field, above or below it. Its depth was checked.
fn path_of_token<'a>(filter: &'a Document, field: &str) -> Option<&'a str> {
    filter.iter().find_map(|(path, condition)| match condition {
        Bson::Array(parts) if path.starts_with('$') => {
            let mut parts = parts.iter().filter_map(Bson::as_document);
            parts.find_map(|part| path_of_token(part, field))
        }
        _ => overlap(path, field).then_some(path.as_str()),
    })
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Regex;

    use super::*;

    #[test]
    fn a_filter_of_an_upsert_has_no_condition_on_the_fence() {
        for filter in [
            doc! { "_id": 1, "a.b": "abc" },
            doc! { "_id": 1, "a.b": { "$eq": i64::MAX } },
            doc! { "_id": 1, "a.b": { "$in": [7] } },
            doc! { "_id": 1, "a.b": { "$gt": 1, "$eq": 7 } },
            doc! { "_id": 1, "a.b": { "c": 1 } },
            doc! { "_id": 1, "a.b": {} },
            doc! { "_id": 1, "a": { "b": 7 } },
            doc! { "_id": 1, "a.b.c": 1 },
            doc! { "_id": 1, "$and": [{ "x": 1 }, { "$or": [{ "a.b": 7 }] }] },
            doc! { "_id": 1, "a.b": { "$not": { "$ne": 7 } } },
            doc! { "_id": 1, "a.b": { "$exists": false } },
            doc! { "_id": 1, "$nor": [{ "a.b": { "$ne": 7 } }] },
        ] {
            let refused = named_id(&filter, "a.b").unwrap_err().to_string();
            assert!(refused.contains("`a.b`"), "{filter}: {refused}");
        }
        for filter in [
            doc! { "_id": 1 },
            doc! { "_id": 1, "a.c": 7, "b": 7, "ab": 7 },
            doc! { "_id": 1, "$nor": [{ "a.c": 7 }] },
        ] {
            assert_eq!(named_id(&filter, "a.b").unwrap(), doc! { "_id": { "$eq": 1 } });
        }
    }

    #[test]
    #[allow(clippy::unnecessary_fallible_conversions, reason = "they can fail with bson 3")]
    fn a_filter_of_an_upsert_names_one_document() {
        for (id, named) in [
            (Bson::from(7), Bson::from(7)),
            (doc! { "$eq": 7 }.into(), Bson::from(7)),
            (doc! { "shop": 7 }.into(), doc! { "shop": 7 }.into()),
            (doc! {}.into(), doc! {}.into()),
        ] {
            let filter = doc! { "_id": &id };
            assert_eq!(named_id(&filter, "fence").unwrap(), doc! { "_id": { "$eq": named } });
        }
        for id in [doc! { "$gt": 7 }, doc! { "$eq": 7, "$ne": 8 }, doc! { "$in": [7] }] {
            named_id(&doc! { "_id": id }, "fence").unwrap_err();
        }
        let pattern = Bson::RegularExpression(Regex {
            pattern: "^a".try_into().unwrap(),
            options: "i".try_into().unwrap(),
        });
        for filter in [doc! { "name": "a" }, doc! { "_id": pattern }] {
            named_id(&filter, "fence").unwrap_err();
        }
    }
}
