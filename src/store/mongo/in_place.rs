//! Operations only for documents of the user's own and the elements in them: reading what is locked, and changing it.

use std::time::Duration;

use mongodb::{
    bson::{Bson, Document, doc},
    error::Error,
    options::{Collation, ReturnDocument, UpdateModifications},
};

use super::{MongoStore, now};
use crate::{
    error::ServerError,
    protocol::{Location, pipeline, wake},
    store::lock_layout::Element,
};

/// Field of an answer that carries the elements.
const FOUND: &str = "_watchlock_found";

/// Identifier of the element in an update.
const IDENTIFIER: &str = "watchlocked";

impl MongoStore {
    /// Returns what is locked under the name, as the primary has it now: the user's part of a document, or the elements
    /// that have the key in it.
    pub(in crate::store) async fn fetch(&self, name: &str) -> Result<Vec<Document>, ServerError> {
        let member = self.layout.member(name);
        let mut find = self.collection.find(doc! { "_id": member.id });
        if let Some(element) = &member.element {
            find = find.projection(shown(element));
        }
        let found = self.newest(find).await?;
        let found = found.filter(|found| self.layout.is_in(name, found));
        Ok(found.map_or_else(Vec::new, |found| self.locked_in(found, member.element.as_ref())))
    }

    /// Changes the user's part of a document, or the one element that has the key in the name, and returns it, if this
    /// entry holds its lock under this token; returns `None` otherwise, and if no element or more than one has the key.
    pub(in crate::store) async fn change(
        &self,
        name: &str,
        holder: (&str, i64),
        update: UpdateModifications,
        (operation, releases): (&str, bool),
        within: Duration,
    ) -> Result<Option<Document>, ServerError> {
        let member = self.layout.member(name);
        let (at, mut held) = (&*member.location, self.held(name, holder));
        if releases {
            held.extend(doc! { at.key("queue"): [], at.key("holders.1"): { "$exists": false } });
            let update: Bson = match signed(update, at, operation, true) {
                UpdateModifications::Document(operators) => operators.into(),
                UpdateModifications::Pipeline(stages) => stages.into(),
                _ => return Err(Error::custom("an update has to be operators or a pipeline").into()),
            };
            // Nobody reads the document.
            let changed = self.update_one(doc! { "q": held, "u": update }, within).await?;
            return Ok(changed.then(Document::new));
        }
        // The driver sends it again at a fail-over, and the server recognises the repetition, as with the user's own writes.
        let changing = match &member.element {
            None => {
                let update = signed(update, at, operation, false);
                self.collection.find_one_and_update(held, update)
            }
            Some(element) => {
                let count = doc! { "$size": element.key.elements(element.array) };
                let query = doc! { "$and": [held, { "$expr": { "$eq": [count, 1] } }] };
                let update = signed(in_element(update, element.array), at, operation, false);
                let changing = self.collection.find_one_and_update(query, update);
                changing
                    .array_filters([element.key.array_filter(IDENTIFIER)])
                    .projection(shown(element))
                    // The collection's own collation may take other elements for this one.
                    .collation(Collation::builder().locale("simple").build())
            }
        };
        let changed = changing.return_document(ReturnDocument::After).max_time(within).await?;
        Ok(changed.and_then(|changed| self.locked_in(changed, member.element.as_ref()).pop()))
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
        let counted = doc! {
            "_id": self.layout.id_of(name),
            &attempts: { "$exists": true },
            // A later protocol may have another use for the field.
            "$expr": pipeline::is_known(at),
        };
        let statement = doc! { "q": counted, "u": { "$unset": { attempts: "" } } };
        self.update_one(statement, within).await
    }

    /// Selects the document while this holder's lease runs.
    fn held(&self, name: &str, holder: (&str, i64)) -> Document {
        let member = self.layout.member(name);
        pipeline::holding(&member.location, &member.id, holder, &now())
    }

    /// Returns the user's part of a document, or the elements in the answer for one of them. By the collation of the
    /// collection, the server may have found others too.
    fn locked_in(&self, mut found: Document, element: Option<&Element<'_>>) -> Vec<Document> {
        let Some(element) = element else {
            self.layout.take_locks(&mut found);
            return vec![found];
        };
        let Ok(listed) = found.get_array(FOUND) else {
            // The answer to a write that the driver has repeated: the server keeps the document, and not what was to be
            // shown of it.
            return element.found_in(&found);
        };
        let listed = listed.iter().filter(|found| element.key.is_of(found));
        listed.filter_map(Bson::as_document).cloned().collect()
    }
}

fn shown(element: &Element<'_>) -> Document {
    doc! { "_id": 1, FOUND: element.key.elements(element.array) }
}

/// Returns an update by operators, whose paths lead from an element of the array, with paths that lead from the
/// document.
fn in_element(update: UpdateModifications, array: &str) -> UpdateModifications {
    let UpdateModifications::Document(operators) = update else {
        return update;
    };
    let in_document = |fields: Bson| match fields {
        Bson::Document(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(path, value)| (format!("{array}.$[{IDENTIFIER}].{path}"), value));
            Bson::Document(fields.collect())
        }
        other => other,
    };
    let operators = operators.into_iter();
    UpdateModifications::Document(
        operators
            .map(|(operator, fields)| (operator, in_document(fields)))
            .collect(),
    )
}

/// Returns the update with a new `wake`, by which a stream shows that the update is a holder's and frees nothing; or that
/// it frees the lock, if it `releases` it: the only holder, before whom nobody waits.
fn signed(update: UpdateModifications, at: &Location, operation: &str, releases: bool) -> UpdateModifications {
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
