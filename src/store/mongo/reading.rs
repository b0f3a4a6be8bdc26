//! Plain reads of locks: some by name, and lists.

use std::{collections::HashMap, time::Duration};

use futures::StreamExt;
use mongodb::{
    ClientSession,
    action::Find,
    bson::{Bson, Document, RawDocument, RawDocumentBuf, doc},
    error::Error,
    options::ReadConcern,
};
use tokio::time::Instant;

use super::{
    LONG_READ_WITHIN, MongoStore, READ_WITHIN, command::some, fields, ids_with_prefix, lossy, not_utf8, server_now,
};
use crate::{
    error::ServerError,
    machine::exchanged,
    protocol::Exchange,
    store::{Documents, Listed, LogTime, Selection, View},
};

/// Number of locks that a count of the clients goes through.
pub(crate) const COUNTED_MOST: i32 = 10_000;

impl MongoStore {
    /// Reads documents, each independently: an unreadable one hides no others.
    ///
    /// Holders need the newest view: the majority's can lag behind a write that was already acknowledged, and a hold
    /// that had just been granted would be considered lost.
    pub(in crate::store) async fn read(
        &self,
        names: &[String],
        view: View,
    ) -> Result<(Documents, Exchange), ServerError> {
        let sent = Instant::now();
        let of_elements = self.layout.is_of_elements();
        let mut shown = match of_elements {
            true => Document::new(),
            false => fields(self.layout.base()),
        };
        let (mut ids, mut wanted) = (Vec::new(), HashMap::<String, Vec<String>>::new());
        for name in names {
            if of_elements {
                // Not the whole map: others may have hundreds of locks in the document.
                shown.extend(fields(&self.layout.at(name)));
            }
            let id = self.layout.id_of(name);
            let in_it = wanted.entry(self.layout.document(&id).unwrap_or_default()).or_default();
            if in_it.is_empty() {
                ids.push(id);
            }
            in_it.push(name.clone());
        }
        let (read, logged_by) = self.find(ids, shown, view, READ_WITHIN).await?;
        let (mut found, mut now) = (Documents::new(), None);
        for raw in &read {
            let document = lossy::read(raw).unwrap_or_default();
            now = server_now(&document).or(now);
            let id = lossy::read_exactly(raw, "_id");
            let named = id.and_then(|id| self.layout.document(&id));
            for name in named.and_then(|named| wanted.get(&named)).into_iter().flatten() {
                if let Some(state) = self.layout.at(name).found(&document) {
                    found.insert(name.clone(), state);
                }
            }
        }
        let exchange = Exchange {
            logged_by,
            ..exchanged(sent, now)
        };
        Ok((found, exchange))
    }

    /// Finds documents by their `_id`s in this view. Returns a time in the log, no later than which they were so.
    pub(super) async fn find(
        &self,
        ids: Vec<Bson>,
        shown: Document,
        view: View,
        within: Duration,
    ) -> Result<(Vec<RawDocumentBuf>, Option<LogTime>), Error> {
        // With room for one more, the first batch is the end.
        let batch = u32::try_from(ids.len() + 1).unwrap_or(u32::MAX);
        let find = self.collection.find(doc! { "_id": { "$in": ids } }).projection(shown);
        let mut found = Vec::new();
        let mut keep = |raw: &RawDocument| {
            found.push(raw.to_owned());
            true
        };
        let logged_by = self.each(find.batch_size(batch), (view, within), &mut keep).await?;
        Ok((found, logged_by))
    }

    /// Shows each document that a find has in this view, as the server has it, for as long as more are wanted. Returns a
    /// time in the log, no later than which they were so. The server gives up after `within`.
    pub(super) async fn each(
        &self,
        find: Find<'_, Document>,
        (view, within): (View, Duration),
        show: &mut (dyn FnMut(&RawDocument) -> bool + Send),
    ) -> Result<Option<LogTime>, Error> {
        let starting = self.database.client().start_session().causal_consistency(true);
        let mut session = starting.await?;
        let concern = match view {
            View::Newest => ReadConcern::local(),
            View::Committed(time) => {
                // The server waits until it has that, also where another member has become the primary.
                time.into_iter().for_each(|time| session.advance_operation_time(time));
                ReadConcern::majority()
            }
        };
        let find = find.read_concern(concern).max_time(some(within));
        each_in(find, &mut session, show).await?;
        Ok(session.operation_time())
    }

    /// Returns the first document that a find has, as the primary has it now.
    pub(super) async fn newest(&self, find: Find<'_, Document>) -> Result<Option<Document>, Error> {
        let mut session = self.database.client().start_session().await?;
        let find = find.read_concern(ReadConcern::local()).max_time(READ_WITHIN);
        first_in(find, &mut session).await
    }

    /// Goes through the newest locks by the index that purges them: what is held was written or renewed lately. So the
    /// count costs no more where a million free locks lie in the collection.
    pub(in crate::store) async fn clients_that_hold(&self, within: Duration) -> Result<u64, ServerError> {
        if !self.layout.is_root() {
            // Documents of the user's own have no such index.
            return Ok(1);
        }
        let id = doc! { "$convert": { "input": "$holders.id", "to": "string", "onError": "", "onNull": "" } };
        let stages = [
            doc! { "$sort": { "purge_at": -1 } },
            doc! { "$limit": COUNTED_MOST },
            doc! { "$unwind": "$holders" },
            // An entry's id begins with that of its client.
            doc! { "$group": { "_id": { "$arrayElemAt": [{ "$split": [id, "-"] }, 0] } } },
            doc! { "$count": "clients" },
        ];
        let mut batches = self.collection.aggregate(stages).max_time(within).batch().await?;
        let batch = batches.next().await.transpose()?;
        let count = batch.and_then(|batch| {
            let first = batch.doc_slices().ok()?.into_iter().next()?.ok()?;
            first.as_document()?.get_i32("clients").ok()
        });
        Ok(count.and_then(|clients| u64::try_from(clients).ok()).unwrap_or(0))
    }

    /// Reads all locks that can match; in documents of the user's own, whatever is in the place of one.
    pub(in crate::store) async fn list(&self, selection: &Selection, view: View) -> Result<Listed, ServerError> {
        let at = self.layout.base();
        let mut query = Document::new();
        if at.is_root() || !selection.prefix.is_empty() {
            query.insert("_id", ids_with_prefix(&selection.prefix));
        }
        if let Some(kind) = selection.kind.filter(|_| at.is_root()) {
            query.insert("kind", kind.as_str());
        }
        if selection.awaits {
            query.insert(at.key("holders.awaits.lock"), doc! { "$exists": true });
        }
        // Of the locks of elements, a query can't say that any is held.
        let held = selection.held.filter(|held| *held && !self.layout.is_of_elements());
        let held = held.map(|_| doc! { at.key("holders.0"): { "$exists": true } });
        if at.is_root() {
            query.extend(held.unwrap_or_default());
        } else {
            query.insert(at.path(), doc! { "$exists": true });
            // A value that is not a lock is reported under any condition.
            let no_lock = doc! { at.key("token"): { "$exists": false } };
            query.extend(held.map(|held| doc! { "$or": [held, no_lock] }).unwrap_or_default());
        }
        let find = self.collection.find(query).projection(fields(at));
        let mut listed = Listed::default();
        let mut add = |raw: &RawDocument| {
            let document = lossy::read(raw).unwrap_or_default();
            listed.now = server_now(&document).or(listed.now);
            let id = lossy::read_exactly(raw, "_id");
            match id.and_then(|id| self.layout.document(&id)) {
                Some(name) if at.is_root() || selection.selects(&name) => {
                    for (name, found) in self.layout.found_in(name, &document) {
                        listed.add(name, found, selection);
                    }
                }
                Some(_) => {}
                None => listed.add_unreadable(not_utf8(&document), selection),
            }
            // Nothing is read in vain if there are more than may be listed.
            !listed.more
        };
        let as_of = self.each(find, (view, LONG_READ_WITHIN), &mut add).await?;
        Ok(Listed { as_of, ..listed })
    }
}

/// Shows each document of a find in a session of the driver, as the server has it, for as long as more are wanted.
async fn each_in(
    find: Find<'_, Document>,
    session: &mut ClientSession,
    show: &mut (dyn FnMut(&RawDocument) -> bool + Send),
) -> Result<(), Error> {
    let mut cursor = find.session(&mut *session).batch().await?;
    let mut batches = cursor.stream(session);
    while let Some(batch) = batches.next().await.transpose()? {
        for document in batch.doc_slices()? {
            let document = document.map_err(Error::custom)?;
            if document.as_document().is_some_and(|document| !show(document)) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the first document of a find in a session of the driver.
pub(crate) async fn first_in(find: Find<'_, Document>, session: &mut ClientSession) -> Result<Option<Document>, Error> {
    let mut first = None;
    let mut keep = |raw: &RawDocument| {
        first = Some(Document::try_from(raw));
        false
    };
    // A negative limit asks for a single batch: no cursor stays open, as it could in a transaction of the user's.
    each_in(find.limit(-1), session, &mut keep).await?;
    first.transpose().map_err(Error::custom)
}
