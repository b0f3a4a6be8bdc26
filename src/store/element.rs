//! Elements of arrays in documents of the user's own, and the keys that identify them.
//!
//! The lock of an element is kept under the code of its key: a text that equal keys share, in any order of the fields
//! and with any types of numbers, and that no other key has. It can be the name of a field, and it can be read:
//! `sku="x"`, or `line=7,sku="a%2Eb"`.

use std::fmt::Write as _;

use mongodb::bson::{Bson, Document, doc};

use super::name;

/// Bytes that a code spells out: those that a field's name can't have, or that mean something in a path, in a code, or
/// in the name of an element's lock.
const ESCAPED: [char; 7] = ['%', '.', '$', '/', '\0', ',', '='];

/// The fields of an element, with their values, that distinguish it from the others of its array.
#[derive(Clone, Debug)]
pub(crate) struct ElementKey {
    /// Sorted by name. Each value is in the one form that all values have which are equal to the server.
    fields: Vec<(String, Bson)>,
    code: String,
}

impl ElementKey {
    /// Returns a key that was checked: none of its values is a document or an array.
    pub(crate) fn new(key: &Document) -> Self {
        Self::of(key.iter().map(|(field, value)| (field.clone(), value)))
    }

    fn of<'a>(fields: impl Iterator<Item = (String, &'a Bson)>) -> Self {
        let named = fields.map(|(field, value)| (field, name::of_id(value)));
        let mut named: Vec<(String, String)> = named.collect();
        named.sort_unstable();
        let codes = named
            .iter()
            .map(|(field, value)| format!("{}={}", escaped(field), escaped(value)));
        let code = codes.collect::<Vec<_>>().join(",");
        let fields = named.into_iter().map(|(field, value)| {
            // Every name of a value leads back to it.
            let value = name::to_id(&value).unwrap_or(Bson::Null);
            (field, value)
        });
        Self {
            fields: fields.collect(),
            code,
        }
    }

    /// Returns the key with this code; `None` for any other text.
    pub(crate) fn from_code(code: &str) -> Option<Self> {
        let mut fields = Vec::new();
        for part in code.split(',') {
            let (field, value) = part.split_once('=')?;
            fields.push((unescaped(field)?, name::to_id(&unescaped(value)?)?));
        }
        let read = Self::of(fields.iter().map(|(field, value)| (field.clone(), value)));
        // Another text can stand for the same fields; it is no code.
        let is_twice = read.fields.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (read.code == code && !is_twice).then_some(read)
    }

    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Returns the fields and their values.
    pub(crate) fn into_document(self) -> Document {
        self.fields.into_iter().collect()
    }

    /// Reports whether the key has this field.
    pub(crate) fn has_field(&self, field: &str) -> bool {
        self.fields.iter().any(|(known, _)| known == field)
    }

    /// Reports whether an element of an array has this key: each field has exactly this value.
    pub(crate) fn is_of(&self, element: &Bson) -> bool {
        let Some(element) = element.as_document() else {
            return false;
        };
        self.fields.iter().all(|(field, value)| {
            element
                .get(field)
                .is_some_and(|found| name::of_id(found) == name::of_id(value))
        })
    }

    /// Returns the expression for the elements of the array at `path` that have this key: an array, which is empty
    /// where there is no array.
    ///
    /// A filter would take an array that contains the value for the value.
    pub(crate) fn elements(&self, path: &str) -> Document {
        let array = format!("${path}");
        let conditions = self.fields.iter().map(|(field, value)| {
            let element = format!("$$this.{field}");
            doc! { "$eq": [element, { "$literal": value }] }
        });
        // An expression looks through arrays on the way, and finds an array where there is none.
        let parents = path.match_indices('.').map(|(dot, _)| &path[..dot]);
        let is_object = parents.map(|path| doc! { "$eq": [{ "$type": format!("${path}") }, "object"] });
        let is_array: Vec<Document> = is_object.chain([doc! { "$isArray": [&array] }]).collect();
        doc! { "$filter": {
            "input": { "$cond": [{ "$and": is_array }, &array, []] },
            "cond": { "$and": conditions.collect::<Vec<_>>() },
        } }
    }

    /// Returns the array filter for the element, under this identifier.
    pub(crate) fn array_filter(&self, identifier: &str) -> Document {
        let fields = self.fields.iter().map(|(field, value)| {
            let condition = doc! { "$eq": value, "$not": { "$type": "array" } };
            (format!("{identifier}.{field}"), Bson::from(condition))
        });
        // The path of a condition leads through arrays too.
        let itself = (identifier.to_owned(), Bson::from(doc! { "$not": { "$type": "array" } }));
        fields.chain([itself]).collect()
    }
}

/// Spells out the bytes that can't be in the code of a key, as in a URL.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if ESCAPED.contains(&letter) {
            // Writing to a String can't fail.
            let _ = write!(escaped, "%{:02X}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut unescaped = parts.next()?.to_owned();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let letter = char::from(u8::from_str_radix(digits, 16).ok()?);
        unescaped.push(letter);
        unescaped.push_str(rest);
    }
    Some(unescaped)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{Binary, DateTime, oid::ObjectId, spec::BinarySubtype};

    use super::*;

    fn code(key: Document) -> String {
        ElementKey::new(&key).code().to_owned()
    }

    #[test]
    fn equal_keys_have_one_code_and_others_have_others() {
        assert_eq!(code(doc! { "sku": "x" }), r#"sku="x""#);
        assert_eq!(code(doc! { "sku": "x", "line": 7 }), r#"line=7,sku="x""#);
        assert_eq!(code(doc! { "line": 7.0, "sku": "x" }), r#"line=7,sku="x""#);
        let decimal = Bson::Decimal128("7.0".parse().unwrap());
        assert_eq!(code(doc! { "line": decimal }), "line=7");
        assert_eq!(code(doc! { "a": "1.5%/$\0,=é" }), r#"a="1%2E5%25%2F%24%00%2C%3Dé""#);
        let others = [
            doc! { "a": "x\",b=\"y" },
            doc! { "a": "x", "b": "y" },
            doc! { "a": "x" },
            doc! { "a": "x%2C" },
            doc! { "a": "x," },
            doc! { "a=": "x" },
            doc! { "a%3D": "x" },
            doc! { "a": 1 },
            doc! { "a": "1" },
            doc! { "a": true },
            doc! { "a": 1.5 },
            doc! { "a": DateTime::from_millis(1) },
            doc! { "a": ObjectId::from_bytes([1; 12]) },
            doc! { "a": "ObjectId(010101010101010101010101)" },
            doc! { "a": Binary { subtype: BinarySubtype::Uuid, bytes: vec![1; 16] } },
            doc! { "A": 1 },
            doc! { "_id": "é\u{202e}\n" },
            doc! { "a": "" },
        ];
        let codes: std::collections::BTreeSet<String> = others.iter().cloned().map(code).collect();
        assert_eq!(codes.len(), others.len(), "{codes:?}");
        for key in others {
            let key = ElementKey::new(&key);
            assert!(!key.code().contains(['.', '$', '/', '\0']), "{}", key.code());
            let again = ElementKey::from_code(key.code()).unwrap();
            assert_eq!((again.code(), &again.fields), (key.code(), &key.fields));
        }
    }

    #[test]
    fn a_text_that_is_no_code_is_no_key() {
        for text in [
            "", "a", "=", "a=x", "a=%", "a=%2", "a=%zz", "a=1,", "b=1,a=1", "a=1,a=1", "a=%31", "a=1.0", "%61=1",
            "a=\"x",
        ] {
            assert!(ElementKey::from_code(text).is_none(), "{text}");
        }
    }

    #[test]
    fn an_element_has_exactly_the_values_of_its_key() {
        let key = ElementKey::new(&doc! { "sku": "x", "line": 7 });
        for element in [
            doc! { "sku": "x", "line": 7.0, "n": 1 },
            doc! { "line": 7_i64, "sku": "x" },
        ] {
            assert!(key.is_of(&element.into()));
        }
        for element in [
            Bson::from(doc! { "sku": "x" }),
            Bson::from(doc! { "sku": ["x"], "line": 7 }),
            Bson::from(doc! { "sku": "X", "line": 7 }),
            Bson::from(doc! { "sku": "x", "line": "7" }),
            Bson::from("x"),
            Bson::Null,
        ] {
            assert!(!key.is_of(&element), "{element}");
        }
    }
}
