//! Tries: whatever they find in line, only an answer to an operation that was sent after they came refuses them.

use super::*;
use crate::error::ServerError;

/// A try of so many permits of a semaphore.
fn permits(capacity: i64, permits: i64) -> AcquireOptions {
    AcquireOptions {
        used: (Kind::Semaphore, capacity),
        permits,
        ..tries()
    }
}

fn reader() -> AcquireOptions {
    AcquireOptions {
        used: (Kind::RwLock, 1 << 30),
        ..tries()
    }
}

/// The report to a try that was refused.
fn refused(outcome: &mut Receiver) -> Contention {
    match outcome.try_recv().expect("it was answered") {
        Err(AcquireError::Held { contention, .. }) => *contention,
        other => panic!("{other:?}"),
    }
}

/// Another client takes so many permits of a semaphore.
fn takes(id: &str, capacity: i64, permits: i64) -> Operation {
    let mut operation = foreign(&format!("{id}.op"), &[], Some(id));
    if let Some(requests) = &mut operation.requests {
        (requests.kind, requests.capacity) = (Kind::Semaphore, capacity);
        requests.entries[0].permits = permits;
    }
    operation
}

impl Bench {
    /// The first tries alone, and its request is on its way when the others come.
    fn all_try(&mut self, count: usize, options: &AcquireOptions) -> Vec<Receiver> {
        let mut outcomes = vec![self.join_for(options.clone()).1];
        let first = self.next().expect("it asks");
        outcomes.extend((1..count).map(|_| self.join_for(options.clone()).1));
        assert!(outcomes.iter_mut().all(|outcome| outcome.try_recv().is_err()));
        let answer = self.apply(&first);
        self.answered(&first, &answer);
        self.settle();
        outcomes
    }

    fn next_fails(&mut self, error: &ServerError) {
        let operation = self.next().expect("it asks");
        self.fails(&operation, error);
    }
}

#[tokio::test(start_paused = true)]
async fn tries_on_a_taken_lock_are_all_refused_by_two_answers_that_name_the_holder() {
    for options in [tries(), permits(3, 1), reader()] {
        let mut bench = Bench::new();
        let (kind, capacity) = options.used;
        let mut other = foreign("b.1", &[], Some("b-1"));
        if let Some(requests) = &mut other.requests {
            (requests.kind, requests.capacity) = (kind, capacity);
            requests.entries[0].permits = capacity;
        }
        bench.foreign(&other, false);
        let token = bench.document.as_ref().unwrap().token;
        for mut outcome in bench.all_try(50, &options) {
            let contention = refused(&mut outcome);
            assert_eq!((contention.holders.len(), contention.waiting_before), (1, 0));
            assert_eq!(contention.holders[0].token.as_i64(), token);
            assert_eq!(contention.age, Duration::ZERO);
        }
        assert_eq!(bench.operations, 2, "{kind:?}");
        assert_eq!(bench.ids_in_document(), ["b-1"]);
    }
}

/// A large one that does not fit is in nobody's way.
#[tokio::test(start_paused = true)]
async fn a_try_that_is_refused_keeps_no_other_out() {
    let mut bench = Bench::new();
    bench.foreign(&takes("b-1", 10, 6), false);
    let mut first = bench.join_for(permits(10, 1)).1;
    let request = bench.next().unwrap();
    let [mut large, mut small, mut too_large, mut last] =
        [5, 2, 2, 1].map(|wanted| bench.join_for(permits(10, wanted)).1);
    bench.answer(&request);
    assert!(large.try_recv().is_err(), "its request was sent before that came");
    bench.settle();
    assert_eq!(refused(&mut large).waiting_before, 0, "three are left");
    let permits = [&mut first, &mut small, &mut last].map(|outcome| held(outcome).permits());
    assert_eq!(permits, [1, 2, 1]);
    assert_eq!(refused(&mut too_large).holders.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_try_beside_a_waiter_that_finds_the_queue_full_is_answered() {
    let mut bench = Bench::new();
    for other in 0..=QUEUE_MOST {
        bench.foreign(&foreign(&format!("b.{other}"), &[], Some(&format!("b-{other}"))), false);
    }
    let (_, mut waiting) = bench.join(true);
    bench.settle();
    let (_, mut tried) = bench.join_for(tries());
    let before = bench.operations;
    bench.settle();
    assert_eq!(refused(&mut tried).waiting_before, QUEUE_MOST + 1);
    assert_eq!(bench.operations, before + 1);
    assert!(waiting.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn all_tries_in_line_end_with_the_outage_and_none_reads_it_as_a_taken_lock() {
    let cut = || error(Failure::Unavailable);
    let refused = || error(Failure::Refused);
    // The failures after which a try is told.
    for (failure, times) in [(cut(), 2), (refused(), 1)] {
        let mut bench = Bench::new();
        // Nobody has answered the first, and the others have not been asked for.
        let mut outcomes = vec![bench.join(false).1];
        outcomes.extend((0..9).map(|_| bench.join(false).1));
        let (_, mut waiting) = bench.join(true);
        for _ in 0..times {
            assert!(outcomes.iter_mut().all(|outcome| outcome.try_recv().is_err()));
            tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
            bench.next_fails(&failure);
        }
        for outcome in &mut outcomes {
            let ended = outcome.try_recv();
            assert!(
                matches!(ended, Ok(Err(AcquireError::Server(_)))),
                "{failure:?}: {ended:?}"
            );
        }
        assert!(
            waiting.try_recv().is_err(),
            "a waiter goes on, and its request is another"
        );
        tokio::time::sleep_until(bench.line.waitlist.due_at().unwrap()).await;
        bench.settle();
        held(&mut waiting);
        assert_eq!(bench.ids_in_document().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_wants_another_kind_is_told_so_by_the_answer_to_another() {
    let mut bench = Bench::new();
    let (_, mut first) = bench.join(false);
    let request = bench.next().unwrap();
    let (_, mut other) = bench.join_for(permits(5, 1));
    // The request was sent before it came.
    bench.answer(&request);
    let hold = held(&mut first);
    assert!(other.try_recv().is_err());
    bench.settle();
    let error = other.try_recv().unwrap().unwrap_err().to_string();
    assert_eq!(error, "`x` is a mutex, and was requested as a semaphore of 5 permits");
    // Where the first lets go meanwhile, it is free for it.
    let (_, mut other) = bench.join_for(permits(5, 1));
    let _left = bench.let_go(&hold);
    bench.settle();
    held(&mut other);
}

#[tokio::test(start_paused = true)]
async fn a_try_in_line_joins_a_hold_that_the_answer_grants_to_another() {
    let mut bench = Bench::new();
    let tries = AcquireOptions {
        patience: Patience::Try,
        ..reentrant()
    };
    let mut outcomes = bench.all_try(5, &tries);
    let holds: Vec<_> = outcomes.iter_mut().map(held).collect();
    assert!(holds.iter().all(|hold| Arc::ptr_eq(hold, &holds[0])));
    assert!(bench.operations <= 2);
}

/// The holder that its report names may be gone.
#[tokio::test(start_paused = true)]
async fn a_try_whose_time_is_over_before_its_answer_does_not_read_like_a_taken_lock() {
    let (mut bench, _waiting) = Bench::behind_another();
    let (key, _tried) = bench.join(false);
    let _request = bench.next().unwrap();
    tokio::time::advance(Duration::from_millis(50)).await;
    let (_, trouble) = bench.give_up(key);
    assert_eq!(
        trouble.unwrap().source.to_string(),
        "the server did not answer for 50ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_time_is_over_refuses_no_try_where_another_kind_was_asked_for() {
    let mut bench = Bench::new();
    bench.foreign(&takes("b-1", 2, 1), false);
    tokio::time::advance(Duration::from_secs(20)).await;
    bench.foreign(&takes("b-2", 2, 1), false);
    tokio::time::advance(Duration::from_secs(20)).await;
    let (_, mut other_kind) = bench.join(false);
    let (_, mut tried) = bench.join_for(permits(2, 1));
    bench.settle();
    assert!(other_kind.try_recv().unwrap().is_err());
    held(&mut tried);
}

/// Whatever another program has made of the document: each try is asked for a bounded number of times.
#[tokio::test(start_paused = true)]
async fn a_try_that_was_not_granted_is_refused_although_the_document_has_room() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    bench.foreign(&foreign("b.2", &["b-1"], None), false);
    let free = bench.document.clone();
    let (_, mut tried) = bench.join(false);
    let request = bench.next().unwrap();
    let answer = bench.apply(&request);
    bench.answered(&request, &Answer { state: free, ..answer });
    assert!(matches!(tried.try_recv(), Ok(Err(AcquireError::Held { .. }))));
}

fn waits(options: AcquireOptions) -> AcquireOptions {
    AcquireOptions {
        patience: Patience::Wait,
        ..options
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_overtakes_no_task_that_waits_because_the_lock_is_taken() {
    for asked_before in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&takes("b-1", 10, 6), false);
        let (_, mut waiting) = bench.join_for(waits(permits(10, 5)));
        if asked_before {
            bench.settle();
        }
        let (_, mut tried) = bench.join_for(permits(10, 1));
        bench.settle();
        assert_eq!(
            refused(&mut tried).waiting_before,
            1,
            "four permits are free, and another wants five"
        );
        bench.foreign(&takes("b-2", 10, 3), false);
        let (_, mut tried) = bench.join_for(permits(10, 1));
        bench.settle();
        assert_eq!(refused(&mut tried).waiting_before, 2);
        // Without the waiters it gets in.
        bench.foreign(&foreign("b.3", &["b-1"], None), true);
        held(&mut waiting);
        let (_, mut tried) = bench.join_for(permits(10, 1));
        bench.settle();
        held(&mut tried);
    }
}
