//! The end of a session: it lets go of everything, also where it holds a hundred thousand locks.
//!
//! A task keeps the session for as long as a command is on its way, and a command can stay without an answer for ever.
//! So the life of the client is that of its users' handles: when the last one goes, everything that still stays with
//! the client goes back, whatever its tasks wait for.

use std::{cmp::Reverse, fmt, ops::Deref, sync::Arc};

use futures::{FutureExt, StreamExt, stream};
use tokio::{sync::oneshot, time::timeout};

use super::{Session, in_flight::patience, timer_queue::AT_A_TIME};
use crate::status::LostReason;

/// A session as a client, a lock, a handle or a future of the user's has it. Tasks have the session without this.
pub(crate) type UserHandle = Arc<ClientLife>;

/// The life of a client as its user sees it. It ends with the last handle.
pub(crate) struct ClientLife(Arc<Session>);

impl ClientLife {
    /// Returns the first handle of a session.
    pub(crate) fn begin(session: Arc<Session>) -> UserHandle {
        Arc::new(Self(session))
    }
}

impl Drop for ClientLife {
    fn drop(&mut self) {
        self.0.end_in_background();
    }
}

impl Deref for ClientLife {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl fmt::Debug for ClientLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Session {
    /// Refuses new acquires, lets go of everything, and waits up to a lease until the server knows.
    pub(crate) async fn shut_down(self: &Arc<Self>) {
        if self.is_forked() {
            // Everything belongs to the parent.
            return;
        }
        self.close();
        // In a task, so that it runs to its end even if the caller stops waiting.
        let ending = self.spawn_for(self.clone().end());
        // Beyond that the leases have run out, except those that are longer than the client's own.
        let _ = timeout(self.config.lease, ending).await;
        self.end_tasks();
    }

    /// Lets go of everything in the background, also of locks that are idle. The sweeps take their time, unless the
    /// session was closed before.
    pub(crate) fn end_in_background(self: &Arc<Self>) {
        if self.is_forked() {
            // The tokens below have mutexes, which a thread of the parent may have had.
            return;
        }
        if self.started.get().is_some() && !self.stopped.is_cancelled() && !self.ended.is_cancelled() {
            self.table().lines.closed = true;
            self.spawn(self.clone().end());
        }
    }

    /// Lets go of everything, and ends the session's tasks once nothing of it is left on the server.
    async fn end(self: Arc<Self>) {
        self.let_all_go().await;
        loop {
            let mut drained = std::pin::pin!(self.drained.notified());
            // Registered before the look, so that no change after the look is missed.
            drained.as_mut().enable();
            // In this order: the one comes of the other.
            let claims_are_settled = self.ids.pending_claims.is_empty() && self.claims.have_no_orphans();
            if claims_are_settled && self.table().lines.by_name.is_empty() {
                break;
            }
            tokio::select! {
                () = drained => {}
                // A shutdown has ended the session's tasks at its time limit: nothing drains the rest.
                () = self.ended.cancelled() => return,
            }
        }
        self.end_tasks();
    }

    /// Refuses new acquires and claims.
    pub(crate) fn close(&self) {
        self.table().lines.closed = true;
        self.closing.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Whether acquires and claims are refused: from the first step of an end, before any wait of theirs ends.
    pub(super) fn takes_nothing_new(&self) -> bool {
        self.table().lines.closed
    }

    /// Ends every wait and every hold, and then reports this to the server. Nothing new comes to the lines meanwhile.
    async fn let_all_go(self: &Arc<Self>) {
        let mut ended = Vec::new();
        self.for_each_name(|name| {
            let mut held = Vec::new();
            self.update(name, None, |lines, context| {
                if let Some(line) = lines.by_name.get_mut(name) {
                    let mut step = line.waitlist.step(context);
                    step.close();
                    if self.is_closed() {
                        step.hasten_sweeps();
                    }
                    held.extend(step.holds().cloned());
                }
            });
            // A writer before the reader that it has upgraded, with which it would be over.
            held.sort_unstable_by_key(|hold| Reverse(hold.number));
            // One that is over without anybody having looked has expired.
            for hold in held.into_iter().filter(|hold| hold.lost_reason().is_none()) {
                let (to, released) = oneshot::channel();
                let released = released.shared();
                // Before its end, as its handles await this from then on.
                let _ = hold.left_by_shutdown.set(released.clone());
                if hold.lose(LostReason::Released) {
                    hold.report_end();
                    self.table().timers.update(&hold);
                    ended.push((hold, to, released));
                }
            }
        })
        .await;
        // Beyond that time, a release is repeated while others go on.
        let patience = patience(self.in_flight.limit(0, &self.config));
        stream::iter(ended)
            .for_each_concurrent(AT_A_TIME, |(hold, to, released)| {
                // Unless it was lost meanwhile, and its entry is gone.
                self.update(&hold.name, None, |lines, context| {
                    lines.let_go(&hold, Some(to), context)
                });
                timeout(patience, released).map(drop).boxed()
            })
            .await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::{super::fixtures, *};
    use crate::{
        client::LockClient,
        config::Config,
        error::HoldError,
        handle::Released,
        protocol::{Evict, Operation},
        tests::simulated::Link,
        waitlist::SWEEPS,
    };

    /// A client, and the link to its server.
    fn client() -> (Arc<Link>, Arc<Session>, LockClient) {
        let (link, session) = fixtures::client(&fixtures::memory(), fixtures::ONE, Config::default());
        (link, session.clone(), LockClient::new(session))
    }

    /// Takes and releases a lock, after a request for it that was not answered; returns when that was.
    async fn uncertain(link: &Link, locks: &LockClient) -> Instant {
        let mutex = locks.mutex("x");
        mutex.acquire().await.unwrap().release().await.unwrap();
        link.kill_idle(1);
        mutex.acquire().await.unwrap().release().await.unwrap();
        Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_dropped_leaves_its_sweeps_behind_and_no_more() {
        let (link, session, locks) = client();
        let alive = Arc::downgrade(&session);
        drop(session);
        let uncertain = uncertain(&link, &locks).await;
        for _ in 0..200 {
            locks.mutex("x").acquire().await.unwrap().release().await.unwrap();
        }
        let sweeps: Duration = SWEEPS.iter().sum();
        assert!(uncertain.elapsed() < sweeps, "{:?}", uncertain.elapsed());
        drop(locks);
        sleep(sweeps.saturating_sub(uncertain.elapsed() + Duration::from_secs(1))).await;
        assert!(alive.strong_count() > 0);
        // The driver's own answers may take as long as that.
        sleep(Duration::from_secs(2)).await;
        assert_eq!(alive.strong_count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_waits_for_no_sweep_that_finds_nothing() {
        let (link, session, locks) = client();
        uncertain(&link, &locks).await;
        assert!(!session.is_unused(), "sweeps are planned");
        let begun = Instant::now();
        locks.shutdown().await;
        assert!(session.is_unused());
        assert!(begun.elapsed() < SWEEPS[0], "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_that_a_shutdown_overtakes_says_what_the_server_has_answered_to_that() {
        let breaking = Operation {
            evict: Evict::Everybody,
            ..Operation::blank("other.1".to_owned(), 60_000)
        };
        let is_unanswered = |released: &Result<_, _>| matches!(released, Err(HoldError::Unconfirmed { .. }));
        for (at_least, is_cut, is_broken, expected) in [
            (0, false, false, Some(Released::Released)),
            (60, false, false, Some(Released::Kept)),
            (0, false, true, Some(Released::WasLost)),
            (0, true, false, None),
        ] {
            let (link, _, locks) = client();
            let acquire = locks.mutex("x").acquire().at_least_for(Duration::from_secs(at_least));
            let handle = acquire.await.unwrap();
            link.cut(is_cut);
            if is_broken {
                link.memory().run("x", &breaking).unwrap();
            }
            let ending = tokio::spawn(async move { locks.shutdown().await });
            while handle.is_held() {
                tokio::task::yield_now().await;
            }
            let released = handle.release().await;
            assert_eq!(released.as_ref().ok(), expected.as_ref());
            assert!(released.is_ok() || is_unanswered(&released), "{released:?}");
            ending.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_asks_again_beside_a_release_as_soon_as_any_operation_is() {
        for count in [1, 1_000] {
            let (link, session, locks) = client();
            let acquires = (0..count).map(|number| locks.mutex(format!("{number}")).acquire());
            let held = futures::future::join_all(acquires).await;
            link.kill_idle(1);
            let begun = Instant::now();
            locks.shutdown().await;
            assert!(session.is_unused() && held.iter().flatten().all(|handle| !handle.is_held()));
            let most = patience(session.in_flight.limit(0, &session.config));
            assert!(begun.elapsed() < most * 2, "{count}: {:?}", begun.elapsed());
            assert!(most < Duration::from_secs(1), "{most:?}");
        }
    }
}
