//! The index by which the server purges idle locks.
//!
//! It is asked for when the first lock has been granted: who only looks at locks, or finds them taken, writes nothing.
//! Locks work without it, so nobody waits for it; idle ones would only stay.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Session;
use crate::telemetry;

/// Pauses between tries while the server can't be reached: the first, and the longest. Nothing is urgent about it.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A try that has not been answered for so long is counted as failed; it goes on by itself. Asking is cheap where the
/// index is there already, and making it takes a while where there are many locks.
const UNANSWERED: Duration = Duration::from_secs(300);

impl Session {
    /// Asks for the index, the first time that a lock has been granted, until the server has answered.
    pub(super) fn prepare(self: &Arc<Self>) {
        self.prepared.get_or_init(|| {
            self.spawn(ask(Arc::downgrade(self), self.ended.clone()));
        });
    }
}

async fn ask(session: Weak<Session>, ended: CancellationToken) {
    let mut pause = PAUSES.0;
    let mut told = false;
    loop {
        let asking = {
            let Some(session) = session.upgrade() else { return };
            let present = session.clone();
            session.spawn_for(async move { present.store.prepare().await })
        };
        match timeout(UNANSWERED, asking).await {
            Ok(Ok(Ok(()))) | Ok(Err(_)) => return,
            Ok(Ok(Err(error))) => {
                // Of what may pass by itself once is enough.
                if error.is_final() || !std::mem::replace(&mut told, true) {
                    telemetry::index_missing(&error);
                }
                if error.is_final() {
                    return;
                }
            }
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = ended.cancelled() => return,
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}
