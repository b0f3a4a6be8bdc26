//! `watchlock doctor`.

use mongodb::bson::doc;
use serde_json::{Value, json};
use watchlock_testkit::Cluster;

use crate::{
    Done,
    common::{
        COLLECTION, Ground, PATIENCE, eventually,
        users::{LEAST, PASSWORD, user},
    },
    watchlock,
};

/// Returns a report without its line breaks.
pub(crate) fn in_a_line(report: &Done) -> String {
    report.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the check's status, by the check's name.
fn status<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("{name} is not in {report}"));
    assert_eq!(check.as_object().unwrap().len(), 4, "{check}");
    let status = check["status"].as_str().unwrap();
    // Every reported problem comes with advice.
    assert_eq!(check["advice"].is_string(), status != "ok", "{check}");
    assert!(!check["found"].as_str().unwrap().is_empty(), "{check}");
    status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_set_is_well() {
    let ground = Ground::replica_set("cli_doctor").await;
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    assert_eq!(report["healthy"], json!(true));
    let help = watchlock(&ground, "doctor --help", 0).await.out;
    for check in report["checks"].as_array().unwrap() {
        assert!(help.contains(check["name"].as_str().unwrap()), "{check}: {help}");
    }
    let names = "server version topology privileges writes pool wake-mode collection index";
    for name in names.split(' ') {
        assert_eq!(status(&report, name), "ok", "{name}");
    }
    // It tried a collection that is not there, and left none.
    let database = ground.driver().await.database(&ground.database);
    assert_eq!(database.list_collection_names().await.unwrap(), [""; 0]);
    // The index comes with the first lock; without it, the report says so.
    let locks = ground.locks().await;
    let _held = locks.mutex("x").acquire().await.unwrap();
    let documents = ground.documents().await;
    eventually(PATIENCE, "the index", async || {
        documents.list_index_names().await.unwrap().len() == 2
    })
    .await;
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    assert_eq!(status(&report, "index"), "ok");
    // A client whose first request was not answered in time asks again, and would recreate the index.
    locks.shutdown().await;
    documents.drop_indexes().await.unwrap();
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    assert_eq!(status(&report, "index"), "warning");
    let told = watchlock(&ground, "doctor", 0).await;
    let advice = "createIndex({ purge_at: 1 }, { name: \"watchlock_purge_at\", expireAfterSeconds: 0 })";
    assert!(in_a_line(&told).contains(advice), "{told:?}");
    let modify = doc! { "createIndexes": COLLECTION, "indexes": [
        { "key": { "purge_at": 1 }, "name": "slow", "expireAfterSeconds": 60 },
    ] };
    database.run_command(modify).await.unwrap();
    let told = watchlock(&ground, "doctor", 0).await;
    assert!(in_a_line(&told).contains("another 1m"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_is_a_warning() {
    let ground = Ground::standalone("cli_doctor").await;
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    assert_eq!(report["healthy"], json!(true));
    let warned = [status(&report, "topology"), status(&report, "wake-mode")];
    assert_eq!(warned, ["warning"; 2]);
    let told = watchlock(&ground, "doctor", 0).await;
    assert!(in_a_line(&told).contains("--replSet"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_too_small_is_a_warning() {
    let ground = Ground::replica_set("cli_pool").await;
    for (size, expected, words) in [
        ("1", "warning", "no command gets a turn"),
        ("6", "warning", "set maxPoolSize to 7"),
        ("7", "ok", "maxPoolSize=7"),
    ] {
        let ground = ground.with(&format!("maxPoolSize={size}"));
        let report = watchlock(&ground, "doctor --json", 0).await.json();
        assert_eq!(status(&report, "pool"), expected, "{size}");
        assert!(report.to_string().contains(words), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clocks_of_all_members_are_compared() {
    let cluster = Cluster::builder().replica_set(3).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "cli_members");
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    let well = [status(&report, "member-clocks"), status(&report, "topology")];
    assert_eq!(well, ["ok"; 2]);
    let told = report.to_string();
    assert!(told.contains("it names 3 members with data"), "{told}");
    let primary = cluster.primary().await.unwrap();
    let secondary = (primary + 1) % 3;
    // A client of one member alone can't say anything of the others.
    let direct = ground.through(cluster.node_uri(primary));
    let report = watchlock(&direct, "doctor --json", 0).await.json();
    assert_eq!(status(&report, "member-clocks"), "unknown");
    let told = report.to_string();
    assert!(
        told.contains("directConnection") && !told.contains("do not answer"),
        "{told}"
    );
    cluster.kill(secondary);
    let report = watchlock(&ground, "doctor --json", 0).await.json();
    assert_eq!(status(&report, "member-clocks"), "warning");
    let silent = format!("no answer from {}", cluster.addr(secondary));
    assert!(report.to_string().contains(&silent), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_privileges_are_named() {
    let report = async |ground: &Ground| {
        let report = watchlock(ground, "doctor --json", 0).await;
        assert!(!format!("{report:?}").contains(PASSWORD), "{report:?}");
        report.json()
    };
    let all = [&LEAST[..], &["createIndex"]].concat();
    let (ground, _) = user("cli_all", &all).await;
    let found = report(&ground).await;
    // The minimum role of docs/privileges.md leaves no problem.
    let checks = found["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["status"] == "ok"), "{found:#}");
    let (ground, _) = user("cli_unseen", &LEAST).await;
    let found = report(&ground).await;
    assert_eq!(status(&found, "index"), "unknown");
    assert!(found.to_string().contains("deletes held locks"), "{found}");
}
