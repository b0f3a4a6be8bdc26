//! Waiters: their place in the queue, and when they ask.

use super::*;

#[tokio::test(start_paused = true)]
async fn where_it_goes_through_the_server_handing_a_lock_from_task_to_task_costs_one_operation() {
    let mut bench = Bench::new();
    bench.config.hands_on = false;
    let mut outcomes: Vec<_> = (0..50).map(|_| bench.join(true).1).collect();
    bench.settle();
    let mut last = 0;
    for outcome in &mut outcomes {
        let hold = held(outcome);
        assert!(hold.token.as_i64() > last, "first come, first served");
        last = hold.token.as_i64();
        assert!(bench.document.as_ref().unwrap().queue.len() <= 2);
        let mut left = bench.let_go(&hold);
        bench.settle();
        assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    }
    // One to begin with, one for the second in line, and then one for each hand-over.
    assert!(bench.operations <= 52, "{} operations", bench.operations);
    assert!(bench.line.waitlist.is_unused());
}

#[tokio::test(start_paused = true)]
async fn the_head_asks_when_the_holder_expires() {
    let (mut bench, mut outcome) = Bench::behind_another();
    let started = Instant::now();
    while outcome.try_recv().is_err() {
        tokio::time::sleep_until(bench.line.waitlist.due_at().expect("it asks again")).await;
        bench.settle();
    }
    let waited = started.elapsed();
    assert!(
        waited >= Duration::from_secs(30) && waited < Duration::from_millis(30_010),
        "{waited:?}"
    );
    // Three routine questions and the one at the expiry.
    assert!(bench.operations <= 5, "{} operations", bench.operations);
}

#[tokio::test(start_paused = true)]
async fn without_a_stream_the_head_asks_often_and_then_less_often() {
    let mut bench = Bench::new();
    bench.stream = StreamState::Unavailable;
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let _waiting = bench.join(true);
    bench.settle();
    let mut pauses = Vec::new();
    while bench.started.elapsed() < Duration::from_secs(20) {
        let due = bench.line.waitlist.due_at().unwrap();
        pauses.push(due - Instant::now());
        tokio::time::sleep_until(due).await;
        bench.settle();
    }
    // As the lock has just changed hands.
    assert_eq!(pauses.first(), Some(&Duration::from_millis(1)));
    assert!(pauses.last().unwrap() >= &Duration::from_millis(350));
    let shorter = pauses.windows(2).filter(|pair| pair[1] < pair[0]);
    assert!(shorter.count() <= 1, "its place is confirmed once: {pauses:?}");
    // A dozen more than where the pace is not known.
    let quick = pauses.iter().filter(|pause| **pause < Duration::from_millis(10));
    assert!((5..=20).contains(&quick.count()), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn beside_others_a_client_has_one_place_in_the_queue() {
    let mut bench = Bench::new();
    let mut outcomes: Vec<Receiver> = (0..5).map(|_| bench.join(true).1).collect();
    bench.settle();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    // The other is behind the second in line, and not known of before the answer to this; so the third follows it.
    let first = held(&mut outcomes[0]);
    let _left = bench.let_go(&first);
    bench.settle();
    let second = held(&mut outcomes[1]);
    let _left = bench.let_go(&second);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2);
    assert_eq!(bench.ids_in_document()[0], "b-1");
    bench.foreign(&foreign("b.2", &["b-1"], Some("b-2")), true);
    // The fourth gets in line while the third holds, behind the other, and nobody with it.
    let third = held(&mut outcomes[2]);
    bench.settle();
    let _left = bench.let_go(&third);
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2);
    assert_eq!(bench.ids_in_document()[0], "b-2");
}
