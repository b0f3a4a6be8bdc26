//! Locks in documents: `--documents` of `ls`, `show`, `wait`, `watch` and `break`.

use mongodb::bson::{Bson, Document, doc};
use serde_json::{Value, json};
use watchlock::{LostReason, documents::DocumentLocks};

use crate::{
    Started,
    common::{Ground, SOON, within},
    terminal::Terminal,
    watchlock,
};

async fn orders(ground: &Ground) -> DocumentLocks<Document> {
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    let known = mongodb::bson::oid::ObjectId::parse_str(HEX).unwrap();
    for id in [
        doc! { "_id": "order-7" },
        doc! { "_id": known },
        doc! { "_id": { "tenant": "a" } },
    ] {
        collection.insert_one(id).await.unwrap();
    }
    collection
        .insert_one(doc! { "_id": "spoiled", "watchlock": 5 })
        .await
        .unwrap();
    let locks = ground.builder().await.label("billing").build().await.unwrap();
    locks.documents(collection)
}

const HEX: &str = "507f191e810c19729de860ea";

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_are_listed_and_shown_by_any_form_of_their_id() {
    let ground = Ground::replica_set("cli_documents").await;
    let orders = orders(&ground).await;
    let _text = orders.acquire("order-7").reason("a reason").await.unwrap();
    let pair = orders.acquire(doc! { "tenant": "a" }).await.unwrap();
    let known = mongodb::bson::oid::ObjectId::parse_str(HEX).unwrap();
    orders.acquire(known).await.unwrap().release().await.unwrap();

    let told = watchlock(&ground, ["ls", "--documents", "orders"]).await.expect(0);
    for words in ["\"order-7\"", "a reason", "billing@", &format!("ObjectId({HEX})")] {
        assert!(told.out.contains(words), "{words}: {told:?}");
    }
    assert!(told.err.contains("`\"spoiled\"` is not a lock"), "{told:?}");
    let names = async |arguments: &[&str]| -> Vec<String> {
        let arguments = [&["ls", "--documents", "orders", "--json"], arguments].concat();
        let listed = watchlock(&ground, arguments).await.expect(0).json();
        let names = listed.as_array().unwrap().iter();
        names.map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["--free"]).await, [format!("ObjectId({HEX})")]);
    assert_eq!(names(&["--prefix", "order-"]).await, ["\"order-7\""]);
    assert_eq!(names(&["--field", "other.lock"]).await, [""; 0]);

    let listed = names(&["--held"]).await;
    assert_eq!(listed.len(), 2);
    let with_braces = r#"{"tenant": "a"}"#;
    let extended = format!(r#"{{"$oid": "{HEX}"}}"#);
    let ids = listed.iter().map(String::as_str);
    for id in ids.chain(["order-7", HEX, with_braces, &extended]) {
        let shown = watchlock(&ground, ["show", "--documents", "orders", "--json", id])
            .await
            .expect(0)
            .json();
        assert_eq!(shown["kind"], json!("document"), "{id}");
    }
    let shown = watchlock(&ground, ["show", "--documents", "orders", "--json", with_braces])
        .await
        .expect(0);
    assert_eq!(shown.json()["holders"][0]["token"], json!(pair.token().as_i64()));
    let told = watchlock(&ground, ["show", "--documents", "orders", "7"])
        .await
        .expect(1);
    assert!(told.err.contains("no trace"), "{told:?}");
    watchlock(&ground, ["show", "--documents", "orders", "spoiled"])
        .await
        .expect(65);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_are_watched_and_broken() {
    for ground in Ground::both("cli_documents").await {
        let orders = orders(&ground).await;
        let first = orders.acquire("order-7").reason("why not").await.unwrap();
        let mut all = Started::run(&ground, &["watch", "--documents", "orders"]);
        let mut one = Started::run(&ground, &["watch", "--documents", "orders", "order-7", "--json"]);
        // The spoiled one and the held one come in no certain order.
        let begun = [all.line().await, all.line().await];
        let granted = begun
            .iter()
            .find(|line| line.contains("granted to"))
            .expect("it is held");
        assert!(
            granted.contains("  \"order-7\"  granted to ") && granted.ends_with(": why not"),
            "{begun:?}"
        );
        assert!(
            begun.iter().any(|line| line.contains("\"spoiled\"  not a lock")),
            "{begun:?}"
        );
        let event: Value = serde_json::from_str(&one.line().await).unwrap();
        assert_eq!(
            (&event["event"], &event["lock"]),
            (&json!("granted"), &json!("\"order-7\""))
        );

        let break_it = ["break", "--documents", "orders", "order-7", "--yes", "--json"];
        let told = watchlock(&ground, break_it).await.expect(0).json();
        assert_eq!(told["broken"][0]["token"], json!(first.token().as_i64()));
        assert_eq!(within(SOON * 3, "the loss", first.lost()).await, LostReason::Broken);
        let told = format!("  \"order-7\"  broken, token {}", first.token());
        assert!(all.line().await.ends_with(&told));
        let event: Value = serde_json::from_str(&one.line().await).unwrap();
        assert_eq!(event["event"], json!("broken"));
        watchlock(&ground, break_it).await.expect(1);

        // Another grant is left alone by the token of the first.
        let second = orders.acquire("order-7").await.unwrap();
        let token = first.token().to_string();
        let arguments = ["break", "--documents", "orders", "order-7", "--yes", "--holder", &token];
        let told = watchlock(&ground, arguments).await.expect(1);
        assert!(told.err.contains("under this token"), "{told:?}");
        assert_eq!(second.lost_reason(), None);
        for started in [all, one] {
            crate::signal("TERM", started.pid());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_of_documents_breaks_what_is_selected() {
    let ground = Ground::replica_set("cli_documents").await;
    let orders = orders(&ground).await;
    let held = orders.acquire("order-7").await.unwrap();
    let mut terminal = Terminal::sized(&ground, "exec $W watch --documents orders", 60);
    terminal.until_listed("\"order-7\"").await;
    assert!(!terminal.screen().contains("show free"), "free locks are not listed");
    // Select, break, confirm.
    terminal.type_in("jb");
    terminal.until_seen("`\"order-7\"`: Break this lock").await;
    terminal.type_in("y");
    assert_eq!(within(SOON, "the loss", held.lost()).await, LostReason::Broken);
    terminal.until_seen("is broken").await;
    terminal.type_in("q");
    assert_eq!(terminal.end().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_elements_are_listed_shown_watched_and_broken() {
    let ground = Ground::replica_set("cli_elements").await;
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    for id in [Bson::from("a/b"), Bson::from(7)] {
        let lines = vec![doc! { "sku": "x" }, doc! { "sku": "y/z", "n": 1 }];
        collection
            .insert_one(doc! { "_id": id, "of": { "lines": lines } })
            .await
            .unwrap();
    }
    let locks = ground.builder().await.label("billing").build().await.unwrap();
    let orders: DocumentLocks<Document> = locks.documents(collection);
    let line = orders.element::<Document>("of.lines", doc! { "sku": "x" });
    let other = orders.element::<Document>("of.lines", doc! { "sku": "y/z", "n": 1 });
    let held = line.acquire(7).reason("picking").await.unwrap();
    let beside = other.acquire("a/b").await.unwrap();
    let _whole = orders.acquire(7).await.unwrap();

    let of_lines = ["--documents", "orders", "--elements", "of.lines"];
    let run = async |command: &[&str], name: &[&str]| watchlock(&ground, [command, &of_lines, name].concat()).await;
    let listed = run(&["ls", "--held"], &[]).await.expect(0);
    for words in [r#"7/sku="x""#, "billing@", "picking"] {
        assert!(listed.out.contains(words), "{words}: {listed:?}");
    }
    let listed = run(&["ls", "--json"], &[]).await.expect(0).json();
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| lock["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, [other.name_of("a/b"), line.name_of(7)]);
    // As it is listed, and with the key in JSON in any order.
    let json = r#"a/b/{"sku": "y/z", "n": 1}"#;
    for (name, token) in [
        (names[0], beside.token()),
        (json, beside.token()),
        (names[1], held.token()),
    ] {
        let shown = run(&["show", "--json"], &[name]).await.expect(0).json();
        assert_eq!(shown["holders"][0]["token"], json!(token.as_i64()), "{name}");
    }
    for (name, problem) in [("7", "names no element"), (r#"7/{"sku": []}"#, "is an array")] {
        let told = run(&["show"], &[name]).await.expect(64);
        assert!(told.err.contains(problem), "{name}: {told:?}");
    }
    let told = watchlock(&ground, ["ls", "--elements", "of.lines"]).await.expect(64);
    assert!(told.err.contains("--documents"), "{told:?}");
    let told = run(&["show"], &[r#"8/sku="x""#]).await.expect(1);
    assert!(told.err.contains("no trace"), "{told:?}");

    run(&["wait", "--timeout", "0s"], &[names[1]]).await.expect(75);
    let mut all = Started::run(&ground, &[&["watch"], &of_lines[..]].concat());
    let mut one = Started::run(&ground, &[&["watch"], &of_lines[..], &[names[1], "--json"]].concat());
    let mut begun = [all.line().await, all.line().await];
    begun.sort_by_key(|line| line.contains("picking"));
    assert!(begun[1].contains(r#"  7/sku="x"  granted to "#), "{begun:?}");
    let event: Value = serde_json::from_str(&one.line().await).unwrap();
    assert_eq!((&event["event"], &event["lock"]), (&json!("granted"), &json!(names[1])));
    let told = run(&["break", "--yes", "--json"], &[names[1]]).await.expect(0).json();
    assert_eq!(told["broken"][0]["token"], json!(held.token().as_i64()));
    assert_eq!(within(SOON * 3, "the loss", held.lost()).await, LostReason::Broken);
    let broken = format!(r#"  7/sku="x"  broken, token {}"#, held.token());
    assert!(all.line().await.ends_with(&broken));
    let event: Value = serde_json::from_str(&one.line().await).unwrap();
    assert_eq!(event["event"], json!("broken"));
    assert_eq!(beside.lost_reason(), None);
    for started in [all, one] {
        crate::signal("TERM", started.pid());
    }
}

/// Runs each command that takes an `_id`, with this text for one: each must find the lock, which is held.
async fn each_finds(ground: &Ground, collection: &str, text: &str, name: &str) {
    let told = watchlock(ground, ["show", "--documents", collection, "--json", "--", text])
        .await
        .expect(0);
    assert_eq!(told.json()["name"], json!(name), "{text}");
    assert_eq!(told.json()["holders"].as_array().unwrap().len(), 1, "{text}");
    let arguments = ["wait", "--documents", collection, "--timeout", "0s", "--", text];
    let told = watchlock(ground, arguments).await.expect(75);
    assert!(told.err.contains("held by"), "{text}: {told:?}");
    let mut watching = Started::run(ground, &["watch", "--documents", collection, "--", text]);
    let told = watching.line().await;
    assert!(told.contains(&format!("  {name}  granted to ")), "{text}: {told}");
    crate::signal("TERM", watching.pid());
    let arguments = ["break", "--documents", collection, "--yes", "--json", "--", text];
    let told = watchlock(ground, arguments).await.expect(0).json();
    assert_eq!(told["name"], json!(name), "{text}");
    assert_eq!(told["broken"].as_array().unwrap().len(), 1, "{text}");
}

/// No command says of a lock that nobody holds it because its `_id` is of another type than the text seems to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_found_by_whatever_its_id_reads_as() {
    let ground = Ground::replica_set("cli_readings").await;
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    let locks = ground.locks().await;
    let orders = locks.documents(collection.clone());
    let uuid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    for (text, id) in [
        ("7", Bson::from("7")),
        ("008", Bson::from("008")),
        ("9.0", Bson::Int32(9)),
        (HEX, Bson::from(HEX)),
        ("ObjectId(5)", Bson::from("ObjectId(5)")),
        (uuid, mongodb::bson::Uuid::parse_str(uuid).unwrap().into()),
        ("0.1", Bson::Decimal128("0.1".parse().unwrap())),
    ] {
        collection.insert_one(doc! { "_id": id.clone() }).await.unwrap();
        let held = orders.acquire(id.clone()).await.unwrap();
        each_finds(&ground, "orders", text, &orders.name_of(id)).await;
        assert_eq!(within(SOON * 3, "the loss", held.lost()).await, LostReason::Broken);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_documents_that_a_text_can_be_none_is_taken() {
    let ground = Ground::replica_set("cli_readings").await;
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    let locks = ground.locks().await;
    let orders = locks.documents(collection.clone());
    for id in [Bson::from("7"), Bson::Int32(7)] {
        collection.insert_one(doc! { "_id": id }).await.unwrap();
    }
    let number = r#"{"$numberInt":"7"}"#;
    for (id, form) in [(Bson::from("7"), "\"7\""), (Bson::Int32(7), number)] {
        let held = orders.acquire(id.clone()).await.unwrap();
        for command in [&["show"][..], &["wait"], &["watch"], &["break", "--yes"]] {
            let told = watchlock(&ground, [command, &["--documents", "orders", "7"]].concat())
                .await
                .expect(65);
            assert!(
                told.out.is_empty() && told.err.contains("2 documents in `orders`"),
                "{told:?}"
            );
            assert!(told.err.contains(number) && told.err.contains("\"7\""), "{told:?}");
        }
        assert_eq!(held.lost_reason(), None);
        each_finds(&ground, "orders", form, &orders.name_of(id)).await;
    }
}

/// The lock is that of the stored `_id`, by which the server finds the document.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_found_by_a_spelling_that_is_the_same_to_its_collection() {
    let ground = Ground::replica_set("cli_spelling").await;
    let database = ground.driver().await.database(&ground.database);
    let create = doc! { "create": "orders", "collation": { "locale": "en", "strength": 2 } };
    database.run_command(create).await.unwrap();
    let collection = database.collection("orders");
    collection.insert_one(doc! { "_id": "Order-7" }).await.unwrap();
    let locks = ground.locks().await;
    let held = locks.documents(collection).acquire("Order-7").await.unwrap();
    each_finds(&ground, "orders", "ORDER-7", "\"Order-7\"").await;
    assert_eq!(within(SOON * 3, "the loss", held.lost()).await, LostReason::Broken);
}
