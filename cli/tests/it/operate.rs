//! `ls`, `show`, `watch`, `break`, and the features common to all commands.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{LostReason, Released};

use crate::{
    Started, bare,
    common::{Ground, PATIENCE, SOON, eventually, until_waiting, users::PASSWORD, within},
    done, watchlock,
};

/// The fields of an object, in their order.
fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

fn sorted<const N: usize>(mut names: [&str; N]) -> Vec<&str> {
    names.sort_unstable();
    names.to_vec()
}

const LOCK: [&str; 8] = [
    "name", "kind", "capacity", "token", "holders", "waiters", "past", "as_of",
];
const HOLDER: [&str; 15] = [
    "token", "access", "permits", "since", "until", "lease_ms", "released", "idle", "host", "pid", "label", "reason",
    "value", "owner_id", "detached",
];
const WAITER: [&str; 10] = [
    "access", "permits", "since", "until", "host", "pid", "label", "reason", "value", "owner_id",
];

/// Two tasks that wait for each other are named, and when they do no more, nothing is.
#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_are_listed() {
    let ground = Ground::replica_set("cli_deadlocks").await;
    let locks = ground.builder().await.lease(Duration::from_secs(2)).label("crossing");
    let locks = locks.build().await.unwrap();
    let both_hold = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let crossing = [["a", "b"], ["b", "a"]].map(|[first, second]| {
        let (first, second) = (locks.mutex(first).acquire(), locks.mutex(second).acquire());
        let both_hold = both_hold.clone();
        tokio::spawn(async move {
            let _first = first.await.unwrap();
            both_hold.wait().await;
            second.await
        })
    });
    let list = async |more: &[&str]| {
        watchlock(&ground, [&["ls", "--deadlocks"], more].concat())
            .await
            .expect(0)
    };
    eventually(PATIENCE, "it is listed", async || {
        let listed = list(&["--json"]).await.json();
        listed[0]["locks"][0]["name"] == "a" && listed[0]["locks"][1]["name"] == "b"
    })
    .await;
    let words = "deadlock: `a` is held by crossing (";
    let listed = list(&[]).await;
    assert!(
        listed.out.starts_with(words) && listed.out.lines().count() == 1,
        "{listed:?}"
    );
    for task in crossing {
        task.abort();
        drop(task.await);
    }
    locks.shutdown().await;
    let listed = list(&[]).await;
    assert!(
        listed.out.is_empty() && listed.err.contains("no deadlocks in"),
        "{listed:?}"
    );
    assert_eq!(list(&["--json"]).await.json(), json!([]));
}

/// Nobody has it, and the client that had it last keeps it for its next task.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_lock_is_told_from_a_held_one() {
    let ground = Ground::replica_set("cli_idle").await;
    let builder = ground.builder().await.lease(Duration::from_secs(10));
    let locks = builder.keep_idle(Duration::from_secs(60)).build().await.unwrap();
    let held = locks.mutex("held").acquire().await.unwrap();
    locks.mutex("idle").acquire().await.unwrap().release().await.unwrap();
    // Its next renewal says so.
    eventually(PATIENCE, "it is shown as idle", async || {
        let shown = watchlock(&ground, ["show", "--json", "idle"]).await.expect(0).json();
        if shown["holders"][0].is_null() {
            // It went back, as its stream was slow to open.
            locks.mutex("idle").acquire().await.unwrap().release().await.unwrap();
        }
        shown["holders"][0]["idle"] == true
    })
    .await;
    let shown = watchlock(&ground, ["show", "idle"]).await.expect(0);
    assert!(shown.out.contains("nobody holds it; its client"), "{shown:?}");
    let listed = watchlock(&ground, ["ls"]).await.expect(0);
    let idle: Vec<_> = listed.out.lines().filter(|line| line.contains("(idle)")).collect();
    assert!(matches!(idle[..], [line] if line.starts_with("idle")), "{listed:?}");
    let shown = watchlock(&ground, ["show", "--json", "held"]).await.expect(0).json();
    assert_eq!(shown["holders"][0]["idle"], false);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_listed_by_what_is_asked() {
    let ground = Ground::replica_set("cli_ls").await;
    let locks = ground.builder().await.label("billing").build().await.unwrap();
    let _a = locks.mutex("app-a").acquire().reason("the reason").await.unwrap();
    let b = locks.semaphore("app-b", 3).acquire_many(2).await.unwrap();
    let _c = locks.rw_lock("other").write().await.unwrap();
    let _d = locks.election("vote").campaign("node 7").await.unwrap();
    assert_eq!(b.release().await.unwrap(), Released::Released);

    let names = async |arguments: &[&str]| -> Vec<String> {
        let listed = watchlock(&ground, [&["ls", "--json"], arguments].concat())
            .await
            .expect(0);
        let listed = listed.json();
        let locks = listed.as_array().unwrap();
        locks
            .iter()
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&[]).await, ["app-a", "app-b", "other", "vote"]);
    assert_eq!(names(&["--held"]).await, ["app-a", "other", "vote"]);
    assert_eq!(names(&["--free"]).await, ["app-b"]);
    assert_eq!(names(&["--prefix", "app-"]).await, ["app-a", "app-b"]);
    assert_eq!(names(&["--kind", "rwlock"]).await, ["other"]);
    assert_eq!(names(&["--owner", "billing", "--kind", "mutex"]).await, ["app-a"]);
    assert_eq!(names(&["--owner", "nobody"]).await, [""; 0]);
    assert_eq!(names(&["--older-than", "1h"]).await, [""; 0]);
    assert_eq!(names(&["--older-than", "0s", "--prefix", "app-"]).await, ["app-a"]);

    let told = watchlock(&ground, ["ls"]).await.expect(0);
    for words in ["the reason", "(writer)", "billing@", "node 7"] {
        assert!(told.out.contains(words), "{words}: {told:?}");
    }
    // A writer is not shown as a number of permits.
    assert!(!told.out.contains("1073741824"), "{told:?}");
    let starts: Vec<_> = told
        .out
        .lines()
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(starts, ["NAME", "app-a", "app-b", "other", "vote"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lock_is_shown_in_full() {
    let ground = Ground::replica_set("cli_show").await;
    let locks = ground.builder().await.label("billing").build().await.unwrap();
    let held = locks.rw_lock("x").write().reason("a \u{1b}[2J test").await.unwrap();
    let other = ground.locks().await;
    let waiting = tokio::spawn(async move { other.rw_lock("x").read().await });
    until_waiting(&locks, "x", 1).await;

    let shown = watchlock(&ground, ["show", "x", "--json"]).await.expect(0).json();
    assert_eq!(fields(&shown), sorted(LOCK));
    let (holder, waiter) = (&shown["holders"][0], &shown["waiters"][0]);
    assert_eq!((fields(holder), fields(waiter)), (sorted(HOLDER), sorted(WAITER)));
    assert_eq!((&shown["kind"], &shown["capacity"]), (&json!("rwlock"), &Value::Null));
    assert_eq!(holder["token"], json!(held.token().as_i64()));
    assert_eq!(
        (&holder["access"], &waiter["access"]),
        (&json!("write"), &json!("read"))
    );
    assert_eq!(
        (&holder["permits"], &holder["label"]),
        (&Value::Null, &json!("billing"))
    );
    assert_eq!(holder["pid"], json!(std::process::id()));
    assert_eq!(holder["lease_ms"], json!(30_000));
    for time in [&holder["since"], &holder["until"], &waiter["since"]] {
        let time = time.as_str().unwrap();
        assert!(
            time.len() == 24 && time.starts_with("20") && time.ends_with('Z'),
            "{time}"
        );
    }

    let told = watchlock(&ground, ["show", "x"]).await.expect(0);
    assert!(
        told.out.contains("as writer") && told.out.contains("as reader"),
        "{told:?}"
    );
    // The terminal does not obey text written by others.
    assert!(told.out.contains(r"a \u{1b}[2J test"), "{told:?}");

    assert_eq!(
        watchlock(&ground, ["show", "y", "--json"]).await.expect(1).json(),
        Value::Null
    );
    let told = watchlock(&ground, ["show", "y"]).await.expect(1);
    assert!(told.out.is_empty() && told.err.contains("`y`"), "{told:?}");
    drop(held);
    drop(waiting.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_writes_nothing() {
    let ground = Ground::replica_set("cli_look").await;
    watchlock(&ground, ["ls"]).await.expect(0);
    watchlock(&ground, ["show", "x"]).await.expect(1);
    watchlock(&ground, ["break", "--yes", "x"]).await.expect(1);
    watchlock(&ground, ["doctor"]).await.expect(0);
    let database = ground.driver().await.database(&ground.database);
    assert_eq!(database.list_collection_names().await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken() {
    let ground = Ground::replica_set("cli_break").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    // There is nobody to ask.
    let told = watchlock(&ground, ["break", "x"]).await.expect(64);
    assert!(told.err.contains("--yes"), "{told:?}");
    assert_eq!(held.lost_reason(), None);

    let told = watchlock(&ground, ["break", "x", "--yes", "--json"])
        .await
        .expect(0)
        .json();
    assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Broken);
    assert_eq!(fields(&told), sorted(["name", "broken", "lock"]));
    assert_eq!(fields(&told["broken"][0]), sorted(HOLDER));
    assert_eq!(told["broken"][0]["token"], json!(held.token().as_i64()));
    assert_eq!(told["lock"]["holders"], json!([]));

    let told = watchlock(&ground, ["break", "x", "--yes"]).await.expect(1);
    assert!(told.err.contains("nobody holds"), "{told:?}");

    // One of the holders, and nobody else.
    let permits = locks.semaphore("s", 2);
    let (stays, goes) = (permits.acquire().await.unwrap(), permits.acquire().await.unwrap());
    let token = goes.token().to_string();
    let arguments = ["break", "s", "--yes", "--json", "--holder", &token];
    let told = watchlock(&ground, arguments).await.expect(0).json();
    assert_eq!(within(SOON, "the loss", goes.lost()).await, LostReason::Broken);
    assert_eq!(told["broken"].as_array().unwrap().len(), 1);
    assert_eq!(told["broken"][0]["token"], json!(goes.token().as_i64()));
    assert_eq!(told["lock"]["holders"][0]["token"], json!(stays.token().as_i64()));
    let told = watchlock(&ground, arguments).await.expect(1).json();
    assert_eq!(told["broken"], json!([]));
    assert_eq!(stays.lost_reason(), None);
    // With --json the output is JSON, whatever happens.
    for name in ["x", "y"] {
        let told = watchlock(&ground, ["break", name, "--yes", "--json"])
            .await
            .expect(1)
            .json();
        assert_eq!((&told["broken"], told["lock"].is_null()), (&json!([]), name == "y"));
    }
    let nowhere = "mongodb://127.0.0.1:1/app?serverSelectionTimeoutMS=200";
    for arguments in [&["break", "x", "--yes"][..], &["show", "x"], &["ls"]] {
        let told = done(bare().env("MONGODB_URI", nowhere).args(arguments).arg("--json"))
            .await
            .expect(69)
            .json();
        assert!(told["code"] == json!(69) && told["error"].is_string(), "{told}");
    }
    let told = watchlock(&ground, ["break", "y", "--yes"]).await.expect(1);
    assert!(told.err.contains("no trace"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_told_as_they_happen() {
    for ground in Ground::both("cli_watch").await {
        let locks = ground.locks().await;
        let first = locks.mutex("x").acquire().reason("why not").await.unwrap();
        let mut all = Started::run(&ground, &["watch"]);
        let mut one = Started::run(&ground, &["watch", "x", "--json"]);
        let told = all.line().await;
        assert!(
            told.contains("  x  granted to ") && told.ends_with(": why not"),
            "{told}"
        );
        let event: Value = serde_json::from_str(&one.line().await).unwrap();
        assert_eq!(
            fields(&event),
            sorted(["at", "lock", "event", "token", "holder", "waiting"])
        );
        assert_eq!(fields(&event["holder"]), sorted(HOLDER));
        assert_eq!((&event["event"], &event["lock"]), (&json!("granted"), &json!("x")));

        let token = first.token().as_i64();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        assert!(all.line().await.ends_with(&format!("  x  released, token {token}")));
        let event: Value = serde_json::from_str(&one.line().await).unwrap();
        assert_eq!((&event["event"], &event["token"]), (&json!("released"), &json!(token)));
        assert_eq!((&event["holder"], &event["waiting"]), (&Value::Null, &Value::Null));

        // A lock that the other does not watch.
        let other = locks.mutex("y").acquire().await.unwrap();
        assert!(all.line().await.contains("  y  granted to "));
        locks.break_lock("y").await.unwrap();
        assert!(
            all.line()
                .await
                .ends_with(&format!("  y  broken, token {}", other.token()))
        );
        let handle = locks.mutex("x").acquire().await.unwrap();
        assert!(all.line().await.contains("  x  granted to "));
        ground
            .documents()
            .await
            .delete_many(mongodb::bson::doc! {})
            .await
            .unwrap();
        assert!(
            all.line()
                .await
                .ends_with(&format!("  x  deleted, token {}", handle.token()))
        );
        for started in [all, one] {
            crate::signal("TERM", started.pid());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = done(bare().args(["completions", shell])).await.expect(0);
        assert!(
            script.out.contains("watchlock") && script.out.contains("doctor"),
            "{shell}"
        );
    }
    let page = done(bare().arg("man")).await.expect(0);
    assert!(
        page.out.contains(".TH watchlock 1") && page.out.contains("76"),
        "{page:?}"
    );
    let page = done(bare().args(["man", "run"])).await.expect(0);
    assert!(
        page.out.contains("watchlock\\-run") && page.out.contains("WATCHLOCK_TOKEN"),
        "{page:?}"
    );
    for arguments in [&["--help"][..], &["run", "--help"]] {
        let help = done(bare().args(arguments)).await.expect(0);
        assert!(help.out.contains("Exit codes") && help.out.contains("76"), "{help:?}");
    }
    let version = done(bare().arg("--version")).await.expect(0);
    assert_eq!(version.out, format!("watchlock {}\n", env!("CARGO_PKG_VERSION")));
}

/// A holder may write anything, and an observer's terminal obeys none of it.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_comes_back_as_it_is_and_no_terminal_obeys_it() {
    let ground = Ground::replica_set("cli_hostile").await;
    let obeyed = |text: &str| {
        let reorders = |character: char| ('\u{202a}'..='\u{202e}').contains(&character);
        text.chars()
            .any(|character| character != '\n' && (character.is_control() || reorders(character)))
    };
    let mut watching = Started::run(&ground, &["watch", "--plain"]);
    let mut held = Vec::new();
    for text in crate::common::hostile::hostile() {
        let builder = ground.builder().await.label(&text).owner_id(&text);
        let locks = builder.build().await.unwrap();
        let leads = locks.election(&text).campaign(&text).reason(&text).await.unwrap();
        let line = watching.line().await;
        assert!(!obeyed(&line), "{line:?}");
        held.push((text, leads));
    }
    let told = watchlock(&ground, ["ls"]).await.expect(0);
    assert!(!obeyed(&told.out) && !obeyed(&told.err), "{told:?}");
    let listed = watchlock(&ground, ["ls", "--json"]).await.expect(0).json();
    for (text, leads) in held {
        if !text.contains('\0') {
            let shown = watchlock(&ground, ["show", "--json", "--", &text]).await.expect(0);
            assert!(!obeyed(&shown.out), "{shown:?}");
            let lock = shown.json();
            assert_eq!(lock["name"], json!(text));
            for field in ["label", "reason", "owner_id", "value"] {
                assert_eq!(lock["holders"][0][field], json!(text), "{field}");
            }
            let mut listed = listed.as_array().unwrap().iter();
            let listed = listed.find(|listed| listed["name"] == lock["name"]).unwrap();
            assert_eq!(listed["holders"][0]["token"], lock["holders"][0]["token"], "{text:?}");
            for arguments in [&["show", "--", &text][..], &["break", "--yes", "--", &text]] {
                let told = watchlock(&ground, arguments).await.expect(0);
                assert!(!obeyed(&told.out) && !obeyed(&told.err), "{arguments:?}: {told:?}");
            }
        }
        drop(leads);
        // The end of it, one way or another.
        let line = watching.line().await;
        assert!(!obeyed(&line), "{line:?}");
    }
    // Refused text is shown without being obeyed, too.
    let told = watchlock(&ground, ["show", "--", &"\u{1b}[2J".repeat(1_000)])
        .await
        .expect(64);
    assert!(told.err.contains("1024") && !obeyed(&told.err), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_died_is_shown_as_dead() {
    let ground = Ground::replica_set("cli_dead").await;
    let locks = ground.locks().await;
    let _held = locks.mutex("x").acquire().await.unwrap();
    let mut waiting = Started::run(&ground, &["run", "--lease", "500ms", "x", "--", "true"]);
    until_waiting(&locks, "x", 1).await;
    watchlock_testkit::signal::kill(waiting.pid()).unwrap();
    waiting.status().await;
    crate::common::eventually(PATIENCE, "it is shown as dead", async || {
        let shown = watchlock(&ground, ["show", "x"]).await.expect(0).out;
        let listed = watchlock(&ground, ["ls"]).await.expect(0).out;
        shown.contains("it is passed over") && listed.contains("1 (1 dead)")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_not_known_is_told_without_the_secret() {
    // A name that never exists: it is looked up, and neither the secret nor another cause is shown.
    let uri = format!("mongodb+srv://locker:{PASSWORD}@cluster0.watchlock.invalid/app");
    let told = done(bare().env("MONGODB_URI", &uri).arg("ls")).await.expect(69);
    assert!(
        told.err.contains("can't be looked up") && !told.err.contains(PASSWORD),
        "{told:?}"
    );
}

/// A document that is not a lock hides no others, and every observer reports it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_lock_is_told() {
    let ground = Ground::replica_set("cli_no_lock").await;
    let locks = ground.locks().await;
    let _held = locks.mutex("x").acquire().await.unwrap();
    let foreign = mongodb::bson::doc! { "_id": "odd\u{1b}[2J", "holders": 5 };
    ground.documents().await.insert_one(foreign).await.unwrap();
    for arguments in [&["ls"][..], &["ls", "--json"]] {
        let told = watchlock(&ground, arguments).await.expect(0);
        assert!(told.err.contains(r"`odd\u{1b}[2J` is not a lock: "), "{told:?}");
        assert!(told.out.contains('x'), "{told:?}");
    }
    let mut watching = Started::run(&ground, &["watch", "--json"]);
    let events = [watching.line().await, watching.line().await];
    let events = events.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let odd = events.iter().find(|event| event["event"] == "unreadable").unwrap();
    assert!(odd["problem"].is_string() && odd["token"].is_null(), "{odd}");
    assert!(events.iter().any(|event| event["event"] == "granted"));
}

/// In one line, without the command that the server quotes.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_is_named() {
    let (ground, _) = crate::common::users::user("cli_missing", &["find"]).await;
    // Not with `--try`: on a busy machine its time may be over when the server has answered.
    let told = watchlock(&ground, ["run", "x", "--", "true"]).await.expect(77);
    assert!(
        told.err.contains("missing one of `find`, `insert`, `update` on ")
            && told.err.contains("; see `watchlock doctor`"),
        "{told:?}"
    );
    assert!(told.err.lines().count() == 1 && !told.err.contains("lsid"), "{told:?}");
}

/// The document has the time of a grant; the moment at which somebody looks is another.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_told_with_its_own_time() {
    let ground = Ground::replica_set("cli_since").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    let shown = watchlock(&ground, ["show", "x", "--json"]).await.expect(0).json();
    let since = shown["holders"][0]["since"].as_str().unwrap();
    let mut watching = Started::run(&ground, &["watch", "--plain"]);
    let told = watching.line().await;
    assert!(told.starts_with(&format!("{since}  x  granted to ")), "{since}: {told}");
    held.release().await.unwrap();
    // Other events have the time at which they were seen, which is later.
    let told = watching.line().await;
    let (at, event) = told.split_once("  ").unwrap();
    assert!(at > since && event.contains("released"), "{since}: {told}");
    crate::signal("TERM", watching.pid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_is_shown_with_its_value_while_it_waits() {
    let ground = Ground::replica_set("cli_candidate").await;
    let locks = ground.locks().await;
    let leads = locks.election("x").campaign("first").await.unwrap();
    let other = Started::run(&ground, &["elect", "--value", "second", "x", "true"]);
    until_waiting(&locks, "x", 1).await;
    let told = watchlock(&ground, ["show", "x"]).await.expect(0).out;
    let (_, waiter) = told.split_once("waiter  1.").unwrap();
    assert!(waiter.contains("value  second\n"), "{told}");
    let lock = watchlock(&ground, ["show", "--json", "x"]).await.expect(0).json();
    assert_eq!(lock["waiters"][0]["value"], json!("second"));
    leads.release().await.unwrap();
    other.done().await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_permits_is_printed_and_set_while_they_are_held() {
    let ground = Ground::replica_set("cli_permits").await;
    let locks = ground.locks().await;
    let pool = locks.semaphore("pool", 1);
    let one = pool.acquire().await.unwrap();
    let other = pool.clone();
    let waiting = tokio::spawn(async move { other.acquire().await });
    until_waiting(&locks, "pool", 1).await;
    let permits = async |arguments: &[&str]| watchlock(&ground, [&["permits"], arguments].concat()).await;
    assert_eq!(permits(&["pool"]).await.expect(0).out, "1\n");
    let shown = watchlock(&ground, ["show", "pool"]).await.expect(0);
    assert!(shown.out.contains("semaphore of 1 permit\n"), "{shown:?}");
    let set = permits(&["--json", "pool", "2"]).await.expect(0);
    assert_eq!(set.err, "");
    let set = set.json();
    assert_eq!(
        (&set["capacity"], set["holders"].as_array().unwrap().len()),
        (&2.into(), 2)
    );
    let two = within(PATIENCE, "the permit", waiting).await.unwrap().unwrap();
    let shown = watchlock(&ground, ["show", "pool"]).await.expect(0);
    assert!(shown.out.contains("semaphore of 2 permits\n"), "{shown:?}");
    assert_eq!(permits(&["pool"]).await.expect(0).out, "2\n");
    drop((one, two));

    // A job that was deployed with another number goes by the lock's.
    let job = ["run", "--semaphore", "9", "--permits", "2", "pool", "true"];
    watchlock(&ground, job).await.expect(0);
    let job = ["run", "-n", "--semaphore", "9", "--permits", "3", "pool", "true"];
    watchlock(&ground, job).await.expect(65);
    let mutex = locks.mutex("mutex").acquire().await.unwrap();
    for arguments in [&["mutex"][..], &["mutex", "2"]] {
        let told = permits(arguments).await.expect(65);
        assert!(told.err.contains("mutex"), "{told:?}");
    }
    drop(mutex);
    // A mutex stays one, also while it is free.
    locks.mutex("nightly").acquire().await.unwrap().release().await.unwrap();
    let told = permits(&["nightly", "4"]).await.expect(65);
    assert!(
        told.err.contains("used as a mutex") || told.err.contains("used as mutex"),
        "{told:?}"
    );
    drop(locks.mutex("nightly").acquire().await.unwrap());
    // A name with a mistake in it makes another semaphore, and the one that was meant keeps its number.
    let told = permits(&["pol", "5"]).await.expect(0);
    assert_eq!(told.out, "5\n");
    assert!(told.err.contains("there was no semaphore `pol`: made it"), "{told:?}");
    assert_eq!(permits(&["pol", "6"]).await.expect(0).err, "");
}
