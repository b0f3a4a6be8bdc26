//! Other programs: they know nothing of locks, and write the locks' documents.

use std::time::Duration;

use mongodb::{
    Client, ClientSession, Database,
    bson::{Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc},
    error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR},
    options::{ReadConcern, WriteConcern},
};
use tokio::time::sleep;

use crate::{
    Result,
    locks::{JOBS, LOCKS},
};

/// The beginning of an unreadable document's `_id`.
pub(crate) const UNREADABLE: &str = "unreadable-";

/// Maximum number of times that a transaction is begun anew after a conflict with other writes, which take less than a
/// [`PAUSE`].
const TRIES: usize = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Maximum milliseconds for which a change of a collection's rules waits for its turn at the server. All commands
/// after it wait as well: an outage of everything, where one document should be struck.
const TURN: i64 = 100;

/// The code for a missing collection, which has no rules.
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Returns the collection with the document of a lock.
pub(crate) fn home(lock: &str) -> &'static str {
    if lock.starts_with("document") { JOBS } else { LOCKS }
}

/// Writes the documents of locks in a transaction that stays open as long as the session.
pub(crate) async fn block(client: Client, database: String, locks: Vec<&'static str>) -> Result<ClientSession> {
    let mut last = None;
    for _ in 0..TRIES {
        match try_block(&client, &database, &locks).await {
            Ok(Some(session)) => return Ok(session),
            Ok(None) => return Err("none of them is there".into()),
            Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => last = Some(error),
            Err(error) => return Err(error.into()),
        }
        sleep(PAUSE).await;
    }
    Err(last.map_or("it never had its turn".into(), Into::into))
}

async fn try_block(client: &Client, database: &str, locks: &[&str]) -> Result<Option<ClientSession>, Error> {
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let mut blocked = 0;
    for lock in locks {
        let collection = client.database(database).collection::<Document>(home(lock));
        // A field that is of no interest to anybody; the transaction is aborted in the end.
        let write = doc! { "$set": { "foreign": true } };
        let written = collection.update_one(doc! { "_id": lock }, write).session(&mut session);
        blocked += written.await?.matched_count;
    }
    Ok((blocked > 0).then_some(session))
}

/// Ends what [`block`] began, and undoes all of it.
pub(crate) async fn unblock(mut session: ClientSession) -> Result<()> {
    Ok(session.abort_transaction().await?)
}

/// Refuses all writes to the document of a lock.
pub(crate) async fn refuse(database: Database, lock: &'static str) -> Result<()> {
    Ok(rule(&database, home(lock), doc! { "_id": { "$ne": lock } }).await?)
}

/// Allows all writes to a collection again.
pub(crate) async fn allow(database: Database, collection: &str) -> Result<()> {
    match rule(&database, collection, doc! {}).await {
        Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(()),
        allowed => Ok(allowed?),
    }
}

async fn rule(database: &Database, collection: &str, validator: Document) -> Result<(), Error> {
    let command = doc! { "collMod": collection, "validator": validator, "maxTimeMS": TURN };
    database.run_command(command).await.map(drop)
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

/// Inserts a document whose `_id` is no text, though the server takes it for one.
pub(crate) async fn insert_unreadable(database: Database, collection: &str, number: usize) -> Result<()> {
    let mut documents = RawArrayBuf::new();
    documents.push(unreadable(number)?);
    run(
        &database,
        rawdoc! { "insert": collection, "documents": documents, "writeConcern": { "w": "majority" } },
    )
    .await
}

/// Deletes that document.
pub(crate) async fn delete_unreadable(database: Database, collection: &str, number: usize) -> Result<()> {
    let mut deletes = RawArrayBuf::new();
    deletes.push(rawdoc! { "q": unreadable(number)?, "limit": 1 });
    run(
        &database,
        rawdoc! { "delete": collection, "deletes": deletes, "writeConcern": { "w": "majority" } },
    )
    .await
}

async fn run(database: &Database, command: RawDocumentBuf) -> Result<()> {
    let reply = database.run_raw_command(command).await?;
    match reply.get_i32("n") {
        Ok(1) => Ok(()),
        _ => Err(format!("the servers did not do it: {reply}").into()),
    }
}

fn unreadable(number: usize) -> Result<RawDocumentBuf> {
    let mut text = format!("{UNREADABLE}{number}").into_bytes();
    text.extend([0xFF, 0]);
    let mut bytes = vec![0; 4];
    bytes.extend(b"\x02_id\0");
    bytes.extend(i32::try_from(text.len())?.to_le_bytes());
    bytes.extend(text);
    bytes.push(0);
    let length = i32::try_from(bytes.len())?.to_le_bytes();
    bytes[..4].copy_from_slice(&length);
    Ok(RawDocumentBuf::from_bytes(bytes)?)
}

/// Reads the document of a lock, as a program does that will save it later.
pub(crate) async fn load(database: Database, lock: &'static str) -> Result<Document> {
    let collection = database.collection::<Document>(home(lock));
    let read = collection
        .find_one(doc! { "_id": lock })
        .read_concern(ReadConcern::majority());
    Ok(read.await?.ok_or("it is not there")?)
}

/// Saves it, over the present state.
pub(crate) async fn save(database: Database, lock: &'static str, document: Document) -> Result<()> {
    let collection = database.collection::<Document>(home(lock));
    let saved = collection
        .replace_one(doc! { "_id": lock }, document)
        .upsert(true)
        .write_concern(WriteConcern::majority());
    saved.await?;
    Ok(())
}
