//! Memory in the place of a server: its collection answers as the driver's.

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use serde::{Deserialize, Serialize};
use watchlock::testing::MemoryCollection;

use crate::setup::Ground;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "_id")]
    id: i32,
    state: String,
    lines: Vec<i64>,
}

/// The results of the same calls of a collection, whosever it is.
macro_rules! told {
    ($orders:expr) => {{
        let (orders, mut told) = ($orders, Vec::new());
        let open = || doc! { "state": "open" };
        for id in 1..=4 {
            let (state, lines) = ("open".to_owned(), vec![id.into(), 7]);
            let inserted = orders.insert_one(Order { id, state, lines }).await.unwrap();
            told.push(format!("{inserted:?}"));
        }
        let set = doc! { "$set": { "state": "paid" }, "$inc": { "n": 1 } };
        for filter in [open(), doc! { "_id": 1 }, doc! { "_id": 9 }] {
            let updated = orders.update_one(filter, set.clone()).await.unwrap();
            told.push(format!("{updated:?}"));
        }
        let same = orders.update_one(doc! { "lines": 2_i64 }, doc! { "$set": open() });
        told.push(format!("{:?}", same.await.unwrap()));
        told.push(format!(
            "{:?}",
            orders
                .update_many(open(), doc! { "$unset": { "none": "" } })
                .await
                .unwrap()
        ));
        told.push(format!(
            "{:?}",
            orders
                .find_one(doc! { "lines": { "$gt": 3 }, "_id": { "$in": [4, 5] } })
                .await
                .unwrap()
        ));
        let (id, state) = (4, "sent".to_owned());
        let replaced = orders.replace_one(
            doc! { "_id": 4 },
            Order {
                id,
                state,
                lines: vec![],
            },
        );
        told.push(format!("{:?}", replaced.await.unwrap()));
        told.push(format!("{:?}", orders.delete_one(open()).await.unwrap()));
        told.push(format!("{:?}", orders.count_documents(doc! {}).await.unwrap()));
        told.push(format!(
            "{:?}",
            orders.delete_many(doc! { "_id": { "$lte": 3 } }).await.unwrap()
        ));
        told.push(format!("{:?}", orders.find_one(doc! {}).await.unwrap()));
        told.push(format!(
            "{:?}",
            orders.count_documents(doc! { "_id": 1 }).await.unwrap()
        ));
        told
    }};
}

#[tokio::test]
async fn the_collection_in_memory_answers_as_the_drivers() {
    let ground = Ground::replica_set("memory").await;
    let there: Collection<Order> = ground.driver().await.database(&ground.database).collection("orders");
    let here = MemoryCollection::<Order>::new();
    assert_eq!(told!(&here), told!(&there));

    // What can't be read as the type is named.
    let raw = here.clone_with_type::<Document>();
    raw.insert_one(doc! { "_id": 8, "state": 8 }).await.unwrap();
    for error in [
        here.find_one(doc! { "_id": 8 }).await.unwrap_err(),
        here.find(doc! {}).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("the `_id` 8"), "{error}");
    }
    assert_eq!(raw.find(doc! {}).await.unwrap().len(), 2);
    // A refusal changes nothing.
    let push = raw.update_many(doc! {}, doc! { "$set": { "n": 1 }, "$push": { "lines": 1 } });
    assert!(push.await.unwrap_err().to_string().contains("`$push`"));
    assert_eq!(raw.count_documents(doc! { "n": 1 }).await.unwrap(), 0);
}
