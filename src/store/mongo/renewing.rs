//! Renewals: of hundreds of documents by few statements, and of each by one where a document is refused.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};

use super::{MongoStore, now};
use crate::{
    error::ServerError,
    protocol::{Location, pipeline},
    store::{Renewal, Renewed},
};

/// Number of documents that one statement of a renewal selects. The server compares each holder with the ids of the
/// statement one by one, and plans each statement anew: with a hundred, a renewed document takes four fifths of the
/// time that it takes with a thousand.
const RENEWED_BY_ONE_STATEMENT: usize = 100;

impl MongoStore {
    /// Renews by one statement for each hundred documents; if a document is refused, by one statement for each. A
    /// refusal ends the shared statement after some documents were written and before others, so its count is useless.
    pub(in crate::store) async fn renew(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        if self.layout.is_of_elements() {
            return self.renew_elements(renewal).await;
        }
        let renewed = self.renew_by(renewal, RENEWED_BY_ONE_STATEMENT).await?;
        match renewal.entries.len() > 1 && !renewed.refused.is_empty() {
            true => self.renew_by(renewal, 1).await,
            false => Ok(renewed),
        }
    }

    /// Renews by statements for so many documents each.
    async fn renew_by(&self, renewal: &Renewal, documents: usize) -> Result<Renewed, ServerError> {
        let (mut statements, mut names) = (Vec::new(), Vec::new());
        for some in renewal.entries.chunks(documents) {
            let ids: Vec<String> = some.iter().flat_map(|(_, ids)| ids).cloned().collect();
            let documents = some.iter().map(|(name, _)| self.layout.id_of(name));
            statements.push(statement(
                renewal,
                &self.layout.at(&some[0].0),
                documents.collect(),
                &ids,
            ));
            names.push(some.iter().map(|(name, _)| name).collect());
        }
        self.update(statements, renewal.within).await?.renewed(&names)
    }

    /// Renews by one statement for each document, whichever of its elements are held. The count is zero where several are
    /// in one document, as it shows nothing of each.
    async fn renew_elements(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let mut documents = HashMap::<&str, Vec<&(String, Vec<String>)>>::new();
        for entry in &renewal.entries {
            documents
                .entry(self.layout.document_of(&entry.0))
                .or_default()
                .push(entry);
        }
        if documents.len() == renewal.entries.len() {
            return self.renew_by(renewal, 1).await;
        }
        let base = self.layout.base();
        let (mut statements, mut names) = (Vec::new(), Vec::new());
        for held in documents.values() {
            let ids: Vec<String> = held.iter().flat_map(|(_, ids)| ids).cloned().collect();
            let document = doc! { "_id": self.layout.id_of(&held[0].0), base.path(): { "$type": "object" } };
            let update = pipeline::renewal_of_all(base, &ids, &renewal.operation, renewal.keep, &now());
            statements.push(doc! { "q": document, "u": update });
            names.push(held.iter().map(|(name, _)| name).collect());
        }
        let renewed = self.update(statements, renewal.within).await?.renewed(&names)?;
        Ok(Renewed { renewed: 0, ..renewed })
    }
}

/// Returns the statement that renews these entries in the documents with these `_id`s.
fn statement(renewal: &Renewal, at: &Location, documents: Vec<Bson>, ids: &[String]) -> Document {
    let shows = renewal.shows_of(ids);
    doc! {
        "q": { "_id": { "$in": documents }, at.key("holders.id"): { "$in": ids } },
        "u": pipeline::renewal(at, &renewal.operation, (ids, shows.as_ref()), renewal.keep, &now()),
        "multi": true,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use mongodb::options::ReadPreference;
    use watchlock_testkit::shared;

    use super::*;
    use crate::protocol::Showing;

    /// A refused document has each of those that are renewed with it renewed by a statement of its own, in one command.
    #[test]
    fn a_statement_is_no_longer_for_what_is_idle_beside_it() {
        let ids: Vec<String> = (0..1_000).map(|number| format!("0123456789abcdef-{number}")).collect();
        let entries = ids.iter().map(|id| (format!("lock {id}"), vec![id.clone()]));
        let renewal = Renewal {
            operation: "a.1".to_owned(),
            entries: entries.collect(),
            shows: Some(Showing {
                idle: ids.iter().cloned().collect(),
                awaits: std::collections::HashMap::new(),
                as_of: 1,
            }),
            keep: 1,
            within: Duration::from_secs(1),
        };
        let size = |shows: bool| {
            let renewal = Renewal {
                shows: renewal.shows.clone().filter(|_| shows),
                ..renewal.clone()
            };
            let statement = statement(&renewal, &Location::default(), vec!["lock".into()], &ids[..1]);
            let mut bytes = Vec::new();
            statement.to_writer(&mut bytes).unwrap();
            bytes.len()
        };
        let (without, with) = (size(false), size(true));
        assert!(without < 4_000 && with < 2 * without, "{without}, {with}");
    }

    /// The election in the answer to a renewal is the one that the primary itself names: by the two, a client that
    /// renews finds out about a fail-over.
    #[tokio::test]
    async fn a_renewal_tells_which_election_its_primary_has_won() {
        let client = shared::replica_set().await.client().await.unwrap();
        let database = client.database(&shared::unique_name("elected"));
        let streams = ReadPreference::Primary;
        let store = MongoStore::new(&database.collection("locks"), Arc::default(), streams);
        let elected = store.elected().await.unwrap();
        assert!(elected.is_some());
        let renewal = Renewal {
            operation: "a.1".to_owned(),
            entries: [("lock".to_owned(), vec!["a-1".to_owned()])].into(),
            shows: None,
            keep: 1,
            within: Duration::from_secs(10),
        };
        assert_eq!(store.renew(&renewal).await.unwrap().elected, elected);
    }
}
