//! Tasks and waitlists for the unit tests of single files, without a document or a server.

use tokio::time::Instant;

use super::{Context, Patience, Stage, StreamState, Waiting, Waitlist, clock::ServerClock, ids::Ids};
use crate::{
    config::Settings,
    protocol::{Ahead, Kind, ServerTime, Use},
};

pub(super) const MUTEX: (Use, i64) = ((Kind::Mutex, 1), 1);
pub(super) const READER: (Use, i64) = ((Kind::RwLock, 1_000), 1);
pub(super) const WRITER: (Use, i64) = ((Kind::RwLock, 1_000), 1_000);
pub(super) const PERMIT: (Use, i64) = ((Kind::Semaphore, 4), 1);

/// The server's time.
pub(super) const NOW: ServerTime = ServerTime(1_000_000);

pub(super) fn in_context<T>(act: impl FnOnce(&Context<'_>) -> T) -> T {
    let config = Settings::default().validate().unwrap();
    let (clock, ids) = (ServerClock::default(), Ids::new("me".to_owned()));
    act(&Context {
        now: Instant::now(),
        config: &config,
        clock: &clock,
        stream: StreamState::Open,
        ids: &ids,
        room: 100,
    })
}

/// A task that waits, with the entry `me-KEY`.
pub(super) fn task(key: u64, used: (Use, i64)) -> Waiting {
    Waiting::new(key, format!("me-{key}"), used, Patience::Wait, Instant::now())
}

/// A task whose entry stands in the server's queue.
pub(super) fn queued(key: u64, used: (Use, i64)) -> Waiting {
    Waiting {
        stage: Stage::Queued,
        ..task(key, used)
    }
}

/// The sight of a waiter with so many others ahead of it, while the present hold has lasted for so many milliseconds.
pub(super) fn ahead(turns: u64, lasted: i64) -> Ahead {
    Ahead {
        turns,
        position: turns,
        free: 0,
        served_at: Some(NOW.plus_millis(-lasted)),
        first_end: None,
        asleep: false,
        now: NOW,
    }
}

pub(super) fn waitlist(tasks: impl IntoIterator<Item = Waiting>) -> Waitlist {
    let mut waitlist = Waitlist::default();
    tasks.into_iter().for_each(|task| waitlist.join(task));
    waitlist
}
