//! Operations that shared a command, whose documents were read after others had written.

use super::*;

/// A line that expects its lock to be free.
fn expecting() -> Bench {
    let (mut bench, hold) = Bench::holding();
    let _left = bench.let_go(&hold);
    bench.settle();
    bench
}

/// Ends an operation by a reading of the document as it is now.
fn read(bench: &mut Bench, operation: &Operation) {
    let now = Instant::now();
    let exchange = Exchange::new(now, now, None);
    match Answer::read_after(operation, bench.document.clone(), exchange) {
        Ok(answer) => bench.answered(operation, &answer),
        Err(error) => bench.fails(operation, &error),
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_a_later_reading_shows_is_a_grant() {
    let mut bench = expecting();
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    assert!(request.is_shareable(), "{request:?}");
    bench.apply(&request);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), true);
    read(&mut bench, &request);
    let hold = held(&mut outcome);
    let left = bench.let_go(&hold);
    bench.settle();
    assert_eq!(bench.ids_in_document(), ["b-1"]);
    assert_eq!(left.await.unwrap().unwrap(), wake::Left::Holder);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_not_there_asks_at_once_by_itself() {
    let mut bench = expecting();
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), true);
    bench.apply(&request);
    read(&mut bench, &request);
    let again = bench.next().expect("without a pause");
    assert!(!again.is_shareable() && again.id != request.id, "{again:?}");
    bench.answer(&again);
    assert_eq!(bench.ids_in_document().len(), 2);
    bench.give_up(key);
    bench.settle();
    assert_eq!(bench.ids_in_document(), ["b-1"]);
}

/// The next holder came before the reading.
#[tokio::test(start_paused = true)]
async fn a_release_that_the_reading_does_not_show_is_one_all_the_same() {
    let mut bench = expecting();
    let hold = bench.take();
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    assert!(release.is_shareable(), "{release:?}");
    bench.apply(&release);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), true);
    read(&mut bench, &release);
    left.try_recv().expect_err("it is not known yet");
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert_eq!(bench.ids_in_document(), ["b-1"]);
}

/// Its command ended before it.
#[tokio::test(start_paused = true)]
async fn a_release_that_was_not_done_is_asked_for_again() {
    let mut bench = expecting();
    let hold = bench.take();
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    read(&mut bench, &release);
    assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
    let again = bench.next().unwrap();
    assert!(!again.is_shareable(), "its own answer says why: {again:?}");
    bench.answer(&again);
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert!(bench.ids_in_document().is_empty());
}
