use super::{State, apply, renew, renew_and_show};
use crate::protocol::{
    Awaited, Change, Entry, Evict, Expects, HoldEnd, Identity, Kept, KeptUntil, Kind, Operation, Owner, Request,
    ServerTime, Showing, Use,
    fixtures::{MUTEX, PERMITS, asking, asking_for, holder, kept, leaving, lock, operation, request, waiter},
    wake::{self, Left},
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
        let change = Change {
            value: Some((value.to_owned(), number)),
            ..Change::of("a-1".to_owned(), state.holders[0].token)
        };
        let operation = Operation {
            change: Some(change),
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
fn a_state_tells_who_is_there() {
    let held = apply(None, &asking("a.1", request("a-1")), ServerTime(1_000)).expect("it is created");
    let waited_for = apply(Some(&held), &asking("b.1", request("b-1")), ServerTime(1_050)).expect("it stays");
    assert_eq!((held.version, waited_for.version), (1, 2));

    // The holder's lease ends at 1,100 and the waiter's at 1,150.
    for (state, end) in [(&held, 1_100), (&waited_for, 1_150)] {
        assert!(!state.is_free(ServerTime(end - 1)) && state.is_free(ServerTime(end)));
    }
    let has = |ids: &[&str]| waited_for.has_any(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
    assert!(has(&["a-1"]) && has(&["c-1", "b-1"]) && !has(&["c-1"]) && !has(&[]));

    let mut broken = held.clone();
    let told = |state: &State| [6, 7, 8, 9].map(|token| state.was_broken(token));
    assert_eq!(told(&broken), [false; 4]);
    broken.broken = Some(7);
    assert_eq!(told(&broken), [true, true, false, false]);
    broken.evicted = Some(9);
    assert_eq!(told(&broken), [true, true, false, true]);
}

#[test]
fn an_operation_changes_a_document_that_has_anything_for_it_to_do() {
    let of_two = Entry {
        permits: 2,
        ..holder("a-1", 7)
    };
    let there = lock(PERMITS, [of_two], [waiter("b-1")]);
    let changing = |id: &str| Operation {
        change: Some(Change::of(id.to_owned(), 7)),
        ..operation("x.1")
    };
    let evicting = |token| Operation {
        evict: Evict::Holder(token),
        ..operation("x.1")
    };
    let cases = [
        (asking_for("x.1", PERMITS, [request("c-1")]), true),
        (leaving("x.1", "a-1"), true),
        (leaving("x.1", "b-1"), true),
        (leaving("x.1", "c-1"), false),
        (changing("a-1"), true),
        (changing("b-1"), false),
        (evicting(7), true),
        (evicting(8), false),
        (operation("x.1"), false),
    ];
    for (operation, changes) in cases {
        // Whether there is anybody to evict is decided in the pipeline.
        assert_eq!(
            operation.selects(&there),
            changes || operation.breaks(),
            "{operation:?}"
        );
        let after = applied(&there, &operation, 1);
        assert_eq!(after.version, there.version + i64::from(changes), "{operation:?}");
    }
}

#[test]
fn an_operation_changes_nothing_where_the_document_is_not_as_expected() {
    let free = lock(MUTEX, [], []);
    let held = lock(MUTEX, [holder("a-1", 7)], []);
    let held_by_another = lock(MUTEX, [holder("c-1", 7)], []);
    let released = lock(MUTEX, [kept("a-1", 7)], []);
    let waited_for = lock(MUTEX, [holder("a-1", 7)], [waiter("b-1")]);
    let only_waited_for = lock(MUTEX, [], [waiter("b-1")]);
    let of_another_kind = lock(PERMITS, [], []);
    let release = |expects| Operation {
        expects,
        ..leaving("a.1", "a-1")
    };
    let acquire = |expects| Operation {
        expects,
        ..asking("c.1", request("c-1"))
    };
    let evict = |evict| Operation {
        evict,
        ..operation("x.1")
    };
    let cases = [
        (evict(Evict::Everybody), &held, true),
        (evict(Evict::Everybody), &waited_for, true),
        (evict(Evict::Everybody), &released, true),
        (evict(Evict::Everybody), &only_waited_for, false),
        (evict(Evict::Holder(7)), &held, true),
        (evict(Evict::Holder(8)), &held, false),
        (release(Expects::Holding), &held, true),
        (release(Expects::Holding), &waited_for, true),
        (release(Expects::Holding), &held_by_another, false),
        (release(Expects::Holding), &released, false),
        (release(Expects::Alone), &held, true),
        (release(Expects::Alone), &waited_for, false),
        (release(Expects::Alone), &held_by_another, false),
        (release(Expects::Alone), &released, false),
        (acquire(Expects::Alone), &free, true),
        (acquire(Expects::Alone), &held, false),
        (acquire(Expects::Alone), &only_waited_for, false),
        (acquire(Expects::Alone), &of_another_kind, false),
    ];
    for (operation, before, changes) in cases {
        let is_changed = applied(before, &operation, 2) != *before;
        assert_eq!(is_changed, changes, "{operation:?} of {before:?}");
    }
}

#[test]
fn a_request_creates_a_document_unless_it_expects_one() {
    let created = |expects| {
        let asks = Operation {
            expects,
            ..asking("a.1", request("a-1"))
        };
        apply(None, &asks, ServerTime(1))
    };
    assert_eq!(entries(&created(Expects::Nothing).expect("it is created")).0, ["a-1"]);
    assert_eq!(created(Expects::Alone), created(Expects::Nothing));
    assert_eq!(apply(None, &leaving("a.1", "a-1"), ServerTime(1)), None);
    // An upgrade has no reader in it, and comes in with nobody: the token would be none. Another entry is granted.
    let upgrade = Request {
        upgrades: Some("a-1".to_owned()),
        ..request("a-2")
    };
    let upgrades = [true, false].map(|wait| Request {
        wait,
        ..upgrade.clone()
    });
    for upgrade in upgrades {
        assert_eq!(apply(None, &asking("a.2", upgrade), ServerTime(1)), None);
    }
    let beside = asking_for("a.2", MUTEX, [upgrade, request("a-3")]);
    let state = apply(None, &beside, ServerTime(1)).expect("it is created");
    assert_eq!((entries(&state), state.token), ((vec!["a-3"], vec![]), 1_000));
}

#[test]
fn as_many_are_granted_as_fit_and_a_small_request_never_passes_a_large_one() {
    let wants = |id: &str, permits| Request { permits, ..request(id) };
    let requests = [wants("a-1", 4), wants("a-2", 4), wants("a-3", 4), wants("a-4", 1)];
    let state = apply(None, &asking_for("a.1", PERMITS, requests), ServerTime(0)).expect("it is created");
    assert_eq!(entries(&state), (vec!["a-1", "a-2"], vec!["a-3", "a-4"]));
    let state = applied(&state, &leaving("a.2", "a-1"), 1);
    assert_eq!(entries(&state), (vec!["a-2", "a-3", "a-4"], vec![]));
    assert_eq!(state.wake, "a.2:h;a-3+1000;a-4+1001;");
    // Those that are woken begin on their claim leases.
    let ends: Vec<i64> = state.holders.iter().map(|holder| holder.until.0).collect();
    assert_eq!(ends, [100, 11, 11]);
}

#[test]
fn an_entry_that_upgrades_a_holder_goes_before_all_others_and_needs_that_holder() {
    let wants = |id: &str, permits| Request { permits, ..request(id) };
    let upgrade = |id: &str, reader: &str| Request {
        upgrades: Some(reader.to_owned()),
        ..wants(id, 3)
    };
    // Eight permits: an upgradeable reader takes five, and needs the three others too.
    let used = (Kind::RwLock, 8);
    let readers = asking_for("a.1", used, [wants("a-1", 5), wants("b-1", 1), wants("c-1", 8)]);
    let state = apply(None, &readers, ServerTime(0)).expect("it is created");
    assert_eq!(entries(&state), (vec!["a-1", "b-1"], vec!["c-1"]));
    // Nobody is cut off by it, and it is not cut off.
    let full = |operation| Operation { room: 1, ..operation };
    let waits = full(asking_for("a.2", used, [upgrade("a-2", "a-1")]));
    let waiting = applied(&state, &waits, 1);
    assert_eq!(entries(&waiting), (vec!["a-1", "b-1"], vec!["a-2", "c-1"]));
    // An earlier version puts a request in front that adopts; the next request overtakes that.
    let mut adopted = waiting.clone();
    adopted.queue.rotate_left(1);
    let again = Request {
        fresh: false,
        ..upgrade("a-2", "a-1")
    };
    let overtaken = applied(&adopted, &asking_for("a.3", used, [again.clone()]), 1);
    assert_eq!(entries(&overtaken).1, ["a-2", "c-1"]);
    let unchanged = applied(&waiting, &asking_for("a.3", used, [again.clone()]), 1);
    assert_eq!(unchanged, waiting);
    // Once it is in a full queue it makes no room for another.
    let beside = full(asking_for("a.3", used, [again, wants("a-3", 1)]));
    let beside = applied(&waiting, &beside, 1);
    assert_eq!(entries(&beside).1, ["a-2", "c-1"]);
    // Readers that come later wait, and the last one before it lets it in.
    let later = applied(&waiting, &asking_for("d.1", used, [wants("d-1", 1)]), 1);
    assert_eq!(entries(&later).1, ["a-2", "c-1", "d-1"]);
    let writes = applied(&later, &leaving("b.2", "b-1"), 2);
    assert_eq!(entries(&writes), (vec!["a-1", "a-2"], vec!["c-1", "d-1"]));
    assert!(writes.holders[1].token > state.token && writes.token == writes.holders[1].token);
    // One that does not wait, and does not fit, keeps nobody out.
    let mut free = waiting.clone();
    free.queue.retain(|waiter| waiter.id != "a-2");
    let try_upgrade = Request {
        wait: false,
        ..upgrade("a-3", "a-1")
    };
    let together = asking_for("a.3", used, [wants("a-1", 5), try_upgrade.clone()]);
    let in_vain = applied(&free, &together, 2);
    assert_eq!(entries(&in_vain), (vec!["a-1", "b-1"], vec!["c-1"]));
    free.queue[0].permits = 1;
    let in_vain = applied(&free, &together, 2);
    assert_eq!(entries(&in_vain), (vec!["a-1", "b-1", "c-1"], vec![]));
    free.holders.retain(|holder| holder.id == "a-1");
    let fits = applied(&free, &asking_for("a.3", used, [try_upgrade]), 2);
    assert_eq!(entries(&fits), (vec!["a-1", "a-3"], vec!["c-1"]));
    // Without the reader it is not in the queue.
    let without = applied(&state, &leaving("a.4", "a-1"), 3);
    let late = applied(&without, &asking_for("a.2", used, [upgrade("a-2", "a-1")]), 4);
    assert_eq!(entries(&late), (vec!["b-1"], vec!["c-1"]));
}

#[test]
fn a_token_is_larger_than_all_before_it_and_not_behind_the_clock() {
    let with_range = Request {
        reserve: 3,
        ..request("a-1")
    };
    let first = apply(None, &asking("a.1", with_range), ServerTime(5)).expect("it is created");
    assert_eq!((first.holders[0].token, first.token), (5_000, 5_003));
    let hands_over = Operation {
        leave: vec!["a-1".to_owned()],
        ..asking("b.1", request("b-1"))
    };
    assert_eq!(applied(&first, &hands_over, 5).holders[0].token, 5_004);
    // The counter was lost with its document.
    let anew = applied(&lock(MUTEX, [], []), &asking("b.1", request("b-1")), 6);
    assert_eq!(anew.holders[0].token, 6_000);
}

#[test]
fn an_entry_goes_as_soon_as_its_lease_is_over() {
    let asks = asking("c.1", request("c-1"));
    let before = lock(MUTEX, [lasting("a-1", 7)], [waiter("b-1")]);
    assert_eq!(entries(&applied(&before, &asks, 99)), (vec!["a-1"], vec!["b-1", "c-1"]));
    assert_eq!(entries(&applied(&before, &asks, 100)), (vec!["a-1"], vec!["c-1"]));
    let before = lock(MUTEX, [holder("a-1", 7)], []);
    assert_eq!(entries(&applied(&before, &asks, 99)), (vec!["a-1"], vec!["c-1"]));
    assert_eq!(entries(&applied(&before, &asks, 100)), (vec!["c-1"], vec![]));
}

/// An entry that no write has removed so far is no hold either: an operator finds nobody, and a release comes too late.
#[test]
fn a_hold_whose_time_is_over_is_nobodys_to_break_or_to_release() {
    let alone = lock(MUTEX, [holder("a-1", 7)], []);
    let waited_for = lock(
        MUTEX,
        [holder("a-1", 7)],
        [Entry {
            until: ServerTime(1_000),
            ..waiter("b-1")
        }],
    );
    let among = lock(PERMITS, [holder("a-1", 7)], []);
    let kept = lock(MUTEX, [kept("a-1", 7)], []);
    let breaks = [Evict::Everybody, Evict::Holder(7)].map(|evict| Operation {
        evict,
        ..operation("x.1")
    });
    let releases = |expects| Operation {
        expects,
        ..leaving("a.1", "a-1")
    };
    for before in [&alone, &waited_for, &among, &kept] {
        for breaks in &breaks {
            for (now, evicted) in [(99, true), (100, false)] {
                assert_eq!(applied(before, breaks, now) != *before, evicted, "{breaks:?} at {now}");
            }
        }
    }
    for before in [&alone, &waited_for, &among] {
        for expects in [Expects::Holding, Expects::Alone, Expects::Nothing] {
            let letter = |now| {
                let after = applied(before, &releases(expects), now);
                wake::left(&after.wake, "a.1").and_then(|mut left| left.next())
            };
            let in_full = expects == Expects::Nothing;
            let suits = in_full || expects == Expects::Holding || before.queue.is_empty();
            assert_eq!(letter(99), suits.then_some(Left::Holder), "{expects:?}");
            assert_eq!(letter(100), in_full.then_some(Left::Nowhere), "{expects:?}");
        }
    }
}

/// Of several holders an operator evicts those whose time is not over, and no others are named.
#[test]
fn a_break_evicts_those_that_still_hold() {
    let before = lock(PERMITS, [lasting("a-1", 7), holder("b-1", 8)], []);
    let evicts = |evict| Operation {
        evict,
        ..operation("x.1")
    };
    let all = applied(&before, &evicts(Evict::Everybody), 100);
    assert_eq!(entries(&all), (vec![], vec![]));
    assert_eq!((all.wake.as_str(), all.broken), ("x.1:;a-1!7;", Some(7)));
    let one = applied(&before, &evicts(Evict::Holder(7)), 100);
    assert_eq!((one.wake.as_str(), one.evicted), ("x.1:;a-1!7;", Some(7)));
    assert_eq!(applied(&before, &evicts(Evict::Holder(8)), 100), before);
}

#[test]
fn a_release_after_the_end_of_the_lease_keeps_no_lock() {
    let before = lock(MUTEX, [holder("a-1", 7)], []);
    assert_eq!(applied(&before, &keeping(), 99).holders[0].until, ServerTime(99 + 90));
    for late in [100, 101] {
        assert!(applied(&before, &keeping(), late).holders.is_empty(), "{late}");
    }
}

#[test]
fn the_first_waiter_is_to_ask_where_the_lock_is_kept() {
    let before = lock(MUTEX, [holder("a-1", 7)], [waiter("b-1")]);
    assert_eq!(applied(&before, &keeping(), 1).wake, "a.1:h;b-1*;");
    assert_eq!(applied(&before, &leaving("a.1", "a-1"), 1).wake, "a.1:h;b-1+1000;");
}

#[test]
fn a_repeated_request_writes_only_if_less_than_nine_tenths_of_its_lease_are_left() {
    let before = lock(MUTEX, [lasting("a-1", 7)], [waiter("b-1")]);
    let repeated = Request {
        fresh: false,
        ..request("b-1")
    };
    for now in [9, 10] {
        assert_eq!(applied(&before, &asking("b.2", repeated.clone()), now), before);
    }
    let refreshed = applied(&before, &asking("b.2", repeated), 11);
    assert_eq!(refreshed.queue[0].until, ServerTime(111));
    // A first request that comes after its repetition gives nothing.
    let late = applied(&before, &asking("b.1", request("b-1")), 50);
    assert_eq!(late.queue[0].until, ServerTime(100));
}

#[test]
fn a_try_does_not_stay_in_the_queue_and_others_do() {
    let all = Entry {
        permits: 10,
        ..holder("a-1", 7)
    };
    let before = lock(PERMITS, [all], [waiter("b-1")]);
    let tries = Request {
        wait: false,
        ..request("c-2")
    };
    let both = asking_for("c.1", PERMITS, [request("c-1"), tries.clone()]);
    assert_eq!(entries(&applied(&before, &both, 1)), (vec!["a-1"], vec!["b-1", "c-1"]));
    assert_eq!(applied(&before, &asking_for("c.1", PERMITS, [tries]), 1), before);
}

#[test]
fn a_change_takes_permits_from_the_grant_that_it_names_and_adds_none() {
    let half = |id: &str, token| Entry {
        permits: 5,
        ..holder(id, token)
    };
    let before = lock(PERMITS, [half("a-1", 7), half("c-1", 8)], [waiter("b-1")]);
    let mut released = before.clone();
    released.holders[0].released = Some(ServerTime(0));
    let held = |before: &State, id: &str, token, permits| {
        let change = Change {
            permits,
            ..Change::of(id.to_owned(), token)
        };
        let changes = Operation {
            change: Some(change),
            ..operation("x.1")
        };
        let after = applied(before, &changes, 1);
        after.holders.iter().map(|holder| holder.permits).collect::<Vec<i64>>()
    };
    assert_eq!(held(&before, "a-1", 7, 2), [2, 5, 1], "the next one fits");
    assert_eq!(held(&before, "a-1", 7, 6), [5, 5]);
    assert_eq!(held(&before, "a-1", 8, 2), [5, 5]);
    assert_eq!(held(&before, "c-1", 7, 2), [5, 5]);
    assert_eq!(held(&released, "a-1", 7, 2), [5, 5]);
}

#[test]
fn a_change_renews_for_a_lease_that_only_grows() {
    let before = lock((Kind::Mutex, 1), [holder("a-1", 7)], []);
    let (lease, until) = (before.holders[0].lease, before.holders[0].until);
    let renewed = |lease, now| {
        let change = Some(Change {
            lease,
            ..Change::of("a-1".to_owned(), 7)
        });
        let after = applied(
            &before,
            &Operation {
                change,
                ..operation("x.1")
            },
            now,
        );
        (after.holders[0].lease, after.holders[0].until)
    };
    assert_eq!(renewed(lease + 9, 1), (lease + 9, ServerTime(1 + lease + 9).max(until)));
    assert_eq!(renewed(1, 1), (lease, ServerTime(1 + lease).max(until)));
}

#[test]
fn a_change_hands_a_hold_to_another_entry_once() {
    let taking = |from: &str, to: &str| Operation {
        change: Some(Change {
            becomes: to.to_owned(),
            owner: Some(Owner {
                host: "other".to_owned(),
                ..Owner::default()
            }),
            ..Change::of(from.to_owned(), 7)
        }),
        ..operation("x.1")
    };
    let before = lock((Kind::Mutex, 1), [holder("detached-a-1", 7)], [waiter("c-1")]);
    let first = applied(&before, &taking("detached-a-1", "b-1"), 1);
    assert_eq!(entries(&first), (vec!["b-1"], vec!["c-1"]));
    assert_eq!(
        (first.holders[0].token, first.holders[0].owner.host.as_str()),
        (7, "other")
    );
    // Its answer was lost, and it comes again.
    let again = applied(&first, &taking("detached-a-1", "b-1"), 2);
    assert_eq!(entries(&again), entries(&first));
    assert!(again.holders[0].until >= first.holders[0].until);
    // Another client that takes the same hold comes too late.
    assert_eq!(applied(&first, &taking("detached-a-1", "c-2"), 2), first);
}

#[test]
fn an_eviction_names_those_that_lose_their_hold() {
    let before = lock(PERMITS, [holder("a-1", 7), holder("b-1", 8), holder("c-1", 9)], []);
    let evicted = |evict| {
        let operation = Operation {
            evict,
            ..operation("x.1")
        };
        applied(&before, &operation, 1)
    };
    let one = evicted(Evict::Holder(8));
    assert_eq!(entries(&one), (vec!["a-1", "c-1"], vec![]));
    assert_eq!(
        (one.wake.as_str(), one.evicted, one.broken),
        ("x.1:;b-1!8;", Some(8), None)
    );
    let all = evicted(Evict::Everybody);
    assert_eq!(entries(&all), (vec![], vec![]));
    assert_eq!(
        (all.wake.as_str(), all.evicted, all.broken),
        ("x.1:;a-1!7;b-1!8;c-1!9;", None, Some(9))
    );
}

#[test]
fn the_places_of_a_barrier_go_once_all_its_parties_have_passed() {
    let before = lock(PERMITS, [kept("a-1", 7), kept("b-1", 8), holder("c-1", 9)], []);
    for (last, stay) in [
        (7, vec!["b-1", "c-1"]),
        (8, vec!["c-1"]),
        // One up to there has not passed.
        (9, vec!["a-1", "b-1", "c-1"]),
    ] {
        let evicts = Operation {
            evict: Evict::Kept(last),
            ..operation("x.1")
        };
        let after = applied(&before, &evicts, 2);
        assert_eq!(entries(&after), (stay, vec![]), "{last}");
        // Nobody loses anything, so nobody is told.
        assert_eq!(
            (after.wake.as_str(), after.evicted, after.broken),
            ("x.1:;", None, None)
        );
    }
}

#[test]
fn the_last_holds_that_ended_are_recorded_newest_first() {
    let recording = |operation: Operation| Operation {
        history: 2,
        ..operation
    };
    let holders = (1..=3).map(|token| holder(&format!("a-{token}"), token));
    let mut state = lock(PERMITS, holders, []);
    for (token, recorded) in [(1, vec![1]), (2, vec![2, 1]), (3, vec![3, 2])] {
        let release = recording(leaving("a.1", &format!("a-{token}")));
        state = applied(&state, &release, 10 + token);
        let ends: Vec<i64> = state.ends.iter().map(|end| end.token).collect();
        assert_eq!(ends, recorded);
    }
    assert_eq!(
        (state.ends[0].ended, state.ends[0].how),
        (ServerTime(13), HoldEnd::Released)
    );
    // A write that ends nothing leaves them as they are, and so does a client that keeps no history.
    let asked = applied(&state, &recording(asking("b.1", request("b-1"))), 20);
    let released = applied(&asked, &leaving("b.2", "b-1"), 21);
    assert_eq!((&asked.ends, &released.ends), (&state.ends, &state.ends));
}

#[test]
fn holders_hear_that_another_session_has_lined_up() {
    let with_range = |used: Use, holders: i64, waiters: i64| {
        let holders = (1..=holders).map(|token| holder(&format!("a-{token}"), token));
        let waiters = (1..=waiters).map(|number| waiter(&format!("b-{number}")));
        State {
            token: 1_000,
            ..lock(used, holders, waiters)
        }
    };
    let hear = |before: &State, asks: Request| {
        let operation = asking_for("x.1", (before.kind, before.capacity), [asks]);
        applied(before, &operation, 1).wake.matches("?;").count()
    };
    let cases = [
        (with_range(MUTEX, 1, 0), 1),
        (lock(MUTEX, [holder("a-1", 7)], []), 1),
        // Only those who line up near the front say so.
        (with_range(MUTEX, 1, 2), 1),
        (with_range(MUTEX, 1, 3), 0),
        // Not too many of them are told.
        (with_range((Kind::Semaphore, 2), 2, 0), 2),
        (with_range((Kind::RwLock, 2), 2, 0), 2),
        (with_range((Kind::RwLock, 64), 64, 0), 64),
        (with_range((Kind::RwLock, 65), 65, 0), 0),
    ];
    for (before, number) in cases {
        assert_eq!(hear(&before, request("c-1")), number, "{before:?}");
    }
    let before = with_range(MUTEX, 1, 0);
    let lined_up = applied(&before, &asking("c.1", request("c-1")), 1);
    assert_eq!(lined_up.wake, "c.1:;a-1?;");
    assert_eq!(hear(&before, request("a-2")), 0, "it is the holder's own session");
    let tries = Request {
        wait: false,
        ..request("c-1")
    };
    assert_eq!(hear(&before, tries), 0, "it has not lined up");
}

/// An incarnation of one owner.
fn worker(born: i64) -> Owner {
    Owner {
        identity: Some(Identity {
            id: "worker".to_owned(),
            born,
        }),
        ..Owner::default()
    }
}

#[test]
fn a_later_incarnation_takes_what_is_held_and_leaves_what_is_over_or_kept() {
    let before = |held: Entry| {
        let held = Entry {
            owner: worker(1),
            ..held
        };
        let waits = Entry {
            owner: worker(1),
            ..waiter("a-2")
        };
        let other = Entry {
            until: ServerTime(1_000),
            ..waiter("b-1")
        };
        lock(MUTEX, [held], [waits, other])
    };
    let mut asks = asking(
        "n.1",
        Request {
            owner: worker(2),
            ..request("n-1")
        },
    );
    if let Some(requests) = &mut asks.requests {
        requests.adopts = worker(2).identity;
    }
    for (held, now, found, wake, adopted) in [
        (
            holder("a-1", 7),
            99,
            (vec!["n-1"], vec!["b-1"]),
            "n.1:;a-1~;a-2~;",
            vec![7],
        ),
        (
            holder("a-1", 7),
            100,
            (vec!["b-1"], vec!["n-1"]),
            "n.1:;b-1+100000;b-1?;",
            vec![],
        ),
        (
            kept("a-1", 7),
            99,
            (vec!["a-1"], vec!["b-1", "n-1"]),
            "n.1:;a-2~;a-1?;",
            vec![],
        ),
    ] {
        let after = applied(&before(held), &asks, now);
        assert_eq!(entries(&after), found, "{now}");
        assert_eq!((after.wake.as_str(), &after.adopted), (wake, &adopted));
    }
}

/// It wants more permits than its earlier incarnation had, and its other tasks try beside it.
#[test]
fn an_adopter_that_has_to_wait_cuts_nobody_off_the_queue() {
    let held = |id: &str, token, permits, owner| Entry {
        permits,
        owner,
        ..holder(id, token)
    };
    let waiters = ["c-1", "c-2"].map(waiter);
    let before = lock(
        PERMITS,
        [held("a-1", 7, 1, worker(1)), held("b-1", 8, 9, Owner::default())],
        waiters,
    );
    let wants = |id: &str, permits, wait| Request {
        permits,
        wait,
        owner: worker(2),
        ..request(id)
    };
    let tries = (2..5).map(|number| wants(&format!("n-{number}"), 1, false));
    let mut asks = asking_for("n.1", PERMITS, [wants("n-1", 2, true)].into_iter().chain(tries));
    asks.room = 2;
    if let Some(requests) = &mut asks.requests {
        requests.adopts = worker(2).identity;
    }
    let after = applied(&before, &asks, 1);
    assert_eq!(entries(&after), (vec!["b-1"], vec!["n-1", "c-1", "c-2"]));
    // Others don't cut it either, and come in when there is room.
    let asks = |id: &str, entry: &str| Operation {
        room: 2,
        ..asking_for(id, PERMITS, [request(entry)])
    };
    let after = applied(&after, &asks("d.1", "d-1"), 2);
    assert_eq!(entries(&after), (vec!["b-1"], vec!["n-1", "c-1", "c-2"]));
    let after = applied(&after, &leaving("b.1", "b-1"), 3);
    assert_eq!(entries(&after), (vec!["n-1", "c-1", "c-2"], vec![]));
}

#[test]
fn a_renewal_extends_the_holds_that_it_names_while_their_leases_run() {
    let [a, b] = [["a-1", "a-2"], ["b-1", "b-2"]].map(|ids| ids.map(str::to_owned));
    let mut state = lock(PERMITS, [holder("a-1", 7), holder("a-2", 8), holder("b-1", 9)], []);
    assert!(renew(&mut state, "a.9", &a, 1_000, ServerTime(99)));
    let ends: Vec<i64> = state.holders.iter().map(|holder| holder.until.0).collect();
    assert_eq!(ends, [199, 199, 100]);
    assert_eq!((state.wake.as_str(), state.version), ("a.9:;", 2));
    let before = state.clone();
    assert!(!renew(&mut state, "b.9", &b, 1_000, ServerTime(100)), "it is over");
    assert_eq!(state, before);
    let mut released = lock(MUTEX, [kept("a-1", 7)], []);
    assert!(
        !renew(&mut released, "a.9", &a, 1_000, ServerTime(99)),
        "it was released"
    );
}

#[test]
fn a_renewal_shows_which_holds_are_idle_or_wait_unless_a_later_one_has() {
    let mut state = lock(MUTEX, [holder("a-1", 7)], []);
    let ids = ["a-1".to_owned()];
    // At the time of the grant the lease stays as it is. A renewal can be late, also before the first that shows
    // anything.
    for (idle, as_of, writes, shown) in [
        (&ids[..], 2, true, true),
        (&ids[..], 2, false, true),
        (&ids[..0], 3, true, false),
        (&ids[..], 2, false, false),
        (&ids[..], 4, true, true),
        (&ids[..0], 3, false, true),
    ] {
        let awaited = Awaited {
            lock: "y".to_owned(),
            wait: as_of,
        };
        let shows = Showing {
            idle: idle.iter().cloned().collect(),
            awaits: idle.iter().map(|id| (id.clone(), awaited.clone())).collect(),
            as_of,
        };
        let written = renew_and_show(&mut state, "a.2", (&ids[..], Some(&shows)), 1_000, ServerTime(0));
        assert_eq!((written, state.holders[0].is_idle()), (writes, shown));
        let awaits = state.holders[0].shown.as_ref().and_then(|shown| shown.awaits.as_ref());
        assert_eq!(awaits.is_some(), shown);
    }
    assert!(!renew(&mut state, "a.2", &ids, 1_000, ServerTime(0)));
    assert!(state.holders[0].is_idle(), "it shows nothing");
}

/// Returns the document after this operation at this time.
fn applied(before: &State, operation: &Operation, now: i64) -> State {
    apply(Some(before), operation, ServerTime(now)).expect("it stays")
}

/// Returns the ids of the holders and of the waiters.
fn entries(state: &State) -> (Vec<&str>, Vec<&str>) {
    let holders = state.holders.iter().map(|holder| holder.id.as_str());
    let waiters = state.queue.iter().map(|waiter| waiter.id.as_str());
    (holders.collect(), waiters.collect())
}

/// A holder whose lease outlasts those of the others.
fn lasting(id: &str, token: i64) -> Entry {
    Entry {
        until: ServerTime(1_000),
        ..holder(id, token)
    }
}

/// The release of `a-1` under the token 7, after which the lock is kept for 90.
fn keeping() -> Operation {
    Operation {
        kept: vec![Kept {
            id: "a-1".to_owned(),
            token: 7,
            until: KeptUntil::AfterRelease(90),
        }],
        ..leaving("a.1", "a-1")
    }
}
