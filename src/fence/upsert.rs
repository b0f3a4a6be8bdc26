//! The filters that are allowed for an upsert under a fence.

use mongodb::bson::{Bson, Document, doc};

use crate::{error::InvalidInput, truncated_debug::shown};

/// Operators of a field condition for which the server adds no value to a document that it inserts.
const WITHOUT_A_VALUE: [&str; 12] = [
    "$exists", "$gt", "$gte", "$lt", "$lte", "$ne", "$nin", "$type", "$mod", "$size", "$regex", "$options",
];

/// Where a condition of a filter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sense {
    Plain,
    /// Under a `$nor`.
    Negated,
}

/// Nesting limit: deeper than the server accepts.
const FILTER_DEEPEST: u32 = 100;

/// Returns the document that an upsert's filter names by its `_id`.
///
/// # Errors
///
/// If it names none, or asks for a value in the fence's field: the server starts a new document with the values that
/// the filter asks for, and a value there that is not a token, or is a larger one, would fence everybody out.
pub(super) fn named_id(filter: &Document, field: &str) -> Result<Document, InvalidInput> {
    if let Some(path) = path_of_value(filter, field, Sense::Plain, 0) {
        return Err(InvalidInput::new(format!(
            "the filter of a fenced upsert asks for a value of `{}`, but the fence keeps its token in `{}`",
            shown(path.escape_debug()),
            shown(field.escape_debug())
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

/// Returns the path of a value that the filter asks for in the fence's field, above or below it. Under a `$nor` any
/// condition counts: that of `$ne` asks for a value.
fn path_of_value(filter: &Document, field: &str, sense: Sense, depth: u32) -> Option<String> {
    filter
        .iter()
        .find_map(|(path, condition)| match (path.as_str(), condition) {
            (operator @ ("$and" | "$or" | "$nor"), Bson::Array(parts)) if depth < FILTER_DEEPEST => {
                let sense = if operator == "$nor" { Sense::Negated } else { sense };
                let mut parts = parts.iter().filter_map(Bson::as_document);
                parts.find_map(|part| path_of_value(part, field, sense, depth + 1))
            }
            (path, condition) => {
                let leads = path.split('.').zip(field.split('.')).all(|(one, other)| one == other);
                (leads && (sense == Sense::Negated || has_value(condition))).then(|| path.to_owned())
            }
        })
}

fn has_value(condition: &Bson) -> bool {
    match condition {
        Bson::Document(operators) if !operators.is_empty() => operators
            .keys()
            .any(|operator| !WITHOUT_A_VALUE.contains(&operator.as_str())),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Regex;

    use super::*;

    #[test]
    fn a_filter_of_an_upsert_asks_for_no_value_in_the_fence() {
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
            doc! { "_id": 1, "$nor": [{ "a.b": { "$ne": 7 } }] },
        ] {
            let refused = named_id(&filter, "a.b").unwrap_err().to_string();
            assert!(refused.contains("`a.b`"), "{filter}: {refused}");
        }
        for filter in [
            doc! { "_id": 1 },
            doc! { "_id": 1, "a.c": 7, "b": 7, "ab": 7 },
            doc! { "_id": 1, "a.b": { "$exists": false } },
            doc! { "_id": 1, "a.b": { "$gte": 1, "$lt": 7 } },
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

    /// The server refuses a filter that is nested more deeply, so nobody needs to look into it.
    #[test]
    fn a_filter_is_searched_as_deep_as_the_server_takes_it() {
        let nested = |levels: u32| (0..levels).fold(doc! { "fence": 7 }, |inner, _| doc! { "$and": [inner] });
        assert_eq!(
            path_of_value(&nested(FILTER_DEEPEST), "fence", Sense::Plain, 0).as_deref(),
            Some("fence")
        );
        assert_eq!(
            path_of_value(&nested(FILTER_DEEPEST + 1), "fence", Sense::Plain, 0),
            None
        );
    }
}
