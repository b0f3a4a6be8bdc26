//! Read holds that readers of one process share.

use super::*;
use crate::{hold_options::Terms, waitlist::handing_on::HANDED_ON_FOR};

const ALL: i64 = 1 << 30;

fn reader() -> AcquireOptions {
    AcquireOptions {
        used: (Kind::RwLock, ALL),
        patience: Patience::Wait,
        ..tries()
    }
}

/// Another client that comes to read or write.
fn other(id: &str, leave: &[&str], request: Option<(&str, i64)>) -> Operation {
    let mut operation = foreign(id, leave, request.map(|(id, _)| id));
    if let (Some(requests), Some((_, permits))) = (&mut operation.requests, request) {
        (requests.kind, requests.capacity) = (Kind::RwLock, ALL);
        requests.entries[0].permits = permits;
    }
    operation
}

impl Bench {
    fn acquire(&mut self, options: AcquireOptions) -> Receiver {
        let (_, outcome) = self.join_for(options);
        self.settle();
        outcome
    }

    fn read(&mut self) -> Arc<Hold> {
        held(&mut self.acquire(reader()))
    }

    /// Two readers, of whom the second may share its hold.
    fn readers(&mut self) -> (Arc<Hold>, Arc<Hold>) {
        let (first, second) = (self.read(), self.read());
        assert_eq!(self.ids_in_document(), [first.id.as_str(), second.id.as_str()]);
        (first, second)
    }

    /// Whether another reader gets in without the server.
    fn lets_in(&mut self) -> bool {
        let before = self.operations;
        let mut outcome = self.acquire(reader());
        let asked = self.operations > before;
        assert!(asked || held(&mut outcome).lost_reason().is_none());
        !asked
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_shares_as_well() {
    let mut bench = Bench::new();
    let (_, second) = bench.readers();
    let before = bench.operations;
    let mut tried = bench.acquire(AcquireOptions {
        patience: Patience::Try,
        ..reader()
    });
    assert_eq!((&held(&mut tried).id, bench.operations), (&second.id, before));
}

/// The writer is seen in either way: by a read of the document, or by an answer.
#[tokio::test(start_paused = true)]
async fn a_writer_of_another_client_whose_event_is_lost_ends_it_by_what_shows_it() {
    for by_reading in [true, false] {
        let mut bench = Bench::new();
        let (first, second) = bench.readers();
        bench.foreign(&other("b.1", &[], Some(("b-1", ALL))), false);
        if by_reading {
            let document = bench.document.clone().map(Ok);
            let entries = [second.id.clone()];
            bench.step(|step| step.verified(document.as_ref(), Some(Instant::now()), &entries));
        } else {
            bench.release(&first);
        }
        assert!(!bench.lets_in(), "by a reading: {by_reading}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_of_another_client_whose_event_is_lost_waits_for_the_time_at_most() {
    for (stream, most) in [
        (StreamState::Open, HANDED_ON_FOR),
        (StreamState::Unavailable, HANDED_ON_FOR / 10),
    ] {
        let mut bench = Bench::new();
        bench.readers();
        bench.stream = stream;
        bench.foreign(&other("b.1", &[], Some(("b-1", ALL))), false);
        tokio::time::advance(most - Duration::from_millis(1)).await;
        assert!(bench.lets_in());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!bench.lets_in());
    }
}

/// Released by its last handle, with the news of that still on the way to the line.
#[tokio::test(start_paused = true)]
async fn who_comes_between_a_release_and_its_news_gets_what_others_still_hold_or_nothing() {
    let mut bench = Bench::new();
    let (_, second) = bench.readers();
    assert_eq!(second.exit(), Remains::Nothing);
    assert!(!bench.lets_in(), "nobody has it any more");
    let mut bench = Bench::new();
    let (_, second) = bench.readers();
    let third = bench.read();
    assert_eq!(second.exit(), Remains::Nothing);
    assert!(bench.lets_in());
    assert_eq!(third.exit(), Remains::Nothing);
    for hold in [&second, &third] {
        bench.step(|step| step.let_go(hold, None));
    }
    bench.settle();
    assert_eq!(bench.ids_in_document().len(), 2, "the fourth has it");
}

#[tokio::test(start_paused = true)]
async fn a_lease_in_doubt_is_not_shared() {
    type Change = fn(&Hold);
    let changes: [Change; 5] = [
        |hold| hold.upkeep().sent(Instant::now(), Instant::now()),
        |hold| hold.upkeep().guarded_at = Some(Instant::now()),
        |hold| assert!(hold.upkeep().refused(Instant::now())),
        |hold| assert!(hold.keep(KeptUntil::AfterRelease(9))),
        |hold| assert!(hold.lose(LostReason::Released)),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut bench = Bench::new();
        let (_, second) = bench.readers();
        change(&second);
        assert!(!bench.lets_in(), "change {number}");
    }
    let mut bench = Bench::new();
    bench.readers();
    bench.line.waitlist.note_guarded();
    assert!(!bench.lets_in(), "a transaction may depend on it");
    let mut bench = Bench::new();
    bench.readers();
    bench.step(|step| step.doubt());
    assert!(!bench.lets_in(), "events may have been missed");
}

#[tokio::test(start_paused = true)]
async fn only_readers_that_are_alike_share() {
    let on = |set: fn(&mut Terms)| {
        let mut terms = Terms::default();
        set(&mut terms);
        AcquireOptions { terms, ..reader() }
    };
    let others = [
        (on(|terms| terms.set_lease(Duration::from_secs(20))), "another lease"),
        (on(|terms| terms.set_fixed(Duration::from_secs(30))), "fixed"),
        (on(|terms| terms.at_least = Duration::from_secs(9)), "kept"),
        (
            on(|terms| terms.limits.report = Some(Duration::from_secs(9))),
            "held for long",
        ),
        (
            on(|terms| terms.limits.lose = Some(Duration::from_secs(9))),
            "lost in time",
        ),
    ];
    for (options, what) in others {
        let mut bench = Bench::new();
        bench.readers();
        let before = bench.operations;
        bench.acquire(options);
        assert_eq!(bench.operations, before + 1, "{what}");
    }
    // One with a limit shares until its time is over.
    let mut bench = Bench::new();
    let limited = on(|terms| terms.limits.report = Some(Duration::from_millis(100)));
    for _ in 0..3 {
        bench.acquire(limited.clone());
    }
    assert_eq!(bench.operations, 2);
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.acquire(limited);
    assert_eq!(bench.operations, 3);
    // A re-entrant one has the very same hold, with a handle more.
    let mut bench = Bench::new();
    let (first, _) = bench.readers();
    let again = held(&mut bench.acquire(AcquireOptions {
        reentrant: true,
        ..reader()
    }));
    assert!(Arc::ptr_eq(&again, &first));
    // The permits of a semaphore are not alike: each has a holder in the document.
    let mut bench = Bench::new();
    for number in 1..=4 {
        let mut outcome = bench.join_as(Kind::Semaphore, 9, true).1;
        bench.settle();
        held(&mut outcome);
        assert_eq!(bench.operations, number);
    }
    let mut bench = Bench::new();
    bench.config.hands_on = false;
    let (_, second) = bench.readers();
    assert!(!bench.lets_in(), "switched off");
    let holder = &bench.document.as_ref().unwrap().holders[1];
    assert_eq!(holder.token, second.token.as_i64());
}

/// While the lease of the one is in doubt, the next goes through the server; and then there is a younger one.
#[tokio::test(start_paused = true)]
async fn of_two_holds_the_younger_is_shared_so_that_tokens_rise() {
    let mut bench = Bench::new();
    let (_, second) = bench.readers();
    second
        .upkeep()
        .sent(Instant::now(), Instant::now() + Duration::from_secs(1));
    let third = bench.read();
    assert_ne!(third.id, second.id);
    let later = second.deadline() + Duration::from_secs(1);
    second.upkeep().acknowledged(later, Instant::now());
    let fourth = bench.read();
    assert_eq!(fourth.id, third.id);
    assert!(fourth.token > third.token);
}

/// Answers that take longer than a hold may be shared for without a look at the document.
#[tokio::test(start_paused = true)]
async fn where_nobody_may_share_readers_do_not_ask_one_by_one() {
    for (stream, took) in [
        (StreamState::Unavailable, HANDED_ON_FOR / 10),
        (StreamState::Open, HANDED_ON_FOR),
    ] {
        let mut bench = Bench::new();
        bench.stream = stream;
        let mut outcomes: Vec<Receiver> = (0..50).map(|_| bench.join_for(reader()).1).collect();
        while let Some(operation) = bench.next() {
            let answer = bench.apply(&operation);
            tokio::time::advance(took).await;
            bench.answered(&operation, &answer);
        }
        let holds: Vec<_> = outcomes.iter_mut().map(held).collect();
        assert_eq!((holds.len(), bench.operations), (50, 2));
        // Of the next, one asks, and the others come with it where that was quick.
        let before = bench.operations;
        let mut outcomes: Vec<Receiver> = (0..50).map(|_| bench.join_for(reader()).1).collect();
        bench.settle();
        outcomes.iter_mut().for_each(|outcome| drop(held(outcome)));
        assert_eq!(bench.operations, before + 1);
    }
}

/// An entry that was granted before this answer may have readers of others between its token and the counter.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_range_is_not_known_is_not_shared() {
    let mut bench = Bench::new();
    let first = bench.read();
    let (_, mut second) = bench.join_for(reader());
    let lost = bench.next().unwrap();
    bench.apply(&lost);
    bench.foreign(&other("b.1", &[], Some(("b-1", 1))), false);
    bench.failed(&lost, Failure::Unavailable);
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.settle();
    let second = held(&mut second);
    assert!(second.token > first.token);
    assert!(!bench.lets_in());
    // A grant by an event takes no range at all.
    let mut bench = Bench::new();
    bench.foreign(&other("b.1", &[], Some(("b-1", ALL))), false);
    let mut waiting = bench.acquire(reader());
    bench.foreign(&other("b.2", &["b-1"], None), true);
    held(&mut waiting);
    assert!(!bench.lets_in());
}
