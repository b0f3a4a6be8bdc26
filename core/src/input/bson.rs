//! Documents of the user's own: filters, sorts, updates, and documents to be stored.

use mongodb::bson::{Bson, Document, RawDocumentBuf};

use super::InvalidInput;
use crate::truncated_debug::shown;

/// Maximum nesting depth that a server stores: the document itself, and 180 levels inside.
pub const DEEPEST: usize = 181;

/// Maximum size of a document that a server stores, in bytes. It accepts no larger filter or update either.
pub const LARGEST: usize = 16 * 1024 * 1024;

/// Checks that a document can be written as BSON, and that a server would store it: the driver would overflow its stack,
/// or refuse a whole command without saying which of the values in it is the cause. `what` is the beginning of the
/// message.
pub fn check_document(what: &str, document: &Document) -> Result<(), InvalidInput> {
    if is_deeper(document, DEEPEST) {
        return Err(InvalidInput::new(format!(
            "{what} is nested too deep; the maximum is {DEEPEST} levels"
        )));
    }
    let encoded = RawDocumentBuf::try_from(document).map_err(|problem| {
        let problem = problem.to_string();
        InvalidInput::new(format!("{what} can't be written as BSON: {}", shown(problem)))
    })?;
    let size = encoded.as_bytes().len();
    if size > LARGEST {
        return Err(InvalidInput::new(format!(
            "{what} has {size} bytes as BSON; it must have at most {LARGEST}"
        )));
    }
    Ok(())
}

/// Reports whether a document has more levels than these.
fn is_deeper(document: &Document, levels: usize) -> bool {
    levels == 0 || document.values().any(|value| is_value_deeper(value, levels - 1))
}

fn is_value_deeper(value: &Bson, levels: usize) -> bool {
    match value {
        Bson::Document(inner) => is_deeper(inner, levels),
        Bson::Array(elements) => levels == 0 || elements.iter().any(|element| is_value_deeper(element, levels - 1)),
        Bson::JavaScriptCodeWithScope(script) => is_deeper(&script.scope, levels),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{JavaScriptCodeWithScope, Regex, doc};

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
            (doc! { "a\0b": 1 }, r"a\0b"),
            (doc! { "a": [{ "b": [[{ "c\0": 1 }]] }] }, r"c\0"),
            (doc! { "$or": [{ "a": { "c\0": { "$gt": 1 } } }] }, r"c\0"),
            (doc! { "a": script(doc! { "d\0": 1 }) }, r"d\0"),
            (doc! { "a": regex("x\0", "") }, r"x\0"),
            (doc! { "a": [regex("x", "i\0")] }, r"i\0"),
        ] {
            let error = check_document("the filter", &document).unwrap_err().to_string();
            assert!(
                error.starts_with("the filter can't be written as BSON") && error.contains(problem),
                "{error}"
            );
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
