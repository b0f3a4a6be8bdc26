//! Questions for the queue position, by waiters far back and by those without a stream.

use super::*;

/// It is served out of turn just after a question, and the answer to the next one is slow.
#[tokio::test(start_paused = true)]
async fn who_is_far_back_keeps_a_grant_that_it_finds_late() {
    let mut bench = Bench::new();
    bench.stream = StreamState::OnDemand;
    let others: Vec<String> = (0..40).map(|number| format!("other-{number}")).collect();
    for id in &others {
        bench.foreign(&foreign(id, &[], Some(id)), false);
    }
    tokio::time::advance(MINUTE / 3).await;
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let all: Vec<&str> = others.iter().map(String::as_str).collect();
    bench.foreign(&foreign("all", &all, None), false);
    let (granted, token) = (Instant::now(), bench.document.as_ref().unwrap().holders[0].token);
    bench.pass().await;
    let request = bench.next().expect("it asks");
    let sent = Instant::now();
    let late = sent - granted;
    let usable = bench.config.usable(bench.config.claim_lease());
    let latest = usable / 2;
    assert!(late.abs_diff(latest) < Duration::from_millis(2), "{late:?}");
    // It is to be answered in what its claim lease leaves, less the skew margin.
    let left = usable - latest;
    assert!(left > Duration::from_millis(1_950), "{left:?}");
    let mut answer = bench.apply(&request);
    tokio::time::advance(left - Duration::from_millis(50)).await;
    (answer.exchange.sent, answer.exchange.received) = (sent, Instant::now());
    bench.answered(&request, &answer);
    assert_eq!(held(&mut outcome).granted_as, token);
}

#[tokio::test(start_paused = true)]
async fn who_polls_has_its_grant_by_the_next_question_and_writes_nothing_before() {
    let (mut bench, mut outcome) = Bench::polling();
    let (sent, asked_at) = (bench.operations, Instant::now());
    for _ in 0..5 {
        let document = bench.document.clone();
        bench.pass().await;
        bench.settle();
        assert_eq!(bench.document, document);
    }
    bench.foreign(&foreign("gone", &["other"], None), false);
    bench.pass().await;
    bench.settle();
    assert_eq!(bench.operations, sent + 6);
    assert!(asked_at.elapsed() < Duration::from_millis(200));
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// A release of this client goes alone where others are to get the permits, and shows that its other task has got some;
/// another hand may have taken that task's entry out.
#[tokio::test(start_paused = true)]
async fn who_is_in_the_queue_no_more_by_the_answer_to_a_leave_asks_at_once() {
    for is_granted in [true, false] {
        let (mut bench, mut outcome) = Bench::polling();
        let entry = bench.line.waitlist.waiting()[0].entry.clone();
        let (mine, document) = (bench.ids.entry(), bench.document.as_mut().unwrap());
        document.holders[0].id.clone_from(&mine);
        if !is_granted {
            document.queue.clear();
        }
        bench.step(|step| step.take_out(mine, (Kind::Semaphore, 3), Duration::ZERO));
        let leave = bench.next().expect("it leaves");
        assert!(leave.requests.is_none());
        let answer = bench.apply(&leave);
        bench.answered(&leave, &answer);
        let asks = bench.next().expect("it asks");
        let mut asked = asks.requests.iter().flat_map(|requests| &requests.entries);
        assert!(asked.any(|request| request.id == entry), "{asks:?}");
        let answer = bench.apply(&asks);
        bench.answered(&asks, &answer);
        assert_eq!(held(&mut outcome).status(), LockStatus::Held);
    }
}

/// However seldom it asks for its position: what is due by the clock is asked for in time.
#[tokio::test(start_paused = true)]
async fn who_polls_seldom_asks_when_a_lease_ends() {
    let mut bench = Bench::new();
    bench.stream = StreamState::Unavailable;
    bench
        .config
        .set_poll_interval(Duration::from_secs(2), Duration::from_secs(4));
    bench.foreign(&foreign("dead", &[], Some("dead")), false);
    // So that its queue position is not confirmed when that lease ends.
    tokio::time::advance(bench.config.lease / 3).await;
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let sent = bench.operations;
    while bench.line.waitlist.is_queued() {
        bench.pass().await;
        bench.settle();
    }
    assert!(bench.started.elapsed() < bench.config.lease + PROMPT);
    assert!(bench.operations > sent + 5);
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Only another's hand can make a lock that nobody holds, and that no write has granted.
#[tokio::test(start_paused = true)]
async fn who_polls_takes_a_lock_that_a_foreign_hand_has_freed() {
    let (mut bench, mut outcome) = Bench::polling();
    bench.document.as_mut().unwrap().holders.clear();
    bench.pass().await;
    bench.settle();
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// As after a fail-over, to a primary whose clock is behind by as much as it may be.
#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_puts_off_no_question() {
    let (mut bench, mut outcome) = Bench::polling();
    let skew = i64::try_from(bench.config.skew_margin().as_millis()).unwrap();
    let mut questions = 0;
    while bench.line.waitlist.is_queued() {
        assert!(bench.started.elapsed() < bench.config.lease + bench.config.poll_interval.1);
        bench.pass().await;
        let Some(request) = bench.next() else { continue };
        questions += 1;
        let mut answer = bench.apply(&request);
        let now = bench.server_now();
        answer.exchange.now = Some(ServerTime(now.0 - skew * (questions % 2)));
        bench.answered(&request, &answer);
        if let Some(due_at) = bench.line.waitlist.due_at().filter(|_| bench.line.waitlist.is_queued()) {
            let due_in = due_at - Instant::now();
            assert!(due_in <= bench.config.poll_interval.1, "{due_in:?}");
        }
    }
    assert!(questions > 50, "{questions}");
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Whoever gives up is told how many were ahead of it by the last answer.
#[tokio::test(start_paused = true)]
async fn a_question_shows_how_many_are_ahead_in_the_report_too() {
    let mut bench = Bench::new();
    bench.stream = StreamState::Unavailable;
    let others: Vec<String> = (0..10).map(|number| format!("other-{number}")).collect();
    for id in &others {
        bench.foreign(&foreign(id, &[], Some(id)), false);
    }
    let (key, _outcome) = bench.join(true);
    bench.settle();
    for gone in &others[1..4] {
        bench.foreign(&foreign(gone, &[gone], None), false);
    }
    bench.pass().await;
    bench.settle();
    let (contention, _) = bench.give_up(key);
    let contention = contention.expect("the server said who holds it");
    assert_eq!((contention.waiting_before, contention.holders.len()), (6, 1));
}
