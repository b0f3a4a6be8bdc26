//! `watchlock verify`: what it finds on a server, and that it leaves nothing there.

use std::time::Duration;

use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use serde_json::Value;
use tokio::task::JoinHandle;
use watchlock::LockClient;

use crate::{
    Done, Started,
    common::{Ground, eventually, pause, within},
    done, program, signal,
};

/// Maximum time for a run of a second: some sections take as long as their leases.
pub(super) const RUN: Duration = Duration::from_secs(120);

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
        running.until_told("the server").await;
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
    running.until_told("the server").await;
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
