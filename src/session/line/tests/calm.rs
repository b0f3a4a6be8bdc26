//! The times in which a line expects no event.

use super::*;

/// A line that knows this pace, and waits behind a holder and so many waiters of other clients.
fn behind(others: u64, pace: Duration) -> Bench {
    let mut bench = Bench::new();
    bench.line = Line::new("x".to_owned(), None, pace);
    for other in 0..=others {
        let entry = format!("b-{other}");
        bench.foreign(&foreign(&entry, &[], Some(&entry)), false);
    }
    let (_, _outcome) = bench.join(true);
    bench.settle();
    assert!(bench.line.waitlist.is_queued());
    bench
}

/// Returns for how long no event is expected, if the last were requested `ago`.
fn calm(bench: &mut Bench, ago: Duration) -> Duration {
    let now = Instant::now();
    let until = bench.feed(|line, context| line.calm_until(now - ago, context)).0;
    until.saturating_duration_since(now)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn a_waiter_asks_for_no_events_until_shortly_before_its_turn() {
    let now = Duration::ZERO;
    let for_others = |others, pace| calm(&mut behind(others, millis(pace)), now);
    assert_eq!((for_others(30, 2), for_others(4, 2)), (millis(42), millis(3)));
    // The next ones ask for every event.
    assert_eq!([0, 1, 2].map(|others| for_others(others, 2)), [now; 3]);
    // For any length of the queue.
    assert_eq!((for_others(30, 40), for_others(30, 9_000)), (millis(250), millis(250)));
    // With whatever claim lease.
    let mut bench = behind(30, millis(40));
    bench.config.claim_lease = Some(MINUTE);
    assert_eq!(calm(&mut bench, now), millis(250));
    // It counts from when the queue was seen, and no longer than from the last events.
    let mut bench = behind(30, millis(40));
    assert_eq!(calm(&mut bench, millis(100)), millis(150));
    tokio::time::advance(millis(90)).await;
    assert_eq!(calm(&mut bench, now), millis(160));
}

/// A lock that goes from task to task, or was held before the last events; an operation that hangs.
#[tokio::test(start_paused = true)]
async fn nothing_that_happens_here_puts_off_the_events_for_long() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    let request = bench.next().unwrap();
    assert_eq!(calm(&mut bench, Duration::ZERO), millis(20));
    assert_eq!(calm(&mut bench, millis(15)), millis(5));
    bench.answer(&request);
    held(&mut outcome);
    assert_eq!(calm(&mut bench, Duration::ZERO), millis(2));
    tokio::time::advance(millis(1)).await;
    assert_eq!(calm(&mut bench, Duration::ZERO), millis(1));
}
