//! The states that an observer has not taken yet.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures::task::AtomicWaker;

use crate::{error::ServerError, protocol::State, store::Unreadable};

/// The document of a lock, without holders whose lease is over; `None`: there is none, or none of a lock. `Err`: it is
/// not a lock.
pub(crate) type Seen = Result<Option<Arc<State>>, Unreadable>;

/// Maximum number of states that an observer may lag behind before it skips those that a later one has replaced.
const BEHIND: usize = 64;

/// The states for one observer, in order. Nobody waits for an observer that takes none.
#[derive(Debug)]
pub(super) struct Inbox {
    content: Mutex<Content>,
    taker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Content {
    queue: VecDeque<(String, Seen)>,
    /// The last state of each lock, of those that came while the queue was full.
    later: BTreeMap<String, Seen>,
    /// The name that was taken last of these. They are taken in turn, so that none that is written often keeps back
    /// others.
    last: String,
    /// For an observer of all locks: those that are present by what it has taken or has in the queue. Of the others it
    /// is told nothing but that they are present, so what it lags behind by is bounded by the locks that are held.
    known: Option<HashSet<String>>,
    /// Set once no more states come; with the reason, if there is one that has not been taken yet.
    end: Option<Option<ServerError>>,
}

impl Content {
    fn take_later(&mut self) -> Option<(String, Seen)> {
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let next = self.later.range::<str, _>(after).next();
        let name = next.or_else(|| self.later.first_key_value())?.0.clone();
        self.last.clone_from(&name);
        let next = self.later.remove_entry(&name)?;
        self.note(&next.0, &next.1);
        Some(next)
    }

    /// Notes what the observer knows of a lock.
    fn note(&mut self, name: &str, seen: &Seen) {
        match &mut self.known {
            Some(known) if is_present(seen) => drop(known.insert(name.to_owned())),
            Some(known) => drop(known.remove(name)),
            None => {}
        }
    }
}

/// Whether those who observe all locks are told that there is this one.
pub(super) fn is_present(seen: &Seen) -> bool {
    match seen {
        Ok(state) => state.as_ref().is_some_and(|state| !state.holders.is_empty()),
        Err(_) => true,
    }
}

impl Inbox {
    /// Creates one for an observer of one lock, or of all.
    pub(super) fn new(of_all: bool) -> Self {
        let content = Content {
            known: of_all.then(HashSet::new),
            ..Content::default()
        };
        Self {
            content: Mutex::new(content),
            taker: AtomicWaker::new(),
        }
    }

    pub(super) fn put(&self, name: &str, seen: &Seen) {
        {
            let mut content = self.content();
            if content.queue.len() < BEHIND && content.later.is_empty() {
                content.note(name, seen);
                content.queue.push_back((name.to_owned(), seen.clone()));
            } else if is_present(seen) || content.known.as_ref().is_none_or(|known| known.contains(name)) {
                content.later.insert(name.to_owned(), seen.clone());
            } else {
                content.later.remove(name);
            }
        }
        self.taker.wake();
    }

    /// Ends the states: those that were put so far can still be taken, and then the reason.
    pub(super) fn end(&self, why: Option<ServerError>) {
        self.content().end.get_or_insert(why);
        self.taker.wake();
    }

    /// Takes the next state; `None` at the end.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<(String, Seen), ServerError>>> {
        self.taker.register(context.waker());
        let mut content = self.content();
        if let Some(next) = content.queue.pop_front().or_else(|| content.take_later()) {
            return Poll::Ready(Some(Ok(next)));
        }
        match &mut content.end {
            Some(why) => Poll::Ready(why.take().map(Err)),
            None => Poll::Pending,
        }
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::FutureExt;

    use super::*;
    use crate::protocol::fixtures::{MUTEX, holder, lock};

    fn state(token: i64) -> Seen {
        let mut state = lock(MUTEX, [], []);
        state.token = token;
        Ok(Some(Arc::new(state)))
    }

    #[test]
    fn who_lags_behind_skips_what_was_replaced_and_misses_no_last_state() {
        let inbox = Inbox::new(false);
        let take = || poll_fn(|context| inbox.poll(context)).now_or_never();
        assert!(take().is_none(), "there is none yet");
        for token in 0..1_000 {
            for name in ["a", "b"] {
                inbox.put(name, &state(token));
            }
        }
        inbox.end(Some(ServerError::overdue()));
        inbox.end(None);
        let mut taken = Vec::new();
        while let Some(Some(Ok((name, Ok(Some(state)))))) = take() {
            taken.push((name, state.token));
        }
        // In order, the first of them and the last.
        let first = (0..32).flat_map(|token| [("a".to_owned(), token), ("b".to_owned(), token)]);
        let expected: Vec<_> = first.chain([("a".to_owned(), 999), ("b".to_owned(), 999)]).collect();
        assert_eq!(taken, expected);
        // The reason was taken.
        assert!(matches!(take(), Some(None)));
    }

    #[test]
    fn a_lock_that_is_written_without_end_keeps_back_no_other() {
        let inbox = Inbox::new(false);
        let take = || poll_fn(|context| inbox.poll(context)).now_or_never();
        for token in 0..100 {
            inbox.put("a", &state(token));
        }
        inbox.put("z", &state(1));
        let taken = (100..200).find_map(|token| {
            inbox.put("a", &state(token));
            take().flatten()?.ok().filter(|(name, _)| name == "z")
        });
        assert!(taken.is_some());
    }

    #[test]
    fn an_observer_that_takes_nothing_lags_by_the_locks_that_are_held() {
        let inbox = Inbox::new(true);
        let held = || Ok(Some(Arc::new(lock(MUTEX, [holder("a-1", 1)], []))));
        for number in 0..1_000 {
            let name = number.to_string();
            inbox.put(&name, &held());
            inbox.put(&name, &state(2));
        }
        inbox.put("z", &held());
        let lag = |inbox: &Inbox| {
            let content = inbox.content();
            (content.queue.len(), content.later.len())
        };
        assert_eq!(lag(&inbox), (BEHIND, 1));
        // The release of a lock that it knows as held is told.
        let take = || poll_fn(|context| inbox.poll(context)).now_or_never();
        for _ in 0..=BEHIND {
            assert!(take().is_some());
        }
        assert_eq!(lag(&inbox), (0, 0));
        for number in 0..100 {
            inbox.put(&number.to_string(), &held());
        }
        inbox.put("z", &Ok(None));
        let mut last = None;
        while let Some(Some(Ok(next))) = take() {
            last = Some(next.0);
        }
        assert_eq!(last.as_deref(), Some("z"));
    }
}
