//! Clients whose sessions the tests look into, each with a link of its own to one server in memory.

use std::sync::Arc;

use mongodb::{Client, bson::Document, options::ReadPreference};

use super::Session;
use crate::{
    config::Config,
    protocol::ServerTime,
    store::{LockLayout, MemoryStore, MongoStore, Store, lock_layout::Paths},
    tests::simulated::Link,
    wake_mode::WakeMode,
};

/// The ids of two clients.
pub(super) const ONE: &str = "0123456789abcdef";
pub(super) const OTHER: &str = "fedcba9876543210";

pub(super) fn memory() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)))
}

/// Returns the link of a client, over which nothing goes wrong by itself, and its session.
pub(super) fn client(memory: &Arc<MemoryStore>, id: &str, settings: Config) -> (Arc<Link>, Arc<Session>) {
    let link = Link::new(memory.clone(), 1);
    link.calm();
    let mode = WakeMode::of(settings.wake_source);
    let (config, store) = (settings.validate().unwrap(), Store::Simulated(link.clone()));
    (link, Session::of(id.to_owned(), config, store, None, mode))
}

/// Returns the store of a server that can't be reached, and a session that uses it.
pub(super) async fn unreachable() -> (Arc<MongoStore>, Arc<Session>) {
    let driver = Client::with_uri_str("mongodb://127.0.0.1:1").await.unwrap();
    let collection = driver.database("x").collection::<Document>("x");
    let place = LockLayout::in_documents(Some(collection.namespace()), "lock", None, &Paths::default()).unwrap();
    let store = Arc::new(MongoStore::new(&collection, place, ReadPreference::Primary));
    let config = Config::default();
    let session = Session::new(config, Store::Mongo(store.clone()), None, WakeMode::ChangeStream);
    (store, session)
}
