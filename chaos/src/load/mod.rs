//! The costs of a load for the clients and the server, and the checks that they stay flat and that the promises are
//! kept.

mod flat;
mod gauge;
mod locks;
mod soak;

use std::time::Duration;

use crate::Result;

const DATABASE: &str = "load";

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Burden {
    /// One client holds so many locks, and the server is slow.
    Locks(usize),
    /// A bit of everything, for long.
    Soak,
}

/// The settings of a load.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) burden: Burden,
    /// By default, every kind has its own duration.
    pub(crate) lasts: Option<Duration>,
    pub(crate) seed: u64,
}

/// Runs and reports. Returns whether no promise was broken.
pub(crate) async fn run(load: Load) -> Result<bool> {
    let lasts = |default| load.lasts.unwrap_or(Duration::from_secs(default));
    match load.burden {
        Burden::Locks(count) => locks::run(count, lasts(60)).await,
        Burden::Soak => soak::run(lasts(3_600), load.seed).await,
    }
}
