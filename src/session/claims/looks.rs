//! The looks that one session's claims take at what is wanted, and the rest that each earns.
//!
//! A look goes through everything that matches. The claims for the same share these times, as one claim after the other
//! may fail at the same look, or be given up during it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::pace;
use crate::backoff::Backoff;

/// Pause between two looks for unclaimable documents by a claim that finds nothing, while there were none.
const UNCLAIMABLE_LOOK_EVERY: Duration = Duration::from_secs(5);

/// Maximum number of filters with a known last look; they are forgotten together, which costs a look each.
const KNOWN_LOOKS_MOST: usize = 64;

/// The last looks, by filter and order.
#[derive(Debug, Default)]
pub(super) struct Looks(Mutex<HashMap<Vec<u8>, LastLook>>);

#[derive(Debug)]
struct LastLook {
    began: Instant,
    /// When to look for unclaimable documents again.
    due_at: Instant,
    /// The pauses after looks that failed one after the other.
    failing: Backoff,
}

/// A look that is on its way. One that is dropped without an answer has failed.
#[derive(Debug)]
pub(super) struct Looking<'a> {
    looks: &'a Looks,
    key: &'a [u8],
    began: Instant,
    is_answered: bool,
    was_sent: bool,
}

impl Looks {
    /// Notes that a look begins. Claims that find nothing meanwhile leave it at that one.
    pub(super) fn begin<'a>(&'a self, key: &'a [u8]) -> Looking<'a> {
        let began = Instant::now();
        let last = LastLook {
            began,
            due_at: began + UNCLAIMABLE_LOOK_EVERY,
            failing: self.failing(key),
        };
        self.note(key, last);
        Looking {
            looks: self,
            key,
            began,
            is_answered: false,
            was_sent: true,
        }
    }

    fn failing(&self, key: &[u8]) -> Backoff {
        self.known().get(key).map(|last| last.failing).unwrap_or_default()
    }

    /// Whether to look for unclaimable documents now: always, as long as the last look found some.
    pub(super) fn are_due(&self, key: &[u8]) -> bool {
        self.known().get(key).is_none_or(|last| Instant::now() >= last.due_at)
    }

    /// Whether the last look failed, and no claim may look again so soon.
    pub(super) fn are_resting(&self, key: &[u8]) -> bool {
        let known = self.known();
        let failed = known.get(key).filter(|last| last.failing.failures() > 0);
        failed.is_some_and(|last| Instant::now() < last.due_at)
    }

    /// Notes the state of a look, unless a later one has begun.
    fn note(&self, key: &[u8], last: LastLook) {
        let mut known = self.known();
        if known.get(key).is_some_and(|later| later.began > last.began) {
            return;
        }
        if known.len() >= KNOWN_LOOKS_MOST && !known.contains_key(key) {
            known.clear();
        }
        known.insert(key.to_vec(), last);
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Vec<u8>, LastLook>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Looking<'_> {
    /// Notes that it was answered, and whether it found unclaimable documents.
    pub(super) fn answered(mut self, found: bool) {
        self.is_answered = true;
        let pause = if found { Duration::ZERO } else { UNCLAIMABLE_LOOK_EVERY };
        let last = LastLook {
            began: self.began,
            due_at: Instant::now() + pause,
            failing: Backoff::default(),
        };
        self.looks.note(self.key, last);
    }

    /// Notes that it failed before anything was sent.
    pub(super) fn found_no_server(mut self) {
        self.was_sent = false;
    }
}

impl Drop for Looking<'_> {
    /// A look that failed, or that nobody waits for any more, may keep the server as busy as one that is answered.
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let mut failing = self.looks.failing(self.key);
        let now = Instant::now();
        let took = now.saturating_duration_since(self.began);
        let rest = if self.was_sent {
            pace::rest_after(took)
        } else {
            Duration::ZERO
        };
        let last = LastLook {
            began: self.began,
            due_at: now + rest.max(failing.failed()),
            failing,
        };
        self.looks.note(self.key, last);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns how long looks at this rest.
    async fn rest(looks: &Looks, key: &[u8]) -> Duration {
        let since = Instant::now();
        while looks.are_resting(key) {
            assert!(!looks.are_due(key));
            advance(Duration::from_millis(10)).await;
        }
        assert!(looks.are_due(key));
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_fail_are_made_ever_more_seldom_by_all_claims_for_the_same() {
        let looks = Looks::default();
        let mut rests = Vec::new();
        for _ in 0..6 {
            drop(looks.begin(b"slow"));
            rests.push(rest(&looks, b"slow").await.as_millis());
        }
        assert_eq!(rests, [50, 100, 200, 400, 800, 1_000]);
        // As one that is given up does, however often it failed before.
        let given_up = looks.begin(b"slow");
        advance(30 * SECOND).await;
        drop(given_up);
        assert!(!looks.are_resting(b"another"));
        assert_eq!(rest(&looks, b"slow").await, 120 * SECOND);
        looks.begin(b"slow").answered(false);
        assert!(!looks.are_resting(b"slow") && !looks.are_due(b"slow"));
        advance(UNCLAIMABLE_LOOK_EVERY).await;
        assert!(looks.are_due(b"slow"));
        looks.begin(b"slow").answered(true);
        assert!(looks.are_due(b"slow"), "it found some");
        drop(looks.begin(b"slow"));
        assert_eq!(rest(&looks, b"slow").await.as_millis(), 50, "after a success");
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_on_its_way_is_one_for_all() {
        let looks = Looks::default();
        assert!(looks.are_due(b"all"));
        let looking = looks.begin(b"all");
        assert!(!looks.are_due(b"all") && looks.are_due(b"others") && !looks.are_resting(b"all"));
        looking.answered(true);
        assert!(looks.are_due(b"all"));
        // One that never ends does not stand in for all later ones.
        let lasting = looks.begin(b"all");
        advance(UNCLAIMABLE_LOOK_EVERY).await;
        assert!(looks.are_due(b"all"));
        looks.begin(b"all").answered(false);
        drop(lasting);
        assert!(!looks.are_resting(b"all"), "a later one was answered");
    }

    /// As in a fail-over, in which finding a server takes long.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_was_never_sent_made_no_server_busy() {
        let looks = Looks::default();
        let looking = looks.begin(b"all");
        advance(30 * SECOND).await;
        looking.found_no_server();
        assert_eq!(rest(&looks, b"all").await.as_millis(), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn few_filters_are_known() {
        let looks = Looks::default();
        for filter in 0..1_000_u32 {
            drop(looks.begin(&filter.to_le_bytes()));
        }
        let known = looks.known().len();
        assert!((1..=KNOWN_LOOKS_MOST).contains(&known), "{known}");
    }
}
