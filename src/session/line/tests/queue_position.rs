//! Looks at the queue position, of waiters far back and of those without a stream.

use super::*;

/// It is served out of turn just after a look, and the next one and the request that follows have slow answers.
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
    let look = bench.next_look().expect("it looks, as it does not ask");
    let late = Instant::now() - granted;
    let latest = bench.config.claim_lease() / 3;
    assert!(late.abs_diff(latest) < Duration::from_millis(2), "{late:?}");
    // Both are to be answered in what its claim lease leaves, less the skew margin.
    let left = bench.config.usable(bench.config.claim_lease()) - latest;
    assert!(left > Duration::from_millis(2_300), "{left:?}");
    tokio::time::advance(left / 2).await;
    assert!(!bench.looked(look));
    let request = bench.next().unwrap();
    let sent = Instant::now();
    let mut answer = bench.apply(&request);
    tokio::time::advance(left / 2 - Duration::from_millis(50)).await;
    (answer.exchange.sent, answer.exchange.received) = (sent, Instant::now());
    bench.answered(&request, &answer);
    assert_eq!(held(&mut outcome).granted_as, token);
}

/// Without a stream a waiter asks once more when a look shows that something has become of its entry, and not before.
#[tokio::test(start_paused = true)]
async fn who_polls_looks_and_asks_when_it_is_granted() {
    let (mut bench, mut outcome) = Bench::polling();
    let sent = bench.operations;
    let (mut looks, asked_at) = (0, Instant::now());
    while bench.line.waitlist.is_queued() {
        bench.pass().await;
        bench.settle();
        if !bench.line.waitlist.is_queued() {
            break;
        }
        looks += 1;
        if looks == 5 {
            bench.foreign(&foreign("gone", &["other"], None), false);
        }
        bench.look().expect("it looks, and does not ask");
    }
    assert_eq!((looks, bench.operations), (5, sent + 1));
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

/// However often it looks: what is due by the clock is asked for in time.
#[tokio::test(start_paused = true)]
async fn looks_put_off_no_request() {
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
    let mut looks = 0;
    while bench.line.waitlist.is_queued() {
        assert!(
            bench.started.elapsed() < bench.config.lease + bench.config.poll_interval.0,
            "{looks} looks, and nothing else"
        );
        let due_at = bench.line.waitlist.due_at().unwrap();
        tokio::time::advance(due_at - Instant::now()).await;
        bench.settle();
        looks += u32::from(bench.look().is_some());
    }
    assert!(looks > 5);
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Where looks are refused, it polls by asking, and hardly looks at all.
#[tokio::test(start_paused = true)]
async fn who_can_not_look_asks() {
    let (mut bench, mut outcome) = Bench::polling();
    let (mut failed, sent) = (0, bench.operations);
    while bench.started.elapsed() < Duration::from_secs(15) {
        bench.pass().await;
        if let Some(look) = bench.next_look() {
            failed += 1;
            bench.step(|step| step.looked(look, None, None));
        }
        bench.settle();
    }
    assert!((12..=20).contains(&failed), "{failed}");
    assert!(bench.operations > sent + 20);
    bench.foreign(&foreign("gone", &["other"], None), false);
    while bench.line.waitlist.is_queued() {
        bench.pass().await;
        if let Some(look) = bench.next_look() {
            bench.step(|step| step.looked(look, None, None));
        }
        bench.settle();
    }
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Where a look shows that the waiter is served and the answer that it is not, as with an old primary that still
/// answers looks, they don't go on like that.
#[tokio::test(start_paused = true)]
async fn looks_that_answers_contradict_come_less_and_less_often() {
    for is_gone in [true, false] {
        let (mut bench, _outcome) = Bench::polling();
        let mut looks = 0;
        while bench.started.elapsed() < Duration::from_secs(5) {
            let (look, _) = bench.asks_until_it_looks().await;
            looks += 1;
            bench.document.as_mut().unwrap().holders[0].since = bench.server_now();
            let (mut old, now) = (bench.document.clone().unwrap(), bench.server_now());
            match is_gone {
                true => old.queue.clear(),
                false => old.holders.clear(),
            }
            bench.step(|step| step.looked(look, Some(Some(&old)), Some(now)));
        }
        assert!((8..=10).contains(&looks), "{is_gone}: {looks}");
    }
}

/// A look shows what only another's hand can make: a lock that nobody holds, and that no write has granted.
#[tokio::test(start_paused = true)]
async fn who_polls_asks_for_a_lock_that_a_foreign_hand_has_freed() {
    let (mut bench, mut outcome) = Bench::polling();
    bench.document.as_mut().unwrap().holders.clear();
    bench.pass().await;
    bench.look().expect("it looks");
    bench.settle();
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Ten clients, of whom the first holds the lock, and has for a while if it is slow.
fn behind_ten(bench: &mut Bench) -> Vec<String> {
    let others: Vec<String> = (0..10).map(|number| format!("other-{number}")).collect();
    for id in &others {
        bench.foreign(&foreign(id, &[], Some(id)), false);
    }
    others
}

/// A look that was sent before the stream broke says nothing of what came since.
#[tokio::test(start_paused = true)]
async fn who_loses_the_stream_beside_a_look_goes_on_by_polling() {
    let mut bench = Bench::new();
    let others = behind_ten(&mut bench);
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    // Those ahead are fast enough to have the stream for, and this may change.
    let look = bench.until_it_looks().await;
    bench.stream = StreamState::Opening;
    bench.step(|step| step.doubt());
    let sent = bench.operations;
    bench.looked(look);
    bench.settle();
    assert_eq!(bench.operations, sent + 1, "it asks at once");
    let look = bench.until_it_looks().await;
    bench.looked(look);
    assert!(bench.started.elapsed() < Duration::from_secs(4));
    let all: Vec<&str> = others.iter().map(String::as_str).collect();
    bench.foreign(&foreign("all", &all, None), false);
    bench.step(|step| step.doubt());
    bench.settle();
    assert_eq!(bench.operations, sent + 2);
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// As after a fail-over, to a primary whose clock is behind by as much as it may be.
#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_puts_off_no_look_and_no_request() {
    let (mut bench, mut outcome) = Bench::polling();
    let skew = i64::try_from(bench.config.skew_margin().as_millis()).unwrap();
    let mut looks = 0;
    while bench.line.waitlist.is_queued() {
        assert!(bench.started.elapsed() < bench.config.lease + bench.config.poll_interval.1);
        bench.pass().await;
        bench.settle();
        let Some(look) = bench.next_look() else { continue };
        looks += 1;
        let (state, now) = (bench.document.clone(), bench.server_now());
        let now = ServerTime(now.0 - skew * (looks % 2));
        bench.step(|step| step.looked(look, Some(state.as_ref()), Some(now)));
        let due_in = bench.line.waitlist.due_at().unwrap() - Instant::now();
        assert!(due_in <= bench.config.poll_interval.1, "{due_in:?}");
    }
    assert!(looks > 50, "{looks}");
    assert_eq!(held(&mut outcome).status(), LockStatus::Held);
}

/// Another client that wants so many permits.
fn other(id: &str, (used, permits): (Use, i64), leave: &[&str], wants: bool) -> Operation {
    let mut operation = foreign(id, leave, wants.then_some(id));
    if let Some(requests) = &mut operation.requests {
        (requests.kind, requests.capacity) = used;
        requests.entries[0].permits = permits;
    }
    operation
}

/// A waiter that needs more permits than are free waits on, and one that fits is served, or asks if no write has served
/// it.
#[tokio::test(start_paused = true)]
async fn who_polls_asks_when_as_many_permits_are_free_as_it_wants() {
    for (used, wants, has) in [((Kind::Semaphore, 3), 2, 1), ((Kind::RwLock, 1 << 30), 1 << 30, 1)] {
        let mut bench = Bench::new();
        bench.stream = StreamState::Unavailable;
        for id in ["a", "b", "c"] {
            bench.foreign(&other(id, (used, has), &[], true), false);
        }
        let (_, mut outcome) = bench.join_for(AcquireOptions {
            used,
            permits: wants,
            patience: Patience::Wait,
            ..tries()
        });
        bench.settle();
        let sent = bench.operations;
        bench.foreign(&other("gone", (used, has), &["a"], false), false);
        for _ in 0..20 {
            let look = bench.until_it_looks().await;
            assert!(bench.looked(look));
        }
        // The look that is due shows that another hand has made room, and that no write has granted it.
        let look = bench.until_it_looks().await;
        let left = bench.document.as_mut().unwrap().holders.pop().unwrap();
        if used.0 == Kind::RwLock {
            bench.looked(look);
            assert!(bench.next().is_none(), "a reader is left");
            bench.document.as_mut().unwrap().holders.clear();
            let look = bench.until_it_looks().await;
            bench.looked(look);
        } else {
            assert_eq!(left.id, "c");
            bench.looked(look);
        }
        bench.settle();
        assert_eq!(bench.operations, sent + 1);
        assert_eq!(held(&mut outcome).status(), LockStatus::Held);
    }
}

/// Whoever gives up is told how many were ahead of it by the last look, and who held the lock by the last answer.
#[tokio::test(start_paused = true)]
async fn a_look_shows_how_many_are_ahead_in_the_report_too() {
    let mut bench = Bench::new();
    bench.stream = StreamState::Unavailable;
    let others = behind_ten(&mut bench);
    let (key, _outcome) = bench.join(true);
    bench.settle();
    for gone in &others[1..4] {
        bench.foreign(&foreign(gone, &[gone], None), false);
    }
    bench.pass().await;
    assert_eq!(bench.look(), Some(true));
    let (contention, _) = bench.give_up(key);
    let contention = contention.expect("the server said who holds it");
    assert_eq!((contention.waiting_before, contention.holders.len()), (6, 1));
}
