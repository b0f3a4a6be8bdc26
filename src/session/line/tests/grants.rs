//! Grants, and documents that contradict them.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_event_grants_and_the_claim_is_checked_soon() {
    let (mut bench, mut outcome) = Bench::behind_another();
    assert_eq!(bench.ids_in_document().len(), 2);
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let hold = held(&mut outcome);
    assert!(hold.safe_for() <= bench.config.claim_lease() - bench.config.skew_margin());
    assert_eq!(hold.renew_at(), Some(Instant::now() + hold.safe_for() / 16));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_not_believed() {
    let (mut bench, mut outcome) = Bench::behind_another();
    bench.foreign(&foreign("b.2", &["b-1"], None), false);
    let stale = bench.document.as_ref().unwrap().holders[0].token;
    // The process was frozen: the claim is over before the event is seen.
    tokio::time::advance(bench.config.claim_lease()).await;
    bench.announce();
    outcome.try_recv().unwrap_err();
    bench.settle();
    let hold = held(&mut outcome);
    assert!(hold.granted_as > stale, "with a token of its own");
    assert!(hold.safe_for() > Duration::from_secs(20));
}

/// While the server has too much to do, its clock is known to within seconds only. Whoever is granted the lock then asks
/// whether it is so; others that wait do not come before it.
#[tokio::test(start_paused = true)]
async fn a_grant_is_not_given_up_as_the_servers_clock_is_hardly_known() {
    for asks in [false, true] {
        let (mut bench, mut outcome) = Bench::behind_another();
        bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(4_500)).await;
        let slow = Exchange::new(sent, Instant::now(), Some(bench.server_now()));
        bench.clock = ServerClock::default();
        let _ = bench.clock.note(&slow, &bench.config);
        // A question that is on its way has an answer from before the grant.
        let question = asks.then(|| {
            bench.step(|step| step.doubt());
            let question = bench.next().unwrap();
            let state = state::apply(bench.document.as_ref(), &question, bench.server_now());
            (question, Answer { state, exchange: slow })
        });
        bench.foreign(&foreign("b.2", &["b-1"], None), true);
        outcome.try_recv().unwrap_err();
        let granted = bench.document.as_ref().unwrap().holders[0].token;
        if let Some((question, answer)) = question {
            bench.answered(&question, &answer);
        }
        bench.settle();
        let hold = held(&mut outcome);
        assert_eq!(hold.granted_as, granted, "{asks}");
        assert!(hold.safe_for() > Duration::from_secs(3), "{:?}", hold.safe_for());
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_not_stretched_by_a_server_clock_that_was_set_ahead() {
    let (mut bench, mut outcome) = Bench::behind_another();
    let ahead = ServerTime(bench.server_now().0 + 3_600_000);
    let id = bench.ids_in_document()[1].to_owned();
    let granted = wake::Signal::Granted { token: 1_000_000_002 };
    bench.signalled(&id, granted, ahead);
    assert!(held(&mut outcome).safe_for() <= bench.config.claim_lease());
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_the_document_no_longer_has_is_lost() {
    let (mut bench, hold) = Bench::holding();
    let id = hold.id.clone();
    bench.foreign(&foreign("b.1", &[&id], Some("b-1")), false);
    assert_eq!(hold.lost_reason(), None);
    // The next request of any kind reveals it.
    let _second = bench.join(true);
    bench.settle();
    assert_eq!(hold.lost_reason(), Some(LostReason::Overwritten));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_overtakes_the_answer_is_not_forgotten() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    let operation = bench.next().expect("it asks");
    let answer = bench.apply(&operation);
    // The event of the deletion arrives before the answer that the waiter is queued.
    bench.document = None;
    bench.step(|step| step.doubt());
    bench.answered(&operation, &answer);
    bench.settle();
    held(&mut outcome);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_hold_is_renewed_until_its_grant_is_confirmed_and_no_longer() {
    let mut bench = Bench::new();
    let mut terms = Terms::default();
    terms.set_fixed(Duration::from_secs(20));
    let fixed = AcquireOptions {
        patience: Patience::Wait,
        terms,
        ..tries()
    };
    let (_, mut outcome) = bench.join_for(fixed.clone());
    bench.settle();
    let at_once = held(&mut outcome);
    assert_eq!(at_once.renew_at(), None);
    let least = Duration::from_secs(20) - bench.config.skew_margin() - Duration::from_millis(20);
    assert_eq!(at_once.safe_for(), least);
    let _left = bench.let_go(&at_once);
    bench.settle();

    // Behind another it is woken, and holds on its claim.
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join_for(fixed);
    bench.settle();
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    let woken = held(&mut outcome);
    assert_eq!(woken.renew_at(), Some(Instant::now() + woken.safe_for() / 16));
    let sent = Instant::now();
    woken.upkeep().sent(sent, sent);
    woken.upkeep().failed(sent, true, Instant::now());
    assert_eq!(woken.renew_at(), Some(sent));
    let renewed = deadline::of_renewal(sent, woken.lease.length, &bench.config);
    woken.upkeep().acknowledged(renewed, sent);
    assert_eq!((woken.renew_at(), woken.safe_for()), (None, least));
    // One that was sent beside it fails, or is refused, and is not missed.
    woken.upkeep().failed(sent, true, Instant::now());
    assert!(!woken.upkeep().refused(Instant::now()));
    assert_eq!((woken.renew_at(), woken.status()), (None, LockStatus::Held));
    // The clock was set ahead: there is less time, and it is no less sure.
    woken.upkeep().shorten(Duration::from_secs(1), Instant::now());
    assert_eq!((woken.renew_at(), woken.status()), (None, LockStatus::Held));
}
