//! Fences, guards, transactions, and the index by which the server removes old locks.

use std::time::{Duration, Instant};

use mongodb::{
    Collection,
    bson::{DateTime, Document, doc},
    options::{ReadConcern, WriteConcern},
};
use tokio::time::sleep;
use watchlock::{
    LockClient,
    errors::{FenceError, GuardError},
};

use super::report::Check;
use crate::{
    doctor::primary,
    exit::Failure,
    ground::{Ground, asked},
    text::span_of,
};

pub(super) const SECTION: &str = "fences and transactions";

/// How the guard of a transaction and its commit ended.
type Ended = (Result<(), GuardError>, Result<(), String>);

/// A document that the server has to remove in time.
pub(super) struct Purged {
    since: Instant,
}

/// Writes a free lock whose time is over. The server looks for such once a minute, so this comes first.
pub(super) async fn purge(ground: &Ground<'_>) -> Result<Purged, Failure> {
    // The first lock of a client makes the index; the document has the form of a free lock.
    let documents = ground.locks();
    let old = doc! { "_id": "old", "purge_at": DateTime::from_millis(1_000_000_000_000) };
    asked(async move { documents.insert_one(old).await }).await?;
    Ok(Purged { since: Instant::now() })
}

impl Purged {
    /// Waits for the removal, until this time.
    pub(super) async fn check(self, ground: &Ground<'_>, until: Instant) -> Result<Check, Failure> {
        let name = "TTL index";
        if let Some(why) = ground.lacks("createIndex") {
            return Ok(Check::skipped(name, why));
        }
        loop {
            let documents = ground.locks();
            let found = asked(async move { documents.find_one(doc! { "_id": "old" }).await }).await?;
            let took = span_of(self.since.elapsed());
            if found.is_none() {
                return Ok(Check::kept(
                    name,
                    format!("the server removed an old lock within {took}"),
                ));
            }
            if Instant::now() >= until {
                let why = format!("not seen within {took}: the server looks once a minute, so give it --seconds 90");
                return Ok(Check::skipped(name, why));
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}

pub(super) async fn run(ground: &Ground<'_>, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let (first, second) = (ground.client().await?, ground.client().await?);
    checks.push(fence(ground, &first, &second).await?);
    checks.push(transaction(ground, &second).await?);
    Ok(())
}

/// Checks that a write of an earlier holder is refused.
async fn fence(ground: &Ground<'_>, first: &LockClient, second: &LockClient) -> Result<Check, Failure> {
    let name = "earlier holder's write";
    let written = ground.collection("fenced");
    let inserted = written.clone();
    asked(async move { inserted.insert_one(doc! { "_id": 1 }).await }).await?;
    let earlier = first.mutex("fence").acquire().await?;
    second.break_lock("fence").await?;
    let later = second.mutex("fence").acquire().await?;
    let write = |fence: watchlock::fence::Fence, by| {
        let written = written.clone();
        async move {
            let update = doc! { "$set": { "by": by } };
            fence.update_one(&written, doc! { "_id": 1 }, update).await
        }
    };
    let by_later = write(later.fence(), "later").await;
    let by_earlier = write(earlier.fence(), "earlier").await;
    drop(later.release().await);
    Ok(match (by_later, by_earlier) {
        (Ok(_), Err(FenceError::Fenced { .. })) => Check::kept(name, "refused, after one under a larger token"),
        (later, earlier) => Check::broken(name, "a fence did not tell two holders apart")
            .with(format!("later: {later:?}\nearlier: {earlier:?}")),
    })
}

/// Checks that a guarded transaction is not committed once the lock is lost, and is while it is held.
async fn transaction(ground: &Ground<'_>, second: &LockClient) -> Result<Check, Failure> {
    let name = "guarded transaction";
    let written = ground.collection("guarded");
    let inserted = written.clone();
    asked(async move { inserted.insert_one(doc! { "_id": 1, "n": 0 }).await }).await?;
    let locks = ground.client_beside_them().await?;
    let mut committed = Vec::new();
    for is_lost in [false, true] {
        let (written, locks, second) = (written.clone(), locks.clone(), second.clone());
        // In a task of its own, also if the section takes too long: a transaction of which an operation is dropped
        // half-way can stay open for a minute, and no collection that it has written can be dropped meanwhile.
        match asked(async move { Ok(commit(&written, &locks, &second, is_lost).await) }).await?? {
            Ok(ended) => committed.push(ended),
            Err(why) => return Ok(Check::skipped(name, why)),
        }
    }
    let found = asked(async move { written.find_one(doc! { "_id": 1 }).await }).await?;
    let n = found.and_then(|found| found.get_i32("n").ok());
    let is_right = matches!(&committed[..], [(Ok(()), Ok(())), (Err(_), _)]) && n == Some(1);
    Ok(if is_right {
        Check::kept(name, "committed while the lock was held, and not after it was broken")
    } else {
        Check::broken(name, "a guard did not decide whether a transaction is committed")
            .with(format!("{committed:?}\nthe number is {n:?}"))
    })
}

/// Commits a guarded transaction, which returns how both ended, under a lock that is lost before or not; the inner
/// error: the server has no transactions.
async fn commit(
    written: &Collection<Document>,
    locks: &LockClient,
    second: &LockClient,
    is_lost: bool,
) -> Result<Result<Ended, String>, Failure> {
    let held = locks.mutex("guard").acquire().await?;
    let client = written.client().clone();
    let mut session = asked(async move { client.start_session().await }).await?;
    let begun = session
        .start_transaction()
        .write_concern(WriteConcern::majority())
        .read_concern(ReadConcern::local())
        .selection_criteria(primary())
        .await;
    begun.map_err(|error| Failure::driver(&error))?;
    let change = written.update_one(doc! { "_id": 1 }, doc! { "$inc": { "n": 1 } });
    if let Err(error) = change.session(&mut session).await {
        let why = Failure::driver(&error);
        return Ok(Err(format!("this server has no transactions: {}", why.message())));
    }
    if is_lost {
        second.break_lock("guard").await?;
    }
    let guarded = held.guard_transaction(&mut session).await;
    let committed = session.commit_transaction().await;
    drop(held.release().await);
    Ok(Ok((guarded, committed.map_err(|error| error.kind.to_string()))))
}
