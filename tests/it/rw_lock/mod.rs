//! Readers-writer locks, wherever the locks live.

mod shared_reads;
mod upgrades;

use watchlock::{errors::HoldError, operate::Access};

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_and_a_waiting_writer_comes_before_later_readers() {
    for (a, b) in places("rw").await {
        let (here, there) = (a.rw_lock("x"), b.rw_lock("x"));
        let (one, other) = (here.read().await.unwrap(), there.read().await.unwrap());
        assert!(there.try_write().await.unwrap().is_none());
        let writer = in_line(&a, "x", 1, here.write()).await;
        assert!(there.try_read().await.unwrap().is_none());
        let reader = in_line(&a, "x", 2, there.read()).await;
        drop((one, other));
        let writer = granted(writer).await;
        assert!(!reader.is_finished() && there.try_read().await.unwrap().is_none());
        writer.release().await.unwrap();
        let reader = granted(reader).await;
        assert!(here.try_read().await.unwrap().is_some());
        assert_eq!(reader.status(), LockStatus::Held);
    }
}

/// Those behind it that read get in with the same write, and a writer among them keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_becomes_a_reader_without_letting_go() {
    for (a, b) in places("downgrade").await {
        let (ours, theirs) = (a.rw_lock("x"), b.rw_lock("x"));
        let writer = ours.write().await.unwrap();
        let reader = in_line(&a, "x", 1, theirs.read()).await;
        let mine = ours.clone();
        let waiting = in_line(&a, "x", 2, mine.write()).await;
        let token = writer.token();
        writer.downgrade().await.unwrap();
        let reader = granted(reader).await;
        assert_eq!(
            (writer.permits(), writer.token(), writer.status()),
            (1, token, LockStatus::Held)
        );
        assert!(reader.token() > token);
        let lock = a.inspect("x").await.unwrap().unwrap();
        assert!(
            lock.holders.iter().all(|holder| holder.access == Some(Access::Read)),
            "{lock}"
        );
        assert_eq!((lock.holders.len(), lock.waiters.len()), (2, 1), "{lock}");
        assert!(theirs.try_read().await.unwrap().is_none(), "the writer came first");
        // Once more changes nothing, and it is renewed and released as any other.
        writer.downgrade().await.unwrap();
        writer.renew().await.unwrap();
        assert_eq!(writer.release().await.unwrap(), Released::Released);
        assert_eq!(reader.release().await.unwrap(), Released::Released);
        let next = granted(waiting).await;
        assert!(next.permits() > 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_writer_with_one_handle_can_be_downgraded() {
    for (a, b) in places("not_downgraded").await {
        let (outer, prices) = (a.rw_lock("x").write().await.unwrap(), a.rw_lock("x"));
        let inner = prices.write().reentrant().await.unwrap();
        let error = outer.downgrade().await.unwrap_err();
        assert!(matches!(error, HoldError::Invalid(_)), "{error:?}");
        assert_says(&error, &["2 handles", "must have 1"]);
        assert!(b.rw_lock("x").try_read().await.unwrap().is_none());
        inner.release().await.unwrap();
        outer.downgrade().await.unwrap();
        // From now on it is shared as a reader's, and not as a writer's.
        assert!(prices.try_write().reentrant().await.unwrap().is_none());
        assert_eq!(prices.read().reentrant().await.unwrap().token(), outer.token());
        b.break_lock("x").await.unwrap();
        within(PATIENCE, "the loss", outer.lost()).await;
        assert_lost!(HoldError, Broken, outer.downgrade().await.unwrap_err());
    }
}
