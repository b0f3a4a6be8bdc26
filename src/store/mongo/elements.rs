//! Operations only for elements of arrays: reading them, changing one, and renewing the locks of many.

use std::{collections::BTreeMap, time::Duration};

use mongodb::{
    bson::{Bson, Document, doc},
    options::{Collation, ReadConcern, ReturnDocument, UpdateModifications},
};

use super::{MongoStore, READ_WITHIN, command::Updated, in_place::signed, now};
use crate::{
    error::ServerError,
    protocol::pipeline,
    store::{Renewal, Renewed, lock_layout::Element},
};

/// Field of an answer that carries the elements.
const FOUND: &str = "_watchlock_found";

/// Identifier of the element in an update.
pub(crate) const IDENTIFIER: &str = "watchlocked";

impl MongoStore {
    /// Returns the elements that have the key in this name, as the primary has them now; `None` when there is no
    /// document.
    pub(in crate::store) async fn elements(&self, name: &str) -> Result<Option<Vec<Document>>, ServerError> {
        let member = self.layout.member(name);
        let Some(element) = member.element else {
            return Ok(None);
        };
        let find = self
            .collection
            .find_one(doc! { "_id": member.id })
            .projection(shown(&element));
        let found = find.read_concern(ReadConcern::local()).max_time(READ_WITHIN).await?;
        let found = found.filter(|found| self.layout.is_in(name, found));
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
    ) -> Result<Option<Document>, ServerError> {
        let member = self.layout.member(name);
        let Some(element) = member.element else {
            return Ok(None);
        };
        let count = doc! { "$size": element.key.elements(element.array) };
        let query = doc! { "$and": [self.held(name, holder), { "$expr": { "$eq": [count, 1] } }] };
        let update = signed(
            UpdateModifications::Document(update),
            &member.location,
            operation,
            false,
        );
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

    /// Renews by one statement for each document, which renews all of its holders or none. If any is not renewed then,
    /// by another, which renews those that are left; the count is zero then, as it shows nothing.
    pub(super) async fn renew_elements(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let mut documents = BTreeMap::<String, Shared<'_>>::new();
        for (name, ids) in &renewal.entries {
            let member = self.layout.member(name);
            let document = self.layout.document(&member.id).unwrap_or_default();
            let document = documents.entry(document).or_insert_with(|| Shared {
                id: member.id,
                names: Vec::new(),
                together: pipeline::Together::default(),
            });
            document.names.push(name);
            let code = member.location.segments().next_back().map(str::to_owned);
            document.together.codes.extend(code);
            document.together.ids.extend_from_slice(ids);
        }
        if documents.len() == renewal.entries.len() {
            return self.renew_each(renewal).await;
        }
        let documents: Vec<Shared<'_>> = documents.into_values().collect();
        let base = self.layout.base();
        let all_held = |document: &Shared<'_>| pipeline::all_held(base, &document.together, &now());
        let all = |document: &Shared<'_>| doc! { "_id": &document.id, "$expr": all_held(document) };
        let mut renewed = self.renew_documents(renewal, &documents, all).await?;
        if renewed.refused.is_empty() && renewed.modified == documents.len() as u64 {
            return renewed.renewed(renewal.entries.len() as u64, |_| &[]);
        }
        let rest = |document: &Shared<'_>| {
            doc! {
                "_id": &document.id,
                base.path(): { "$type": "object" },
                "$expr": { "$not": [all_held(document)] },
            }
        };
        let rest = self.renew_documents(renewal, &documents, rest).await?;
        renewed.refused.extend(rest.refused);
        renewed.renewed(0, |position| {
            documents.get(position).map_or(&[][..], |document| &document.names)
        })
    }

    async fn renew_documents(
        &self,
        renewal: &Renewal,
        documents: &[Shared<'_>],
        query: impl Fn(&Shared<'_>) -> Document,
    ) -> Result<Updated, ServerError> {
        let base = self.layout.base();
        let statements = documents.iter().map(|document| {
            let (together, operation) = (&document.together, &renewal.operation);
            let update = pipeline::renewal_of_all(base, together, operation, renewal.keep, &now());
            doc! { "q": query(document), "u": update }
        });
        Ok(self.update(statements.collect(), renewal.within).await?)
    }
}

/// A document with several locks that are renewed together.
struct Shared<'a> {
    id: Bson,
    names: Vec<&'a String>,
    together: pipeline::Together,
}

fn shown(element: &Element<'_>) -> Document {
    doc! { "_id": 1, FOUND: element.key.elements(element.array) }
}

/// Reads the elements of an answer. By the collation of the collection, the server may have found others too.
fn read(found: &Document, element: &Element<'_>) -> Vec<Document> {
    let found = found.get_array(FOUND).map_or(&[][..], Vec::as_slice);
    let found = found.iter().filter(|found| element.key.is_of(found));
    found.filter_map(Bson::as_document).cloned().collect()
}
