//! Locks in documents: `--documents` of `ls`, `show`, `wait`, `watch` and `break`.

use mongodb::bson::{Bson, Document, Uuid, doc, oid::ObjectId};
use watchlock::{Held, LostReason, documents::DocumentLocks};

use crate::{
    Started,
    common::{Ground, SOON, within},
    operate::names,
    signal, tells,
    terminal::Terminal,
    watchlock,
};

async fn orders(ground: &Ground) -> DocumentLocks<Document> {
    let collection = ground.driver().await.database(&ground.database).collection("orders");
    let known = ObjectId::parse_str(HEX).unwrap();
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
    let known = ObjectId::parse_str(HEX).unwrap();
    orders.acquire(known).await.unwrap().release().await.unwrap();

    let words = format!("\"order-7\" | a reason | billing@ | ObjectId({HEX})");
    let told = tells(&ground, "ls --documents orders", 0, &words).await;
    assert!(told.err.contains("`\"spoiled\"` is not a lock"), "{told:?}");
    let names = async |options: &str| names(&ground, &format!("--documents orders {options}")).await;
    assert_eq!(names("--free").await, [format!("ObjectId({HEX})")]);
    assert_eq!(names("--prefix order-").await, ["\"order-7\""]);
    assert_eq!(names("--field other.lock").await, [""; 0]);

    let listed = names("--held").await;
    assert_eq!(listed.len(), 2);
    let with_braces = r#"{"tenant": "a"}"#;
    let extended = format!(r#"{{"$oid": "{HEX}"}}"#);
    let ids = listed.iter().map(String::as_str);
    for id in ids.chain(["order-7", HEX, with_braces, &extended]) {
        let shown = watchlock(&ground, format!("show --documents orders --json `{id}`"), 0).await;
        assert_eq!(shown.json()["kind"], "document", "{id}");
    }
    let shown = watchlock(&ground, format!("show --documents orders --json `{with_braces}`"), 0).await;
    assert_eq!(shown.json()["holders"][0]["token"], pair.token().as_i64());
    tells(&ground, "show --documents orders 7", 1, "no trace").await;
    watchlock(&ground, "show --documents orders spoiled", 65).await;
}

/// Watches one of these locks, which somebody holds for a reason, and all of them; breaks the one, and sees that told.
async fn is_watched_and_broken(ground: &Ground, options: &str, name: &str, held: Held) {
    let mut all = Started::run(ground, format!("watch {options}"));
    let mut one = Started::run(ground, format!("watch {options} `{name}` --json"));
    // Two have something to tell at first, in no certain order.
    let begun = [all.line().await, all.line().await];
    let is_granted = |line: &String| line.contains(&format!("  {name}  granted to ")) && line.ends_with(": a reason");
    assert!(begun.iter().any(is_granted), "{begun:?}");
    let event = one.object().await;
    assert!(event["event"] == "granted" && event["lock"] == name, "{event}");

    let break_it = format!("break {options} `{name}` --yes --json");
    let told = watchlock(ground, &break_it, 0).await.json();
    assert_eq!(told["broken"][0]["token"], held.token().as_i64());
    assert_eq!(within(SOON * 3, "the loss", held.lost()).await, LostReason::Broken);
    let told = all.line().await;
    assert!(
        told.ends_with(&format!("  {name}  broken, token {}", held.token())),
        "{told}"
    );
    assert_eq!(one.object().await["event"], "broken");
    watchlock(ground, &break_it, 1).await;
    for started in [all, one] {
        signal("TERM", started.pid());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_in_documents_are_watched_and_broken() {
    for ground in Ground::both("cli_documents").await {
        let orders = orders(&ground).await;
        let first = orders.acquire("order-7").reason("a reason").await.unwrap();
        let token = first.token();
        is_watched_and_broken(&ground, "--documents orders", "\"order-7\"", first.into()).await;
        // Another grant is left alone by the token of the first.
        let second = orders.acquire("order-7").await.unwrap();
        let line = format!("break --documents orders order-7 --yes --holder {token}");
        tells(&ground, line, 1, "under this token").await;
        assert_eq!(second.lost_reason(), None);
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
    terminal.leave("q").await;
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
    let held = line.acquire(7).reason("a reason").await.unwrap();
    let beside = other.acquire("a/b").await.unwrap();
    let _whole = orders.acquire(7).await.unwrap();

    let of_lines = "--documents orders --elements of.lines";
    let words = r#"7/sku="x" | billing@ | a reason"#;
    tells(&ground, format!("ls --held {of_lines}"), 0, words).await;
    let names = names(&ground, of_lines).await;
    assert_eq!(names, [other.name_of("a/b"), line.name_of(7)]);
    // As it is listed, and with the key in JSON in any order.
    let json = r#"a/b/{"sku": "y/z", "n": 1}"#;
    for (name, token) in [
        (&names[0][..], beside.token()),
        (json, beside.token()),
        (&names[1], held.token()),
    ] {
        let shown = watchlock(&ground, format!("show --json {of_lines} `{name}`"), 0)
            .await
            .json();
        assert_eq!(shown["holders"][0]["token"], token.as_i64(), "{name}");
    }
    tells(&ground, format!("show {of_lines} 7"), 64, "names no element").await;
    tells(
        &ground,
        format!(r#"show {of_lines} `7/{{"sku": []}}`"#),
        64,
        "is an array",
    )
    .await;
    tells(&ground, "ls --elements of.lines", 64, "--documents").await;
    tells(&ground, format!(r#"show {of_lines} 8/sku="x""#), 1, "no trace").await;
    watchlock(&ground, format!("wait --timeout 0s {of_lines} {}", names[1]), 75).await;
    is_watched_and_broken(&ground, of_lines, &names[1], held.into()).await;
    assert_eq!(beside.lost_reason(), None);
}

/// Runs each command that takes an `_id`, with this text for one: each must find the lock, which is held.
async fn each_finds(ground: &Ground, collection: &str, text: &str, name: &str) {
    let documents = format!("--documents {collection}");
    let told = watchlock(ground, format!("show {documents} --json -- {text}"), 0)
        .await
        .json();
    assert!(
        told["name"] == name && told["holders"].as_array().unwrap().len() == 1,
        "{text}: {told}"
    );
    tells(
        ground,
        format!("wait {documents} --timeout 0s -- {text}"),
        75,
        "held by",
    )
    .await;
    let mut watching = Started::run(ground, format!("watch {documents} -- {text}"));
    let told = watching.line().await;
    assert!(told.contains(&format!("  {name}  granted to ")), "{text}: {told}");
    signal("TERM", watching.pid());
    let told = watchlock(ground, format!("break {documents} --yes --json -- {text}"), 0)
        .await
        .json();
    assert!(
        told["name"] == name && told["broken"].as_array().unwrap().len() == 1,
        "{text}: {told}"
    );
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
        (uuid, Uuid::parse_str(uuid).unwrap().into()),
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
        for command in ["show", "wait", "watch", "break --yes"] {
            let words = format!("2 documents in `orders` | {number} | \"7\"");
            tells(&ground, format!("{command} --documents orders 7"), 65, &words).await;
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
