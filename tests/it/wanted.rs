//! Holders that hear that somebody waits for their lock.

use watchlock::{View, action::Target};

use crate::{documents::Scene, setup::*};

/// Nobody waits for it, as far as the holder has heard.
async fn is_unwanted<T: Target>(held: &View<T>) -> bool {
    tokio::time::timeout(Duration::from_millis(20), held.wanted())
        .await
        .is_err()
}

async fn is_wanted<T: Target>(held: &View<T>) {
    within(PATIENCE, "the news", held.wanted()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_hears_of_those_that_wait_wherever_they_came_from() {
    for (a, b) in places("wanted").await {
        let held = a.mutex("x").acquire().await.unwrap();
        // One that is dropped has missed nothing.
        assert!(is_unwanted(&held).await);
        assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
        // Another client.
        let second = in_line(&a, "x", 1, b.mutex("x").acquire()).await;
        is_wanted(&held).await;
        is_wanted(&held).await;
        let third = in_line(&a, "x", 2, a.mutex("x").acquire()).await;
        held.release().await.unwrap();
        // The second was granted by the release of the first, and has seen nothing of the third.
        let second = granted(second).await;
        is_wanted(&second).await;
        second.release().await.unwrap();
        let third = granted(third).await;
        assert!(is_unwanted(&third).await, "nobody is left");
        // Another task of its client.
        let last = spawn(a.mutex("x").acquire());
        is_wanted(&third).await;
        third.release().await.unwrap();
        assert!(is_unwanted(&granted(last).await.view()).await, "nobody is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_any_kind_can_be_wanted() {
    for (a, b) in places("wanted_kinds").await {
        let (one, two) = (a.semaphore("s", 2), b.semaphore("s", 2));
        let permits = [one.acquire().await.unwrap(), two.acquire().await.unwrap()];
        let reads = [
            a.rw_lock("r").read().await.unwrap(),
            b.rw_lock("r").read().await.unwrap(),
        ];
        let lead = a.election("e").campaign("here").await.unwrap();
        let parts = a.multi(["m", "n"]).acquire().await.unwrap();
        assert!(is_unwanted(&permits[0]).await && is_unwanted(&reads[1]).await);
        assert!(is_unwanted(&lead).await && is_unwanted(&parts).await);

        let waiting: [tokio::task::JoinHandle<Option<Held>>; 4] = [
            spawn(async move { two.acquire().await.ok().map(Into::into) }),
            spawn({
                let writes = b.rw_lock("r");
                async move { writes.write().await.ok().map(Into::into) }
            }),
            spawn({
                let election = b.election("e");
                async move { election.campaign("there").await.ok().map(Into::into) }
            }),
            spawn({
                let part = b.mutex("n");
                async move { part.acquire().await.ok().map(Into::into) }
            }),
        ];
        for permit in &permits {
            is_wanted(permit).await;
        }
        for read in &reads {
            is_wanted(read).await;
        }
        is_wanted(&lead).await;
        is_wanted(&parts).await;
        drop((permits, reads, lead, parts));
        for waiting in waiting {
            drop(within(PATIENCE, "the grant", waiting).await.unwrap().unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_wanted_by_those_that_acquire_it() {
    for scene in Scene::everywhere("wanted_document").await {
        let (a, b) = scene.locks();
        scene.insert(doc! { "_id": 1, "n": 1 }).await;
        let claimed = a.claim(doc! { "n": 1 }).await.unwrap();
        let waiting = spawn(b.acquire(1));
        is_wanted(&claimed).await;
        claimed.release().await.unwrap();
        drop(within(PATIENCE, "the grant", waiting).await.unwrap().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_is_over_is_waited_for_no_longer() {
    for (a, b) in places("wanted_over").await {
        let (one, two) = (
            a.mutex("x").acquire().await.unwrap(),
            a.mutex("y").acquire().await.unwrap(),
        );
        let views = [one.view(), two.view()];
        let listening = views.map(|view| spawn(async move { view.wanted().await }));
        one.release().await.unwrap();
        b.break_lock("y").await.unwrap();
        for listening in listening {
            within(PATIENCE, "the end", listening).await.unwrap();
        }
        until_waiting(&a, "y", 0).await;
    }
}

/// Beside free permits nobody waits, not even for a moment, whoever comes.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_granted_a_free_permit_was_not_waiting_for_the_others() {
    for (a, _) in places("free_permits").await {
        let permits = a.semaphore("x", 2);
        let one = permits.acquire().await.unwrap();
        let two = permits.acquire().await.unwrap();
        assert!(is_unwanted(&one).await && is_unwanted(&two).await);
        let waiting = in_line(&a, "x", 1, permits.acquire()).await;
        is_wanted(&one).await;
        is_wanted(&two).await;
        one.release().await.unwrap();
        granted(waiting).await.release().await.unwrap();
        let first = a.rw_lock("y").read().await.unwrap();
        let second = a.rw_lock("y").read().await.unwrap();
        assert!(is_unwanted(&first).await && is_unwanted(&second).await);
    }
}
