//! Operations only for documents of the user's own: claiming any free one, reading them, changing them.

use std::{sync::Arc, time::Duration};

use futures::TryStreamExt;
use mongodb::{
    bson::{Bson, Document, doc},
    options::{ReadConcern, ReturnDocument, UpdateModifications},
};
use tokio::time::Instant;

use super::{
    LONG_READ_WITHIN, MongoStore, NOW, READ_WITHIN, fields, ids_with_prefix, lossy, not_utf8, now, server_now,
};
use crate::{
    error::ServerError,
    machine::exchanged,
    protocol::{
        Exchange, Location, Operation, ServerTime, State,
        document::{ID_MOST, size_of_id, whole},
        pipeline, wake,
    },
    store::{Among, Arrival, Claimed, InPlace, Listed, Outlook, Selection, View, Wanted, name},
};

impl MongoStore {
    /// Locks any wanted document that is free, and returns it; `None` when there is none.
    pub(in crate::store) async fn claim(
        &self,
        wanted: &Wanted,
        among: Among<'_>,
        operation: &Operation,
        within: Duration,
    ) -> Result<Option<Claimed>, ServerError> {
        if operation.requests.is_none() {
            return Ok(None);
        }
        let at = self.family.base();
        let sent = Instant::now();
        let claiming = self
            .collection
            .find_one_and_update(
                wanted.free(at, among),
                pipeline::claim(at, operation, wanted.attempts_most.is_some(), &now()),
            )
            .return_document(ReturnDocument::After)
            .max_time(within);
        let claiming = match &wanted.sort {
            Some(sort) => claiming.sort(sort.clone()),
            None => claiming,
        };
        let Some(mut document) = claiming.await? else {
            return Ok(None);
        };
        let name = document
            .get("_id")
            .and_then(|id| self.family.document(id))
            .unwrap_or_default();
        let lock = at.take_lock(&mut document).unwrap_or_default();
        let state = State::from_document(&lock);
        let counted = lock.get("attempts").filter(|_| wanted.attempts_most.is_some());
        let attempt = counted.and_then(whole);
        let exchange = Exchange {
            sent,
            received: Instant::now(),
            // The time of the write itself.
            now: state.as_ref().ok().map(|state| state.at),
        };
        Ok(Some(Claimed {
            name,
            document,
            state,
            attempt,
            exchange,
        }))
    }

    /// Reads the locks in the documents that have something in the place of one.
    pub(super) async fn list_in_place(
        &self,
        selection: &Selection,
        view: View,
        arrival: &Arrival,
    ) -> Result<Listed, ServerError> {
        let at = self.family.base();
        let mut query = doc! { at.path(): { "$exists": true } };
        if selection.held == Some(true) {
            // A value that is not a lock is reported under any condition.
            let no_lock = doc! { at.key("token"): { "$exists": false } };
            let held = doc! { at.key("holders.0"): { "$exists": true } };
            query.insert("$or", vec![held, no_lock]);
        }
        if !selection.prefix.is_empty() {
            query.insert("_id", ids_with_prefix(&selection.prefix));
        }
        let find = self.collection.find(query).projection(fields(at));
        let mut session = self.session_of(view).await?;
        let find = find.read_concern(view.concern()).max_time(LONG_READ_WITHIN);
        let mut cursor = find.session(&mut session).await?;
        let mut listed = Listed::default();
        // Nothing is read in vain if there are more than may be listed.
        while !listed.more && cursor.advance(&mut session).await? {
            arrival.note();
            let raw = cursor.current();
            let Some(document) = lossy::read(raw) else { continue };
            listed.now = server_now(&document).or(listed.now);
            match lossy::read_exactly(raw, "_id").map(|id| name::of_id(&id)) {
                Some(name) if selection.selects(&name) => listed.add(name, at.found(&document), selection),
                Some(_) => {}
                None => listed.add_unreadable(not_utf8(&document)),
            }
        }
        listed.as_of = session.operation_time();
        Ok(listed)
    }

    pub(in crate::store) async fn candidate(
        &self,
        wanted: &Wanted,
        among: Among<'_>,
    ) -> Result<Option<Bson>, ServerError> {
        let find = self.collection.find_one(wanted.free(self.family.base(), among));
        let find = match &wanted.sort {
            Some(sort) => find.sort(sort.clone()),
            None => find,
        };
        let find = find.projection(doc! { "_id": 1 }).read_concern(ReadConcern::local());
        let found = find.max_time(LONG_READ_WITHIN).await?;
        Ok(found.and_then(|mut found| found.remove("_id")))
    }

    pub(in crate::store) async fn outlook(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, ServerError> {
        match self.outlook_together(wanted, passed).await {
            // Some conditions (`$where`, `$near`) work only in finds. Any other refusal comes back from the find.
            Err(error) if error.is_final() => self.outlook_by_finds(wanted, passed).await,
            outlook => outlook,
        }
    }

    async fn outlook_together(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, ServerError> {
        let at = self.family.base();
        let sent = Instant::now();
        let passed = doc! { "$in": ["$_id", { "$literal": passed }] };
        let unfit = doc! { "$or": [{ "$not": [pipeline::fit(at)] }, passed] };
        let stages = [
            doc! { "$match": wanted.claimable(at) },
            doc! { "$group": {
                "_id": Bson::Null,
                "free_at": { "$min": { "$cond": [&unfit, "$$REMOVE", pipeline::last(at)] } },
                "others": { "$max": { "$cond": [&unfit, false, true] } },
                "unfit": { "$min": { "$cond": [&unfit, { "id": "$_id" }, "$$REMOVE"] } },
                NOW: { "$max": "$$NOW" },
            } },
        ];
        let reading = self
            .collection
            .aggregate(stages)
            .read_concern(ReadConcern::local())
            .max_time(LONG_READ_WITHIN);
        let found = reading.await?.try_next().await?;
        let exchange = exchanged(sent, found.as_ref().and_then(server_now));
        let found = found.unwrap_or_default();
        Ok(Outlook {
            free_at: ServerTime::in_field(&found, "free_at"),
            others: found.get_bool("others").unwrap_or_default(),
            unfit: found
                .get_document("unfit")
                .ok()
                .and_then(|found| found.get("id").cloned()),
            exchange,
        })
    }

    /// Looks by several reads, for conditions that the server supports only in finds.
    async fn outlook_by_finds(&self, wanted: &Wanted, passed: &[Bson]) -> Result<Outlook, ServerError> {
        let at = self.family.base();
        let fit = doc! { "$expr": pipeline::fit(at) };
        let fit = doc! { "$and": [fit, { "_id": { "$nin": passed } }] };
        // The first end of any entry is never later than the first time at which a document is free; a client that
        // looks then in vain looks again.
        let (mut free_at, mut exchange) = (None, None);
        for list in ["holders", "queue"] {
            let ends = at.key(&format!("{list}.until"));
            let end = doc! { "$max": at.value(&format!("{list}.until")) };
            let ahead = doc! { "$and": [&fit, { "$expr": { "$gt": [&end, now()] } }] };
            let sent = Instant::now();
            let find = self
                .collection
                .find_one(wanted.claimable_and(at, ahead))
                .sort(doc! { ends: 1 });
            let find = find.projection(doc! { "_id": 1, "end": end, NOW: "$$NOW" });
            let found = find
                .read_concern(ReadConcern::local())
                .max_time(LONG_READ_WITHIN)
                .await?;
            let Some(found) = found else { continue };
            free_at = [free_at, ServerTime::in_field(&found, "end")]
                .into_iter()
                .flatten()
                .min();
            exchange = Some(exchanged(sent, server_now(&found)));
        }
        // A document that became free since the last try has no end ahead, so the reads above miss it.
        let free = doc! { "$and": [{ "_id": { "$nin": passed } }, pipeline::free(at, &now())] };
        let sent = Instant::now();
        let find = self
            .collection
            .find_one(wanted.claimable_and(at, free))
            .projection(doc! { NOW: "$$NOW" });
        if let Some(found) = find
            .read_concern(ReadConcern::local())
            .max_time(LONG_READ_WITHIN)
            .await?
        {
            let now = server_now(&found);
            free_at = now;
            exchange = Some(exchanged(sent, now));
        }
        let sent = Instant::now();
        let any = async |condition: Document| -> Result<Option<Bson>, ServerError> {
            let find = self
                .collection
                .find_one(wanted.claimable_and(at, condition))
                .projection(doc! { "_id": 1 });
            let found = find
                .read_concern(ReadConcern::local())
                .max_time(LONG_READ_WITHIN)
                .await?;
            Ok(found.and_then(|mut found| found.remove("_id")))
        };
        let unfit = any(doc! { "$nor": [&fit] }).await?;
        let others = free_at.is_some() || any(fit).await?.is_some();
        let exchange = exchange.unwrap_or_else(|| exchanged(sent, None));
        Ok(Outlook {
            free_at,
            others,
            unfit,
            exchange,
        })
    }

    pub(in crate::store) async fn why_unfit(&self, id: &Bson) -> Result<Option<ServerError>, ServerError> {
        let size = size_of_id(id);
        if size > ID_MOST {
            return Ok(Some(ServerError::too_long(size)));
        }
        let find = self.collection.find_one(doc! { "_id": id });
        let at = self.family.base();
        let find = find.projection(doc! { at.path(): 1 });
        let found = find.read_concern(ReadConcern::local()).max_time(READ_WITHIN).await?;
        let found = found.unwrap_or_default();
        Ok(at.flaw(&found).map(ServerError::from))
    }

    /// Returns the names of the wanted documents in which one of these entries is a holder, each with that entry.
    pub(in crate::store) async fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, ServerError> {
        let at = self.family.base();
        let ids = at.key("holders.id");
        // A claim of theirs may have been the last.
        let holds = doc! { "$and": [&wanted.filter, { &ids: { "$in": entries } }] };
        let find = self.collection.find(holds).projection(doc! { "_id": 1, ids: 1 });
        let find = find.read_concern(ReadConcern::local()).max_time(LONG_READ_WITHIN);
        let (mut cursor, mut held) = (find.await?, Vec::new());
        while cursor.advance().await? {
            // One that can't be read keeps nobody from finding the others.
            let raw = cursor.current();
            let entry = lossy::read(raw).and_then(|mut document| {
                let lock = at.take_lock(&mut document)?;
                let holders = lock.get_array("holders").ok()?.iter().filter_map(Bson::as_document);
                let mut ids = holders.filter_map(|holder| holder.get_str("id").ok());
                ids.find(|id| entries.iter().any(|entry| entry == id))
                    .map(str::to_owned)
            });
            let name = lossy::read_exactly(raw, "_id").and_then(|id| self.family.document(&id));
            held.extend(name.zip(entry));
        }
        Ok(held)
    }

    pub(in crate::store) fn place(&self) -> Option<&Arc<InPlace>> {
        self.place.as_ref()
    }

    /// Returns the user's part of a document, as the primary has it now.
    pub(in crate::store) async fn fetch(&self, name: &str) -> Result<Option<Document>, ServerError> {
        let find = self.collection.find_one(doc! { "_id": self.family.id_of(name) });
        Ok(find
            .read_concern(ReadConcern::local())
            .max_time(READ_WITHIN)
            .await?
            .filter(|document| self.family.is_in(name, document))
            .map(|document| self.users(document)))
    }

    /// Changes the user's part of a document and returns it, if this entry holds it under this token; returns `None`
    /// otherwise.
    pub(in crate::store) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
        operation: &str,
        within: Duration,
    ) -> Result<Option<Document>, ServerError> {
        let update = signed(update, self.family.base(), operation);
        let changing = self.collection.find_one_and_update(self.held(name, holder), update);
        let changed = changing.return_document(ReturnDocument::After).max_time(within).await?;
        Ok(changed.map(|document| self.users(document)))
    }

    /// Deletes a document if this entry holds it under this token, and reports whether it did.
    pub(in crate::store) async fn delete(
        &self,
        name: &str,
        holder: (&str, i64),
        within: Duration,
    ) -> Result<bool, ServerError> {
        // MongoDB 4.4 has no access to its clock in a plain delete.
        let deleting = self.collection.find_one_and_delete(self.held(name, holder));
        Ok(deleting.projection(doc! { "_id": 1 }).max_time(within).await?.is_some())
    }

    /// Forgets how often a document was claimed. A write without a new `wake`, as other programs make them: a claim
    /// that waits looks at the document again.
    pub(in crate::store) async fn clear_attempts(&self, name: &str, within: Duration) -> Result<bool, ServerError> {
        let at = self.family.base();
        let attempts = at.key("attempts");
        // The driver has no time limit of the server's for an update.
        let clearing = self.collection.find_one_and_update(
            doc! {
                "_id": self.family.id_of(name),
                &attempts: { "$exists": true },
                // A later protocol may have another use for the field.
                "$expr": pipeline::is_known(at),
            },
            doc! { "$unset": { attempts: "" } },
        );
        Ok(clearing.projection(doc! { "_id": 1 }).max_time(within).await?.is_some())
    }

    /// Selects the document while this holder's lease runs.
    pub(super) fn held(&self, name: &str, (id, token): (&str, i64)) -> Document {
        let member = self.family.member(name);
        let at = &*member.location;
        doc! {
            "_id": member.id,
            at.key("holders"): { "$elemMatch": { "id": id, "token": token } },
            "$expr": { "$and": [
                pipeline::is_known(at),
                { "$gt": [{ "$max": at.value("holders.until") }, now()] },
            ] },
        }
    }

    fn users(&self, mut document: Document) -> Document {
        self.family.take_locks(&mut document);
        document
    }
}

/// Returns the update with a new `wake`, by which a stream shows that the update is a holder's and frees nothing.
pub(super) fn signed(update: UpdateModifications, at: &Location, operation: &str) -> UpdateModifications {
    let (field, wake) = (at.key("wake"), wake::of_change(operation));
    match update {
        UpdateModifications::Document(mut operators) => {
            let set = operators.entry("$set".to_owned());
            if let Bson::Document(set) = set.or_insert_with(|| Bson::Document(Document::new())) {
                set.insert(field, wake);
            }
            UpdateModifications::Document(operators)
        }
        UpdateModifications::Pipeline(mut stages) => {
            stages.push(doc! { "$set": { field: { "$literal": wake } } });
            UpdateModifications::Pipeline(stages)
        }
        other => other,
    }
}

impl Wanted {
    /// Selects the wanted documents that are free.
    fn free(&self, at: &Location, among: Among<'_>) -> Document {
        let free = pipeline::free(at, &now());
        match among {
            Among::AllBut([]) => self.claimable_and(at, free),
            Among::AllBut(passed) => self.claimable_and(at, doc! { "$and": [{ "_id": { "$nin": passed } }, free] }),
            Among::Only(id) => self.claimable_and(at, doc! { "$and": [{ "_id": { "$eq": id } }, free] }),
        }
    }

    /// Selects the wanted documents that were not claimed too often.
    fn claimable(&self, at: &Location) -> Document {
        match self.attempts_most {
            None => self.filter.clone(),
            Some(most) => doc! { "$and": [&self.filter, pipeline::is_attempted_below(at, most)] },
        }
    }

    fn claimable_and(&self, at: &Location, condition: Document) -> Document {
        doc! { "$and": [self.claimable(at), condition] }
    }
}
