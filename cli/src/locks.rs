//! The locks that a command looks at: those with names, or those in the documents of a collection.

use clap::Args;
use futures::StreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use watchlock::{
    FencingToken, LockClient,
    documents::{DocumentLocks, ElementLocks},
    errors::OperateError,
    operate::{List, LockInfo, WakeMode},
    testing::MemoryCollection,
};

use crate::{
    connection::Place,
    events::Events,
    exit::Failure,
    ids::{Readings, json},
    text::plain,
};

/// Longest name of a collection that the server accepts with any name of its database, in bytes.
const COLLECTION_MOST: usize = 255;

/// The choice between locks with names and locks in documents.
#[derive(Args, Clone, Debug)]
pub(crate) struct Kept {
    /// Look at the locks in the documents of this collection, instead of those with names
    ///
    /// NAME is then the `_id` of a document: as `watchlock ls` shows it ("text", ObjectId(...), 7), as extended JSON in
    /// braces ({"$oid": "..."}, {"tenant": 1}), or as it reads: the digits of an ObjectId or of a UUID (also in the
    /// three old orders of its bytes), a number, a date, a text. If the collection has several documents with an `_id`
    /// that reads so, the command changes nothing and names them.
    #[arg(long, value_name = "COLLECTION", value_parser = collection)]
    documents: Option<String>,
    /// The field of the documents that has their locks
    #[arg(long, value_name = "PATH", requires = "documents", default_value = "watchlock")]
    field: String,
    /// Look at the locks of the elements of this array in the documents, instead of those of the whole documents
    ///
    /// NAME is then the `_id`, a slash, and the key of the element: as `watchlock ls` shows it (7/sku="x"), or in
    /// extended JSON (7/{"sku": "x"}).
    #[arg(long, value_name = "ARRAY", requires = "documents")]
    elements: Option<String>,
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

    /// Connects to the locks, and returns them with the requested one's name as it is listed. A user has typed it: it and
    /// the field are checked before anything is sent, by the library's own rules.
    pub(crate) async fn find(
        &self,
        text: &str,
        connecting: impl Future<Output = Result<Place, Failure>>,
    ) -> Result<(Place, Locks, String), Failure> {
        let collection = self.documents.as_deref().unwrap_or_default();
        let (place, name) = match self.in_memory() {
            Locks::Named(locks) => {
                drop(locks.inspect(text).await?);
                (connecting.await?, text.to_owned())
            }
            Locks::Documents(documents) => {
                let readings = Readings::of(&documents, text).await?;
                let place = connecting.await?;
                let name = readings.find(&place, collection, &documents).await?;
                (place, name)
            }
            Locks::Elements(documents, array) => {
                let (id, key) = of_element(&documents, text)?;
                let element = documents.element::<Document>(array, key);
                // The key alone: the `_id` can be of several types.
                drop(element.inspect(0).await?);
                let readings = Readings::of(&documents, id).await?;
                let place = connecting.await?;
                let name = readings.find(&place, collection, &documents).await?;
                (place, element.name_of(listed(&documents, &name)))
            }
        };
        let locks = self.locks(&place).await?;
        Ok((place, locks, name))
    }

    fn in_memory(&self) -> Locks {
        let client = LockClient::in_memory();
        match &self.documents {
            None => Locks::Named(client),
            Some(_) => self.in_place(client.documents_in_memory(&MemoryCollection::new())),
        }
    }

    fn in_place(&self, documents: DocumentLocks<Document>) -> Locks {
        let documents = documents.field(&self.field);
        match &self.elements {
            None => Locks::Documents(documents),
            Some(array) => Locks::Elements(documents, array.clone()),
        }
    }

    /// Connects to the locks.
    pub(crate) async fn locks(&self, place: &Place) -> Result<Locks, Failure> {
        let client = place.locks().await?;
        Ok(match &self.documents {
            None => Locks::Named(client),
            Some(collection) => self.in_place(client.documents(place.database.collection(collection))),
        })
    }
}

/// Locks of any sort, each by its listed name.
#[derive(Clone, Debug)]
pub(crate) enum Locks {
    Named(LockClient),
    Documents(DocumentLocks<Document>),
    /// Those of the elements of this array in the documents.
    Elements(DocumentLocks<Document>, String),
}

impl Locks {
    pub(crate) fn list(&self) -> List {
        match self {
            Self::Named(locks) => locks.list(),
            Self::Documents(documents) => documents.list(),
            Self::Elements(documents, array) => any(documents, array).list(),
        }
    }

    pub(crate) async fn inspect(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.inspect(name).await,
            Self::Documents(documents) => documents.inspect(listed(documents, name)).await,
            Self::Elements(documents, array) => {
                let (id, element) = listed_element(documents, array, name);
                element.inspect(id).await
            }
        }
    }

    /// Returns the events of one lock, or of all, each with the name of its lock.
    pub(crate) fn events(&self, name: Option<&str>) -> Events {
        let Some(name) = name else {
            return match self {
                Self::Named(locks) => Box::pin(locks.watch_all()),
                Self::Documents(documents) => Box::pin(documents.watch_all()),
                Self::Elements(documents, array) => Box::pin(any(documents, array).watch_all()),
            };
        };
        let events = match self {
            Self::Named(locks) => locks.watch(name),
            Self::Documents(documents) => documents.watch(listed(documents, name)),
            Self::Elements(documents, array) => {
                let (id, element) = listed_element(documents, array, name);
                element.watch(id)
            }
        };
        let name = name.to_owned();
        Box::pin(events.map(move |event| Ok((name.clone(), event?))))
    }

    pub(crate) async fn break_lock(&self, name: &str) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.break_lock(name).await,
            Self::Documents(documents) => documents.break_lock(listed(documents, name)).await,
            Self::Elements(documents, array) => {
                let (id, element) = listed_element(documents, array, name);
                element.break_lock(id).await
            }
        }
    }

    pub(crate) async fn break_holder(&self, name: &str, token: FencingToken) -> Result<Option<LockInfo>, OperateError> {
        match self {
            Self::Named(locks) => locks.break_holder(name, token).await,
            Self::Documents(documents) => documents.break_holder(listed(documents, name), token).await,
            Self::Elements(documents, array) => {
                let (id, element) = listed_element(documents, array, name);
                element.break_holder(id, token).await
            }
        }
    }

    pub(crate) fn wake_mode(&self) -> WakeMode {
        match self {
            Self::Named(locks) => locks.wake_mode(),
            Self::Documents(documents) => documents.wake_mode(),
            Self::Elements(documents, array) => any(documents, array).wake_mode(),
        }
    }
}

/// Returns the `_id` of a listed name.
fn listed(documents: &DocumentLocks<Document>, name: &str) -> Bson {
    documents.id_of(name).unwrap_or_else(|| Bson::from(name))
}

/// Returns the `_id` of an element's listed name, and the locks of that element. A key that is none is refused by its
/// bounds.
fn listed_element(documents: &DocumentLocks<Document>, array: &str, name: &str) -> (Bson, ElementLocks<Document>) {
    let (id, key) = documents
        .element_of(name)
        .unwrap_or((Bson::from(name), Document::new()));
    (id, documents.element(array, key))
}

/// Returns the locks of all elements of the array: the key makes no difference to them.
fn any(documents: &DocumentLocks<Document>, array: &str) -> ElementLocks<Document> {
    documents.element(array, doc! { "_id": 0 })
}

/// Splits a text into the `_id` of a document and the key of an element.
fn of_element<'a>(documents: &DocumentLocks<Document>, text: &'a str) -> Result<(&'a str, Document), Failure> {
    // A key has no slash where it is listed.
    let listed = || {
        let (id, key) = text.rsplit_once('/')?;
        Some((id, documents.element_of(&format!("0/{key}"))?.1))
    };
    let in_json = || {
        text.match_indices("/{")
            .find_map(|(at, _)| match json(&text[at + 1..]) {
                Ok(Bson::Document(key)) => Some((&text[..at], key)),
                _ => None,
            })
    };
    listed().or_else(in_json).ok_or_else(|| {
        Failure::usage(format!(
            "`{}` names no element; it must be the `_id` of a document, a slash and a key: 7/sku=\"x\", or 7/{{\"sku\": \"x\"}}",
            plain(text)
        ))
    })
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
