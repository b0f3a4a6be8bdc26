//! The pace of the server and of this machine beside the checks: whether a time-out says anything of a promise.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mongodb::{Database, bson::doc};
use tokio::{task::JoinHandle, time::sleep};

use super::report::Check;
use crate::{connection::to_its_end, text::span_of};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(250);

/// A time-out is conclusive if no answer took longer than this part of it: a check takes a few commands, one after the
/// other.
const PART: u32 = 10;

/// Asks the server again and again, and notes the slowest answer. A machine that runs this too late counts as slow.
#[derive(Debug)]
pub(super) struct Pace {
    noted: Arc<Mutex<Noted>>,
    asking: JoinHandle<()>,
}

#[derive(Debug)]
struct Noted {
    slowest: Duration,
    /// The time at which the present question was due.
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
    pub(super) fn watch(database: &Database) -> Self {
        let noted = Arc::new(Mutex::new(Noted {
            slowest: Duration::ZERO,
            due: Instant::now(),
        }));
        let (database, noting) = (database.clone(), noted.clone());
        let asking = tokio::spawn(async move {
            loop {
                let asked = database.clone();
                // An error is an answer as well.
                drop(to_its_end(async move { asked.run_command(doc! { "ping": 1 }).await }).await);
                let due = {
                    let mut noted = noting.lock().unwrap_or_else(PoisonError::into_inner);
                    noted.slowest = noted.slowest();
                    noted.due = Instant::now() + PAUSE;
                    noted.due
                };
                sleep(due.saturating_duration_since(Instant::now())).await;
            }
        });
        Self { noted, asking }
    }

    /// Forgets what came before.
    pub(super) fn begin(&self) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).slowest = Duration::ZERO;
    }

    /// Judges what did not come within a limit: a promise is broken if the server was quick, and nothing is known
    /// otherwise.
    pub(super) fn late(&self, section: &'static str, name: &'static str, limit: Duration, found: String) -> Check {
        let slowest = self.noted.lock().unwrap_or_else(PoisonError::into_inner).slowest();
        if slowest <= limit / PART {
            return Check::broken(section, name, found);
        }
        let found = format!("{found}; but a ping took up to {}", span_of(slowest));
        Check::inconclusive(section, name, found)
    }
}
