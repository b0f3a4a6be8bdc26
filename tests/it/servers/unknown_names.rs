//! Requests for locks whose names are new to a client.

use std::sync::{Arc, Mutex};

use crate::setup::*;

/// The names that were asked for, in order, each with the size of the update as a text.
type Asked = Arc<Mutex<Vec<(String, usize)>>>;

async fn asking(ground: &Ground) -> (LockClient, Asked) {
    let asked = Asked::default();
    let notes = asked.clone();
    let hear = move |event| {
        if let CommandEvent::Started(started) = event
            && started.command_name == "findAndModify"
            && started.command.get_bool("upsert").unwrap_or_default()
        {
            let name = started.command.get_document("query").unwrap().get_str("_id").unwrap();
            let size = started
                .command
                .get_array("update")
                .unwrap()
                .iter()
                .map(|stage| stage.to_string().len());
            let size = size.sum();
            notes.lock().unwrap().push((name.to_owned(), size));
        }
    };
    let driver = ground.overheard_driver(hear).await;
    (ground.locks_over(&driver).await, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_met_free_locks_only_asks_for_the_next_one_in_short() {
    let ground = Ground::replica_set("unknown").await;
    let (locks, asked) = asking(&ground).await;
    let take = async |name: &str| {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
        asked.lock().unwrap().drain(..).collect::<Vec<_>>()
    };
    let mut sizes = Vec::new();
    for number in 0..8 {
        let name = format!("invoice {number}");
        // A request that is not answered soon is repeated.
        match &take(&name).await[..] {
            [(asked, size), ..] if *asked == name => sizes.push(*size),
            other => panic!("asked for {other:?}"),
        }
    }
    let are_short = |requests: &[usize]| requests.iter().map(|size| *size < sizes[0] / 2).collect::<Vec<_>>();
    assert_eq!(
        are_short(&sizes),
        [false, true, true, true, true, true, true, true],
        "{sizes:?}"
    );

    // A lock that is held after all is waited for as every other.
    let other = ground.locks().await;
    let held = other.mutex("nightly job").acquire().await.unwrap();
    let waiting = spawn(locks.mutex("nightly job").acquire());
    until_waiting(&other, "nightly job", 1).await;
    held.release().await.unwrap();
    let acquired = within(SOON, "the hand-over", waiting).await.unwrap().unwrap();
    acquired.release().await.unwrap();
    let requests: Vec<usize> = asked.lock().unwrap().drain(..).map(|(_, size)| size).collect();
    assert_eq!(are_short(&requests)[..2], [true, false], "{requests:?}");
    let requests: Vec<usize> = take("invoice 8").await.into_iter().map(|(_, size)| size).collect();
    assert!(!are_short(&requests)[0], "after a surprise: {requests:?}");
}

/// As of an operator who frees a stuck lock by hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_that_lacks_a_field_is_granted_whatever_was_expected_of_it() {
    let ground = Ground::replica_set("half").await;
    let (locks, other, driver) = (ground.locks().await, ground.locks().await, ground.driver().await);
    let documents = ground.of(&driver, COLLECTION);
    let take = async |locks: &LockClient, name: &str| {
        let acquired = within(SOON, name, spawn(locks.mutex(name).acquire())).await;
        let handle = acquired.unwrap().unwrap_or_else(|error| panic!("{name}: {error}"));
        handle.release().await.unwrap();
    };
    for field in ["kind", "capacity", "holders", "queue"] {
        for change in [doc! { "$unset": { field: "" } }, doc! { "$set": { field: null } }] {
            for is_unknown in [true, false] {
                let name = format!("{field} {change} {is_unknown}");
                take(if is_unknown { &other } else { &locks }, &name).await;
                for number in 0..4 {
                    take(&locks, &format!("{name} {number}")).await;
                }
                documents
                    .update_one(doc! { "_id": &name }, change.clone())
                    .await
                    .unwrap();
                take(&locks, &name).await;
            }
        }
    }
}
