//! The locks that a command looks at: those with names, or those in the documents of a collection.

use clap::Args;
use futures::StreamExt as _;
use mongodb::bson::{Bson, Document, oid::ObjectId};
use watchlock::{DocumentLocks, FencingToken, List, LockClient, LockInfo, MemoryCollection, OperateError, WakeMode};

use crate::{connection::Place, events::Events, exit::Failure};

/// Longest name of a collection that the server accepts with any name of its database, in bytes.
const COLLECTION_MOST: usize = 255;

/// The choice between locks with names and locks in documents.
#[derive(Args, Clone, Debug)]
pub(crate) struct Kept {
    /// Look at the locks in the documents of this collection, instead of those with names
    ///
    /// NAME is then the `_id` of a document: as `watchlock ls` shows it ("text", ObjectId(...), 7), as the hexadecimal
    /// digits of an ObjectId, as extended JSON in braces ({"$oid": "..."}, {"tenant": 1}), or else a text.
    #[arg(long, value_name = "COLLECTION", value_parser = collection)]
    documents: Option<String>,
    /// The field of the documents that has their locks
    #[arg(long, value_name = "PATH", requires = "documents", default_value = "watchlock")]
    field: String,
}

impl Kept {
    /// Returns where the locks are, for people: `app.distributed_locks`.
    pub(crate) fn place(&self, place: &Place) -> String {
        let collection = self.documents.as_ref().unwrap_or(&place.collection);
        format!("{}.{collection}", place.database.name())
    }

    /// Checks the field, before anything is sent.
    pub(crate) async fn check(&self) -> Result<(), Failure> {
        // By the library's own rules, and without a server.
        drop(self.in_memory().list().await?);
        Ok(())
    }

    /// Returns the name of the requested lock as it is listed; checks it and the field, before anything is sent.
    pub(crate) async fn name(&self, text: &str) -> Result<String, Failure> {
        let locks = self.in_memory();
        let name = match &locks {
            Locks::Named(_) => text.to_owned(),
            Locks::Documents(documents) => documents.name_of(id(documents, text)?),
        };
        drop(locks.inspect(&name).await?);
        Ok(name)
    }

    fn in_memory(&self) -> Locks {
        let client = LockClient::in_memory();
        match &self.documents {
            None => Locks::Named(client),
            Some(_) => {
                let documents = client.documents_in_memory(&MemoryCollection::new()).field(&self.field);
                Locks::Documents(documents)
            }
        }
    }

    /// Connects to the locks.
    pub(crate) async fn locks(&self, place: &Place) -> Result<Locks, Failure> {
        let client = place.locks().await?;
        Ok(match &self.documents {
            None => Locks::Named(client),
            Some(collection) => {
                let documents = client
                    .documents(place.database.collection(collection))
                    .field(&self.field);
                Locks::Documents(documents)
            }
        })
    }
}

/// Locks of either sort, each by its listed name.
#[derive(Clone, Debug)]
pub(crate) enum Locks {
    Named(LockClient),
    Documents(DocumentLocks<Document>),
}

impl Locks {
    pub(crate) fn list(&self) -> List {
        match self {
            Self::Named(locks) => locks.list(),
            Self::Documents(documents) => documents.list(),
        }
    }

    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.inspect(name).await,
            Self::Documents(documents) => documents.inspect(listed(documents, name)).await,
        }
    }

    /// Returns the events of one lock, or of all, each with the name of its lock.
    pub(crate) fn events(&self, name: Option<&str>) -> Events {
        let Some(name) = name else {
            return match self {
                Self::Named(locks) => Box::pin(locks.watch_all()),
                Self::Documents(documents) => Box::pin(documents.watch_all()),
            };
        };
        let events = match self {
            Self::Named(locks) => locks.watch(name),
            Self::Documents(documents) => documents.watch(listed(documents, name)),
        };
        let name = name.to_owned();
        Box::pin(events.map(move |event| Ok((name.clone(), event?))))
    }

    pub(crate) async fn break_lock(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.break_lock(name).await,
            Self::Documents(documents) => documents.break_lock(listed(documents, name)).await,
        }
    }

    pub(crate) async fn break_holder(&self, name: &str, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.break_holder(name, token).await,
            Self::Documents(documents) => documents.break_holder(listed(documents, name), token).await,
        }
    }

    pub(crate) fn wake_mode(&self) -> WakeMode {
        match self {
            Self::Named(locks) => locks.wake_mode(),
            Self::Documents(documents) => documents.wake_mode(),
        }
    }
}

/// Returns the `_id` of a listed name.
fn listed(documents: &DocumentLocks<Document>, name: &str) -> Bson {
    documents.id_of(name).unwrap_or_else(|| Bson::from(name))
}

/// Returns the `_id` that a user has typed in any of its forms. The listed form comes first, so that the output of `ls`
/// can always be copied.
fn id(documents: &DocumentLocks<Document>, text: &str) -> Result<Bson, Failure> {
    if let Some(id) = documents.id_of(text) {
        return Ok(id);
    }
    if text.starts_with('{') {
        let invalid = |error: &dyn std::fmt::Display| {
            let shown: String = text.chars().take(200).collect();
            let shown = shown.escape_debug();
            Failure::usage(format!(
                "the id `{shown}` begins with a brace and is not extended JSON: {error}"
            ))
        };
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| invalid(&error))?;
        return Bson::try_from(value).map_err(|error| invalid(&error));
    }
    // No other program writes 24 hexadecimal digits as a text by chance; such a text can be given in quotes.
    Ok(ObjectId::parse_str(text).map_or_else(|_| Bson::from(text), Bson::ObjectId))
}

/// Checks the name of a collection of documents.
fn collection(text: &str) -> Result<String, String> {
    match text.len() {
        0 | COLLECTION_MOST.. => Err(format!(
            "it has {} bytes; the name of a collection must have 1 to {}",
            text.len(),
            COLLECTION_MOST - 1
        )),
        _ if text.contains(['$', '\0']) => Err("it contains `$` or NUL".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn an_id_is_read_in_any_form() {
        let documents = LockClient::in_memory().documents_in_memory(&MemoryCollection::new());
        let hex = "507f191e810c19729de860ea";
        let known = Bson::from(ObjectId::parse_str(hex).unwrap());
        let pair = Bson::from(doc! { "tenant": "a", "number": 1_i64 });
        for (text, id) in [
            (hex.to_owned(), known.clone()),
            (format!("ObjectId({hex})"), known.clone()),
            (format!(r#"{{"$oid": "{hex}"}}"#), known),
            (format!("\"{hex}\""), Bson::from(hex)),
            ("7".to_owned(), Bson::Int64(7)),
            ("\"7\"".to_owned(), Bson::from("7")),
            (r#"{"$numberDouble": "1.5"}"#.to_owned(), Bson::from(1.5)),
            ("order-7".to_owned(), Bson::from("order-7")),
            (r#"{"tenant": "a", "number": 1}"#.to_owned(), pair.clone()),
            (documents.name_of(pair.clone()), pair),
        ] {
            let read = super::id(&documents, &text).unwrap();
            assert_eq!(documents.name_of(read), documents.name_of(id), "{text}");
        }
        for text in ["{", "{\"a\"}", "{\"$oid\": 5}"] {
            let failure = super::id(&documents, text).unwrap_err();
            assert!(
                failure.message().contains(&text.escape_debug().to_string()),
                "{failure:?}"
            );
        }
    }
}
