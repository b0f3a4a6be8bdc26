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

    /// Renews by one statement for each document, which renews all of its holders or none. If any is not renewed then,
    /// by another, which renews those that are left; the count is zero then, as it shows nothing.
    async fn renew_elements(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let mut documents = HashMap::<&str, (Vec<&String>, pipeline::Together)>::new();
        for (name, ids) in &renewal.entries {
            let (names, together) = documents.entry(self.layout.document_of(name)).or_default();
            names.push(name);
            let location = self.layout.at(name);
            together
                .codes
                .extend(location.segments().next_back().map(str::to_owned));
            together.ids.extend_from_slice(ids);
        }
        let mut documents: Vec<_> = documents.into_iter().collect();
        documents.sort_unstable_by_key(|(document, _)| *document);
        if documents.len() == renewal.entries.len() {
            return self.renew_by(renewal, 1).await;
        }
        let base = self.layout.base();
        let renewing = |condition: fn(Document) -> Document| {
            let statements = documents.iter().map(|(_, (names, together))| {
                let all_held = pipeline::all_held(base, together, &now());
                let document = doc! {
                    "_id": self.layout.id_of(names[0]),
                    base.path(): { "$type": "object" },
                    "$expr": condition(all_held),
                };
                let update = pipeline::renewal_of_all(base, together, &renewal.operation, renewal.keep, &now());
                doc! { "q": document, "u": update }
            });
            self.update(statements.collect(), renewal.within)
        };
        let names: Vec<Vec<&String>> = documents.iter().map(|(_, (names, _))| names.clone()).collect();
        let all = renewing(|all_held| all_held).await?.renewed(&names)?;
        if all.refused.is_empty() && all.renewed == documents.len() as u64 {
            return Ok(Renewed {
                renewed: renewal.entries.len() as u64,
                ..all
            });
        }
        let mut rest = renewing(|all_held| doc! { "$not": [all_held] })
            .await?
            .renewed(&names)?;
        rest.refused.extend(all.refused);
        Ok(Renewed { renewed: 0, ..rest })
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
    use std::time::Duration;

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
                awaits: HashMap::new(),
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
        let store = MongoStore::connect(&database, "locks", streams).await.unwrap().store;
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
