use super::{apply, renew};
use crate::protocol::{
    Evict, Expects, Kept, KeptUntil, Kind, Operation, Owner, Proclaim, QUEUE_MOST, Record, Request, Requests,
    ServerTime,
};

/// A server that was frozen runs the commands that are still in its sockets, in any order.
#[test]
fn a_first_request_that_its_own_repetition_overtook_adds_nothing() {
    let first = request("a-1");
    let repeated = Request {
        fresh: false,
        reserve: 0,
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

/// The TTL index is changed by few of the writes, and never promises less than was asked for.
#[test]
fn a_document_is_kept_long_enough_by_few_changes() {
    let mut state = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
    assert_eq!(state.purge_at, ServerTime(1_125));
    let ids = ["a-1".to_owned()];
    let mut changes = 0;
    for now in 1..=1_000 {
        let before = state.purge_at;
        assert!(renew(&mut state, "a.2", &ids, 1_000, ServerTime(now)));
        assert!(state.purge_at >= ServerTime(now + 1_000), "{now}");
        changes += u32::from(state.purge_at != before);
    }
    assert_eq!(changes, 7);
    // A request for less time shortens nothing; a request for more gets it.
    let before = state.purge_at;
    assert!(renew(&mut state, "a.3", &ids, 10, ServerTime(1_001)));
    assert_eq!(state.purge_at, before);
    assert!(renew(&mut state, "a.4", &ids, 2_000, ServerTime(1_002)));
    assert_eq!(state.purge_at, ServerTime(1_002 + 2_250));
}

/// The windows of a job, the time after its release, and the time after its grant: each by the server's clock.
#[test]
fn a_kept_lock_opens_when_its_time_is_over_and_not_before() {
    let held = apply(None, &asking("a.1", request("a-1")), ServerTime(1_030)).expect("it is created");
    let token = held.token;
    let cases = [
        (KeptUntil::AfterGrant(90), 1_120),
        (KeptUntil::AfterRelease(90), 1_130),
        (KeptUntil::WindowEnd { length: 50, offset: 0 }, 1_050),
        (KeptUntil::WindowEnd { length: 50, offset: 20 }, 1_070),
        (KeptUntil::WindowEnd { length: 50, offset: 31 }, 1_031),
        (KeptUntil::WindowEnd { length: 50, offset: 30 }, 1_030 + 50),
        // Too late to be kept for anything.
        (KeptUntil::AfterGrant(10), 1_040),
        (KeptUntil::WindowEnd { length: 5, offset: 0 }, 1_035),
    ];
    for (until, end) in cases {
        let release = Operation {
            leave: vec!["a-1".to_owned()],
            kept: vec![Kept {
                id: "a-1".to_owned(),
                token,
                until,
            }],
            requests: None,
            ..asking("a.2", request("a-1"))
        };
        let released = apply(Some(&held), &release, ServerTime(1_040)).expect("it stays");
        if end <= 1_040 {
            assert!(released.holders.is_empty(), "{until:?}");
            continue;
        }
        assert_eq!(
            (released.holders[0].until, released.holders[0].released),
            (ServerTime(end), Some(ServerTime(1_040)))
        );
        let before = apply(Some(&released), &asking("b.1", request("b-1")), ServerTime(end - 1)).expect("it stays");
        assert_eq!((before.holders.len(), before.queue.len()), (1, 1), "{until:?}");
        let after = apply(Some(&released), &asking("b.1", request("b-1")), ServerTime(end)).expect("it stays");
        assert_eq!(
            (after.holders[0].id.as_str(), after.holders.len()),
            ("b-1", 1),
            "{until:?}"
        );
    }
}

/// A request that was on its way for long can put the entry in once more, under another token.
#[test]
fn what_keeps_a_lock_names_one_grant_of_the_entry() {
    let ghost = apply(None, &asking("a.1", request("a-1")), ServerTime(0)).expect("it is created");
    let release = Operation {
        leave: vec!["a-1".to_owned()],
        kept: vec![Kept {
            id: "a-1".to_owned(),
            token: ghost.token - 1,
            until: KeptUntil::AfterGrant(90),
        }],
        requests: None,
        ..asking("a.2", request("a-1"))
    };
    let after = apply(Some(&ghost), &release, ServerTime(1)).expect("it stays");
    assert!(after.holders.is_empty());
}

/// What readers of the document are told: by its leases, its tokens and the number of its writes.
#[test]
fn a_state_tells_who_is_there_and_which_of_two_is_the_earlier() {
    let held = apply(None, &asking("a.1", request("a-1")), ServerTime(1_000)).expect("it is created");
    let waited_for = apply(Some(&held), &asking("b.1", request("b-1")), ServerTime(1_050)).expect("it stays");
    assert_eq!((held.version, waited_for.version), (1, 2));
    assert!(held.is_before(&waited_for) && !waited_for.is_before(&held) && !held.is_before(&held));
    // In the same millisecond, the number of the write tells.
    let at_once = apply(Some(&held), &asking("b.1", request("b-1")), ServerTime(1_000)).expect("it stays");
    assert!(held.is_before(&at_once));
    // Of a document that was deleted and created anew, neither is taken for the earlier one.
    let mut former = waited_for.clone();
    (former.version, former.at) = (3, ServerTime(999));
    assert!(!held.is_before(&former) && !former.is_before(&held));

    // The holder's lease ends at 1,100 and the waiter's at 1,150.
    for (state, end) in [(&held, 1_100), (&waited_for, 1_150)] {
        assert!(!state.is_free(ServerTime(end - 1)) && state.is_free(ServerTime(end)));
    }
    let mut due = held.clone();
    due.purge_at = ServerTime(1_120);
    let is_purged = [1_099, 1_119, 1_120].map(|now| due.is_purged(ServerTime(now)));
    assert_eq!(is_purged, [false, false, true]);
    due.purge_at = ServerTime(1_000);
    assert!(!due.is_purged(ServerTime(1_099)), "it is held");

    let has = |ids: &[&str]| waited_for.has_any(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
    assert!(has(&["a-1"]) && has(&["c-1", "b-1"]) && !has(&["c-1"]) && !has(&[]));

    let mut broken = held.clone();
    let told = |state: &super::State| [6, 7, 8, 9].map(|token| state.was_broken(token));
    assert_eq!(told(&broken), [false; 4]);
    broken.broken = Some(7);
    assert_eq!(told(&broken), [true, true, false, false]);
    broken.evicted = Some(9);
    assert_eq!(told(&broken), [true, true, false, true]);
}

fn request(id: &str) -> Request {
    Request {
        id: id.to_owned(),
        permits: 1,
        lease: 100,
        claim: 10,
        wait: true,
        fresh: true,
        reserve: 0,
        owner: Owner::default(),
    }
}

fn asking(id: &str, request: Request) -> Operation {
    Operation {
        id: id.to_owned(),
        leave: Vec::new(),
        kept: Vec::new(),
        leave_capacity: None,
        evict: Evict::Nobody,
        proclaim: None,
        downgrade: None,
        requests: Some(Requests {
            kind: Kind::Mutex,
            capacity: 1,
            entries: vec![request],
            adopts: None,
        }),
        expects: Expects::Nothing,
        room: QUEUE_MOST,
        keep: 1_000,
        record: Record::default(),
    }
}
