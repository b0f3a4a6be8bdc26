//! `watchlock doctor`.

use mongodb::bson::doc;
use serde_json::{Value, json};
use watchlock_testkit::Cluster;

use crate::{
    Done, bare,
    common::{
        COLLECTION, Ground, PATIENCE, eventually,
        users::{LEAST, PASSWORD, user},
    },
    done, watchlock,
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
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(report["healthy"], json!(true));
    for name in [
        "server",
        "version",
        "topology",
        "privileges",
        "writes",
        "pool",
        "clock",
        "wake-mode",
        "collection",
        "index",
    ] {
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
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(status(&report, "index"), "ok");
    // A client whose first request was not answered in time asks again, and would recreate the index.
    locks.shutdown().await;
    documents.drop_indexes().await.unwrap();
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(status(&report, "index"), "warning");
    let told = watchlock(&ground, ["doctor"]).await.expect(0);
    assert!(
        in_a_line(&told)
            .contains("createIndex({ purge_at: 1 }, { name: \"watchlock_purge_at\", expireAfterSeconds: 0 })"),
        "{told:?}"
    );
    let modify = doc! { "createIndexes": COLLECTION, "indexes": [
        { "key": { "purge_at": 1 }, "name": "slow", "expireAfterSeconds": 60 },
    ] };
    let database = ground.driver().await.database(&ground.database);
    database.run_command(modify).await.unwrap();
    let told = watchlock(&ground, ["doctor"]).await.expect(0);
    assert!(in_a_line(&told).contains("another 1m"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_is_a_warning() {
    let ground = Ground::standalone("cli_doctor").await;
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(report["healthy"], json!(true));
    assert_eq!(
        (status(&report, "topology"), status(&report, "wake-mode")),
        ("warning", "warning")
    );
    let told = watchlock(&ground, ["doctor"]).await.expect(0);
    assert!(in_a_line(&told).contains("--replSet"), "{told:?}");
}

/// What the report says of a collection is what becomes of a lock in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_refuses_locks_or_loses_them_is_a_problem() {
    let (number, date) = (doc! { "bsonType": "long" }, doc! { "bsonType": "date" });
    let entries = doc! { "bsonType": "array", "items": {
        "required": ["id", "permits", "lease", "claim", "since", "until", "owner"],
        "properties": {
            "id": { "bsonType": "string" }, "permits": &number, "lease": &number, "claim": &number, "since": &date,
            "until": &date, "token": &number,
            "owner": { "properties": { "host": { "bsonType": "string" }, "pid": &number }, "additionalProperties": false },
        },
        "additionalProperties": false,
    } };
    let fields = doc! {
        "_id": { "bsonType": "string" }, "protocol": &number, "kind": { "enum": ["mutex"] }, "capacity": &number,
        "token": &number, "holders": &entries, "queue": &entries, "wake": { "bsonType": "string" },
        "version": &number, "at": &date, "purge_at": &date,
    };
    let names: Vec<&String> = fields.keys().collect();
    let exact = doc! { "required": &names, "properties": &fields, "additionalProperties": false };
    let mut narrow = exact.clone();
    narrow.get_document_mut("properties").unwrap().remove("purge_at");
    for (options, index, words) in [
        (doc! { "validator": { "$jsonSchema": exact } }, None, None),
        (
            doc! { "validator": { "$jsonSchema": narrow } },
            None,
            Some("failed validation"),
        ),
        (
            doc! {},
            Some(doc! { "key": { "kind": 1 }, "name": "one_kind", "unique": true }),
            Some("one_kind"),
        ),
        (
            doc! {},
            Some(doc! { "key": { "at": 1 }, "name": "x", "expireAfterSeconds": 60 }),
            Some("TTL index on `at`"),
        ),
        (doc! { "capped": true, "size": 4096 }, None, Some("it is capped")),
        (doc! { "viewOn": "any", "pipeline": [] }, None, Some("it is a view")),
    ] {
        let ground = Ground::replica_set("cli_place").await;
        let database = ground.driver().await.database(&ground.database);
        let mut create = doc! { "create": COLLECTION };
        create.extend(options);
        database.run_command(create).await.unwrap();
        if let Some(index) = index {
            let create = doc! { "createIndexes": COLLECTION, "indexes": [index] };
            database.run_command(create).await.unwrap();
        }
        let code = i32::from(words.is_some());
        let report = watchlock(&ground, ["doctor", "--json"]).await.expect(code).json();
        let expected = if words.is_some() { "problem" } else { "ok" };
        assert_eq!(status(&report, "collection"), expected, "{report}");
        assert!(words.is_none_or(|words| report.to_string().contains(words)), "{report}");
        // Nothing was written.
        let documents = ground.documents().await;
        assert_eq!(documents.find_one(doc! {}).await.unwrap(), None);
        if let Ok(locks) = ground.builder().await.build().await {
            let first = locks.mutex("x").acquire().await;
            let second = locks.mutex("y").acquire().await;
            assert_eq!(first.is_ok() && second.is_ok(), words.is_none(), "{first:?} {second:?}");
        }
        database.drop().await.unwrap();
    }
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
        let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
        assert_eq!(status(&report, "pool"), expected, "{size}");
        assert!(report.to_string().contains(words), "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clocks_of_all_members_are_compared() {
    let cluster = Cluster::replica_set(3).await.unwrap();
    let ground = Ground::on(&cluster, "cli_members");
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(
        (status(&report, "member-clocks"), status(&report, "topology")),
        ("ok", "ok")
    );
    let told = report.to_string();
    assert!(told.contains("it names 3 members with data"), "{told}");
    let primary = cluster.primary().await.unwrap();
    let secondary = (primary + 1) % 3;
    // A client of one member alone can't say anything of the others.
    let direct = ground.through(cluster.node_uri(primary));
    let report = watchlock(&direct, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(status(&report, "member-clocks"), "unknown");
    let told = report.to_string();
    assert!(
        told.contains("directConnection") && !told.contains("do not answer"),
        "{told}"
    );
    // A member that is never elected has data, and a clock, too.
    let admin = cluster.client().await.unwrap().database("admin");
    let config = admin.run_command(doc! { "replSetGetConfig": 1 }).await.unwrap();
    let mut config = config.get_document("config").unwrap().clone();
    let version = config.get_i32("version").unwrap();
    config.insert("version", version + 1);
    let members = config.get_array_mut("members").unwrap();
    members[secondary].as_document_mut().unwrap().insert("priority", 0);
    admin.run_command(doc! { "replSetReconfig": config }).await.unwrap();
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    let told = report.to_string();
    assert!(told.contains("it names 3 members with data"), "{told}");
    cluster.kill(secondary);
    let report = watchlock(&ground, ["doctor", "--json"]).await.expect(0).json();
    assert_eq!(status(&report, "member-clocks"), "warning");
    let silent = format!("no answer from {}", cluster.addr(secondary));
    assert!(report.to_string().contains(&silent), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_privileges_are_named() {
    let report = async |ground: &Ground, code: i32| {
        let report = watchlock(ground, ["doctor", "--json"]).await.expect(code);
        assert!(!format!("{report:?}").contains(PASSWORD), "{report:?}");
        report.json()
    };
    let all = [&LEAST[..], &["createIndex"]].concat();
    let (ground, _) = user("cli_all", &all).await;
    let found = report(&ground, 0).await;
    assert_eq!(
        (status(&found, "privileges"), status(&found, "wake-mode")),
        ("ok", "ok")
    );
    // The minimum role of docs/privileges.md leaves no problem.
    for check in found["checks"].as_array().unwrap() {
        assert_eq!(check["status"], json!("ok"), "{check}");
    }
    let (ground, _) = user("cli_unseen", &LEAST).await;
    let found = report(&ground, 0).await;
    assert_eq!(status(&found, "index"), "unknown");
    assert!(found.to_string().contains("deletes held locks"), "{found}");

    let (ground, _) = user("cli_blind", &["find", "insert", "update"]).await;
    let found = report(&ground, 0).await;
    assert_eq!(
        (status(&found, "privileges"), status(&found, "wake-mode")),
        ("warning", "warning")
    );

    for missing in ["find", "insert", "update"] {
        let given: Vec<&str> = all.iter().copied().filter(|action| *action != missing).collect();
        let (ground, _) = user("cli_lacking", &given).await;
        let found = report(&ground, 1).await;
        assert_eq!(found["healthy"], json!(false));
        assert_eq!(status(&found, "privileges"), "problem");
        assert!(found.to_string().contains(&format!("missing: {missing}")), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_let_in_is_told_so() {
    let (ground, _) = user("cli_stranger", &LEAST).await;
    // A wrong password.
    let uri = ground.uri().replace(PASSWORD, &format!("{PASSWORD}x"));
    for command in ["doctor", "ls"] {
        let told = done(bare().env("MONGODB_URI", &uri).args([command, "--database", "x"]))
            .await
            .expect(77);
        assert!(!format!("{told:?}").contains(PASSWORD), "{told:?}");
    }
    // No password.
    let (scheme, rest) = ground.uri().split_once("://").unwrap();
    let uri = format!(
        "{scheme}://{}",
        rest.split_once('@').unwrap().1.split('&').next().unwrap()
    );
    let told = done(bare().env("MONGODB_URI", &uri).args(["doctor", "--database", "x"]))
        .await
        .expect(1);
    assert!(in_a_line(&told).contains("nobody has logged in"), "{told:?}");
    done(bare().env("MONGODB_URI", &uri).args(["ls", "--database", "x"]))
        .await
        .expect(77);
}
