//! Work under locks of every kind: `run` of the actions, with their options.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::bson::{Document, doc};
use watchlock::{AcquireError, DocumentHandle, LockClient, Lost, LostReason, RunError};

use crate::{
    documents::Scene,
    setup::{PATIENCE, eventually, info, is_vacant, within},
};

/// Counts the futures that were dropped before their end.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn reason(locks: &LockClient, name: &str) -> Option<String> {
    info(locks, name).await.unwrap().holders[0].reason.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_under_locks_of_every_kind_takes_their_options_and_releases() {
    for scene in Scene::streaming("run").await {
        let (a, b) = (&scene.a, &scene.b);
        let brief = Duration::from_millis(50);
        let acquires = [
            (
                "m",
                a.mutex("m").acquire(),
                a.mutex("m").try_acquire(),
                b.mutex("m").acquire(),
            ),
            (
                "s",
                a.semaphore("s", 2).acquire_many(2),
                a.semaphore("s", 2).try_acquire(),
                b.semaphore("s", 2).acquire(),
            ),
            (
                "r",
                a.rw_lock("r").read(),
                a.rw_lock("r").try_write(),
                b.rw_lock("r").write(),
            ),
            (
                "w",
                a.rw_lock("w").write(),
                a.rw_lock("w").try_read(),
                b.rw_lock("w").read(),
            ),
        ];
        for (name, acquire, attempt, other) in acquires {
            let done = acquire
                .reason(format!("why {name}"))
                .timeout(PATIENCE)
                .run(|held| async move {
                    assert_eq!(held.lost_reason(), None);
                    assert_eq!(reason(b, name).await, Some(format!("why {name}")));
                    // Nobody else gets in, and their work is not begun.
                    let waited = other.timeout(brief).run(|_| async { panic!("it runs beside") }).await;
                    assert!(
                        matches!(
                            waited,
                            Err(RunError::Acquire(
                                AcquireError::Timeout { .. } | AcquireError::Unanswered { .. }
                            ))
                        ),
                        "{waited:?}"
                    );
                    // It gives up before it has heard of its place, where the server takes long.
                    eventually(PATIENCE, "its place is given up", async || {
                        info(b, name).await.unwrap().waiters.is_empty()
                    })
                    .await;
                    let tried = attempt.clone().run(|_| async { panic!("it runs beside") }).await;
                    assert_eq!(tried.unwrap(), None::<()>, "{name}");
                    (held.token(), attempt)
                });
            let (token, attempt) = done.await.unwrap();
            assert!(is_vacant(b, name).await, "{name}");
            let later = attempt.run(|held| async move { held.token() }).await.unwrap();
            assert!(later > Some(token), "{name}");
            assert!(is_vacant(b, name).await, "{name}");
        }

        // The work may take the lock once more, by choice.
        let mutex = a.mutex("m");
        let inner = mutex.run(|held| {
            let again = mutex.acquire().reentrant().run(|inner| async move { inner.token() });
            async move { (held.token(), again.await.unwrap()) }
        });
        let (outer, inner) = inner.await.unwrap();
        assert_eq!(outer, inner);

        // A loss ends the work, wherever it waits.
        let dropped = Arc::new(AtomicUsize::new(0));
        let lost = a.semaphore("s", 2).acquire().run(|_| async {
            let _dropped = Dropped(dropped.clone());
            b.break_lock("s").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = within(PATIENCE, "the loss", lost).await;
        assert!(
            matches!(
                lost,
                Err(RunError::Lost(Lost {
                    reason: LostReason::Broken,
                    ..
                }))
            ),
            "{lost:?}"
        );
        let lost = a.multi(["p", "q"]).acquire().reason("both").run(|_| async {
            let _dropped = Dropped(dropped.clone());
            assert_eq!(reason(b, "q").await.as_deref(), Some("both"));
            let tried = b
                .multi(["q", "o"])
                .try_acquire()
                .run(|_| async { panic!("it runs beside") })
                .await;
            assert_eq!(tried.unwrap(), None::<()>);
            b.break_lock("q").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = within(PATIENCE, "the loss", lost).await;
        assert!(
            matches!(&lost, Err(RunError::Lost(part)) if part.name == "q"),
            "{lost:?}"
        );
        assert_eq!(dropped.load(Ordering::SeqCst), 2, "the work was dropped");
        let both = a
            .multi(["p", "q"])
            .try_acquire()
            .run(|held| async move { held.parts().count() })
            .await;
        assert_eq!(both.unwrap(), Some(2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_on_a_document_may_change_or_delete_it() {
    for scene in Scene::streaming("run_document").await {
        let (a, b) = scene.locks();
        for id in [1, 2, 3] {
            scene.events.insert(doc! { "_id": id, "n": 0 }).await;
        }
        let count = doc! { "$inc": { "n": 1 } };
        let update = |held: Arc<DocumentHandle<Document>>| {
            let (count, b) = (count.clone(), b.clone());
            async move {
                let lock = b.inspect(held.id().clone()).await.unwrap().unwrap();
                assert_eq!(lock.holders[0].reason.as_deref(), Some("counting"));
                assert_eq!(b.try_acquire(held.id().clone()).run(|_| async {}).await.unwrap(), None);
                held.update(count).await.unwrap().get_i32("n").unwrap()
            }
        };
        assert_eq!(a.acquire(1).reason("counting").run(update).await.unwrap(), 1);
        assert_eq!(a.try_acquire(1).reason("counting").run(update).await.unwrap(), Some(2));
        assert_eq!(
            a.claim(doc! { "_id": 1 }).reason("counting").run(update).await.unwrap(),
            3
        );
        assert_eq!(
            a.try_claim(doc! { "_id": 1 })
                .reason("counting")
                .run(update)
                .await
                .unwrap(),
            Some(4)
        );
        assert!(
            b.inspect(1).await.unwrap().unwrap().holders.is_empty(),
            "it is released"
        );
        let none = a
            .try_claim(doc! { "_id": 9 })
            .run(|_| async { panic!("there is none") })
            .await;
        assert_eq!(none.unwrap(), None::<()>);

        // The lock goes with the document that its holder deletes, and the work goes on to its end.
        let deleted = a.acquire(2).run(|held| async move {
            held.delete().await.unwrap();
            held.delete().await.unwrap_err();
            tokio::task::yield_now().await;
            "done"
        });
        assert_eq!(deleted.await.unwrap(), "done");
        assert!(scene.events.find(doc! { "_id": 2 }).await.is_empty());

        // A clone of the handle that is kept keeps the lock.
        let kept = a.acquire(3).run(|held| async move { held }).await.unwrap();
        assert_eq!(kept.lost_reason(), None);
        assert!(b.try_acquire(3).await.unwrap().is_none());
        drop(kept);

        // Whoever ends the client ends its work.
        let dropped = Arc::new(AtomicUsize::new(0));
        let ended = a.acquire(1).run(|_| async {
            let _dropped = Dropped(dropped.clone());
            scene.a.shutdown().await;
            std::future::pending::<()>().await;
        });
        let ended = within(PATIENCE, "the end", ended).await;
        assert!(
            matches!(
                ended,
                Err(RunError::Lost(Lost {
                    reason: LostReason::Released,
                    ..
                }))
            ),
            "{ended:?}"
        );
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}
