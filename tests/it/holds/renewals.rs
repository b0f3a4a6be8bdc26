//! Documents that the server refuses to renew, beside others that are renewed with them.

use watchlock::locks;

use crate::setup::*;

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

#[tokio::test]
async fn a_shutdown_releases_many_locks_by_few_commands() {
    const COUNT: usize = 300;
    let ground = Ground::replica_set("released_together").await;
    let (driver, sent) = ground.noting_driver().await;
    let locks = ground.locks_over(&driver).await;
    let other = ground.locks().await;
    let acquired = (0..COUNT).map(|number| locks.mutex(format!("lock {number}")).acquire());
    let handles: Vec<Held<locks::Mutex>> = join_all(acquired).await.into_iter().map(Result::unwrap).collect();
    let permits = [locks.semaphore("permits", 3), locks.semaphore("permits", 3)];
    let permits = join_all(permits.map(|semaphore| async move { semaphore.acquire().await.unwrap() })).await;
    let next = in_line(&other, "lock 150", 1, other.mutex("lock 150").acquire()).await;

    // A busy server answers some of so many acquires late. Those were looked for or asked for once more, and what the
    // first request may yet leave is taken out several times, whoever releases.
    let before = ["update", "findAndModify", "find"].map(|command| sent.count(command));
    let asked_again = before[1].saturating_sub(COUNT + 2) + before[2];
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
    let [updates, others] = [
        sent.count("update") - before[0],
        sent.count("findAndModify") - before[1],
    ];
    let writes = updates + others;
    assert!(writes < 10 + 5 * asked_again, "{writes} after {before:?}");
    assert!(updates >= 2, "two for so many: {updates}");
}
