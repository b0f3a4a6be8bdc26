//! Renewals: of hundreds of documents by few statements, and of each by one where a document is refused.

use std::collections::HashMap;

use mongodb::bson::{Bson, doc};

use super::{MongoStore, command::Updated, now};
use crate::{
    error::ServerError,
    protocol::pipeline,
    store::{Failure, Renewal, Renewed},
};

/// Number of documents that one statement of a renewal selects. The server compares each holder with the ids of the
/// statement one by one, and plans each statement anew: with a hundred, a renewed document takes four fifths of the
/// time that it takes with a thousand.
const RENEWED_BY_ONE_STATEMENT: usize = 100;

impl MongoStore {
    /// Renews by one statement for each hundred documents; if a document is refused, by one statement for each lock. A
    /// refusal ends the shared statement after some documents were written and before others, so its count is useless.
    ///
    /// The locks of elements differ in their places, so each has a statement of its own.
    pub(in crate::store) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let by_one_statement = match self.layout.is_of_elements() || renewal.entries.len() == 1 {
            true => 1,
            false => RENEWED_BY_ONE_STATEMENT,
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

    /// Renews by one statement for each so many locks.
    async fn renew_by(&self, most: usize, renewal: &Renewal) -> Result<Updated, ServerError> {
        let entries: Vec<(&String, &Vec<String>)> = renewal.entries.iter().collect();
        let statements = entries.chunks(most).map(|some| {
            let at = self.layout.at(some[0].0);
            let ids: Vec<String> = some.iter().flat_map(|(_, ids)| *ids).cloned().collect();
            let documents = some.iter().map(|(name, _)| self.layout.id_of(name));
            let documents = documents.collect::<Vec<Bson>>();
            let shows = renewal.shows_of(&ids);
            doc! {
                "q": { "_id": { "$in": documents }, at.key("holders.id"): { "$in": &ids } },
                "u": pipeline::renewal(&at, &renewal.operation, (&ids, shows.as_ref()), renewal.keep, &now()),
                "multi": true,
            }
        });
        Ok(self.update(statements.collect(), renewal.within).await?)
    }
}
