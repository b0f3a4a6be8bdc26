//! Documents of the user's own: filters, sorts, updates, and documents to be stored; and values for their `_id`.

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};

use super::{InvalidInput, check_count};
use crate::{
    protocol::document::{ID_MOST, size_of_id},
    truncated_debug::{shown, shown_in_a_line},
};

/// Maximum nesting depth that a server stores: the document itself, and 180 levels inside.
pub const DEEPEST: usize = 181;

/// Maximum size of a document that a server stores, in bytes. It accepts no larger filter or update either.
pub const LARGEST: usize = 16 * 1024 * 1024;

/// Checks that a document can be written as BSON, and that a server would store it: the driver would overflow its stack,
/// or refuse a whole command without saying which of the values in it is the cause. `what` is the beginning of the
/// message.
pub fn check_document(what: &str, document: &Document) -> Result<(), InvalidInput> {
    let refused = |problem: String| InvalidInput::new(format!("{what} {problem}"));
    check_fields(document, 1).map_err(refused)?;
    let encoded = RawDocumentBuf::try_from(document);
    let encoded = encoded.map_err(|problem| refused(format!("can't be written as BSON: {}", shown(problem))))?;
    let size = encoded.as_bytes().len();
    if size > LARGEST {
        return Err(refused(format!(
            "has {size} bytes as BSON; it must have at most {LARGEST}"
        )));
    }
    Ok(())
}

/// Checks the names and the depth of fields.
fn check_fields(document: &Document, depth: usize) -> Result<(), String> {
    check_depth(depth)?;
    document.iter().try_for_each(|(field, value)| {
        // A NUL ends the name.
        if field.contains('\0') {
            return Err(format!(
                "has the field `{}` with a NUL, which can't be written as BSON",
                shown_in_a_line(field)
            ));
        }
        check_value(value, depth)
    })
}

fn check_value(value: &Bson, depth: usize) -> Result<(), String> {
    match value {
        Bson::Document(inner) => check_fields(inner, depth + 1),
        Bson::JavaScriptCodeWithScope(script) => check_fields(&script.scope, depth + 1),
        Bson::Array(elements) => {
            check_depth(depth + 1)?;
            elements.iter().try_for_each(|element| check_value(element, depth + 1))
        }
        _ => Ok(()),
    }
}

fn check_depth(depth: usize) -> Result<(), String> {
    if depth > DEEPEST {
        return Err(format!("is nested too deep; the maximum is {DEEPEST} levels"));
    }
    Ok(())
}

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
        shown_in_a_line(&id)
    )))
}

/// Checks that an `_id` is short enough to lock. Claims pass over longer ones, by the same bound.
pub fn check_size(id: &Bson) -> Result<(), InvalidInput> {
    check_count(
        "id of a document to be locked",
        size_of_id(id),
        "bytes as BSON",
        0..=ID_MOST,
    )
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{JavaScriptCodeWithScope, Regex};

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

    /// The driver writes exactly those to a command that pass.
    #[test]
    fn what_is_no_bson_is_refused_by_name() {
        for (document, problem) in [
            (doc! { "a\0b": 1 }, r"the field `a\0b` with a NUL"),
            (doc! { "a": [{ "b": [[{ "\0": 1 }]] }] }, r"the field `\0` with a NUL"),
            (doc! { "$or": [{ "a": { "c\0": { "$gt": 1 } } }] }, r"`c\0`"),
            (doc! { "a": script(doc! { "d\0": 1 }) }, r"`d\0`"),
            (doc! { "a": regex("x\0", "") }, "can't be written as BSON"),
            (doc! { "a": [regex("x", "i\0")] }, "can't be written as BSON"),
        ] {
            let error = check_document("the filter", &document).unwrap_err().to_string();
            assert!(error.starts_with("the filter ") && error.contains(problem), "{error}");
        }
        let long = "é\0".repeat(1 << 20);
        let error = check_document("it", &doc! { long: 1 }).unwrap_err().to_string();
        assert!(error.len() < 1_500, "{}", error.len());
        for document in [
            doc! {},
            doc! { "a": "\0", "é": ["", 1, 1_i64, 1.5, true, Bson::Null, Bson::MinKey, Bson::MaxKey] },
            doc! { "a": regex("^x", "i"), "b": script(doc! { "c": 1 }), "c": Bson::Symbol("é".to_owned()) },
            nested(DEEPEST),
            sized(LARGEST),
        ] {
            check_document("it", &document).unwrap();
        }
        let error = check_document("it", &nested(DEEPEST + 1)).unwrap_err().to_string();
        assert!(error.contains("the maximum is 181 levels"), "{error}");
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
