//! Locks that are kept taken after their release.

use super::*;
use crate::config::millis;

#[tokio::test(start_paused = true)]
async fn a_release_that_keeps_the_lock_does_so_once_however_often_it_is_sent() {
    let mut bench = Bench::new();
    let hold = kept_for(&mut bench, MINUTE);
    assert_eq!(hold.exit(), Remains::Nothing);
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    bench.apply(&release);
    let kept = bench.document.clone().unwrap().holders;
    assert_eq!(kept[0].released, Some(bench.server_now()));
    assert_eq!(kept[0].until, kept[0].since.plus_millis(60_000));
    // The answer is lost.
    bench.failed(&release, Failure::Unavailable);
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Kept);
    assert_eq!(bench.document.as_ref().unwrap().holders, kept);
    assert!(bench.line.waitlist.is_unused());
    // And a first one that was on its way meanwhile.
    bench.apply(&release);
    assert_eq!(bench.document.as_ref().unwrap().holders, kept);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_comes_late_opens_a_lock_that_is_kept() {
    let (mut bench, before) = Bench::holding();
    let hold = {
        let terms = Terms {
            at_least: MINUTE,
            ..Terms::default()
        };
        let (_, mut outcome) = bench.join_for(AcquireOptions {
            patience: Patience::Wait,
            terms,
            ..tries()
        });
        bench.settle();
        let _left = bench.let_go(&before);
        bench.settle();
        held(&mut outcome)
    };
    hold.exit();
    let _left = bench.let_go(&hold);
    bench.settle();
    let is_kept = |bench: &Bench| {
        let holders = &bench.document.as_ref().unwrap().holders;
        matches!(&holders[..], [holder] if holder.id == hold.id && holder.is_kept())
    };
    assert!(is_kept(&bench));
    // The event of its grant, of which this client knows nothing any more.
    let token = hold.token.as_i64();
    let at = bench.server_now();
    bench.signalled(&hold.id, wake::Signal::Granted { token }, at);
    bench.settle();
    assert!(is_kept(&bench));
    // An answer that shows it.
    let (_, mut tried) = bench.join(false);
    bench.settle();
    assert!(matches!(tried.try_recv(), Ok(Err(AcquireError::Held { .. }))));
    tokio::time::advance(Duration::from_secs(20)).await;
    bench.settle();
    assert!(is_kept(&bench));
    // A renewal.
    let ids = [hold.id.clone()];
    let now = bench.server_now();
    let renewed = state::renew(bench.document.as_mut().unwrap(), "me.99", &ids, 60_000, now);
    assert!(!renewed && is_kept(&bench));
    // In its time the next one gets it.
    tokio::time::advance(MINUTE).await;
    let (_, mut next) = bench.join(false);
    bench.settle();
    assert!(held(&mut next).token > hold.token);
}

/// Its holder died, hung, or did not reach the server.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_stays_taken_for_its_least_time() {
    let mut bench = Bench::new();
    let hold = kept_for(&mut bench, MINUTE);
    assert!(MINUTE > bench.config.lease);
    tokio::time::sleep_until(hold.deadline()).await;
    assert_eq!(hold.lost_reason(), Some(LostReason::Expired));
    bench.step(|step| step.let_go(&hold, None));
    assert!(bench.next().is_none());
    let holder = bench.document.as_ref().unwrap().holders[0].clone();
    assert_eq!(holder.until, holder.since.plus_millis(60_000));
    assert!(holder.is_live(bench.server_now()) && !holder.is_kept());
}

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

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_that_the_lock_is_kept_for_another_time() {
    let (mut bench, mut waiting) = Bench::behind_another();
    let in_line = bench.line.waitlist.due_at().unwrap() - Instant::now();
    assert!(in_line > Duration::from_secs(10), "{in_line:?}");
    let token = bench.document.as_ref().unwrap().token;
    let kept = vec![Kept {
        id: "b-1".to_owned(),
        token,
        until: KeptUntil::AfterRelease(3_000),
    }];
    let released = Operation {
        kept,
        ..foreign("b.2", &["b-1"], None)
    };
    bench.foreign(&released, true);
    bench.settle();
    let in_line = bench.line.waitlist.due_at().unwrap() - Instant::now();
    assert!(in_line <= Duration::from_millis(3_100), "{in_line:?}");
    tokio::time::advance(in_line).await;
    bench.settle();
    held(&mut waiting);
}
