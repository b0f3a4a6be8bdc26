//! The costs of a load for the clients and the server, and the checks that they stay flat and that the promises are
//! kept.

mod crowd;
mod flat;
mod gauge;
mod held;
mod locks;
mod names;
mod processes;
mod soak;
mod waiters;

use std::{path::PathBuf, time::Duration};

use crate::Result;

const DATABASE: &str = "load";

/// Number of looks at a long wait.
const SAMPLES: u32 = 6;

/// The kind of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Burden {
    /// Tasks of one client wait for one lock.
    Waiters(usize),
    /// Clients wait for one lock.
    Clients(usize),
    /// Client processes contend for one lock.
    Processes(usize),
    /// One client holds so many locks, and the server is slow.
    Locks(usize),
    /// One client holds so many locks, and acquires others beside them.
    Held(usize),
    /// So many names are used once each.
    Names(u64),
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
    pub(crate) folder: PathBuf,
}

/// Runs and reports. Returns whether no promise was broken.
pub(crate) async fn run(load: Load) -> Result<bool> {
    let lasts = |default| load.lasts.unwrap_or(Duration::from_secs(default));
    match load.burden {
        Burden::Waiters(count) => waiters::run(count, lasts(30)).await,
        Burden::Processes(count) => processes::run(count, lasts(30), load.folder).await,
        Burden::Locks(count) => locks::run(count, lasts(60)).await,
        Burden::Clients(count) => crowd::run(count, lasts(10)).await,
        Burden::Held(count) => held::run(count, lasts(300)).await,
        Burden::Names(count) => names::run(count).await,
        Burden::Soak => soak::run(lasts(3_600), load.seed).await,
    }
}
