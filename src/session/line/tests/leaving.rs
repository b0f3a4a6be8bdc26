//! Releases and leaves, short ones and late ones.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_was_applied_late_is_swept_out() {
    for cancelled_early in [true, false] {
        let mut bench = Bench::new();
        let (key, outcome) = bench.join(true);
        let request = bench.next().unwrap();
        if cancelled_early {
            bench.step(|step| step.cancel(key));
            bench.failed(&request, Failure::Unavailable);
        } else {
            bench.failed(&request, Failure::Unavailable);
            bench.step(|step| step.cancel(key));
        }
        drop(outcome);
        tokio::time::advance(Duration::from_millis(100)).await;
        bench.settle();
        // The first leave came too early: only now the server gets round to the request.
        bench.apply(&request);
        assert_eq!(bench.ids_in_document().len(), 1);
        while !bench.line.waitlist.is_unused() {
            let due = bench.line.waitlist.due_at().expect("there is more to do");
            tokio::time::sleep_until(due).await;
            bench.settle();
        }
        assert_eq!(bench.ids_in_document().len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_answer_was_lost_is_a_release() {
    let (mut bench, hold) = Bench::holding();
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    bench.apply(&release);
    bench.failed(&release, Failure::Unavailable);
    left.try_recv().unwrap_err();
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
}

/// What is not there any more was taken out by an earlier try, or by an operator.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_repeated_after_the_lock_was_broken_is_none() {
    for (breaks, told) in [(0, Some(wake::Left::Holder)), (1, Some(wake::Left::Nowhere)), (2, None)] {
        let (mut bench, hold) = Bench::holding();
        let mut left = bench.let_go(&hold);
        let release = bench.next().unwrap();
        bench.failed(&release, Failure::Unavailable);
        if breaks == 0 {
            bench.apply(&release);
        }
        for broken in 0..breaks {
            let breaking = Operation {
                evict: Evict::Everybody,
                ..foreign(&format!("b.{broken}"), &[], None)
            };
            bench.foreign(&breaking, false);
            bench.foreign(&foreign(&format!("c.{broken}"), &[], Some("c-1")), false);
        }
        tokio::time::advance(Duration::from_millis(100)).await;
        bench.settle();
        // Where a later holder was put out too, the document does not show what became of this one.
        let left = left.try_recv().unwrap();
        assert_eq!(left.as_ref().ok(), told.as_ref(), "after {breaks} breaks");
        if let Err(error) = left {
            let why = "the answer to an earlier try was lost, and the lock does not show what became of it";
            assert_eq!(error.to_string(), why);
        }
    }
}

/// The short release is the one that hands over, of locks of many permits too.
#[tokio::test(start_paused = true)]
async fn a_release_of_a_permit_takes_for_granted_that_it_is_held() {
    let mut bench = Bench::new();
    let (_, mut first) = bench.join_as(Kind::Semaphore, 2, true);
    let (_, mut second) = bench.join_as(Kind::Semaphore, 2, true);
    bench.settle();
    let (first, second) = (held(&mut first), held(&mut second));
    let mut waits = foreign("b.1", &[], Some("b-1"));
    if let Some(requests) = &mut waits.requests {
        (requests.kind, requests.capacity) = (Kind::Semaphore, 2);
    }
    bench.foreign(&waits, false);

    let mut left = bench.let_go(&first);
    let release = bench.next().unwrap();
    assert!(release.expects == Expects::Holding);
    bench.answer(&release);
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert_eq!(bench.ids_in_document(), [second.id.as_str(), "b-1"]);

    // It was put out, and what it had has gone on to somebody else.
    bench.foreign(&foreign("b.2", &[&second.id], None), false);
    let mut left = bench.let_go(&second);
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Nowhere);
    assert_eq!(bench.ids_in_document(), ["b-1"]);
}

#[tokio::test(start_paused = true)]
async fn who_expects_to_be_alone_and_is_not_asks_in_full() {
    let (mut bench, hold) = Bench::holding();
    let mut left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    assert!(release.expects == Expects::Alone, "nobody else was seen a moment ago");
    // Somebody got in line in that moment.
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let answer = bench.apply(&release);
    assert!(wake::left(&answer.state.as_ref().unwrap().wake, &release.id).is_none());
    bench.answered(&release, &answer);
    left.try_recv().unwrap_err();
    bench.settle();
    assert_eq!(left.try_recv().unwrap().unwrap(), wake::Left::Holder);
    assert_eq!(
        bench.document.as_ref().unwrap().holders[0].id,
        "b-1",
        "it was handed over"
    );

    // The same for an acquire of a lock that was idle when it was last seen.
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    drop(bench.let_go(&held(&mut outcome)));
    bench.settle();
    let alone_at = bench.line.waitlist.alone_at();
    assert!(alone_at.is_some());
    bench.line = Line::new("x".to_owned(), alone_at, Duration::ZERO);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    assert!(request.expects == Expects::Alone);
    bench.answer(&request);
    bench.settle();
    outcome.try_recv().unwrap_err();
    assert_eq!(bench.document.as_ref().unwrap().queue.len(), 1, "it waits in line");
}
