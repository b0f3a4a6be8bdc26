//! What is observed, serialized by the feature `serde` and read again.

use std::time::SystemTime;

use serde_json::{Value, json};
use watchlock::{
    FencingToken,
    election::Leader,
    errors::Contention,
    operate::{HoldEnd, Kind, LockEvent, LockInfo},
};

use crate::setup::*;

/// Returns the form of a value, which is read as the same value again.
fn form<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    let back: T = serde_json::from_str(&text).unwrap();
    assert_eq!(&back, value, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn info(locks: &LockClient, name: &str) -> LockInfo {
    locks.inspect(name).await.unwrap().expect("it is there")
}

#[tokio::test]
async fn observed_locks_come_back_from_their_form() {
    let memory = InMemory::new();
    let locks = memory
        .builder()
        .label("billing")
        .owner_id("job-1")
        .history(2)
        .build()
        .await
        .unwrap();
    let other = memory.client();
    let first = locks.mutex("m").acquire().reason("before").await.unwrap();
    let before = first.token();
    first.release().await.unwrap();
    let mutex = locks.mutex("m").acquire().reason("a \"reason\"").await.unwrap();
    let _permits = locks.semaphore("s", 3).acquire_many(2).await.unwrap();
    let _writer = locks.rw_lock("w").write().await.unwrap();
    let _reader = locks.rw_lock("r").read().await.unwrap();
    let leading = locks.election("e").campaign("node 7").await.unwrap();
    let waiting = spawn(async move { other.rw_lock("w").read().await });
    until_waiting(&locks, "w", 1).await;

    let told = form(&info(&locks, "m").await);
    assert_eq!((&told["kind"], &told["capacity"]), (&json!("mutex"), &json!(1)));
    let holder = &told["holders"][0];
    assert_eq!(holder["token"], json!(mutex.token().as_i64()));
    assert_eq!(
        (&holder["label"], &holder["owner_id"]),
        (&json!("billing"), &json!("job-1"))
    );
    assert_eq!(
        (&holder["reason"], &holder["permits"]),
        (&json!("a \"reason\""), &json!(1))
    );
    assert!(
        holder["access"].is_null() && holder["since"].as_str().unwrap().ends_with('Z'),
        "{told}"
    );
    assert!(told["as_of"].as_str().unwrap() >= holder["since"].as_str().unwrap());
    // A form of an earlier version has no time.
    let mut earlier = told.clone();
    earlier.as_object_mut().unwrap().remove("as_of");
    let earlier: LockInfo = serde_json::from_value(earlier).unwrap();
    assert!(earlier.is_held() && earlier.as_of == SystemTime::UNIX_EPOCH);
    let past = &told["past"][0];
    assert_eq!(
        (&past["token"], &past["how"], &past["reason"]),
        (&json!(before.as_i64()), &json!("released"), &json!("before"))
    );
    assert!(past["ended"].as_str().unwrap() >= past["since"].as_str().unwrap());
    assert_eq!(form(&info(&locks, "s").await)["holders"][0]["permits"], json!(2));
    for (name, access) in [("w", "write"), ("r", "read")] {
        let told = form(&info(&locks, name).await);
        assert!(
            told["capacity"].is_null() && told["holders"][0]["permits"].is_null(),
            "{told}"
        );
        assert_eq!(told["holders"][0]["access"], json!(access));
    }
    assert_eq!(form(&info(&locks, "w").await)["waiters"][0]["access"], json!("read"));
    let listing = serde_json::to_value(locks.list().with_unreadable().await.unwrap()).unwrap();
    assert_eq!(
        (listing["locks"].as_array().unwrap().len(), &listing["unreadable"]),
        (5, &json!([]))
    );

    let leader: Leader = locks.election("e").leader().await.unwrap().unwrap();
    assert_eq!(form(&leader)["value"], json!("node 7"));
    let held = locks.mutex("m").try_acquire().or_held().await.unwrap_err();
    // Its age is kept in milliseconds.
    let mut contention = contention(held);
    contention.age = Duration::from_millis(1_500);
    let told = form(&contention);
    assert_eq!((&told["age_ms"], &told["held_here"]), (&json!(1_500), &json!(true)));

    let mut events = locks.watch("m");
    let granted = within(PATIENCE, "a grant", events.next()).await.unwrap().unwrap();
    let told = form(&granted);
    assert_eq!((&told["event"], &told["waiting"]), (&json!("granted"), &json!(0)));
    assert_eq!(told["token"], told["holder"]["token"]);
    locks.break_lock("m").await.unwrap();
    let broken = within(PATIENCE, "a break", events.next()).await.unwrap().unwrap();
    let told = form(&broken);
    assert_eq!((&told["event"], &told["holder"]), (&json!("broken"), &Value::Null));
    leading.release().await.unwrap();
    waiting.abort();
}

/// Scripts read the command line's JSON: no byte of it changes by itself.
#[test]
fn forms_are_written_as_they_were_read() {
    const TIMES: &str = r#""since":"2026-01-02T03:04:05.678Z","until":"2026-01-02T03:04:35.678Z""#;
    const OWNER: &str = r#""host":"web-1","pid":7,"label":"billing","reason":null"#;
    let holder = |share: &str| {
        format!(
            r#"{{"token":5,{share},{TIMES},"lease_ms":30000,"released":null,"idle":false,"detached":false,{OWNER},"value":null,"owner_id":"job-1"}}"#
        )
    };
    let past = format!(
        r#"{{"token":3,"access":null,"permits":2,"since":"2026-01-02T03:04:05.678Z","ended":"2026-01-02T03:04:06.000Z","how":"held_too_long",{OWNER},"value":"x","owner_id":null}}"#
    );
    for (share, kind, capacity) in [
        (r#""access":null,"permits":2"#, "semaphore", "3"),
        (r#""access":"write","permits":null"#, "rwlock", "null"),
    ] {
        let holder = holder(share);
        let waiter = format!(r#"{{{share},{TIMES},{OWNER},"value":"y","owner_id":null}}"#);
        same::<LockInfo>(&format!(
            r#"{{"name":"x","kind":"{kind}","capacity":{capacity},"token":5,"holders":[{holder}],"waiters":[{waiter}],"past":[{past}],"as_of":"2026-01-02T03:04:10.000Z"}}"#
        ));
        same::<Contention>(&format!(
            r#"{{"holders":[{holder}],"waiting_before":1,"queue_full":false,"held_here":true,"as_of":"2026-01-02T03:04:10.000Z","age_ms":12}}"#
        ));
        same::<LockEvent>(&format!(
            r#"{{"event":"granted","token":5,"holder":{holder},"waiting":2}}"#
        ));
    }
    for event in ["released", "expired", "broken", "adopted", "deleted"] {
        same::<LockEvent>(&format!(r#"{{"event":"{event}","token":5}}"#));
    }
    same::<LockEvent>(r#"{"event":"kept","token":5,"until":"2026-01-02T03:04:35.678Z"}"#);
    same::<LockEvent>(r#"{"event":"unreadable","problem":"odd"}"#);
    same::<Leader>(
        r#"{"value":"node 7","token":5,"since":"2026-01-02T03:04:05.678Z","host":"web-1","pid":7,"label":null}"#,
    );
    for kind in [
        "mutex",
        "semaphore",
        "rwlock",
        "election",
        "document",
        "latch",
        "barrier",
    ] {
        same::<Kind>(&format!(r#""{kind}""#));
    }
    for end in ["released", "expired", "broken", "adopted", "held_too_long"] {
        same::<HoldEnd>(&format!(r#""{end}""#));
    }
}

fn same<T: serde::Serialize + serde::de::DeserializeOwned>(text: &str) {
    let value: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(serde_json::to_string(&value).unwrap(), text);
}

#[test]
fn what_is_no_form_is_refused() {
    for text in [
        r#"{"event":"eaten","token":1}"#,
        r#"{"event":"released"}"#,
        r#"{"event":"granted","token":1}"#,
        r#"{"event":"released","token":-1}"#,
        r#"{"event":"released","token":"1"}"#,
        r#"{"event":"unreadable"}"#,
    ] {
        serde_json::from_str::<LockEvent>(text).expect_err(text);
    }
    // A later version may say more.
    let event: LockEvent = serde_json::from_str(r#"{"event":"released","token":1,"by":"x"}"#).unwrap();
    assert_eq!(form(&event)["token"], json!(1));
    for (text, problem) in [
        (
            r#"{"name":"x","kind":"lock","capacity":1,"token":1,"holders":[],"waiters":[]}"#,
            "`lock`",
        ),
        (
            r#"{"name":"x","kind":"mutex","capacity":1,"token":1,"holders":[{}],"waiters":[]}"#,
            "token",
        ),
    ] {
        let error = serde_json::from_str::<LockInfo>(text).expect_err(text).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn tokens_are_made_from_numbers_and_texts_that_can_be_one() {
    let token = FencingToken::try_from(7).unwrap();
    assert_eq!(("7".parse::<FencingToken>().unwrap(), i64::from(token)), (token, 7));
    assert_eq!(form(&token), json!(7));
    let bound = "0 to 9223372036854775807";
    let long = "9".repeat(10_000);
    for text in ["-1", "", "7.0", "x\u{1b}", &long] {
        let error = text.parse::<FencingToken>().unwrap_err().to_string();
        assert!(
            error.contains(bound) && error.len() < 300 && !error.contains('\u{1b}'),
            "{error}"
        );
    }
    let error = FencingToken::try_from(-1).unwrap_err().to_string();
    assert!(error.contains("`-1`") && error.contains(bound), "{error}");
}
