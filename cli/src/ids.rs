//! The `_id`s that a text of the command line can be.
//!
//! People type an `_id` as they see it, and its type can't be seen: `7` is a number or a text. So the collection says
//! which of them it has. A command that looked for one of them only would call a lock free that is held.

use futures::TryStreamExt as _;
use mongodb::{
    bson::{Binary, Bson, DateTime, Decimal128, Document, Uuid, UuidRepresentation, doc, oid::ObjectId},
    options::{ReadPreference, SelectionCriteria},
};
use watchlock::documents::DocumentLocks;

use crate::{
    connection::{Place, to_its_end},
    exit::{DATA, Failure},
    text::plain,
};

/// Maximum nesting of an id in JSON: the conversions to an id recurse, and ran out of a thread's stack at 95.
const DEEPEST: usize = 32;

/// The `_id`s that a text can be, the likeliest first: never none.
#[derive(Debug)]
pub(crate) struct Readings {
    text: String,
    ids: Vec<Bson>,
    /// Whether the form of the text says of which type it is. Then it is the first, if the collection has that.
    is_explicit: bool,
}

/// Returns the text unless it is nested too deep.
fn shallow(text: &str) -> Result<&str, String> {
    let mut depth = 0_usize;
    let deepest = text.bytes().map(|byte| {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth
    });
    match deepest.max() {
        Some(deepest) if deepest > DEEPEST => Err(format!("it is nested more than {DEEPEST} levels deep")),
        _ => Ok(text),
    }
}

/// Reads extended JSON.
pub(crate) fn json(text: &str) -> Result<Bson, String> {
    let value: serde_json::Value = serde_json::from_str(shallow(text)?).map_err(|error| error.to_string())?;
    Bson::try_from(value).map_err(|error| error.to_string())
}

impl Readings {
    /// Reads a text in all forms. The listed form comes first, so that the output of `ls` can be copied.
    pub(crate) async fn of(documents: &DocumentLocks<Document>, text: &str) -> Result<Self, Failure> {
        let json = json(text);
        if let (true, Err(error)) = (text.starts_with('{'), &json) {
            let shown: String = text.chars().take(200).collect();
            let shown = shown.escape_debug();
            return Err(Failure::usage(format!(
                "the id `{shown}` begins with a brace and is not extended JSON: {error}"
            )));
        }
        // The digits are read again, as those of a double may be others.
        let is_number = matches!(json, Ok(Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_)));
        let decimal = is_number.then(|| text.parse::<Decimal128>().ok()).flatten();
        // Drivers once stored a UUID in three other orders of its bytes, and some still do.
        let uuid = |form| {
            let uuid = Uuid::parse_str(text).ok()?;
            Some(Binary::from_uuid_with_representation(uuid, form).into())
        };
        let forms = [
            documents.id_of(text),
            json.ok().filter(|id| !matches!(id, Bson::Array(_))),
            decimal.map(Bson::Decimal128),
            ObjectId::parse_str(text).ok().map(Bson::ObjectId),
            uuid(UuidRepresentation::Standard),
            uuid(UuidRepresentation::PythonLegacy),
            uuid(UuidRepresentation::JavaLegacy),
            uuid(UuidRepresentation::CSharpLegacy),
            DateTime::parse_rfc3339_str(text).ok().map(Bson::DateTime),
            Some(Bson::from(text)),
        ];
        let mut ids: Vec<Bson> = Vec::new();
        for id in forms.into_iter().flatten() {
            let name = documents.name_of(id.clone());
            if ids.iter().any(|known| documents.name_of(known.clone()) == name) {
                continue;
            }
            // By the library's own rules, and in memory.
            match documents.inspect(id.clone()).await {
                Ok(_) => ids.push(id),
                Err(error) if ids.is_empty() => return Err(error.into()),
                // No document can have it.
                Err(_) => {}
            }
        }
        let is_explicit = ["\"", "{", "ObjectId(", "bson:"]
            .iter()
            .any(|start| text.starts_with(start));
        Ok(Self {
            text: text.to_owned(),
            ids,
            is_explicit,
        })
    }

    /// Asks the server which of them is in the collection, and returns its listed name. If none is, the likeliest.
    ///
    /// To a collection with a collation of its own, an `_id` of another spelling can be the same: that is found too.
    pub(crate) async fn find(
        &self,
        place: &Place,
        collection: &str,
        documents: &DocumentLocks<Document>,
    ) -> Result<String, Failure> {
        let [first, ..] = &self.ids[..] else {
            return Err(Failure::internal("a text has no reading"));
        };
        let found = there(place, collection, self.ids.clone()).await?;
        let likeliest = documents.name_of(first.clone());
        let mut names: Vec<String> = found.iter().map(|id| documents.name_of(id.clone())).collect();
        if names.is_empty() || (self.is_explicit && names.contains(&likeliest)) {
            return Ok(likeliest);
        }
        if names.len() == 1 {
            return Ok(names.remove(0));
        }
        let each: Vec<String> = found.iter().map(|id| explicit(documents, id)).collect();
        Err(Failure::new(
            DATA,
            format!(
                "`{}` can be the `_id` of {} documents in `{}`; give it in one of these forms: {}",
                plain(&self.text),
                each.len(),
                plain(collection),
                plain(&each.join("   "))
            ),
        ))
    }
}

/// Returns those of the `_id`s that the collection has.
async fn there(place: &Place, collection: &str, ids: Vec<Bson>) -> Result<Vec<Bson>, Failure> {
    let documents = place.database.collection::<Document>(collection);
    let finding = async move {
        let found = documents
            .find(doc! { "_id": { "$in": ids } })
            .projection(doc! { "_id": 1 })
            .sort(doc! { "_id": 1 })
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .await?;
        found.try_collect::<Vec<Document>>().await
    };
    let found = to_its_end(finding).await?.map_err(|error| Failure::driver(&error))?;
    Ok(found.into_iter().filter_map(|mut found| found.remove("_id")).collect())
}

/// Returns a form of the `_id` that has no other reading: the listed one, but for a number.
fn explicit(documents: &DocumentLocks<Document>, id: &Bson) -> String {
    match id {
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => {
            id.clone().into_canonical_extjson().to_string()
        }
        _ => documents.name_of(id.clone()),
    }
}

#[cfg(test)]
mod tests {
    use watchlock::{LockClient, testing::MemoryCollection};

    use super::*;

    const HEX: &str = "507f191e810c19729de860ea";

    fn documents() -> DocumentLocks<Document> {
        LockClient::in_memory().documents_in_memory(&MemoryCollection::new())
    }

    #[tokio::test]
    async fn a_text_is_all_ids_that_it_can_be_the_likeliest_first() {
        let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
        let uuids = [
            UuidRepresentation::Standard,
            UuidRepresentation::PythonLegacy,
            UuidRepresentation::JavaLegacy,
            UuidRepresentation::CSharpLegacy,
        ];
        let read = Uuid::parse_str(uuid).unwrap();
        let uuids = uuids.map(|form| Binary::from_uuid_with_representation(read, form).into());
        let date = DateTime::parse_rfc3339_str("2026-01-01T00:00:00Z").unwrap();
        let known = Bson::from(ObjectId::parse_str(HEX).unwrap());
        let pair = Bson::from(doc! { "tenant": "a", "number": 1_i64 });
        let documents = documents();
        let name_of = |id: &Bson| documents.name_of(id.clone());
        for (text, others) in [
            ("order-7", vec![]),
            ("7", vec![Bson::Int64(7)]),
            ("7.0", vec![Bson::Int64(7)]),
            ("0.1", vec![Bson::Double(0.1), Bson::Decimal128("0.1".parse().unwrap())]),
            (r#"{"$numberDouble": "1.5"}"#, vec![Bson::from(1.5)]),
            ("true", vec![Bson::Boolean(true)]),
            (HEX, vec![known.clone()]),
            (&format!("ObjectId({HEX})"), vec![known.clone()]),
            (&format!(r#"{{"$oid": "{HEX}"}}"#), vec![known]),
            (&format!("\"{HEX}\""), vec![Bson::from(HEX)]),
            (uuid, uuids.to_vec()),
            ("2026-01-01T00:00:00Z", vec![date.into()]),
            ("\"7\"", vec![Bson::from("7")]),
            (r#"{"tenant": "a", "number": 1}"#, vec![pair.clone()]),
            (&name_of(&pair), vec![pair]),
            // No document has such an id.
            ("[7]", vec![]),
        ] {
            let read = Readings::of(&documents, text).await.unwrap();
            let read: Vec<String> = read.ids.iter().map(name_of).collect();
            let all: Vec<String> = others.iter().chain([&Bson::from(text)]).map(name_of).collect();
            assert_eq!(read, all, "{text}");
        }
        for text in ["{", "{\"a\"}", "{\"$oid\": 5}"] {
            let failure = Readings::of(&documents, text).await.unwrap_err();
            assert!(
                failure.message().contains(&text.escape_debug().to_string()),
                "{failure:?}"
            );
        }
        let nested = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        assert!(Readings::of(&documents, &nested(DEEPEST)).await.is_ok());
        for levels in [DEEPEST + 1, 10_000] {
            let failure = Readings::of(&documents, &nested(levels)).await.unwrap_err();
            assert!(failure.message().contains("more than 32 levels"), "{failure:?}");
        }
    }
}
