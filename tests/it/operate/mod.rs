//! What operators see and do, wherever the locks live: lists, events, breaks.

mod breaks;
mod documents;
mod history;
#[cfg(feature = "serde")]
mod serial;
pub(crate) mod telemetry;

use std::time::SystemTime;

use watchlock::operate::LockEvent;

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn people_can_read_who_holds_and_who_waits() {
    for (a, b) in places("inspect").await {
        assert_eq!(a.inspect("x").await.unwrap(), None);
        let held = a.mutex("x").acquire().reason("the $$NOW of {it}").await.unwrap();
        let _waiting = in_line(&a, "x", 1, b.mutex("x").acquire().reason("me too")).await;
        let lock = b.inspect("x").await.unwrap().unwrap();
        assert_eq!((lock.holders.len(), lock.waiters.len()), (1, 1));
        assert_eq!(lock.holders[0].token, held.token());
        assert_eq!(lock.holders[0].owner.reason.as_deref(), Some("the $$NOW of {it}"));
        assert_eq!(lock.holders[0].owner.pid, std::process::id());
        assert_eq!(lock.waiters[0].owner.reason.as_deref(), Some("me too"));
        assert!(lock.holders[0].until > lock.holders[0].since);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reading_has_the_servers_time_by_which_an_expired_holder_counts_as_nobody() {
    for (a, b) in places("readings").await {
        let held = a.mutex("x").acquire().at_least_for(SOON).await.unwrap();
        assert!(held.is_held());
        let first = b.inspect("x").await.unwrap().unwrap();
        assert!(first.is_held(), "{first:?}");
        let [holder] = &first.holders[..] else {
            panic!("{first:?}")
        };
        assert!(holder.since <= first.as_of && first.as_of < holder.until, "{first:?}");
        let view = held.view();
        held.release().await.unwrap();
        assert!(!view.is_held());

        // It is kept taken, and then its time is over; nobody asks for it.
        let kept = b.inspect("x").await.unwrap().unwrap();
        assert!(kept.as_of >= first.as_of, "{kept:?}");
        assert_eq!(kept.is_held(), kept.holders[0].until > kept.as_of);
        let is_over = async || !b.inspect("x").await.unwrap().unwrap().is_held();
        eventually(PATIENCE, "its time is over", is_over).await;
        let expired = b.inspect("x").await.unwrap().unwrap();
        assert_eq!(expired.holders.len(), 1, "{expired:?}");
        assert!(expired.as_of >= expired.holders[0].until, "{expired:?}");
        assert!(b.list().held(true).await.unwrap().is_empty());
        let listed = b.list().held(false).await.unwrap();
        assert_is!(listed[..], [lock] if lock.holders.is_empty() && !lock.is_held() && lock.as_of >= expired.as_of);

        // What a write returns has the time of that write, or of the reading after it.
        let held = a.mutex("y").acquire().await.unwrap().detach().await.unwrap();
        let renewed = b.renew_detached(&held).await.unwrap().unwrap();
        let held = a.attach(&held).await.unwrap().expect("it is held");
        assert!(renewed.is_held() && renewed.as_of >= expired.as_of, "{renewed:?}");
        let broken = b.break_lock("y").await.unwrap().unwrap();
        assert!(!broken.is_held() && broken.as_of >= renewed.as_of, "{broken:?}");
        within(PATIENCE, "the loss", held.lost()).await;
        assert!(!held.is_held());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_found_by_what_is_known_of_them() {
    for (a, _) in places("list").await {
        let names = async |list: watchlock::operate::List| -> Vec<String> {
            list.await.unwrap().into_iter().map(|lock| lock.name).collect()
        };
        let _one = a.mutex("job-1").acquire().await.unwrap();
        let _two = a.semaphore("job-2", 3).acquire().await.unwrap();
        a.mutex("job-3").acquire().await.unwrap().release().await.unwrap();
        let _other = a.mutex("other-$[").acquire().await.unwrap();
        assert_eq!(names(a.list()).await, ["job-1", "job-2", "job-3", "other-$["]);
        assert_eq!(names(a.list().prefix("job-")).await, ["job-1", "job-2", "job-3"]);
        assert_eq!(names(a.list().prefix("job-").held(true)).await, ["job-1", "job-2"]);
        assert_eq!(names(a.list().held(false)).await, ["job-3"]);
        assert_eq!(
            names(a.list().kind(watchlock::operate::Kind::Semaphore)).await,
            ["job-2"]
        );
        assert_eq!(names(a.list().prefix("other-$[")).await, ["other-$["]);
        assert_eq!(names(a.list().owner("nobody")).await, [""; 0]);
        let host = a.inspect("job-1").await.unwrap().unwrap().holders[0].owner.host.clone();
        assert_eq!(names(a.list().owner(host)).await, ["job-1", "job-2", "other-$["]);
        assert_eq!(names(a.list().older_than(Duration::from_secs(60))).await, [""; 0]);
        let older = Duration::ZERO;
        eventually(SOON, "some time passes", async || {
            names(a.list().older_than(older)).await.len() == 3
        })
        .await;
    }
}

/// The lock is held all along.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_no_end_of_a_hold_that_is_detached_and_attached() {
    for (a, b) in places("watch_detached").await {
        let mut events = b.watch("x");
        let mut next = async || {
            let next = within(PATIENCE, "the next event", events.next()).await;
            next.unwrap().unwrap()
        };
        let held = a.mutex("x").acquire().await.unwrap();
        assert!(matches!(next().await, LockEvent::Granted { .. }));
        let detached = held.detach().await.unwrap();
        let held = b.attach(&detached).await.unwrap().expect("it is held");
        held.release().await.unwrap();
        assert_eq!(
            next().await.to_string(),
            format!("released, token {}", detached.token())
        );
        let held = a.mutex("x").acquire().await.unwrap();
        let told = next().await;
        assert_is!(told, LockEvent::Granted { holder, .. } if holder.token == held.token());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_watcher_sees_all_locks() {
    for (a, b) in places("watch_all").await {
        let before = a.rw_lock("first").write().await.unwrap();
        let mut events = b.watch_all();
        let mut next = async || {
            let next = within(PATIENCE, "the next event", events.next()).await;
            let (name, event) = next.unwrap().unwrap();
            format!("{name} {event}")
        };
        // What is held already comes first, and a writer is not so many permits.
        let told = next().await;
        assert!(
            told.starts_with("first granted to ") && told.contains(" as writer "),
            "{told}"
        );
        let held = a.semaphore("second", 3).acquire_many(2).await.unwrap();
        let told = next().await;
        assert!(
            told.starts_with("second granted to ") && told.contains(" with 2 permits "),
            "{told}"
        );
        let token = before.token();
        before.release().await.unwrap();
        assert_eq!(next().await, format!("first released, token {token}"));
        b.break_lock("second").await.unwrap();
        assert_eq!(next().await, format!("second broken, token {}", held.token()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_watcher_sees_leases_run_out_and_documents_go() {
    for ground in Ground::both("watch_end").await {
        let locks = ground.locks().await;
        let mut events = locks.watch_all();
        let mut next = async |what: &str| {
            let next = within(PATIENCE, what, events.next()).await;
            let (name, event) = next.unwrap().unwrap();
            format!("{name} {event}")
        };
        // Held by nobody that lives: nothing is written when its lease ends.
        let (at, until) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(3600));
        let date = |time: SystemTime| mongodb::bson::DateTime::from(time);
        let held = locks.mutex("other").acquire().await.unwrap();
        assert!(next("a grant").await.starts_with("other granted"));
        let owner = doc! { "host": "gone", "pid": 1_i64 };
        let holder = doc! {
            "id": "gone-1", "permits": 1_i64, "token": 7_i64, "lease": 1_000_i64, "claim": 1_000_i64,
            "since": date(at), "until": date(until), "owner": owner,
        };
        let lock = doc! {
            "_id": "dead", "kind": "mutex", "capacity": 1_i64, "token": 7_i64, "holders": [holder], "queue": [],
            "wake": "gone:;", "version": 1_i64, "at": date(at), "purge_at": date(at + Duration::from_secs(3600)),
        };
        let documents = ground.documents().await;
        documents.insert_one(lock).await.unwrap();
        assert_eq!(
            next("a foreign grant").await,
            "dead granted to process 1 on gone under token 7"
        );
        let soon = doc! { "$set": { "holders.0.until": date(SystemTime::now()) } };
        documents.update_one(doc! { "_id": "dead" }, soon).await.unwrap();
        assert_eq!(next("an expiry").await, "dead expired, token 7");
        documents.delete_one(doc! { "_id": "other" }).await.unwrap();
        assert_eq!(
            next("a deletion").await,
            format!("other deleted, token {}", held.token())
        );
    }
}

/// The server was found to have no change streams, and nobody has needed one since.
#[tokio::test(flavor = "multi_thread")]
async fn who_watches_again_without_a_stream_is_told_at_once() {
    let locks = Ground::standalone("watch_again").await.locks().await;
    let held = locks.mutex("x").acquire().await.unwrap();
    for _ in 0..2 {
        let event = within(2 * SOON, "the holder", locks.watch("x").next()).await;
        assert!(matches!(event, Some(Ok(LockEvent::Granted { .. }))), "{event:?}");
        // Longer than the client takes to see that nobody needs a stream.
        tokio::time::sleep(2 * SOON).await;
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_holder_is_put_out_and_the_others_go_on() {
    for (a, b) in places("holder").await {
        let permits = a.semaphore("x", 3);
        let held = [
            permits.acquire().await.unwrap(),
            permits.acquire().await.unwrap(),
            permits.acquire().await.unwrap(),
        ];
        let next = in_line(&a, "x", 1, b.semaphore("x", 3).acquire()).await;
        let mut events = b.watch("x");
        for _ in 0..3 {
            events.next().await.unwrap().unwrap();
        }
        let lock = b.break_holder("x", held[1].token()).await.unwrap().unwrap();
        let next = granted(next).await;
        assert_eq!(within(2 * SOON, "the loss", held[1].lost()).await, LostReason::Broken);
        assert_eq!(lock.holders.len(), 3);
        // Nobody has that token any more.
        let again = b.break_holder("x", held[1].token()).await.unwrap();
        assert!(again.is_none());
        let told = within(PATIENCE, "it is told", events.next()).await.unwrap().unwrap();
        let token = held[1].token();
        assert_is!(told, LockEvent::Broken { token: of, .. } if *of == token);
        within(PATIENCE, "the grant", events.next()).await.unwrap().unwrap();
        for other in [&held[0], &held[2], &next] {
            other.renew().await.unwrap();
            assert_eq!(other.status(), LockStatus::Held);
        }
        // What is released later was not broken, though its token is smaller.
        let [smallest, _, largest] = held;
        let token = smallest.token();
        smallest.release().await.unwrap();
        let told = within(PATIENCE, "it is told", events.next()).await.unwrap().unwrap();
        assert_is!(told, LockEvent::Released { token: of, .. } if *of == token);

        // A reader, without the others.
        let lock = a.rw_lock("y");
        let (stays, goes) = (lock.read().await.unwrap(), b.rw_lock("y").read().await.unwrap());
        a.break_holder("y", goes.token()).await.unwrap().unwrap();
        assert_eq!(within(2 * SOON, "the loss", goes.lost()).await, LostReason::Broken);
        stays.renew().await.unwrap();
        assert_eq!(largest.lost_reason(), None);
    }
}
