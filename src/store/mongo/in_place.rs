//! Operations only for documents of the user's own: reading them, and changing them.

use std::time::Duration;

use mongodb::{
    bson::{Bson, Document, doc},
    options::{ReadConcern, ReturnDocument, UpdateModifications},
};

use super::{MongoStore, READ_WITHIN, now};
use crate::{
    error::ServerError,
    protocol::{Location, pipeline, wake},
};

impl MongoStore {
    /// Returns the user's part of a document, as the primary has it now.
    pub(in crate::store) async fn fetch(&self, name: &str) -> Result<Option<Document>, ServerError> {
        let find = self.collection.find_one(doc! { "_id": self.layout.id_of(name) });
        Ok(find
            .read_concern(ReadConcern::local())
            .max_time(READ_WITHIN)
            .await?
            .filter(|document| self.layout.is_in(name, document))
            .map(|document| self.users(document)))
    }

    /// Changes the user's part of a document and returns it, if this entry holds it under this token; returns `None`
    /// otherwise.
    pub(in crate::store) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
        (operation, releases): (&str, bool),
        within: Duration,
    ) -> Result<Option<Document>, ServerError> {
        let (at, mut held) = (self.layout.base(), self.held(name, holder));
        if releases {
            held.extend(doc! { at.key("queue"): [], at.key("holders.1"): { "$exists": false } });
        }
        let update = signed(update, at, operation, releases);
        let changing = self.collection.find_one_and_update(held, update);
        let changing = changing.return_document(ReturnDocument::After).max_time(within);
        let changed = if releases {
            // Nobody reads the document.
            changing.projection(doc! { "_id": 1 }).await?
        } else {
            changing.await?
        };
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
        let at = self.layout.base();
        let attempts = at.key("attempts");
        // The driver has no time limit of the server's for an update.
        let clearing = self.collection.find_one_and_update(
            doc! {
                "_id": self.layout.id_of(name),
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
        let member = self.layout.member(name);
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
        self.layout.take_locks(&mut document);
        document
    }
}

/// Returns the update with a new `wake`, by which a stream shows that the update is a holder's and frees nothing; or that
/// it frees the lock, if it `releases` it: the only holder, before whom nobody waits.
pub(super) fn signed(
    update: UpdateModifications,
    at: &Location,
    operation: &str,
    releases: bool,
) -> UpdateModifications {
    let (field, version, written) = (at.key("wake"), at.key("version"), at.key("at"));
    let wake = match releases {
        true => wake::of_release(operation),
        false => wake::of_change(operation),
    };
    match update {
        UpdateModifications::Document(mut operators) => {
            let mut add = |operator: &str, fields: Document| {
                let present = operators.entry(operator.to_owned());
                if let Bson::Document(present) = present.or_insert_with(|| Bson::Document(Document::new())) {
                    present.extend(fields);
                }
            };
            add("$set", doc! { field: wake });
            if releases {
                add("$set", doc! { at.key("holders"): [] });
                add("$inc", doc! { version: 1_i64 });
                add("$currentDate", doc! { written: true });
            }
            UpdateModifications::Document(operators)
        }
        UpdateModifications::Pipeline(mut stages) => {
            let mut fields = doc! { field: { "$literal": wake } };
            if releases {
                let counted = doc! { "$add": [at.value("version"), 1_i64] };
                fields.extend(doc! { at.key("holders"): [], version: counted, written: now() });
            }
            stages.push(doc! { "$set": fields });
            UpdateModifications::Pipeline(stages)
        }
        other => other,
    }
}
