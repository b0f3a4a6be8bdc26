//! Keys of elements in arrays.

use mongodb::bson::{Bson, Document, spec::BinarySubtype};

use super::{InvalidInput, check_count};
use crate::truncated_debug::shown_in_a_line;

/// Maximum number of fields of a key.
const FIELDS_MOST: usize = 4;

/// Maximum length of a key as text, in bytes. The text is repeated in every command and in every event, and it is in
/// the document once for each element that is locked.
const CODE_MOST: usize = 512;

/// Checks the key of an element: its fields are those of the element itself, and its values are plain.
pub fn check_key(key: &Document) -> Result<(), InvalidInput> {
    check_count("key of an element", key.len(), "fields", 1..=FIELDS_MOST)?;
    key.iter().try_for_each(|(field, value)| {
        check_key_field(field)?;
        check_key_value(field, value)
    })
}

/// Checks the length of a key as text.
pub fn check_code(code: &str) -> Result<(), InvalidInput> {
    check_count("key of an element", code.len(), "bytes as text", 0..=CODE_MOST)
}

fn check_key_field(field: &str) -> Result<(), InvalidInput> {
    let problem = if field.is_empty() {
        "is empty"
    } else if field.starts_with('$') {
        "begins with `$`"
    } else if field.contains(['.', '\0']) {
        "contains a dot or a NUL"
    } else {
        return Ok(());
    };
    Err(InvalidInput::new(format!(
        "the field `{}` in the key of an element {problem}; it must be the name of a field of the element itself",
        shown_in_a_line(field)
    )))
}

fn check_key_value(field: &str, value: &Bson) -> Result<(), InvalidInput> {
    let kind = match value {
        Bson::String(_)
        | Bson::Int32(_)
        | Bson::Int64(_)
        | Bson::Double(_)
        | Bson::Decimal128(_)
        | Bson::Boolean(_)
        | Bson::ObjectId(_)
        | Bson::DateTime(_) => return Ok(()),
        Bson::Binary(binary) if matches!(binary.subtype, BinarySubtype::Uuid | BinarySubtype::UuidOld) => {
            return Ok(());
        }
        Bson::Binary(_) => "a binary that is not a UUID",
        Bson::Document(_) => "a document",
        Bson::Array(_) => "an array",
        Bson::RegularExpression(_) => "a regular expression",
        Bson::Null => "null",
        _ => "of a type that a key can't have",
    };
    Err(InvalidInput::new(format!(
        "the value of `{}` in the key of an element is {kind}; it must be a text, a number, a boolean, an `ObjectId`, a \
         date or a UUID",
        shown_in_a_line(field)
    )))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Binary, doc};

    use super::*;

    #[test]
    fn a_key_that_is_out_of_bounds_is_refused_with_the_bound() {
        for (key, problem) in [
            (doc! {}, "0 fields; it must have 1 to 4"),
            (
                doc! { "a": 1, "b": 1, "c": 1, "d": 1, "e": 1 },
                "5 fields; it must have 1 to 4",
            ),
            (doc! { "": 1 }, "is empty"),
            (doc! { "a.b": 1 }, "`a.b` in the key of an element contains a dot"),
            (doc! { "a\0": 1 }, "contains a dot or a NUL"),
            (doc! { "$a": 1 }, "begins with `$`"),
            (doc! { "a": Bson::Null }, "is null"),
            (doc! { "a": { "$gt": 1 } }, "is a document"),
            (doc! { "a": [1] }, "is an array"),
            (doc! { "a": Bson::MinKey }, "of a type"),
            (
                doc! { "a": Binary { subtype: BinarySubtype::Generic, bytes: vec![1] } },
                "not a UUID",
            ),
        ] {
            let error = check_key(&key).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        check_code(&"x".repeat(CODE_MOST)).unwrap();
        let error = check_code(&"x".repeat(CODE_MOST + 1)).unwrap_err().to_string();
        assert!(error.contains("513 bytes as text; it must have at most 512"), "{error}");
        check_key(&doc! { "a": "x", "b": true, "c": Bson::Double(1.5), "_id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![] } }).unwrap();
    }
}
