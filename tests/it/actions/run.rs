//! Work under locks of every kind: `run` of the actions, with their options.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use watchlock::{
    Acquire, View,
    action::{CanAcquire, One, Try},
    documents,
};

use crate::{documents::Scene, setup::*};

/// Counts the futures that were dropped before their end.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

async fn reason(locks: &LockClient, name: &str) -> Option<String> {
    info(locks, name).await.unwrap().holders[0].owner.reason.clone()
}

/// Works under a lock with options, beside an attempt of the same client and an acquire of another.
async fn works_and_releases<A, B, C>(b: &LockClient, name: &str, actions: (Acquire<A>, Acquire<B, Try>, Acquire<C>))
where
    A: CanAcquire<Count = One>,
    B: CanAcquire<Count = One>,
    C: CanAcquire<Count = One>,
    View<A::Held>: Into<View>,
    View<B::Held>: Into<View>,
{
    let brief = Duration::from_millis(50);
    let (acquire, attempt, other) = actions;
    let done = acquire
        .reason(format!("why {name}"))
        .timeout(PATIENCE)
        .run(async move |held| {
            assert_eq!(held.lost_reason(), None);
            assert_eq!(reason(b, name).await, Some(format!("why {name}")));
            // Nobody else gets in, and their work is not begun.
            let waited = other.timeout(brief).run(async |_| panic!("it runs beside")).await;
            assert_is!(
                waited,
                Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. })
            );
            // It gives up before it has heard of its place, where the server takes long.
            until_waiting(b, name, 0).await;
            let tried = attempt.clone().run(async |_| panic!("it runs beside")).await;
            assert_eq!(tried.unwrap(), None::<()>, "{name}");
            (held.view().into().token(), attempt)
        });
    let (token, attempt) = done.await.unwrap();
    assert!(is_vacant(b, name).await, "{name}");
    let later = attempt.run(async |held| held.view().into().token()).await.unwrap();
    assert!(later > Some(token), "{name}");
    assert!(is_vacant(b, name).await, "{name}");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_under_locks_of_every_kind_takes_their_options_and_releases() {
    for scene in Scene::everywhere("run").await {
        let (a, b) = (&scene.a, &scene.b);
        let (m, s) = (a.mutex("m"), a.semaphore("s", 2));
        let (r, w) = (a.rw_lock("r"), a.rw_lock("w"));
        works_and_releases(b, "m", (m.acquire(), m.try_acquire(), b.mutex("m").acquire())).await;
        let other = b.semaphore("s", 2).acquire();
        works_and_releases(b, "s", (s.acquire_many(2), s.try_acquire(), other)).await;
        works_and_releases(b, "r", (r.read(), r.try_write(), b.rw_lock("r").write())).await;
        works_and_releases(b, "w", (w.write(), w.try_read(), b.rw_lock("w").read())).await;

        // The work may take the lock once more, by choice.
        let mutex = a.mutex("m");
        let inner = mutex.acquire().run(async |held| {
            let again = mutex.acquire().reentrant().run(async |inner| inner.token());
            (held.token(), again.await.unwrap())
        });
        let (outer, inner) = inner.await.unwrap();
        assert_eq!(outer, inner);

        // A loss ends the work, wherever it waits.
        let dropped = Arc::new(AtomicUsize::new(0));
        let lost = a.semaphore("s", 2).acquire().run(async |_| {
            let _dropped = Dropped(dropped.clone());
            b.break_lock("s").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = within(PATIENCE, "the loss", lost).await;
        assert_lost!(AcquireError, Broken, lost.unwrap_err());
        let lost = a.multi(["p", "q"]).acquire().reason("both").run(async |_| {
            let _dropped = Dropped(dropped.clone());
            assert_eq!(reason(b, "q").await.as_deref(), Some("both"));
            let tried = b
                .multi(["q", "o"])
                .try_acquire()
                .run(async |_| panic!("it runs beside"))
                .await;
            assert_eq!(tried.unwrap(), None::<()>);
            b.break_lock("q").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = within(PATIENCE, "the loss", lost).await;
        assert_is!(lost, Err(AcquireError::Lost(part)) if part.name == "q");
        assert_eq!(dropped.load(Ordering::SeqCst), 2, "the work was dropped");
        let both = a
            .multi(["p", "q"])
            .try_acquire()
            .run(async |held| held.parts().count())
            .await;
        assert_eq!(both.unwrap(), Some(2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_on_a_document_may_change_or_delete_it() {
    for scene in Scene::streaming("run_document").await {
        let (a, b) = scene.locks();
        for id in [1, 2, 3] {
            scene.insert(doc! { "_id": id, "n": 0 }).await;
        }
        let count = doc! { "$inc": { "n": 1 } };
        let update = async |held: &Held<documents::Document<Document>>| {
            let lock = b.inspect(held.id().clone()).await.unwrap().unwrap();
            assert_eq!(lock.holders[0].owner.reason.as_deref(), Some("counting"));
            assert_eq!(b.try_acquire(held.id().clone()).run(async |_| {}).await.unwrap(), None);
            held.update(count.clone()).await.unwrap().get_i32("n").unwrap()
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
            .run(async |_| panic!("there is none"))
            .await;
        assert_eq!(none.unwrap(), None::<()>);

        // The lock goes with the document that its holder deletes, and the work goes on to its end.
        let deleted = a.acquire(2).run(async |held| {
            held.delete().await.unwrap();
            held.delete().await.unwrap_err();
            tokio::task::yield_now().await;
            "done"
        });
        assert_eq!(deleted.await.unwrap(), "done");
        assert!(scene.events.find(doc! { "_id": 2 }).await.is_empty());

        // Whoever ends the client ends its work.
        let dropped = Arc::new(AtomicUsize::new(0));
        let ended = a.acquire(1).run(async |_| {
            let _dropped = Dropped(dropped.clone());
            scene.a.shutdown().await;
            std::future::pending::<()>().await;
        });
        let ended = within(PATIENCE, "the end", ended).await;
        assert_lost!(AcquireError, Released, ended.unwrap_err());
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
    }
}

/// Nothing but the release finds it, as the client polls and has no reason to look.
#[tokio::test(flavor = "multi_thread")]
async fn work_whose_lock_was_lost_at_its_end_is_not_reported_as_done() {
    let ground = Ground::replica_set("run_lost").await;
    let (locks, other) = (ground.polling().await, ground.locks().await);
    let ran = locks.mutex("x").acquire().run(async |_| {
        other.break_lock("x").await.unwrap();
        "billed"
    });
    let error = within(PATIENCE, "the end", ran).await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Lost(lost) if lost.name == "x"),
        "{error:?}"
    );
    let ran = locks.mutex("x").acquire().run(async |_| "billed");
    assert_eq!(within(PATIENCE, "the end", ran).await.unwrap(), "billed");
}
