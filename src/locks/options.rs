//! The options of an acquire.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::InvalidInput,
    hold_options::Terms,
    input::{check_duration, check_text},
};

/// The options of all acquires, as the user sets them.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether it takes what is free at once, and does not wait.
    pub(crate) tries: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) reason: Option<String>,
    pub(crate) terms: Terms,
    pub(crate) reentrant: bool,
    /// Ends the acquire when it is cancelled.
    pub(crate) cancelled: Option<CancellationToken>,
    /// Whether it ends when it is part of a deadlock.
    pub(crate) fails_on_deadlock: bool,
}

impl Options {
    /// Returns the options of an acquire whose hold lasts by its nature.
    pub(crate) fn unlimited() -> Self {
        let mut options = Self::default();
        options.terms.unlimited = true;
        options
    }

    /// Refuses values that are out of bounds, before anything is sent.
    pub(crate) fn check(&self, config: &Config) -> Result<(), InvalidInput> {
        let reason = self.reason.as_ref();
        reason.map_or(Ok(()), |reason| check_text("reason", reason))?;
        self.timeout
            .map_or(Ok(()), |timeout| check_duration("timeout", timeout))?;
        self.terms.check(config)
    }
}
