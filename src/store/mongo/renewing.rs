//! Renewals: of hundreds of documents by few statements, and of each by one where a document is refused.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, Document, doc};

use super::{MongoStore, command::Updated, now};
use crate::{
    error::ServerError,
    protocol::{Location, pipeline},
    store::{Failure, Renewal, Renewed},
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
        let entries: Vec<(&String, &Vec<String>)> = renewal.entries.iter().collect();
        let at = self.layout.base();
        let statements = entries.chunks(RENEWED_BY_ONE_STATEMENT).map(|some| {
            let ids: Vec<String> = some.iter().flat_map(|(_, ids)| *ids).cloned().collect();
            let documents = some.iter().map(|(name, _)| self.layout.id_of(name));
            let documents = doc! { "$in": documents.collect::<Vec<Bson>>() };
            statement(renewal, at, documents.into(), &ids)
        });
        let mut updated = self.update(statements.collect(), renewal.within).await?;
        let names: Vec<&String> = renewal.entries.keys().collect();
        if names.len() > 1
            && let Some((_, error)) = updated.refused.pop()
        {
            let error = ServerError::from(error);
            return match error.kind {
                Failure::Unavailable => Err(error),
                _ => self.renew_each(renewal).await,
            };
        }
        let renewed = updated.modified;
        updated.renewed(renewed, |position| names.get(position..=position).unwrap_or_default())
    }

    async fn renew_each(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
        let entries = renewal.entries.iter();
        let statements = entries.map(|(name, ids)| {
            let member = self.layout.member(name);
            statement(renewal, &member.location, member.id, ids)
        });
        let updated = self.update(statements.collect(), renewal.within).await?;
        let names: Vec<&String> = renewal.entries.keys().collect();
        let renewed = updated.modified;
        updated.renewed(renewed, |position| names.get(position..=position).unwrap_or_default())
    }

    /// Renews by one statement for each document, which renews all of its holders or none. If any is not renewed then,
    /// by another, which renews those that are left; the count is zero then, as it shows nothing.
    async fn renew_elements(&self, renewal: &Renewal) -> Result<Renewed, ServerError> {
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

/// Returns the statement that renews these entries in the documents that `documents` selects.
fn statement(renewal: &Renewal, at: &Location, documents: Bson, ids: &[String]) -> Document {
    let shows = renewal.shows_of(ids);
    doc! {
        "q": { "_id": documents, at.key("holders.id"): { "$in": ids } },
        "u": pipeline::renewal(at, &renewal.operation, (ids, shows.as_ref()), renewal.keep, &now()),
        "multi": true,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

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
            entries: entries.collect::<BTreeMap<_, _>>(),
            shows: Some(Showing {
                idle: ids.iter().cloned().collect(),
                awaits: BTreeMap::new(),
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
            let statement = statement(&renewal, &Location::default(), "lock".into(), &ids[..1]);
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
        assert_eq!(store.renew_each(&renewal).await.unwrap().elected, elected);
    }
}
