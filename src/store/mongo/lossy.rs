//! Tolerant reading of documents as the server has them.
//!
//! The server stores texts that are not UTF-8, in an `_id` too, and the driver refuses a whole answer because of one
//! such text. So answers that can contain documents of others are read raw: invalid text is replaced, as it is only
//! shown, and affects only the document that contains it.

use mongodb::bson::{Bson, Document, RawDocument};

use crate::store::typed::read_lossily;

/// Returns the document, with `\u{fffd}` in place of bytes that are not UTF-8; `None` when the driver can't do
/// that: for the name of a field, next to code with a scope, or for what is not BSON, which no server stores.
pub(super) fn read(raw: &RawDocument) -> Option<Document> {
    Document::try_from(raw).ok().or_else(|| read_lossily(raw.as_bytes()))
}

/// Returns the value of a field exactly as it is; `None` when it is missing, is not UTF-8, or follows a name that is
/// not.
pub(super) fn read_exactly(raw: &RawDocument, field: &str) -> Option<Bson> {
    Bson::try_from(raw.get(field).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Binary, DateTime, RawDocumentBuf, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};

    use super::*;
    use watchlock_proofs::Random;

    fn whole() -> Document {
        doc! {
            "text": "some?text", "deep": { "array": ["?", { "n": 7_i64 }] }, "double": 2.5,
            "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 0xff, 0] },
            "id": ObjectId::from_bytes([7; 12]), "yes": true, "date": DateTime::from_millis(5), "null": Bson::Null,
            "code": Bson::JavaScriptCode("?".to_owned()), "symbol": Bson::Symbol("?".to_owned()),
            "number": 3, "stamp": Timestamp { time: 1, increment: 2 }, "least": Bson::MinKey, "most": Bson::MaxKey,
            "decimal": Bson::Decimal128("1.5".parse().unwrap()), "undefined": Bson::Undefined,
        }
    }

    fn bytes(document: &Document) -> Vec<u8> {
        let mut bytes = Vec::new();
        document.to_writer(&mut bytes).unwrap();
        bytes
    }

    fn spoiled() -> Vec<u8> {
        let mut spoiled = bytes(&whole());
        for byte in &mut spoiled {
            if *byte == b'?' {
                *byte = 0xfe;
            }
        }
        spoiled
    }

    #[test]
    fn what_is_no_text_is_replaced_and_all_else_stays() {
        let raw = RawDocumentBuf::from_bytes(spoiled()).unwrap();
        assert!(Document::try_from(&*raw).is_err());
        let read = read(&raw).unwrap();
        assert_eq!(read.get_str("text").ok(), Some("some\u{fffd}text"));
        let expected = format!("{:?}", whole()).replace('?', "\u{fffd}");
        assert_eq!(format!("{read:?}"), expected);
        assert_eq!(read_exactly(&raw, "text"), None);
        assert_eq!(read_exactly(&raw, "deep"), None);
        assert_eq!(read_exactly(&raw, "number"), Some(Bson::Int32(3)));
    }

    #[test]
    fn a_document_whose_field_has_no_name_is_not_read() {
        let mut bytes = bytes(&doc! { "number": 3, "deep": { "?": 1 } });
        let name = bytes.iter().position(|byte| *byte == b'?').unwrap();
        bytes[name] = 0xfe;
        let raw = RawDocumentBuf::from_bytes(bytes).unwrap();
        assert_eq!(read(&raw), None);
        assert_eq!(read_exactly(&raw, "number"), Some(Bson::Int32(3)));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let mut bytes = spoiled();
            for _ in 0..=random.below(3) {
                let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                bytes[at] = u8::try_from(random.below(256)).unwrap();
            }
            bytes.truncate(usize::try_from(random.below(2 * bytes.len() as u64)).unwrap().max(1));
            if let Ok(raw) = RawDocumentBuf::from_bytes(bytes) {
                let _ = read(&raw);
                let _ = read_exactly(&raw, "deep");
            }
        }
    }
}
