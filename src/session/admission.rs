//! The number of operations on their way at once: adapted at run time to the number that gets most done.
//!
//! Each operation occupies a connection of the driver's pool, which is the user's, and some of the server's time. So a
//! session begins with few. While operations have to wait, it tries a few more, and keeps these only if more operations
//! get done for it; now and then it tries fewer, and keeps that if no fewer get done. This is hill climbing on the
//! throughput, as by the thread pool of .NET (Hellerstein, Morrison, Eilebrecht: Applying Control Theory in the Real
//! World, 2008), in its simplest form. An operation that is never answered ends it: the session has few again.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// Number of operations on their way at once to begin with, and the minimum: a burst of acquires and cancels leaves
/// room in the connection pool; the driver's has ten connections by default.
pub(super) const AT_ONCE_LEAST: usize = 6;

/// Minimum length of a measurement, in time and in operations: shorter ones are noise.
const MEASURED_FOR: Duration = Duration::from_millis(100);
const MEASURED_LEAST: u32 = 100;

/// Age at which a measurement is thrown away: too few operations came.
const MEASURED_FOR_MOST: Duration = Duration::from_secs(2);

/// Minimum rate with more at once, as a multiple of the rate before, for which the larger number is kept.
const WORTH_IT: f64 = 1.04;

/// Minimum rate with fewer at once for which the smaller number is kept.
const NO_WORSE: f64 = 0.98;

/// Pause after a trial that changed nothing.
const TRIAL_PAUSE: Duration = Duration::from_secs(5);

/// The slots of a session's operations.
#[derive(Debug)]
pub(super) struct Admission {
    slots: Semaphore,
    climb: Mutex<Climb>,
}

/// A slot for an operation that is on its way.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    admission: &'a Admission,
    permit: Option<SemaphorePermit<'a>>,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut climb = self.admission.climb();
        climb.on_their_way -= 1;
        climb.left(Instant::now());
        if climb.on_their_way + climb.free >= climb.limit {
            // The limit has fallen meanwhile.
            if let Some(permit) = self.permit.take() {
                permit.forget();
            }
        } else {
            climb.free += 1;
        }
        let more = climb.limit.saturating_sub(climb.on_their_way + climb.free);
        climb.free += more;
        // Under the mutex, so that the count is never behind the slots.
        self.admission.slots.add_permits(more);
    }
}

impl Admission {
    /// Creates slots, never more than `most`.
    pub(super) fn new(most: usize) -> Self {
        let climb = Climb::new(most);
        Self {
            slots: Semaphore::new(climb.limit),
            climb: Mutex::new(climb),
        }
    }

    /// Waits for a slot. Cancel safe.
    pub(super) async fn enter(&self) -> Option<Admitted<'_>> {
        if self.slots.available_permits() == 0 {
            self.climb().waited += 1;
        }
        // The semaphore is never closed.
        let permit = self.slots.acquire().await.ok()?;
        let mut climb = self.climb();
        climb.free = climb.free.saturating_sub(1);
        climb.on_their_way += 1;
        drop(climb);
        Some(Admitted {
            admission: self,
            permit: Some(permit),
        })
    }

    /// Whether all slots are taken.
    pub(super) fn is_full(&self) -> bool {
        self.slots.available_permits() == 0
    }

    /// Whether no slot is taken.
    pub(super) fn is_quiet(&self) -> bool {
        self.climb().on_their_way == 0
    }

    /// Notes that an operation was not answered.
    pub(super) fn unanswered(&self) {
        self.climb().begin_anew();
    }

    fn climb(&self) -> MutexGuard<'_, Climb> {
        // Only counters are changed under it.
        self.climb.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The search for the best number.
#[derive(Debug)]
struct Climb {
    most: usize,
    limit: usize,
    on_their_way: usize,
    /// Slots that are free.
    free: usize,
    /// Operations that have had to wait in this measurement, and that are done.
    waited: u32,
    done: u32,
    measured_since: Option<Instant>,
    trial: Option<Trial>,
    /// The next trial is of fewer at once.
    fewer_next: bool,
    paused_until: Option<Instant>,
}

/// A try of another number, from one measurement to the next.
#[derive(Clone, Copy, Debug)]
struct Trial {
    limit_before: usize,
    rate_before: f64,
}

impl Climb {
    fn new(most: usize) -> Self {
        let limit = AT_ONCE_LEAST.min(most);
        Self {
            most,
            limit,
            on_their_way: 0,
            free: limit,
            waited: 0,
            done: 0,
            measured_since: None,
            trial: None,
            fewer_next: false,
            paused_until: None,
        }
    }

    fn begin_anew(&mut self) {
        self.limit = AT_ONCE_LEAST.min(self.most);
        self.trial = None;
        self.paused_until = None;
        self.measure_anew();
    }

    fn measure_anew(&mut self) {
        (self.waited, self.done, self.measured_since) = (0, 0, None);
    }

    /// Notes that an operation has ended.
    fn left(&mut self, now: Instant) {
        let since = *self.measured_since.get_or_insert(now);
        self.done += 1;
        let elapsed = now.saturating_duration_since(since);
        if elapsed > MEASURED_FOR_MOST {
            self.measure_anew();
            return;
        }
        if elapsed < MEASURED_FOR || self.done < MEASURED_LEAST {
            return;
        }
        // Without a queue the number at once does not decide how many get done.
        let crowded = self.waited >= self.done / 2;
        let rate = f64::from(self.done) / elapsed.as_secs_f64();
        self.measure_anew();
        if crowded {
            self.measured(rate, now);
        } else if let Some(trial) = self.trial.take() {
            self.limit = trial.limit_before;
        }
    }

    /// Notes a measurement, and begins or ends a trial.
    fn measured(&mut self, rate: f64, now: Instant) {
        if let Some(trial) = self.trial.take() {
            let more = self.limit > trial.limit_before;
            let wanted = if more { WORTH_IT } else { NO_WORSE };
            if rate < trial.rate_before * wanted {
                self.limit = trial.limit_before;
                self.fewer_next = more;
                self.paused_until = Some(now + TRIAL_PAUSE);
                return;
            }
        } else if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        // A success is followed up in the same direction.
        let step = (self.limit / 4).max(1);
        let next = if self.fewer_next {
            self.limit.saturating_sub(step).max(AT_ONCE_LEAST.min(self.most))
        } else {
            (self.limit + step).min(self.most)
        };
        if next == self.limit {
            self.fewer_next = !self.fewer_next;
            self.paused_until = Some(now + TRIAL_PAUSE);
            return;
        }
        self.trial = Some(Trial {
            limit_before: self.limit,
            rate_before: rate,
        });
        self.limit = next;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    /// Runs many tasks for a while against a server that does `best` operations at once without loss, and returns the
    /// limit then.
    async fn climbed(admission: &Arc<Admission>, best: u32, tasks: usize, lasts: Duration) -> usize {
        let end = Instant::now() + lasts;
        let working = (0..tasks).map(|_| {
            let admission = admission.clone();
            async move {
                while Instant::now() < end {
                    let _slot = admission.enter().await;
                    let at_once = u32::try_from(admission.climb().on_their_way).unwrap();
                    // Above that, each takes as much longer.
                    sleep(Duration::from_millis(5) * at_once.max(best) / best).await;
                }
            }
        });
        join_all(working).await;
        admission.climb().limit
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_go_at_once_as_do_good() {
        // Several trials after it got there: they are five seconds apart.
        let long = Duration::from_secs(16);
        for (best, most, expected) in [(6, 64, 6..=8), (12, 64, 10..=15), (40, 64, 30..=46), (40, 16, 16..=16)] {
            let admission = Arc::new(Admission::new(most));
            let limit = climbed(&admission, best, 100, long).await;
            assert!(expected.contains(&limit), "{limit} at once where {best} are best");
            assert!(admission.is_quiet());
            // All slots are there again, and no more.
            assert_eq!(admission.slots.available_permits(), limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_tasks_leave_it_at_few() {
        let admission = Arc::new(Admission::new(64));
        assert_eq!(climbed(&admission, 40, 5, Duration::from_secs(60)).await, AT_ONCE_LEAST);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unanswered_operation_makes_it_few_again() {
        let admission = Arc::new(Admission::new(64));
        assert!(climbed(&admission, 40, 100, Duration::from_secs(10)).await > 20);
        admission.unanswered();
        let taken = join_all((0..AT_ONCE_LEAST).map(|_| admission.enter())).await;
        drop(taken);
        assert_eq!(admission.climb().limit, AT_ONCE_LEAST);
        // Free slots above that go with the next operations.
        let limit = climbed(&admission, 6, 100, Duration::from_secs(1)).await;
        assert!(limit <= 8, "{limit}");
        assert_eq!(admission.slots.available_permits(), limit);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_takes_no_slot_along() {
        let admission = Admission::new(1);
        let taken = admission.enter().await;
        for _ in 0..3 {
            let waiting = tokio::time::timeout(Duration::from_millis(10), admission.enter());
            assert!(waiting.await.is_err());
        }
        assert!(admission.is_full());
        drop(taken);
        assert!(admission.enter().await.is_some());
        assert!(admission.is_quiet());
    }
}
