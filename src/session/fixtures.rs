//! Clients whose sessions the tests look into, each with a link of its own to one server in memory.

use std::sync::Arc;

use super::Session;
use crate::{
    config::Config,
    protocol::ServerTime,
    store::{MemoryStore, Store},
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
