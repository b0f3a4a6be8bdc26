//! Events, and what they are taken for when they come late or name entries that no task wants.

use super::*;

fn signalled(bench: &mut Bench, entry: &str, signal: wake::Signal) -> Vec<Effect> {
    let at = bench.server_now();
    bench
        .feed(|line, context| line.waitlist.step(context).signalled(entry, signal, at))
        .1
}

#[tokio::test(start_paused = true)]
async fn an_event_grants_a_lease_that_nobody_renews_in_full_only_if_the_claim_lease_is_as_long() {
    for (claim, renewed) in [(5, true), (10, false)] {
        let mut bench = Bench::new();
        bench.config.claim_lease = Some(Duration::from_secs(claim));
        bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
        let mut terms = Terms::default();
        terms.set_fixed(Duration::from_secs(10));
        let (_, _outcome) = bench.join_for(AcquireOptions {
            terms,
            patience: Patience::Wait,
            ..tries()
        });
        bench.settle();
        let (entry, token) = (bench.line.waitlist.waiting().front().unwrap().entry.clone(), i64::MAX);
        let effects = signalled(&mut bench, &entry, wake::Signal::Granted { token });
        let [Effect::Granted { hold, .. }] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(hold.renew_at().is_some(), renewed, "the rest of the lease is asked for");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_of_which_an_event_tells_late_is_renewed_while_there_is_time() {
    let (mut bench, mut outcome) = Bench::behind_another();
    bench.foreign(&foreign("b.2", &["b-1"], None), false);
    let usable = bench.config.claim_lease() - bench.config.skew_margin();
    tokio::time::advance(usable - Duration::from_millis(300)).await;
    bench.announce();
    let hold = held(&mut outcome);
    let left = hold.safe_for();
    assert!(!left.is_zero() && left <= Duration::from_millis(300), "{left:?}");
    assert!(hold.renew_at().unwrap() <= Instant::now() + left / 2);
}

/// Nobody confirms the entry of the second while the first is the head, and it expires.
#[tokio::test(start_paused = true)]
async fn who_got_in_line_behind_the_head_asks_once_an_event_grants_to_the_head() {
    let semaphore = |permits| AcquireOptions {
        used: (Kind::Semaphore, 4),
        by: CapacityIs::Offered,
        permits,
        patience: Patience::Wait,
        ..tries()
    };
    let mut bench = Bench::new();
    let mut other = foreign("b.1", &[], Some("b-1"));
    if let Some(requests) = &mut other.requests {
        (requests.kind, requests.capacity) = (Kind::Semaphore, 4);
        (requests.entries[0].permits, requests.entries[0].lease) = (3, 600_000);
    }
    bench.foreign(&other, false);
    let (_, mut first) = bench.join_for(semaphore(1));
    bench.settle();
    let first = held(&mut first);
    let (_, mut large) = bench.join_for(semaphore(2));
    bench.settle();
    let (_, mut small) = bench.join_for(semaphore(1));
    bench.settle();
    let _left = bench.let_go(&first);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 3, "both are in line");
    let begun = Instant::now();
    while begun.elapsed() < bench.config.lease {
        bench.pass().await;
        bench.settle();
    }
    bench.foreign(&foreign("b.2", &["b-1"], None), true);
    held(&mut large);
    small.try_recv().unwrap_err();
    bench.settle();
    held(&mut small);
}

/// As after a break: no grant has come since, so the token is still that of the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_that_an_answer_of_the_same_token_does_not_show_is_lost() {
    let (mut bench, hold) = Bench::holding();
    let (_, _waits) = bench.join(true);
    // The short form finds that the lock is not free.
    let short = bench.next().unwrap();
    bench.answer(&short);
    let request = bench.next().unwrap();
    let mut answer = bench.apply(&request);
    let state = answer.state.as_mut().unwrap();
    assert_eq!(state.token, hold.token.as_i64());
    state.holders.clear();
    bench.answered(&request, &answer);
    assert!(hold.lost_reason().is_some());
}

/// An answer can be older than a hold of which an event told meanwhile. A reading is asked for after the grant: a smaller
/// token in it is that of an earlier copy, which somebody has written over the lock.
#[tokio::test(start_paused = true)]
async fn an_earlier_token_ends_a_hold_where_it_is_read_and_not_where_it_is_answered() {
    for by_reading in [false, true] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
        let (_, mut outcome) = bench.join(true);
        bench.settle();
        bench.step(|step| step.doubt());
        let asks = bench.next().unwrap();
        let earlier = bench.apply(&asks);
        bench.foreign(&foreign("a.2", &["a-1"], None), true);
        let hold = held(&mut outcome);
        let state = earlier.state.clone().unwrap();
        assert!(state.token < hold.token.as_i64());
        if by_reading {
            let entries = [hold.id.clone()];
            bench.step(|step| step.verified(Some(&Ok(state)), Some(Instant::now()), &entries));
        } else {
            bench.answered(&asks, &earlier);
        }
        let lost = by_reading.then_some(LostReason::Overwritten);
        assert_eq!(hold.lost_reason(), lost, "by a reading: {by_reading}");
    }
}

/// The operation of another client that breaks the lock.
fn breaking(id: &str) -> Operation {
    Operation {
        evict: Evict::Everybody,
        ..foreign(id, &[], None)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_late_leaves_no_ghost_however_the_loss_before_it_was_learned() {
    type Learn = fn(&mut Bench, &Hold);
    let cases: [(&str, Learn); 4] = [
        ("an event", |bench, _| bench.announce()),
        ("a reading", |bench, hold| {
            let document = bench.document.clone().map(Ok);
            let entries = [hold.id.clone()];
            bench.step(|step| step.verified(document.as_ref(), Some(Instant::now()), &entries));
        }),
        ("a deletion", |bench, hold| {
            bench.document = None;
            let entries = [hold.id.clone()];
            bench.step(|step| step.verified(None, None, &entries));
        }),
        ("an answer", |bench, _| {
            let (_, mut other) = bench.join(false);
            bench.settle();
            let _left = bench.let_go(&held(&mut other));
        }),
    ];
    for (by, learn) in cases {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        let request = bench.next().unwrap();
        bench.fails(&request, &unanswered());
        bench.settle();
        let hold = held(&mut outcome);
        bench.foreign(&breaking("other.1"), false);
        learn(&mut bench, &hold);
        assert!(hold.lost_reason().is_some(), "by {by}");
        bench.settle();
        bench.apply(&request);
        assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
        while !bench.line.waitlist.is_unused() {
            bench.pass().await;
            bench.settle();
        }
        assert!(bench.ids_in_document().is_empty(), "by {by}");
    }
}

/// A waiter behind another client, whose entry the document shows; and the lock's token then.
fn queued() -> (Bench, String, i64) {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, _outcome) = bench.join(true);
    bench.settle();
    let entry = bench.line.waitlist.waiting().front().unwrap().entry.clone();
    let token = bench.document.as_ref().unwrap().token;
    (bench, entry, token)
}

#[tokio::test(start_paused = true)]
async fn an_event_of_an_eviction_before_the_waiter_got_in_line_is_not_about_it() {
    for (later, put_out) in [(0, false), (1, true)] {
        let (mut bench, entry, token) = queued();
        signalled(&mut bench, &entry, wake::Signal::Evicted { token: token + later });
        assert_eq!(bench.line.waitlist.waiting().front().unwrap().entry != entry, put_out);
    }
}
