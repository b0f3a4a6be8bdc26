//! Incarnations of one owner, of which a later one adopts the lock.

use super::*;
use crate::protocol::Identity;

fn incarnation(born: i64) -> Option<Identity> {
    Some(Identity {
        id: "worker".to_owned(),
        born,
    })
}

/// A wish of this client as an incarnation of `worker`.
fn wanted_as(born: i64) -> AcquireOptions {
    AcquireOptions {
        patience: Patience::Wait,
        owner: Owner {
            identity: incarnation(born),
            ..Owner::default()
        },
        ..tries()
    }
}

/// A request of another client that is an incarnation of `worker`.
fn foreign_as(born: i64, id: &str, request: &str) -> Operation {
    let mut operation = foreign(id, &[], Some(request));
    let requests = operation.requests.as_mut().unwrap();
    requests.adopts = incarnation(born);
    requests.entries[0].owner.identity = incarnation(born);
    operation
}

#[tokio::test(start_paused = true)]
async fn who_never_held_gets_in_line_as_everybody() {
    let mut bench = Bench::new();
    bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
    bench.foreign(&foreign_as(1, "b.1", "b-1"), false);
    bench.foreign(&foreign("d.1", &[], Some("d-1")), false);
    let _waiting = bench.join_for(wanted_as(2));
    let request = bench.next().unwrap();
    assert!(request.requests.as_ref().unwrap().adopts.is_some());
    bench.answer(&request);
    let ours = bench.ids_in_document()[2].to_owned();
    assert_eq!(bench.ids_in_document(), ["c-1", "d-1", &ours]);
    // It is in line, so there is nobody left to put out.
    bench.step(|step| step.doubt());
    assert!(bench.next().unwrap().requests.unwrap().adopts.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_earlier_incarnation_that_waits_is_put_out_and_asks_again_behind() {
    for announced in [true, false] {
        let mut bench = Bench::new();
        bench.foreign(&foreign("c.1", &[], Some("c-1")), false);
        let (_, mut waiting) = bench.join_for(wanted_as(1));
        bench.settle();
        bench.foreign(&foreign_as(2, "b.1", "b-1"), announced);
        assert_eq!(bench.ids_in_document(), ["c-1", "b-1"]);
        let adopted = bench.document.clone().unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
        bench.step(|step| step.doubt());
        bench.settle();
        assert_eq!(bench.ids_in_document()[..2], ["c-1", "b-1"]);
        assert_eq!(bench.ids_in_document().len(), 3);
        bench.foreign(&foreign("c.2", &["c-1"], None), true);
        bench.foreign(&foreign("b.2", &["b-1"], None), true);
        let hold = held(&mut waiting);
        if !announced {
            // The event comes late, and is about the entry's earlier place in the queue.
            for (id, signal) in wake::signals(&adopted.wake, "me") {
                assert_eq!((id, signal), (hold.id.as_str(), wake::Signal::Adopted));
                bench.signalled(id, signal, adopted.at);
            }
            assert_eq!(hold.lost_reason(), None);
            assert_eq!(bench.ids_in_document(), [hold.id.as_str()]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_earlier_incarnation_that_lives_loses_its_hold_and_takes_nothing_back() {
    for announced in [true, false] {
        let mut bench = Bench::new();
        let (_, mut holding) = bench.join_for(wanted_as(1));
        bench.settle();
        let hold = held(&mut holding);
        bench.foreign(&foreign_as(2, "b.1", "b-1"), announced);
        let (_, mut waiting) = bench.join_for(wanted_as(1));
        bench.settle();
        // From the event, or from the next answer.
        assert_eq!(hold.lost_reason(), Some(LostReason::Adopted));
        waiting.try_recv().unwrap_err();
        assert_eq!(bench.ids_in_document()[0], "b-1", "the later one keeps it");
    }
}
