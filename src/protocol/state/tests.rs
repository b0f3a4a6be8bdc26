use super::{apply, renew};
use crate::protocol::{Evict, Expects, Kind, Operation, Owner, Proclaim, QUEUE_MOST, Request, Requests, ServerTime};

/// A server that was frozen runs the commands that are still in its sockets, in any order.
#[test]
fn a_first_request_that_its_own_repetition_overtook_adds_nothing() {
    let first = request("a-1");
    let repeated = Request {
        fresh: false,
        ..first.clone()
    };
    for holder in [None, Some(request("b-1"))] {
        let before = holder.and_then(|holder| apply(None, &asking("b.1", holder), ServerTime(0)));
        let there = apply(before.as_ref(), &asking("a.2", repeated.clone()), ServerTime(1)).expect("it is created");
        let after = apply(Some(&there), &asking("a.1", first.clone()), ServerTime(2)).expect("it stays");
        assert_eq!((after.holders, after.queue), (there.holders, there.queue));
    }
}

#[test]
fn a_value_that_comes_late_does_not_replace_a_later_one() {
    let mut state = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
    for (number, value, stands) in [
        (2, "two", "two"),
        (1, "one", "two"),
        (2, "again", "two"),
        (3, "three", "three"),
    ] {
        let proclaim = Proclaim {
            id: "a-1".to_owned(),
            value: value.to_owned(),
            number,
        };
        let operation = Operation {
            proclaim: Some(proclaim),
            requests: None,
            ..asking("a.2", request("a-1"))
        };
        state = apply(Some(&state), &operation, ServerTime(1)).expect("it stays");
        assert_eq!(state.holders[0].owner.value.as_deref(), Some(stands));
    }
}

/// An unanswered renewal is sent again while the first is still on its way, so an old one can arrive after a new one.
#[test]
fn a_renewal_never_shortens() {
    let mut state = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
    let ids = ["a-1".to_owned()];
    assert!(renew(&mut state, "a.2", &ids, 1_000, ServerTime(50)));
    assert!(!renew(&mut state, "a.3", &ids, 1_000, ServerTime(20)));
    assert_eq!(state.holders[0].until, ServerTime(150));
}

fn request(id: &str) -> Request {
    Request {
        id: id.to_owned(),
        permits: 1,
        lease: 100,
        claim: 10,
        wait: true,
        fresh: true,
        owner: Owner::default(),
    }
}

fn asking(id: &str, request: Request) -> Operation {
    Operation {
        id: id.to_owned(),
        leave: Vec::new(),
        leave_capacity: None,
        evict: Evict::Nobody,
        proclaim: None,
        requests: Some(Requests {
            kind: Kind::Mutex,
            capacity: 1,
            entries: vec![request],
            adopts: None,
        }),
        expects: Expects::Nothing,
        room: QUEUE_MOST,
        keep: 1_000,
    }
}
