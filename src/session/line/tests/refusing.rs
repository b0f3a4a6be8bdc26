//! Requests that are refused: those for a lock that is used as another kind.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_name_in_use_as_something_else_is_refused_with_both_sides() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let before = bench.document.clone();
    let (_, mut outcome) = bench.join_as(Kind::Semaphore, 5, true);
    bench.settle();
    let error = outcome.try_recv().unwrap().unwrap_err().to_string();
    assert_eq!(error, "`x` is a mutex, and was requested as a semaphore of 5 permits");
    assert_eq!(bench.document, before);
}
