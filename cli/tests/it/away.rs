//! A server that can't be reached, or that stops answering.

use std::time::{Duration, Instant};

use futures::future::join_all;

use crate::{
    bare,
    common::{Ground, users::PASSWORD},
    done,
    terminal::{Terminal, held},
    words,
};

/// A fail-over may end just before the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_reach_is_awaited_for_as_long_as_the_limit_allows() {
    let nowhere = "mongodb://127.0.0.1:1/app";
    let scenes = [("run", "6s", 5_500), ("wait", "1s", 2_000)].map(async |(command, limit, least)| {
        let mut program = bare();
        program
            .env("MONGODB_URI", nowhere)
            .args([command, "--timeout", limit, "x"])
            .args((command == "run").then_some("true"));
        let begun = Instant::now();
        let told = done(&mut program).await.expect(69);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(least), "{command}: {took:?}, {told:?}");
    });
    join_all(scenes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_reach_is_told_without_secrets() {
    let nowhere = format!("mongodb://locker:{PASSWORD}@127.0.0.1:1/app?serverSelectionTimeoutMS=200");
    let direct = format!("{nowhere}&directConnection=true");
    // One that says nothing is named too. On a busy machine, so is one whose refusal comes late.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_uri = nowhere.replace("127.0.0.1:1", &silent.local_addr().unwrap().to_string());
    let lines = ["ls", "doctor", "doctor --json", "run x -- true", "run --try x -- true"];
    let asked = [&nowhere, &direct]
        .into_iter()
        .flat_map(|uri| lines.map(|line| (uri, line)));
    let told = asked.chain([(&silent_uri, "ls")]).map(async |(uri, line)| {
        let told = format!(
            "{:?}",
            done(bare().env("MONGODB_URI", uri).args(words(line))).await.expect(69)
        );
        let (_, address) = uri.split_once('@').unwrap();
        let (address, _) = address.split_once('/').unwrap();
        assert!(!told.contains(PASSWORD) && told.contains(address), "{line}: {told}");
    });
    join_all(told).await;
    // Text that is not a connection string could quote the password.
    for uri in [
        format!("mongodb://locker:{PASSWORD}/x@127.0.0.1/app"),
        format!("mongo://locker:{PASSWORD}@127.0.0.1/app"),
        format!("mongodb://127.0.0.1/app?proxyPassword={PASSWORD}"),
    ] {
        let told = done(bare().env("MONGODB_URI", &uri).arg("ls")).await.expect(64);
        assert!(!format!("{told:?}").contains(PASSWORD), "{told:?}");
        let told = done(bare().args(["ls", "--uri", &uri])).await.expect(64);
        assert!(!format!("{told:?}").contains(PASSWORD), "{told:?}");
    }
    let help = done(
        bare()
            .env("MONGODB_URI", format!("mongodb://:{PASSWORD}@x"))
            .args(["run", "--help"]),
    )
    .await;
    assert!(
        !format!("{help:?}").contains(PASSWORD) && help.out.contains("MONGODB_URI"),
        "{help:?}"
    );
}

/// The view marks stale data as such.
#[tokio::test(flavor = "multi_thread")]
async fn the_view_tells_when_the_server_stops_answering() {
    let cluster = watchlock_testkit::Cluster::replica_set(1).await.unwrap();
    let ground = Ground::on(&cluster, "cli_stale");
    // It keeps holding while nothing is answered.
    let locks = ground.locks_for(Duration::from_secs(120)).await;
    let held = held(&locks).await;
    let terminal = Terminal::new(&ground, "exec $W watch");
    terminal.until_seen("nightly-7").await;
    assert!(!terminal.screen().contains("no answer"));
    cluster.freeze(0).unwrap();
    terminal.until_seen("old, no answer").await;
    terminal.leave("q").await;
    cluster.thaw(0).unwrap();
    drop(held);
}
