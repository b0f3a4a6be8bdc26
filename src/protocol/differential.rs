//! The pipelines, run by a real server, against the specification.
//!
//! Random sequences of operations and renewals, with time moved on and back at will, are applied to the pure
//! transitions and to a collection; after every step the two documents must be the same, to the bit. Each `findAnd
//! Modify` is a step, many documents go side by side.

use futures::{StreamExt, stream};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::ReturnDocument,
};
use watchlock_testkit::shared;

use super::{Expects, Kind, Operation, Owner, Request, Requests, ServerTime, State, pipeline, state};

/// Sequences, and steps in each.
const SEQUENCES: u64 = 10_000;
const STEPS: usize = 8;

/// Sequences that run side by side.
const AT_ONCE: usize = 16;

/// A small generator (xorshift64*, Marsaglia and Vigna), so that a seed names a sequence.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

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
        "_watchlock",
    ]
    .map(str::to_owned)
    .to_vec();
    strings.push("x".repeat(1024));
    strings.push("é".repeat(512));
    strings
}

#[derive(Debug)]
enum Step {
    Run(Operation),
    Renew { operation: String, ids: Vec<String> },
}

/// Ids are few, so that entries meet themselves again; some of them are hostile.
fn step(random: &mut Random, number: usize, strings: &[String], state: Option<&State>) -> Step {
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
        // Mostly from the plain ones: they are to meet.
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
    let operation = format!("{}.{number}", random.pick(&["a", "b", "$c"]));
    if random.below(5) == 0 {
        return Step::Renew {
            operation,
            ids: few(random, 3),
        };
    }
    let requests = (random.below(4) != 0).then(|| {
        let (kind, capacity) = *random.pick(&[
            (Kind::Mutex, 1),
            (Kind::Mutex, 1),
            (Kind::Semaphore, 3),
            (Kind::Semaphore, 3),
            (Kind::Semaphore, 4),
            (Kind::RwLock, 1 << 20),
        ]);
        let mut wanted = few(random, 2);
        wanted.push(random.pick(&ids).clone());
        wanted.sort();
        wanted.dedup();
        let entries = wanted
            .into_iter()
            .map(|id| Request {
                fresh: !known(&id) && random.below(2) == 0,
                id,
                permits: *random.pick(&[1, 1, 1, capacity]),
                lease: *random.pick(&[10, 25, 1000]),
                claim: *random.pick(&[1, 5]),
                wait: random.below(3) != 0,
                owner: Owner {
                    host: random.pick(strings).clone(),
                    pid: 7,
                    label: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                    reason: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                    value: (random.below(2) == 0).then(|| random.pick(strings).clone()),
                },
            })
            .collect();
        Requests {
            kind,
            capacity,
            entries,
        }
    });
    let operation = Operation {
        id: operation,
        leave: few(random, 2),
        leave_capacity: None,
        evict: false,
        proclaim: None,
        requests,
        expects: Expects::Nothing,
        keep: 500,
    };
    let one_fresh = |requests: &Requests| matches!(&requests.entries[..], [entry] if entry.fresh);
    // As they are in use: an operation that leaves and requests is of one kind of lock, an eviction is alone.
    let used = state.map(|state| (state.kind, state.capacity));
    let wanted = operation
        .requests
        .as_ref()
        .map(|requests| (requests.kind, requests.capacity));
    Step::Run(match random.below(12) {
        0 => Operation {
            evict: true,
            leave: Vec::new(),
            requests: None,
            ..operation
        },
        1 => Operation {
            proclaim: Some((random.pick(&ids).clone(), random.pick(strings).clone())),
            leave: Vec::new(),
            requests: None,
            ..operation
        },
        2..5 if operation.leave.len() == 1 && used.is_some_and(|(_, capacity)| capacity == 1) => Operation {
            requests: None,
            leave_capacity: Some(1),
            expects: *random.pick(&[Expects::Alone, Expects::Holding]),
            ..operation
        },
        2..5 => Operation {
            requests: None,
            leave_capacity: used.map(|(_, capacity)| capacity),
            ..operation
        },
        5..7 if wanted.is_some_and(|(_, capacity)| capacity == 1) && operation.requests.iter().any(one_fresh) => {
            Operation {
                leave: Vec::new(),
                expects: Expects::Alone,
                ..operation
            }
        }
        _ if wanted.is_some() && wanted != used => Operation {
            leave: Vec::new(),
            ..operation
        },
        _ => operation,
    })
}

async fn sequence(collection: &Collection<Document>, seed: u64, strings: &[String]) {
    let mut random = Random::new(seed);
    // Two names of a kind would collide, so the hostile ones get the seed as well.
    let name = format!("{seed}{}", random.pick(strings))
        .chars()
        .take(512)
        .collect::<String>();
    let mut now = ServerTime(1_700_000_000_000 + i64::try_from(random.below(1_000)).unwrap());
    let mut expected: Option<State> = None;
    for number in 0..STEPS {
        now = now.plus_millis(i64::try_from(random.below(16)).unwrap() - 1);
        let date = Bson::from(now);
        let step = step(&mut random, number, strings, expected.as_ref());
        if let Step::Run(operation) = &step
            && operation.leave.is_empty()
            && operation.requests.is_none()
            && operation.proclaim.is_none()
            && !operation.evict
        {
            continue;
        }
        let found = match &step {
            Step::Run(operation) => {
                expected = state::apply(expected.as_ref(), operation, now);
                let answer = collection
                    .find_one_and_update(
                        pipeline::selection(&name, operation),
                        pipeline::operation(operation, &date),
                    )
                    .upsert(operation.creates())
                    .return_document(ReturnDocument::After)
                    .await
                    .unwrap();
                // Not selected is left as it is.
                match answer {
                    None => collection.find_one(doc! { "_id": &name }).await.unwrap(),
                    answered => answered,
                }
            }
            Step::Renew { operation, ids } => {
                let renewed = expected
                    .as_mut()
                    .is_some_and(|state| state::renew(state, operation, ids, 500, now));
                let filter = doc! { "_id": { "$in": [&name] }, "holders.id": { "$in": ids } };
                let update = pipeline::renewal(operation, ids, 500, &date);
                let result = collection.update_many(filter, update).await.unwrap();
                assert_eq!(
                    result.modified_count == 1,
                    renewed,
                    "sequence {seed}, step {number}: {step:?}"
                );
                collection.find_one(doc! { "_id": &name }).await.unwrap()
            }
        };
        let expected = expected.as_ref().map(|state| state.to_document(&name));
        assert_eq!(found, expected, "sequence {seed}, step {number}: {step:?}");
    }
}

#[tokio::test]
async fn pipelines_do_what_the_specification_says() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let collection = client
        .database(&shared::unique_name("differential"))
        .collection::<Document>("locks");
    let strings = hostile();
    stream::iter(0..SEQUENCES)
        .for_each_concurrent(AT_ONCE, |seed| sequence(&collection, seed, &strings))
        .await;
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
        owner: Owner::default(),
    };
    let operation = |number: u32, leave: &[&str], entries| Operation {
        id: format!("a.{number}"),
        leave: leave.iter().map(|id| (*id).to_owned()).collect(),
        leave_capacity: None,
        evict: false,
        proclaim: None,
        requests: Some(Requests {
            kind: Kind::Mutex,
            capacity: 1,
            entries,
        }),
        expects: Expects::Nothing,
        keep: 1_000,
    };
    let run = async |operation: Operation| {
        collection
            .find_one_and_update(
                pipeline::selection("x", &operation),
                pipeline::operation(&operation, &"$$NOW".into()),
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
