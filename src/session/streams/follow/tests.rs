use std::{collections::HashSet, sync::Arc};

use super::*;
use crate::{
    client::LockClient,
    config::Settings,
    operate::watch::LockEvent,
    protocol::{Operation, Request, made_up},
    store::MemoryStore,
};

/// More names than are read together twice.
const NAMES: usize = 2 * READ_TOGETHER + 500;

#[tokio::test(start_paused = true)]
async fn leases_that_end_together_are_all_reported_without_a_rest() {
    let store = Arc::new(MemoryStore::new());
    let request = Request {
        lease: 10_000,
        ..made_up::request("of a client that is gone")
    };
    let acquiring = Operation {
        keep: 100_000,
        ..made_up::asking("1", request)
    };
    for number in 0..NAMES {
        store.run(&format!("lock {number}"), &acquiring);
    }
    let config = Settings::default().unchecked();
    let rest = config.poll_interval.1;
    let locks = LockClient::over_memory(store, config);
    let mut events = locks.watch_all();
    for _ in 0..NAMES {
        let (_, event) = events.next().await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Granted { .. }), "{event}");
    }
    let (mut first, mut names) = (None, HashSet::new());
    while names.len() < NAMES {
        let (name, event) = events.next().await.unwrap().unwrap();
        assert!(matches!(event, LockEvent::Expired { .. }), "{event}");
        first.get_or_insert_with(Instant::now);
        names.insert(name);
    }
    let took = first.unwrap().elapsed();
    assert!(took < rest, "{took:?}");
}
