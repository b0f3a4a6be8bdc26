//! The names by which the session knows documents.
//!
//! In a collection of locks the name is the document's `_id`. A document of the user's own may have an `_id` of any
//! type; its name is a text that tells type and value, so that two documents never share one.

use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use crate::protocol::Location;

const ANY: &str = "bson:";

/// The name of the document with this `_id`; `None` where it can't be that of a lock.
pub(super) fn of_document(location: &Location, id: &Bson) -> Option<String> {
    if location.is_root() {
        return id.as_str().map(str::to_owned);
    }
    Some(of_id(id))
}

/// The `_id` of the document with this name.
pub(super) fn id_of(location: &Location, name: &str) -> Bson {
    let id = if location.is_root() { None } else { to_id(name) };
    id.unwrap_or_else(|| Bson::from(name))
}

/// The name of a document of the user's own. Whole numbers that the server takes for the same `_id`, whatever their types,
/// have the same name.
pub(crate) fn of_id(id: &Bson) -> String {
    match &plain(id) {
        Bson::String(text) => format!("\"{text}\""),
        Bson::ObjectId(id) => format!("ObjectId({id})"),
        Bson::Int32(number) => number.to_string(),
        Bson::Int64(number) => number.to_string(),
        other => {
            let mut bytes = Vec::new();
            // Writing to memory fails only for what is no BSON; no server has that as an id.
            let _ = doc! { "": other }.to_writer(&mut bytes);
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{ANY}{}", hex.concat())
        }
    }
}

/// The same value with every number in one form: a whole one as an `i64`.
fn plain(value: &Bson) -> Bson {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "whole, and within what a double holds exactly"
    )]
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    match value {
        Bson::Int32(number) => Bson::Int64(i64::from(*number)),
        Bson::Double(number) => whole(*number).map_or(Bson::Double(*number), Bson::Int64),
        Bson::Decimal128(number) => {
            let text = number.to_string();
            let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
            let exact = whole
                .parse()
                .ok()
                .filter(|_| fraction.bytes().all(|digit| digit == b'0'));
            exact.map_or_else(|| value.clone(), Bson::Int64)
        }
        Bson::Document(fields) => {
            let fields = fields.iter().map(|(field, value)| (field.clone(), plain(value)));
            Bson::Document(fields.collect())
        }
        Bson::Array(values) => Bson::Array(values.iter().map(plain).collect()),
        other => other.clone(),
    }
}

/// The `_id` of a name that [`of_id`] made.
fn to_id(name: &str) -> Option<Bson> {
    if let Some(text) = name.strip_prefix('"') {
        return Some(Bson::String(text.strip_suffix('"')?.to_owned()));
    }
    if let Some(hex) = name.strip_prefix("ObjectId(") {
        return ObjectId::parse_str(hex.strip_suffix(')')?).ok().map(Bson::ObjectId);
    }
    let Some(hex) = name.strip_prefix(ANY) else {
        return name.parse().ok().map(Bson::Int64);
    };
    let bytes: Option<Vec<u8>> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok())
        .collect();
    Document::from_reader(bytes?.as_slice()).ok()?.remove("")
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, Timestamp};

    use super::*;

    #[test]
    fn every_id_comes_back() {
        let ids = [
            Bson::from(""),
            Bson::from("\""),
            Bson::from("ObjectId(5)"),
            Bson::from("7"),
            Bson::from(ObjectId::new()),
            Bson::Int64(-7),
            Bson::Int64(i64::MAX),
            Bson::Double(1.5),
            Bson::Boolean(true),
            Bson::Null,
            Bson::from(DateTime::from_millis(1)),
            Bson::Timestamp(Timestamp { time: 1, increment: 2 }),
            Bson::from(doc! { "tenant": "é", "number": 7_i64 }),
        ];
        let names: std::collections::HashSet<String> = ids.iter().map(of_id).collect();
        assert_eq!(names.len(), ids.len());
        for id in ids {
            assert_eq!(to_id(&of_id(&id)), Some(id));
        }
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        for same in [Bson::Int32(7), Bson::Double(7.0), decimal("7"), decimal("7.0")] {
            assert_eq!(of_id(&same), "7");
            let nested = |number: Bson| of_id(&Bson::from(doc! { "a": { "b": [number] } }));
            assert_eq!(nested(same), nested(Bson::Int64(7)));
        }
        // What is not the same number to the last digit is another document.
        assert_ne!(of_id(&decimal("7.00000000000000000001")), "7");
        assert_ne!(of_id(&decimal("1.1")), of_id(&Bson::Double(1.1)));
    }

    #[test]
    fn what_is_no_name_is_no_id() {
        for name in [
            "",
            "x",
            "\"",
            "ObjectId(7)",
            "ObjectId(",
            "bson:0",
            "bson:é",
            "bson:00",
            "1.5",
        ] {
            assert_eq!(to_id(name), None, "{name}");
        }
    }
}
