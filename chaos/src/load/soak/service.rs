//! One client of the soak, as a service would have it: it acquires, holds and lets go.

use std::{future::poll_fn, pin::Pin, sync::Arc, task::Poll, time::Duration};

use mongodb::{Client, bson::Document};
use tokio::time::{Instant, sleep, timeout};
use watchlock::{LockClient, LostReason, Released, View, documents::DocumentLocks, errors::AcquireError};

use super::ledger::{Asked, Holds, Ledger};
use crate::{
    Result,
    client::{Held, connect},
    load::DATABASE,
    locks::{JOBS, LOCKS},
};

/// Short enough for expiry to be part of it, long enough for a machine that has other things to do.
pub(super) const LEASE: Duration = Duration::from_secs(10);

const CLAIM_LEASE: Duration = Duration::from_secs(3);

/// The shortest there is: documents of names that were used once must not pile up.
pub(super) const RETENTION: Duration = Duration::from_secs(60);

/// Time within which every waiter is granted the lock.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// Maximum delay of an acquire's end after its time.
const OVERDUE: Duration = Duration::from_secs(15);

pub(super) type Acquiring = Pin<Box<dyn Future<Output = Result<Option<Held>, AcquireError>> + Send>>;

#[derive(Debug)]
pub(super) struct Service {
    pub(super) client: Client,
    pub(super) locks: LockClient,
    pub(super) jobs: DocumentLocks<Document>,
    pub(super) label: String,
    pub(super) ledger: Arc<Ledger>,
}

impl Service {
    pub(super) async fn start(uri: &str, label: String, ledger: &Arc<Ledger>) -> Result<Self> {
        let database = connect(uri, DATABASE, &label).await?;
        let locks = LockClient::builder(database.clone())
            .collection(LOCKS)
            .label(&label)
            .lease(LEASE)
            .claim_lease(CLAIM_LEASE)
            .retention(RETENTION)
            .build()
            .await?;
        Ok(Self {
            client: database.client().clone(),
            jobs: locks.documents(database.collection(JOBS)),
            locks,
            label,
            ledger: ledger.clone(),
        })
    }

    /// Gives everything back.
    pub(super) async fn end(self) {
        self.locks.shutdown().await;
        drop((self.locks, self.jobs));
        self.client.shutdown().await;
    }

    pub(super) fn ask(&self, name: &str, capacity: u64) -> Asked {
        self.ledger.ask(&self.label, name, capacity)
    }

    /// Waits for a lock, for up to `at_most`. `None`: it has given up, or was refused.
    pub(super) async fn wait(&self, asked: &Asked, mut acquire: Acquiring, at_most: Option<Duration>) -> Option<Held> {
        let answer = match poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await {
            Poll::Ready(answer) => answer,
            Poll::Pending => {
                asked.stands();
                tokio::select! {
                    biased;
                    answer = &mut acquire => answer,
                    () = sleep(at_most.unwrap_or(PATIENCE + OVERDUE)) => {
                        // Before the future is dropped: from then on others may come before it.
                        asked.gives_up();
                        if at_most.is_none() {
                            self.ledger.complain(format!("{}: an acquire came to no end", self.label));
                        }
                        return None;
                    }
                }
            }
        };
        answer
            .inspect_err(|error| self.ledger.complain(format!("{}: {error:?}", self.label)))
            .ok()
            .flatten()
    }

    /// Holds a lock for a while. Returns whether it still does.
    pub(super) async fn hold(&self, view: &View, hold: Duration) -> bool {
        let since = Instant::now();
        let kept = tokio::select! {
            biased;
            lost = view.lost() => Err(lost),
            () = sleep(hold) => view.check(),
        };
        if let Err(lost) = &kept {
            // Nothing here takes a lock away from a client that runs.
            let held = since.elapsed();
            self.ledger.complain(format!("{}: after {held:?}, {lost}", self.label));
        }
        kept.is_ok()
    }

    /// Releases a lock, or drops its handle.
    pub(super) async fn let_go(&self, held: Held, holds: Holds, releases: bool) {
        let view = held.view();
        if releases {
            match timeout(LEASE + OVERDUE, held.release()).await {
                Ok(Ok(Released::Released)) => {}
                other => self.ledger.complain(format!("{}: the release: {other:?}", view.name())),
            }
        } else {
            drop(held);
        }
        if view.lost_reason() != Some(LostReason::Released) {
            let reason = view.lost_reason();
            self.ledger
                .complain(format!("{}: {reason:?} after it was let go", view.name()));
        }
        drop(holds);
    }
}
