//! Tasks and waitlists for the unit tests of single files, without a document or a server.

use tokio::time::Instant;

use super::{Context, Patience, StreamState, Waiting, Waitlist, clock::ServerClock, ids::Ids};
use crate::{
    config::Settings,
    protocol::{Kind, Use},
};

pub(super) const MUTEX: (Use, i64) = ((Kind::Mutex, 1), 1);
pub(super) const READER: (Use, i64) = ((Kind::RwLock, 1_000), 1);
pub(super) const WRITER: (Use, i64) = ((Kind::RwLock, 1_000), 1_000);
pub(super) const PERMIT: (Use, i64) = ((Kind::Semaphore, 4), 1);

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

pub(super) fn waitlist(tasks: impl IntoIterator<Item = Waiting>) -> Waitlist {
    let mut waitlist = Waitlist::default();
    waitlist.waiting.extend(tasks);
    waitlist
}
