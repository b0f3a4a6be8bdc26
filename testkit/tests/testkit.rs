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

use mongodb::bson::{DateTime, Document, doc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use watchlock_testkit::{Cluster, Proxy, Trouble, clock, shared, shared::unique_name};

/// Far longer than anything here takes. Only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long something that must not happen is waited for.
const MOMENT: Duration = Duration::from_millis(200);

/// Tries until it holds.
async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
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

/// A server does what it is asked, and nobody hears of it: of one command alone, or of all.
#[tokio::test]
async fn requests_get_through_and_replies_do_not() {
    let cluster = shared::replica_set().await;
    let all: [fn(&Proxy); 2] = [Proxy::black_hole_replies, |proxy| proxy.black_hole_after("insert")];
    for orders in all {
        let proxy = cluster.proxy(0).unwrap();
        let cut_off = mongodb::Client::with_uri_str(proxy.uri()).await.unwrap();
        let database = unique_name("testkit");
        let things = |client: &mongodb::Client| client.database(&database).collection::<Document>("things");
        things(&cut_off).insert_one(doc! { "_id": 0 }).await.unwrap();
        orders(&proxy);
        let inserted = things(&cut_off);
        let insert = tokio::spawn(async move { inserted.insert_one(doc! { "_id": 1 }).await });
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
async fn nothing_is_left_of_a_killed_process_with_a_frozen_server() {
    assert_cleaned_up("frozen", "KILL").await;
}

#[tokio::test]
async fn nothing_is_left_of_an_interrupted_process() {
    assert_cleaned_up("waits", "INT").await;
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
