//! The holders and waiters of every lock, of all clients of this process: the promises are checked with every grant.
//!
//! All share one memory here, so breaches that a judge would find in histories afterwards are seen on the spot, and an
//! hour needs no more memory than a minute.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use watchlock::View;

/// Permits of a writer: a lock with so many has readers.
pub(super) const WRITER: u64 = 1 << 30;

/// Maximum number of complaints that are kept; the others are counted.
const KEPT: usize = 20;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    books: Mutex<Books>,
    complaints: Mutex<Complaints>,
}

#[derive(Debug, Default)]
struct Books {
    /// Counts the events, so that they have an order.
    now: u64,
    by_name: HashMap<String, Book>,
}

/// The records of one lock.
#[derive(Debug, Default)]
struct Book {
    /// The largest token that was seen.
    highest: i64,
    /// The largest of those who had the lock for themselves.
    exclusive: i64,
    /// The largest of each client.
    by_client: HashMap<String, i64>,
    holders: Vec<Holder>,
    /// The waiters, by when they began to ask.
    line: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
struct Holder {
    key: u64,
    permits: u64,
    view: View,
}

#[derive(Debug)]
struct Waiter {
    client: String,
    /// When it was surely in line.
    stands: Option<u64>,
}

#[derive(Debug, Default)]
struct Complaints {
    count: u64,
    kept: Vec<String>,
}

/// A task that asks for a lock, until it is answered or dropped.
#[derive(Debug)]
pub(super) struct Asked {
    ledger: Arc<Ledger>,
    client: String,
    name: String,
    capacity: u64,
    key: u64,
    /// The largest token that was seen before, of those with which its own has to be in order.
    above: i64,
}

/// A task that holds a lock, until it is dropped.
#[derive(Debug)]
pub(super) struct Holds {
    ledger: Arc<Ledger>,
    name: String,
    key: u64,
}

impl Ledger {
    /// Notes that a task of `client` is about to ask for the lock.
    pub(super) fn ask(self: &Arc<Self>, client: &str, name: &str, capacity: u64) -> Asked {
        let mut books = self.books();
        books.now += 1;
        let key = books.now;
        let book = books.by_name.entry(name.to_owned()).or_default();
        let waiter = Waiter {
            client: client.to_owned(),
            stands: None,
        };
        book.line.insert(key, waiter);
        Asked {
            ledger: self.clone(),
            client: client.to_owned(),
            name: name.to_owned(),
            capacity,
            key,
            above: match capacity {
                // Of readers, those of one client are in order, and with writers all of them.
                WRITER => book
                    .exclusive
                    .max(book.by_client.get(client).copied().unwrap_or_default()),
                _ => book.highest,
            },
        }
    }

    pub(super) fn complain(&self, text: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        complaints.count += 1;
        if complaints.kept.len() < KEPT {
            println!("  !! {text}");
            complaints.kept.push(text);
        }
    }

    /// Returns the number of complaints.
    pub(super) fn complaints(&self) -> u64 {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    /// Notes that the acquire has been polled: it stands in the line of its client.
    pub(super) fn stands(&self) {
        let mut books = self.ledger.books();
        books.now += 1;
        let now = books.now;
        let waiter = books
            .by_name
            .get_mut(&self.name)
            .and_then(|book| book.line.get_mut(&self.key));
        if let Some(waiter) = waiter {
            waiter.stands = Some(now);
        }
    }

    /// Notes that it does not wait any more.
    pub(super) fn gives_up(&self) {
        let mut books = self.ledger.books();
        if let Some(book) = books.by_name.get_mut(&self.name) {
            book.line.remove(&self.key);
        }
    }

    /// Notes that it was granted. `None`: it was over already when it was seen, as happens to a task that is kept from
    /// running.
    pub(super) fn granted(self, view: impl Into<View>) -> Option<Holds> {
        let view = view.into();
        let (permits, token) = (view.permits(), view.token().as_i64());
        let exclusive = permits == self.capacity;
        let mut found = Vec::new();
        let held = {
            let mut books = self.ledger.books();
            let book = books.by_name.entry(self.name.clone()).or_default();
            book.line.remove(&self.key);
            let holder = Holder {
                key: self.key,
                permits,
                view,
            };
            book.holders.push(holder);
            // A hold that is valid in both rounds was valid in the moment between them, all of these at once.
            let valid = |holder: &&Holder| holder.view.lost_reason().is_none();
            let first: Vec<&Holder> = book.holders.iter().filter(valid).collect();
            let both: Vec<&Holder> = first.into_iter().filter(valid).collect();
            let taken: u64 = both.iter().map(|holder| holder.permits).sum();
            let held = both.iter().any(|holder| holder.key == self.key);
            if taken > self.capacity {
                let tokens: Vec<i64> = both.iter().map(|holder| holder.view.token().as_i64()).collect();
                found.push(format!(
                    "{taken} of {} permits are held, under {tokens:?}",
                    self.capacity
                ));
            }
            // Among several clients, a later grant can be seen first, but none from before the lock was asked for.
            let above = if exclusive { book.highest } else { self.above };
            let twice = book
                .holders
                .iter()
                .filter(|holder| holder.view.token().as_i64() == token);
            if held && (token <= above || twice.count() > 1) {
                found.push(format!("token {token} after {above}"));
            }
            // Of one client. A task that stands before it either had the lock meanwhile, or is overtaken.
            let overtaken = book
                .line
                .values()
                .any(|waiter| waiter.client == self.client && waiter.stands.is_some_and(|stands| stands < self.key));
            if held && exclusive && overtaken {
                found.push(format!("token {token} went to one who came later"));
            }
            book.highest = book.highest.max(token);
            if exclusive {
                book.exclusive = book.exclusive.max(token);
            }
            let of_client = book.by_client.entry(self.client.clone()).or_default();
            *of_client = (*of_client).max(token);
            held
        };
        for what in found {
            self.ledger.complain(format!("{}: {what}", self.name));
        }
        let holds = Holds {
            ledger: self.ledger.clone(),
            name: self.name.clone(),
            key: self.key,
        };
        held.then_some(holds)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.gives_up();
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        let mut books = self.ledger.books();
        if let Some(book) = books.by_name.get_mut(&self.name) {
            book.holders.retain(|holder| holder.key != self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use watchlock::LockClient;

    use super::*;

    #[tokio::test]
    async fn two_holders_at_once_are_found() {
        let (one, another) = (LockClient::in_memory(), LockClient::in_memory());
        let ledger = Arc::new(Ledger::default());
        let asked = [(); 2].map(|()| ledger.ask("client", "it", 1));
        let held = [
            one.mutex("it").acquire().await.unwrap(),
            another.mutex("it").acquire().await.unwrap(),
        ];
        let [first, second] = asked;
        let first = first.granted(held[0].view());
        assert_eq!(ledger.complaints(), 0);
        drop(second.granted(held[1].view()));
        // The tokens are of two servers, so they may be complained about as well.
        assert!(ledger.complaints() > 0);
        drop(first);
    }

    #[tokio::test]
    async fn one_after_the_other_is_as_it_should_be() {
        let locks = LockClient::in_memory();
        let ledger = Arc::new(Ledger::default());
        for _ in 0..3 {
            let asked = ledger.ask("client", "it", 1);
            let held = locks.mutex("it").acquire().await.unwrap();
            let holds = asked.granted(held.view());
            assert!(holds.is_some());
            held.release().await.unwrap();
        }
        assert_eq!(ledger.complaints(), 0);
    }

    #[tokio::test]
    async fn tokens_that_do_not_rise_are_found() {
        let locks = LockClient::in_memory();
        let ledger = Arc::new(Ledger::default());
        let mutex = locks.mutex("it");
        let earlier = mutex.acquire().await.unwrap();
        let (earlier_view, _) = (earlier.view(), earlier.release().await.unwrap());
        let later = mutex.acquire().await.unwrap();
        let holds = ledger.ask("client", "it", 1).granted(later.view());
        assert!(ledger.ask("client", "it", 1).granted(earlier_view).is_none());
        drop(holds);
        assert_eq!(ledger.complaints(), 0);
        // The same hold once more.
        drop(ledger.ask("client", "it", 1).granted(later.view()));
        assert_eq!(ledger.complaints(), 1);
    }

    #[tokio::test]
    async fn readers_of_several_clients_are_in_no_order_and_those_of_one_are() {
        let locks = LockClient::in_memory();
        let ledger = Arc::new(Ledger::default());
        let lock = locks.rw_lock("it");
        let held = [
            lock.read().await.unwrap(),
            lock.read().await.unwrap(),
            lock.read().await.unwrap(),
        ];
        let [first, second, third] = held.each_ref().map(|handle| handle.view());
        let get = |client: &str, view| ledger.ask(client, "it", WRITER).granted(view);
        let _other = get("another", third);
        let _later = get("client", second);
        assert_eq!(ledger.complaints(), 0);
        let _earlier = get("client", first);
        assert_eq!(ledger.complaints(), 1);
    }

    #[tokio::test]
    async fn who_is_overtaken_is_found() {
        let locks = LockClient::in_memory();
        let ledger = Arc::new(Ledger::default());
        let before = ledger.ask("client", "it", 1);
        before.stands();
        let elsewhere = ledger.ask("another", "it", 1);
        elsewhere.stands();
        let after = ledger.ask("client", "it", 1);
        after.stands();
        let held = locks.mutex("it").acquire().await.unwrap();
        drop(after.granted(held.view()));
        assert_eq!(ledger.complaints(), 1);
        drop(held);
        // Nobody of its client stands before it.
        let held = locks.mutex("it").acquire().await.unwrap();
        drop(elsewhere.granted(held.view()));
        assert_eq!(ledger.complaints(), 1);
        drop(before);
    }
}
