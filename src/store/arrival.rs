//! The first sign of the answer to a reading.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Whether a part of the answer has arrived; shared by all attempts of one reading. Then the connection works and the
/// server is at work, so another attempt would only make both slower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival(Arc<AtomicBool>);

impl Arrival {
    /// Notes that a part of the answer is here.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
