//! Answers of the server, and the end of operations without one.

use super::*;
use crate::{
    protocol::document::Malformed,
    tests::simulated::out_of_time,
    waitlist::{How, Refusal, Setback},
};

/// Notes an answer, and returns the way in which each task that it serves is granted the lock.
fn granted_by(bench: &mut Bench, operation: &Operation, answer: &Answer) -> Vec<How> {
    let ((), effects) = bench.feed(|line, context| {
        let mut step = line.waitlist.step(context);
        step.answered(operation, answer.state.as_ref(), &answer.exchange);
    });
    let grants = effects.iter().filter_map(|effect| match effect {
        Effect::Granted { hold, .. } => Some(hold.granted().how),
        _ => None,
    });
    grants.collect()
}

#[tokio::test(start_paused = true)]
async fn a_grant_in_the_write_of_a_release_is_from_that_task_unless_it_had_lost_the_lock() {
    for (was_put_out, how) in [(false, How::Local), (true, How::AtOnce)] {
        let mut bench = Bench::new();
        bench.config.hands_on = false;
        let first = bench.take();
        if was_put_out {
            bench.foreign(&foreign("b.1", &[&first.id], None), false);
        }
        let (_, _second) = bench.join(true);
        let _left = bench.let_go(&first);
        let both = bench.next().unwrap();
        assert!(both.leave.contains(&first.id) && both.requests.is_some());
        let answer = bench.apply(&both);
        assert_eq!(granted_by(&mut bench, &both, &answer), [how]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_right_after_an_answer_that_shows_a_waiter_hands_over() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    // The event of the grant is lost.
    bench.foreign(&foreign("a.2", &["a-1"], None), false);
    bench.step(|step| step.doubt());
    bench.settle();
    let hold = held(&mut outcome);
    let _left = bench.let_go(&hold);
    let release = bench.next().unwrap();
    assert!(release.expects == Expects::OnlyHolder, "it would be sent twice");
    bench.apply(&release);
    assert_eq!(bench.ids_in_document(), ["b-1"]);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_asked_where_there_is_no_document_are_answered_and_later_ones_ask() {
    let mut bench = Bench::new();
    let (_, mut asked) = bench.join(true);
    let request = bench.next().unwrap();
    let (_, mut later) = bench.join(true);
    let answer = bench.apply(&request);
    bench.document = None;
    bench.answered(&request, &Answer { state: None, ..answer });
    assert!(matches!(
        asked.try_recv().unwrap(),
        Err(AcquireError::NoDocument { .. })
    ));
    later.try_recv().unwrap_err();
    bench.settle();
    held(&mut later);
}

/// As where another program took it out.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_an_answer_does_not_show_asks_again_after_a_pause() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    let mut answer = bench.apply(&request);
    answer.state.as_mut().unwrap().queue.clear();
    bench.answered(&request, &answer);
    assert!(bench.next().is_none(), "not at once");
    let asked = Instant::now();
    bench.pass().await;
    assert!((1..=1_000).contains(&asked.elapsed().as_millis()));
    assert!(bench.next().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_deadline_is_reached_is_not_believed() {
    for (early, granted) in [(1, true), (0, false)] {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        let request = bench.next().unwrap();
        let answer = bench.apply(&request);
        let usable = bench.config.usable(bench.config.lease);
        tokio::time::advance(usable - Duration::from_millis(early)).await;
        bench.answered(&request, &answer);
        assert_eq!(outcome.try_recv().is_ok(), granted);
    }
}

/// The server grants it with the first request, whose answer is lost, and shows it with the second.
#[tokio::test(start_paused = true)]
async fn a_hold_that_a_later_answer_shows_is_renewed_as_if_the_first_had_come() {
    for (later, has_time) in [(0, true), (4, true), (20, true), (4, false)] {
        let mut bench = Bench::new();
        let interval = bench.config.renewal_interval();
        let begun = Instant::now();
        let (_, mut outcome) = bench.join(true);
        let request = bench.next().unwrap();
        bench.apply(&request);
        bench.fails(&request, &unanswered());
        tokio::time::advance(Duration::from_secs(later)).await;
        let again = bench.next().unwrap();
        let mut answer = bench.apply(&again);
        answer.exchange.now = answer.exchange.now.filter(|_| has_time);
        bench.answered(&again, &answer);
        let renew_at = held(&mut outcome).renew_at().unwrap();
        // Where an answer has no time, the clock is known by others. The less of the lease is left, the less it can drift.
        let late = renew_at.max(Instant::now()) - (begun + interval).max(Instant::now());
        assert!(
            late <= Duration::from_millis(5),
            "{late:?}, {later} s later, {has_time}"
        );
    }
}

/// Another answer, of a command that was sent later, has come first, and shows the jump.
#[tokio::test(start_paused = true)]
async fn a_grant_counts_by_a_clock_that_was_set_ahead_while_its_answer_was_on_its_way() {
    for jumped in [5_u32, 22, 25] {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        let request = bench.next().unwrap();
        let answer = bench.apply(&request);
        tokio::time::advance(Duration::from_millis(100)).await;
        let now = Instant::now();
        let later = Exchange::new(
            now,
            now,
            Some(bench.server_now().plus_millis(1_000 * i64::from(jumped))),
        );
        assert!(
            bench
                .clock
                .note(&later, &bench.config)
                .is_some_and(|jump| jump.ahead.is_some())
        );
        bench.answered(&request, &answer);
        let hold = held(&mut outcome);
        assert!(hold.safe_for() < bench.config.lease - Duration::from_secs(jumped.into()));
        assert!(
            hold.renew_at().unwrap() <= Instant::now() + hold.safe_for() / 2,
            "{jumped} s"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_which_an_answer_tells_late_confirms_its_place_in_time() {
    for took in [0, 2_600, 4_900] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
        let mut terms = Terms::default();
        terms.set_lease(Duration::from_secs(5));
        let (_, _outcome) = bench.join_for(AcquireOptions {
            terms,
            patience: Patience::Wait,
            ..tries()
        });
        let request = bench.next().unwrap();
        let mut answer = bench.apply(&request);
        tokio::time::advance(Duration::from_millis(took)).await;
        answer.exchange.received = Instant::now();
        bench.answered(&request, &answer);
        let asked_at = Instant::now();
        assert!(
            bench.next().is_none(),
            "not at once, or a slow server would have no rest"
        );
        bench.pass().await;
        let left = Duration::from_millis(5_000 - took);
        assert!(asked_at.elapsed() <= left / 2 + Duration::from_millis(1), "{took} ms");
        assert!(bench.next().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_takes_the_queue_for_empty_only_by_an_answer_that_came_quickly() {
    for (took, expects) in [(5, Expects::Alone), (1_000, Expects::OnlyHolder)] {
        let mut bench = Bench::new();
        let (_, mut outcome) = bench.join(true);
        let request = bench.next().unwrap();
        let mut answer = bench.apply(&request);
        tokio::time::advance(Duration::from_millis(took)).await;
        answer.exchange.received = Instant::now();
        bench.answered(&request, &answer);
        let _left = bench.let_go(&held(&mut outcome));
        assert_eq!(bench.next().unwrap().expects, expects);
    }
}

/// Carries out everything for a minute. Returns the number of operations that take the entry out.
async fn leaves_of(bench: &mut Bench, entry: &str) -> usize {
    let (begun, mut leaves) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(60) {
        while let Some(operation) = bench.next() {
            leaves += usize::from(operation.leave.iter().any(|id| id == entry));
            bench.answer(&operation);
        }
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    leaves
}

#[tokio::test(start_paused = true)]
async fn an_entry_leaves_once_unless_a_request_for_it_may_still_arrive() {
    let often = 1 + SWEEPS.len();
    let evicted = |bench: &mut Bench| {
        let entry = bench.line.waitlist.waiting().front().unwrap().entry.clone();
        let signal = wake::Signal::Evicted { token: i64::MAX };
        let at = bench.server_now();
        bench.signalled(&entry, signal, at);
        entry
    };

    // A queued waiter that another client put out, all of whose requests were answered.
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, _outcome) = bench.join(true);
    bench.settle();
    let entry = evicted(&mut bench);
    assert_eq!(leaves_of(&mut bench, &entry).await, 1);

    // The same after a request without an answer.
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.fails(&request, &unanswered());
    bench.settle();
    let entry = evicted(&mut bench);
    assert_eq!(leaves_of(&mut bench, &entry).await, often);

    // A grant that comes too late.
    let mut bench = Bench::new();
    let (_, _outcome) = bench.join(true);
    let request = bench.next().unwrap();
    let answer = bench.apply(&request);
    let entry = bench.ids_in_document()[0].to_owned();
    tokio::time::advance(bench.config.lease).await;
    bench.answered(&request, &answer);
    assert_eq!(leaves_of(&mut bench, &entry).await, often);

    // A hold whose request was sent again, as the first was not answered.
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.fails(&request, &unanswered());
    bench.settle();
    let hold = held(&mut outcome);
    let _left = bench.let_go(&hold);
    assert_eq!(leaves_of(&mut bench, &hold.id).await, often);

    // A hold that an event granted while another request for it was on its way, which is not answered.
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    bench.step(|step| step.doubt());
    let request = bench.next().unwrap();
    bench.foreign(&foreign("b.1", &["a-1"], None), true);
    let hold = held(&mut outcome);
    bench.fails(&request, &unanswered());
    let _left = bench.let_go(&hold);
    assert_eq!(leaves_of(&mut bench, &hold.id).await, often);

    // A document that can't be read: the request may have been applied.
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    bench.apply(&request);
    let entry = bench.ids_in_document()[0].to_owned();
    let unreadable = ServerError::from(Malformed::occupied("x".to_owned()));
    bench.fails(&request, &unreadable);
    assert!(matches!(outcome.try_recv().unwrap(), Err(AcquireError::Server(_))));
    assert_eq!(leaves_of(&mut bench, &entry).await, often);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_goes_on_until_its_lease_is_over() {
    for (early, goes_on) in [(1, true), (0, false)] {
        let (mut bench, hold) = Bench::holding();
        let mut left = bench.let_go(&hold);
        let release = bench.next().unwrap();
        tokio::time::advance(bench.config.lease - Duration::from_millis(early)).await;
        bench.failed(&release, Failure::Unavailable);
        assert_eq!(left.try_recv().is_err(), goes_on);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_runs_out_of_time_is_asked_again_after_a_pause_and_counted() {
    let mut bench = Bench::new();
    let (_, _outcome) = bench.join(true);
    let out_of_time = out_of_time();
    for times in 1..=3 {
        let request = bench.next().unwrap();
        bench.fails(&request, &out_of_time);
        assert_eq!(bench.line.waitlist.overdue(), times);
        assert!(bench.next().is_none(), "not at once");
        bench.pass().await;
    }
    let request = bench.next().unwrap();
    bench.failed(&request, Failure::Unavailable);
    assert_eq!(bench.line.waitlist.overdue(), 0, "a cut is none of them");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_takes_out_at_once_what_only_it_has_put_in() {
    // The entry stands in the queue, and its next sweep is some time away.
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let late = bench.next().unwrap();
    bench.fails(&late, &unanswered());
    bench.give_up(key);
    bench.settle();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let state = bench.apply(&late).state.unwrap();
    assert_eq!(bench.ids_in_document().len(), 2);
    bench.step(|step| step.applied_late(&late, &state));
    bench.settle();
    assert_eq!(bench.ids_in_document(), ["a-1"]);

    // A late answer without the entry calls for nothing.
    let mut bench = Bench::new();
    let (key, _outcome) = bench.join(true);
    let late = bench.next().unwrap();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    bench.foreign(&foreign("b.1", &[], Some("b-1")), false);
    let state = bench.document.clone().unwrap();
    bench.failed(&late, Failure::Refused);
    assert!(bench.line.waitlist.is_unused() && bench.step(|step| step.cancel(key)).is_none());
    bench.step(|step| step.applied_late(&late, &state));
    assert!(bench.line.waitlist.is_unused());
}

#[tokio::test(start_paused = true)]
async fn a_try_that_finds_no_server_is_told_at_once_and_a_waiter_asks_on() {
    for (waits, told) in [(false, true), (true, false)] {
        let mut bench = Bench::new();
        let (_, _outcome) = bench.join(waits);
        let request = bench.next().unwrap();
        let ((), effects) = bench.feed(|line, context| {
            line.waitlist.step(context).failed(&request, Setback::NoServer);
        });
        let failed = |effect: &Effect| {
            matches!(
                effect,
                Effect::Refused {
                    why: Refusal::Failed,
                    ..
                }
            )
        };
        assert_eq!(matches!(&effects[..], [effect] if failed(effect)), told);
        assert_eq!(effects.is_empty(), !told);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_counts_as_kept_only_if_the_document_shows_that_hold_as_released() {
    type Spoil = fn(&mut crate::protocol::Entry);
    let cases: [(Spoil, wake::Left); 4] = [
        (|_| {}, wake::Left::Kept),
        (|holder| holder.id = "other".to_owned(), wake::Left::Nowhere),
        (|holder| holder.token += 1, wake::Left::Nowhere),
        (|holder| holder.released = None, wake::Left::Nowhere),
    ];
    for (spoil, found) in cases {
        let mut bench = Bench::new();
        let hold = kept_for(&mut bench, MINUTE);
        assert_eq!(hold.exit(), Remains::Nothing);
        let mut left = bench.let_go(&hold);
        let release = bench.next().unwrap();
        let mut answer = bench.apply(&release);
        spoil(&mut answer.state.as_mut().unwrap().holders[0]);
        bench.answered(&release, &answer);
        assert_eq!(left.try_recv().unwrap().unwrap(), found);
    }
}
