//! The runtime that a session lives on: the one on which it was first needed.
//!
//! All tasks of the session are there, and as a rule so are those of the driver's client. When that runtime ends, they
//! are gone, and everything on its way is lost with them: the session is over. Every later request fails at once, on
//! any runtime. A hold stays valid up to its deadline, and can't be released.

use std::{future::pending, process, sync::Arc, time::Duration};

use scopeguard::guard;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{
    Session, heartbeat,
    streams::{observing, watcher},
};
use crate::{
    error::{AcquireError, ServerError, own::Own},
    store::spawned,
    telemetry,
};

/// Time after which a runtime of one thread that runs no task counts as standing still: nothing drives it, or its
/// thread is blocked.
const STANDS_STILL: Duration = Duration::from_secs(5);

impl Session {
    /// Starts the session's tasks on the present runtime, on the first call.
    pub(super) fn start(self: &Arc<Self>) -> &Handle {
        self.started.get_or_init(|| {
            let runtime = Handle::current();
            drop(spawned(
                &runtime,
                heartbeat::run(Arc::downgrade(self), self.wake_heartbeat.clone(), self.ended.clone()),
            ));
            drop(spawned(
                &runtime,
                observing::run(Arc::downgrade(self), self.ended.clone()),
            ));
            if self.config.may_stream() {
                drop(spawned(
                    &runtime,
                    watcher::run(Arc::downgrade(self), self.demand.subscribe(), self.ended.clone()),
                ));
            }
            self.watch_over(&runtime);
            runtime
        })
    }

    /// Binds the session to the runtime on which its client was built: when that ends, the driver's tasks are gone,
    /// and nothing would be answered.
    pub(crate) fn live_on(self: &Arc<Self>, runtime: Handle) {
        self.watch_over(&runtime);
        // A session is bound once.
        let _ = self.home.set(runtime);
    }

    /// Binds the session as [`live_on`](Self::live_on) does, to the runtime of the other session.
    pub(crate) fn live_with(self: &Arc<Self>, other: &Self) {
        if let Some(runtime) = other.home.get() {
            self.live_on(runtime.clone());
        }
    }

    /// Notices the end of the runtime. A runtime that has ended drops the task at once.
    fn watch_over(self: &Arc<Self>, runtime: &Handle) {
        let ended = self.ended.clone();
        let dropped = guard(Arc::downgrade(self), |session| {
            if let Some(session) = session.upgrade().filter(|session| !session.ended.is_cancelled()) {
                session.runtime_ended();
            }
        });
        drop(spawned(runtime, async move {
            let _dropped = dropped;
            ended.cancelled().await;
        }));
    }

    /// Reports the locks that stay taken, unless the session has come to its end: no release is sent any more.
    pub(super) fn report_left_taken(&self) {
        if self.ended.is_cancelled() {
            return;
        }
        let locks = self
            .table()
            .lines
            .by_name
            .values()
            .filter(|line| line.would_stay_taken())
            .count();
        if locks > 0 {
            telemetry::left_taken(locks);
        }
    }

    /// Ends everything that was on its way, as no answer comes any more.
    fn runtime_ended(self: &Arc<Self>) {
        self.report_left_taken();
        // Before the loop over the lines: an input fed to them from now on is answered on the spot.
        self.stopped.cancel();
        let names: Vec<String> = {
            let mut table = self.table();
            table.lines.closed = true;
            table.lines.by_name.keys().cloned().collect()
        };
        for name in names {
            self.update(&name, None, |_, _| {});
        }
        self.observers().end();
        self.closing.cancel();
        self.drained.notify_waiters();
    }

    /// Fails if the session is of no use, as its runtime has ended or this is a fork.
    pub(crate) fn ensure_usable(&self) -> Result<(), ServerError> {
        if self.is_forked() {
            return Err(Own::Forked.into());
        }
        match self.stopped.is_cancelled() {
            true => Err(ServerError::runtime_ended()),
            false => Ok(()),
        }
    }

    /// Whether this process was forked from that of the session.
    ///
    /// A fork copies the memory and none of the threads: nothing of ours runs in it, and a mutex that another thread
    /// held stays locked for ever. The parent's holds go on being renewed, released and lost without the child's
    /// knowledge. So every request in a fork fails before it looks at anything else.
    pub(crate) fn is_forked(&self) -> bool {
        self.made_in != process::id()
    }

    /// Ends the session's tasks and observers.
    pub(super) fn end_tasks(&self) {
        self.ended.cancel();
        self.observers().end();
    }

    /// Waits for the end of its shutdown.
    pub(crate) async fn has_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Returns why nothing new is acquired.
    pub(super) fn why_closed(&self) -> AcquireError {
        self.ensure_usable()
            .map_or_else(AcquireError::from, |()| AcquireError::Closed)
    }

    /// Resolves when the session's runtime stands still; only another runtime can see that.
    pub(crate) async fn stands_still(&self) -> ServerError {
        let Some(runtime) = self.started.get() else {
            return pending().await;
        };
        let here = Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
        if here || runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
            // With threads of its own, a runtime runs or has ended.
            return pending().await;
        }
        loop {
            let (alive, answer) = oneshot::channel();
            drop(spawned(runtime, async move {
                let _ = alive.send(());
            }));
            match timeout(STANDS_STILL, answer).await {
                Ok(Ok(())) => sleep(STANDS_STILL).await,
                Ok(Err(_)) => return ServerError::runtime_ended(),
                Err(_) => return Own::RuntimeStalled.into(),
            }
        }
    }
}
