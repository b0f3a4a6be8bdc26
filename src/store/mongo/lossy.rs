//! Tolerant reading of documents as the server has them.
//!
//! The server stores texts that are not UTF-8, in an `_id` too, and the driver refuses a whole answer because of one
//! such text. So answers that can contain documents of others are read raw: invalid text is replaced, as it is only
//! shown, and affects only the document that contains it.

use std::borrow::Cow;

use mongodb::bson::{Bson, Document, RawDocument};

/// Maximum nesting depth: more levels than any server accepts.
const DEPTH_MOST: usize = 250;

/// Returns the document, with `\u{fffd}` in place of bytes that are not UTF-8; `None` when it is not BSON at all, which
/// no server stores.
pub(super) fn read(raw: &RawDocument) -> Option<Document> {
    if let Ok(document) = Document::try_from(raw) {
        return Some(document);
    }
    let mut repaired = Vec::with_capacity(raw.as_bytes().len());
    Unread(raw.as_bytes()).document(&mut repaired, 0)?;
    Document::from_reader(repaired.as_slice()).ok()
}

/// Returns the value of a field exactly as it is; `None` when it is missing, is not UTF-8, or follows a name that is
/// not.
pub(super) fn read_exactly(raw: &RawDocument, field: &str) -> Option<Bson> {
    Bson::try_from(raw.get(field).ok()??).ok()
}

/// The bytes that are still to be read.
struct Unread<'a>(&'a [u8]);

impl<'a> Unread<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn length(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(bytes)).ok()
    }

    /// Reads text up to a NUL.
    fn name(&mut self) -> Option<Cow<'a, str>> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.take(length)?;
        self.take(1)?;
        Some(String::from_utf8_lossy(text))
    }

    /// Reads text after its length, with a NUL.
    fn text(&mut self, to: &mut Vec<u8>) -> Option<()> {
        let length = self.length()?;
        let (_, text) = self.take(length)?.split_last()?;
        let text = String::from_utf8_lossy(text);
        to.extend(i32::try_from(text.len() + 1).ok()?.to_le_bytes());
        put_name(to, &text);
        Some(())
    }

    fn copy(&mut self, count: usize, to: &mut Vec<u8>) -> Option<()> {
        to.extend(self.take(count)?);
        Some(())
    }

    /// Reads a document or array: its length, its elements, and a NUL.
    fn document(&mut self, to: &mut Vec<u8>, depth: usize) -> Option<()> {
        if depth > DEPTH_MOST {
            return None;
        }
        let begin = to.len();
        let rest = self.length()?.checked_sub(4)?;
        let mut inner = Unread(self.take(rest)?);
        to.extend([0; 4]);
        loop {
            let kind = inner.take(1)?[0];
            to.push(kind);
            if kind == 0 {
                break;
            }
            put_name(to, &inner.name()?);
            inner.value(kind, to, depth)?;
        }
        put_length(to, begin)
    }

    /// Reads a value, by the number of its type in the BSON specification.
    fn value(&mut self, kind: u8, to: &mut Vec<u8>, depth: usize) -> Option<()> {
        match kind {
            // Undefined, null, MinKey and MaxKey.
            0x06 | 0x0a | 0xff | 0x7f => Some(()),
            0x08 => self.copy(1, to),
            0x10 => self.copy(4, to),
            // Double, date, timestamp, 64-bit integer.
            0x01 | 0x09 | 0x11 | 0x12 => self.copy(8, to),
            0x07 => self.copy(12, to),
            0x13 => self.copy(16, to),
            // String, code, symbol.
            0x02 | 0x0d | 0x0e => self.text(to),
            0x03 | 0x04 => self.document(to, depth + 1),
            // Binary: its length is followed by its subtype.
            0x05 => {
                let length = self.length()?;
                to.extend(i32::try_from(length).ok()?.to_le_bytes());
                self.copy(length.checked_add(1)?, to)
            }
            // Regular expression and its options.
            0x0b => {
                put_name(to, &self.name()?);
                put_name(to, &self.name()?);
                Some(())
            }
            // A pointer: namespace and id.
            0x0c => {
                self.text(to)?;
                self.copy(12, to)
            }
            // Code with its scope, after the total length of both.
            0x0f => {
                let begin = to.len();
                self.take(4)?;
                to.extend([0; 4]);
                self.text(to)?;
                self.document(to, depth + 1)?;
                put_length(to, begin)
            }
            _ => None,
        }
    }
}

fn put_name(to: &mut Vec<u8>, name: &str) {
    to.extend(name.as_bytes());
    to.push(0);
}

/// Writes the length of the value that begins at `begin` in front of it.
fn put_length(to: &mut [u8], begin: usize) -> Option<()> {
    let length = i32::try_from(to.len() - begin).ok()?;
    to[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{
        Binary, DateTime, JavaScriptCodeWithScope, RawDocumentBuf, Regex, Timestamp, doc, oid::ObjectId,
        spec::BinarySubtype,
    };

    use super::*;
    use watchlock_proofs::Random;

    fn whole() -> Document {
        doc! {
            "text": "some?text", "deep": { "array": ["?", { "n": 7_i64 }] }, "double": 2.5,
            "binary": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 0xff, 0] },
            "id": ObjectId::from_bytes([7; 12]), "yes": true, "date": DateTime::from_millis(5), "null": Bson::Null,
            "code": Bson::JavaScriptCode("?".to_owned()), "symbol": Bson::Symbol("?".to_owned()),
            "scoped": JavaScriptCodeWithScope { code: "?".to_owned(), scope: doc! { "a": "?" } },
            "number": 3, "stamp": Timestamp { time: 1, increment: 2 }, "least": Bson::MinKey, "most": Bson::MaxKey,
            "decimal": Bson::Decimal128("1.5".parse().unwrap()), "undefined": Bson::Undefined,
            // Comes last: a field after such a name is not found.
            "?": 1,
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
    #[allow(clippy::unnecessary_fallible_conversions, reason = "they can fail with bson 3")]
    fn what_is_a_text_is_not_touched() {
        let mut document = whole();
        document.insert(
            "regex",
            Regex {
                pattern: "^a".try_into().unwrap(),
                options: "i".try_into().unwrap(),
            },
        );
        let bytes = bytes(&document);
        let mut copied = Vec::new();
        Unread(&bytes).document(&mut copied, 0).unwrap();
        assert_eq!(copied, bytes);
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
            let mut to = Vec::new();
            let _ = Unread(&bytes).document(&mut to, 0);
            if let Ok(raw) = RawDocumentBuf::from_bytes(bytes) {
                let _ = read(&raw);
                let _ = read_exactly(&raw, "deep");
            }
        }
    }
}
