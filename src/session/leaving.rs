//! The task that sees to the entries of one name that are to leave later: after a pause, or in a sweep because a request
//! for them may be applied late.
//!
//! The handles, the futures and the client may be gone by then, and with them the session, except for this task. One is
//! enough for each name: a lock can be taken thousands of times before the last sweep.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Lines, Session, line::Line};

/// Minimum pause between two looks at the entries of a name.
const LEAST: Duration = Duration::from_millis(1);

impl Session {
    /// Keeps the session until no entry of the name is to leave, unless another task does so.
    pub(super) async fn see_to_leaves(self: &Arc<Self>, name: &str) {
        let mut next = self.table().lines.begin_to_see_to(name);
        while let Some(at) = next {
            // Where the time has come and nothing could be sent, it is tried again a little later.
            let at = at.max(Instant::now() + LEAST);
            tokio::select! {
                biased;
                () = sleep_until(at) => self.feed(name, |_, _, _| {}),
                () = self.ended.cancelled() => return,
            }
            if !self.made_in.is_this() {
                // Nothing is fed in a fork, and so nothing leaves.
                return;
            }
            // Those that leave sooner since then are seen to by the heartbeat, as the session is still there.
            next = self.table().lines.go_on_seeing_to(name);
        }
    }
}

impl Lines {
    /// Returns when entries of the name have to leave, for the task that sees to them from now on; `None`: none have
    /// to, the task of an operation on its way does so after it, or another one does already.
    fn begin_to_see_to(&mut self, name: &str) -> Option<Instant> {
        let at = self.leaves_at(name)?;
        self.seen_to.insert(name.to_owned()).then_some(at)
    }

    /// Returns the same for the task that has seen to them so far.
    fn go_on_seeing_to(&mut self, name: &str) -> Option<Instant> {
        let at = self.leaves_at(name);
        if at.is_none() {
            self.seen_to.remove(name);
        }
        at
    }

    fn leaves_at(&self, name: &str) -> Option<Instant> {
        self.by_name.get(name).and_then(Line::leaves_at)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::{super::locks::LockSession, *};
    use crate::{
        client::LockClient,
        config::Settings,
        proofs::simulated::Link,
        store::{LockStore, MemoryStore, Store},
        waitlist::SWEEPS,
        wake_mode::WakeMode,
    };

    #[tokio::test(start_paused = true)]
    async fn one_task_sees_to_the_sweeps_of_a_name_however_often_it_is_taken() {
        let link = Link::new(Arc::new(MemoryStore::new()), 1);
        link.calm();
        let (config, store) = (Settings::default().validate().unwrap(), Store::Simulated(link.clone()));
        let session = Session::of(
            "0123456789abcdef".to_owned(),
            config,
            store,
            None,
            WakeMode::ChangeStream,
        );
        let weak = Arc::downgrade(&session);
        let locks = LockSession::over(session, LockStore::Simulated(link.clone()));
        let mutex = LockClient::new(locks).mutex("x");
        mutex.acquire().await.unwrap().release().await.unwrap();
        let before = weak.strong_count();

        link.kill_idle(1);
        mutex.acquire().await.unwrap().release().await.unwrap();
        let uncertain = Instant::now();
        for _ in 0..200 {
            mutex.acquire().await.unwrap().release().await.unwrap();
        }
        let sweeps: Duration = SWEEPS.iter().sum();
        assert!(uncertain.elapsed() < sweeps, "{:?}", uncertain.elapsed());
        // One sees to them, and an operation can just be ending.
        assert!(
            weak.strong_count() <= before + 2,
            "{} after {before}",
            weak.strong_count()
        );

        // It outlives the client, up to the last sweep and no longer.
        drop(mutex);
        sleep(sweeps.saturating_sub(uncertain.elapsed() + Duration::from_secs(1))).await;
        assert_eq!(weak.strong_count(), 1);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(weak.strong_count(), 0);
    }
}
