//! Collections of the user's own, and names for the locks in one.

use std::{fmt, sync::Arc};

use mongodb::{Client, Collection, bson::Document};

use super::MemoryDocuments;
use crate::hidden::Hidden;

/// A collection of the user's own documents.
#[derive(Clone)]
pub(crate) enum UserCollection {
    Mongo(Hidden<Collection<Document>>),
    Memory(Arc<MemoryDocuments>),
}

impl UserCollection {
    /// Returns a name for the locks under one path in the collection, in one client of the driver or in memory; `None`
    /// if the client can't be recognized. It is compared only while that client or memory is in use.
    pub(crate) fn place(&self, path: &str) -> Option<String> {
        let (owner, namespace) = match self {
            Self::Mongo(collection) => (identity(collection.client())?, collection.namespace().to_string()),
            Self::Memory(documents) => (documents.identity(), String::new()),
        };
        Some(format!("{owner}\0{namespace}\0{path}"))
    }
}

/// Returns a text by which clones of one driver client are recognised, for as long as one of them lives; `None` if this
/// release of the driver does not show it. In that case each handle counts as a separate client, which costs a change
/// stream each and does no harm.
///
/// The driver compares its clients by address and has no way to ask for it. Its description shows one: the address of
/// the tracker of the client's own tasks, which no other client has. Nothing else of the description is kept.
fn identity(client: &Client) -> Option<String> {
    let description = format!("{client:?}");
    let (_, owner) = description.rsplit_once("TopologyShutdown {")?;
    let (_, address) = owner.split_once("inner: 0x")?;
    let digits = address.split(|letter: char| !letter.is_ascii_hexdigit()).next()?;
    Some(digits.to_owned()).filter(|digits| !digits.is_empty())
}

impl fmt::Display for UserCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mongo(collection) => collection.namespace().fmt(f),
            Self::Memory(_) => f.write_str("a collection in memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// It may be where one was that is gone.
    #[test]
    fn a_collection_in_memory_is_not_mistaken_for_an_earlier_one() {
        let place = || UserCollection::Memory(Arc::default()).place("a").unwrap();
        let places: HashSet<String> = (0..100).map(|_| place()).collect();
        assert_eq!(places.len(), 100);
    }

    #[tokio::test]
    async fn clones_are_one_client_and_others_are_not() {
        let client = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let other = Client::with_uri_str("mongodb://somebody:secret@127.0.0.1:1/")
            .await
            .unwrap();
        let known = identity(&client);
        assert!(
            known.is_some(),
            "this release of the driver shows no identity: {client:?}"
        );
        let handle = client.database("a").collection::<mongodb::bson::Document>("b");
        assert_eq!(identity(handle.client()), known);
        assert_ne!(identity(&other), known);
    }
}
