//! The one state of the claims of a session that want the same: whose turn it is, and when to ask the server again.
//!
//! Every insertion and every change of a document may be the one that a claim waits for. In a busy collection most are
//! not, and a try for each would cost the server more than the work itself. So the first event after a quiet time is
//! answered at once, and the following ones together, after pauses that grow. A scan goes through everything that
//! matches, and is made more seldom still. Whatever was in vain is followed by a rest of several times its duration.

use std::{
    any::TypeId,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::OwnedMutexGuard, time::Instant};

use crate::{
    backoff::{Backoff, LONGEST_PAUSE},
    store::Wanted,
};

/// Rest after work in vain, as a multiple of its duration: claims keep the server busy for a fifth of the time at most.
pub(super) const REST: u32 = 4;

/// Pauses between tries in vain. The longest is the time for which a freed document may go unnoticed in a busy
/// collection.
const TRIED: Backoff = Backoff::between(Duration::from_millis(1), Duration::from_millis(100));

/// Time for which a document that can't be claimed is passed over.
pub(super) const SELDOM: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(300));

/// Maximum number of filters, and of documents that can't be claimed, to remember. The `_id`s of these, of up to 8 KiB
/// each, are sent with every claim.
pub(super) const KNOWN_MOST: usize = 64;

/// What is wanted, and the state that all claims of it share.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) wanted: Wanted,
    /// The type as which the documents are read: claims of another type pass over other documents.
    pub(super) of: TypeId,
    /// The turn of the claim that found nothing free: the others wait behind it, first come, first served.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// The turn of a claim of many: at once, they would find the same documents, and be in each other's way.
    pub(super) many: tokio::sync::Mutex<()>,
    /// The turn of a scan: one at a time.
    scan: Arc<tokio::sync::Mutex<()>>,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    /// How long the server recently took for a claim.
    takes: Duration,
    tried: Backoff,
    try_at: Instant,
    scan_at: Instant,
    /// When the rest after the last scan ends.
    rested_at: Instant,
    /// When the first lease ends, as the last scan saw it; `None`: that failed, or there was none.
    free_at: Option<Instant>,
    /// Whether the last claim found something; `None`: it was not answered.
    found: Option<bool>,
}

impl Filter {
    pub(super) fn new(wanted: Wanted, of: TypeId) -> Self {
        let now = Instant::now();
        let pace = Pace {
            takes: Duration::ZERO,
            tried: TRIED,
            try_at: now,
            scan_at: now,
            rested_at: now,
            free_at: None,
            found: None,
        };
        Self {
            wanted,
            of,
            turn: tokio::sync::Mutex::default(),
            many: tokio::sync::Mutex::default(),
            scan: Arc::default(),
            pace: Mutex::new(pace),
        }
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether a claim found something; `None`: the server did not answer it.
    pub(super) fn note_answer(&self, found: Option<bool>) {
        self.pace().found = found;
    }

    /// Returns whether the last claim found something, if it was answered.
    pub(super) fn found(&self) -> Option<bool> {
        self.pace().found
    }

    /// Returns how long the server recently took for a claim.
    pub(super) fn takes(&self) -> Duration {
        self.pace().takes
    }

    /// Notes how long the server took for a claim. A quick one after slow ones may have found what it wanted early, so
    /// it halves the time only.
    pub(super) fn took(&self, took: Duration) {
        let mut pace = self.pace();
        pace.takes = took.max(pace.takes / 2);
    }

    /// Notes that a try found nothing, or that the server gave it up for lack of time. Returns when the next may begin.
    pub(super) fn tried_in_vain(&self, began: Instant) -> Instant {
        let (now, mut pace) = (Instant::now(), self.pace());
        if began >= pace.try_at + pace.tried.pause() {
            pace.tried = TRIED;
        }
        pace.try_at = now + pace.tried.failed().max((now - began) * REST);
        pace.try_at
    }

    /// Returns when to try again although no event came: when a lease ends, or at the next scan if the last one `is_old`
    /// by now; not before `polled` where no end is known.
    pub(super) fn again_at(&self, is_old: bool, polled: Instant) -> Instant {
        let pace = self.pace();
        let free_at = pace.free_at.filter(|free_at| *free_at > Instant::now());
        match free_at {
            Some(free_at) if !is_old => free_at,
            _ => free_at
                .into_iter()
                .fold(pace.scan_at.max(pace.rested_at).max(polled), Instant::min),
        }
    }

    /// Whether no claim has the turn or waits for it.
    pub(super) fn nobody_waits(&self) -> bool {
        self.turn.try_lock().is_ok()
    }

    /// Begins a scan, if one is due and none is under way. A claim that waits `rests` between its scans, as it would
    /// make one after every event where some document can't be claimed.
    pub(super) fn begin_scan(&self, rests: bool) -> Option<OwnedMutexGuard<()>> {
        let (now, pace) = (Instant::now(), self.pace());
        if now < pace.scan_at || (rests && now < pace.rested_at) {
            return None;
        }
        self.scan.clone().try_lock_owned().ok()
    }

    /// Notes the end of a scan. `Ok`: whether it has found a document that can't be claimed, and when to try again without
    /// an event. `Err`: whether the server may have worked on it.
    pub(super) fn scanned(&self, began: Instant, ended: Result<(bool, Instant), bool>) {
        let (now, mut pace) = (Instant::now(), self.pace());
        let rest = if ended == Err(false) {
            Duration::ZERO
        } else {
            (now - began) * REST
        };
        pace.free_at = ended.ok().map(|(_, free_at)| free_at);
        let pause = match ended {
            // It is made again for each try as long as it finds some.
            Ok((true, _)) => Duration::ZERO,
            // A lease that ends sooner than others may be noticed this much late.
            Ok((false, _)) | Err(_) => rest.max(LONGEST_PAUSE),
        };
        (pace.scan_at, pace.rested_at) = (now + pause, now + rest);
    }

    /// Makes a scan due, as a document can't be claimed; unless the last one failed.
    pub(super) fn ask_for_scan(&self) {
        let mut pace = self.pace();
        if pace.free_at.is_some() {
            pace.scan_at = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;
    use tokio::time::advance;

    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn wanting(n: i32) -> Wanted {
        Wanted {
            filter: doc! { "n": n },
            sort: None,
            attempts_most: None,
        }
    }

    /// Tries in vain for so long, and returns the pause after it.
    async fn tried(filter: &Filter, takes: Duration) -> Duration {
        let began = Instant::now();
        advance(takes).await;
        filter.tried_in_vain(began) - Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn events_in_quick_succession_are_answered_together() {
        let filter = Filter::new(wanting(1), TypeId::of::<()>());
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = tried(&filter, millis(1)).await;
            advance(pause).await;
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [4, 4, 4, 8, 16, 32, 64, 100, 100]);
        // The first after a quiet time is answered at once, and the next soon.
        advance(millis(250)).await;
        assert_eq!(tried(&filter, millis(1)).await, millis(4));
    }

    /// Ends a scan in this way, and returns how long the filter rests after it.
    async fn rest(filter: &Filter, takes: Duration, ended: Result<(bool, Instant), bool>) -> Duration {
        let (began, scanning) = (Instant::now(), filter.begin_scan(false).unwrap());
        advance(takes).await;
        filter.scanned(began, ended);
        drop(scanning);
        let rest = filter.pace().scan_at - Instant::now();
        if rest > Duration::ZERO {
            assert!(filter.begin_scan(false).is_none());
        }
        advance(rest).await;
        rest
    }

    #[tokio::test(start_paused = true)]
    async fn a_filter_rests_after_scans_that_fail_or_find_nothing() {
        let filter = Filter::new(wanting(1), TypeId::of::<()>());
        let free_at = Instant::now();
        let answered = |found_unfit| Ok((found_unfit, free_at));
        assert_eq!(rest(&filter, Duration::ZERO, Err(true)).await, LONGEST_PAUSE);
        assert_eq!(rest(&filter, millis(30_000), Err(true)).await, millis(120_000));
        // As in a fail-over, in which finding a server takes long: it made no server busy.
        assert_eq!(rest(&filter, millis(30_000), Err(false)).await, millis(1_000));
        filter.ask_for_scan();
        assert_eq!(rest(&filter, millis(1), answered(false)).await, LONGEST_PAUSE);
        assert_eq!(rest(&filter, millis(500), answered(false)).await, millis(2_000));
        assert_eq!(
            rest(&filter, millis(500), answered(true)).await,
            Duration::ZERO,
            "it found some"
        );
        assert!(
            filter.begin_scan(true).is_none(),
            "a claim that waits rests all the same"
        );
        advance(millis(2_000)).await;
        assert!(filter.begin_scan(true).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_tries_are_made_seldom() {
        let filter = Filter::new(wanting(1), TypeId::of::<()>());
        for _ in 0..5 {
            let pause = tried(&filter, millis(500)).await;
            assert_eq!(pause, millis(2_000));
            advance(pause).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_slow_claims_is_known_until_they_are_quick_again() {
        let filter = Filter::new(wanting(1), TypeId::of::<()>());
        let known = [3_000, 10, 10, 1_000, 1].map(|took| {
            filter.took(millis(took));
            filter.takes().as_millis()
        });
        assert_eq!(known, [3_000, 1_500, 750, 1_000, 500]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_waits_for_the_first_end_of_a_lease_and_an_old_scan_is_made_anew() {
        let filter = Filter::new(wanting(1), TypeId::of::<()>());
        let (now, polled) = (Instant::now(), Instant::now() + millis(20));
        assert_eq!(filter.again_at(true, polled), polled);
        let free_at = now + millis(5_000);
        filter.scanned(now, Ok((false, free_at)));
        assert_eq!(filter.again_at(false, polled), free_at);
        assert_eq!(filter.again_at(true, polled), now + LONGEST_PAUSE);
        advance(millis(6_000)).await;
        let polled = Instant::now() + millis(20);
        assert_eq!(filter.again_at(true, polled), polled, "that lease was renewed");
    }
}
