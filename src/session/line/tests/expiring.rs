//! Holds whose time is over here before it is over at the server.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Holds the lock for ten seconds, up to the hold's own end here. Returns the hold, which was let go.
async fn expired(bench: &mut Bench) -> Arc<Hold> {
    expired_after(bench, |_| {}).await
}

/// Does the same, after a change of the document half-way.
async fn expired_after(bench: &mut Bench, half_way: impl FnOnce(&mut Bench)) -> Arc<Hold> {
    let mut outcome = join(bench);
    bench.settle();
    let hold = held(&mut outcome);
    tokio::time::advance(5 * SECOND).await;
    half_way(bench);
    expire(bench, &hold).await;
    hold
}

fn join(bench: &mut Bench) -> Receiver {
    let mut terms = Terms::default();
    terms.set_fixed(10 * SECOND);
    bench.join_for(AcquireOptions { terms, ..tries() }).1
}

async fn expire(bench: &mut Bench, hold: &Hold) {
    tokio::time::sleep_until(hold.deadline()).await;
    assert_eq!(hold.lost_reason(), Some(LostReason::Elapsed));
    bench.step(|step| step.let_go(hold, None));
}

/// Another process gives the holder its whole time again.
fn renew(bench: &mut Bench) {
    let ids = vec![bench.document.as_ref().unwrap().holders[0].id.clone()];
    let now = bench.server_now();
    assert!(state::renew(bench.document.as_mut().unwrap(), "b.1", &ids, 60_000, now));
}

fn is_held(bench: &mut Bench) -> bool {
    let (_, mut tried) = bench.join(false);
    bench.settle();
    match tried.try_recv().unwrap() {
        Ok(hold) => {
            hold.exit();
            drop(bench.let_go(&hold));
            bench.settle();
            false
        }
        Err(AcquireError::Held { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_as_the_time_of_a_hold_ends_at_the_server() {
    let mut bench = Bench::new();
    let hold = expired(&mut bench).await;
    let until = bench.document.as_ref().unwrap().holders[0].until;
    let (_, mut waiting) = bench.join(true);
    bench.settle();
    waiting.try_recv().unwrap_err();
    while waiting.is_empty() {
        bench.pass().await;
        bench.settle();
    }
    assert!(held(&mut waiting).token > hold.token);
    let late = bench.server_now().since(until);
    assert!(bench.server_now() >= until && late < SECOND / 10, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_somebody_renewed_is_not_taken_out() {
    let mut bench = Bench::new();
    let hold = expired_after(&mut bench, renew).await;
    let is_there = |bench: &Bench| bench.ids_in_document() == [hold.id.as_str()];
    // For much longer than this client remembers it, and in spite of an event that comes late.
    for _ in 0..10 {
        assert!(is_held(&mut bench) && is_there(&bench));
        let (token, at) = (hold.granted_as, bench.server_now());
        if !bench.line.waitlist.is_unused() {
            bench.signalled(&hold.id, wake::Signal::Granted { token }, at);
            bench.settle();
        }
        tokio::time::advance(5 * SECOND).await;
        renew(&mut bench);
    }
    assert!(bench.line.waitlist.is_unused());
    tokio::time::advance(10 * SECOND).await;
    assert!(!is_held(&mut bench));
}

/// A request for its entry that is applied late has another grant, which nobody has.
#[tokio::test(start_paused = true)]
async fn another_grant_of_an_entry_whose_hold_is_over_is_taken_out() {
    let mut bench = Bench::new();
    let hold = expired(&mut bench).await;
    tokio::time::advance(2 * SECOND).await;
    bench.foreign(&foreign("late", &[], Some(&hold.id)), false);
    let holder = &bench.document.as_ref().unwrap().holders[0];
    assert!(holder.id == hold.id && holder.token > hold.granted_as);
    let (_, mut waiting) = bench.join(true);
    bench.settle();
    held(&mut waiting);
}

/// The answer to the first request was lost, or it is still on its way.
#[tokio::test(start_paused = true)]
async fn a_sweep_takes_out_what_a_late_request_has_put_in_and_spares_the_hold() {
    for renewed in [false, true] {
        let mut bench = Bench::new();
        let mut outcome = join(&mut bench);
        let request = bench.next().unwrap();
        bench.failed(&request, Failure::Unavailable);
        tokio::time::advance(SECOND / 10).await;
        bench.settle();
        let hold = held(&mut outcome);
        if renewed {
            tokio::time::advance(5 * SECOND).await;
            renew(&mut bench);
        }
        expire(&mut bench, &hold).await;
        let swept = Instant::now() + 3 * SECOND;
        tokio::time::advance(SECOND * 11 / 10).await;
        bench.apply(&request);
        let token = bench.document.as_ref().unwrap().holders[0].token;
        assert_eq!(token == hold.granted_as, renewed);
        while let Some(due) = bench.line.waitlist.due_at().filter(|due| *due < swept) {
            tokio::time::sleep_until(due).await;
            bench.settle();
        }
        assert_eq!(bench.ids_in_document().len(), usize::from(renewed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_over_is_remembered_for_as_long_as_the_server_may_have_it() {
    let mut bench = Bench::new();
    expired(&mut bench).await;
    assert!(!bench.line.waitlist.is_unused());
    let due = bench.line.waitlist.due_at().expect("it is forgotten then") - Instant::now();
    assert!(due > 10 * SECOND && due < 12 * SECOND, "{due:?}");
    tokio::time::advance(due).await;
    assert!(bench.next().is_none());
    assert!(bench.line.waitlist.is_unused());
    // A shutdown does not wait for that.
    let mut bench = Bench::new();
    expired(&mut bench).await;
    bench.step(|step| step.close());
    assert!(bench.line.waitlist.is_unused());
}

/// It shows the entry in the queue, where it was when the request was applied.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_older_than_the_grant_takes_nothing_out() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let mut terms = Terms::default();
    terms.set_fixed(10 * SECOND);
    let (_, mut outcome) = bench.join_for(AcquireOptions {
        patience: Patience::Wait,
        terms,
        ..tries()
    });
    bench.settle();
    bench.step(|step| step.doubt());
    let asks = bench.next().expect("it asks");
    let late = bench.apply(&asks);
    bench.foreign(&foreign("other.2", &["other-1"], None), true);
    let hold = held(&mut outcome);
    expire(&mut bench, &hold).await;
    bench.answered(&asks, &late);
    bench.settle();
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}
