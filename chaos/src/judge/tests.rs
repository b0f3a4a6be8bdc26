//! The judge, given histories that are right, and the same with one thing wrong in each.

use super::*;
use crate::{
    clock::MILLI,
    journal::Entry as Noted,
    locks::{Kind, Share},
    oplog::{Entry, State, Version},
    record::{End, Record, What},
};

/// A history in the making: moments are milliseconds, of our clock and of the servers'.
#[derive(Default)]
struct Told {
    clients: BTreeMap<&'static str, Vec<Record>>,
    journal: Vec<Noted>,
    versions: Vec<Version>,
}

impl Told {
    fn says(&mut self, client: &'static str, op: u64, at: u64, what: What) -> &mut Self {
        let at = at * MILLI;
        self.clients.entry(client).or_default().push(Record { at, op, what });
        self
    }

    fn asks(&mut self, client: &'static str, op: u64, at: u64, share: Share) -> &mut Self {
        let name = "lock".to_owned();
        let (task, waits) = (0, true);
        let what = What::Request {
            name,
            share,
            task,
            waits,
        };
        self.says(client, op, at, what)
    }

    fn gets(&mut self, client: &'static str, op: u64, at: u64, token: i64, safe_for: u64) -> &mut Self {
        let safe_for = safe_for * MILLI;
        self.says(client, op, at, What::Granted { token, safe_for })
    }

    fn releases(&mut self, client: &'static str, op: u64, at: u64) -> &mut Self {
        let outcome = "Released".to_owned();
        self.says(client, op, at, What::LettingGo { released: true });
        self.says(client, op, at + 1, What::LetGo { outcome })
    }

    fn notes(&mut self, at: u64, note: Note) -> &mut Self {
        self.journal.push(Noted { at: at * MILLI, note });
        self
    }

    /// A version of the document: holders by client, operation, token and end; waiters by client, operation and end.
    fn stands(&mut self, at: i64, token: i64, holders: &[(&str, i64, i64)], queue: &[(&str, i64)]) -> &mut Self {
        let entry = |reason: &str, until| Entry {
            id: reason.to_owned(),
            permits: 1,
            until,
            reason: reason.to_owned(),
            token: None,
        };
        let held = holders.iter().map(|(reason, token, until)| Entry {
            token: Some(*token),
            ..entry(reason, *until)
        });
        let state = State {
            capacity: 1,
            token,
            broken: None,
            holders: held.collect(),
            queue: queue.iter().map(|(reason, until)| entry(reason, *until)).collect(),
        };
        self.versions.push(Version {
            name: "lock".to_owned(),
            epoch: 0,
            at,
            state: Some(state),
        });
        self
    }

    fn breaches(&self) -> Vec<Promise> {
        let mut history = History {
            journal: self.journal.clone(),
            versions: self.versions.clone(),
            ..History::default()
        };
        for (client, records) in &self.clients {
            history.add(client, records.clone());
        }
        history.operations.sort_by_key(|operation| operation.requested);
        let (violations, _) = Case::new(&history).judge();
        let mut promises: Vec<Promise> = violations.iter().map(|violation| violation.promise).collect();
        promises.dedup();
        // Each must be fit to be drawn.
        for violation in &violations {
            let drawn = crate::timeline::draw(&Case::new(&history), violation);
            assert!(drawn.starts_with("<svg") && drawn.contains("</svg>"));
        }
        promises
    }
}

const MUTEX: fn() -> Share = || Share::whole(Kind::Mutex);

/// Two clients, one after the other; the second waits for the first.
fn well() -> Told {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    told.asks("a", 1, 10, MUTEX()).gets("a", 1, 12, 101, 1_900);
    told.asks("b", 1, 20, MUTEX());
    told.releases("a", 1, 100);
    told.gets("b", 1, 102, 102, 900).releases("b", 1, 150);
    told.stands(11, 101, &[("a#1", 101, 2_011)], &[]);
    told.stands(21, 101, &[("a#1", 101, 2_011)], &[("b#1", 2_021)]);
    told.stands(101, 102, &[("b#1", 102, 1_101)], &[]);
    told.stands(151, 102, &[], &[]);
    told
}

#[test]
fn a_lock_that_keeps_its_promises() {
    assert_eq!(well().breaches(), []);
}

#[test]
fn two_holders_at_once() {
    let mut told = well();
    // The first was valid for longer than it let go of the lock.
    told.clients
        .get_mut("a")
        .unwrap()
        .retain(|record| record.at < 100 * MILLI);
    told.says("a", 1, 120, What::Look { safe_for: 1 }).releases("a", 1, 130);
    assert_eq!(told.breaches(), [Promise::Exclusion, Promise::Linearizable]);
}

#[test]
fn a_holder_that_was_killed_had_been_promised_more() {
    let mut told = well();
    told.clients
        .get_mut("a")
        .unwrap()
        .retain(|record| record.at < 100 * MILLI);
    told.notes(50, Note::Killed { client: "a".to_owned() });
    // It was never heard of again; but it had been told that it was safe until 1912.
    assert_eq!(told.breaches(), [Promise::Exclusion, Promise::Linearizable]);
}

#[test]
fn who_acts_after_the_loss_is_found() {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    told.asks("a", 1, 10, MUTEX()).gets("a", 1, 12, 101, 1_900);
    told.asks("b", 1, 20, MUTEX()).gets("b", 1, 2_012, 102, 900);
    told.stands(11, 101, &[("a#1", 101, 2_011)], &[]);
    told.stands(2_011, 102, &[("b#1", 102, 3_011)], &[]);
    // Frozen from then on, it goes on as if it held the lock.
    told.releases("b", 1, 2_500);
    let mut right = Told {
        clients: told.clients.clone(),
        journal: told.journal.clone(),
        versions: told.versions.clone(),
    };
    right.says(
        "a",
        1,
        2_400,
        What::Lost {
            reason: "Expired".to_owned(),
        },
    );
    assert_eq!(right.breaches(), []);
    told.says("a", 1, 2_400, What::Look { safe_for: 0 })
        .releases("a", 1, 2_410);
    assert_eq!(
        told.breaches(),
        [Promise::Exclusion, Promise::LostInTime, Promise::Linearizable]
    );
}

#[test]
fn readers_share_and_writers_do_not() {
    let play = |second: Share| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        told.asks("a", 1, 10, Share::reader()).gets("a", 1, 12, 101, 900);
        told.asks("b", 1, 10, second).gets("b", 1, 13, 102, 900);
        told.releases("a", 1, 50).releases("b", 1, 50);
        told.stands(11, 101, &[("a#1", 101, 1_011)], &[]);
        // The documents are those of a mutex here, so they are not to hold both.
        told.stands(12, 102, &[("b#1", 102, 1_012)], &[]);
        told.breaches()
    };
    assert_eq!(play(Share::reader()), []);
    assert_eq!(play(Share::writer()), [Promise::Exclusion]);
}

#[test]
fn permits_beyond_the_capacity() {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    for (client, token) in [("a", 101), ("b", 102)] {
        told.asks(client, 1, 10, Share::permits(2))
            .gets(client, 1, 12, token, 900)
            .releases(client, 1, 50);
    }
    told.stands(11, 101, &[("a#1", 101, 1_011)], &[])
        .stands(11, 102, &[("b#1", 102, 1_011)], &[]);
    assert_eq!(told.breaches(), [Promise::Exclusion]);
}

#[test]
fn a_foreign_hand_voids_what_it_strikes_and_nothing_else() {
    let play = |struck: bool| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        told.asks("a", 1, 10, MUTEX()).gets("a", 1, 12, 101, 1_900);
        told.stands(11, 101, &[("a#1", 101, 2_011)], &[]);
        let (kind, text, takes) = ("k".to_owned(), "t".to_owned(), vec!["lock".to_owned()]);
        told.notes(
            30,
            Note::Began {
                fault: 1,
                kind,
                text,
                takes,
            },
        )
        .notes(40, Note::Over { fault: 1 });
        if struck {
            told.versions.push(Version {
                name: "lock".to_owned(),
                epoch: 0,
                at: 35,
                state: None,
            });
        }
        // It does not know yet when the next has it.
        told.asks("b", 1, 36, MUTEX())
            .gets("b", 1, 38, 5_000, 900)
            .releases("b", 1, 60);
        told.says("a", 1, 39, What::Look { safe_for: 0 });
        told.says(
            "a",
            1,
            45,
            What::Lost {
                reason: "Deleted".to_owned(),
            },
        );
        told.stands(37, 5_000, &[("b#1", 5_000, 1_037)], &[]);
        told.versions.last_mut().unwrap().epoch = usize::from(struck);
        told.breaches()
    };
    assert_eq!(play(true), []);
    assert_eq!(play(false), [Promise::Exclusion, Promise::Linearizable]);
}

#[test]
fn a_handle_that_calls_itself_safe_beyond_its_lease() {
    let mut told = well();
    for version in &mut told.versions {
        let holders = version.state.iter_mut().flat_map(|state| &mut state.holders);
        holders
            .filter(|holder| holder.token == Some(101))
            .for_each(|holder| holder.until = 1_500);
    }
    assert_eq!(told.breaches(), [Promise::LostInTime]);
}

#[test]
fn a_grant_that_the_servers_do_not_know() {
    let mut told = well();
    told.versions.retain(|version| version.at != 101);
    assert_eq!(told.breaches(), [Promise::Durable]);
}

#[test]
fn tokens_that_do_not_rise() {
    let again = |token: i64| {
        let mut told = well();
        told.asks("c", 1, 200, MUTEX())
            .gets("c", 1, 202, token, 900)
            .releases("c", 1, 210);
        told.stands(201, 102, &[("c#1", token, 1_201)], &[]);
        told.breaches()
    };
    assert_eq!(again(102), [Promise::Tokens, Promise::Linearizable]);
    assert_eq!(again(50), [Promise::Tokens, Promise::Linearizable]);

    let mut told = well();
    told.stands(300, 99, &[], &[]);
    assert_eq!(told.breaches(), [Promise::Tokens]);
}

#[test]
fn somebody_jumps_the_queue() {
    let play = |expired: bool| {
        let mut told = well();
        told.stands(
            200,
            102,
            &[("x", 102, 2_000)],
            &[("first", if expired { 250 } else { 2_000 }), ("second", 2_000)],
        );
        told.stands(300, 103, &[("second", 103, 2_300)], &[("first", 2_300)]);
        told.breaches()
    };
    assert_eq!(play(false), [Promise::Queue]);
    // Its entry had run out, and it came back.
    assert_eq!(play(true), []);

    let mut told = well();
    told.stands(200, 102, &[], &[("first", 2_000), ("second", 2_000)]);
    told.stands(300, 102, &[], &[("second", 2_000), ("first", 2_000)]);
    assert_eq!(told.breaches(), [Promise::Queue]);

    let mut told = well();
    told.stands(200, 102, &[("x", 102, 2_000)], &[("first", 2_000)]);
    told.stands(300, 103, &[("from nowhere", 103, 2_300)], &[("first", 2_000)]);
    assert_eq!(told.breaches(), [Promise::Queue]);
}

#[test]
fn the_document_holds_too_many() {
    let mut told = well();
    told.stands(300, 104, &[("x", 103, 2_000), ("y", 104, 2_000)], &[]);
    assert_eq!(told.breaches(), [Promise::Exclusion]);
}

#[test]
fn a_task_is_served_before_one_that_asked_earlier() {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    told.asks("a", 1, 10, MUTEX()).asks("a", 2, 11, MUTEX());
    told.clients.get_mut("a").unwrap()[1].what = What::Request {
        name: "lock".to_owned(),
        share: MUTEX(),
        task: 1,
        waits: true,
    };
    told.gets("a", 2, 20, 101, 900)
        .releases("a", 2, 30)
        .gets("a", 1, 40, 102, 900)
        .releases("a", 1, 50);
    told.stands(19, 101, &[("a#2", 101, 1_019)], &[])
        .stands(39, 102, &[("a#1", 102, 1_039)], &[]);
    assert_eq!(told.breaches(), [Promise::Turn]);
}

#[test]
fn an_acquire_without_an_end() {
    let mut told = well();
    told.asks("a", 7, 300, MUTEX());
    assert_eq!(told.breaches(), [Promise::Ended]);
    told.notes(310, Note::Killed { client: "a".to_owned() });
    assert_eq!(told.breaches(), []);
}

#[test]
fn a_release_without_an_end() {
    let mut told = well();
    told.clients.get_mut("b").unwrap().pop();
    assert_eq!(told.breaches(), [Promise::Ended]);
}

#[test]
fn a_client_that_does_not_end() {
    let mut told = well();
    told.notes(
        300,
        Note::Dismissed {
            client: "a".to_owned(),
            problem: Some("it hangs".to_owned()),
        },
    );
    assert_eq!(told.breaches(), [Promise::Ended]);
}

#[test]
fn a_lock_that_is_not_to_be_had_and_one_that_is_not_idle() {
    for (task, promise) in [(PROBE, Promise::Progress), (IDLE, Promise::NothingLeft)] {
        let mut told = well();
        let (name, share) = ("lock".to_owned(), MUTEX());
        told.says(
            "director",
            1,
            300,
            What::Request {
                name,
                share,
                task,
                waits: true,
            },
        );
        told.says(
            "director",
            1,
            400,
            What::Ended {
                how: End::TimedOut,
                error: None,
            },
        );
        assert_eq!(told.breaches(), [promise]);
    }
    let mut told = well();
    told.notes(
        300,
        Note::Remains {
            text: "a stream".to_owned(),
        },
    );
    assert_eq!(told.breaches(), [Promise::NothingLeft]);
}

#[test]
fn a_write_under_the_lock_that_was_lost() {
    let mut told = well();
    for (client, at) in [("a", 90), ("b", 140)] {
        told.says(client, 1, at, What::Writing { count: 1 });
        told.says(client, 1, at, What::Wrote { written: Some(true) });
    }
    assert_eq!(told.breaches(), [Promise::GuardedWrites]);
}

#[test]
fn what_a_client_complains_of() {
    let mut told = well();
    told.says("a", 1, 90, What::Complaint { text: "odd".to_owned() });
    assert_eq!(told.breaches(), [Promise::Complaint]);
}

#[test]
fn contention_without_end_is_judged_through_windows() {
    const CLIENTS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let play = |wrong: Option<u64>| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        // Everybody asks again at once, so that nothing is ever quiet.
        for turn in 0..150 {
            let client = CLIENTS[usize::try_from(turn).unwrap() % CLIENTS.len()];
            let granted = 100 + 10 * turn;
            let asked = if turn < 5 { 50 } else { granted - 44 };
            let token = 1_000 + i64::try_from(turn).unwrap();
            // One that asked after the next had been granted.
            let asked = if wrong == Some(turn) { granted + 13 } else { asked };
            let until = i64::try_from(granted).unwrap() + 1_000;
            told.asks(client, turn + 1, asked, MUTEX());
            told.gets(client, turn + 1, granted.max(asked + 1), token, 850);
            told.releases(client, turn + 1, granted.max(asked + 1) + 5);
            let reason = format!("{client}#{}", turn + 1);
            told.stands(until - 1_000, token, &[(&reason, token, until)], &[]);
        }
        told.breaches()
    };
    assert_eq!(play(None), []);
    assert_eq!(
        play(Some(90)),
        [Promise::Exclusion, Promise::Tokens, Promise::Linearizable]
    );
}

#[test]
fn a_history_goes_through_its_file() {
    let folder = std::env::temp_dir().join(format!("watchlock-chaos-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("a.history.jsonl");
    let _ = std::fs::remove_file(&path);
    let records = well().clients["a"].clone();
    let log = crate::record::Log::open(&path).unwrap();
    records.iter().for_each(|record| log.write(record));
    // What a killed process was writing.
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"at\":12");
    std::fs::write(&path, text).unwrap();
    assert_eq!(crate::record::read::<Record>(&path).unwrap(), records);
    std::fs::remove_dir_all(&folder).unwrap();
}
