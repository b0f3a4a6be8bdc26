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

/// The name of a document of the user's own. Numbers of different types that the server takes for the same `_id` have
/// the same name.
pub(crate) fn of_id(id: &Bson) -> String {
    match id {
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
            Bson::from(doc! { "tenant": "é", "number": 7 }),
        ];
        let names: std::collections::HashSet<String> = ids.iter().map(of_id).collect();
        assert_eq!(names.len(), ids.len());
        for id in ids {
            assert_eq!(to_id(&of_id(&id)), Some(id));
        }
        assert_eq!(of_id(&Bson::Int32(7)), of_id(&Bson::Int64(7)));
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
