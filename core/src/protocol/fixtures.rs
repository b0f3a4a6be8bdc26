//! Entries, documents and operations for tests.

use super::{CapacityIs, Entry, Kind, Operation, Owner, Request, Requests, ServerTime, State, Use};

pub const MUTEX: Use = (Kind::Mutex, 1);
pub const PERMITS: Use = (Kind::Semaphore, 10);

/// A holder of one permit, whose lease runs from 0 to 100.
pub fn holder(id: &str, token: i64) -> Entry {
    Entry {
        id: id.to_owned(),
        permits: 1,
        lease: 100,
        claim: 10,
        since: ServerTime(0),
        until: ServerTime(100),
        owner: Owner::default(),
        token,
        released: None,
        shown: None,
    }
}

/// A holder that released the lock at 1, which is kept until 100.
pub fn kept(id: &str, token: i64) -> Entry {
    Entry {
        released: Some(ServerTime(1)),
        ..holder(id, token)
    }
}

/// A waiter for one permit, whose lease runs from 0 to 100.
pub fn waiter(id: &str) -> Entry {
    holder(id, 0)
}

/// The document of a lock with these entries, after one write at 0. The last token is the largest of its holders.
pub fn lock(
    (kind, capacity): Use,
    holders: impl IntoIterator<Item = Entry>,
    queue: impl IntoIterator<Item = Entry>,
) -> State {
    let holders: Vec<Entry> = holders.into_iter().collect();
    State {
        kind,
        capacity,
        is_set: false,
        token: holders.iter().map(|holder| holder.token).max().unwrap_or(0),
        holders,
        queue: queue.into_iter().collect(),
        wake: String::new(),
        version: 1,
        at: ServerTime(0),
        purge_at: ServerTime(0),
        broken: None,
        adopted: Vec::new(),
        evicted: None,
        ends: Vec::new(),
    }
}

/// A first request for one permit on a lease of 100.
pub fn request(id: &str) -> Request {
    Request {
        id: id.to_owned(),
        permits: 1,
        lease: 100,
        claim: 10,
        wait: true,
        fresh: true,
        reserve: 0,
        upgrades: None,
        owner: Owner::default(),
    }
}

/// An operation that asks for nothing yet.
pub fn operation(id: &str) -> Operation {
    Operation::blank(id.to_owned(), 1_000)
}

pub fn leaving(id: &str, entry: &str) -> Operation {
    Operation {
        leave: vec![entry.to_owned()],
        ..operation(id)
    }
}

/// An operation that requests an entry in a mutex.
pub fn asking(id: &str, request: Request) -> Operation {
    asking_for(id, MUTEX, [request])
}

pub fn asking_for(id: &str, (kind, capacity): Use, entries: impl IntoIterator<Item = Request>) -> Operation {
    Operation {
        requests: Some(Requests {
            kind,
            capacity,
            by: CapacityIs::Demanded,
            entries: entries.into_iter().collect(),
            adopts: None,
        }),
        ..operation(id)
    }
}
