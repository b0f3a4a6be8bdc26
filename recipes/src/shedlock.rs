//! Takes ShedLock's locks with the driver, beside watchlock's, while a fleet is switched.

use std::time::{Duration, SystemTime};

use mongodb::{
    Collection,
    bson::{DateTime, Document, doc},
    error::{Error, ErrorKind},
};

/// Takes ShedLock's lock, as its Mongo provider does; reports whether it was free.
pub async fn lock(shed: &Collection<Document>, name: &str, host: &str, at_most: Duration) -> Result<bool, Error> {
    let now = SystemTime::now();
    let (now, until) = (
        DateTime::from_system_time(now),
        DateTime::from_system_time(now + at_most),
    );
    let free = doc! { "_id": name, "lockUntil": { "$lte": now } };
    let taken = doc! { "$set": { "lockUntil": until, "lockedAt": now, "lockedBy": host } };
    match shed.find_one_and_update(free, taken).upsert(true).await {
        Ok(_) => Ok(true),
        // The upsert found no free document, and could not insert a second one.
        Err(error) if matches!(&*error.kind, ErrorKind::Command(command) if command.code == 11000) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives it back, if it is still ours.
pub async fn unlock(shed: &Collection<Document>, name: &str, host: &str) -> Result<(), Error> {
    let free = doc! { "$set": { "lockUntil": DateTime::now() } };
    shed.update_one(doc! { "_id": name, "lockedBy": host }, free).await?;
    Ok(())
}
