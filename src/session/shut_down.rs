//! The end of a session: it lets go of everything, also where it holds a hundred thousand locks.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout};

use super::{Session, hold::Hold, line::UNANSWERED};
use crate::{
    protocol::{Exchange, Expects, Operation},
    status::LostReason,
    store::Answer,
};

/// Maximum number of documents in one command of releases: some hundred kilobytes, as each has a pipeline of its own.
pub(super) const RELEASED_TOGETHER: usize = 250;

/// Maximum number of such commands on their way at once; they leave room in the connection pool, which is the user's.
pub(super) const RELEASES_AT_ONCE: usize = 3;

/// Time without an answer after which the releases of a command count as failed, and each is repeated by itself.
pub(super) const OVERDUE: Duration = UNANSWERED.saturating_mul(2);

impl Session {
    /// Refuses new acquires, lets go of everything, and waits up to a lease until the server knows.
    pub(crate) async fn shut_down(self: &Arc<Self>) {
        if !self.made_in.is_this() {
            // Everything belongs to the parent.
            return;
        }
        self.close();
        // In a task, so that it runs to its end even if the caller stops waiting.
        let ending = self.spawn_for(self.clone().end());
        // Beyond that the leases have run out, except those that are longer than the client's own.
        let _ = timeout(self.config.lease, ending).await;
        self.ended.cancel();
    }

    /// Does the same in the background, as the client's last user goes: what stays with the client goes back, although
    /// tasks may keep the session for longer.
    pub(super) fn abandoned(self: &Arc<Self>) {
        let is_in_use = self.started.get().is_some() && !self.stopped.is_cancelled() && !self.ended.is_cancelled();
        if self.made_in.is_this() && is_in_use {
            self.close();
            self.spawn(self.clone().end());
        }
    }

    async fn end(self: Arc<Self>) {
        self.let_all_go().await;
        loop {
            let mut drained = std::pin::pin!(self.drained.notified());
            // Registered before the look, so that no change after the look is missed.
            drained.as_mut().enable();
            if self.table().lines.by_name.is_empty() && self.ids.pending_claims.is_empty() {
                break;
            }
            drained.await;
        }
        self.ended.cancel();
    }

    /// Refuses new acquires and claims.
    pub(crate) fn close(&self) {
        self.table().lines.closed = true;
        self.closing.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Ends every wait and every hold, and then reports this to the server. Nothing new comes to the lines meanwhile.
    async fn let_all_go(self: &Arc<Self>) {
        let (mut last, mut ended) = (None::<String>, Vec::new());
        loop {
            let names = self.names_after(last.as_deref());
            for name in &names {
                let mut held = Vec::new();
                self.feed(name, |lines, context, effects| {
                    if let Some(line) = lines.by_name.get_mut(name) {
                        line.close(context, effects);
                        held.extend(line.holds().cloned());
                    }
                });
                for hold in held {
                    // This ends all handles of the hold.
                    if hold.lose(LostReason::Released) {
                        hold.report_end();
                        ended.push(hold);
                    }
                }
            }
            last = names.into_iter().next_back();
            if last.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let together = ended.chunks(RELEASED_TOGETHER);
        stream::iter(together)
            .for_each_concurrent(RELEASES_AT_ONCE, |holds| self.release_together(holds))
            .await;
    }

    /// Lets go of holds for which no release awaits the server's answer. Those that can go by one command do so.
    async fn release_together(self: &Arc<Self>, holds: &[Arc<Hold>]) {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        {
            let mut table = self.table();
            let table = &mut *table;
            for hold in holds {
                let context = self.context(table.streaming, &table.clock);
                let Some(line) = table.lines.by_name.get_mut(&hold.name) else {
                    continue;
                };
                if !line.has(hold) {
                    // It was lost meanwhile, and its entry is gone.
                    continue;
                }
                // No task waits any more, so it is handed on to nobody.
                line.let_go(hold, None, &context, &mut Vec::new());
                if let Some(operation) = line.next(&context) {
                    if operation.requests.is_some() || line.is_awaited_by_release() {
                        alone.push((hold.name.clone(), (operation, line.timed_out())));
                    } else {
                        together.push((hold.name.clone(), unguessed(operation)));
                    }
                }
                self.after(table, &hold.name);
            }
        }
        for (name, next) in alone {
            self.spawn(self.clone().run(name, Some(next)));
        }
        if together.is_empty() {
            return;
        }
        let together = Arc::new(together);
        let sent = Instant::now();
        let (store, releases) = (self.store.clone(), together.clone());
        let releasing = async move { store.release_together(&releases).await };
        let mut released = self.in_time(OVERDUE, releasing).await;
        let exchange = Exchange::ending_now(sent, None);
        for (name, operation) in together.iter() {
            let answer = match &mut released {
                Ok(refused) => refused.remove(name).map_or(
                    Ok(Answer {
                        state: None,
                        exchange,
                        logged_by: None,
                    }),
                    Err,
                ),
                Err(error) => Err(error.clone()),
            };
            let failed = answer.is_err();
            let next = self.settle(name, operation, answer);
            // A failed release must still leave, and nothing else may be there to see to it.
            if next.is_some() || failed {
                self.spawn(self.clone().run(name.clone(), next));
            }
        }
    }
}

/// Returns a release that assumes nothing: there is no answer that would reveal a wrong guess.
pub(super) fn unguessed(mut operation: Operation) -> Operation {
    if operation.expects == Expects::Alone {
        operation.expects = Expects::Holding;
    }
    operation
}
