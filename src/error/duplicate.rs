//! The unique index that a write collided with.

use mongodb::{
    bson::{Bson, Document},
    error::{Error, ErrorKind, WriteFailure},
};

/// The unique index that had the key already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duplicate {
    /// The index of `_id`.
    Id,
    /// An index that somebody made.
    Other,
}

/// Returns the index, if the error is about a duplicate key.
pub(crate) fn of(error: &Error) -> Option<Duplicate> {
    let (code, message) = match &*error.kind {
        ErrorKind::Command(command) => (command.code, &command.message),
        ErrorKind::Write(WriteFailure::WriteError(write)) => (write.code, &write.message),
        _ => return None,
    };
    // DuplicateKey
    if code != 11_000 {
        return None;
    }
    let answer = error.server_response();
    let answer: Option<Document> = answer.and_then(|answer| Document::from_reader(answer.as_bytes()).ok());
    let is_id = match answer.as_ref().and_then(pattern) {
        Some(pattern) => pattern.keys().eq(["_id"]),
        // Servers also name the index in the text, and no other index can have this name. An index without a name is
        // the one that every collection has.
        None => message.contains(" index: _id_ ") || !message.contains(" index: "),
    };
    Some(if is_id { Duplicate::Id } else { Duplicate::Other })
}

/// Returns the fields of the index from the server's answer: next to a write error, or next to the error of a command.
fn pattern(answer: &Document) -> Option<&Document> {
    let errors = answer.get_array("writeErrors").ok();
    let error = errors.and_then(|errors| errors.first()).and_then(Bson::as_document);
    error.unwrap_or(answer).get_document("keyPattern").ok()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::store::read_as;

    #[test]
    fn the_index_is_told_by_its_fields() {
        let answer = |pattern: Document| doc! { "ok": 1, "writeErrors": [{ "code": 11_000, "keyPattern": pattern }] };
        for (fields, is_id) in [
            (doc! { "_id": 1 }, true),
            (doc! { "email": 1 }, false),
            (doc! { "_id": 1, "email": 1 }, false),
        ] {
            let answer = answer(fields);
            assert_eq!(pattern(&answer).unwrap().keys().eq(["_id"]), is_id, "{answer}");
        }
        assert_eq!(
            pattern(&doc! { "ok": 0, "keyPattern": { "_id": 1 } }),
            Some(&doc! { "_id": 1 })
        );
        assert_eq!(pattern(&doc! { "ok": 1, "writeErrors": [1] }), None);
    }

    #[test]
    fn the_index_is_told_by_its_name_where_there_is_nothing_else() {
        let duplicate = |index: &str| {
            let message = format!("E11000 duplicate key error collection: a.b index: {index} dup key: {{ : 1 }}");
            let error = doc! { "code": 11_000, "errmsg": message };
            of(&ErrorKind::Write(WriteFailure::WriteError(read_as(&error).unwrap())).into())
        };
        assert_eq!(duplicate("_id_"), Some(Duplicate::Id));
        assert_eq!(duplicate("email_1"), Some(Duplicate::Other));
        let nameless = doc! { "code": 11_000, "errmsg": "E11000 duplicate key error collection: a.b dup key: { : 1 }" };
        let nameless = ErrorKind::Write(WriteFailure::WriteError(read_as(&nameless).unwrap()));
        assert_eq!(of(&nameless.into()), Some(Duplicate::Id));
        let message = "E11000 duplicate key error collection: a.b index: _id_ dup key: { : 1 }";
        let command = doc! { "code": 11_000, "codeName": "DuplicateKey", "errmsg": message };
        let command: Error = ErrorKind::Command(read_as(&command).unwrap()).into();
        assert_eq!(of(&command), Some(Duplicate::Id));
        let other = doc! { "code": 121, "errmsg": "Document failed validation" };
        assert_eq!(
            of(&ErrorKind::Write(WriteFailure::WriteError(read_as(&other).unwrap())).into()),
            None
        );
    }
}
