//! `watchlock verify`: what it finds on a server, and that it leaves nothing there.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, future::join_all, stream};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::Value;
use tokio::task::{JoinHandle, block_in_place};
use watchlock::LockClient;
use watchlock_testkit::{
    Cluster, Liar,
    liar::{self, Told},
};

use crate::{
    Done, Started, bare,
    common::{Ground, eventually, pause, users::user_of},
    done, done_within, program, signal, tells, watchlock, words,
};

/// Maximum time for a run of a second: some sections take as long as their leases.
pub(super) const RUN: Duration = Duration::from_secs(300);

const PREFIX: &str = "watchlock_verify_";

async fn verify(ground: &Ground, options: &str) -> Done {
    run(ground, &format!("verify --seconds 1 --json {options}")).await
}

async fn run(ground: &Ground, line: &str) -> Done {
    done_within(RUN, program(ground).args(words(line))).await
}

fn check<'a>(report: &'a Value, section: &str, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let found = checks
        .iter()
        .find(|check| check["section"] == section && check["name"] == name);
    found.unwrap_or_else(|| panic!("{section}, {name}: {report:#}"))
}

/// Returns the verdict of a check.
fn verdict<'a>(report: &'a Value, section: &str, name: &str) -> &'a str {
    check(report, section, name)["verdict"].as_str().unwrap()
}

/// Returns what a check found, in words.
fn found<'a>(report: &'a Value, section: &str, name: &str) -> &'a str {
    check(report, section, name)["found"].as_str().unwrap()
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

/// With the rights that a run needs and no more, and with concerns that locks do not obey: so a run does not either.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_set_keeps_the_promises_to_a_user_with_these_rights_and_whatever_concerns() {
    let ground = user_with(&[&NEEDED[..], &USEFUL].concat()).await;
    let ground = ground.with("readPreference=secondary&readConcernLevel=linearizable&w=5");
    let page = std::env::temp_dir().join(format!("{}.md", ground.database));
    let report = verify(&ground, &format!("--seed 7 --report {}", page.display()))
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
    // Of the whole set, and so of an operator.
    assert_eq!(verdict(&report, "server", "journal"), "skipped", "{report:#}");
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
    // All but the pipelines, which are the same to a standalone: the differential test runs there too.
    let sections = "--section server --section exclusion --section wake-ups --section fences";
    let report = verify(&ground, sections).await.expect(0).json();
    for (section, name) in [
        ("server", "journal"),
        ("wake-ups and losses", "streams"),
        ("fences and transactions", "guarded transaction"),
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
    let report = verify(&ground, "--seed 11 --section protocol").await.expect(1).json();
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

/// ^C at any moment, and the collections are gone.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_leaves_nothing_behind() {
    let sections = ["server", "protocol", "exclusion", "wake-ups", "fences"];
    let moments = sections
        .into_iter()
        .flat_map(|section| [10, 300].map(|moment| (section, moment)));
    let ended = moments.map(async |(section, moment)| {
        let ground = Ground::replica_set("cli_verify_interrupted").await;
        let mut running = Started::run(&ground, format!("verify --seconds 1 --section {section}"));
        running.until_told("verifying").await;
        pause(Duration::from_millis(moment)).await;
        signal("INT", running.pid());
        let code = running.status().await.code();
        assert_eq!(left(&ground).await, [""; 0], "{section} after {moment} ms");
        code
    });
    let ended = join_all(ended).await;
    let interrupted = ended.iter().filter(|code| **code == Some(130)).count();
    // Some are done by then.
    assert!(
        interrupted >= 4 && ended.iter().all(|code| [Some(130), Some(0)].contains(code)),
        "{ended:?}"
    );
}

/// A run that was killed leaves its collections to the next.
#[tokio::test(flavor = "multi_thread")]
async fn the_collections_of_a_killed_run_are_dropped_by_the_next() {
    let ground = Ground::replica_set("cli_verify_killed").await;
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
    watchlock(&ground, "verify --seconds 0", 64).await;
    let mut running = Started::run(&ground, "verify --seconds 5");
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
    /// The sections that are to find it.
    sections: &'static [&'static str],
    found: &'static [&'static str],
    /// The check of `watchlock doctor` that sees it too, without writing anything, and its status.
    doctor: Option<(&'static str, &'static str)>,
}

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

/// Returns the operands of an expression of this operator.
fn operands<'a>(value: &'a Bson, operator: &str) -> Option<&'a [Bson]> {
    value.as_document()?.get_array(operator).ok().map(Vec::as_slice)
}

const HONEST: Lie = Lie {
    name: "",
    command: |_| Told::Server,
    answer: |_, _| {},
    sections: &[],
    found: &[],
    doctor: None,
};

const LIES: [Lie; 14] = [
    // The longest: an event is waited for.
    Lie {
        name: "change streams without events",
        answer: |command, answer| {
            if let Ok(cursor) = answer.get_document_mut("cursor")
                && is(command, "getMore")
            {
                cursor.insert("nextBatch", Vec::<Bson>::new());
            }
        },
        sections: &["wake-ups"],
        found: &["raw hop"],
        ..HONEST
    },
    Lie {
        name: "a clock that stands still",
        command: |command| {
            let still = Bson::from(DateTime::from_millis(1_700_000_000_000));
            liar::replace(command, &|value| {
                (value.as_str() == Some("$$NOW")).then(|| still.clone())
            });
            Told::Server
        },
        sections: &["server"],
        found: &["clock"],
        ..HONEST
    },
    Lie {
        name: "a member that says that it is a standalone server",
        answer: |command, answer| {
            if ["hello", "isMaster", "ismaster"].iter().any(|name| is(command, name)) {
                for field in [
                    "setName",
                    "hosts",
                    "me",
                    "primary",
                    "setVersion",
                    "electionId",
                    "lastWrite",
                ] {
                    answer.remove(field);
                }
            }
        },
        sections: &["server"],
        found: &["answers"],
        doctor: Some(("topology", "problem")),
        ..HONEST
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
        sections: &["server"],
        found: &["clock"],
        ..HONEST
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
        sections: &["server"],
        found: &["a lock"],
        ..HONEST
    },
    Lie {
        name: "no change streams",
        command: |command| match is_aggregate_of(command, "$changeStream") {
            true => refusal(40_324, "unrecognized pipeline stage"),
            false => Told::Server,
        },
        sections: &["wake-ups"],
        found: &["raw hop", "streams"],
        doctor: Some(("wake-mode", "warning")),
        ..HONEST
    },
    Lie {
        name: "the document before the change",
        command: |command| {
            if command.contains_key("new") {
                command.insert("new", false);
            }
            Told::Server
        },
        sections: &["protocol"],
        found: &["a lock", "mutexes"],
        ..HONEST
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
        sections: &["fences"],
        found: &["guarded transaction"],
        ..HONEST
    },
    Lie {
        name: "texts that are read as expressions",
        command: |command| {
            each_update(command, |update| {
                liar::replace(update, &|value| value.as_document()?.get("$literal").cloned());
            });
            Told::Server
        },
        sections: &["protocol"],
        found: &["mutexes", "semaphores"],
        ..HONEST
    },
    Lie {
        name: "numbers of another type",
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
        sections: &["protocol"],
        found: &["mutexes"],
        ..HONEST
    },
    Lie {
        name: "grants that a crash undoes",
        answer: |command, answer| {
            if let Ok(config) = answer.get_document_mut("config")
                && is(command, "replSetGetConfig")
            {
                config.insert("writeConcernMajorityJournalDefault", false);
            }
        },
        sections: &["server"],
        found: &["journal"],
        doctor: Some(("journal", "problem")),
        ..HONEST
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
        sections: &["protocol", "exclusion", "fences"],
        found: &["mutexes", "semaphores", "elections", "earlier holder's write"],
        ..HONEST
    },
    // Mistakes in the pipelines themselves, of those that the model has to find.
    Lie {
        name: "a capacity that is off by one",
        command: |command| {
            liar::replace(command, &|value| {
                let [held, capacity] = operands(value, "$lte")? else {
                    return None;
                };
                let more = doc! { "$add": [capacity.clone(), 1] };
                (held.as_str() == Some("$$held")).then(|| doc! { "$lte": [held.clone(), more] }.into())
            });
            Told::Server
        },
        sections: &["protocol", "exclusion"],
        found: &["mutexes", "semaphores"],
        ..HONEST
    },
    Lie {
        name: "a token that is issued twice",
        command: |command| {
            let numbered = Bson::from(doc! { "$add": ["$$first", "$$this"] });
            liar::replace(command, &|value| (*value == numbered).then(|| "$$first".into()));
            Told::Server
        },
        sections: &["protocol", "exclusion"],
        found: &["semaphores", "readers and writers"],
        ..HONEST
    },
];

/// Most of the time of a run is waited.
const LIES_AT_ONCE: usize = 8;

/// This is how we know that a verification can fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_what_it_says_is_found_out() {
    let ground = Ground::replica_set("cli_verify_liars").await;
    let server = watchlock_testkit::shared::replica_set().await.addr(0);
    let (ground, server) = (&ground, server);
    let told = stream::iter(&LIES).map(async |lie| {
        let liar = Liar::before(server, lie.command, lie.answer).await.unwrap();
        let behind = ground.through(liar.uri());
        if let Some((name, status)) = lie.doctor {
            let told = run(&behind, "doctor --json").await;
            let report = told.json();
            let mut checks = report["checks"].as_array().unwrap().iter();
            let is_seen = checks.any(|check| check["name"] == name && check["status"] == status);
            if !is_seen || (status == "problem" && told.code != 1) {
                return Some(format!("{}, by doctor: {told:?}", lie.name));
            }
        }
        let sections: String = lie
            .sections
            .iter()
            .map(|section| format!(" --section {section}"))
            .collect();
        let told = verify(&behind, &format!("--seed 3{sections}")).await;
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

/// What the run found before stays found.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_promise_is_reported_though_the_run_ends_early() {
    let ground = Ground::replica_set("cli_verify_ends").await;
    let server = watchlock_testkit::shared::replica_set().await.addr(0);
    let forgets = LIES.iter().find(|lie| lie.found == ["journal"]).unwrap();
    let forbid = |command: &mut Document| match command.get_str("insert") {
        Ok(collection) if collection.ends_with("_documents") => refusal(13, "not authorized"),
        _ => Told::Server,
    };
    let liar = Liar::before(server, forbid, forgets.answer).await.unwrap();
    let sections = "--section server --section exclusion";
    let report = verify(&ground.through(liar.uri()), sections).await.expect(1).json();
    assert_eq!(verdict(&report, "server", "journal"), "broken", "{report:#}");
    assert!(
        found(&report, "run", "to its end").contains("not authorized"),
        "{report:#}"
    );
}

/// What was not run is named, and does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_section_is_run_by_itself() {
    let ground = Ground::replica_set("cli_verify_section").await;
    let report = verify(&ground, "--section ser").await.expect(0).json();
    for name in ["clock", "journal"] {
        assert_eq!(verdict(&report, "server", name), "kept", "{name}: {report:#}");
    }
    for section in [
        "protocol",
        "exclusion",
        "wake-ups and losses",
        "fences and transactions",
    ] {
        let whole = check(&report, section, "to its end");
        assert!(
            whole["verdict"] == "skipped" && whole["found"] == "not asked for",
            "{report:#}"
        );
    }
    // What was found is printed even if the page has no room.
    let told = verify(&ground, "--section ser --report /dev/full").await.expect(64);
    assert!(
        told.out.contains(r#""kept": true"#) && told.err.contains("can't be written to /dev/full"),
        "{told:?}"
    );
    for unclear in ["fence post", "", "f"] {
        tells(
            &ground,
            format!("verify --section `{unclear}`"),
            64,
            "sections begin with",
        )
        .await;
    }
    tells(&ground, "verify --section fail-over", 64, "--step-down").await;
    // Where nobody is asked, a yes has to be given.
    tells(&ground, "verify --step-down", 64, "--yes").await;
}

/// Before anything is asked of a server.
#[tokio::test]
async fn a_report_that_can_not_be_written_is_told_at_once() {
    let mut program = bare();
    program.env("MONGODB_URI", "mongodb://127.0.0.1:1/app?serverSelectionTimeoutMS=200");
    let told = done(program.args(words("verify --report /dev/null/report.md")))
        .await
        .expect(64);
    assert!(told.err.contains("can't be written to /dev/null/report.md"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_is_seen_and_keeps_the_promises() {
    let cluster = Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap();
    let before = cluster.primary().await.unwrap();
    // A primary that says yes and stays shows nothing of a fail-over.
    let stays = |command: &mut Document| match is(command, "replSetStepDown") {
        true => Told::Client(doc! { "ok": 1.0 }),
        false => Told::Server,
    };
    let liar = Liar::before(cluster.addr(before), stays, HONEST.answer).await.unwrap();
    let ground = Ground::on(&cluster, "cli_verify_fail_over");
    let step_down = "--step-down --yes --section fail-over";
    let report = verify(&ground.through(liar.uri()), step_down).await.expect(2).json();
    assert_eq!(verdict(&report, "fail-over", "step-down"), "inconclusive", "{report:#}");
    let kept = |check: &Value| check["section"] == "fail-over" && check["verdict"] == "kept";
    assert!(!report["checks"].as_array().unwrap().iter().any(kept), "{report:#}");

    // As a server before 5.0 has it: what one member has confirmed, a read that sees what a majority has may not see yet.
    let alone = doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 1 } };
    let admin = cluster.client().await.unwrap().database("admin");
    admin.run_command(alone).await.unwrap();
    let sections = format!("{step_down} --section server --section protocol");
    let report = verify(&ground, &sections).await.expect(0).json();
    for (section, name) in [
        ("server", "member clocks"),
        ("protocol", "mutexes"),
        ("fail-over", "contention through it"),
        ("fail-over", "a lock held through it"),
    ] {
        assert_eq!(verdict(&report, section, name), "kept", "{section}, {name}: {report:#}");
    }
    assert_ne!(cluster.primary().await.unwrap(), before);
    assert_eq!(left(&ground).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fail_over_without_another_member_is_skipped() {
    let ground = Ground::replica_set("cli_verify_alone").await;
    let report = verify(&ground, "--step-down --yes --section fail-over")
        .await
        .expect(0)
        .json();
    assert_eq!(verdict(&report, "fail-over", "to its end"), "skipped", "{report:#}");
}

/// The rights of `docs/privileges.md`: those that a run needs, and those that it can do without.
const NEEDED: [&str; 6] = [
    "find",
    "insert",
    "update",
    "remove",
    "listCollections",
    "dropCollection",
];
const USEFUL: [&str; 2] = ["changeStream", "createIndex"];

/// Returns a user with these rights on all collections of a database.
async fn user_with(actions: &[&str]) -> Ground {
    user_of("cli_verify_rights", &[("", actions)]).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_lacks_is_skipped_by_its_right() {
    let ground = user_with(&NEEDED).await;
    let report = verify(&ground, "--section wake-ups --section fences")
        .await
        .expect(0)
        .json();
    for (section, name, right) in [
        ("wake-ups and losses", "raw hop", "changeStream"),
        ("wake-ups and losses", "streams", "changeStream"),
        ("fences and transactions", "TTL index", "createIndex"),
    ] {
        assert_eq!(
            verdict(&report, section, name),
            "skipped",
            "{section}, {name}: {report:#}"
        );
        let found = found(&report, section, name);
        assert!(found.contains(right), "{section}, {name}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_that_a_run_needs_is_named_where_it_is_missing() {
    // Both look for them at the same place.
    for (missing, command) in NEEDED.into_iter().zip(["verify", "bench"].into_iter().cycle()) {
        let others: Vec<&str> = NEEDED.into_iter().filter(|action| *action != missing).collect();
        let ground = user_with(&others).await;
        let lacks = format!("the user lacks {missing} on");
        tells(&ground, format!("{command} --seconds 1"), 77, &lacks).await;
    }
}

/// A verdict by a time-out says nothing of a server that is slow by itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_slow_server_does_not_do_in_time_is_inconclusive() {
    let ground = Ground::replica_set("cli_verify_slow").await;
    let slow = slow().await;
    // An answer is quick for a few commands in a row, and slow for a contest.
    let report = verify(&ground.through(slow.uri()), "--patience 5")
        .await
        .expect(2)
        .json();
    assert_eq!(report["kept"], false);
    let checks = report["checks"].as_array().unwrap();
    let slow = checks.iter().filter(|check| check["verdict"] == "inconclusive");
    assert!(slow.count() > 0, "{report:#}");
    assert!(checks.iter().all(|check| check["verdict"] != "broken"), "{report:#}");
}

/// Returns the replica set behind a proxy that holds up every command.
pub(super) async fn slow() -> Liar {
    let server = watchlock_testkit::shared::replica_set().await.addr(0);
    let slowly = |_: &mut Document| {
        block_in_place(|| std::thread::sleep(Duration::from_millis(150)));
        Told::Server
    };
    Liar::before(server, slowly, HONEST.answer).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_measurement_shows_locks_beside_raw_commands_and_leaves_nothing_behind() {
    let ground = Ground::replica_set("cli_bench").await;
    let ground = ground.with("readPreference=secondary&readConcernLevel=linearizable&w=5");
    let report = run(&ground, "bench --seconds 1 --json").await.expect(0).json();
    let rows = report["rows"].as_array().unwrap();
    let keys: Vec<&str> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["uncontended", "fresh", "handoff", "lost", "claim"]);
    for row in rows {
        for number in ["lock", "raw", "ratio"] {
            assert!(row[number].as_f64().is_some_and(|number| number > 0.0), "{row:#}");
        }
    }
    assert_eq!(left(&ground).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_change_streams_there_is_no_raw_hop_to_compare_with() {
    let ground = Ground::standalone("cli_bench_standalone").await;
    let table = run(&ground, "bench --seconds 1").await.expect(0).out;
    let line = table.lines().find(|line| line.starts_with("hand-over")).unwrap();
    assert!(line.contains(" -  ") && line.ends_with("raw hop"), "{table}");
    assert_eq!(left(&ground).await, [""; 0]);
}
