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

/// Its look, which is on its way, was the only timer.
#[tokio::test(start_paused = true)]
async fn who_comes_after_one_that_was_kept_out_and_gave_up_asks() {
    for is_shown_before in [true, false] {
        let mut bench = crowded();
        let (key, _outcome) = bench.join(true);
        bench.settle();
        bench.pass().await;
        let look = bench.next_look().expect("it looks");
        bench.give_up(key);
        assert!(bench.next().is_none(), "nothing of it is in the document");
        if is_shown_before {
            bench.looked(look);
        }
        bench.document = None;
        let (_, mut outcome) = bench.join(true);
        if !is_shown_before {
            bench.looked(look);
        }
        bench.settle();
        assert!(held(&mut outcome).lost_reason().is_none());
    }
}

/// A server that is too slow to read for it is not to write for it as often.
#[tokio::test(start_paused = true)]
async fn who_looks_for_room_in_vain_asks_after_every_other_look() {
    let mut bench = crowded();
    let (_, _outcome) = bench.join(true);
    bench.settle();
    let (begun, mut looks, operations) = (Instant::now(), 0, bench.operations);
    while begun.elapsed() < Duration::from_secs(20) {
        bench.pass().await;
        for waiter in &mut bench.document.as_mut().unwrap().queue {
            waiter.until = waiter.until.plus_millis(1_000);
        }
        if let Some(look) = bench.next_look() {
            looks += 1;
            bench.step(|step| step.looked(look, None, None));
        }
        bench.settle();
    }
    assert_eq!((looks, bench.operations - operations), (20, 10));
}

/// Nobody else puts them out: all that were alive have crashed.
#[tokio::test(start_paused = true)]
async fn who_looks_for_room_finds_it_in_the_place_of_the_dead_and_where_the_document_is_gone() {
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
        bench.look().expect("it looks");
        bench.settle();
        assert!(held(&mut outcome).lost_reason().is_none());
    }
}
