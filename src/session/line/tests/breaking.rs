//! Locks that are broken while requests for them are on their way.

use super::*;

/// The operation of another client that breaks the lock.
fn breaking(id: &str) -> Operation {
    Operation {
        evict: Evict::Everybody,
        ..foreign(id, &[], None)
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_broken_before_its_answer_arrives_is_none() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    let operation = bench.next().expect("it asks");
    let answer = bench.apply(&operation);
    bench.foreign(&breaking("other.1"), true);
    bench.answered(&operation, &answer);
    assert!(outcome.try_recv().is_err(), "the grant was broken");
    bench.settle();
    let hold = held(&mut outcome);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_after_its_grant_was_broken_leaves_no_ghost() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    // It asks once more, and the request takes its time.
    bench.step(|step| step.doubt());
    let operation = bench.next().expect("it asks");
    bench.foreign(&foreign("other.2", &["other-1"], None), true);
    let hold = held(&mut outcome);
    // The lock is broken, of which nothing is heard yet, and then the request puts the entry in again.
    bench.foreign(&breaking("other.3"), false);
    let answer = bench.apply(&operation);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
    bench.answered(&operation, &answer);
    assert!(hold.lost_reason().is_some(), "the grant was broken");
    bench.settle();
    assert!(bench.ids_in_document().is_empty(), "nobody has the second grant");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_comes_late_ends_no_later_grant() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    // It is handed the lock, which is broken, of neither of which it has heard when it asks again.
    bench.foreign(&foreign("other.2", &["other-1"], None), false);
    bench.foreign(&breaking("other.3"), false);
    let broken = bench.document.as_ref().expect("there is one").clone();
    bench.step(|step| step.doubt());
    bench.settle();
    let hold = held(&mut outcome);
    for (id, signal) in wake::signals(&broken.wake, "me") {
        bench.signalled(id, signal, broken.at);
    }
    assert_eq!(hold.lost_reason(), None, "another grant was broken");
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_answer_is_lost_after_its_grant_was_broken_leaves_no_ghost() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("other.1", &[], Some("other-1")), true);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.step(|step| step.doubt());
    let operation = bench.next().expect("it asks");
    bench.foreign(&foreign("other.2", &["other-1"], None), true);
    let hold = held(&mut outcome);
    bench.foreign(&breaking("other.3"), false);
    let broken = bench.document.as_ref().expect("there is one").clone();
    // The request puts the entry in again, and nobody is told.
    bench.apply(&operation);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
    for (id, signal) in wake::signals(&broken.wake, "me") {
        bench.signalled(id, signal, broken.at);
    }
    assert_eq!(hold.lost_reason(), Some(LostReason::Broken));
    bench.failed(&operation, Failure::Unavailable);
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.settle();
    assert!(bench.ids_in_document().is_empty(), "nobody has the second grant");
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
