//! One client of the soak, as a service would have it: it acquires, holds and lets go.

use std::{pin::Pin, sync::Arc, time::Duration};

use mongodb::{Client, bson::Document};
use tokio::time::{Instant, sleep, timeout};
use watchlock::{LockClient, LostReason, Released, View, documents::DocumentLocks, errors::AcquireError};

use super::{DATABASE, Tally};
use crate::{
    Result,
    client::{Held, connect},
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
    tally: Arc<Tally>,
}

impl Service {
    pub(super) async fn start(uri: &str, label: String, tally: &Arc<Tally>) -> Result<Self> {
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
            tally: tally.clone(),
        })
    }

    /// Gives everything back.
    pub(super) async fn end(self) {
        self.locks.shutdown().await;
        drop((self.locks, self.jobs));
        self.client.shutdown().await;
    }

    pub(super) fn complain(&self, what: String) {
        self.tally.complain(format!("{}: {what}", self.label));
    }

    /// Waits for a lock, for up to `at_most`. `None`: it has given up, or was refused.
    pub(super) async fn wait(&self, acquire: Acquiring, at_most: Option<Duration>) -> Option<Held> {
        match timeout(at_most.unwrap_or(PATIENCE + OVERDUE), acquire).await {
            Ok(Ok(held)) => return held,
            Ok(Err(error)) => self.complain(format!("{error:?}")),
            Err(_) if at_most.is_some() => {}
            Err(_) => self.complain("an acquire came to no end".to_owned()),
        }
        None
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
            self.complain(format!("after {held:?}, {lost}"));
        }
        kept.is_ok()
    }

    /// Releases a lock, or drops its handle.
    pub(super) async fn let_go(&self, held: Held, releases: bool) {
        let view = held.parts().remove(0);
        if releases {
            match timeout(LEASE + OVERDUE, held.release()).await {
                Ok(Ok(Released::Released)) => {}
                other => self.complain(format!("{}: the release: {other:?}", view.name())),
            }
        } else {
            drop(held);
        }
        if view.lost_reason() != Some(LostReason::Released) {
            let reason = view.lost_reason();
            self.complain(format!("{}: {reason:?} after it was let go", view.name()));
        }
    }
}
