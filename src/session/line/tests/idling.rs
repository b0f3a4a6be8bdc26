//! Locks that stay with the client after their last release.

use super::*;
use crate::{
    hold_options::Terms,
    waitlist::handing_on::{HANDED_ON_FOR, RANGE},
};

const KEEP: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn keeping() -> Bench {
    let mut bench = Bench::new();
    bench.config.keep_idle = KEEP;
    bench
}

fn options() -> AcquireOptions {
    AcquireOptions {
        patience: Patience::Wait,
        ..tries()
    }
}

/// Acquires, and returns the hold with the number of operations that this took.
fn acquire(bench: &mut Bench, options: AcquireOptions) -> (Arc<Hold>, usize) {
    let before = bench.operations;
    let (_, mut task) = bench.join_for(options);
    bench.settle();
    (held(&mut task), bench.operations - before)
}

/// A lock that was released and has stayed.
fn idle(bench: &mut Bench) -> Arc<Hold> {
    let (hold, _) = acquire(bench, options());
    assert!(bench.release(&hold));
    hold
}

fn is_idle_here(bench: &Bench) -> bool {
    let mut held = bench.line.waitlist.holds();
    held.any(|hold| hold.is_idle && hold.lost_reason().is_none())
}

/// The document as the client reads it to see whether others wait.
fn read(bench: &mut Bench) {
    let document = bench.document.clone().map(Ok);
    let ids: Vec<String> = bench.line.waitlist.holds().map(|hold| hold.id.clone()).collect();
    bench.step(|step| step.verified(document.as_ref(), Some(Instant::now()), &ids));
}

#[tokio::test(start_paused = true)]
async fn another_client_whose_event_is_lost_waits_until_the_document_is_read() {
    for reads in [true, false] {
        let mut bench = keeping();
        idle(&mut bench);
        tokio::time::advance(5 * SECOND).await;
        read(&mut bench);
        bench.settle();
        assert!(is_idle_here(&bench));
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        if reads {
            read(&mut bench);
        } else {
            tokio::time::advance(14 * SECOND).await;
            bench.settle();
            assert!(is_idle_here(&bench));
            tokio::time::advance(SECOND).await;
            assert!(bench.line.waitlist.due_at().unwrap() <= Instant::now());
        }
        bench.settle();
        assert_eq!(bench.ids_in_document(), ["b-1"], "{reads}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_uses_the_lock_otherwise_gets_it_by_one_operation() {
    let on = |set: fn(&mut Terms)| {
        let mut terms = Terms::default();
        set(&mut terms);
        AcquireOptions { terms, ..options() }
    };
    let cases = [
        (on(|terms| terms.set_lease(9 * SECOND)), 1),
        (on(|terms| terms.set_fixed(9 * SECOND)), 1),
        (on(|terms| terms.at_least = 9 * SECOND), 1),
        // Re-entrantly it is a hold that other tasks may join, and this one is nobody's.
        (
            AcquireOptions {
                reentrant: true,
                ..options()
            },
            1,
        ),
        // For how long the lock is to stay after it is its own business.
        (on(|terms| terms.keep_idle = Some(Duration::ZERO)), 0),
        (on(|terms| terms.keep_idle = Some(KEEP / 2)), 0),
    ];
    for (case, (options, expected)) in cases.into_iter().enumerate() {
        let mut bench = keeping();
        let before = idle(&mut bench);
        let (hold, operations) = acquire(&mut bench, options);
        assert_eq!(operations, expected, "{case}");
        assert!(hold.token > before.token, "{case}");
        assert_eq!(bench.ids_in_document(), [&hold.id], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_stays_that_is_not_to_be_handed_on() {
    let mut off = Bench::new();
    let mut unstreamed = keeping();
    unstreamed.stream = StreamState::Unavailable;
    let mut guarded = keeping();
    guarded.line.waitlist.note_guarded();
    for (case, bench) in [&mut off, &mut unstreamed, &mut guarded].into_iter().enumerate() {
        let (hold, _) = acquire(bench, options());
        assert!(!bench.release(&hold), "{case}");
        assert!(bench.line.waitlist.is_unused(), "{case}");
    }
    let reader = AcquireOptions {
        used: (Kind::RwLock, 1 << 20),
        ..options()
    };
    let mut bench = keeping();
    let (hold, _) = acquire(&mut bench, reader);
    assert!(!bench.release(&hold));
}

/// The option of one acquire counts for that acquire, and for no other.
#[tokio::test(start_paused = true)]
async fn an_acquire_can_ask_for_it_alone() {
    let mut bench = Bench::new();
    let terms = Terms {
        keep_idle: Some(KEEP),
        ..Terms::default()
    };
    let (hold, _) = acquire(&mut bench, AcquireOptions { terms, ..options() });
    assert!(bench.release(&hold));
    let (hold, operations) = acquire(&mut bench, options());
    assert_eq!(operations, 0);
    assert!(!bench.release(&hold));
}

#[tokio::test(start_paused = true)]
async fn a_range_of_tokens_serves_so_many_tasks_and_no_more() {
    let mut bench = keeping();
    let mut tasks = 1;
    let mut last = idle(&mut bench).token;
    while is_idle_here(&bench) {
        let hold = idle_or_gone(&mut bench);
        assert!(hold.token > last);
        (last, tasks) = (hold.token, tasks + 1);
    }
    assert_eq!(tasks, RANGE);
    assert!(bench.ids_in_document().is_empty());
    let (hold, _) = acquire(&mut bench, options());
    assert!(hold.token > last);
}

fn idle_or_gone(bench: &mut Bench) -> Arc<Hold> {
    let (hold, operations) = acquire(bench, options());
    assert_eq!(operations, 0);
    bench.release(&hold);
    hold
}

/// A client that has just begun has no stream yet: it opens because of the hold. What was missed until then is read.
#[tokio::test(start_paused = true)]
async fn before_the_stream_is_open_it_stays_for_a_moment() {
    let mut bench = keeping();
    bench.stream = StreamState::OnDemand;
    idle(&mut bench);
    assert_eq!(bench.line.waitlist.due_at(), Some(Instant::now() + SECOND));
    assert_eq!(bench.line.waitlist.need(), Need::Stream);
    tokio::time::advance(SECOND / 2).await;
    bench.stream = StreamState::Open;
    bench.step(|step| step.doubt());
    // Nobody has it before it is read, and it does not stay for long either.
    bench.settle();
    assert_eq!(bench.line.waitlist.due_at(), Some(Instant::now() + SECOND));
    read(&mut bench);
    bench.settle();
    assert_eq!(acquire(&mut bench, options()).1, 0);

    // It does not open.
    let mut bench = keeping();
    bench.stream = StreamState::OnDemand;
    idle(&mut bench);
    tokio::time::advance(SECOND).await;
    bench.settle();
    assert!(bench.line.waitlist.is_unused());
}

#[tokio::test(start_paused = true)]
async fn while_events_may_be_missing_nobody_gets_it_but_from_the_server() {
    let mut bench = keeping();
    idle(&mut bench);
    bench.step(|step| step.doubt());
    assert_eq!(acquire(&mut bench, options()).1, 1);

    let mut bench = keeping();
    idle(&mut bench);
    bench.step(|step| step.doubt());
    tokio::time::advance(SECOND).await;
    bench.settle();
    assert!(bench.line.waitlist.is_unused() && bench.ids_in_document().is_empty());
}

/// An event would have told of others; but it is long since anything was read.
#[tokio::test(start_paused = true)]
async fn what_was_held_for_long_stays_once_its_document_is_read() {
    for others in [false, true] {
        let mut bench = keeping();
        let (hold, _) = acquire(&mut bench, options());
        for _ in 0..20 {
            tokio::time::advance(SECOND).await;
            hold.upkeep().sent(Instant::now(), Instant::now() + SECOND);
            hold.upkeep()
                .acknowledged(Instant::now() + Duration::from_secs(29), Instant::now());
        }
        if others {
            bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        }
        assert_eq!(hold.exit(), Remains::Nothing);
        let ((), effects) = bench.feed(|line, context| line.waitlist.step(context).let_go(&hold, None));
        assert!(matches!(&effects[..], [Effect::Doubted(stays)] if stays.is_idle));
        assert_eq!(bench.line.waitlist.due_at(), Some(Instant::now() + SECOND));
        read(&mut bench);
        bench.settle();
        assert_eq!(is_idle_here(&bench), !others);
        if !others {
            assert_eq!(acquire(&mut bench, options()).1, 0);
        }
    }
}

/// A read that was requested before events were missed shows nothing of them.
#[tokio::test(start_paused = true)]
async fn a_reading_from_before_a_doubt_does_not_end_it() {
    let mut bench = keeping();
    idle(&mut bench);
    let (document, ids) = (
        bench.document.clone().map(Ok),
        vec![bench.line.waitlist.holds().next().unwrap().id.clone()],
    );
    let before = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    bench.step(|step| step.doubt());
    bench.step(|step| step.verified(document.as_ref(), Some(before), &ids));
    // Nor one from between two of them.
    let between = Instant::now();
    tokio::time::advance(Duration::from_millis(100)).await;
    bench.step(|step| step.doubt());
    bench.step(|step| step.verified(document.as_ref(), Some(between), &ids));
    bench.settle();
    assert_eq!(acquire(&mut bench, options()).1, 1);
}

/// The stream breaks, and is open again within a moment.
#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_for_a_moment_costs_nobody_what_stays() {
    for moment in [500, 1_000] {
        let mut bench = keeping();
        idle(&mut bench);
        bench.stream = StreamState::Unavailable;
        bench.step(|step| step.doubt());
        // This shows nothing of what comes later.
        read(&mut bench);
        bench.settle();
        assert!(is_idle_here(&bench));
        tokio::time::advance(Duration::from_millis(moment)).await;
        bench.settle();
        bench.stream = StreamState::Open;
        bench.step(|step| step.doubt());
        bench.settle();
        read(&mut bench);
        bench.settle();
        assert_eq!(is_idle_here(&bench), moment < 1_000);
    }
    // Nothing comes to stay meanwhile.
    let mut bench = keeping();
    let (hold, _) = acquire(&mut bench, options());
    bench.stream = StreamState::Unavailable;
    assert!(!bench.release(&hold));
}

/// Between tasks that wait, a lost event costs others no more than without the option.
#[tokio::test(start_paused = true)]
async fn what_is_handed_on_to_whoever_waits_is_so_for_no_longer_than_ever() {
    let mut bench = keeping();
    let (hold, _) = acquire(&mut bench, options());
    let (_, mut waiting) = bench.join(true);
    bench.settle();
    tokio::time::advance(HANDED_ON_FOR).await;
    assert!(!bench.release(&hold));
    assert!(held(&mut waiting).token > hold.token);
}

#[tokio::test(start_paused = true)]
async fn it_goes_back_when_its_time_is_over() {
    let mut bench = keeping();
    bench.config.keep_idle = 3 * SECOND;
    idle(&mut bench);
    assert_eq!(bench.line.waitlist.due_at(), Some(Instant::now() + 3 * SECOND));
    // Taken again, it stays for as long again.
    tokio::time::advance(2 * SECOND).await;
    idle(&mut bench);
    tokio::time::advance(2 * SECOND).await;
    bench.settle();
    assert!(is_idle_here(&bench));
    tokio::time::advance(SECOND).await;
    bench.settle();
    assert!(bench.line.waitlist.is_unused() && bench.ids_in_document().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shuts_down_keeps_nothing() {
    let mut bench = keeping();
    idle(&mut bench);
    bench.step(|step| step.close());
    // A client that shuts down lets go of it with all others.
    let stays = bench.line.waitlist.holds().next().cloned().unwrap();
    assert!(stays.lose(LostReason::Released));
    assert!(!released_here(&mut bench, &stays));
    assert!(bench.line.waitlist.is_unused() && bench.ids_in_document().is_empty());
    // Nothing stays that is released after that.
    let mut bench = keeping();
    let (hold, _) = acquire(&mut bench, options());
    bench.step(|step| step.close());
    assert!(!bench.release(&hold));
    assert!(bench.line.waitlist.is_unused());
}

/// Lets go of a hold that is over. Returns whether that took no operation.
fn released_here(bench: &mut Bench, hold: &Hold) -> bool {
    let before = bench.operations;
    bench.let_go(hold);
    bench.settle();
    bench.operations == before
}
