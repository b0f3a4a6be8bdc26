//! The pace of the server and of this machine beside the checks: whether a time-out says anything of a promise.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::{task::JoinHandle, time::sleep};

use super::report::Check;
use crate::{connection::to_its_end, text::span_of};

/// Pause between two writes.
const PAUSE: Duration = Duration::from_millis(250);

/// Writes again and again, confirmed by a majority as the writes of locks are, and notes the slowest. A machine that
/// runs this too late counts as slow.
#[derive(Debug)]
pub(super) struct Pace {
    /// How much longer than its time something may take.
    pub(super) patience: Duration,
    noted: Arc<Mutex<Noted>>,
    asking: JoinHandle<()>,
}

#[derive(Debug)]
struct Noted {
    slowest: Duration,
    /// The time at which the present write was due.
    due: Instant,
}

impl Noted {
    fn slowest(&self) -> Duration {
        self.slowest.max(self.due.elapsed())
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

impl Pace {
    /// Writes into this collection.
    pub(super) fn watch(collection: Collection<Document>, patience: Duration) -> Self {
        let noted = Arc::new(Mutex::new(Noted {
            slowest: Duration::ZERO,
            due: Instant::now(),
        }));
        let noting = noted.clone();
        let asking = tokio::spawn(async move {
            loop {
                let written = collection.clone();
                let write = async move {
                    let (only, next) = (doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } });
                    written.update_one(only, next).upsert(true).await
                };
                // An error is an answer as well.
                drop(to_its_end(write).await);
                let due = {
                    let mut noted = noting.lock().unwrap_or_else(PoisonError::into_inner);
                    noted.slowest = noted.slowest();
                    noted.due = Instant::now() + PAUSE;
                    noted.due
                };
                sleep(due.saturating_duration_since(Instant::now())).await;
            }
        });
        Self {
            patience,
            noted,
            asking,
        }
    }

    /// Forgets what came before.
    pub(super) fn begin(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).slowest = Duration::ZERO;
    }

    /// Judges what did not come within a limit, for which it takes at most so many commands, one after the other: a
    /// promise is broken if the server was quick enough for all of them, and nothing is known otherwise.
    pub(super) fn late(&self, name: &'static str, (limit, commands): (Duration, u32), found: String) -> Check {
        let slowest = self.noted.lock().unwrap_or_else(PoisonError::into_inner).slowest();
        if slowest <= limit / commands {
            return Check::broken(name, found);
        }
        let found = format!("{found}; but a write took up to {}", span_of(slowest));
        Check::inconclusive(name, found)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::report::Verdict, *};

    #[tokio::test]
    async fn the_slowest_write_decides_whether_so_many_had_time() {
        let noted = Noted {
            slowest: Duration::from_millis(200),
            due: Instant::now() + Duration::from_secs(60),
        };
        let pace = Pace {
            patience: Duration::ZERO,
            noted: Arc::new(Mutex::new(noted)),
            asking: tokio::spawn(async {}),
        };
        let late = |commands| pace.late("", (Duration::from_secs(30), commands), String::new());
        assert_eq!(late(150).verdict, Verdict::Broken);
        let late = late(151);
        assert_eq!(late.verdict, Verdict::Inconclusive);
        assert!(late.found.contains("a write took up to"), "{}", late.found);
    }
}
