//! `ls`, `show`, `watch`, `break`, and the features common to all commands.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use mongodb::bson::doc;
use serde_json::{Value, json};
use watchlock::{LostReason, Released};

use crate::{
    Started, bare,
    common::{Ground, PATIENCE, SOON, eventually, info, until_waiting, users::PASSWORD, within},
    done, program, tells, watchlock, words,
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
    eventually(PATIENCE, "it is found", async || {
        !locks.deadlocks().await.unwrap().is_empty()
    })
    .await;
    let listed = watchlock(&ground, "ls --deadlocks --json", 0).await.json();
    assert!(
        listed[0]["locks"][0]["name"] == "a" && listed[0]["locks"][1]["name"] == "b",
        "{listed}"
    );
    let listed = tells(&ground, "ls --deadlocks", 0, "deadlock: `a` is held by crossing (").await;
    assert_eq!(listed.out.lines().count(), 1, "{listed:?}");
    for task in crossing {
        task.abort();
        drop(task.await);
    }
    locks.shutdown().await;
    let listed = watchlock(&ground, "ls --deadlocks", 0).await;
    assert!(
        listed.out.is_empty() && listed.err.contains("no deadlocks in"),
        "{listed:?}"
    );
    assert_eq!(watchlock(&ground, "ls --deadlocks --json", 0).await.json(), json!([]));
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
    eventually(PATIENCE, "it is seen as idle", async || {
        let seen = info(&locks, "idle").await.unwrap();
        if seen.holders.is_empty() {
            // It went back, as its stream was slow to open.
            locks.mutex("idle").acquire().await.unwrap().release().await.unwrap();
        }
        seen.holders.first().is_some_and(|holder| holder.idle)
    })
    .await;
    let shown = watchlock(&ground, "show --json idle", 0).await.json();
    assert_eq!(shown["holders"][0]["idle"], true);
    tells(
        &ground,
        "show idle",
        0,
        "nobody holds it, as of 5s ago at most; its client",
    )
    .await;
    let listed = watchlock(&ground, "ls", 0).await;
    let idle: Vec<_> = listed.out.lines().filter(|line| line.contains("(idle)")).collect();
    assert!(matches!(idle[..], [line] if line.starts_with("idle")), "{listed:?}");
    let shown = watchlock(&ground, "show --json held", 0).await.json();
    assert_eq!(shown["holders"][0]["idle"], false);
    held.release().await.unwrap();
}

/// Returns the names of the locks that are listed with these options.
pub(super) async fn names(ground: &Ground, options: &str) -> Vec<String> {
    let listed = watchlock(ground, format!("ls --json {options}"), 0).await.json();
    let names = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
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

    for (options, expected) in [
        ("", &["app-a", "app-b", "other", "vote"][..]),
        ("--held", &["app-a", "other", "vote"]),
        ("--free", &["app-b"]),
        ("--prefix app-", &["app-a", "app-b"]),
        ("--kind rwlock", &["other"]),
        ("--owner billing --kind mutex", &["app-a"]),
        ("--owner nobody", &[]),
        ("--older-than 1h", &[]),
        ("--older-than 0s --prefix app-", &["app-a"]),
    ] {
        assert_eq!(names(&ground, options).await, expected, "{options}");
    }

    let told = tells(&ground, "ls", 0, "the reason | (writer) | billing@ | node 7").await;
    // A writer is not shown as a number of permits.
    assert!(!told.out.contains("1073741824"), "{told:?}");
    let starts = told.out.lines().map(|line| line.split_whitespace().next().unwrap());
    assert!(starts.eq(["NAME", "app-a", "app-b", "other", "vote"]), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lock_is_shown_in_full() {
    let ground = Ground::replica_set("cli_show").await;
    let locks = ground.builder().await.label("billing").build().await.unwrap();
    let held = locks.rw_lock("x").write().reason("a \u{1b}[2J test").await.unwrap();
    let other = ground.locks().await;
    let waiting = tokio::spawn(async move { other.rw_lock("x").read().await });
    until_waiting(&locks, "x", 1).await;

    let shown = watchlock(&ground, "show x --json", 0).await.json();
    assert_eq!(fields(&shown), sorted(LOCK));
    let (holder, waiter) = (&shown["holders"][0], &shown["waiters"][0]);
    assert_eq!((fields(holder), fields(waiter)), (sorted(HOLDER), sorted(WAITER)));
    let expected = json!(["rwlock", null, "write", "read", null, "billing", 30_000]);
    let fields = [
        &shown["kind"],
        &shown["capacity"],
        &holder["access"],
        &waiter["access"],
        &holder["permits"],
    ];
    let fields = [&fields[..], &[&holder["label"], &holder["lease_ms"]]].concat();
    assert_eq!(json!(fields), expected);
    assert_eq!(
        (&holder["token"], &holder["pid"]),
        (&held.token().as_i64().into(), &std::process::id().into())
    );
    for time in [&holder["since"], &holder["until"], &waiter["since"]] {
        let time = time.as_str().unwrap();
        assert!(
            time.len() == 24 && time.starts_with("20") && time.ends_with('Z'),
            "{time}"
        );
    }
    // The terminal does not obey text written by others.
    tells(&ground, "show x", 0, r"as writer | as reader | a \u{1b}[2J test").await;

    assert_eq!(watchlock(&ground, "show y --json", 1).await.json(), Value::Null);
    tells(&ground, "show y", 1, "`y`").await;
    drop(held);
    drop(waiting.await);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_writes_nothing() {
    let ground = Ground::replica_set("cli_look").await;
    watchlock(&ground, "ls", 0).await;
    watchlock(&ground, "show x", 1).await;
    watchlock(&ground, "break --yes x", 1).await;
    watchlock(&ground, "doctor", 0).await;
    let database = ground.driver().await.database(&ground.database);
    assert_eq!(database.list_collection_names().await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken() {
    let ground = Ground::replica_set("cli_break").await;
    let locks = ground.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    // There is nobody to ask.
    tells(&ground, "break x", 64, "--yes").await;
    assert_eq!(held.lost_reason(), None);

    let told = watchlock(&ground, "break x --yes --json", 0).await.json();
    assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Broken);
    assert_eq!(fields(&told), sorted(["name", "broken", "lock"]));
    assert_eq!(fields(&told["broken"][0]), sorted(HOLDER));
    assert_eq!(told["broken"][0]["token"], held.token().as_i64());
    assert_eq!(told["lock"]["holders"], json!([]));

    tells(&ground, "break x --yes", 1, "nobody holds").await;

    // One of the holders, and nobody else.
    let permits = locks.semaphore("s", 2);
    let (stays, goes) = (permits.acquire().await.unwrap(), permits.acquire().await.unwrap());
    let line = format!("break s --yes --json --holder {}", goes.token());
    let told = watchlock(&ground, &line, 0).await.json();
    assert_eq!(within(SOON, "the loss", goes.lost()).await, LostReason::Broken);
    assert_eq!(told["broken"].as_array().unwrap().len(), 1);
    assert_eq!(told["broken"][0]["token"], goes.token().as_i64());
    assert_eq!(told["lock"]["holders"][0]["token"], stays.token().as_i64());
    let told = watchlock(&ground, &line, 1).await.json();
    assert_eq!(told["broken"], json!([]));
    assert_eq!(stays.lost_reason(), None);
    // With --json the output is JSON, whatever happens.
    for name in ["x", "y"] {
        let told = watchlock(&ground, format!("break {name} --yes --json"), 1).await.json();
        assert_eq!((&told["broken"], told["lock"].is_null()), (&json!([]), name == "y"));
    }
    let nowhere = "mongodb://127.0.0.1:1/app?serverSelectionTimeoutMS=200";
    for line in ["break x --yes --json", "show x --json", "ls --json"] {
        let told = done(bare().env("MONGODB_URI", nowhere).args(words(line)))
            .await
            .expect(69);
        assert!(
            told.json()["code"] == 69 && told.json()["error"].is_string(),
            "{told:?}"
        );
    }
    tells(&ground, "break y --yes", 1, "no trace").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_told_as_they_happen() {
    for ground in Ground::both("cli_watch").await {
        let locks = ground.locks().await;
        let first = locks.mutex("x").acquire().reason("why not").await.unwrap();
        let mut all = Started::run(&ground, "watch");
        let mut one = Started::run(&ground, "watch x --json");
        let event = one.object().await;
        let of_event = ["at", "lock", "event", "token", "holder", "waiting"];
        assert_eq!(fields(&event), sorted(of_event));
        assert_eq!(fields(&event["holder"]), sorted(HOLDER));
        assert!(event["event"] == "granted" && event["lock"] == "x", "{event}");
        // The document has the time of a grant; the moment at which somebody looks is another.
        let since = event["holder"]["since"].as_str().unwrap();
        let told = all.line().await;
        assert!(
            told.starts_with(&format!("{since}  x  granted to ")) && told.ends_with(": why not"),
            "{told}"
        );

        let token = first.token().as_i64();
        assert_eq!(first.release().await.unwrap(), Released::Released);
        // Other events have the time at which they were seen, which is later.
        let told = all.line().await;
        assert!(
            told.ends_with(&format!("  x  released, token {token}")) && &told[..] > since,
            "{told}"
        );
        let event = one.object().await;
        assert!(event["event"] == "released" && event["token"] == token, "{event}");
        assert_eq!(fields(&event), sorted(["at", "lock", "event", "token"]));

        // A lock that the other does not watch.
        let other = locks.mutex("y").acquire().await.unwrap();
        assert!(all.line().await.contains("  y  granted to "));
        locks.break_lock("y").await.unwrap();
        let told = all.line().await;
        assert!(
            told.ends_with(&format!("  y  broken, token {}", other.token())),
            "{told}"
        );
        let handle = locks.mutex("x").acquire().await.unwrap();
        assert!(all.line().await.contains("  x  granted to "));
        ground.documents().await.delete_many(doc! {}).await.unwrap();
        let told = all.line().await;
        assert!(
            told.ends_with(&format!("  x  deleted, token {}", handle.token())),
            "{told}"
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
    let version = concat!("watchlock ", env!("CARGO_PKG_VERSION"));
    for (line, told) in [
        ("man", [".TH watchlock 1", "76"]),
        ("man run", ["watchlock\\-run", "WATCHLOCK_TOKEN"]),
        ("--help", ["Exit codes", "76"]),
        ("run --help", ["Exit codes", "76"]),
        ("--version", [version, "\n"]),
    ] {
        let printed = done(bare().args(words(line))).await.expect(0);
        assert!(
            told.iter().all(|told| printed.out.contains(told)),
            "{line}: {printed:?}"
        );
    }
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
    let mut watching = Started::run(&ground, "watch --plain");
    let mut held = Vec::new();
    for text in crate::common::hostile::hostile() {
        let builder = ground.builder().await.label(&text).owner_id(&text);
        let locks = builder.build().await.unwrap();
        let leads = locks.election(&text).campaign(&text).reason(&text).await.unwrap();
        let line = watching.line().await;
        assert!(!obeyed(&line), "{line:?}");
        held.push((text, leads));
    }
    let told = watchlock(&ground, "ls", 0).await;
    assert!(!obeyed(&told.out) && !obeyed(&told.err), "{told:?}");
    let listed = watchlock(&ground, "ls --json", 0).await.json();
    let named = held.iter().filter(|(text, _)| !text.contains('\0'));
    let seen = named.map(async |(text, _)| {
        let run = async |words: &[&str]| {
            let told = done(program(&ground).args(words).arg("--").arg(text)).await.expect(0);
            assert!(!obeyed(&told.out) && !obeyed(&told.err), "{words:?}: {told:?}");
            told
        };
        let lock = run(&["show", "--json"]).await.json();
        assert_eq!(lock["name"], json!(text));
        for field in ["label", "reason", "owner_id", "value"] {
            assert_eq!(lock["holders"][0][field], json!(text), "{field}");
        }
        let mut listed = listed.as_array().unwrap().iter();
        let listed = listed.find(|listed| listed["name"] == lock["name"]).unwrap();
        assert_eq!(listed["holders"][0]["token"], lock["holders"][0]["token"], "{text:?}");
        run(&["show"]).await;
        run(&["break", "--yes"]).await;
    });
    stream::iter(seen).buffer_unordered(4).collect::<()>().await;
    for (_, leads) in held {
        drop(leads);
        // The end of it, one way or another.
        let line = watching.line().await;
        assert!(!obeyed(&line), "{line:?}");
    }
    // Refused text is shown without being obeyed, too.
    let told = tells(&ground, format!("show -- {}", "\u{1b}[2J".repeat(1_000)), 64, "1024").await;
    assert!(!obeyed(&told.err), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_died_is_shown_as_dead() {
    let ground = Ground::replica_set("cli_dead").await;
    let locks = ground.locks().await;
    let _held = locks.mutex("x").acquire().await.unwrap();
    let mut waiting = Started::run(&ground, "run --lease 500ms x -- true");
    until_waiting(&locks, "x", 1).await;
    watchlock_testkit::signal::kill(waiting.pid()).unwrap();
    waiting.status().await;
    eventually(PATIENCE, "it is dead", async || {
        let seen = info(&locks, "x").await.unwrap();
        seen.waiters[0].until <= seen.as_of
    })
    .await;
    tells(&ground, "show x", 0, "it is passed over").await;
    tells(&ground, "ls", 0, "1 (1 dead)").await;
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
    let foreign = doc! { "_id": "odd\u{1b}[2J", "holders": 5 };
    ground.documents().await.insert_one(foreign).await.unwrap();
    for line in ["ls", "ls --json"] {
        let told = tells(&ground, line, 0, "x").await;
        assert!(told.err.contains(r"`odd\u{1b}[2J` is not a lock: "), "{told:?}");
    }
    let mut watching = Started::run(&ground, "watch --json");
    let events = [watching.object().await, watching.object().await];
    let odd = events.iter().find(|event| event["event"] == "unreadable").unwrap();
    assert_eq!(fields(odd), sorted(["at", "lock", "event", "problem"]));
    assert!(events.iter().any(|event| event["event"] == "granted"));
}

/// In one line, without the command that the server quotes.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_privilege_is_named() {
    let (ground, _) = crate::common::users::user("cli_missing", &["find"]).await;
    // Not with `--try`: on a busy machine its time may be over when the server has answered.
    let words = "missing one of `find`, `insert`, `update` on  | ; see `watchlock doctor`";
    let told = tells(&ground, "run x -- true", 77, words).await;
    assert!(told.err.lines().count() == 1 && !told.err.contains("lsid"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_is_shown_with_its_value_while_it_waits() {
    let ground = Ground::replica_set("cli_candidate").await;
    let locks = ground.locks().await;
    let leads = locks.election("x").campaign("first").await.unwrap();
    let other = Started::run(&ground, "elect --value second x true");
    until_waiting(&locks, "x", 1).await;
    let told = watchlock(&ground, "show x", 0).await.out;
    let (_, waiter) = told.split_once("waiter  1.").unwrap();
    assert!(waiter.contains("value  second\n"), "{told}");
    let lock = watchlock(&ground, "show --json x", 0).await.json();
    assert_eq!(lock["waiters"][0]["value"], "second");
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
    assert_eq!(watchlock(&ground, "permits pool", 0).await.out, "1\n");
    tells(&ground, "show pool", 0, "semaphore of 1 permit\n").await;
    let set = watchlock(&ground, "permits --json pool 2", 0).await;
    let holders = set.json()["holders"].as_array().unwrap().len();
    assert!(
        set.err.is_empty() && set.json()["capacity"] == 2 && holders == 2,
        "{set:?}"
    );
    let two = within(PATIENCE, "the permit", waiting).await.unwrap().unwrap();
    tells(&ground, "show pool", 0, "semaphore of 2 permits\n").await;
    assert_eq!(watchlock(&ground, "permits pool", 0).await.out, "2\n");
    drop((one, two));

    // A job that was deployed with another number goes by the lock's.
    watchlock(&ground, "run --semaphore 9 --permits 2 pool true", 0).await;
    watchlock(&ground, "run -n --semaphore 9 --permits 3 pool true", 65).await;
    let mutex = locks.mutex("held").acquire().await.unwrap();
    tells(&ground, "permits held", 65, "is used as mutex").await;
    tells(&ground, "permits held 2", 65, "is used as mutex").await;
    drop(mutex);
    // A mutex stays one, also while it is free.
    locks.mutex("nightly").acquire().await.unwrap().release().await.unwrap();
    tells(&ground, "permits nightly 4", 65, "is used as mutex").await;
    drop(locks.mutex("nightly").acquire().await.unwrap());
    // A name with a mistake in it makes another semaphore, and the one that was meant keeps its number.
    let told = tells(&ground, "permits pol 5", 0, "5\n").await;
    assert!(told.err.contains("there was no semaphore `pol`: made it"), "{told:?}");
    assert_eq!(watchlock(&ground, "permits pol 6", 0).await.err, "");
}
