//! Names by which the session knows documents.
//!
//! In a collection of locks the name is the document's `_id`. A document of the user's own may have an `_id` of any
//! type; its name is a text of both type and value, so two documents never share a name.

use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::number::Number;

const ANY: &str = "bson:";

/// Returns the name of a document of the user's own. Values that the server treats as the same `_id`, whatever their
/// types, have the same name.
pub(crate) fn of_id(id: &Bson) -> String {
    match &plain(id) {
        Bson::String(text) => format!("\"{text}\""),
        Bson::ObjectId(id) => format!("ObjectId({id})"),
        Bson::Int64(number) => number.to_string(),
        other => {
            let mut bytes = Vec::new();
            // Writing to memory fails only for values that are not BSON; no server has one as an id.
            let _ = doc! { "": other }.to_writer(&mut bytes);
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{ANY}{}", hex.concat())
        }
    }
}

/// The `_id` of a document of the user's own by its name, as [`of_id`] made it: a number as one of 64 bits where it is
/// one, and a symbol as a string, which are the same to the server. `None` for any other text.
pub(crate) fn to_id(name: &str) -> Option<Bson> {
    if let Some(text) = text_of(name) {
        return Some(Bson::String(text.to_owned()));
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

/// The text that is the `_id` of a document of the user's own, by its name.
pub(crate) fn text_of(name: &str) -> Option<&str> {
    name.strip_prefix('"')?.strip_suffix('"')
}

/// Returns the same value with every number and every text in one form: the index on `_id` keeps numbers by their exact
/// values, and a symbol as a string. All other types differ from each other, and the order of fields counts.
fn plain(value: &Bson) -> Bson {
    match value {
        Bson::String(_) | Bson::ObjectId(_) | Bson::Int64(_) => value.clone(),
        Bson::Int32(number) => Bson::Int64(i64::from(*number)),
        Bson::Symbol(text) => Bson::String(text.clone()),
        Bson::Document(fields) => Bson::Document(plain_fields(fields)),
        Bson::Array(values) => Bson::Array(values.iter().map(plain).collect()),
        Bson::JavaScriptCodeWithScope(script) => {
            let mut script = script.clone();
            script.scope = plain_fields(&script.scope);
            Bson::JavaScriptCodeWithScope(script)
        }
        other => Number::of(other).map_or_else(|| other.clone(), Number::into_bson),
    }
}

fn plain_fields(fields: &Document) -> Document {
    let fields = fields.iter().map(|(field, value)| (field.clone(), plain(value)));
    fields.collect()
}

#[cfg(test)]
mod tests {
    use mongodb::{
        bson::{Binary, DateTime, JavaScriptCodeWithScope, Timestamp, spec::BinarySubtype},
        error::{ErrorKind, WriteFailure},
    };
    use watchlock_testkit::shared;

    use super::*;
    use watchlock_proofs::Random;

    /// Returns a number in one of the types that can hold it, or one next to it.
    fn number(random: &mut Random) -> Bson {
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        if random.below(3) == 0 {
            let texts = [
                "NaN",
                "-NaN",
                "Infinity",
                "-Infinity",
                "0",
                "-0",
                "0E+6111",
                "1E+3",
                "1000.0",
                "0.1",
                "0.10",
                "0.5",
                "9223372036854775807",
                "9223372036854775808",
                "-9223372036854775808",
                "-9223372036854775809",
                "1E+16",
                "1E+22",
                "1E+23",
                "99999999999999991611392",
                "1E+6144",
                "1E-6176",
                "1E-6175",
                "10E-6176",
                "9E+6111",
                "0.1000000000000000055511151231257827",
                "9007199254740993",
                "4.9E-324",
                "1.5",
                "1E+308",
                "1E+309",
            ];
            let text = random.pick(&texts).to_owned();
            return match random.below(3) {
                0 => decimal(text),
                1 => text.parse().map_or(decimal(text), Bson::Double),
                _ => text.parse().map_or(decimal(text), Bson::Int64),
            };
        }
        if random.below(8) == 0 {
            return Bson::Double(*random.pick(&[f64::NAN, -f64::NAN, -0.0, 5e-324, f64::MAX, f64::INFINITY]));
        }
        let small = i64::try_from(random.below(5)).unwrap();
        let exponent = u32::try_from(random.below(19)).unwrap();
        let whole = small * 10_i64.pow(exponent).min(i64::MAX / 8) + i64::try_from(random.below(2)).unwrap();
        #[allow(clippy::cast_precision_loss, reason = "any double near it will do")]
        match random.below(6) {
            0 => i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32),
            1 => Bson::Int64(whole),
            2 => Bson::Double(whole as f64),
            3 => Bson::Double(whole as f64 / 2.0),
            4 => decimal(&format!("{small}E+{exponent}")),
            _ => decimal(&format!(
                "{whole}.{}",
                "0".repeat(usize::try_from(exponent).unwrap() / 4)
            )),
        }
    }

    fn any(random: &mut Random, depth: usize) -> Bson {
        let text = (*random.pick(&["", "a", "b", "1"])).to_owned();
        let byte = u8::try_from(random.below(2)).unwrap();
        match random.below(if depth == 0 { 14 } else { 20 }) {
            0 => Bson::String(text),
            1 => Bson::Symbol(text),
            2 => Bson::Null,
            3 => Bson::Boolean(byte == 0),
            4 => Bson::DateTime(DateTime::from_millis(byte.into())),
            5 => Bson::Timestamp(Timestamp {
                time: 0,
                increment: byte.into(),
            }),
            6 => Bson::ObjectId(ObjectId::from_bytes([byte; 12])),
            7 => {
                let subtypes = [BinarySubtype::Generic, BinarySubtype::BinaryOld, BinarySubtype::Uuid];
                Bson::Binary(Binary {
                    subtype: *random.pick(&subtypes),
                    bytes: vec![byte; 16],
                })
            }
            8 => random.pick(&[Bson::MinKey, Bson::MaxKey]).clone(),
            9 => Bson::JavaScriptCode(text),
            14 => Bson::JavaScriptCodeWithScope(JavaScriptCodeWithScope {
                code: text,
                scope: doc! { "x": any(random, depth - 1) },
            }),
            15..=17 => {
                let mut fields = doc! {};
                for _ in 0..random.below(3) {
                    fields.insert(*random.pick(&["a", "b"]), any(random, depth - 1));
                }
                Bson::Document(fields)
            }
            18 => Bson::from(doc! { "list": [any(random, depth - 1), any(random, depth - 1)] }),
            _ => number(random),
        }
    }

    /// A value that the server refuses as a duplicate has the name of the existing one, and no other value has.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_id_of_the_server_is_one_name() {
        let cluster = shared::standalone().await;
        let client = mongodb::Client::with_uri_str(cluster.uri()).await.unwrap();
        let collection = client
            .database(&shared::unique_name("names"))
            .collection::<Document>("ids");
        let mut random = Random::new(0x1d);
        let mut known = std::collections::HashMap::new();
        for number_of_it in 0..800_i32 {
            let id = if number_of_it % 2 == 0 {
                number(&mut random)
            } else {
                any(&mut random, 2)
            };
            let name = of_id(&id);
            let inserted = collection
                .insert_one(doc! { "_id": id.clone(), "n": number_of_it })
                .await;
            let duplicate = match inserted {
                Ok(_) => false,
                Err(error) => match *error.kind {
                    ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == 11_000 => true,
                    other => panic!("{id}: {other}"),
                },
            };
            assert_eq!(duplicate, known.contains_key(&name), "{id:?} {name}");
            let first = *known.entry(name.clone()).or_insert(number_of_it);
            // The server finds the document by its name.
            let asked = to_id(&name).unwrap();
            assert_eq!(of_id(&asked), name);
            let found = collection
                .find_one(doc! { "_id": { "$in": [asked.clone()] } })
                .await
                .unwrap();
            assert_eq!(found.map(|found| found.get_i32("n").unwrap()), Some(first), "{id:?}");
            let found = collection.find_one(doc! { "_id": asked }).await.unwrap();
            assert_eq!(found.map(|found| found.get_i32("n").unwrap()), Some(first), "{id:?}");
        }
        assert!(known.len() > 200 && known.len() < 600, "{}", known.len());
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
