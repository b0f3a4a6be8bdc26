//! Claims of documents of the user's own: taking any free one, or several, and the look at those that are not free.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use mongodb::{
    bson::{Bson, Document, RawDocument, doc},
    error::Error,
};
use tokio::time::Instant;

use super::{LONG_READ_WITHIN, MongoStore, NOW, lossy, now, server_now};
use crate::{
    error::{ServerError, own::Own},
    machine::exchanged,
    protocol::{
        Location, Operation, ServerTime, State,
        document::{ID_MOST, size_of_id, whole},
        pipeline,
    },
    store::{Claimed, LogTime, Outlook, Taken, View, Wanted, name},
};

impl MongoStore {
    /// Locks wanted documents that are free, one by each of these operations. Where the server refuses that, it may be
    /// because of one document, which a refusal does not name: then the first operation locks the next one by its `_id`.
    ///
    /// A router of an older version refuses claims without the shard key, so there this is the way of every claim.
    pub(in crate::store) async fn claim(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operations: &[Operation],
        within: Duration,
    ) -> Result<Taken, ServerError> {
        let taken = match operations {
            [operation] => self.claim_one(wanted, passed, operation, within).await,
            _ => self.claim_found(wanted, passed, operations, within).await,
        };
        match taken {
            Err(error) if error.may_concern_document() => {
                self.claim_found(wanted, passed, &operations[..1], within).await
            }
            taken => taken,
        }
    }

    async fn claim_one(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operation: &Operation,
        within: Duration,
    ) -> Result<Taken, ServerError> {
        let at = self.layout.base();
        let (free, counts) = (wanted.free(at, passed), wanted.attempts_most.is_some());
        let update = pipeline::claim(at, operation, counts, &now());
        let mut change = doc! { "update": update, "new": true };
        change.extend(wanted.sort.clone().map(|sort| ("sort".to_owned(), sort.into())));
        let sent = Instant::now();
        let claimed = self.find_and_modify(free, change, within).await?;
        let claimed = claimed.map(|document| self.claimed(document, operation, wanted, sent));
        Ok(Taken {
            claimed: claimed.into_iter().collect(),
            ..Taken::default()
        })
    }

    /// Finds documents that are free, and locks them by one statement. One reading follows, and it alone decides: a
    /// document is claimed if it shows our own entry, whatever the statement replied.
    ///
    /// The statement ends at the first document that the server refuses to write. Those before it are claimed; where there
    /// are none, a claim of one document shows which one is refused.
    pub(crate) async fn claim_found(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        operations: &[Operation],
        within: Duration,
    ) -> Result<Taken, ServerError> {
        let begun = Instant::now();
        while begun.elapsed() < within {
            let left = within.saturating_sub(begun.elapsed());
            let found = match self.candidates(wanted, passed, operations.len(), left).await {
                Ok(found) => found,
                Err(error) => return Ok(Taken::unsent(error)),
            };
            if found.is_empty() {
                return Ok(Taken::default());
            }
            // Nobody waits for a write that begins later.
            if begun.elapsed() >= within {
                break;
            }
            let candidates: Vec<Bson> = found.into_iter().flatten().collect();
            let left = within.saturating_sub(begun.elapsed());
            if candidates.is_empty() {
                // It needs no `_id`, and its error is that of a claim of one.
                return self.claim_one(wanted, passed, &operations[0], left).await;
            }
            let taken = self.claim_these(wanted, &candidates, operations, left).await?;
            // Otherwise others were faster, of those who want the same.
            if !taken.claimed.is_empty() || !taken.refused.is_empty() || taken.failed.is_some() {
                return Ok(taken);
            }
        }
        // As if the server had taken too long: the claim is tried again.
        Ok(Taken::unsent(ServerError::overdue()))
    }

    async fn claim_these(
        &self,
        wanted: &Wanted,
        candidates: &[Bson],
        operations: &[Operation],
        within: Duration,
    ) -> Result<Taken, ServerError> {
        let begun = Instant::now();
        // A document that a transaction has written holds up a statement for all of its time. The reading, by which the
        // documents before it are known to be claimed, has a quarter of it at least.
        let to_read = within / 4;
        let left = || (within - to_read).saturating_sub(begun.elapsed());
        let at = self.layout.base();
        let asked: Vec<(&Bson, &Operation)> = candidates.iter().zip(operations).collect();
        let (sent, mut taken, mut logged_by) = (Instant::now(), Taken::default(), None);
        let mut written = 0;
        let together = vec![self.claiming(wanted, &asked)];
        match self.update(together, left()).await.map_err(ServerError::from) {
            Ok(mut updated) => {
                (logged_by, written) = (updated.logged_by, updated.modified);
                taken.failed = updated.refused.pop().map(|(_, error)| error.into());
            }
            // It did what it did until then, and nothing later.
            Err(error) if error.ran_out_of_time() => taken.failed = Some(error),
            Err(error) => return Err(error),
        }
        let refused = taken.failed.take_if(|error| error.may_concern_document());
        if let ([id], Some(error)) = (candidates, &refused) {
            taken.refused.push((id.clone(), error.clone()));
        }
        let to_read = to_read.max(within.saturating_sub(begun.elapsed()));
        let reading = self.read_claimed(candidates, logged_by, to_read, &mut taken).await;
        let mut found = reading.unwrap_or_else(|error| {
            // Whatever it is, the write may have been done.
            let error = ServerError::from(error);
            taken.failed = Some(if error.is_final() { ServerError::unsaid() } else { error });
            HashMap::new()
        });
        for (id, operation) in asked {
            let name = self.layout.document(id).unwrap_or_default();
            // One that has no lock was never claimed.
            let locked = found.remove(&name).filter(|found| at.lock(found).is_some());
            let claimed = locked.map(|document| self.claimed(document, operation, wanted, sent));
            taken.claimed.extend(claimed.filter(Claimed::may_be_ours));
        }
        if written > 0 && taken.claimed.is_empty() {
            // Somebody took them away again at once. These entries have been used.
            taken.failed.get_or_insert_with(ServerError::overdue);
        }
        let has_none = taken.claimed.is_empty() && taken.refused.is_empty() && taken.failed.is_none();
        refused.filter(|_| has_none).map_or(Ok(taken), Err)
    }

    /// Reads these documents by their names, after a write that was in the server's log by then. One that can't be read
    /// may have been claimed, and would be in the way of the next claim: it is noted as failed, and as refused.
    async fn read_claimed(
        &self,
        candidates: &[Bson],
        logged_by: Option<LogTime>,
        within: Duration,
        taken: &mut Taken,
    ) -> Result<HashMap<String, Document>, Error> {
        let view = View::Committed(logged_by);
        let (read, _) = self.find(candidates.to_vec(), Document::new(), view, within).await?;
        let mut found = HashMap::new();
        for raw in &read {
            match Document::try_from(&**raw) {
                Ok(document) => drop(found.insert(self.name_in(&document), document)),
                Err(error) => {
                    let error = ServerError::from(Error::custom(error));
                    let id = lossy::read_exactly(raw, "_id");
                    taken.refused.extend(id.map(|id| (id, error.clone())));
                    taken.failed = Some(error);
                }
            }
        }
        Ok(found)
    }

    /// Returns the statement that claims these documents, as far as they are still free.
    fn claiming(&self, wanted: &Wanted, asked: &[(&Bson, &Operation)]) -> Document {
        let at = self.layout.base();
        let ids: Vec<&Bson> = asked.iter().map(|(id, _)| *id).collect();
        let free = doc! { "$and": [{ "_id": { "$in": ids } }, pipeline::free(at, &now())] };
        let update = pipeline::claim_together(at, asked, wanted.attempts_most.is_some(), &now());
        doc! { "q": wanted.claimable_and(at, free), "u": update, "multi": true }
    }

    /// Reads a document after a claim that was sent then.
    fn claimed(&self, mut document: Document, operation: &Operation, wanted: &Wanted, sent: Instant) -> Claimed {
        let name = self.name_in(&document);
        let lock = self.layout.base().take_lock(&mut document).unwrap_or_default();
        let state = State::from_document(&lock);
        let counted = lock.get("attempts").filter(|_| wanted.attempts_most.is_some());
        Claimed {
            entry: operation.requested().to_owned(),
            name,
            document,
            attempt: counted.and_then(whole),
            // The time of the write itself.
            exchange: exchanged(sent, state.as_ref().ok().map(|state| state.at)),
            state,
        }
    }

    fn name_in(&self, document: &Document) -> String {
        let id = document.get("_id");
        id.and_then(|id| self.layout.document(id)).unwrap_or_default()
    }

    /// Returns the `_id`s of the first documents that a claim may take, so many at most; `None` for one that can't be
    /// read.
    pub(in crate::store) async fn candidates(
        &self,
        wanted: &Wanted,
        passed: &[Bson],
        most: usize,
        within: Duration,
    ) -> Result<Vec<Option<Bson>>, ServerError> {
        let find = self.collection.find(wanted.free(self.layout.base(), passed));
        let find = match &wanted.sort {
            Some(sort) => find.sort(sort.clone()),
            None => find,
        };
        let find = find
            .projection(doc! { "_id": 1 })
            .limit(i64::try_from(most).unwrap_or(i64::MAX));
        let mut found = Vec::new();
        let mut add = |raw: &RawDocument| {
            found.push(lossy::read_exactly(raw, "_id"));
            true
        };
        self.each(find, (View::Newest, within), &mut add).await?;
        Ok(found)
    }

    /// Looks at each document by itself, as some conditions (`$where`, `$near`) work only in finds; by the condition by
    /// which claims choose, and without reading the locks, which can be many and large.
    pub(in crate::store) async fn outlook(
        &self,
        wanted: &Wanted,
        passed: &HashSet<String>,
    ) -> Result<Outlook, ServerError> {
        let at = self.layout.base();
        let sent = Instant::now();
        let find = self.collection.find(wanted.claimable(at));
        let find =
            find.projection(doc! { "_id": 1, "free_at": pipeline::last(at), "fit": pipeline::fit(at), NOW: "$$NOW" });
        let mut outlook = Outlook::new(exchanged(sent, None));
        let mut add = |raw: &RawDocument| {
            let Some(mut found) = lossy::read(raw) else { return true };
            outlook.exchange = exchanged(sent, server_now(&found));
            let id = found.remove("_id").unwrap_or(Bson::Null);
            if found.get_bool("fit").unwrap_or_default() && !passed.contains(&name::of_id(&id)) {
                outlook.others = true;
                let free_at = ServerTime::in_field(&found, "free_at");
                outlook.free_at = outlook.free_at.into_iter().chain(free_at).min();
            } else {
                outlook.unfit.get_or_insert((id, None));
            }
            true
        };
        self.each(find, (View::Newest, LONG_READ_WITHIN), &mut add).await?;
        if let Some((id, why)) = &mut outlook.unfit
            && !passed.contains(&name::of_id(id))
        {
            *why = self.why_unfit(id).await;
        }
        Ok(outlook)
    }

    /// Returns why this document is unfit; `None` if it is fit by now, or that is not known.
    async fn why_unfit(&self, id: &Bson) -> Option<ServerError> {
        let size = size_of_id(id);
        if size > ID_MOST {
            return Some(Own::TooLong(size).into());
        }
        let at = self.layout.base();
        let find = self.collection.find(doc! { "_id": id });
        // With what is on the way to the place of the lock.
        let find = find.projection(doc! { at.segments().next().unwrap_or_default(): 1 });
        match self.newest(find).await {
            Ok(found) => at.state(&found.unwrap_or_default()).err().map(ServerError::from),
            Err(error) => Some(ServerError::from(error)).filter(ServerError::is_final),
        }
    }

    /// Returns the names of the wanted documents in which one of these entries is a holder, each with that entry.
    pub(in crate::store) async fn held_by(
        &self,
        wanted: &Wanted,
        entries: &[String],
    ) -> Result<Vec<(String, String)>, ServerError> {
        let at = self.layout.base();
        let ids = at.key("holders.id");
        // A claim of theirs may have been the last.
        let holds = doc! { "$and": [&wanted.filter, { &ids: { "$in": entries } }] };
        let find = self.collection.find(holds).projection(doc! { "_id": 1, ids: 1 });
        let mut held = Vec::new();
        let mut add = |raw: &RawDocument| {
            // One that can't be read keeps nobody from finding the others.
            let entry = lossy::read(raw).and_then(|mut document| {
                let lock = at.take_lock(&mut document)?;
                let holders = lock.get_array("holders").ok()?.iter().filter_map(Bson::as_document);
                let mut ids = holders.filter_map(|holder| holder.get_str("id").ok());
                ids.find(|id| entries.iter().any(|entry| entry == id))
                    .map(str::to_owned)
            });
            let name = lossy::read_exactly(raw, "_id").and_then(|id| self.layout.document(&id));
            held.extend(name.zip(entry));
            true
        };
        self.each(find, (View::Newest, LONG_READ_WITHIN), &mut add).await?;
        Ok(held)
    }
}

impl Wanted {
    /// Selects the wanted documents that are free, but for those that are `passed` over.
    fn free(&self, at: &Location, passed: &[Bson]) -> Document {
        let free = pipeline::free(at, &now());
        match passed {
            [] => self.claimable_and(at, free),
            passed => self.claimable_and(at, doc! { "$and": [{ "_id": { "$nin": passed } }, free] }),
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
