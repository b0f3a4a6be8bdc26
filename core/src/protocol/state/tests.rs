//! The phases, each in a table of documents, operations and what is left behind. What must hold of every sequence of
//! operations (exclusion, rising tokens, order, one entry for an id, no revival) is the model's, with a seeded fault
//! for each.

use super::{State, apply, renew, renew_and_show};
use crate::protocol::{
    Awaited, Change, Entry, Evict, Expects, HoldEnd, Identity, Kept, KeptUntil, Kind, Operation, Owner, Request,
    ServerTime, Showing, Use,
    fixtures::{MUTEX, PERMITS, asking, asking_for, holder, kept, leaving, lock, operation, request, waiter},
};

/// A document, an operation, its time, and the document after it as [`shown`].
type Case<'a> = (&'a State, Operation, i64, &'a str);

#[track_caller]
fn check<'a>(cases: impl IntoIterator<Item = Case<'a>>) {
    for (before, operation, now, after) in cases {
        let found = applied(before, &operation, now);
        let found = if found == *before {
            "as it was".to_owned()
        } else {
            shown(&found)
        };
        assert_eq!(found, after, "{operation:?} at {now} on {before:?}");
    }
}

/// Returns the document after this operation at this time.
fn applied(before: &State, operation: &Operation, now: i64) -> State {
    apply(Some(before), operation, ServerTime(now)).expect("it stays")
}

/// Returns the ids of the holders, those of the waiters, and the words of the last write.
fn shown(state: &State) -> String {
    let ids = |entries: &[Entry]| entries.iter().map(|entry| format!("{} ", entry.id)).collect::<String>();
    format!("{}| {}| {}", ids(&state.holders), ids(&state.queue), state.wake)
}

/// Requests an entry where there is no document.
fn begun(entry: Request) -> State {
    apply(None, &asking("a.1", entry), ServerTime(0)).expect("it is created")
}

/// An entry whose lease outlasts those of the others.
fn lasting(entry: Entry) -> Entry {
    Entry {
        until: ServerTime(1_000),
        ..entry
    }
}

fn of_permits(permits: i64, entry: Entry) -> Entry {
    Entry { permits, ..entry }
}

fn wants(id: &str, permits: i64) -> Request {
    Request { permits, ..request(id) }
}

fn tries(request: Request) -> Request {
    Request { wait: false, ..request }
}

fn again(request: Request) -> Request {
    Request {
        fresh: false,
        ..request
    }
}

fn evicts(evict: Evict) -> Operation {
    Operation {
        evict,
        ..operation("x.1")
    }
}

fn changes(change: Change) -> Operation {
    Operation {
        change: Some(change),
        ..operation("x.1")
    }
}

fn releases(expects: Expects) -> Operation {
    Operation {
        expects,
        ..leaving("a.1", "a-1")
    }
}

/// The release of the grant of `a-1` under this token, after which the lock is kept.
fn keeping(token: i64, until: KeptUntil) -> Operation {
    Operation {
        kept: vec![Kept {
            id: "a-1".to_owned(),
            token,
            until,
        }],
        ..leaving("a.1", "a-1")
    }
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

fn adopting(mut operation: Operation, born: i64) -> Operation {
    if let Some(requests) = &mut operation.requests {
        requests.adopts = worker(born).identity;
    }
    operation
}

#[test]
fn a_document_shows_who_is_there_and_who_was_broken() {
    let held = begun(request("a-1"));
    let waited_for = applied(&held, &asking("b.1", request("b-1")), 50);
    assert_eq!((held.version, waited_for.version), (1, 2));
    // The holder's lease ends at 100 and the waiter's at 150.
    for (state, end) in [(&held, 100), (&waited_for, 150)] {
        assert!(!state.is_free(ServerTime(end - 1)) && state.is_free(ServerTime(end)));
    }
    let has = |ids: &[&str]| waited_for.has_any(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
    assert!(has(&["a-1"]) && has(&["c-1", "b-1"]) && !has(&["c-1"]) && !has(&[]));
    let (taken, not_taken, unknown) = (Some(true), Some(false), None);
    for (broken, evicted, were_broken, were_taken) in [
        (None, None, [false; 4], [not_taken; 4]),
        (
            Some(7),
            None,
            [true, true, false, false],
            [unknown, taken, not_taken, not_taken],
        ),
        (
            Some(7),
            Some(9),
            [true, true, false, true],
            [unknown, taken, unknown, taken],
        ),
    ] {
        let state = State {
            broken,
            evicted,
            ..held.clone()
        };
        assert_eq!([6, 7, 8, 9].map(|token| state.was_broken(token)), were_broken);
        assert_eq!([6, 7, 8, 9].map(|token| state.was_taken(token)), were_taken);
    }
}

#[test]
fn an_operation_changes_a_document_that_has_anything_for_it_to_do() {
    let there = lock(PERMITS, [of_permits(2, holder("a-1", 7))], [waiter("b-1")]);
    let changing = |id: &str| changes(Change::of(id.to_owned(), 7));
    for (operation, concerned) in [
        (asking_for("x.1", PERMITS, [request("c-1")]), true),
        (leaving("x.1", "a-1"), true),
        (leaving("x.1", "b-1"), true),
        (leaving("x.1", "c-1"), false),
        (changing("a-1"), true),
        (changing("b-1"), false),
        (evicts(Evict::Holder(7)), true),
        (evicts(Evict::Holder(8)), false),
        (operation("x.1"), false),
    ] {
        let after = applied(&there, &operation, 1);
        assert_eq!(after.version, there.version + i64::from(concerned), "{operation:?}");
    }
}

#[test]
fn a_request_creates_a_document_unless_it_expects_one_or_upgrades_a_reader() {
    let created =
        |operation: &Operation| apply(None, operation, ServerTime(1)).map(|state| (shown(&state), state.token));
    let alone = Operation {
        expects: Expects::Alone,
        ..asking("a.1", request("a-1"))
    };
    let in_full = asking("a.1", request("a-1"));
    let upgrade = Request {
        upgrades: Some("a-1".to_owned()),
        ..request("a-2")
    };
    let beside = asking_for("a.2", MUTEX, [upgrade.clone(), request("a-3")]);
    for (operation, found) in [
        (alone, Some("a-1 | | a.1:;")),
        (in_full, Some("a-1 | | a.1:;")),
        (leaving("a.1", "a-1"), None),
        // It has no reader in it, and comes in with nobody: the token would be none.
        (asking("a.2", upgrade.clone()), None),
        (asking("a.2", tries(upgrade)), None),
        (beside, Some("a-3 | | a.2:;")),
    ] {
        assert_eq!(created(&operation), found.map(|found| (found.to_owned(), 1_000)));
    }
}

#[test]
fn an_operation_changes_nothing_where_the_document_is_not_as_expected() {
    let free = lock(MUTEX, [], []);
    let held = lock(MUTEX, [holder("a-1", 7)], []);
    let by_another = lock(MUTEX, [holder("c-1", 7)], []);
    let released = lock(MUTEX, [kept("a-1", 7)], []);
    let waited_for = lock(MUTEX, [holder("a-1", 7)], [waiter("b-1")]);
    let only_waited_for = lock(MUTEX, [], [waiter("b-1")]);
    let of_another_kind = lock(PERMITS, [], []);
    let acquires = || Operation {
        expects: Expects::Alone,
        ..asking("c.1", request("c-1"))
    };
    let (holding, only_holder) = (|| releases(Expects::Holding), || releases(Expects::OnlyHolder));
    let alone = || releases(Expects::Alone);
    check([
        (&held, evicts(Evict::Everybody), 2, "| | x.1:;a-1!7;"),
        (&released, evicts(Evict::Everybody), 2, "| | x.1:;a-1!7;"),
        (&only_waited_for, evicts(Evict::Everybody), 2, "as it was"),
        (&held, evicts(Evict::Holder(7)), 2, "| | x.1:;a-1!7;"),
        (&held, evicts(Evict::Holder(8)), 2, "as it was"),
        (&held, holding(), 2, "| | a.1:h;"),
        (&waited_for, holding(), 2, "b-1 | | a.1:h;b-1+2000;"),
        (&by_another, holding(), 2, "as it was"),
        (&released, holding(), 2, "as it was"),
        (&held, only_holder(), 2, "| | a.1:h;"),
        (&waited_for, only_holder(), 2, "b-1 | | a.1:h;b-1+2000;"),
        (&by_another, only_holder(), 2, "as it was"),
        (&released, only_holder(), 2, "as it was"),
        (&held, alone(), 2, "| | a.1:h;"),
        (&waited_for, alone(), 2, "as it was"),
        (&by_another, alone(), 2, "as it was"),
        (&released, alone(), 2, "as it was"),
        (&free, acquires(), 2, "c-1 | | c.1:;"),
        (&held, acquires(), 2, "as it was"),
        (&only_waited_for, acquires(), 2, "as it was"),
        (&of_another_kind, acquires(), 2, "as it was"),
    ]);
}

#[test]
fn a_release_lets_in_those_that_fit_on_their_claim_leases() {
    let requests = [wants("a-1", 4), wants("a-2", 4), wants("a-3", 4), wants("a-4", 1)];
    let full = apply(None, &asking_for("a.1", PERMITS, requests), ServerTime(0)).expect("it is created");
    check([(
        &full,
        leaving("a.2", "a-1"),
        1,
        "a-2 a-3 a-4 | | a.2:h;a-3+1000;a-4+1001;",
    )]);
    let after = applied(&full, &leaving("a.2", "a-1"), 1);
    assert_eq!(
        after.holders.iter().map(|it| it.until.0).collect::<Vec<_>>(),
        [100, 11, 11]
    );
}

/// An entry that no write has removed so far is no hold either: an operator finds nobody, and a release comes too late.
#[test]
fn an_entry_whose_lease_is_over_is_nobodys() {
    let asks = || asking("c.1", request("c-1"));
    let [held, of_many] = [MUTEX, PERMITS].map(|used| lock(used, [holder("a-1", 7)], []));
    let lasts = lock(MUTEX, [lasting(holder("a-1", 7))], [waiter("b-1")]);
    let waited_for = lock(MUTEX, [holder("a-1", 7)], [lasting(waiter("b-1"))]);
    let kept = lock(MUTEX, [kept("a-1", 7)], []);
    check([
        (&lasts, asks(), 99, "a-1 | b-1 c-1 | c.1:;a-1?;"),
        (&lasts, asks(), 100, "a-1 | c-1 | c.1:;a-1?;"),
        (&held, asks(), 99, "a-1 | c-1 | c.1:;a-1?;"),
        (&held, asks(), 100, "c-1 | | c.1:;"),
        (&held, releases(Expects::Nothing), 100, "| | a.1:0;"),
        (
            &waited_for,
            releases(Expects::Nothing),
            100,
            "b-1 | | a.1:0;b-1+100000;",
        ),
    ]);
    for before in [&held, &waited_for, &of_many, &kept] {
        for evict in [Evict::Everybody, Evict::Holder(7)] {
            let evicted = [99, 100].map(|now| applied(before, &evicts(evict), now) != *before);
            assert_eq!(evicted, [true, false], "{evict:?} of {before:?}");
        }
    }
    for expects in [Expects::Holding, Expects::OnlyHolder, Expects::Alone] {
        let released = [99, 100].map(|now| applied(&held, &releases(expects), now) != held);
        assert_eq!(released, [true, false], "{expects:?}");
    }
}

/// The windows of a job, the time after its release, and the time after its grant: each by the server's clock.
#[test]
fn a_kept_lock_opens_when_its_time_is_over_and_not_before() {
    let held = apply(None, &asking("a.1", request("a-1")), ServerTime(1_030)).expect("it is created");
    let asks = asking("b.1", request("b-1"));
    let window = |length, offset| KeptUntil::WindowEnd { length, offset };
    for (until, end) in [
        (KeptUntil::AfterGrant(90), Some(1_120)),
        (KeptUntil::AfterRelease(90), Some(1_130)),
        (window(50, 0), Some(1_050)),
        (window(50, 20), Some(1_070)),
        (window(50, 30), Some(1_080)),
        // Too late to be kept for anything.
        (KeptUntil::AfterGrant(10), None),
        (window(50, 31), None),
        (window(5, 0), None),
    ] {
        let released = applied(&held, &keeping(held.token, until), 1_040);
        let kept = released.holders.first().map(|kept| (kept.until, kept.released));
        assert_eq!(
            kept,
            end.map(|end| (ServerTime(end), Some(ServerTime(1_040)))),
            "{until:?}"
        );
        let holders = |now| applied(&released, &asks, now).holders[0].id.clone();
        if let Some(end) = end {
            assert_eq!([end - 1, end].map(holders), ["a-1", "b-1"], "{until:?}");
        }
    }
    // A request that was on its way for long can put the entry in once more, under another token; and a release can
    // come after the end of the lease.
    let before = lock(MUTEX, [holder("a-1", 7)], [lasting(waiter("b-1"))]);
    let after = KeptUntil::AfterRelease(90);
    check([
        (&before, keeping(7, after), 99, "a-1 | b-1 | a.1:h;b-1*;"),
        (&before, keeping(6, after), 99, "b-1 | | a.1:h;b-1+99000;"),
        (&before, keeping(7, after), 100, "b-1 | | a.1:0;b-1+100000;"),
    ]);
}

#[test]
fn a_request_that_is_repeated_or_does_not_wait_writes_only_what_it_must() {
    let before = lock(MUTEX, [lasting(holder("a-1", 7))], [waiter("b-1")]);
    let repeated = || asking("b.2", again(request("b-1")));
    let both = asking("c.1", request("c-1"));
    check([
        (&before, repeated(), 33, "as it was"),
        (&before, repeated(), 34, "a-1 | b-1 | b.2:;a-1?;"),
        (&before, both, 1, "a-1 | b-1 c-1 | c.1:;a-1?;"),
        (&before, asking("c.1", tries(request("c-1"))), 1, "as it was"),
    ]);
    assert_eq!(applied(&before, &repeated(), 34).queue[0].until, ServerTime(134));
    // A first request that comes after its repetition gives nothing.
    let late = applied(&before, &asking("b.1", request("b-1")), 50);
    assert_eq!(late.queue[0].until, ServerTime(100));
}

#[test]
fn an_entry_that_upgrades_a_holder_goes_before_all_others_and_needs_that_holder() {
    let upgrade = |id: &str| Request {
        upgrades: Some("a-1".to_owned()),
        ..wants(id, 3)
    };
    // Eight permits: an upgradeable reader takes five, and needs the three others too.
    let used = (Kind::RwLock, 8);
    let readers = || [of_permits(5, holder("a-1", 7)), holder("b-1", 8)];
    let writer = || of_permits(8, waiter("c-1"));
    let state = lock(used, readers(), [writer()]);
    let waiting = lock(used, readers(), [of_permits(3, waiter("a-2")), writer()]);
    // An earlier version puts a request in front that adopts; the next request overtakes that.
    let mut adopted = waiting.clone();
    adopted.queue.rotate_left(1);
    let full = |entries: &[Request]| Operation {
        room: 1,
        ..asking_for("a.2", used, entries.iter().cloned())
    };
    let reader_waits = lock(used, readers(), [waiter("c-1")]);
    let only_reader = lock(used, [of_permits(5, holder("a-1", 7))], [waiter("c-1")]);
    let without = lock(used, [holder("b-1", 8)], [writer()]);
    check([
        // Nobody is cut off by it, and it is not cut off.
        (&state, full(&[upgrade("a-2")]), 1, "a-1 b-1 | a-2 c-1 | a.2:;b-1?;"),
        (
            &adopted,
            full(&[again(upgrade("a-2"))]),
            1,
            "a-1 b-1 | a-2 c-1 | a.2:;b-1?;",
        ),
        (&waiting, full(&[again(upgrade("a-2"))]), 1, "as it was"),
        // Once it is in a full queue it makes no room for another.
        (
            &waiting,
            full(&[again(upgrade("a-2")), wants("a-3", 1)]),
            1,
            "as it was",
        ),
        // The last reader before it lets it in.
        (
            &waiting,
            leaving("b.2", "b-1"),
            2,
            "a-1 a-2 | c-1 | b.2:h;a-2+2000;a-2?;",
        ),
        // One that does not wait, and does not fit, keeps nobody out, and makes no room.
        (
            &state,
            full(&[tries(upgrade("a-3")), again(wants("a-4", 1))]),
            2,
            "as it was",
        ),
        (&state, full(&[tries(upgrade("a-3"))]), 2, "as it was"),
        (
            &reader_waits,
            full(&[tries(upgrade("a-3"))]),
            2,
            "a-1 b-1 c-1 | | a.2:;c-1+2000;",
        ),
        (&only_reader, full(&[tries(upgrade("a-3"))]), 2, "a-1 a-3 | c-1 | a.2:;"),
        // Without the reader it is not in the queue.
        (&without, full(&[upgrade("a-2")]), 4, "b-1 | c-1 | a.2:;b-1?;"),
    ]);
}

#[test]
fn a_change_is_of_the_grant_that_it_names_and_takes_permits_for_a_lease_that_only_grows() {
    let of_five = |id: &str, token| of_permits(5, holder(id, token));
    let before = lock(PERMITS, [of_five("a-1", 7), of_five("c-1", 8)], [waiter("b-1")]);
    let mut released = before.clone();
    released.holders[0].released = Some(ServerTime(0));
    for (before, id, token, permits, lease, held) in [
        (&before, "a-1", 7, 2, 0, vec![(2, 101), (5, 100), (1, 11)]),
        (&before, "a-1", 7, 6, 9, vec![(5, 101), (5, 100)]),
        (&before, "a-1", 7, 6, 109, vec![(5, 110), (5, 100)]),
        (&before, "a-1", 8, 2, 109, vec![(5, 100), (5, 100)]),
        (&before, "c-1", 7, 2, 109, vec![(5, 100), (5, 100)]),
        (&released, "a-1", 7, 2, 109, vec![(5, 100), (5, 100)]),
    ] {
        let change = Change {
            permits,
            lease,
            ..Change::of(id.to_owned(), token)
        };
        let after = applied(before, &changes(change), 1);
        let found: Vec<_> = after
            .holders
            .iter()
            .map(|holder| (holder.permits, holder.until.0))
            .collect();
        assert_eq!(found, held, "{id} under {token}");
    }
}

#[test]
fn a_hold_goes_to_another_entry_once_and_keeps_the_later_value() {
    let taking = |to: &str| {
        changes(Change {
            becomes: to.to_owned(),
            owner: Some(worker(1)),
            ..Change::of("detached-a-1".to_owned(), 7)
        })
    };
    let before = lock(MUTEX, [holder("detached-a-1", 7)], [waiter("c-1")]);
    let first = applied(&before, &taking("b-1"), 1);
    assert_eq!((first.holders[0].token, &first.holders[0].owner), (7, &worker(1)));
    check([
        (&before, taking("b-1"), 1, "b-1 | c-1 | x.1:;"),
        // Its answer was lost, and it comes again; another client that takes the same hold comes too late.
        (&first, taking("b-1"), 2, "b-1 | c-1 | x.1:;"),
        (&first, taking("c-2"), 2, "as it was"),
    ]);
    let mut state = begun(request("a-1"));
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
        state = applied(&state, &changes(change), 1);
        assert_eq!(state.holders[0].owner.value.as_deref(), Some(stands));
    }
}

#[test]
fn an_eviction_names_those_that_lose_their_hold() {
    let three = lock(
        PERMITS,
        [holder("a-1", 7), lasting(holder("b-1", 8)), holder("c-1", 9)],
        [],
    );
    for (evict, now, after, (evicted, broken)) in [
        (Evict::Holder(8), 1, "a-1 c-1 | | x.1:;b-1!8;", (Some(8), None)),
        (Evict::Everybody, 1, "| | x.1:;a-1!7;b-1!8;c-1!9;", (None, Some(9))),
        // Those whose time is over lose nothing.
        (Evict::Everybody, 100, "| | x.1:;b-1!8;", (None, Some(8))),
        (Evict::Holder(9), 100, "as it was", (None, None)),
    ] {
        check([(&three, evicts(evict), now, after)]);
        let found = applied(&three, &evicts(evict), now);
        assert_eq!((found.evicted, found.broken), (evicted, broken));
    }
    // The places of a barrier go once all its parties have passed; nobody loses anything, so nobody is told.
    let barrier = lock(PERMITS, [kept("a-1", 7), kept("b-1", 8), holder("c-1", 9)], []);
    check([
        (&barrier, evicts(Evict::Kept(7)), 2, "b-1 c-1 | | x.1:;"),
        (&barrier, evicts(Evict::Kept(8)), 2, "c-1 | | x.1:;"),
        (&barrier, evicts(Evict::Kept(9)), 2, "a-1 b-1 c-1 | | x.1:;"),
    ]);
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
        state = applied(&state, &recording(leaving("a.1", &format!("a-{token}"))), 10 + token);
        let ends: Vec<i64> = state.ends.iter().map(|end| end.token).collect();
        assert_eq!(ends, recorded);
    }
    let last = &state.ends[0];
    assert_eq!((last.ended, last.how), (ServerTime(13), HoldEnd::Released));
    // A write that ends nothing leaves them as they are, and so does a client that keeps no history.
    let asked = applied(&state, &recording(asking("b.1", request("b-1"))), 20);
    let released = applied(&asked, &leaving("b.2", "b-1"), 21);
    assert_eq!((&asked.ends, &released.ends), (&state.ends, &state.ends));
}

#[test]
fn holders_hear_that_another_session_has_lined_up() {
    let of = |used: Use, holders: i64, waiters: i64| {
        let holders = (1..=holders).map(|token| holder(&format!("a-{token}"), token));
        lock(
            used,
            holders,
            (1..=waiters).map(|number| waiter(&format!("b-{number}"))),
        )
    };
    for (before, asks, heard) in [
        (of(MUTEX, 1, 0), request("c-1"), 1),
        // Only those who line up near the front say so.
        (of(MUTEX, 1, 2), request("c-1"), 1),
        (of(MUTEX, 1, 3), request("c-1"), 0),
        // Not too many of them are told.
        (of((Kind::Semaphore, 2), 2, 0), request("c-1"), 2),
        (of((Kind::RwLock, 64), 64, 0), request("c-1"), 64),
        (of((Kind::RwLock, 65), 65, 0), request("c-1"), 0),
        // It is the holder's own session, or has not lined up.
        (of(MUTEX, 1, 0), request("a-2"), 0),
        (of(MUTEX, 1, 0), tries(request("c-1")), 0),
    ] {
        let operation = asking_for("x.1", (before.kind, before.capacity), [asks]);
        let wake = applied(&before, &operation, 1).wake;
        assert_eq!(wake.matches("?;").count(), heard, "{before:?}");
    }
}

#[test]
fn a_later_incarnation_takes_what_is_held_and_leaves_what_is_over_or_kept() {
    let owned = |entry: Entry| Entry {
        owner: worker(1),
        ..entry
    };
    let before = |held: Entry| lock(MUTEX, [owned(held)], [owned(waiter("a-2")), lasting(waiter("b-1"))]);
    let asks = adopting(asking("n.1", request("n-1")), 2);
    for (held, now, after, adopted) in [
        (holder("a-1", 7), 99, "n-1 | b-1 | n.1:;a-1~;a-2~;", vec![7]),
        (holder("a-1", 7), 100, "b-1 | n-1 | n.1:;b-1+100000;b-1?;", vec![]),
        (kept("a-1", 7), 99, "a-1 | b-1 n-1 | n.1:;a-2~;a-1?;", vec![]),
    ] {
        let found = applied(&before(held), &asks, now);
        assert_eq!((shown(&found).as_str(), found.adopted), (after, adopted));
    }
}

/// It wants more permits than its earlier incarnation had, and its other tasks try beside it.
#[test]
fn an_adopter_that_has_to_wait_cuts_nobody_off_the_queue() {
    let earlier = Entry {
        owner: worker(1),
        ..holder("a-1", 7)
    };
    let before = lock(
        PERMITS,
        [earlier, of_permits(9, holder("b-1", 8))],
        ["c-1", "c-2"].map(waiter),
    );
    let beside = (2..5).map(|number| tries(request(&format!("n-{number}"))));
    let entries = [wants("n-1", 2)].into_iter().chain(beside);
    let in_full = |operation| Operation { room: 2, ..operation };
    let asks = in_full(adopting(asking_for("n.1", PERMITS, entries), 2));
    let waits = applied(&before, &asks, 1);
    let other = in_full(asking_for("d.1", PERMITS, [request("d-1")]));
    check([
        (&before, asks, 1, "b-1 | n-1 c-1 c-2 | n.1:;a-1~;b-1?;"),
        // Others don't cut it either, and come in when there is room.
        (&waits, other, 2, "b-1 | n-1 c-1 c-2 | d.1:;b-1?;"),
        (
            &waits,
            leaving("b.1", "b-1"),
            3,
            "n-1 c-1 c-2 | | b.1:h;n-1+3000;c-1+3001;c-2+3002;",
        ),
    ]);
}

#[test]
fn a_renewal_extends_and_shows_the_holds_that_it_names() {
    let of_session = |session: &str| [format!("{session}-1"), format!("{session}-2")];
    let mut state = lock(PERMITS, [holder("a-1", 7), holder("a-2", 8), holder("b-1", 9)], []);
    for (session, now, renews, ends) in [
        ("a", 99, true, [199, 199, 100]),
        // Renewals overtake each other. The last hold is over.
        ("a", 20, false, [199, 199, 100]),
        ("b", 100, false, [199, 199, 100]),
    ] {
        let renewed = renew(&mut state, "a.9", &of_session(session), 1_000, ServerTime(now));
        let found: Vec<i64> = state.holders.iter().map(|holder| holder.until.0).collect();
        assert_eq!((renewed, &found[..]), (renews, &ends[..]), "{session}");
        assert_eq!((state.wake.as_str(), state.version), ("a.9:;", 2));
    }
    // At the time of the grant the lease stays as it is. A renewal can be late, also before the first that shows
    // anything.
    let (mut state, ids) = (begun(request("a-1")), ["a-1".to_owned()]);
    for (is_idle, as_of, writes, shown) in [
        (true, 2, true, true),
        (true, 2, false, true),
        (false, 3, true, false),
        (true, 2, false, false),
        (true, 4, true, true),
        (false, 3, false, true),
    ] {
        let idle = &ids[..usize::from(is_idle)];
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
        let awaits = state.holders[0].shown.as_ref().and_then(|shown| shown.awaits.as_ref());
        assert_eq!(
            (written, state.holders[0].is_idle(), awaits.is_some()),
            (writes, shown, shown)
        );
    }
    assert!(!renew(&mut state, "a.2", &ids, 1_000, ServerTime(0)) && state.holders[0].is_idle());
}

/// The TTL index is changed by few of the writes, and never promises less than was asked for.
#[test]
fn a_document_is_kept_long_enough_by_few_changes() {
    let (mut state, ids) = (begun(request("a-1")), ["a-1".to_owned()]);
    assert_eq!(state.purge_at, ServerTime(1_125));
    let mut changes = 0;
    for now in 1..=1_000 {
        let before = state.purge_at;
        assert!(renew(&mut state, "a.2", &ids, 1_000, ServerTime(now)));
        assert!(state.purge_at >= ServerTime(now + 1_000), "{now}");
        changes += u32::from(state.purge_at != before);
    }
    assert_eq!(changes, 7);
    // A request for less time shortens nothing; a request for more gets it.
    for (now, keep, purge_at) in [(1_001, 10, state.purge_at), (1_002, 2_000, ServerTime(1_002 + 2_250))] {
        assert!(renew(&mut state, "a.3", &ids, keep, ServerTime(now)));
        assert_eq!(state.purge_at, purge_at);
    }
}
