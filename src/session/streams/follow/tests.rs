use std::{collections::HashSet, sync::Arc};

use super::*;
use crate::{
    client::LockClient,
    config::Settings,
    error::ServerError,
    error::own::OutOfTime,
    operate::watch::LockEvent,
    protocol::{Operation, Request, fixtures},
    store::{Failure, MemoryStore, Store},
    wake_mode::WakeMode,
};

/// More names than are read together twice.
const NAMES: usize = 2 * READ_TOGETHER + 500;

#[tokio::test(start_paused = true)]
async fn leases_that_end_together_are_all_reported_without_a_rest() {
    let store = MemoryStore::default();
    let request = Request {
        lease: 10_000,
        ..fixtures::request("of a client that is gone")
    };
    let acquiring = Operation {
        keep: 100_000,
        ..fixtures::asking("1", request)
    };
    for number in 0..NAMES {
        store.run(&format!("lock {number}"), &acquiring).unwrap();
    }
    let config = Settings::default().unchecked();
    let rest = config.poll_interval.1;
    let locks = LockClient::over_memory(&store, config);
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

/// As on a slow server, whose streams break as well.
#[tokio::test(start_paused = true)]
async fn a_stream_that_opens_again_and_again_has_no_slow_collection_read_without_a_rest() {
    let second = Duration::from_secs(1);
    let overdue = ServerError {
        kind: Failure::Unavailable,
        source: Arc::new(OutOfTime),
    };
    let silent = ServerError::unanswered(30 * second);
    let one = Scope::One("x".into());
    let rest = second * 30 * READING_REST;
    for (scope, error, pause, soon) in [
        (Scope::All, &overdue, rest, rest),
        (Scope::All, &silent, 30 * second, Duration::ZERO),
        (one, &overdue, 30 * second, Duration::ZERO),
    ] {
        let store = Store::Memory(Arc::default());
        let session = Session::new(Settings::default().unchecked(), store, None, WakeMode::ChangeStream);
        let (to, _seen) = mpsc::channel(BEHIND);
        let is_scan = matches!(scope, Scope::All);
        let mut follower = Follower::new(session, scope, to);
        let now = Instant::now();
        assert_eq!(follower.rest_after(error, is_scan, 30 * second), pause);
        follower.read_at = Some(now + pause);
        follower.read_soon();
        assert_eq!(follower.read_at, Some(now + soon), "{error}");
    }
}
