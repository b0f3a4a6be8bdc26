//! Idle locks that go back when the last handle of their client goes. The session ends with it, so nothing else sees to
//! them.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use super::{
    Session,
    shut_down::{OVERDUE, RELEASED_TOGETHER, RELEASES_AT_ONCE, unguessed},
};
use crate::{
    backoff::Backoff,
    protocol::Operation,
    store::{Store, to_its_end},
};

type Release = (String, Operation);

impl Session {
    /// Gives idle locks back as the last handle of the client goes. What can't be released is repeated for as long as
    /// the longest of their leases, and is over with its own.
    pub(super) fn give_idle_back(&self) {
        let Some(runtime) = self.started.get().filter(|_| !self.stopped.is_cancelled()) else {
            return;
        };
        let (releases, lease) = self.idle_releases();
        if releases.is_empty() {
            return;
        }
        let until = Instant::now() + lease;
        let together = releases.chunks(RELEASED_TOGETHER).map(<[Release]>::to_vec);
        let commands: Vec<_> = together
            .map(|together| release(self.store.clone(), runtime.clone(), together, until))
            .collect();
        let releasing = async move {
            stream::iter(commands)
                .buffer_unordered(RELEASES_AT_ONCE)
                .collect::<Vec<()>>()
                .await;
        };
        drop(to_its_end(runtime, releasing));
    }

    /// Returns the releases of all idle locks, and the longest of their leases.
    fn idle_releases(&self) -> (Vec<Release>, Duration) {
        let (mut releases, mut longest) = (Vec::new(), Duration::ZERO);
        let mut table = self.table();
        let table = &mut *table;
        let context = self.context(table.streaming, &table.clock);
        for (name, line) in &mut table.lines.by_name {
            let leases = line.holds().filter(|hold| hold.is_idle).map(|hold| hold.lease.length);
            let Some(lease) = leases.max() else { continue };
            longest = longest.max(lease);
            let mut effects = Vec::new();
            line.close(&context, &mut effects);
            line.give_back_idle(&context, &mut effects);
            releases.extend(
                line.next(&context)
                    .map(|operation| (name.clone(), unguessed(operation))),
            );
        }
        (releases, longest)
    }
}

/// Releases together, and then repeats each by itself that was not released: it may be one that the server does not get
/// done, as a transaction has written its document, or refuses, and others must not wait for it.
async fn release(store: Arc<Store>, runtime: Handle, releases: Vec<Release>, until: Instant) {
    let mut left = send(store.clone(), runtime.clone(), releases).await;
    let mut backoff = Backoff::default();
    while !left.is_empty() && Instant::now() < until {
        sleep(backoff.failed()).await;
        let alone: Vec<_> = left
            .into_iter()
            .map(|release| send(store.clone(), runtime.clone(), vec![release]))
            .collect();
        let again: Vec<Vec<Release>> = stream::iter(alone).buffer_unordered(RELEASES_AT_ONCE).collect().await;
        left = again.into_iter().flatten().collect();
    }
}

/// Sends releases in one command, and returns those that have to be repeated. A command without an answer runs on by
/// itself.
async fn send(store: Arc<Store>, runtime: Handle, releases: Vec<Release>) -> Vec<Release> {
    let sent = releases.clone();
    let sending = to_its_end(&runtime, async move { store.release_together(&sent).await });
    let failed = |name: &str| releases.iter().find(|(released, _)| released == name).cloned();
    match timeout(OVERDUE, sending).await {
        Ok(Ok(Ok(refused))) => {
            let repeated = refused.into_iter().filter(|(_, error)| !error.is_final());
            repeated.filter_map(|(name, _)| failed(&name)).collect()
        }
        Ok(Ok(Err(error))) if error.is_final() && releases.len() == 1 => Vec::new(),
        Ok(_) | Err(_) => releases,
    }
}
