//! The states that an observer has not taken yet.

use std::{
    collections::{BTreeMap, VecDeque},
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
#[derive(Debug, Default)]
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
    end: Option<End>,
}

/// The end of all states: without a reason, or with one that has not been taken yet.
#[derive(Debug)]
struct End(Option<ServerError>);

impl Content {
    fn take_later(&mut self) -> Option<(String, Seen)> {
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let next = self.later.range::<str, _>(after).next();
        let name = next.or_else(|| self.later.first_key_value())?.0.clone();
        self.last.clone_from(&name);
        self.later.remove_entry(&name)
    }
}

impl Inbox {
    pub(super) fn put(&self, name: &str, seen: &Seen) {
        {
            let mut content = self.content();
            if content.queue.len() < BEHIND && content.later.is_empty() {
                content.queue.push_back((name.to_owned(), seen.clone()));
            } else {
                content.later.insert(name.to_owned(), seen.clone());
            }
        }
        self.taker.wake();
    }

    /// Ends the states: those that were put so far can still be taken, and then the reason.
    pub(super) fn end(&self, why: Option<ServerError>) {
        self.content().end.get_or_insert(End(why));
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
            Some(End(why)) => Poll::Ready(why.take().map(Err)),
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
    use crate::protocol::fixtures::{MUTEX, lock};

    fn state(token: i64) -> Seen {
        let mut state = lock(MUTEX, [], []);
        state.token = token;
        Ok(Some(Arc::new(state)))
    }

    #[test]
    fn who_lags_behind_skips_what_was_replaced_and_misses_no_last_state() {
        let inbox = Inbox::default();
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
        let inbox = Inbox::default();
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
}
