//! Operations only for elements of arrays: reading them, changing one, and renewing the locks of many.

use std::{collections::BTreeMap, time::Duration};

use mongodb::{
    bson::{Bson, Document, doc},
    options::{Collation, ReadConcern, ReturnDocument, UpdateModifications},
};

use super::{LOOK, MongoStore, in_place::signed, now};
use crate::{
    protocol::pipeline,
    store::{Renewal, Renewed, StoreError, family::Element},
};

/// Field of an answer that carries the elements.
const FOUND: &str = "_watchlock_found";

/// Identifier of the element in an update.
pub(crate) const IDENTIFIER: &str = "watchlocked";

impl MongoStore {
    /// Returns the elements that have the key in this name, as the primary has them now; `None` when there is no document.
    pub(in crate::store) async fn elements(&self, name: &str) -> Result<Option<Vec<Document>>, StoreError> {
        let member = self.family.member(name);
        let Some(element) = member.element else {
            return Ok(None);
        };
        let find = self
            .collection
            .find_one(doc! { "_id": member.id })
            .projection(shown(&element));
        let found = find.read_concern(ReadConcern::local()).max_time(LOOK).await?;
        Ok(found.map(|found| read(&found, &element)))
    }

    /// Changes the one element that has the key in this name, and returns it, if this entry holds its lock under this
    /// token; returns `None` otherwise, and if no element or more than one has the key.
    pub(in crate::store) async fn change_element(
        &self,
        name: &str,
        holder: (&str, i64),
        update: Document,
        operation: &str,
        within: Duration,
    ) -> Result<Option<Document>, StoreError> {
        let member = self.family.member(name);
        let Some(element) = member.element else {
            return Ok(None);
        };
        let count = doc! { "$size": element.key.elements(element.array) };
        let query = doc! { "$and": [self.held(name, holder), { "$expr": { "$eq": [count, 1] } }] };
        let update = signed(UpdateModifications::Document(update), &member.location, operation);
        let changing = self.collection.find_one_and_update(query, update);
        let changing = changing.array_filters([element.key.array_filter(IDENTIFIER)]);
        let changing = changing
            .return_document(ReturnDocument::After)
            .projection(shown(&element))
            // The collection's own collation may take other elements for this one.
            .collation(Collation::builder().locale("simple").build());
        let changed = changing.max_time(within).await?;
        Ok(changed.and_then(|changed| read(&changed, &element).pop()))
    }

    /// Renews by one statement for each document, which renews all of them or none; if any did not, by one statement for
    /// each element.
    pub(super) async fn renew_elements(&self, renewal: &Renewal) -> Result<Renewed, StoreError> {
        let mut documents = BTreeMap::<String, (Bson, pipeline::Together)>::new();
        for (name, ids) in &renewal.entries {
            let member = self.family.member(name);
            let document = self.family.document(&member.id).unwrap_or_default();
            let (_, together) = documents
                .entry(document)
                .or_insert_with(|| (member.id, Default::default()));
            together
                .codes
                .extend(member.location.segments().next_back().map(str::to_owned));
            together.ids.extend_from_slice(ids);
        }
        if documents.len() == renewal.entries.len() {
            return self.renew_each(renewal).await;
        }
        let count = documents.len() as u64;
        let base = self.family.base();
        let statements = documents.into_values().map(|(id, together)| {
            doc! {
                "q": { "_id": id, "$expr": pipeline::all_held(base, &together, &now()) },
                "u": pipeline::renewal_of_all(base, &together, &renewal.operation, renewal.keep, &now()),
            }
        });
        let updated = self.update(statements.collect(), renewal.within).await?;
        if updated.refused.is_empty() && updated.modified == count {
            return Ok(Renewed::all(renewal.entries.len() as u64));
        }
        self.renew_each(renewal).await
    }
}

fn shown(element: &Element<'_>) -> Document {
    doc! { "_id": 0, FOUND: element.key.elements(element.array) }
}

/// Reads the elements of an answer. By the collation of the collection, the server may have found others too.
fn read(found: &Document, element: &Element<'_>) -> Vec<Document> {
    let found = found.get_array(FOUND).map_or(&[][..], Vec::as_slice);
    let found = found.iter().filter(|found| element.key.is_of(found));
    found.filter_map(Bson::as_document).cloned().collect()
}
