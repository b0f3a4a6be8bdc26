//! Requests that fail, or that nobody answers in time.

use super::*;
use crate::waitlist::answers::RACES;

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
