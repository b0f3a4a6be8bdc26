//! Locks that are kept taken after their release.

use super::*;
use crate::config::millis;

/// A limit ends the hold, and not the time for which the lock stays taken at least.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_too_long_is_kept_for_its_least_time() {
    let mut bench = Bench::new();
    let mut terms = Terms {
        at_least: MINUTE,
        ..Terms::default()
    };
    terms.limits.lose = Some(MINUTE / 6);
    let (_, mut outcome) = bench.join_for(AcquireOptions { terms, ..tries() });
    bench.settle();
    let hold = held(&mut outcome);
    tokio::time::advance(MINUTE / 6).await;
    assert_eq!(hold.lost_reason(), Some(LostReason::HeldTooLong));
    bench.step(|step| step.let_go(&hold, None));
    bench.settle();
    let holder = &bench.document.as_ref().unwrap().holders[0];
    assert!(holder.is_kept());
    assert_eq!(holder.until, holder.since.plus_millis(60_000));
}

/// A report that arrives when the lease is over finds nothing to keep, and somebody else may have the lock since.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_lease_ended_before_its_release_was_not_kept() {
    for (least, swept) in [(10 * MINUTE, false), (10 * MINUTE, true), (MINUTE / 4, false)] {
        let mut bench = Bench::new();
        let hold = kept_for(&mut bench, Duration::ZERO);
        // As of a job that is done once in that time.
        assert!(hold.keep(KeptUntil::AfterGrant(millis(least))));
        assert_eq!(hold.exit(), Remains::Nothing);
        let mut left = bench.let_go(&hold);
        let release = bench.next().unwrap();
        bench.failed(&release, Failure::Unavailable);
        tokio::time::advance(hold.lease.length + Duration::from_secs(1)).await;
        if swept {
            // Another client was granted the lock, and let it go.
            bench.document.as_mut().unwrap().holders.clear();
        }
        bench.settle();
        // A lock that was to be kept taken for less than the lease has been kept for that time.
        let expected = if least < MINUTE {
            wake::Left::Holder
        } else {
            wake::Left::Nowhere
        };
        assert_eq!(left.try_recv().unwrap().unwrap(), expected, "{least:?}, {swept}");
    }
}
