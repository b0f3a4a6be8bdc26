//! The pipelines, run by a real server, against the specification.
//!
//! Random sequences of operations and renewals, with time moved on and back at will, are applied to the pure
//! transitions and to a collection; after every step the two documents must be the same, to the bit. Many sequences go
//! side by side, each with a document of its own.

use std::collections::HashMap;

use futures::{StreamExt, TryStreamExt};
use mongodb::{
    bson::{Bson, Document, doc},
    options::ReturnDocument,
};
use watchlock_testkit::shared;

use super::random::Random;
use crate::protocol::{
    ASK_TOGETHER, Downgrade, Evict, Expects, HoldEnd, Holder, Identity, Kept, KeptUntil, Kind, Location, Operation,
    Owner, Proclaim, QUEUE_MOST, Record, Request, Requests, ServerTime, State, Use, ahead, pipeline, state,
};

/// Sequences of an everyday run, and steps in each. `WATCHLOCK_SEQUENCES=10000` sets more.
const SEQUENCES: u64 = 450;
const STEPS: usize = 8;

/// Sequences whose steps are sent in one command.
const TOGETHER: usize = 250;

/// Strings that would do harm if the server read them as anything but strings.
fn hostile() -> Vec<String> {
    let mut strings: Vec<String> = [
        "$$NOW",
        "$holders",
        "$$ROOT",
        "$_watchlock.holders",
        "a.b",
        "$",
        ".",
        "",
        "'",
        "\"",
        "\\",
        "{\"$ne\": 1}",
        "a\0b",
        "🔒🦀",
        "\u{202e}",
        "-",
        "h;",
        ";a-1+1@1;",
        "null",
        "a.b",
        "_watchlock",
    ]
    .map(str::to_owned)
    .to_vec();
    strings.push("x".repeat(1024));
    strings.push("é".repeat(512));
    strings
}

#[derive(Debug)]
enum Move {
    Run(Box<Operation>),
    Renew {
        operation: String,
        ids: Vec<String>,
        idle: Option<Vec<String>>,
    },
    Guard {
        operation: String,
        id: String,
        token: i64,
    },
}

/// Draws a step. Ids are few, so that entries meet themselves again; some of them are hostile.
fn step(random: &mut Random, number: usize, setup: &Setup, strings: &[String], state: Option<&State>) -> Move {
    let known = |id: &String| {
        state.is_some_and(|state| {
            state.holders.iter().any(|holder| holder.id == *id) || state.queue.iter().any(|waiter| waiter.id == *id)
        })
    };
    let ids: Vec<String> = ["a-1", "a-2", "b-1", "b-2", "c-1"]
        .iter()
        .map(|id| (*id).to_owned())
        .chain(strings.iter().filter(|text| text.len() < 100).take(20).cloned())
        .collect();
    let few = |random: &mut Random, most: u64| {
        let count = random.below(most + 1);
        // Mostly from the plain ones: they must meet.
        (0..count)
            .map(|_| {
                if random.below(8) == 0 {
                    random.pick(&ids).clone()
                } else {
                    random.pick(&ids[..5]).clone()
                }
            })
            .collect::<Vec<_>>()
    };
    // Few owners, some of them hostile, and few incarnations: they must meet too.
    let identity = |random: &mut Random| {
        let owners = ["worker", "$$NOW", "$holders.owner.id"];
        (random.below(3) != 0).then(|| Identity {
            id: (*random.pick(&owners)).to_owned(),
            born: i64::try_from(random.below(4)).unwrap(),
        })
    };
    let operation = format!("{}.{number}", random.pick(&["a", "b", "$c"]));
    if random.below(5) == 0 {
        return Move::Renew {
            operation,
            ids: few(random, 3),
            idle: (random.below(2) == 0).then(|| few(random, 3)),
        };
    }
    if let Some(holder) = state.and_then(|state| state.holders.last())
        && random.below(8) == 0
    {
        let another = random.pick(&ids);
        return Move::Guard {
            operation,
            id: (*random.pick(&[&holder.id, &holder.id, another])).clone(),
            token: holder.token - i64::from(random.below(4) == 0),
        };
    }
    if let Some(released) = state.and_then(|state| state.holders.iter().find(|holder| holder.is_kept()))
        && random.below(4) == 0
    {
        // A release that comes late, in whatever form.
        let capacity = state.map(|state| state.capacity);
        let expects: &[Expects] = match capacity {
            Some(1) => &[Expects::Nothing, Expects::Holding, Expects::Alone],
            _ => &[Expects::Nothing, Expects::Holding],
        };
        return Move::Run(Box::new(Operation {
            id: operation,
            leave: vec![released.id.clone()],
            kept: Vec::new(),
            leave_capacity: capacity,
            evict: Evict::Nobody,
            proclaim: None,
            downgrade: None,
            requests: None,
            expects: *random.pick(expects),
            room: 4,
            keep: 500,
            record: record(random, std::slice::from_ref(&released.id)),
        }));
    }
    let requests = (random.below(4) != 0).then(|| {
        let (kind, capacity) = *random.pick(setup.uses);
        let mut wanted = few(random, 2);
        wanted.push(random.pick(&ids).clone());
        wanted.sort();
        wanted.dedup();
        let entries = wanted
            .into_iter()
            .enumerate()
            .map(|(position, id)| Request {
                fresh: random.below(if known(&id) { 4 } else { 2 }) == 0,
                id,
                permits: *random.pick(&[1, 1, 1, capacity]),
                // As in use: for one entry.
                reserve: if position == 0 { *random.pick(&[0, 1, 63]) } else { 0 },
                lease: *random.pick(&[10, 25, 1000]),
                claim: *random.pick(&[1, 5]),
                wait: random.below(3) != 0,
                owner: Owner {
                    host: random.pick(strings).clone(),
                    pid: 7,
                    label: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                    reason: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                    value: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                    proclaimed: 0,
                    identity: identity(random),
                },
            })
            .collect();
        Requests {
            kind,
            capacity,
            entries,
            adopts: identity(random),
        }
    });
    let leave = few(random, 2);
    let kept = state.map_or_else(Vec::new, |state| kept(random, state, &leave));
    let operation = Operation {
        id: operation,
        leave,
        kept,
        leave_capacity: None,
        evict: Evict::Nobody,
        proclaim: None,
        downgrade: None,
        requests,
        expects: Expects::Nothing,
        room: 4,
        keep: 500,
        record: Record::default(),
    };
    let one_fresh = |requests: &Requests| matches!(&requests.entries[..], [entry] if entry.fresh);
    // As in use: an operation that leaves and requests is of one kind of lock, and an eviction does nothing else.
    let used = state.map(|state| (state.kind, state.capacity));
    let wanted = operation
        .requests
        .as_ref()
        .map(|requests| (requests.kind, requests.capacity));
    let operation = match random.below(14) {
        12 => {
            // Mostly a holder, sometimes under the token of an earlier grant, and sometimes with fewer permits already.
            let held = state.and_then(|state| state.holders.get(random.below(2) as usize));
            let another = random.pick(&ids);
            let downgrade = held.map(|held| Downgrade {
                id: (*random.pick(&[&held.id, &held.id, &held.id, another])).clone(),
                token: held.token - i64::from(random.below(4) == 0),
                permits: *random.pick(&[1, 2]),
            });
            Operation {
                leave_capacity: used.map(|(_, capacity)| capacity).filter(|_| downgrade.is_some()),
                // Without a holder there is nothing to downgrade.
                leave: if downgrade.is_some() {
                    Vec::new()
                } else {
                    operation.leave.clone()
                },
                requests: operation.requests.clone().filter(|_| downgrade.is_none()),
                downgrade,
                ..operation
            }
        }
        0 => Operation {
            evict: Evict::Everybody,
            leave: Vec::new(),
            requests: None,
            ..operation
        },
        11 => {
            let held = state.and_then(|state| state.holders.get(random.below(2) as usize));
            Operation {
                evict: {
                    // Or of a hold that is over.
                    let token = held.map_or(7, |holder| holder.token - i64::from(random.below(4) == 0));
                    *random.pick(&[Evict::Holder(token), Evict::Holder(token), Evict::Kept(token)])
                },
                leave: Vec::new(),
                requests: None,
                ..operation
            }
        }
        1 => {
            // Mostly a holder, so that values of one entry meet, with equal numbers too.
            let another = random.pick(&ids);
            let held = state.and_then(|state| state.holders.last());
            let id = held.map_or(another, |held| *random.pick(&[&held.id, &held.id, &held.id, another]));
            Operation {
                proclaim: Some(Proclaim {
                    id: id.clone(),
                    value: random.pick(strings).clone(),
                    number: i64::try_from(1 + random.below(4)).unwrap(),
                }),
                leave: Vec::new(),
                requests: None,
                ..operation
            }
        }
        2..5 if operation.leave.len() == 1 && used.is_some_and(|(_, capacity)| capacity == 1) => Operation {
            requests: None,
            leave_capacity: Some(1),
            expects: *random.pick(&[Expects::Alone, Expects::Holding]),
            ..operation
        },
        2..4 if operation.leave.len() == 1 => Operation {
            requests: None,
            leave_capacity: used.map(|(_, capacity)| capacity),
            expects: Expects::Holding,
            ..operation
        },
        2..5 => Operation {
            requests: None,
            leave_capacity: used.map(|(_, capacity)| capacity),
            ..operation
        },
        7..9 if used.is_some()
            && wanted == used
            && operation.requests.iter().all(|requests| requests.adopts.is_none()) =>
        {
            Operation {
                leave: Vec::new(),
                expects: Expects::Room,
                ..operation
            }
        }
        5..7 if wanted.is_some_and(|(_, capacity)| capacity == 1) && operation.requests.iter().any(one_fresh) => {
            Operation {
                leave: Vec::new(),
                expects: Expects::Alone,
                requests: operation.requests.map(|requests| Requests {
                    adopts: None,
                    ..requests
                }),
                ..operation
            }
        }
        // An operation may still concern a lock that is gone by now.
        _ if wanted.is_some() && used.is_some() && wanted != used => Operation {
            leave: Vec::new(),
            ..operation
        },
        _ => operation,
    };
    // As in use: what keeps is a release in the general form.
    let keeps = !operation.leave.is_empty() && operation.expects == Expects::Nothing;
    let kept = operation.kept.clone().into_iter().filter(|_| keeps).collect();
    let record = record(random, &operation.leave);
    Move::Run(Box::new(Operation {
        kept,
        record,
        ..operation
    }))
}

/// Draws what is recorded of the holds that end: often nothing, as of a client without a history.
fn record(random: &mut Random, leave: &[String]) -> Record {
    let ways = [HoldEnd::Released, HoldEnd::Expired, HoldEnd::HeldTooLong];
    let given_up = leave.iter().filter_map(|id| {
        let how = *random.pick(&ways);
        (how != HoldEnd::Released).then(|| (id.clone(), how))
    });
    let given_up = given_up.collect();
    Record {
        most: *random.pick(&[0, 1, 3]),
        given_up,
    }
}

/// Draws which of the holders that leave are kept, sometimes under the token of an earlier grant.
fn kept(random: &mut Random, state: &State, leave: &[String]) -> Vec<Kept> {
    let holders = state.holders.iter().filter(|holder| leave.contains(&holder.id));
    let kept: Vec<&Holder> = holders.filter(|_| random.below(2) == 0).collect();
    let kept = kept.into_iter().map(|holder| {
        let millis = i64::try_from(random.below(40)).unwrap();
        Kept {
            id: holder.id.clone(),
            token: holder.token - i64::from(random.below(8) == 0),
            until: match random.below(3) {
                0 => KeptUntil::AfterGrant(millis),
                1 => KeptUntil::AfterRelease(millis),
                _ => KeptUntil::WindowEnd {
                    length: 1 + millis,
                    offset: i64::try_from(random.below(20)).unwrap(),
                },
            },
        }
    });
    kept.collect()
}

/// One sequence on its way, and the document that it must have.
struct Sequence {
    seed: u64,
    random: Random,
    id: Bson,
    now: ServerTime,
    expected: Option<State>,
    /// The user's part of the document; `None` if the document is the lock's alone.
    users: Option<Document>,
}

impl Sequence {
    fn new(seed: u64, setup: &Setup, strings: &[String]) -> Self {
        let mut random = Random::new(seed);
        // Two names of a kind would collide, so the hostile ones get the seed as well.
        let name = format!("{seed}{}", random.pick(strings));
        let id = Bson::from(name.chars().take(512).collect::<String>());
        let users = (!setup.at.is_root()).then(|| {
            let text = random.pick(strings).clone();
            let mut document = doc! { "_id": &id, "text": text, "list": [1, { "holders": 2 }] };
            // The path to the lock may be there, or a part of it.
            match random.below(3) {
                0 => {}
                1 => drop(document.insert("a", doc! { "holders": 3, "text": random.pick(strings) })),
                _ => drop(document.insert("a", doc! { "b": { "c": 4 }, "token": "x" })),
            }
            document
        });
        let now = ServerTime(1_700_000_000_000 + i64::try_from(random.below(1_000)).unwrap());
        Self {
            seed,
            random,
            id,
            now,
            expected: None,
            users,
        }
    }

    /// Takes a step by the specification, and returns it as an update for the server.
    fn step(&mut self, number: usize, setup: &Setup, strings: &[String]) -> Option<(Move, Document)> {
        self.now = self.now.plus_millis(i64::try_from(self.random.below(16)).unwrap() - 1);
        let date = Bson::from(self.now);
        let step = step(&mut self.random, number, setup, strings, self.expected.as_ref());
        let (query, update, upsert) = match &step {
            Move::Run(operation)
                if operation.leave.is_empty()
                    && operation.requests.is_none()
                    && operation.proclaim.is_none()
                    && operation.evict == Evict::Nobody =>
            {
                return None;
            }
            Move::Run(operation) => {
                let free = self.expected.as_ref().is_none_or(|state| state.is_free(self.now));
                self.expected = state::apply(self.expected.as_ref(), operation, self.now);
                match &operation.requests {
                    // As a claim, with its own filter and pipeline.
                    Some(requests) if !setup.at.is_root() && free && is_claim(operation) => (
                        doc! { "$and": [{ "_id": &self.id }, pipeline::free(&setup.at, &date)] },
                        pipeline::claim(&setup.at, operation, requests, false, &date),
                        false,
                    ),
                    _ => (
                        pipeline::selection(&setup.at, &self.id, operation),
                        pipeline::operation(&setup.at, operation, &date),
                        operation.creates() && setup.at.is_root(),
                    ),
                }
            }
            Move::Renew { operation, ids, idle } => {
                let shown = (&**ids, idle.as_deref());
                if let Some(state) = &mut self.expected {
                    state::renew_and_show(state, operation, shown, 500, self.now);
                }
                (
                    doc! { "_id": &self.id, setup.at.key("holders.id"): { "$in": ids } },
                    pipeline::renewal(&setup.at, operation, shown, 500, &date),
                    false,
                )
            }
            Move::Guard { operation, id, token } => {
                if let Some(state) = &mut self.expected {
                    state::guard(state, operation, (id, *token), 500, self.now);
                }
                (
                    pipeline::holding(&setup.at, &self.id, (id, *token), &date),
                    pipeline::guard(&setup.at, operation, id, 500, &date),
                    false,
                )
            }
        };
        Some((step, doc! { "q": query, "u": update, "upsert": upsert }))
    }

    /// Returns the document that the server must have.
    fn document(&self, setup: &Setup) -> Option<Document> {
        let name = self.id.as_str().unwrap();
        let Some(users) = &self.users else {
            return self.expected.as_ref().map(|state| state.to_document(name));
        };
        let mut document = users.clone();
        if let Some(state) = &self.expected {
            let mut lock = state.to_document(name);
            lock.remove("_id");
            let (parents, last) = setup.at.path().rsplit_once('.').unwrap_or(("", setup.at.path()));
            let mut parent = &mut document;
            for segment in parents.split_terminator('.') {
                if !parent.contains_key(segment) {
                    parent.insert(segment, Document::new());
                }
                parent = parent.get_document_mut(segment).unwrap();
            }
            // Other fields of the user's stay there, before it.
            match parent.get_document_mut(last) {
                Ok(present) => present.extend(lock),
                Err(_) => drop(parent.insert(last, lock)),
            }
        }
        Some(document)
    }
}

fn is_claim(operation: &Operation) -> bool {
    let entries = operation.requests.as_ref().map(|requests| &requests.entries[..]);
    let adopts = operation.requests.iter().any(|requests| requests.adopts.is_some());
    operation.creates() && operation.leave.is_empty() && !adopts && matches!(entries, Some([entry]) if entry.fresh)
}

/// The subject of a run of sequences.
struct Setup {
    at: Location,
    /// The kinds and capacities of the locks.
    uses: &'static [Use],
}

/// Runs sequences side by side, with a step of all of them in one command.
async fn run(setup: &Setup, seeds: std::ops::Range<u64>) {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("differential"));
    let collection = database.collection::<Document>("locks");
    let strings = hostile();
    let seeds: Vec<u64> = seeds.collect();
    for together in seeds.chunks(TOGETHER) {
        let mut sequences: Vec<_> = together
            .iter()
            .map(|seed| Sequence::new(*seed, setup, &strings))
            .collect();
        let users: Vec<_> = sequences.iter().filter_map(|sequence| sequence.users.clone()).collect();
        if !users.is_empty() {
            collection.insert_many(users).await.unwrap();
        }
        for number in 0..STEPS {
            let mut updates = Vec::new();
            let mut taken = Vec::new();
            for sequence in &mut sequences {
                let step = sequence.step(number, setup, &strings);
                taken.push(step.map(|(step, update)| {
                    updates.push(update);
                    step
                }));
            }
            let answer = database
                .run_command(doc! { "update": "locks", "updates": updates, "ordered": false })
                .await
                .unwrap();
            assert_eq!(answer.get("writeErrors"), None);
            let ids: Vec<&Bson> = sequences.iter().map(|sequence| &sequence.id).collect();
            let found: Vec<Document> = collection
                .find(doc! { "_id": { "$in": ids } })
                .await
                .unwrap()
                .try_collect()
                .await
                .unwrap();
            let mut found: HashMap<String, Document> = found
                .into_iter()
                .map(|document| (document.get_str("_id").unwrap().to_owned(), document))
                .collect();
            for (sequence, step) in sequences.iter().zip(&taken) {
                let found = found.remove(sequence.id.as_str().unwrap());
                let seed = sequence.seed;
                assert_eq!(
                    found,
                    sequence.document(setup),
                    "sequence {seed}, step {number}: {step:?}"
                );
            }
        }
    }
}

const MIXED: &[Use] = &[
    (Kind::Mutex, 1),
    (Kind::Semaphore, 3),
    (Kind::RwLock, 1 << 20),
    (Kind::Semaphore, 4),
];

fn sequences() -> u64 {
    match std::env::var("WATCHLOCK_SEQUENCES") {
        Ok(number) => number.parse().expect("a number"),
        Err(_) => SEQUENCES,
    }
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_mixed_uses() {
    let at = Location::default();
    run(&Setup { at, uses: MIXED }, 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_mutexes() {
    let at = Location::default();
    let uses = &[(Kind::Mutex, 1)];
    run(&Setup { at, uses }, 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_elections() {
    let at = Location::default();
    let uses = &[(Kind::Election, 1)];
    run(&Setup { at, uses }, sequences()..2 * sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_semaphores() {
    let at = Location::default();
    let uses = &[(Kind::Semaphore, 3)];
    run(&Setup { at, uses }, 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_readers_and_writers() {
    let at = Location::default();
    let uses = &[(Kind::RwLock, 1 << 20)];
    run(&Setup { at, uses }, 0..sequences()).await;
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says_of_locks_in_documents() {
    let uses = &[(Kind::Document, 1)];
    let paths = ["watchlock", "a.b", r#"a.of%2Elines.sku="%24NOW",line=7"#];
    let third = sequences() / 3;
    for (path, seeds) in paths
        .into_iter()
        .zip([0..third, third..2 * third, 2 * third..sequences()])
    {
        let at = Location::under(path);
        run(&Setup { at, uses }, seeds).await;
    }
}

/// No form of a pipeline touches a document that a later version wrote, whatever is in it.
#[tokio::test]
async fn no_pipeline_changes_a_document_of_a_later_protocol() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("later"));
    let collection = database.collection::<Document>("locks");
    let strings = hostile();
    for (path, uses) in [("", MIXED), ("", &[(Kind::Mutex, 1)]), ("a.b", &[(Kind::Document, 1)])] {
        let at = if path.is_empty() {
            Location::default()
        } else {
            Location::under(path)
        };
        let setup = Setup { at, uses };
        let (mut documents, mut updates) = (Vec::new(), Vec::new());
        for seed in 0..sequences() / 5 {
            let mut sequence = Sequence::new(seed, &setup, &strings);
            for number in 0..STEPS {
                let before = sequence.document(&setup).filter(|_| sequence.expected.is_some());
                let step = sequence.step(number, &setup, &strings);
                let (Some(mut document), Some((_, mut update))) = (before, step) else {
                    continue;
                };
                // Each step has a document of its own.
                let id = format!("{path} {seed} {number} {}", documents.len() + updates.len());
                document.insert("_id", &id);
                let lock = doc! { "protocol": 2_i64 };
                if path.is_empty() {
                    document.extend(lock);
                } else {
                    assert!(setup.at.set_lock(&mut document, lock));
                }
                let mut query = update.get_document("q").unwrap().clone();
                match query.get_array_mut("$and") {
                    Ok(all) => drop(all[0].as_document_mut().unwrap().insert("_id", &id)),
                    Err(_) => drop(query.insert("_id", &id)),
                }
                update.extend(doc! { "q": query, "upsert": false });
                documents.push(document);
                updates.push(update);
            }
        }
        collection.insert_many(&documents).await.unwrap();
        for together in updates.chunks(TOGETHER) {
            let command = doc! { "update": "locks", "updates": together, "ordered": false };
            let answer = database.run_command(command).await.unwrap();
            assert_eq!(
                (answer.get("writeErrors"), answer.get_i32("nModified").ok()),
                (None, Some(0))
            );
        }
        for document in documents {
            let found = collection
                .find_one(doc! { "_id": document.get("_id").unwrap() })
                .await
                .unwrap();
            assert_eq!(found, Some(document));
        }
        collection.delete_many(doc! {}).await.unwrap();
    }
}

/// Locks side by side in one document are renewed all together or not at all, and those that are idle for long go with
/// the next write of another: as the specification says of each by itself.
#[tokio::test]
async fn locks_that_share_a_document_are_renewed_and_removed_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("sharing"));
    let collection = database.collection::<Document>("documents");
    let strings = hostile();
    let base = Location::under("locks.of%2Elines");
    let uses = &[(Kind::Document, 1)];
    let (mut renewed, mut left, mut removed, mut kept) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut locks = Vec::new();
        let mut now = ServerTime(0);
        for code in ["a=\"%24NOW\"", "b=7", "c=bson:00"] {
            let setup = Setup {
                at: base.inside(code),
                uses,
            };
            let mut sequence = Sequence::new(seed * 3 + locks.len() as u64, &setup, &strings);
            for number in 0..=random.below(5) {
                drop(sequence.step(usize::try_from(number).unwrap(), &setup, &strings));
            }
            now = now.max(sequence.now);
            locks.push((code, setup.at, sequence.expected));
        }
        // Sometimes right after their writes, and sometimes when some of them are to be removed.
        now = now.plus_millis(*random.pick(&[0, 0, 300, 510, 1_400]));
        let date = Bson::from(now);
        let id = i64::try_from(seed).unwrap();
        let mut document = doc! { "_id": id, "text": "$$NOW" };
        for (_, at, state) in &locks {
            assert!(at.set_lock(&mut document, state.as_ref().map(State::fields).unwrap_or_default()));
        }
        let theirs = doc! { "purge_at": ServerTime(0), "protocol": 99 };
        assert!(base.inside("d").set_lock(&mut document, theirs));
        assert!(base.inside("e").set_lock(&mut document, doc! { "purge_at": "never" }));
        collection.insert_one(&document).await.unwrap();
        let update = async |query: Document, update: Vec<Document>| {
            let updated = collection.update_one(query, update).await.unwrap();
            let found = collection.find_one(doc! { "_id": id }).await.unwrap().unwrap();
            (updated.modified_count, found)
        };

        let ids = |state: &Option<State>| match state.iter().flat_map(|state| &state.holders).next() {
            Some(holder) => vec![holder.id.clone(), "nobody".to_owned()],
            None => vec!["nobody".to_owned()],
        };
        let asked: Vec<_> = locks.iter().map(|(code, at, state)| (*code, at, ids(state))).collect();
        let asked = &asked[..1 + usize::try_from(random.below(3)).unwrap()];
        let together = pipeline::Together {
            codes: asked.iter().map(|(code, _, _)| (*code).to_owned()).collect(),
            ids: asked.iter().flat_map(|(_, _, ids)| ids.clone()).collect(),
        };
        let mut expected = document.clone();
        let mut all = true;
        for ((_, at, ids), (_, _, state)) in asked.iter().zip(&locks) {
            let mut state = state.clone();
            let holds = state.iter().flat_map(|state| &state.holders);
            let holds = holds
                .clone()
                .any(|holder| holder.until > now && !holder.is_kept() && ids.contains(&holder.id));
            all &= holds;
            if let Some(state) = &mut state
                && state::renew(state, "r.1", ids, 900, now)
            {
                at.set_lock(&mut expected, state.fields());
            }
        }
        let renewal = pipeline::renewal_of_all(&base, &together, "r.1", 900, &date);
        let (modified, found) = update(
            doc! { "_id": id, "$expr": pipeline::all_held(&base, &together, &date) },
            renewal,
        )
        .await;
        if all {
            assert_eq!(found, expected, "seed {seed}");
            renewed += 1;
        } else {
            assert_eq!((modified, &found), (0, &document), "seed {seed}");
            left += 1;
        }
        let renewal = pipeline::renewal_of_all(&base, &together, "r.1", 900, &date);
        let (_, found) = update(doc! { "_id": id }, renewal).await;
        assert_eq!(found, expected, "seed {seed}");

        // The write of one lock removes others; a step that writes nothing does not.
        let (_, at, state) = &locks[0];
        let wrote = state
            .as_ref()
            .map_or("", |state| state.wake.split(':').next().unwrap_or_default());
        let sweep = pipeline::sweep(&base, at, wrote, &date);
        let before = found;
        let (_, found) = update(doc! { "_id": id }, vec![sweep.clone()]).await;
        let mut expected = before.clone();
        let map = base.lock_mut(&mut expected).unwrap();
        let is_purged =
            |lock: &Document| State::from_document(lock).is_ok_and(|state| state.purge_at <= now && state.is_free(now));
        // The renewal was the last to write, if it did.
        let wrote = base
            .inside(locks[0].0)
            .lock(&before)
            .and_then(|lock| lock.get_str("wake").ok())
            .is_some_and(|wake| wake.starts_with(&format!("{wrote}:")));
        let codes: Vec<String> = map.keys().cloned().collect();
        for code in codes {
            if wrote && map.get_document(&code).is_ok_and(is_purged) {
                map.remove(&code);
                removed += 1;
            } else {
                kept += 1;
            }
        }
        assert_eq!(found, expected, "seed {seed}: {sweep}");
    }
    assert!(
        renewed > 10 && left > 10 && removed > 10 && kept > 10,
        "{renewed} {left} {removed} {kept}"
    );
}

/// The server and the specification find the same ahead of an entry, also if the entry is not there, or no lock. What
/// can't be read is not taken for a queue without the entry.
#[tokio::test]
async fn the_entries_ahead_of_a_waiter_are_found_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("ahead"));
    let collection = database.collection::<Document>("locks");
    let strings = hostile();
    let (mut in_queue, mut elsewhere, mut asleep, mut unreadable) = (0, 0, 0, 0);
    for (path, uses) in [("", MIXED), ("a.b", &[(Kind::Document, 1)])] {
        let at = if path.is_empty() {
            Location::default()
        } else {
            Location::under(path)
        };
        let setup = Setup { at, uses };
        let look = async |id: &str, entry: &str| {
            let mut projection = ahead::projection(&setup.at, entry);
            projection.insert("now", "$$NOW");
            let found = collection.find_one(doc! { "_id": id }).projection(projection).await;
            let found = found.unwrap().unwrap();
            let now = ServerTime::in_field(&found, "now").unwrap();
            (ahead::read(&found, now), now)
        };
        for seed in 0..60 {
            let mut sequence = Sequence::new(seed, &setup, &strings);
            for number in 0..STEPS {
                drop(sequence.step(number, &setup, &strings));
                let (Some(state), Some(mut document)) = (sequence.expected.clone(), sequence.document(&setup)) else {
                    continue;
                };
                let id = format!("{path} {seed} {number}");
                document.insert("_id", &id);
                collection.insert_one(&document).await.unwrap();
                let holders = state.holders.iter().map(|holder| &holder.id);
                let entries = holders.chain(state.queue.iter().map(|waiter| &waiter.id));
                for entry in entries.map(String::as_str).chain(["nobody", "$holders.id"]) {
                    let (found, now) = look(&id, entry).await;
                    let expected = ahead::Ahead::of(&state, entry, now);
                    assert_eq!(found.as_ref(), Ok(&expected), "{entry} in {state:?}");
                    in_queue += u32::from(expected.is_some_and(|ahead| ahead.turns > 0));
                    elsewhere += u32::from(expected.is_none());
                    asleep += u32::from(expected.is_some_and(|ahead| ahead.asleep));
                }
                let Some(waiter) = state.queue.last().filter(|_| seed % 8 == 0) else {
                    continue;
                };
                for missing in ["queue", "holders", "capacity"] {
                    let mut document = document.clone();
                    setup.at.lock_mut(&mut document).unwrap().remove(missing);
                    let id = format!("{id} {missing}");
                    document.insert("_id", &id);
                    collection.insert_one(&document).await.unwrap();
                    let (found, _) = look(&id, &waiter.id).await;
                    assert!(found.is_err(), "{document}: {found:?}");
                    assert!(setup.at.state(&document).is_err(), "{document}");
                    unreadable += 1;
                }
            }
        }
        let nothing = [
            doc! {},
            doc! { "a": 7 },
            doc! { "a": { "b": 7 } },
            doc! { "a": { "b": { "c": 7 } } },
        ];
        for (number, mut document) in nothing.into_iter().enumerate() {
            let id = format!("{path} without a lock {number}");
            document.insert("_id", &id);
            collection.insert_one(document).await.unwrap();
            assert_eq!(look(&id, "nobody").await.0, Ok(None), "{id}");
        }
    }
    assert!(
        in_queue > 100 && elsewhere > 100 && asleep > 10 && unreadable > 10,
        "{in_queue} {elsewhere} {asleep} {unreadable}"
    );
}

/// A change that writes nothing raises no event and costs no entry in the log.
#[tokio::test]
async fn a_step_that_changes_nothing_writes_nothing() {
    let cluster = shared::replica_set().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("nothing"));
    let collection = database.collection::<Document>("locks");
    let request = |id: &str, wait| Request {
        id: id.to_owned(),
        permits: 1,
        lease: 60_000,
        claim: 5_000,
        wait,
        fresh: false,
        reserve: 0,
        owner: Owner::default(),
    };
    let operation = |number: u32, leave: &[&str], entries| Operation {
        id: format!("a.{number}"),
        leave: leave.iter().map(|id| (*id).to_owned()).collect(),
        kept: Vec::new(),
        leave_capacity: None,
        evict: Evict::Nobody,
        proclaim: None,
        downgrade: None,
        requests: Some(Requests {
            kind: Kind::Mutex,
            capacity: 1,
            entries,
            adopts: None,
        }),
        expects: Expects::Nothing,
        room: QUEUE_MOST,
        keep: 1_000,
        record: Record::default(),
    };
    let run = async |operation: Operation| {
        collection
            .find_one_and_update(
                pipeline::selection(&Location::default(), &"x".into(), &operation),
                pipeline::operation(&Location::default(), &operation, &"$$NOW".into()),
            )
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await
            .unwrap()
            .unwrap()
    };
    let held = run(operation(1, &[], vec![request("a-1", true)])).await;
    let mut events = collection.watch().await.unwrap();
    for (number, entry) in [(2, request("a-1", true)), (3, request("b-1", false))] {
        assert_eq!(run(operation(number, &[], vec![entry])).await, held);
    }
    let queued = run(operation(4, &[], vec![request("c-1", true)])).await;
    assert_ne!(queued, held);
    assert_eq!(run(operation(5, &[], vec![request("c-1", true)])).await, queued);
    let released = run(operation(6, &["a-1"], vec![])).await;
    // Only the two that changed the document are in the stream.
    for expected in [queued, released] {
        let event = events.next().await.unwrap().unwrap();
        let wake = match (&event.full_document, &event.update_description) {
            (Some(document), _) => document.get_str("wake").unwrap().to_owned(),
            (None, Some(update)) => update.updated_fields.get_str("wake").unwrap().to_owned(),
            (None, None) => panic!("an event that changes nothing: {event:?}"),
        };
        assert_eq!(wake, expected.get_str("wake").unwrap());
    }
}

/// The most entries that one operation requests, fresh and repeated, nest no deeper than a command may.
#[tokio::test]
async fn many_entries_fit_one_operation() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("many"));
    let collection = database.collection::<Document>("locks");
    let (at, now) = (Location::default(), ServerTime(1_700_000_000_000));
    let mut expected: Option<State> = None;
    for (number, fresh) in [(1, true), (2, false), (3, true)] {
        let entries = (0..ASK_TOGETHER).map(|entry| Request {
            id: format!("a-{entry}"),
            permits: 1,
            lease: 60_000,
            claim: 5_000,
            wait: true,
            fresh,
            reserve: 0,
            owner: Owner::default(),
        });
        let operation = Operation {
            id: format!("a.{number}"),
            leave: Vec::new(),
            kept: Vec::new(),
            leave_capacity: None,
            evict: Evict::Nobody,
            proclaim: None,
            downgrade: None,
            requests: Some(Requests {
                kind: Kind::Semaphore,
                capacity: 40,
                entries: entries.collect(),
                adopts: None,
            }),
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep: 1_000,
            record: Record::default(),
        };
        let now = now.plus_millis(number * 10_000);
        expected = state::apply(expected.as_ref(), &operation, now);
        let found = collection
            .find_one_and_update(
                pipeline::selection(&at, &"x".into(), &operation),
                pipeline::operation(&at, &operation, &Bson::from(now)),
            )
            .upsert(true)
            .return_document(ReturnDocument::After)
            .await
            .unwrap();
        let found = found.map(|document| State::from_document(&document).unwrap());
        assert_eq!(found, expected, "{number}");
    }
}
