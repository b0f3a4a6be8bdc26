//! Requests that fail, or that nobody answers in time.

use super::*;
use crate::waitlist::answers::{RACES, TRY_FOR};

#[tokio::test(start_paused = true)]
async fn a_try_is_told_of_an_outage_and_a_waiter_goes_on() {
    let mut bench = Bench::new();
    let (_, mut tried) = bench.join(false);
    for _ in 0..2 {
        tried.try_recv().unwrap_err();
        tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
        let request = bench.next().unwrap();
        bench.failed(&request, Failure::Unavailable);
    }
    assert!(matches!(tried.try_recv().unwrap(), Err(AcquireError::Server(_))));

    let (_, mut waiting) = bench.join(true);
    for _ in 0..20 {
        tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
        let request = bench.next().unwrap();
        bench.failed(&request, Failure::Unavailable);
        waiting.try_recv().unwrap_err();
    }
    tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
    bench.settle();
    held(&mut waiting);
}

#[tokio::test(start_paused = true)]
async fn a_try_outlives_one_cut_whether_it_was_applied_or_not() {
    for applied in [false, true] {
        let mut bench = Bench::new();
        let (_, mut tried) = bench.join(false);
        let request = bench.next().unwrap();
        if applied {
            bench.apply(&request);
        }
        bench.failed(&request, Failure::Unavailable);
        tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
        bench.settle();
        held(&mut tried);
        assert_eq!(bench.ids_in_document().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_and_an_endless_race_are_told() {
    for (kind, times) in [(Failure::Refused, 1), (Failure::Raced, RACES + 1)] {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        for _ in 0..times {
            outcome.try_recv().unwrap_err();
            let request = bench.next().unwrap();
            bench.failed(&request, kind);
        }
        assert!(matches!(outcome.try_recv().unwrap(), Err(AcquireError::Server(_))));
        assert!(bench.line.waitlist.is_unused());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_answered_is_asked_for_beside_at_once() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(false);
    for _ in 1..=3 {
        let operation = bench.next().expect("it asks");
        bench.fails(&operation, &unanswered());
    }
    // A try as well; but not for ever.
    assert!(outcome.try_recv().is_err());
    tokio::time::advance(TRY_FOR).await;
    let operation = bench.next().expect("it asks");
    bench.fails(&operation, &unanswered());
    assert!(matches!(outcome.try_recv(), Ok(Err(AcquireError::Server(_)))));
}

/// The first request is still on its way when the second is answered.
#[tokio::test(start_paused = true)]
async fn a_try_that_is_denied_takes_out_what_an_unanswered_one_may_put_in() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a-1", &[], Some("a-1")), false);
    let (_, mut outcome) = bench.join(false);
    let late = bench.next().expect("it asks");
    bench.fails(&late, &unanswered());
    bench.settle();
    assert!(matches!(outcome.try_recv(), Ok(Err(AcquireError::Held { .. }))));
    // The holder goes, and the first request comes.
    bench.foreign(&foreign("a-2", &["a-1"], None), false);
    bench.apply(&late);
    assert_eq!(bench.ids_in_document().len(), 1);
    for pause in SWEEPS {
        tokio::time::advance(pause).await;
        bench.settle();
    }
    assert!(bench.ids_in_document().is_empty());
    assert!(bench.line.waitlist.is_unused());
}

/// It comes after all sweeps, and its answer tells of it.
#[tokio::test(start_paused = true)]
async fn an_entry_that_a_late_answer_shows_is_taken_out() {
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let late = bench.next().expect("it asks");
    bench.fails(&late, &unanswered());
    bench.give_up(key);
    bench.settle();
    for pause in SWEEPS {
        tokio::time::advance(pause).await;
        bench.settle();
    }
    assert!(bench.line.waitlist.is_unused());
    let answer = bench.apply(&late);
    assert_eq!(bench.ids_in_document().len(), 1);
    let state = answer.state.expect("there is a document");
    bench.step(|step| step.applied_late(&late, &state));
    bench.settle();
    assert!(bench.ids_in_document().is_empty());
}
