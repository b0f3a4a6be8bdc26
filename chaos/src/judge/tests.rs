//! The judge, given histories that are right, and the same with one thing wrong in each.

use super::*;
use crate::{
    clock::MILLI,
    journal::{Entry as Noted, Reach},
    locks::{Kind, OWN_MUTEX, Share},
    oplog::{Entry, State, Version},
    record::{DETACHED, End, Record, Upon, What},
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
        self.asks_upon(client, op, at, ("lock", share), None)
    }

    fn asks_upon(
        &mut self,
        client: &'static str,
        op: u64,
        at: u64,
        (name, share): (&str, Share),
        upon: Option<Upon>,
    ) -> &mut Self {
        let what = What::Request {
            name: name.to_owned(),
            share,
            task: 0,
            waits: true,
            limit: None,
            upon,
        };
        self.says(client, op, at, what)
    }

    /// Takes up what another operation has left behind.
    fn takes_up(&mut self, client: &'static str, op: u64, at: u64, (left, share): (&str, Share)) -> &mut Self {
        let upon = Some(Upon::Detached(left.to_owned()));
        self.asks_upon(client, op, at, ("lock", share), upon)
    }

    fn detaches(&mut self, client: &'static str, op: u64, at: u64) -> &mut Self {
        let outcome = DETACHED.to_owned();
        self.says(client, op, at, What::LettingGo { released: true });
        self.says(client, op, at + 1, What::LetGo { outcome })
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
            version: i64::try_from(self.versions.len()).unwrap() + 1,
        };
        self.versions.push(Version {
            name: "lock".to_owned(),
            epoch: 0,
            at,
            state: Some(state),
        });
        self
    }

    fn have_room(&mut self, capacity: impl Into<i64>) {
        let capacity = capacity.into();
        let states = self.versions.iter_mut().filter_map(|version| version.state.as_mut());
        states.for_each(|state| state.capacity = capacity);
    }

    fn history(&self) -> History {
        let mut history = History {
            journal: self.journal.clone(),
            versions: self.versions.clone(),
            ..History::default()
        };
        for (client, records) in &self.clients {
            history.add(client, records.clone());
        }
        history.operations.sort_by_key(|operation| operation.requested);
        history
    }

    fn judged(&self) -> Judged {
        Case::new(&self.history()).judge().1
    }

    fn breaches(&self) -> Vec<Promise> {
        let history = self.history();
        let (violations, _) = Case::new(&history).judge();
        let mut promises: Vec<Promise> = violations.iter().map(|violation| violation.promise).collect();
        promises.dedup();
        // Each is told with what happened around it.
        for violation in &violations {
            let told = crate::timeline::tell(&Case::new(&history), violation);
            assert!(told.contains("+0 ms  !! "), "{told}");
        }
        promises
    }
}

fn lost(reason: &str) -> What {
    let reason = reason.to_owned();
    What::Lost { reason }
}

fn ended(how: End) -> What {
    What::Ended { how, error: None }
}

/// An acquire of that task, which waits for its turn.
fn request(name: &str, share: Share, task: usize) -> What {
    What::Request {
        name: name.to_owned(),
        share,
        task,
        waits: true,
        limit: None,
        upon: None,
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
    assert_eq!(told.breaches(), [Promise::Exclusion]);
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
    assert_eq!(told.breaches(), [Promise::Exclusion]);
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
    right.says("a", 1, 2_400, lost("Expired"));
    assert_eq!(right.breaches(), []);
    told.says("a", 1, 2_400, What::Look { safe_for: 0 })
        .releases("a", 1, 2_410);
    assert_eq!(told.breaches(), [Promise::Exclusion, Promise::LostInTime]);
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
        told.suffers("k", &["lock"], Reach::Everything, 30, 40);
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
        told.says("a", 1, 45, lost("Deleted"));
        told.stands(37, 5_000, &[("b#1", 5_000, 1_037)], &[]);
        told.versions.last_mut().unwrap().epoch = usize::from(struck);
        told.breaches()
    };
    assert_eq!(play(true), []);
    assert_eq!(play(false), [Promise::Exclusion]);
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
    assert_eq!(again(102), [Promise::Tokens]);
    assert_eq!(again(50), [Promise::Tokens]);

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
    told.clients.get_mut("a").unwrap()[1].what = request("lock", MUTEX(), 1);
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
fn a_lock_that_is_not_to_be_had() {
    let mut told = well();
    told.says("director", 1, 300, request("lock", MUTEX(), PROBE));
    told.says("director", 1, 400, ended(End::TimedOut));
    assert_eq!(told.breaches(), [Promise::Progress]);
}

#[test]
fn what_is_left_at_the_end() {
    let mut told = well();
    told.notes(300, Note::Silence);
    assert_eq!(told.breaches(), []);
    let text = "a stream".to_owned();
    told.notes(300, Note::Remains { text });
    assert_eq!(told.breaches(), [Promise::NothingLeft]);
}

/// A hold that ran out leaves its entry to nobody where nobody else asks.
#[test]
fn an_entry_that_is_left_and_one_that_nobody_could_take_out() {
    let left = |until: i64, waits: bool, more: &dyn Fn(&mut Told)| {
        let mut told = well();
        told.asks("c", 1, 200, MUTEX());
        match waits {
            true => told.stands(201, 102, &[], &[("c#1", until)]),
            false => told.stands(201, 103, &[("c#1", 103, until)], &[]),
        };
        more(&mut told);
        told.notes(9_000, Note::Silence);
        told.breaches()
    };
    let gets = |told: &mut Told| {
        told.gets("c", 1, 202, 103, 900);
    };
    let loses = |told: &mut Told| {
        gets(told);
        told.says("c", 1, 1_102, lost("Expired"));
    };
    let finds_it_lost = |told: &mut Told| {
        gets(told);
        told.says("c", 1, 1_102, What::LettingGo { released: true });
        let outcome = "WasLost".to_owned();
        told.says("c", 1, 1_103, What::LetGo { outcome });
    };
    let drops = |told: &mut Told| {
        gets(told);
        told.says("c", 1, 250, What::LettingGo { released: false });
    };
    let drops_without_time = |told: &mut Told| {
        drops(told);
        told.notes(1_000, Note::Slow { millis: 700 });
    };
    let detaches = |told: &mut Told| {
        gets(told);
        told.detaches("c", 1, 250);
    };
    let cancels = |told: &mut Told| {
        told.says("c", 1, 250, ended(End::Cancelled));
    };
    let dies = |told: &mut Told| {
        told.notes(250, Note::Killed { client: "c".to_owned() });
    };
    let excused: [&dyn Fn(&mut Told); 5] = [&loses, &finds_it_lost, &drops_without_time, &detaches, &dies];
    for (number, more) in excused.into_iter().enumerate() {
        assert_eq!(left(1_201, false, more), [], "{number}");
        assert_eq!(left(9_001, false, more).last(), Some(&Promise::NothingLeft), "{number}");
    }
    assert_eq!(left(1_201, false, &drops), [Promise::NothingLeft]);
    assert_eq!(left(1_201, true, &cancels), [Promise::NothingLeft]);
    assert_eq!(left(1_201, true, &dies), []);
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

impl Told {
    /// A fault of that kind, from when to when.
    fn suffers(&mut self, kind: &str, takes: &[&str], reach: Reach, from: u64, to: u64) -> &mut Self {
        let fault = self.journal.len();
        let takes = takes.iter().map(|name| (*name).to_owned()).collect();
        let (kind, text) = (kind.to_owned(), "t".to_owned());
        let began = Note::Began {
            fault,
            kind,
            text,
            takes,
            reach,
        };
        self.notes(from, began).notes(to, Note::Over { fault })
    }

    /// An acquire and a release of a lock that the client has for itself.
    fn keeps_to_itself(&mut self, client: &'static str, op: u64, from: u64, waits: u64, release: u64) -> &mut Self {
        let (name, granted) = (format!("{OWN_MUTEX}{client}"), from + waits);
        let (token, at) = (i64::try_from(op).unwrap(), i64::try_from(granted).unwrap());
        self.says(client, op, from, request(&name, MUTEX(), 4))
            .gets(client, op, granted, token, 900);
        self.says(client, op, granted + 1, What::LettingGo { released: true });
        let outcome = "Released".to_owned();
        self.says(client, op, granted + 1 + release, What::LetGo { outcome });
        self.stands(at, token, &[(&format!("{client}#{op}"), token, at + 1_000)], &[]);
        self.versions.last_mut().unwrap().name = name;
        self
    }
}

/// The lock is read when it is free, the second client is granted it, and what was read is saved.
fn saved_over(kind: &str, told_at: u64, third: i64) -> Told {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    told.asks("a", 1, 10, MUTEX())
        .gets("a", 1, 12, 101, 1_900)
        .releases("a", 1, 20);
    told.stands(11, 101, &[("a#1", 101, 2_011)], &[])
        .stands(21, 101, &[], &[]);
    let read = told.versions[1].clone();
    told.asks("b", 1, 30, MUTEX()).gets("b", 1, 32, 102, 1_900);
    told.stands(31, 102, &[("b#1", 102, 2_031)], &[]);
    let reach = Reach::Locks(vec!["lock".to_owned()]);
    told.suffers(kind, &["lock"], reach, 500, 520);
    told.versions.push(Version { at: 510, ..read });
    // The third is granted it before the second knows.
    told.asks("c", 1, 511, MUTEX())
        .gets("c", 1, 513, third, 900)
        .releases("c", 1, 600);
    told.stands(512, third, &[("c#1", third, 1_512)], &[]);
    told.says("b", 1, told_at - 1, What::Look { safe_for: 0 });
    told.says("b", 1, told_at, lost("Evicted"));
    told
}

#[test]
fn a_save_of_an_old_document_takes_the_lock_away_and_no_more() {
    assert_eq!(saved_over("old document saved", 530, 5_000).breaches(), []);
    // Nobody saved anything: the document's token fell by itself, and two hold the lock.
    let breaches = saved_over("no such", 530, 5_000).breaches();
    assert_eq!(breaches, [Promise::Exclusion, Promise::Tokens]);
}

/// After a drop the count begins anew, so that of the saved document can be the higher one.
#[test]
fn a_save_of_a_document_from_before_a_drop_is_a_save_too() {
    let mut told = saved_over("old document saved", 530, 5_000);
    told.suffers("collection dropped", &["lock"], Reach::Everything, 22, 26);
    for version in &mut told.versions {
        version.epoch = usize::from(version.at > 26);
        let state = version.state.as_mut().unwrap();
        if version.at == 31 {
            state.version = 1;
        }
    }
    assert_eq!(told.breaches(), []);
}

/// A lock that is deleted and made again without a grant has issued no token; the next one still has to rise.
#[test]
fn only_a_new_document_begins_without_a_token() {
    let breaches = |epoch, made: i64, next| {
        let mut told = Told::default();
        told.asks("a", 1, 10, MUTEX())
            .gets("a", 1, 12, 101, 1_900)
            .releases("a", 1, 20);
        told.stands(11, 101, &[("a#1", 101, 2_011)], &[])
            .stands(21, 101, &[], &[]);
        told.stands(30, made, &[], &[]);
        told.asks("b", 1, 40, MUTEX()).gets("b", 1, 42, next, 1_900);
        told.stands(41, next, &[("b#1", next, 2_041)], &[]);
        told.versions[2..].iter_mut().for_each(|version| version.epoch = epoch);
        told.releases("b", 1, 50);
        told.breaches()
    };
    assert_eq!(breaches(1, 0, 102), []);
    assert_eq!(breaches(0, 0, 102), [Promise::Tokens]);
    assert!(breaches(1, 0, 100).contains(&Promise::Tokens));
    assert!(breaches(1, 99, 102).contains(&Promise::Tokens));
}

#[test]
fn a_token_is_issued_again_after_a_save() {
    let breaches = saved_over("old document saved", 530, 102).breaches();
    assert!(breaches.contains(&Promise::Tokens), "{breaches:?}");
    // Also where no client saw the first.
    let mut told = saved_over("old document saved", 530, 102);
    told.clients.remove("b");
    assert_eq!(told.breaches(), [Promise::Tokens]);
}

#[test]
fn who_lost_the_lock_by_a_save_is_not_told() {
    assert_eq!(
        saved_over("old document saved", 2_300, 5_000).breaches(),
        [Promise::LostInTime]
    );
}

#[test]
fn a_write_that_is_made_again_after_a_save() {
    let play = |kind: &str| {
        let mut told = well();
        told.suffers(kind, &["lock"], Reach::Everything, 110, 112);
        told.asks("c", 1, 200, MUTEX())
            .gets("c", 1, 202, 103, 900)
            .releases("c", 1, 250);
        told.stands(201, 103, &[("c#1", 103, 1_201)], &[]);
        for (client, at) in [("a", 90), ("c", 240)] {
            told.says(client, 1, at, What::Writing { count: 1 });
            told.says(client, 1, at, What::Wrote { written: Some(true) });
        }
        told.breaches()
    };
    assert_eq!(play("old document saved"), []);
    assert_eq!(play("lock broken"), [Promise::GuardedWrites]);
}

#[test]
fn what_no_fault_strikes_is_held_up() {
    let play = |reach: fn() -> Reach, waits: u64, release: u64| {
        let mut told = well();
        told.suffers("documents blocked", &[], reach(), 10_000, 20_000);
        told.keeps_to_itself("a", 7, 11_000, waits, release);
        told.breaches()
    };
    let locks = || Reach::Locks(vec!["lock".to_owned()]);
    assert_eq!(play(locks, 3_000, 3_000), []);
    assert_eq!(play(locks, 5_000, 0), [Promise::Unharmed]);
    assert_eq!(play(locks, 0, 5_000), [Promise::Unharmed]);
    assert_eq!(play(|| Reach::Client("b".to_owned()), 5_000, 0), [Promise::Unharmed]);
    // A client that a fault strikes may have to wait, or to ask again.
    assert_eq!(play(|| Reach::Client("a".to_owned()), 9_000, 9_000), []);
    assert_eq!(play(|| Reach::Answers("a".to_owned()), 5_500, 5_500), []);
    assert_eq!(play(|| Reach::Answers("a".to_owned()), 9_000, 0), [Promise::Unharmed]);
    assert_eq!(play(|| Reach::Locks(vec![format!("{OWN_MUTEX}a")]), 9_000, 0), []);
    assert_eq!(play(|| Reach::Everything, 9_000, 0), []);
    // Two at once may leave it no connection.
    let mut told = well();
    for (from, to) in [(10_000, 20_000), (11_000, 19_000)] {
        told.suffers("connections dead", &[], Reach::Answers("a".to_owned()), from, to);
    }
    told.keeps_to_itself("a", 7, 11_500, 7_000, 7_000);
    assert_eq!(told.breaches(), []);
    let mut told = well();
    told.keeps_to_itself("a", 7, 11_000, 5_000, 0);
    assert_eq!(told.breaches(), [Promise::Unharmed], "with no fault at all");
    told.notes(12_000, Note::Slow { millis: 900 });
    assert_eq!(told.breaches(), [], "the machine was slow");
}

#[test]
fn what_no_fault_strikes_is_lost() {
    let play = |reach: Reach, safe_for: u64, looked: u64, gone: u64| {
        let mut told = well();
        told.suffers("document refused", &[], reach, 10_000, 20_000);
        told.asks("c", 1, 11_000, MUTEX()).gets("c", 1, 11_002, 103, safe_for);
        told.stands(11_001, 103, &[("c#1", 103, 14_000)], &[]);
        told.says("c", 1, looked, What::Look { safe_for: 0 })
            .says("c", 1, gone, lost("Expired"));
        told.breaches()
    };
    let nothing = || Reach::Locks(Vec::new());
    assert_eq!(play(nothing(), 1_900, 13_480, 13_500), [Promise::Unharmed]);
    assert_eq!(play(Reach::Locks(vec!["lock".to_owned()]), 1_900, 13_480, 13_500), []);
    assert_eq!(play(Reach::Answers("c".to_owned()), 1_900, 13_480, 13_500), []);
    // It had no processor.
    assert_eq!(play(nothing(), 1_900, 12_000, 13_500), []);
    // It was handed over, and heard of it too late to renew it; or in time; or it did renew it.
    assert_eq!(play(nothing(), 740, 11_741, 11_742), []);
    assert_eq!(play(nothing(), 760, 11_761, 11_762), [Promise::Unharmed]);
    assert_eq!(play(nothing(), 300, 13_480, 13_500), [Promise::Unharmed]);
}

#[test]
fn a_break_that_its_holder_hears_of_late() {
    let play = |pause: usize, valid: u64, other: &[&str]| {
        let mut told = well();
        told.suffers(
            "lock broken",
            &["lock"],
            Reach::Locks(vec!["lock".to_owned()]),
            11_499,
            11_510,
        );
        if !other.is_empty() {
            told.suffers("client frozen", &[], Reach::Client(other[0].to_owned()), 11_400, 11_600);
        }
        told.asks("c", 1, 11_000, MUTEX()).gets("c", 1, 11_002, 103, 1_900);
        told.stands(11_001, 103, &[("c#1", 103, 15_000)], &[]);
        told.stands(11_500, 103, &[], &[]);
        told.versions.last_mut().unwrap().state.as_mut().unwrap().broken = Some(103);
        for look in (11_003..=valid).step_by(pause).chain([valid]) {
            told.says("c", 1, look, What::Look { safe_for: 100 * MILLI });
        }
        told.says("c", 1, valid + 1, lost("Broken"));
        told.breaches()
    };
    assert_eq!(play(25, 11_900, &[]), []);
    assert_eq!(play(25, 12_700, &[]), [Promise::Told]);
    assert_eq!(play(25, 12_700, &["a"]), [Promise::Told]);
    assert_eq!(play(25, 12_700, &["c"]), []);
    // It had no processor.
    assert_eq!(play(800, 12_700, &[]), []);
}

#[test]
fn a_client_polls_though_nothing_is_wrong() {
    let play = |since: u64, by_stream: bool| {
        let mut told = well();
        told.says("a", 0, since, What::Wakes { by_stream });
        told.notes(20_000, Note::Dismissing);
        told.breaches()
    };
    assert_eq!(play(1_000, false), [Promise::Woken]);
    assert_eq!(play(1_000, true), []);
    assert_eq!(play(18_000, false), []);
}

#[test]
fn an_acquire_that_does_not_give_up_in_time() {
    let play = |kind: &str| {
        let mut told = well();
        told.asks("c", 1, 1_000, MUTEX());
        if let What::Request { limit, .. } = &mut told.clients.get_mut("c").unwrap()[0].what {
            *limit = Some(500);
        }
        told.says("c", 1, 7_000, ended(End::TimedOut));
        told.suffers(kind, &[], Reach::Client("c".to_owned()), 1_200, 6_900);
        told.breaches()
    };
    assert_eq!(play("commands unanswered"), [Promise::Ended]);
    assert_eq!(play("client frozen"), []);
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
    // The line that a killed process was writing.
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str("{\"at\":12");
    std::fs::write(&path, text).unwrap();
    assert_eq!(crate::record::read::<Record>(&path).unwrap(), records);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The fourth task has the entry that the second had asked for, as that was handed the hold of the first.
#[test]
fn a_lock_that_is_handed_on_inside_a_process() {
    let play = |second: i64| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        for op in 1..=4 {
            let task = usize::try_from(op).unwrap();
            told.says("a", op, 100 + op, request("lock", MUTEX(), task));
        }
        told.gets("a", 1, 110, 1_000, 850).releases("a", 1, 120);
        told.gets("a", 2, 122, second, 830).releases("a", 2, 130);
        told.gets("a", 3, 132, 1_002, 820).releases("a", 3, 134);
        told.gets("a", 4, 140, 1_064, 850).releases("a", 4, 150);
        told.stands(108, 1_063, &[("a#1", 1_000, 1_108)], &[("a#2", 5_000)]);
        told.stands(135, 1_064, &[("a#2", 1_064, 1_135)], &[]);
        told.stands(155, 1_064, &[], &[]);
        told.breaches()
    };
    assert_eq!(play(1_001), []);
    // One that the first entry did not reserve.
    assert!(play(1_070).contains(&Promise::Durable));
}

/// The second of `a` shares the entry of the first, with a token of its range, while `b` has a larger one.
#[test]
fn readers_that_share_an_entry_beside_others() {
    let play = |share: Share, own: i64, shared: i64| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        told.asks("a", 1, 10, Share::reader()).gets("a", 1, 12, 101, 900);
        told.asks("b", 1, 20, share).gets("b", 1, 22, 165, 900);
        told.asks("a", 2, 30, Share::reader()).gets("a", 2, 31, own, 850);
        told.asks("a", 3, 40, Share::reader()).gets("a", 3, 41, shared, 840);
        for (client, op) in [("a", 1), ("a", 2), ("a", 3), ("b", 1)] {
            told.releases(client, op, 50);
        }
        told.stands(11, 164, &[("a#1", 101, 1_011)], &[]);
        told.stands(21, 228, &[("a#1", 101, 1_011), ("b#1", 165, 1_021)], &[]);
        told.stands(51, 228, &[("b#1", 165, 1_021)], &[]);
        told.stands(52, 228, &[], &[]);
        told.have_room(Share::reader().capacity);
        told.breaches()
    };
    assert_eq!(play(Share::reader(), 102, 103), []);
    // In one process they rise.
    assert!(play(Share::reader(), 103, 102).contains(&Promise::Tokens));
    // One that the entry did not reserve, and one of the past beside a writer.
    assert!(play(Share::reader(), 102, 190).contains(&Promise::Durable));
    // One that another client's entry reserved.
    assert!(play(Share::reader(), 102, 166).contains(&Promise::Durable));
    assert!(play(Share::writer(), 102, 103).contains(&Promise::Tokens));
}

/// `a` leaves its hold behind, `b` takes it up, and leaves it behind again for `c`; then it is the turn of `d`.
fn handed_over(share: Share, token: i64, taken_up: u64, next: u64) -> Told {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    let left = ("a#1", share);
    told.asks("a", 1, 10, share).gets("a", 1, 12, 101, 1_900);
    told.detaches("a", 1, 100);
    told.takes_up("b", 1, 500, left).gets("b", 1, taken_up, token, 1_900);
    told.detaches("b", 1, 700);
    told.takes_up("c", 1, 650, left).gets("c", 1, 1_500, 101, 1_900);
    told.releases("c", 1, 1_600);
    told.asks("d", 1, 20, share).gets("d", 1, next, 102, 900);
    told.releases("d", 1, next + 100);
    told.stands(11, 101, &[("a#1", 101, 2_011)], &[("d#1", 5_000)]);
    told.stands(505, 101, &[("a#1", 101, 4_011)], &[("d#1", 5_000)]);
    told.stands(1_601, 102, &[("d#1", 102, 5_601)], &[]);
    for version in &mut told.versions {
        let state = version.state.as_mut().unwrap();
        state.capacity = i64::from(share.capacity);
        // Its id changes each time, and it stays the same hold.
        state.holders[0].id = format!("{}", state.version);
    }
    told
}

#[test]
fn a_hold_that_is_left_behind_and_taken_up_is_held_all_the_time() {
    assert_eq!(handed_over(MUTEX(), 101, 506, 1_602).breaches(), []);
    // While nobody had it, or under another token.
    assert_eq!(handed_over(MUTEX(), 101, 506, 1_200).breaches(), [Promise::Exclusion]);
    assert_eq!(handed_over(MUTEX(), 101, 506, 300).breaches(), [Promise::Exclusion]);
    let breaches = handed_over(MUTEX(), 107, 506, 1_602).breaches();
    assert!(breaches.contains(&Promise::Tokens), "{breaches:?}");
    // Also where there is room for another holder, the hold has one handle.
    let permit = Share::permits(1);
    assert_eq!(handed_over(permit, 101, 506, 1_602).breaches(), []);
    let mut told = handed_over(permit, 101, 506, 1_602);
    told.takes_up("e", 1, 600, ("a#1", permit))
        .gets("e", 1, 650, 101, 900)
        .releases("e", 1, 660);
    assert_eq!(told.breaches(), [Promise::Exclusion]);
}

#[test]
fn a_hold_that_is_left_behind_stays_until_its_time_is_over() {
    let play = |next: u64, tried: Option<End>| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        told.asks("a", 1, 10, MUTEX()).gets("a", 1, 12, 101, 1_900);
        told.detaches("a", 1, 100);
        if let Some(how) = tried {
            told.takes_up("c", 1, 200, ("a#1", MUTEX()))
                .says("c", 1, 290, ended(how));
        }
        told.asks("b", 1, 20, MUTEX()).gets("b", 1, next, 102, 900);
        told.releases("b", 1, next + 10);
        told.stands(11, 101, &[("a#1", 101, 2_011)], &[("b#1", 5_000)]);
        told.stands(i64::try_from(next).unwrap(), 102, &[("b#1", 102, 9_000)], &[]);
        told.breaches()
    };
    assert_eq!(play(1_950, None), []);
    assert_eq!(play(300, None), [Promise::Exclusion]);
    // Nobody knows whether it was taken up and given back.
    assert_eq!(play(300, Some(End::Cancelled)), []);
    assert_eq!(play(150, Some(End::Cancelled)), [Promise::Exclusion]);
    // It was gone.
    assert_eq!(play(300, Some(End::NotFree)), [Promise::Exclusion]);
}

#[test]
fn an_upgrade_goes_before_others_and_is_alone() {
    let play = |upon: Option<Upon>, beside: Share| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        told.asks("a", 1, 10, Share::upgradeable_reader())
            .gets("a", 1, 12, 101, 1_900);
        told.asks("b", 1, 15, beside).gets("b", 1, 16, 102, 1_900);
        told.asks("a", 2, 20, Share::reader());
        told.asks_upon("a", 3, 30, ("lock", Share::upgrade()), upon);
        told.says("b", 1, 40, What::LettingGo { released: false });
        told.gets("a", 3, 42, 103, 1_900).releases("a", 3, 60);
        told.says(
            "a",
            1,
            61,
            What::Look {
                safe_for: 1_900 * MILLI,
            },
        )
        .releases("a", 1, 70);
        told.gets("a", 2, 72, 104, 1_900).releases("a", 2, 80);
        let reader = ("a#1", 101, 4_000);
        told.stands(11, 101, &[reader], &[]);
        told.stands(16, 102, &[reader, ("b#1", 102, 4_000)], &[("a#2", 4_000)]);
        told.stands(41, 103, &[reader, ("a#3", 103, 4_000)], &[("a#2", 4_000)]);
        told.stands(71, 104, &[("a#2", 104, 4_000)], &[]);
        told.have_room(9);
        told.breaches()
    };
    let upgrade = || Some(Upon::Reader("a#1".to_owned()));
    assert_eq!(play(upgrade(), Share::reader()), []);
    // Others stay in line.
    assert_eq!(play(None, Share::reader()), [Promise::Queue, Promise::Turn]);
    // One upgradeable reader at a time.
    assert_eq!(play(upgrade(), Share::upgradeable_reader()), [Promise::Exclusion]);
    // It waits for the readers beside it.
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    told.asks("a", 1, 10, Share::upgradeable_reader())
        .gets("a", 1, 12, 101, 900);
    told.asks("b", 1, 15, Share::reader()).gets("b", 1, 16, 102, 900);
    told.asks_upon("a", 2, 30, ("lock", Share::upgrade()), upgrade())
        .gets("a", 2, 32, 103, 900);
    for (client, op, at) in [("b", 1, 40), ("a", 2, 50), ("a", 1, 60)] {
        told.releases(client, op, at);
    }
    let (reader, beside) = (("a#1", 101, 1_011), ("b#1", 102, 1_015));
    told.stands(11, 101, &[reader], &[]);
    told.stands(15, 102, &[reader, beside], &[]);
    told.stands(31, 103, &[reader, beside, ("a#2", 103, 1_031)], &[]);
    told.have_room(9);
    assert_eq!(told.breaches(), [Promise::Exclusion]);
}

/// The second part is requested once the first is held; so a task of the same client that comes meanwhile is before it.
#[test]
fn the_parts_of_a_multi_lock_are_held_together() {
    let play = |ends: u64| {
        let mut told = Told::default();
        told.notes(0, Note::Clock { ahead: 0 });
        for (op, name) in [(1, "lock"), (2, "other")] {
            let upon = Some(Upon::Multi("a#1".to_owned()));
            told.asks_upon("a", op, 10, (name, MUTEX()), upon);
        }
        told.asks_upon("a", 3, 11, ("other", MUTEX()), None)
            .gets("a", 3, 12, 101, 900)
            .releases("a", 3, ends);
        told.gets("a", 1, 60, 101, 900).gets("a", 2, 60, 102, 900);
        told.releases("a", 1, 80).releases("a", 2, 80);
        told.stands(11, 101, &[("a#1", 101, 2_011)], &[]);
        told.stands(11, 101, &[("a#3", 101, 2_011)], &[]);
        told.stands(59, 102, &[("a#1", 102, 2_059)], &[]);
        for version in &mut told.versions[1..] {
            version.name = "other".to_owned();
        }
        told.breaches()
    };
    assert_eq!(play(50), []);
    assert_eq!(play(70), [Promise::Exclusion]);
}

/// Two tasks hold a lock each, and ask for that of the other at 100 and 200. At the end the first is told, or both give up
/// by themselves; the second looks at what it holds after that, or its lock is gone then.
fn crossed(end: u64, how: End, holds: bool) -> Told {
    let mut told = Told::default();
    told.notes(0, Note::Clock { ahead: 0 });
    let safe_for = What::Look {
        safe_for: 1_900 * MILLI,
    };
    for (client, own, other, at) in [("a", "lock", "other", 100), ("b", "other", "lock", 200)] {
        told.asks_upon(client, 1, 10, (own, MUTEX()), None)
            .gets(client, 1, 12, 101, 1_900);
        let upon = Some(Upon::Holding(format!("{client}#1")));
        told.asks_upon(client, 2, at, (other, MUTEX()), upon);
    }
    told.says("a", 2, end, ended(how));
    let how = if how == End::Deadlock { End::Cancelled } else { how };
    told.says("b", 2, end, ended(how));
    told.says("a", 1, end + 1, safe_for.clone()).releases("a", 1, end + 2);
    if holds {
        told.says("b", 1, end + 1, safe_for).releases("b", 1, end + 2);
    } else {
        told.releases("b", 1, 150);
    }
    let until = i64::try_from(end).unwrap() + 5_000;
    told.stands(11, 101, &[("a#1", 101, until)], &[]);
    told.stands(11, 101, &[("b#1", 101, until)], &[]);
    told.versions[1].name = "other".to_owned();
    told
}

#[test]
fn a_deadlock_is_told_in_time() {
    assert_eq!(crossed(3_000, End::Deadlock, true).breaches(), []);
    assert_eq!(crossed(3_000, End::TimedOut, true).breaches(), []);
    assert_eq!(crossed(12_000, End::TimedOut, true).breaches(), [Promise::Deadlocks]);
    // Nobody knows for how long it was one.
    assert_eq!(crossed(12_000, End::TimedOut, false).breaches(), []);
    let mut told = crossed(12_000, End::TimedOut, true);
    told.suffers("client frozen", &[], Reach::Client("b".to_owned()), 4_000, 6_000);
    assert_eq!(told.breaches(), []);
    // It was due before.
    let mut told = crossed(12_000, End::TimedOut, true);
    told.suffers("client frozen", &[], Reach::Client("b".to_owned()), 9_000, 9_500);
    assert_eq!(told.breaches(), [Promise::Deadlocks]);
    // Nobody could have said so of one that was told in time, as a fault came before it was due.
    for (from, judged) in [(6_000, 0), (9_000, 1)] {
        let mut told = crossed(3_000, End::Deadlock, true);
        told.suffers("client frozen", &[], Reach::Client("b".to_owned()), from, from + 500);
        assert_eq!(told.judged().circles_in_fair_weather, judged);
    }
}

#[test]
fn a_deadlock_that_is_told_is_one() {
    let told_alone = |client: &'static str| {
        let mut told = crossed(3_000, End::Deadlock, true);
        // The other did not wait.
        told.clients.get_mut("b").unwrap().retain(|record| record.op == 1);
        told.suffers("client frozen", &[], Reach::Client(client.to_owned()), 100, 2_500);
        told
    };
    assert_eq!(told_alone("c").breaches(), []);
    let mut told = told_alone("c");
    told.journal.truncate(1);
    assert_eq!(told.breaches(), [Promise::Deadlocks]);
    // The other had stopped waiting long before.
    let mut told = crossed(9_000, End::Deadlock, true);
    let others = told.clients.get_mut("b").unwrap().iter_mut();
    for ended in others.filter(|record| record.op == 2 && matches!(record.what, What::Ended { .. })) {
        ended.at = 1_000 * MILLI;
    }
    assert_eq!(told.breaches(), [Promise::Deadlocks]);
    // The director found one where tasks hold one lock, or take several in one order.
    let listed = |slow: bool| {
        let mut told = well();
        let text = "deadlock: ".to_owned();
        told.notes(3_000, Note::Deadlock { text });
        if slow {
            told.notes(2_500, Note::Slow { millis: 600 });
        }
        told.breaches()
    };
    assert_eq!(listed(false), [Promise::Deadlocks]);
    assert_eq!(listed(true), []);
}

/// Readings of a soak, one a second: of the server's cursors, and of a client's tasks from some moment on.
fn soaked(cursors: impl Fn(u64) -> u64, tasks: impl Fn(u64) -> u64, from: u64) -> Vec<Promise> {
    let reading = |figure: &str, value| [(figure.to_owned(), value)].into();
    let mut told = well();
    for second in 0..400 {
        let figures = reading("server cursors", cursors(second));
        told.notes(1_000 * second, Note::Reading { figures });
        if second >= from {
            let figures = reading("client tasks", tasks(second));
            told.says("a", 0, 1_000 * second, What::Reading { figures });
        }
    }
    told.breaches()
}

#[test]
fn what_grows_is_told_from_what_fills_up() {
    let (same, grows) = (|_| 100, |second| 1_000 + second);
    assert_eq!(soaked(|second| 100 * second.min(99), same, 0), []);
    assert_eq!(soaked(grows, same, 0), [Promise::Flat]);
    assert_eq!(soaked(same, grows, 0), [Promise::Flat]);
    // A single high reading is none, and a client that came later says nothing.
    assert_eq!(soaked(|second| if second == 390 { 9_999 } else { 100 }, same, 0), []);
    assert_eq!(soaked(same, grows, 60), []);
    // At the bound, and beyond it.
    assert_eq!(soaked(|second| if second < 250 { 100 } else { 120 }, same, 0), []);
    assert_eq!(
        soaked(|second| if second < 250 { 100 } else { 121 }, same, 0),
        [Promise::Flat]
    );
    // What piles up and is done later has not grown.
    assert_eq!(soaked(same, |second| 100 + 9 * (second % 40), 0), []);
}
