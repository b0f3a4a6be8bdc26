//! Holds that are handed on inside the process.

use super::*;
use crate::{
    hold_options::Terms,
    waitlist::handing_on::{HANDED_ON_FOR, RANGE},
};

/// Waiters of which the first has a hold with a range of tokens, and the second the process's queue position.
fn handing_on(bench: &mut Bench, waiters: Vec<Receiver>) -> (Arc<Hold>, std::vec::IntoIter<Receiver>) {
    let mut waiters = waiters.into_iter();
    bench.settle();
    (held(&mut waiters.next().unwrap()), waiters)
}

fn waiters(bench: &mut Bench, count: usize) -> Vec<Receiver> {
    (0..count).map(|_| bench.join(true).1).collect()
}

fn counter(bench: &Bench) -> i64 {
    bench.document.as_ref().unwrap().token
}

/// The answer that shows the grant is older than the event.
#[tokio::test(start_paused = true)]
async fn another_client_whose_event_comes_before_the_answer_ends_the_handing_on() {
    let mut bench = Bench::new();
    let mut tasks = waiters(&mut bench, 10).into_iter();
    let operation = bench.next().unwrap();
    let answer = bench.apply(&operation);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), true);
    bench.answered(&operation, &answer);
    bench.settle();
    let first = held(&mut tasks.next().unwrap());
    assert!(!bench.release(&first));
}

/// The waiter is seen in either way: by a read of the document, or by the answer to a request of the next in line.
#[tokio::test(start_paused = true)]
async fn another_client_whose_event_is_lost_is_seen_in_whatever_shows_it() {
    for by_reading in [true, false] {
        let mut bench = Bench::new();
        let mut tasks = waiters(&mut bench, 10).into_iter();
        let operation = bench.next().unwrap();
        bench.answer(&operation);
        if by_reading {
            bench.settle();
        }
        let first = held(&mut tasks.next().unwrap());
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        if by_reading {
            let document = bench.document.clone().map(Ok);
            let entries = [first.id.clone()];
            bench.step(|step| step.verified(document.as_ref(), Some(Instant::now()), &entries));
        } else {
            bench.settle();
        }
        assert!(!bench.release(&first), "by a reading: {by_reading}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_client_whose_event_is_lost_waits_for_the_range_or_the_time() {
    for (stream, most) in [
        (StreamState::Open, HANDED_ON_FOR),
        (StreamState::Unavailable, HANDED_ON_FOR / 10),
    ] {
        let mut bench = Bench::new();
        let tasks = waiters(&mut bench, 200);
        let (mut hold, mut tasks) = handing_on(&mut bench, tasks);
        bench.stream = stream;
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let granted = bench.operations;
        let mut handed_on = 0;
        while bench.release(&hold) {
            hold = held(&mut tasks.next().unwrap());
            handed_on += 1;
        }
        assert_eq!((handed_on, bench.operations), (RANGE - 1, granted + 1));

        let mut bench = Bench::new();
        let tasks = waiters(&mut bench, 20);
        let (hold, mut tasks) = handing_on(&mut bench, tasks);
        bench.stream = stream;
        tokio::time::advance(most - Duration::from_millis(1)).await;
        assert!(bench.release(&hold));
        let hold = held(&mut tasks.next().unwrap());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!bench.release(&hold));
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_may_have_been_missed_end_the_handing_on() {
    let mut bench = Bench::new();
    let tasks = waiters(&mut bench, 10);
    let (hold, _tasks) = handing_on(&mut bench, tasks);
    bench.step(|step| step.doubt());
    assert!(!bench.release(&hold));
}

#[tokio::test(start_paused = true)]
async fn the_next_task_inherits_the_deadline_and_no_more() {
    let mut bench = Bench::new();
    let tasks = waiters(&mut bench, 10);
    let (second, mut tasks) = handing_on(&mut bench, tasks);
    tokio::time::advance(Duration::from_millis(400)).await;
    let inherited = (second.deadline(), second.renew_at());
    assert!(bench.release(&second));
    let third = held(&mut tasks.next().unwrap());
    assert_eq!((third.deadline(), third.renew_at()), inherited);
    // A process that stood still past the deadline sees the loss with its first look, and hands nothing on.
    tokio::time::advance(bench.config.lease).await;
    assert_eq!(third.exit(), Remains::Lost(LostReason::Expired));
    let ((), effects) = bench.feed(|line, context| line.waitlist.step(context).let_go(&third, None));
    assert!(effects.is_empty());
}

/// A renewal, a doubt or a timer can still have the handle of a task before.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_handed_on_is_let_go_of_by_nobody_but_its_present_task() {
    let mut bench = Bench::new();
    let tasks = waiters(&mut bench, 10);
    let (second, mut tasks) = handing_on(&mut bench, tasks);
    assert!(bench.release(&second));
    let third = held(&mut tasks.next().unwrap());
    assert!(!bench.line.waitlist.has(&second) && bench.line.waitlist.has(&third));
    let before = bench.operations;
    bench.step(|step| step.let_go(&second, None));
    bench.settle();
    assert_eq!((third.lost_reason(), bench.operations), (None, before));
    assert!(tasks.next().unwrap().try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_lease_in_doubt_and_a_lock_that_is_kept_go_through_the_server() {
    type Change = fn(&Hold);
    let changes: [Change; 5] = [
        |hold| hold.upkeep().sent(Instant::now(), Instant::now()),
        |hold| hold.upkeep().guarded_at = Some(Instant::now()),
        |hold| assert!(hold.upkeep().refused(Instant::now())),
        |hold| assert!(hold.keep(KeptUntil::AfterRelease(9))),
        |hold| hold.begin_deleting(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut bench = Bench::new();
        let tasks = waiters(&mut bench, 10);
        let (hold, _tasks) = handing_on(&mut bench, tasks);
        change(&hold);
        assert!(!bench.release(&hold), "change {number}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_is_alike_is_handed_on() {
    let plain = AcquireOptions {
        patience: Patience::Wait,
        ..tries()
    };
    let on = |set: fn(&mut Terms)| {
        let mut terms = Terms::default();
        set(&mut terms);
        AcquireOptions { terms, ..plain.clone() }
    };
    let others = [
        (on(|terms| terms.set_lease(Duration::from_secs(20))), "another lease"),
        (on(|terms| terms.set_fixed(Duration::from_secs(30))), "fixed"),
        (on(|terms| terms.at_least = Duration::from_secs(9)), "kept"),
    ];
    for (options, what) in others {
        let mut bench = Bench::new();
        let mut tasks = waiters(&mut bench, 2);
        bench.settle();
        for _ in 0..3 {
            tasks.push(bench.join_for(options.clone()).1);
        }
        let (hold, _tasks) = handing_on(&mut bench, tasks);
        assert!(!bench.release(&hold), "{what}");
    }
    // Other tasks may come to share it.
    let mut bench = Bench::new();
    let mut tasks = vec![bench.join_for(reentrant()).1];
    tasks.extend(waiters(&mut bench, 9));
    let (hold, _tasks) = handing_on(&mut bench, tasks);
    assert!(!bench.release(&hold), "re-entrant");
    for (kind, hands_on) in [
        (Kind::Mutex, true),
        (Kind::Semaphore, true),
        (Kind::RwLock, true),
        (Kind::Election, false),
        (Kind::Document, false),
    ] {
        let mut bench = Bench::new();
        let tasks = (0..9).map(|_| bench.join_as(kind, 1, true).1).collect();
        let (hold, _tasks) = handing_on(&mut bench, tasks);
        assert_eq!(bench.release(&hold), hands_on, "{kind}");
    }
    let mut bench = Bench::new();
    bench.config.hands_on = false;
    let tasks = waiters(&mut bench, 9);
    let (hold, _tasks) = handing_on(&mut bench, tasks);
    assert!(!bench.release(&hold), "switched off");
    let holder = &bench.document.as_ref().unwrap().holders[0];
    assert_eq!(
        (holder.token, hold.token.as_i64() + 1),
        (counter(&bench), counter(&bench)),
        "no range is taken then"
    );
}
