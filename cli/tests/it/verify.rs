//! `watchlock verify`: what it finds on a server, and that it leaves nothing there.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::Value;
use tokio::task::JoinHandle;
use watchlock::LockClient;
use watchlock_testkit::{
    Liar,
    liar::{self, Told},
};

use crate::{
    Done, Started,
    common::{Ground, eventually, pause, within},
    done, program, signal,
};

/// Maximum time for a run of a second: some sections take as long as their leases.
pub(super) const RUN: Duration = Duration::from_secs(300);

const PREFIX: &str = "watchlock_verify_";

async fn verify(ground: &Ground, arguments: &[&str]) -> Done {
    let running = program(ground)
        .args(["verify", "--seconds", "1"])
        .args(arguments)
        .output();
    let output = within(RUN, "its end", running).await.unwrap();
    Done {
        code: output.status.code().expect("it exits by itself"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the verdict of a check.
fn verdict<'a>(report: &'a Value, section: &str, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let found = checks
        .iter()
        .find(|check| check["section"] == section && check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("{section}, {name}: {report:#}"));
    found["verdict"].as_str().unwrap()
}

/// Returns the collections of runs.
async fn left(ground: &Ground) -> Vec<String> {
    let database = ground.driver().await.database(&ground.database);
    let mut names = database.list_collection_names().await.unwrap();
    names.retain(|name| name.starts_with(PREFIX));
    names
}

/// Changes the documents of a run in its collection of this part, over and over, as soon as they are there.
pub(super) fn spoil(ground: &Ground, part: &'static str) -> JoinHandle<()> {
    let (uri, database) = (ground.uri().to_owned(), ground.database.clone());
    tokio::spawn(async move {
        let database = mongodb::Client::with_uri_str(uri).await.unwrap().database(&database);
        loop {
            for name in database.list_collection_names().await.unwrap() {
                if name.starts_with(PREFIX) && name.ends_with(part) {
                    let collection = database.collection::<Document>(&name);
                    let spoiled = collection.update_many(doc! {}, doc! { "$set": { "spoiled": true } });
                    // It may be dropped by now.
                    drop(spoiled.await);
                }
            }
            tokio::task::yield_now().await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_set_keeps_the_promises() {
    let ground = Ground::replica_set("cli_verify").await;
    let page = std::env::temp_dir().join(format!("{}.md", ground.database));
    let report = verify(&ground, &["--json", "--seed", "7", "--report", page.to_str().unwrap()])
        .await
        .expect(0)
        .json();
    assert_eq!((&report["kept"], &report["seed"]), (&true.into(), &7.into()));
    for (section, name) in [
        ("server", "clock"),
        ("protocol", "mutexes"),
        ("protocol", "elements"),
        ("exclusion", "mutexes"),
        ("exclusion", "readers and writers"),
        ("exclusion", "documents"),
        ("exclusion", "locks taken away"),
        ("wake-ups and losses", "hand-over"),
        ("wake-ups and losses", "loss by a deletion"),
        ("wake-ups and losses", "expiry"),
        ("wake-ups and losses", "killed streams"),
        ("fences and transactions", "earlier holder's write"),
        ("fences and transactions", "guarded transaction"),
    ] {
        assert_eq!(verdict(&report, section, name), "kept", "{section}, {name}: {report:#}");
    }
    // Nobody waits a minute for it in a run of a second.
    assert!(["kept", "skipped"].contains(&verdict(&report, "fences and transactions", "TTL index")));
    let text = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(
        text.starts_with("# watchlock verify\n") && text.contains("| hand-over | kept |"),
        "{text}"
    );
    assert_eq!(left(&ground).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_standalone_does_not_have_is_skipped() {
    let ground = Ground::standalone("cli_verify_standalone").await;
    let report = verify(&ground, &["--json"]).await.expect(0).json();
    for (section, name) in [
        ("server", "journal"),
        ("wake-ups and losses", "streams"),
        ("fences and transactions", "guarded transaction"),
        ("cost", "streams beside writes"),
    ] {
        assert_eq!(
            verdict(&report, section, name),
            "skipped",
            "{section}, {name}: {report:#}"
        );
    }
    assert_eq!(verdict(&report, "exclusion", "mutexes"), "kept");
    assert_eq!(left(&ground).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_are_not_those_of_the_specification_are_found() {
    let ground = Ground::replica_set("cli_verify_spoiled").await;
    let spoiling = spoil(&ground, "protocol");
    let report = verify(&ground, &["--json", "--seed", "11"]).await.expect(1).json();
    spoiling.abort();
    assert_eq!(report["kept"], false);
    let broken = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| check["verdict"] == "broken");
    let evidence: Vec<&str> = broken.map(|check| check["evidence"].as_str().unwrap()).collect();
    assert!(!evidence.is_empty(), "{report:#}");
    for evidence in evidence {
        assert!(
            evidence.contains("sequence 1") && evidence.contains("spoiled"),
            "{evidence}"
        );
    }
}

/// ^C at any moment, and the collections are gone; a run that was killed leaves them to the next.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_leaves_nothing_behind() {
    let ground = Ground::replica_set("cli_verify_interrupted").await;
    for number in 0..6 {
        let mut running = Started::new(program(&ground).args(["verify", "--seconds", "5"]));
        running.until_told("verifying").await;
        pause(Duration::from_millis(number * 700)).await;
        signal("INT", running.pid());
        let status = running.status().await;
        assert!(!status.success(), "{status}");
        assert_eq!(left(&ground).await, [""; 0], "after {number}");
    }
    // Of a run that was killed long ago, and of one that goes on elsewhere.
    let database = ground.driver().await.database(&ground.database);
    let (killed, living) = ("000000000000000000000001", "000000000000000000000002");
    for id in [killed, living] {
        let written = database.collection::<Document>(&format!("{PREFIX}{id}_written"));
        written.insert_one(doc! {}).await.unwrap();
    }
    let locks = LockClient::builder(database.clone()).collection(format!("{PREFIX}{living}_locks"));
    let locks = locks.build().await.unwrap();
    let _alive = locks.mutex("this run").acquire().await.unwrap();
    let ended = done(program(&ground).args(["verify", "--seconds", "0"])).await;
    assert_eq!(ended.code, 64, "{ended:?}");
    let mut running = Started::new(program(&ground).args(["verify", "--seconds", "5"]));
    running.until_told("verifying").await;
    signal("INT", running.pid());
    running.status().await;
    eventually(RUN, "only the living run's are left", async || {
        let left = left(&ground).await;
        left.iter().all(|name| name.contains(living)) && left.len() == 2
    })
    .await;
    let written = database.collection::<Document>(&format!("{PREFIX}{living}_written"));
    let found: Vec<Document> = written.find(doc! {}).await.unwrap().try_collect().await.unwrap();
    assert_eq!(found.len(), 1);
}

/// A server that is not what it says, and the checks of which one has to find it.
struct Lie {
    name: &'static str,
    command: fn(&mut Document) -> Told,
    answer: fn(&Document, &mut Document),
    found: &'static [&'static str],
}

fn honest(_: &mut Document) -> Told {
    Told::Server
}

fn unchanged(_: &Document, _: &mut Document) {}

fn is(command: &Document, name: &str) -> bool {
    command.keys().next().is_some_and(|key| key == name)
}

fn is_aggregate_of(command: &Document, stage: &str) -> bool {
    let stages = command.get_array("pipeline").ok();
    let first = stages.and_then(|stages| stages.first()?.as_document());
    is(command, "aggregate") && first.is_some_and(|first| first.contains_key(stage))
}

fn refusal(code: i32, message: &str) -> Told {
    Told::Client(doc! { "ok": 0.0, "code": code, "errmsg": message })
}

/// Changes each update of a command.
fn each_update(command: &mut Document, change: impl Fn(&mut Document)) {
    if let Ok(updates) = command.get_array_mut("updates") {
        updates.iter_mut().filter_map(Bson::as_document_mut).for_each(change);
    }
}

const LIES: [Lie; 12] = [
    Lie {
        name: "a clock that stands still",
        command: |command| {
            let still = Bson::from(DateTime::from_millis(1_700_000_000_000));
            liar::replace(command, &|value| {
                (value.as_str() == Some("$$NOW")).then(|| still.clone())
            });
            Told::Server
        },
        answer: unchanged,
        found: &["clock"],
    },
    Lie {
        name: "a clock that is an hour ahead",
        command: |command| {
            let ahead = Bson::from(doc! { "$add": ["$$NOW", 3_600_000] });
            liar::replace(command, &|value| {
                (value.as_str() == Some("$$NOW")).then(|| ahead.clone())
            });
            Told::Server
        },
        answer: unchanged,
        found: &["clock"],
    },
    Lie {
        name: "findAndModify without pipelines",
        command: |command| {
            let is_pipeline = command.get_array("update").is_ok();
            if is_pipeline && (is(command, "findAndModify") || is(command, "findandmodify")) {
                return refusal(9, "the update must be a document");
            }
            Told::Server
        },
        answer: unchanged,
        found: &["a lock"],
    },
    Lie {
        name: "no change streams",
        command: |command| match is_aggregate_of(command, "$changeStream") {
            true => refusal(40_324, "unrecognized pipeline stage"),
            false => Told::Server,
        },
        answer: unchanged,
        found: &["raw hop", "streams"],
    },
    Lie {
        name: "change streams without events",
        command: honest,
        answer: |command, answer| {
            if let Ok(cursor) = answer.get_document_mut("cursor")
                && is(command, "getMore")
            {
                cursor.insert("nextBatch", Vec::<Bson>::new());
            }
        },
        found: &["raw hop"],
    },
    Lie {
        name: "the document before the change",
        command: |command| {
            if command.contains_key("new") {
                command.insert("new", false);
            }
            Told::Server
        },
        answer: unchanged,
        found: &["a lock", "mutexes"],
    },
    Lie {
        name: "no upserts",
        command: |command| {
            command.remove("upsert");
            each_update(command, |update| drop(update.remove("upsert")));
            Told::Server
        },
        answer: unchanged,
        found: &["clock"],
    },
    Lie {
        name: "transactions that are none",
        command: |command| {
            if is(command, "commitTransaction") || is(command, "abortTransaction") {
                return Told::Client(doc! { "ok": 1.0 });
            }
            if command.remove("autocommit").is_some() {
                command.remove("startTransaction");
                command.remove("txnNumber");
            }
            Told::Server
        },
        answer: unchanged,
        found: &["guarded transaction"],
    },
    Lie {
        name: "texts that are read as expressions",
        command: |command| {
            each_update(command, |update| {
                liar::replace(update, &|value| value.as_document()?.get("$literal").cloned());
            });
            Told::Server
        },
        answer: unchanged,
        found: &["mutexes", "semaphores"],
    },
    Lie {
        name: "numbers of another type",
        command: honest,
        answer: |_, answer| {
            if let Ok(cursor) = answer.get_document_mut("cursor")
                && let Ok(batch) = cursor.get_array_mut("firstBatch")
            {
                for document in batch.iter_mut().filter_map(Bson::as_document_mut) {
                    #[expect(clippy::cast_precision_loss, reason = "that is the lie")]
                    liar::replace(document, &|value| {
                        value.as_i64().map(|number| Bson::from(number as f64))
                    });
                }
            }
        },
        found: &["mutexes"],
    },
    Lie {
        name: "grants that a crash undoes",
        command: honest,
        answer: |command, answer| {
            if let Ok(config) = answer.get_document_mut("config")
                && is(command, "replSetGetConfig")
            {
                config.insert("writeConcernMajorityJournalDefault", false);
            }
        },
        found: &["journal"],
    },
    Lie {
        name: "conditions of updates that are passed over",
        command: |command| {
            each_update(command, |update| {
                if let Ok(query) = update.get_document_mut("q")
                    && let Some(id) = query.get("_id").cloned()
                {
                    *query = doc! { "_id": id };
                }
            });
            Told::Server
        },
        answer: unchanged,
        found: &["mutexes", "semaphores", "elections", "earlier holder's write"],
    },
];

/// Most of the time of a run is waited.
const LIES_AT_ONCE: usize = 6;

/// This is how we know that a verification can fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_what_it_says_is_found_out() {
    let ground = Ground::replica_set("cli_verify_liars").await;
    let server = watchlock_testkit::shared::replica_set().await.addr(0);
    let (ground, server) = (&ground, server);
    let told = stream::iter(&LIES).map(async |lie| {
        let liar = Liar::before(server, lie.command, lie.answer).await.unwrap();
        let told = verify(&ground.through(liar.uri()), &["--json", "--seed", "3"]).await;
        if told.code != 1 {
            return Some(format!("{}: {told:?}", lie.name));
        }
        let report = told.json();
        let checks = report["checks"].as_array().unwrap().iter();
        let broken = checks.filter(|check| check["verdict"] == "broken");
        let broken: Vec<&str> = broken.map(|check| check["name"].as_str().unwrap()).collect();
        let is_found = broken.iter().any(|name| lie.found.contains(name));
        (!is_found).then(|| format!("{}: {broken:?}", lie.name))
    });
    let missed: Vec<String> = told
        .buffer_unordered(LIES_AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(missed.is_empty(), "{missed:#?}");
}
