//! Renewals: of hundreds of documents by few statements, and of each by one where a document is refused.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};

use super::{MongoStore, command::Updated, now};
use crate::{
    error::ServerError,
    protocol::pipeline,
    store::{Failure, Renewal, Renewed},
};

/// Number of documents that one statement of a renewal selects, or of locks in one document that it renews. The server compares each holder with the ids of the
/// statement one by one, and plans each statement anew: with a hundred, a renewed document takes four fifths of the
/// time that it takes with a thousand.
const RENEWED_BY_ONE_STATEMENT: usize = 100;

impl MongoStore {
    /// Renews by one statement for each hundred documents, or for the locks of elements that share a document; if a
    /// document is refused, by one statement for each lock. A refusal ends the shared statement after some documents
    /// were written and before others, so its count is useless.
    ///
    /// Fewer documents are counted than locks if some share one: then the caller reads which are renewed.
    pub(in crate::store) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let by_one_statement = match renewal.entries.len() {
            1 => 1,
            _ => RENEWED_BY_ONE_STATEMENT,
        };
        let mut updated = self.renew_by(by_one_statement, renewal).await?;
        if by_one_statement > 1
            && let Some((_, error)) = updated.refused.pop()
        {
            let error = ServerError::from(error);
            if error.kind == Failure::Unavailable {
                return Err(error);
            }
            updated = self.renew_by(1, renewal).await?;
        }
        let names: Vec<&String> = renewal.entries.keys().collect();
        let mut refused = HashMap::new();
        for (position, error) in updated.refused {
            let error = ServerError::from(error);
            // The server failed here, not a document.
            if error.kind == Failure::Unavailable {
                return Err(error);
            }
            refused.extend(names.get(position).map(|name| ((*name).clone(), error)));
        }
        Ok(Renewed {
            renewed: updated.modified,
            refused,
            elected: updated.elected,
            logged_by: updated.logged_by,
        })
    }

    /// Renews by one statement for each so many locks at most.
    async fn renew_by(&self, most: usize, renewal: &Renewal) -> Result<Updated, ServerError> {
        let of_elements = self.layout.is_of_elements();
        let stages = |name: &str, ids: &[String]| {
            let (at, shows) = (self.layout.at(name), renewal.shows_of(ids));
            pipeline::renewal(&at, &renewal.operation, (ids, shows.as_ref()), renewal.keep, &now())
        };
        let entries: Vec<(&String, &Vec<String>)> = renewal.entries.iter().collect();
        let share = |one: &str, other: &str| self.layout.document_of(one) == self.layout.document_of(other);
        let together = entries.chunk_by(|(one, _), (other, _)| !of_elements || share(one, other));
        let statements = together.flat_map(|some| some.chunks(most)).map(|some| {
            let documents: Vec<Bson> = some.iter().map(|(name, _)| self.layout.id_of(name)).collect();
            if of_elements {
                // A stage for each lock, and one write.
                let stages: Vec<Document> = some.iter().flat_map(|(name, ids)| stages(name, ids)).collect();
                return doc! { "q": { "_id": documents.first() }, "u": stages };
            }
            let ids: Vec<String> = some.iter().flat_map(|(_, ids)| *ids).cloned().collect();
            let holding = self.layout.base().key("holders.id");
            doc! {
                "q": { "_id": { "$in": documents }, holding: { "$in": &ids } },
                "u": stages("", &ids),
                "multi": true,
            }
        });
        Ok(self.update(statements.collect(), renewal.within).await?)
    }
}
