//! The pipelines, run by a real server, against the specification.
//!
//! Random sequences of operations and renewals, with time moved on and back at will, are applied to the pure
//! transitions and to a collection; after every step the two documents must be the same, to the bit. Many sequences go
//! side by side, each with a document of its own.
//!
//! - `setup`: the locks of a run, and the strings and ids of their steps.
//! - `steps`: the drawing of a step, with the weights of each kind.
//! - `sequence`: one sequence on its way, and the document that it must have.

// These are internals of the proofs; what needs a word has one.
#![allow(missing_docs)]

mod sequence;
mod setup;
mod steps;

use std::{collections::HashMap, fmt};

use futures::TryStreamExt as _;
use mongodb::{
    Collection,
    bson::{Document, doc},
    error::Error,
};

pub use sequence::{Seen, Sequence};
pub use setup::{MIXED, Setup};
pub use steps::Move;

/// A server that did not do what the specification says.
#[derive(Debug)]
pub struct Mismatch {
    /// The sequence; [`Sequence::new`] draws it again.
    pub seed: u64,
    /// Its steps up to the one in question.
    pub steps: Vec<Move>,
    /// The document that the server has, or its refusal.
    pub found: Result<Option<Document>, String>,
    pub expected: Option<Document>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            steps,
            found,
            expected,
        } = self;
        writeln!(f, "sequence {seed}, after {} steps:", steps.len())?;
        for step in steps {
            writeln!(f, "  {step:?}")?;
        }
        let shown =
            |document: &Option<Document>| document.as_ref().map_or("no document".to_owned(), Document::to_string);
        writeln!(f, "expected: {}", shown(expected))?;
        match found {
            Ok(found) => write!(f, "found: {}", shown(found)),
            Err(refusal) => write!(f, "refused: {refusal}"),
        }
    }
}

/// Runs the sequences of these seeds side by side, with a step of all of them in one command. Returns what they have
/// seen, or the shortest of those that the server did not follow.
pub async fn compare(
    collection: &Collection<Document>,
    setup: &Setup,
    seeds: impl IntoIterator<Item = u64>,
    steps: usize,
) -> Result<Result<Vec<Seen>, Mismatch>, Error> {
    let mut sequences: Vec<_> = seeds.into_iter().map(|seed| Sequence::new(seed, setup)).collect();
    let users: Vec<_> = sequences.iter().filter_map(|sequence| sequence.users.clone()).collect();
    if !users.is_empty() {
        collection.insert_many(users).await?;
    }
    let mut taken: Vec<Vec<Move>> = sequences.iter().map(|_| Vec::new()).collect();
    for number in 0..steps {
        let (mut updates, mut senders) = (Vec::new(), Vec::new());
        for (index, sequence) in sequences.iter_mut().enumerate() {
            if let Some((step, update)) = sequence.step(number, setup) {
                updates.push(update);
                senders.push(index);
                taken[index].push(step);
            }
        }
        let mut refused = update(collection, updates).await?;
        let mut found = documents(&sequences, collection).await?;
        for (index, sequence) in sequences.iter().enumerate() {
            let expected = sequence.document(setup);
            let sent = senders.iter().position(|sender| *sender == index);
            let refusal = sent.and_then(|sent| refused.remove(&sent));
            let found = refusal.map_or_else(|| Ok(found.remove(sequence.name())), Err);
            if found.as_ref() != Ok(&expected) {
                return Ok(Err(Mismatch {
                    seed: sequence.seed,
                    steps: std::mem::take(&mut taken[index]),
                    found,
                    expected,
                }));
            }
        }
    }
    Ok(Ok(sequences.iter().map(|sequence| sequence.seen).collect()))
}

/// Sends updates in one command. Returns the refusals, by the positions of the updates.
async fn update(collection: &Collection<Document>, updates: Vec<Document>) -> Result<HashMap<usize, String>, Error> {
    if updates.is_empty() {
        return Ok(HashMap::new());
    }
    let database = collection.client().database(&collection.namespace().db);
    // A server before 5.0 would confirm it alone, and a read that sees what a majority has could miss it.
    let command = doc! {
        "update": collection.name(), "updates": updates, "ordered": false, "writeConcern": { "w": "majority" },
    };
    let answer = database.run_command(command).await?;
    let errors = answer.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
    let errors = errors.iter().filter_map(|error| error.as_document());
    let refused = errors.filter_map(|error| {
        let index = error
            .get_i32("index")
            .ok()
            .and_then(|index| usize::try_from(index).ok())?;
        Some((index, error.to_string()))
    });
    Ok(refused.collect())
}

/// Returns the documents of the sequences as the server has them, by their ids.
async fn documents(
    sequences: &[Sequence],
    collection: &Collection<Document>,
) -> Result<HashMap<String, Document>, Error> {
    let ids: Vec<_> = sequences.iter().map(|sequence| &sequence.id).collect();
    let found: Vec<Document> = collection
        .find(doc! { "_id": { "$in": ids } })
        .await?
        .try_collect()
        .await?;
    let by_id = |document: Document| Some((document.get_str("_id").ok()?.to_owned(), document));
    Ok(found.into_iter().filter_map(by_id).collect())
}
