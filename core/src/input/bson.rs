//! Documents of the user's own: filters, sorts, updates, and documents to be stored.

use mongodb::bson::{Bson, Document};

use super::InvalidInput;

/// Maximum nesting depth that a server stores: the document itself, and 180 levels inside.
pub const DEEPEST: usize = 181;

/// Maximum size of a document that a server stores, in bytes. It accepts no larger filter or update either.
pub const LARGEST: usize = 16 * 1024 * 1024;

/// Checks that a document can be written as BSON, and that a server would store it: the driver refuses the first or
/// overflows its stack, and it would not say which of the values in a command is the cause. `what` is the beginning of
/// the message.
pub fn check_document(what: &str, document: &Document) -> Result<(), InvalidInput> {
    let size = size_of_document(document, 1).map_err(|problem| InvalidInput::new(format!("{what} {problem}")))?;
    if size > LARGEST {
        return Err(InvalidInput::new(format!(
            "{what} has {size} bytes as BSON; it must have at most {LARGEST}"
        )));
    }
    Ok(())
}

/// Returns the size as BSON: the length, the elements and the end.
fn size_of_document(document: &Document, depth: usize) -> Result<usize, String> {
    check_depth(depth)?;
    let mut size = 5;
    for (key, value) in document {
        // A NUL ends the name.
        check_no_nul("field", key)?;
        size += size_of_element(key.len(), value, depth)?;
    }
    Ok(size)
}

/// Returns the size of an element: the type, the key and its end, and the value.
fn size_of_element(key: usize, value: &Bson, depth: usize) -> Result<usize, String> {
    let value = match value {
        Bson::Document(inner) => size_of_document(inner, depth + 1)?,
        Bson::Array(elements) => {
            check_depth(depth + 1)?;
            let mut size = 5;
            for (place, element) in elements.iter().enumerate() {
                // The keys of an array are its indexes.
                let digits = place.checked_ilog10().map_or(1, |log| log as usize + 1);
                size += size_of_element(digits, element, depth + 1)?;
            }
            size
        }
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => 5 + text.len(),
        Bson::JavaScriptCodeWithScope(script) => 9 + script.code.len() + size_of_document(&script.scope, depth + 1)?,
        Bson::RegularExpression(regex) => {
            // A NUL ends each of these too.
            let (pattern, options) = (regex.pattern.as_str(), regex.options.as_str());
            check_no_nul("regular expression", pattern)?;
            check_no_nul("option of a regular expression", options)?;
            2 + pattern.len() + options.len()
        }
        Bson::Binary(binary) => 5 + binary.bytes.len(),
        Bson::Double(_) | Bson::Int64(_) | Bson::DateTime(_) | Bson::Timestamp(_) => 8,
        Bson::Int32(_) => 4,
        Bson::ObjectId(_) => 12,
        Bson::Decimal128(_) => 16,
        Bson::Boolean(_) => 1,
        Bson::Null | Bson::Undefined | Bson::MinKey | Bson::MaxKey => 0,
        // A pointer: about the length of its text.
        Bson::DbPointer(pointer) => format!("{pointer:?}").len(),
    };
    Ok(2 + key + value)
}

fn check_depth(depth: usize) -> Result<(), String> {
    if depth > DEEPEST {
        return Err(format!("is nested too deep; the maximum is {DEEPEST} levels"));
    }
    Ok(())
}

fn check_no_nul(what: &str, text: &str) -> Result<(), String> {
    if !text.contains('\0') {
        return Ok(());
    }
    // The text may be megabytes: only its beginning is shown.
    let shown: String = text.chars().take(200).collect();
    Err(format!(
        "has the {what} `{}` with a NUL, which can't be written as BSON",
        shown.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{JavaScriptCodeWithScope, RawDocumentBuf, Regex, doc};

    use super::*;

    fn nested(levels: usize) -> Document {
        (1..levels).fold(Document::new(), |inner, _| doc! { "a": inner })
    }

    /// Returns a document of exactly this size in bytes.
    fn sized(size: usize) -> Document {
        // Minus the document, the `_id` of four bytes, and the string's overhead.
        doc! { "_id": 1, "a": "x".repeat(size - 5 - 9 - 8) }
    }

    fn regex(pattern: &str, options: &str) -> Bson {
        Bson::RegularExpression(Regex {
            pattern: pattern.to_owned(),
            options: options.to_owned(),
        })
    }

    fn script(scope: Document) -> Bson {
        let code = "x".to_owned();
        Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope { code, scope })
    }

    /// The driver writes exactly those to a command that pass, and they are as large as they are counted.
    #[test]
    fn what_is_no_bson_is_refused_by_name_and_all_else_is_measured() {
        for (document, problem) in [
            (doc! { "a\0b": 1 }, r"the field `a\0b` with a NUL"),
            (doc! { "a": [{ "b": [[{ "\0": 1 }]] }] }, r"the field `\0` with a NUL"),
            (doc! { "$or": [{ "a": { "c\0": { "$gt": 1 } } }] }, r"`c\0`"),
            (doc! { "a": script(doc! { "d\0": 1 }) }, r"`d\0`"),
            (
                doc! { "a": regex("x\0", "") },
                r"the regular expression `x\0` with a NUL",
            ),
            (
                doc! { "a": [regex("x", "i\0")] },
                r"option of a regular expression `i\0` with",
            ),
        ] {
            assert!(RawDocumentBuf::try_from(&document).is_err(), "{document:?}");
            let error = check_document("the filter", &document).unwrap_err().to_string();
            assert!(
                error.starts_with("the filter has") && error.contains(problem),
                "{error}"
            );
        }
        let long = "é\0".repeat(1 << 20);
        let error = check_document("it", &doc! { long: 1 }).unwrap_err().to_string();
        assert!(error.len() < 1_500, "{}", error.len());
        for document in [
            doc! {},
            doc! { "a": "\0", "é": ["", 1, 1_i64, 1.5, true, Bson::Null, Bson::MinKey, Bson::MaxKey] },
            doc! { "a": (0..120).collect::<Vec<i32>>(), "b": { "": { "$x.y": Bson::Undefined } } },
            doc! { "a": regex("^x", "i"), "b": script(doc! { "c": 1 }), "c": Bson::Symbol("é".to_owned()) },
            sized(1_000),
        ] {
            let size = RawDocumentBuf::try_from(&document).unwrap().as_bytes().len();
            assert_eq!(size_of_document(&document, 1), Ok(size), "{document:?}");
            check_document("it", &document).unwrap();
        }
        // A document that is nested far deeper is refused too, without overflowing the stack.
        let error = check_document("it", &nested(2_000)).unwrap_err().to_string();
        assert!(error.contains("the maximum is 181 levels"), "{error}");
        let error = check_document("it", &sized(LARGEST + 1)).unwrap_err().to_string();
        assert!(
            error.contains("16777217 bytes as BSON; it must have at most 16777216"),
            "{error}"
        );
    }
}
