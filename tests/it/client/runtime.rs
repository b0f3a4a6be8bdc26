//! A client on another runtime than the one on which it was used first.

use tokio::runtime::{Builder, Runtime};

use crate::setup::*;

const ENDED: &str = "the runtime on which this client was built or first used has ended";

#[track_caller]
fn assert_told(error: impl std::fmt::Display) {
    assert!(error.to_string().contains(ENDED), "{error}");
}

fn ends(first: Runtime, second: &Runtime, locks: LockClient) {
    let memory = MemoryCollection::new();
    first.block_on(memory.insert_one(doc! { "_id": 1 })).unwrap();
    let documents = locks.documents_in_memory::<Document>(&memory);
    let (held, dropped, document) = first.block_on(async {
        let document = documents.acquire(1).await.unwrap();
        (
            locks.mutex("held").acquire().await.unwrap(),
            locks.mutex("dropped").acquire().await.unwrap(),
            document,
        )
    });
    // While the first lives, a second one is served.
    second.block_on(async {
        let handle = within(PATIENCE, "it", locks.mutex("served").acquire()).await.unwrap();
        within(PATIENCE, "the release", handle.release()).await.unwrap();
    });
    let waiting = second.spawn(locks.mutex("held").acquire());
    let claiming = second.spawn(documents.claim(doc! {}));
    first.block_on(until_waiting(&locks, "held", 1));
    drop(first);
    second.block_on(async {
        assert_told(within(PATIENCE, "who waits", waiting).await.unwrap().unwrap_err());
        assert_told(within(PATIENCE, "who claims", claiming).await.unwrap().unwrap_err());
        let x = locks.mutex("x");
        assert_told(within(SOON, "an acquire", x.acquire()).await.unwrap_err());
        assert_told(within(SOON, "a try", x.try_acquire()).await.unwrap_err());
        assert_told(within(SOON, "a look", locks.inspect("x")).await.unwrap_err());
        assert_told(within(SOON, "a claim", documents.try_claim(doc! {})).await.unwrap_err());
        assert_told(
            within(SOON, "an update", document.update(doc! { "$set": { "a": 1 } }))
                .await
                .unwrap_err(),
        );
        assert_told(within(SOON, "a renewal", held.renew()).await.unwrap_err());
        // It is valid for as long as it was surely renewed.
        assert_eq!(held.lost_reason(), None);
        assert_told(within(SOON, "the release", held.release()).await.unwrap_err());
        drop(dropped);
        within(SOON, "the shutdown", locks.shutdown()).await;
    });
}

#[test]
fn a_client_whose_runtime_has_ended_says_so_at_once() {
    let (first, second) = (runtime(), runtime());
    ends(first, &second, InMemory::new().client());
    let first = runtime();
    let locks = first.block_on(async { Ground::replica_set("ended").await.locks().await });
    ends(first, &second, locks);
}

/// The driver's tasks were on it: without them a server is looked for in vain, for half a minute.
#[test]
fn a_client_that_was_built_on_a_runtime_that_has_ended_says_so_at_once() {
    let first = runtime();
    let locks = first.block_on(async { Ground::replica_set("built").await.locks().await });
    let collection = first.block_on(async { Ground::replica_set("built").await.documents().await });
    drop(first);
    let second = runtime();
    second.block_on(async {
        let documents = locks.documents(collection);
        assert_told(within(SOON, "a look", locks.inspect("x")).await.unwrap_err());
        let acquiring = locks.mutex("x").acquire().timeout(PATIENCE);
        assert_told(within(SOON, "an acquire", acquiring).await.unwrap_err());
        assert_told(within(SOON, "a document", documents.acquire(1)).await.unwrap_err());
    });
    #[cfg(feature = "sync")]
    {
        let locks = locks.blocking();
        let begun = std::time::Instant::now();
        assert_told(locks.mutex("y").acquire().timeout(PATIENCE).run().unwrap_err());
        assert_told(locks.list().run().unwrap_err());
        assert_told(locks.break_lock("x").unwrap_err());
        assert!(begun.elapsed() < SOON);
    }
}

#[test]
fn a_runtime_that_stands_still_is_told_from_a_lock_that_is_held() {
    let first = Builder::new_current_thread().enable_all().build().unwrap();
    let second = runtime();
    let locks = LockClient::in_memory();
    let held = first.block_on(locks.mutex("held").acquire()).unwrap();
    // Nobody drives it from here on.
    second.block_on(async {
        let (acquire, release) = (locks.mutex("x").acquire(), held.release());
        let both = async { tokio::join!(acquire, release) };
        let (acquired, released) = within(PATIENCE, "the errors", both).await;
        for error in [acquired.unwrap_err().to_string(), released.unwrap_err().to_string()] {
            assert!(error.contains("is stalled"), "{error}");
        }
    });
    // Driven again, it serves: the release was only not confirmed.
    let again = locks.mutex("held").acquire().timeout(Duration::from_secs(5));
    drop(first.block_on(again).unwrap());
}
