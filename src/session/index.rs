//! The index by which the server purges free locks.
//!
//! Locks work without it, but the documents of free locks would stay. It is requested before the first operation, as
//! its creation costs nothing only while there is no collection. If there are documents, the server builds it while it
//! blocks all others, at the beginning and at the end. For that it waits until no open transaction has written any of
//! them, and until then every command on any lock waits. So the first operation waits a moment for the index, and if
//! the index can't be created soon, it is requested only now and then.

use std::sync::{Arc, Weak};

use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Session,
    in_flight::{SHORTEST, patience},
};
use crate::{backoff::REST, telemetry};

impl Session {
    /// Asks for the index on the first call, and waits a moment for the answer.
    pub(super) async fn prepare(self: &Arc<Self>) {
        let asked = self.prepared.get_or_init(|| {
            let asked = CancellationToken::new();
            self.spawn(ask(
                Arc::downgrade(self),
                asked.clone().drop_guard(),
                self.ended.clone(),
            ));
            asked
        });
        if !asked.is_cancelled() {
            // A later caller waits no longer than the first, or a little longer.
            let _ = timeout(SHORTEST * 2, asked.cancelled()).await;
            asked.cancel();
        }
    }
}

/// Asks until the server has answered. `asked` is dropped after the first answer of any kind.
async fn ask(session: Weak<Session>, asked: DropGuard, ended: CancellationToken) {
    let mut asked = Some(asked);
    // As all others may wait meanwhile. It doubles when that was not enough, as where there are many locks.
    let (mut limit, mut told) = (SHORTEST, false);
    loop {
        let Some(present) = session.upgrade() else { return };
        let store = present.store.clone();
        let asking = present.in_time(patience(limit), async move { store.prepare(limit).await });
        let (answer, rest) = (asking.await, limit * REST);
        drop(present);
        match answer {
            Ok(()) => return,
            // It runs on by itself.
            Err(error) if error.is_unanswered() => {}
            Err(error) => {
                // One report is enough for an error that may pass by itself.
                if error.is_final() || !std::mem::replace(&mut told, true) {
                    telemetry::index_missing(&error);
                }
                if error.is_final() {
                    return;
                }
                if error.ran_out_of_time() {
                    limit *= 2;
                }
            }
        }
        asked.take();
        tokio::select! {
            () = sleep(rest) => {}
            () = ended.cancelled() => return,
        }
    }
}
