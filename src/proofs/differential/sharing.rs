//! Locks that share a document.

use mongodb::bson::{Bson, Document, doc};
use watchlock_testkit::shared;

use super::{sequence::Sequence, setup::Setup};
use crate::{
    proofs::random::Random,
    protocol::{Kind, Location, ServerTime, State, pipeline, state},
};

/// Locks side by side in one document are renewed all together or not at all, and those that are idle for long go with
/// the next write of another: as the specification says of each by itself.
#[tokio::test]
async fn locks_that_share_a_document_are_renewed_and_removed_alike() {
    let cluster = shared::standalone().await;
    let client = cluster.client().await.unwrap();
    let database = client.database(&shared::unique_name("sharing"));
    let collection = database.collection::<Document>("documents");
    let base = Location::under("locks.of%2Elines");
    let (mut renewed, mut left, mut removed, mut kept) = (0, 0, 0, 0);
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut locks = Vec::new();
        let mut now = ServerTime(0);
        for code in ["a=\"%24NOW\"", "b=7", "c=bson:00"] {
            let setup = Setup::new(base.inside(code), &[(Kind::Document, 1)]);
            let mut sequence = Sequence::new(seed * 3 + locks.len() as u64, &setup);
            for number in 0..=random.below(5) {
                drop(sequence.step(usize::try_from(number).unwrap(), &setup));
            }
            now = now.max(sequence.now);
            locks.push((code, setup.at, sequence.expected));
        }
        // Sometimes right after their writes, and sometimes when some of them are to be removed.
        now = now.plus_millis(*random.pick(&[0, 0, 300, 510, 1_400]));
        let date = Bson::from(now);
        let id = i64::try_from(seed).unwrap();
        let mut document = doc! { "_id": id, "text": "$$NOW" };
        for (_, at, state) in &locks {
            assert!(at.set_lock(&mut document, state.as_ref().map(State::fields).unwrap_or_default()));
        }
        let theirs = doc! { "purge_at": ServerTime(0), "protocol": 99 };
        assert!(base.inside("d").set_lock(&mut document, theirs));
        assert!(base.inside("e").set_lock(&mut document, doc! { "purge_at": "never" }));
        collection.insert_one(&document).await.unwrap();
        let update = async |query: Document, update: Vec<Document>| {
            let updated = collection.update_one(query, update).await.unwrap();
            let found = collection.find_one(doc! { "_id": id }).await.unwrap().unwrap();
            (updated.modified_count, found)
        };

        let ids = |state: &Option<State>| match state.iter().flat_map(|state| &state.holders).next() {
            Some(holder) => vec![holder.id.clone(), "nobody".to_owned()],
            None => vec!["nobody".to_owned()],
        };
        let asked: Vec<_> = locks.iter().map(|(code, at, state)| (*code, at, ids(state))).collect();
        let asked = &asked[..1 + usize::try_from(random.below(3)).unwrap()];
        let together = pipeline::Together {
            codes: asked.iter().map(|(code, _, _)| (*code).to_owned()).collect(),
            ids: asked.iter().flat_map(|(_, _, ids)| ids.clone()).collect(),
        };
        let mut expected = document.clone();
        let mut all = true;
        for ((_, at, ids), (_, _, state)) in asked.iter().zip(&locks) {
            let mut state = state.clone();
            let holds = state.iter().flat_map(|state| &state.holders);
            let holds = holds
                .clone()
                .any(|holder| holder.until > now && !holder.is_kept() && ids.contains(&holder.id));
            all &= holds;
            if let Some(state) = &mut state
                && state::renew(state, "r.1", ids, 900, now)
            {
                at.set_lock(&mut expected, state.fields());
            }
        }
        let renewal = pipeline::renewal_of_all(&base, &together, "r.1", 900, &date);
        let (modified, found) = update(
            doc! { "_id": id, "$expr": pipeline::all_held(&base, &together, &date) },
            renewal,
        )
        .await;
        if all {
            assert_eq!(found, expected, "seed {seed}");
            renewed += 1;
        } else {
            assert_eq!((modified, &found), (0, &document), "seed {seed}");
            left += 1;
        }
        let renewal = pipeline::renewal_of_all(&base, &together, "r.1", 900, &date);
        let (_, found) = update(doc! { "_id": id }, renewal).await;
        assert_eq!(found, expected, "seed {seed}");

        // The write of one lock removes others; a step that writes nothing does not.
        let (_, at, state) = &locks[0];
        let wrote = state
            .as_ref()
            .map_or("", |state| state.wake.split(':').next().unwrap_or_default());
        let sweep = pipeline::sweep(&base, at, wrote, &date);
        let before = found;
        let (_, found) = update(doc! { "_id": id }, vec![sweep.clone()]).await;
        let mut expected = before.clone();
        let map = base.lock_mut(&mut expected).unwrap();
        let is_purged =
            |lock: &Document| State::from_document(lock).is_ok_and(|state| state.purge_at <= now && state.is_free(now));
        // The renewal was the last to write, if it did.
        let wrote = base
            .inside(locks[0].0)
            .lock(&before)
            .and_then(|lock| lock.get_str("wake").ok())
            .is_some_and(|wake| wake.starts_with(&format!("{wrote}:")));
        let codes: Vec<String> = map.keys().cloned().collect();
        for code in codes {
            if wrote && map.get_document(&code).is_ok_and(is_purged) {
                map.remove(&code);
                removed += 1;
            } else {
                kept += 1;
            }
        }
        assert_eq!(found, expected, "seed {seed}: {sweep}");
    }
    assert!(
        renewed > 10 && left > 10 && removed > 10 && kept > 10,
        "{renewed} {left} {removed} {kept}"
    );
}
