//! Takes the locks of DistributedLock.MongoDB with the driver, beside watchlock's, while a fleet is switched.

use std::time::Duration;

use mongodb::{
    Collection,
    bson::{Document, doc},
    error::Error,
    options::ReturnDocument,
};

/// Takes the lock of DistributedLock.MongoDB, or renews it; reports whether it is ours.
pub async fn lock(locks: &Collection<Document>, name: &str, id: &str, expiry: Duration) -> Result<bool, Error> {
    let expiry = i64::try_from(expiry.as_millis()).unwrap_or(i64::MAX);
    let free = doc! { "$lte": [{ "$ifNull": ["$expiresAt", { "$toDate": 0_i64 }] }, "$$NOW"] };
    let ours = doc! { "$eq": ["$lockId", id] };
    let token = doc! { "$add": [{ "$ifNull": ["$fencingToken", 0_i64] }, 1_i64] };
    let either = doc! { "$or": [&free, &ours] };
    let update = vec![doc! { "$set": {
        "expiresAt": { "$cond": [&either, { "$add": ["$$NOW", expiry] }, "$expiresAt"] },
        "lockId": { "$cond": [&free, id, "$lockId"] },
        "acquiredAt": { "$cond": [&free, "$$NOW", "$acquiredAt"] },
        "fencingToken": { "$cond": [&free, token, "$fencingToken"] },
    } }];
    let document = locks
        .find_one_and_update(doc! { "_id": name }, update)
        .upsert(true)
        .return_document(ReturnDocument::After)
        .await?;
    Ok(document.is_some_and(|document| document.get_str("lockId").is_ok_and(|found| found == id)))
}

/// Gives it back, if it is still ours.
pub async fn unlock(locks: &Collection<Document>, name: &str, id: &str) -> Result<(), Error> {
    locks.delete_one(doc! { "_id": name, "lockId": id }).await?;
    Ok(())
}
