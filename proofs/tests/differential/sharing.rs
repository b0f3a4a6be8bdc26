//! Locks that share a document.

use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
};
use watchlock_core::protocol::{Kind, Location, ServerTime, State, pipeline, state};
use watchlock_proofs::Random;
use watchlock_testkit::shared;

use watchlock_proofs::differential::{Sequence, Setup};

use super::sequences;

/// Locks side by side in one document are renewed by one write, and those that are idle for long go with the next write
/// of another: as the specification says of each by itself.
#[tokio::test]
async fn locks_that_share_a_document_are_renewed_and_removed_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("sharing"));
    let collection = database.collection("documents");
    let mut seen = Seen::default();
    for seed in 0..sequences() * 2 / 3 {
        let mut random = Random::new(seed);
        let shared = Shared::draw(seed, &mut random, &collection);
        collection.insert_one(&shared.document).await.unwrap();
        let asked = 1 + usize::try_from(random.below(3)).unwrap();
        let renewed = shared.renew(&shared.locks[..asked], &mut seen).await;
        shared.sweep(&renewed, &mut seen).await;
    }
    assert!(
        seen.renewed > 10 && seen.left > 10 && seen.removed > 10 && seen.kept > 10,
        "{seen:?}"
    );
}

/// How many locks were renewed or left alone, and how many were removed or kept.
#[derive(Debug, Default)]
struct Seen {
    renewed: u32,
    left: u32,
    removed: u32,
    kept: u32,
}

/// One of the locks, as steps of its own have left it.
struct Lock {
    at: Location,
    state: Option<State>,
}

impl Lock {
    /// Returns the ids that a renewal asks for: that of a holder, if there is one, and an unknown one.
    fn ids(&self) -> Vec<String> {
        match self.state.iter().flat_map(|state| &state.holders).next() {
            Some(holder) => vec![holder.id.clone(), "nobody".to_owned()],
            None => vec!["nobody".to_owned()],
        }
    }
}

/// A document with some locks in it.
struct Shared<'a> {
    collection: &'a Collection<Document>,
    seed: u64,
    id: i64,
    base: Location,
    locks: Vec<Lock>,
    now: ServerTime,
    document: Document,
}

impl<'a> Shared<'a> {
    fn draw(seed: u64, random: &mut Random, collection: &'a Collection<Document>) -> Self {
        let base = Location::under("locks.of%2Elines");
        let mut locks = Vec::new();
        let mut now = ServerTime(0);
        for code in ["a=\"%24NOW\"", "b=7", "c=bson:00"] {
            let setup = Setup::new(base.inside(code), &[(Kind::Document, 1)]);
            let mut sequence = Sequence::new(seed * 3 + locks.len() as u64, &setup);
            for number in 0..=random.below(5) {
                drop(sequence.step(usize::try_from(number).unwrap(), &setup));
            }
            now = now.max(sequence.now);
            locks.push(Lock {
                at: setup.at,
                state: sequence.expected,
            });
        }
        // Sometimes right after their writes, and sometimes when some of them are to be removed.
        now = now.plus_millis(*random.pick(&[0, 0, 300, 510, 1_400]));
        let id = i64::try_from(seed).unwrap();
        Self {
            document: document(id, &base, &locks),
            collection,
            seed,
            id,
            base,
            locks,
            now,
        }
    }

    /// Updates the document, and returns it.
    async fn update(&self, update: Vec<Document>) -> Document {
        let query = doc! { "_id": self.id };
        self.collection.update_one(query.clone(), update).await.unwrap();
        self.collection.find_one(query).await.unwrap().unwrap()
    }

    /// Renews the holders of these locks. Returns the document after that.
    async fn renew(&self, asked: &[Lock], seen: &mut Seen) -> Document {
        let ids: Vec<String> = asked.iter().flat_map(Lock::ids).collect();
        let renewal = pipeline::renewal_of_all(&self.base, &ids, "r.1", 900, &Bson::from(self.now));
        let found = self.update(renewal).await;
        assert_eq!(found, self.renewed(&ids, seen), "seed {}", self.seed);
        found
    }

    /// Returns the document in which each of the locks was renewed by the specification.
    fn renewed(&self, ids: &[String], seen: &mut Seen) -> Document {
        let mut document = self.document.clone();
        for lock in &self.locks {
            let mut state = lock.state.clone();
            if let Some(state) = &mut state
                && state::renew(state, "r.1", ids, 900, self.now)
            {
                lock.at.set_lock(&mut document, state.fields());
                seen.renewed += 1;
            } else {
                seen.left += 1;
            }
        }
        document
    }

    /// Removes other locks as the first one's last write would. The write of one lock removes others; a step that
    /// writes nothing does not.
    async fn sweep(&self, before: &Document, seen: &mut Seen) {
        let lock = &self.locks[0];
        let operation = lock
            .state
            .as_ref()
            .map_or("", |state| state.wake.split(':').next().unwrap_or_default());
        let sweep = pipeline::sweep(&self.base, &lock.at, operation, &Bson::from(self.now));
        let found = self.update(vec![sweep.clone()]).await;
        // The renewal was the last to write, if it did.
        let wrote = lock
            .at
            .lock(before)
            .and_then(|lock| lock.get_str("wake").ok())
            .is_some_and(|wake| wake.starts_with(&format!("{operation}:")));
        let expected = self.swept(before, wrote, seen);
        assert_eq!(found, expected, "seed {}: {sweep}", self.seed);
    }

    /// Returns the document without the locks that a write removes.
    fn swept(&self, before: &Document, wrote: bool, seen: &mut Seen) -> Document {
        let is_purged = |lock: &Document| {
            State::from_document(lock).is_ok_and(|state| state.purge_at <= self.now && state.is_free(self.now))
        };
        let mut document = before.clone();
        let map = self.base.lock_mut(&mut document).unwrap();
        let codes: Vec<String> = map.keys().cloned().collect();
        for code in codes {
            if wrote && map.get_document(&code).is_ok_and(is_purged) {
                map.remove(&code);
                seen.removed += 1;
            } else {
                seen.kept += 1;
            }
        }
        document
    }
}

/// The document with these locks in it, and with two that can't be read.
fn document(id: i64, base: &Location, locks: &[Lock]) -> Document {
    let mut document = doc! { "_id": id, "text": "$$NOW" };
    for lock in locks {
        let fields = lock.state.as_ref().map(State::fields).unwrap_or_default();
        assert!(lock.at.set_lock(&mut document, fields));
    }
    let theirs = doc! { "purge_at": ServerTime(0), "protocol": 99 };
    assert!(base.inside("d").set_lock(&mut document, theirs));
    assert!(base.inside("e").set_lock(&mut document, doc! { "purge_at": "never" }));
    document
}
