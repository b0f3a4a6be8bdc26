//! `watchlock doctor` in every kind of world in which `watchlock run` fails: it fails too, and names the cause.

use std::net::Ipv4Addr;

use futures::future::join_all;
use mongodb::{
    Client,
    bson::{Document, doc},
};
use tokio::net::TcpSocket;
use watchlock_testkit::{Cluster, shared};

use crate::{
    Done,
    common::{
        COLLECTION, Ground, PATIENCE, eventually,
        users::{LEAST, PASSWORD, cluster, user, user_of},
    },
    doctor::in_a_line,
    done, program, watchlock, words,
};

/// For worlds in which no server is ever found: the time-out is the only thing that can be awaited.
const SHORT: &str = "serverSelectionTimeoutMS=500";

/// The longest line of a report that a person reads.
const LINE_MOST: usize = 200;

/// A world in which `run` fails, and the words that name the cause.
type World = (Ground, &'static str);

async fn ended(ground: &Ground, line: &str) -> Done {
    done(program(ground).args(words(line))).await
}

/// Checks that `run` and `doctor` fail, and that `doctor` says why, in lines for people.
async fn fails((ground, cause): World) {
    let lines = ["run --try x -- true", "doctor", "doctor --json"];
    let Ok([run, doctor, json]) = <[Done; 3]>::try_from(join_all(lines.map(|line| ended(&ground, line))).await) else {
        unreachable!("each of them ends")
    };
    assert!([69, 77].contains(&run.code), "{cause}: {run:?}");
    // The server refuses, or it can't be used at all.
    assert!([1, run.code].contains(&doctor.code), "{cause}: {doctor:?} {run:?}");
    assert_eq!(json.code, doctor.code, "{cause}: {json:?}");
    let told = in_a_line(&doctor);
    assert!(told.contains(cause), "{cause}: {doctor:?}");
    let (problem, advice) = told.split_once("PROBLEM").unwrap();
    assert!(advice.contains(" -> "), "{cause}: {problem} {advice}");
    assert_eq!(doctor.err, "", "{cause}");
    let is_short = |line: &str| line.chars().count() <= LINE_MOST;
    assert!(doctor.out.lines().all(is_short), "{doctor:?}");
    for dump in [
        "Topology",
        "Server selection",
        "signature",
        "clusterTime",
        "findAndModify",
        "Kind:",
        "Error",
        PASSWORD,
    ] {
        assert!(!doctor.out.contains(dump), "{cause}: {dump} in {}", doctor.out);
    }
    let checks = json.json();
    let checks = checks["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["status"] == "problem"), "{checks:?}");
}

/// Checks that `run` and `doctor` succeed.
async fn succeeds(ground: &Ground) -> Done {
    watchlock(ground, "run --try x -- true", 0).await;
    watchlock(ground, "doctor", 0).await
}

async fn all_fail(worlds: impl IntoIterator<Item = World>) {
    join_all(worlds.into_iter().map(fails)).await;
}

/// Without a user, from the connection string of one.
fn as_nobody(ground: &Ground) -> Ground {
    let (_, host) = ground.uri().rsplit_once('@').unwrap();
    let (host, _) = host.split_once("&authSource").unwrap();
    ground.through(format!("mongodb://{host}"))
}

/// A port on which nothing listens, and nothing else will while this is there.
fn without_a_listener() -> TcpSocket {
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_can_t_be_reached_is_a_problem() {
    let set = Ground::replica_set("cli_reach").await;
    let standalone = Ground::standalone("cli_reach").await;
    let proxy = shared::replica_set().await.proxy(0).unwrap();
    proxy.black_hole();
    let taken = without_a_listener();
    let nobody = set.through(format!("mongodb://{}/?{SHORT}", taken.local_addr().unwrap()));
    let other = set.through(set.uri().replace("replicaSet=watchlock", "replicaSet=other"));
    let renamed = standalone.through(
        standalone
            .uri()
            .replace("directConnection=true", "replicaSet=watchlock"),
    );
    all_fail([
        (nobody, "refuses connections"),
        (set.with(&format!("{SHORT}&tls=true")), "if the server does not use TLS"),
        (other.with(SHORT), "belongs to `watchlock`"),
        (renamed.with(SHORT), "belongs to none"),
        (set.through(format!("{}&{SHORT}", proxy.uri())), "does not answer"),
    ])
    .await;
    // Settings that the library does not obey are no problem.
    for options in [
        "readPreference=secondary&readConcernLevel=linearizable&w=5",
        "w=0&maxPoolSize=1",
    ] {
        succeeds(&set.with(options)).await;
    }
    succeeds(&standalone).await;
}

/// It says hello, and is found to be the primary: the rest shows that it can't be used.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_no_more_is_a_problem() {
    // Of a user with a login, who needs to read nothing before.
    let (cluster, (set, _)) = (cluster().await, user("cli_no_more", &LEAST).await);
    let stepping = set.with("appName=cli_stepping");
    let commands = ["find", "aggregate", "insert", "update", "findAndModify"];
    let data = doc! { "failCommands": &commands[..], "errorCode": 11_602, "appName": "cli_stepping" };
    let failing = cluster.fail_commands(0, "alwaysOn", data).await.unwrap();
    fails((stepping, "InterruptedDueToReplStateChange")).await;
    failing.off().await.unwrap();
}

/// Makes an index of the name `one`.
async fn indexed(ground: &Ground, mut index: Document) {
    index.insert("name", "one");
    let create = doc! { "createIndexes": COLLECTION, "indexes": [index] };
    let database = ground.driver().await.database(&ground.database);
    database.run_command(create).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collection_that_takes_no_locks_is_a_problem() {
    let made = async |ground: Ground, options: Document| {
        let mut create = doc! { "create": COLLECTION };
        create.extend(options);
        let database = ground.driver().await.database(&ground.database);
        database.run_command(create).await.unwrap();
        ground
    };
    let set = async || Ground::replica_set("cli_refusing").await;
    let refusing = doc! { "validator": { "missing": { "$exists": true } } };
    let case = set().await;
    let mut upper = case.clone();
    upper.database = case.database.to_uppercase();
    made(case, doc! {}).await;
    let deleting = set().await;
    indexed(&deleting, doc! { "key": { "at": 1 }, "expireAfterSeconds": 60 }).await;
    all_fail([
        (deleting, "TTL index on `at`"),
        (
            made(set().await, doc! { "viewOn": "any", "pipeline": [] }).await,
            "it is a view",
        ),
        (
            made(set().await, doc! { "capped": true, "size": 4096 }).await,
            "it is capped",
        ),
        (
            made(set().await, doc! { "collation": { "locale": "en", "strength": 2 } }).await,
            "collation `en`",
        ),
        (made(set().await, refusing.clone()).await, "failed validation"),
        (
            made(Ground::standalone("cli_refusing").await, refusing).await,
            "its validator does not accept them",
        ),
        (upper, "the server refuses locks in it"),
    ])
    .await;
    // What refuses a lock only while another is held.
    {
        let ground = set().await;
        let held = doc! { "holders.id": { "$exists": true } };
        indexed(
            &ground,
            doc! { "key": { "kind": 1 }, "unique": true, "partialFilterExpression": held },
        )
        .await;
        let locks = ground.locks().await;
        let _held = locks.mutex("held").acquire().await.unwrap();
        fails((ground, "the index that refuses them")).await;
    }
    // What refuses no lock is no problem.
    let accepting = set().await;
    indexed(
        &accepting,
        doc! { "key": { "holders.id": 1 }, "unique": true, "sparse": true },
    )
    .await;
    let locks = accepting.locks().await;
    let _held = locks.mutex("held").acquire().await.unwrap();
    succeeds(&accepting).await;
    let warned = doc! { "validator": { "missing": { "$exists": true } }, "validationAction": "warn" };
    let accepting = doc! { "validator": { "kind": { "$in": ["mutex"] }, "holders": { "$type": "array" } } };
    for ground in [
        made(set().await, warned.clone()).await,
        made(Ground::standalone("cli_warned").await, warned).await,
        made(Ground::standalone("cli_accepting").await, accepting).await,
    ] {
        succeeds(&ground).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_acquire_is_a_problem() {
    let all = [&LEAST[..], &["createIndex"]].concat();
    let (least, _) = user("cli_least", &all).await;
    let (elsewhere, _) = user_of("cli_elsewhere", &[("others", &all)]).await;
    let mut worlds = vec![
        (
            least.through(least.uri().replace(PASSWORD, "anything")),
            "Authentication failed",
        ),
        (
            least.through(least.uri().replace("locker", "stranger")),
            "check user `stranger`",
        ),
        (as_nobody(&least), "nobody has logged in"),
        (elsewhere, "missing: find;"),
    ];
    for (cause, action) in [
        ("missing: insert;", "insert"),
        ("missing: update;", "update"),
        ("missing: find;", "find"),
    ] {
        let given: Vec<&str> = all.iter().copied().filter(|given| *given != action).collect();
        worlds.push((user("cli_lacking", &given).await.0, cause));
    }
    // One after the other: a login is work for the processor, and not a wait.
    for world in worlds {
        fails(world).await;
    }
    succeeds(&least).await;
    // Each missing action has its own line, and one without which locks can be acquired is no problem.
    let (blind, _) = user("cli_blind", &["find", "insert", "update"]).await;
    let told = succeeds(&blind).await;
    for action in ["changeStream", "createIndex"] {
        let line = format!("warning  privileges  missing: {action};");
        assert!(told.out.lines().any(|told| told.starts_with(&line)), "{told:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_tls_does_not_fit_is_a_problem() {
    let cluster = Cluster::builder().tls(true).in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "cli_tls");
    succeeds(&ground).await;
    let (plain, _) = ground.uri().split_once("&tls").unwrap();
    all_fail([
        (ground.through(format!("{plain}&{SHORT}")), "requires TLS"),
        (ground.through(format!("{plain}&{SHORT}&tls=true")), "is not accepted"),
        (
            ground
                .with(SHORT)
                .through(ground.with(SHORT).uri().replace("127.0.0.1", "0.0.0.0")),
            "is not accepted",
        ),
    ])
    .await;
    // By default a server asks for a certificate of the client.
    let strict = Cluster::builder().tls(true).client_certificates(true).in_memory(true);
    let strict = strict.start().await.unwrap();
    let of_client = Ground::on(&strict, "cli_tls");
    succeeds(&of_client).await;
    let (plain, _) = of_client.uri().split_once("&tls").unwrap();
    let (without, _) = of_client.uri().split_once("&tlsCertificateKeyFile").unwrap();
    all_fail([
        (of_client.through(format!("{plain}&{SHORT}")), "requires TLS"),
        (
            of_client.through(format!("{without}&{SHORT}")),
            "breaks off the TLS handshake",
        ),
    ])
    .await;
    // A standalone that takes no writes, for as long as somebody copies its files.
    let admin = cluster.node_client(0).await.unwrap().database("admin");
    admin.run_command(doc! { "fsync": 1, "lock": true }).await.unwrap();
    fails((ground.clone(), "db.fsyncUnlock()")).await;
    admin.run_command(doc! { "fsyncUnlock": 1 }).await.unwrap();
    succeeds(&ground).await;
}

async fn hello(client: &Client) -> Document {
    client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap()
}

async fn until_is(client: &Client, role: &str, wanted: bool) {
    eventually(PATIENCE, role, async || {
        hello(client).await.get_bool(role).unwrap_or(false) == wanted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_without_a_primary_or_a_majority_is_a_problem() {
    let mongod = async || {
        let single = Cluster::builder()
            .in_memory(true)
            .args(["--replSet=rs", "--oplogSize=64"]);
        single.start().await.unwrap()
    };
    let (data, arbiter) = futures::join!(mongod(), mongod());
    let direct = Ground::on(&data, "cli_set");
    let as_set = |direct: &Ground| direct.through(direct.uri().replace("directConnection=true", "replicaSet=rs"));
    let set = as_set(&direct).with(SHORT);
    all_fail([(direct.clone(), "never initiated"), (set.clone(), "never initiated")]).await;

    let client = data.node_client(0).await.unwrap();
    let admin = client.database("admin");
    let settings = doc! { "electionTimeoutMillis": 1_000, "heartbeatIntervalMillis": 200 };
    // Its set and its clients know it by another name than the connection string.
    let name = data.proxy(0).unwrap();
    let itself = doc! { "_id": 0, "host": name.addr().to_string() };
    let config = doc! { "_id": "rs", "members": [&itself], "settings": &settings };
    admin.run_command(doc! { "replSetInitiate": config }).await.unwrap();
    until_is(&client, "isWritablePrimary", true).await;
    succeeds(&as_set(&direct)).await;
    name.cut();
    fails((set.clone(), "names its primary")).await;
    name.heal();

    // The primary keeps its votes by the arbiter, and loses the only other member with data.
    let votes = doc! { "setDefaultRWConcern": 1, "defaultWriteConcern": { "w": 1 } };
    admin.run_command(votes).await.unwrap();
    let taken = without_a_listener();
    let members = [
        itself,
        doc! { "_id": 1, "host": arbiter.addr(0).to_string(), "arbiterOnly": true },
        doc! { "_id": 2, "host": taken.local_addr().unwrap().to_string(), "priority": 0 },
    ];
    let config = doc! { "_id": "rs", "version": 50, "members": &members[..], "settings": &settings };
    admin
        .run_command(doc! { "replSetReconfig": config, "force": true })
        .await
        .unwrap();
    until_is(&arbiter.node_client(0).await.unwrap(), "arbiterOnly", true).await;
    until_is(&client, "isWritablePrimary", true).await;
    let at_arbiter = direct.through(arbiter.node_uri(0));
    all_fail([
        (as_set(&direct), "no majority of the set confirmed one"),
        (at_arbiter, "the server is an arbiter"),
    ])
    .await;

    arbiter.kill(0);
    until_is(&client, "secondary", true).await;
    all_fail([(set, "has no primary"), (direct, "the server is a secondary")]).await;
}
