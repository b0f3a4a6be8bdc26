//! What is only done with documents of the user's own: claiming any that is free, reading them, changing them.

use futures::TryStreamExt;
use mongodb::{
    bson::{Bson, Document, doc},
    options::{ReadConcern, ReturnDocument, UpdateModifications},
};
use tokio::time::Instant;

use super::{MongoStore, NOW, now, server_now};
use crate::{
    protocol::{Operation, ServerTime, State, pipeline},
    store::{Claimed, Exchange, StoreError, Wanted, name},
};

impl MongoStore {
    /// Locks any document that is wanted and free, and returns it; `None` when there is none.
    pub(in crate::store) async fn claim(
        &self,
        wanted: &Wanted,
        operation: &Operation,
    ) -> Result<Option<Claimed>, StoreError> {
        let Some(requests) = &operation.requests else {
            return Ok(None);
        };
        let at = &self.location;
        let sent = Instant::now();
        let claiming = self
            .collection
            .find_one_and_update(
                wanted.and(pipeline::free(at, &now())),
                pipeline::claim(at, operation, requests, &now()),
            )
            .return_document(ReturnDocument::After);
        let claiming = match &wanted.sort {
            Some(sort) => claiming.sort(sort.clone()),
            None => claiming,
        };
        let Some(mut document) = claiming.await? else {
            return Ok(None);
        };
        let name = document
            .get("_id")
            .and_then(|id| name::of_document(at, id))
            .unwrap_or_default();
        let lock = at.take_lock(&mut document).unwrap_or_default();
        let state = State::from_document(&lock)?;
        let exchange = Exchange {
            sent,
            received: Instant::now(),
            // The write's own time.
            now: Some(state.at),
        };
        Ok(Some(Claimed {
            name,
            document,
            state,
            exchange,
        }))
    }

    /// When the first of the wanted documents is free again, should nobody renew; `None` when there is none.
    pub(in crate::store) async fn free_at(
        &self,
        wanted: &Wanted,
    ) -> Result<Option<(ServerTime, Exchange)>, StoreError> {
        let at = &self.location;
        let sent = Instant::now();
        let last = doc! { "$max": [{ "$max": at.value("holders.until") }, { "$max": at.value("queue.until") }] };
        let stages = [
            doc! { "$match": &wanted.filter },
            doc! { "$group": { "_id": Bson::Null, "free_at": { "$min": last }, NOW: { "$max": "$$NOW" } } },
        ];
        let reading = self.collection.aggregate(stages).read_concern(ReadConcern::local());
        let Some(found) = reading.await?.try_next().await? else {
            return Ok(None);
        };
        let exchange = Exchange {
            sent,
            received: Instant::now(),
            now: server_now(&found),
        };
        let free_at = found.get_datetime("free_at").ok();
        Ok(free_at.map(|free_at| (ServerTime(free_at.timestamp_millis()), exchange)))
    }

    /// The names of the wanted documents in which this entry is a holder.
    pub(in crate::store) async fn held_by(&self, wanted: &Wanted, entry: &str) -> Result<Vec<String>, StoreError> {
        let holds = doc! { self.location.key("holders.id"): entry };
        let find = self.collection.find(wanted.and(holds)).projection(doc! { "_id": 1 });
        let found: Vec<Document> = find.read_concern(ReadConcern::local()).await?.try_collect().await?;
        let names = found.iter().filter_map(|document| document.get("_id"));
        Ok(names.filter_map(|id| name::of_document(&self.location, id)).collect())
    }

    pub(in crate::store) fn path(&self) -> &str {
        self.location.path()
    }

    /// The user's part of a document, as the primary has it now.
    pub(in crate::store) async fn fetch(&self, name: &str) -> Result<Option<Document>, StoreError> {
        let find = self
            .collection
            .find_one(doc! { "_id": name::id_of(&self.location, name) });
        Ok(find
            .read_concern(ReadConcern::local())
            .await?
            .map(|document| self.users(document)))
    }

    /// Changes the user's part of a document, and returns it, if this entry holds it under this token; `None` otherwise.
    pub(in crate::store) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
    ) -> Result<Option<Document>, StoreError> {
        let changing = self.collection.find_one_and_update(self.held(name, holder), update);
        let changed = changing.return_document(ReturnDocument::After).await?;
        Ok(changed.map(|document| self.users(document)))
    }

    /// Deletes a document if this entry holds it under this token, and says whether it did.
    pub(in crate::store) async fn delete(&self, name: &str, holder: (&str, i64)) -> Result<bool, StoreError> {
        // The server of MongoDB 4.4 does not know its clock in a plain delete.
        let deleting = self.collection.find_one_and_delete(self.held(name, holder));
        Ok(deleting.projection(doc! { "_id": 1 }).await?.is_some())
    }

    /// Selects the document while this holder's lease runs.
    fn held(&self, name: &str, (id, token): (&str, i64)) -> Document {
        let at = &self.location;
        doc! {
            "_id": name::id_of(at, name),
            at.key("holders"): { "$elemMatch": { "id": id, "token": token } },
            "$expr": { "$gt": [{ "$max": at.value("holders.until") }, now()] },
        }
    }

    fn users(&self, mut document: Document) -> Document {
        self.location.take_lock(&mut document);
        document
    }
}

impl Wanted {
    fn and(&self, condition: Document) -> Document {
        doc! { "$and": [&self.filter, condition] }
    }
}
