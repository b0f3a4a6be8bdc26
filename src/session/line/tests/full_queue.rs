//! Queues without room.

use super::*;

/// The queue of others is full when we come.
fn crowded() -> Bench {
    let mut bench = Bench::new();
    for number in 0..=QUEUE_MOST {
        bench.foreign(
            &foreign(&format!("s.{number}"), &[], Some(&format!("s-{number}"))),
            false,
        );
    }
    assert_eq!(bench.document.as_ref().unwrap().queue.len(), QUEUE_MOST);
    bench
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_is_told_and_keeps_no_try_waiting() {
    let mut bench = crowded();
    let (key, _outcome) = bench.join(true);
    bench.settle();
    let (contention, _) = bench.give_up(key);
    let contention = contention.expect("the server said who holds it");
    assert!(
        contention.queue_full && contention.waiting_before == QUEUE_MOST,
        "{contention}"
    );
    assert!(
        contention
            .to_string()
            .contains("256 waiters in the queue, which is full"),
        "{contention}"
    );
    bench.settle();
    let operations = bench.operations;
    let (_, mut tried) = bench.join(false);
    bench.settle();
    assert!(matches!(tried.try_recv(), Ok(Err(AcquireError::Held { .. }))));
    assert_eq!(bench.operations, operations + 1);
}

#[tokio::test(start_paused = true)]
async fn who_comes_after_one_that_was_kept_out_and_gave_up_is_served() {
    for is_under_way in [true, false] {
        let mut bench = crowded();
        let (key, _outcome) = bench.join(true);
        bench.settle();
        bench.pass().await;
        let request = is_under_way.then(|| bench.next().expect("it asks"));
        bench.give_up(key);
        bench.document = None;
        let (_, mut outcome) = bench.join(true);
        request.iter().for_each(|request| bench.answer(request));
        bench.pass().await;
        bench.settle();
        assert!(held(&mut outcome).lost_reason().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_kept_out_asks_as_often_however_long_it_has_waited_and_writes_nothing() {
    let mut bench = crowded();
    for waiter in &mut bench.document.as_mut().unwrap().queue {
        waiter.until = waiter.until.plus_millis(3_600_000);
    }
    let (_, _outcome) = bench.join(true);
    bench.settle();
    let document = bench.document.clone();
    while bench.started.elapsed() < 10 * MINUTE {
        let begun = Instant::now();
        bench.pass().await;
        assert_eq!(begun.elapsed().as_millis(), 2_500);
        bench.settle();
        // The holder has no time to be over.
        bench.document.as_mut().unwrap().holders[0].until = bench.server_now().plus_millis(60_000);
    }
    assert_eq!(bench.document.unwrap().queue, document.unwrap().queue);
}

/// Nobody else puts them out: all that were alive have crashed.
#[tokio::test(start_paused = true)]
async fn who_is_kept_out_finds_room_in_the_place_of_the_dead_and_where_the_document_is_gone() {
    for is_gone in [false, true] {
        let mut bench = crowded();
        let (_, mut outcome) = bench.join(true);
        bench.settle();
        if is_gone {
            bench.document = None;
        } else {
            tokio::time::advance(bench.config.lease).await;
        }
        bench.pass().await;
        bench.settle();
        assert!(held(&mut outcome).lost_reason().is_none());
    }
}
