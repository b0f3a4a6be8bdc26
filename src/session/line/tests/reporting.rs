//! Reports of who holds the lock, for tasks that do not get it.

use super::*;

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_read_like_contention() {
    // Never answered: an error, and before there is one.
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    tokio::time::advance(Duration::from_millis(30)).await;
    bench.failed(&request, Failure::Unavailable);
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_none());
    assert_eq!(trouble.unwrap().source.to_string(), "as the test wants it");

    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    bench.next().unwrap();
    tokio::time::advance(Duration::from_millis(30)).await;
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_none());
    assert_eq!(
        trouble.unwrap().source.to_string(),
        "the server did not answer for 30ms"
    );

    // Given up, and then the driver says why.
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.fails(&request, &unanswered());
    bench.line.failed_late(&error(Failure::Unavailable));
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_none());
    assert_eq!(trouble.unwrap().source.to_string(), "as the test wants it");

    // Answered, and then no more.
    for fails in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let (key, _outcome) = bench.join(true);
        bench.settle();
        bench.step(|step| step.doubt());
        let again = bench.next().unwrap();
        tokio::time::advance(UNANSWERED).await;
        if fails {
            bench.failed(&again, Failure::Unavailable);
        }
        let (contention, trouble) = bench.give_up(key);
        assert_eq!(contention.unwrap().holders.len(), 1);
        assert!(trouble.is_some());
    }

    // Answered again: what was before is no trouble now.
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let (key, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.failed(&request, Failure::Unavailable);
    tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
    bench.settle();
    let (contention, trouble) = bench.give_up(key);
    assert!(contention.is_some() && trouble.is_none());
}

/// The answer to what an earlier task left behind comes while the next one waits, whose own request has no answer yet.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_free_when_the_server_last_answered_is_not_reported_as_taken() {
    for capacity in [1, 4] {
        let mut bench = Bench::new();
        if capacity > 1 {
            let mut others = foreign("b.1", &[], Some("b-1"));
            let requests = others.requests.as_mut().unwrap();
            (requests.kind, requests.capacity, requests.entries[0].permits) = (Kind::Semaphore, capacity, capacity - 1);
            bench.foreign(&others, false);
        }
        let (_, mut outcome) = bench.join_as(Kind::Semaphore, capacity, true);
        bench.settle();
        drop(bench.let_go(&held(&mut outcome)));
        let release = bench.next().unwrap();
        let (key, _outcome) = bench.join_as(Kind::Semaphore, capacity, true);
        let answer = bench.apply(&release);
        bench.answered(&release, &answer);
        bench.next().expect("it asks");
        tokio::time::advance(Duration::from_millis(30)).await;
        let (contention, trouble) = bench.give_up(key);
        assert!(contention.is_none(), "{contention:?}");
        assert_eq!(
            trouble.unwrap().source.to_string(),
            "the server did not answer for 30ms"
        );
    }
}
