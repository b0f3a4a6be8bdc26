//! The signs of the answer to a reading.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// When the last part of the answer arrived; shared by all attempts of one reading. While parts come, the connection
/// works and the server is at work, so another attempt would only make both slower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival(Arc<Mutex<Option<Instant>>>);

impl Arrival {
    /// Notes that a part of the answer is here.
    pub(crate) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether a part arrived within this time. The connection of the parts before may have died since, and the driver
    /// takes any connection for the next ones.
    pub(crate) fn is_coming(&self, within: Duration) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < within)
    }
}
