//! Documents that the server refuses to renew, beside others that are renewed with them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::join_all;
use mongodb::{
    Client,
    bson::{Document, doc},
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use watchlock::{Held, LockClient, LockStatus, LostReason, locks};

use crate::setup::{COLLECTION, Ground, PATIENCE, eventually, spawn, until_waiting, within};

const LEASE: Duration = Duration::from_secs(3);

fn all_held(handles: &[Held<locks::Mutex>]) -> bool {
    handles.iter().all(|handle| handle.status() == LockStatus::Held)
}

/// A validator that is added while locks are held, and taken away again.
#[tokio::test]
async fn a_document_that_a_validator_refuses_costs_no_other_its_renewal() {
    let ground = Ground::replica_set("refused_renewals").await;
    let locks = ground.locks_for(LEASE).await;
    let names = (0..50).map(|number| format!("lock {number}"));
    let acquired = names.map(|name| locks.mutex(name).acquire());
    let others: Vec<Held<locks::Mutex>> = join_all(acquired).await.into_iter().map(Result::unwrap).collect();
    // By the order of names it comes before some and after others.
    let refused = locks.mutex("lock 25 is refused").acquire().await.unwrap();
    let database = ground.driver().await.database(&ground.database);
    let validate = async |validator: Document| {
        let command = doc! { "collMod": COLLECTION, "validator": validator };
        database.run_command(command).await.unwrap();
    };

    validate(doc! { "_id": { "$ne": refused.name() } }).await;
    eventually(PATIENCE, "it is at risk", async || {
        refused.status() == LockStatus::AtRisk
    })
    .await;
    validate(doc! {}).await;
    eventually(PATIENCE, "it is renewed again", async || {
        refused.status() == LockStatus::Held
    })
    .await;
    assert!(all_held(&others));

    validate(doc! { "_id": { "$ne": refused.name() } }).await;
    assert_eq!(within(PATIENCE, "the loss", refused.lost()).await, LostReason::Expired);
    // The others have been renewed beside it more than once, and are on.
    assert!(all_held(&others), "{others:?}");
    tokio::time::sleep(LEASE).await;
    assert!(all_held(&others), "{others:?}");
    // A renewal that is asked for is told what became of it.
    others[0].renew().await.unwrap();
    validate(doc! { "_id": { "$ne": others[0].name() } }).await;
    others[0].renew().await.unwrap_err();
    assert_eq!(others[0].lost_reason(), None);
}

/// Many locks are let go of together, and who waits for one of them has it.
#[tokio::test]
async fn a_shutdown_releases_many_locks_by_few_commands() {
    const COUNT: usize = 300;
    let ground = Ground::replica_set("released_together").await;
    let sent: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counts = sent.clone();
    let handler = move |event: CommandEvent| {
        if let CommandEvent::Started(started) = event {
            *counts.lock().unwrap().entry(started.command_name).or_default() += 1;
        }
    };
    let mut options = ClientOptions::parse(ground.uri()).await.unwrap();
    options.command_event_handler = Some(EventHandler::callback(handler));
    let database = Client::with_options(options).unwrap().database(&ground.database);
    let locks = LockClient::builder(database).build().await.unwrap();
    let other = ground.locks().await;
    let acquired = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")).acquire());
    let handles: Vec<Held<locks::Mutex>> = join_all(acquired).await.into_iter().map(Result::unwrap).collect();
    let permits = [locks.semaphore("permits", 3), locks.semaphore("permits", 3)];
    let permits = join_all(permits.map(|semaphore| async move { semaphore.acquire().await.unwrap() })).await;
    let next = other.mutex("lock 150");
    let next = spawn(async move { next.acquire().await });
    until_waiting(&other, "lock 150", 1).await;

    // A busy server answers some of so many acquires late. Those were looked for or asked for once more, and what the
    // first request may yet leave is taken out several times, whoever releases.
    let before = std::mem::take(&mut *sent.lock().unwrap());
    let looked = before.get("find").copied().unwrap_or_default();
    let asked_again = before["findAndModify"].saturating_sub(COUNT + 2) + looked;
    within(PATIENCE, "the shutdown", locks.shutdown()).await;
    assert!(
        handles
            .iter()
            .map(|handle| handle.lost_reason())
            .chain(permits.iter().map(|permit| permit.lost_reason()))
            .all(|lost| lost == Some(LostReason::Released))
    );
    let next = within(PATIENCE, "the hand-over", next).await.unwrap().unwrap();
    let held = doc! { "holders.0": { "$exists": true } };
    let documents = ground.documents().await;
    assert_eq!(documents.count_documents(held.clone()).await.unwrap(), 1);
    next.release().await.unwrap();
    assert_eq!(documents.count_documents(held).await.unwrap(), 0);
    let sent = sent.lock().unwrap();
    let writes: usize = ["update", "findAndModify"]
        .iter()
        .filter_map(|command| sent.get(*command))
        .sum();
    assert!(writes < 10 + 5 * asked_again, "{sent:?} after {before:?}");
    assert!(sent["update"] >= 2, "two for so many: {sent:?}");
}
