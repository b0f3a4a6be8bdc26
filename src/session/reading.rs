//! Hedged readings of a session: each is repeated beside its own unanswered attempts, and must be answered in time.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until},
};

use super::{Session, admission::AT_ONCE_LEAST};
use crate::{
    protocol::Exchange,
    store::{Documents, Store, StoreError, to_its_end},
};

/// The limits of a reading that is repeated beside its own unanswered attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hedging {
    /// Time that the first attempt has for itself. Each later one has the same, and twice as long as the one before
    /// once [`AT_ONCE_LEAST`] are unanswered.
    beside: Duration,
    /// Time within which there must be an answer.
    in_all: Duration,
}

impl Hedging {
    /// For readings of any length.
    const LONG: Self = Self {
        beside: Duration::from_secs(2),
        in_all: Duration::from_secs(30),
    };

    /// For the first command of all. Longer than the driver looks for a server, as the driver's error says more.
    pub(crate) const CONNECT: Self = Self {
        in_all: Duration::from_secs(120),
        ..Self::LONG
    };

    /// For a few documents by their names.
    pub(super) fn short(beside: Duration) -> Self {
        Self {
            beside,
            in_all: Duration::from_secs(10),
        }
    }
}

/// Reads, and reads again beside unanswered attempts: the first answer counts. The other attempts run on by
/// themselves.
///
/// Only for commands that change nothing.
pub(crate) async fn read_beside<T, F>(
    runtime: &Handle,
    hedging: Hedging,
    mut read: impl FnMut() -> F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let begun = Instant::now();
    let until = begun + hedging.in_all;
    let mut pause = hedging.beside;
    let mut attempts = FuturesUnordered::new();
    loop {
        if attempts.len() < READS_AT_ONCE {
            attempts.push(to_its_end(runtime, read()));
        }
        let again = (Instant::now() + pause).min(until);
        loop {
            let ended = tokio::select! {
                biased;
                Some(ended) = attempts.next() => ended.and_then(|answer| answer),
                () = sleep_until(again) => break,
            };
            match ended {
                // Other attempts are still on their way. Where there is no server, there is none for them either.
                Err(error) if !(error.is_final() || error.found_no_server() || attempts.is_empty()) => {}
                ended => return ended,
            }
        }
        if Instant::now() >= until {
            return Err(StoreError::unanswered(begun.elapsed()));
        }
        if attempts.len() >= AT_ONCE_LEAST {
            pause *= 2;
        }
    }
}

/// Maximum number of attempts of one reading at once.
pub(super) const READS_AT_ONCE: usize = 8;

impl Session {
    /// Reads the documents of these names, in time.
    pub(crate) async fn read_names(self: &Arc<Self>, names: &[String]) -> Result<(Documents, Exchange), StoreError> {
        let read = |store: Arc<Store>| {
            let names = names.to_vec();
            async move { store.read(&names).await }
        };
        self.read_short(read).await
    }

    /// Reads a few documents, in time.
    pub(crate) async fn read_short<T, F>(self: &Arc<Self>, read: impl Fn(Arc<Store>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.ensure_alive()?;
        let usual = self.asking.usual();
        let hedging = Hedging::short(usual + usual / 4);
        read_beside(self.start(), hedging, || read(self.store.clone())).await
    }

    /// Reads a result of any length, in time.
    pub(crate) async fn read_long<T, F>(self: &Arc<Self>, read: impl Fn(Arc<Store>) -> F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.ensure_alive()?;
        read_beside(self.start(), Hedging::LONG, || read(self.store.clone())).await
    }
}
