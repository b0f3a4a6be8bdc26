//! Code of the user's that panics where the client calls it: subscribers and recorders.
//!
//! Everything runs on the thread of the test, as subscriber and recorder are that thread's.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicU64, Ordering},
};

use serde::Deserialize;
use tracing::{Event, Metadata, Subscriber, span};
use watchlock::operate::WakeMode;

use crate::{operate::telemetry::ANOTHER, setup::*};

const LEASE: Duration = Duration::from_secs(2);

/// A subscriber that panics whenever it is told of something.
#[derive(Debug)]
struct Bomb {
    /// It panics only when it is called for a span that it has.
    takes_spans: bool,
    panics: Arc<AtomicU64>,
}

impl Bomb {
    fn explode(&self) -> ! {
        self.panics.fetch_add(1, Ordering::Relaxed);
        panic!("a subscriber that panics");
    }
}

impl Subscriber for Bomb {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "watchlock"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        if self.takes_spans {
            return span::Id::from_u64(1);
        }
        self.explode()
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {
        self.explode()
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {
        self.explode()
    }

    fn event(&self, _: &Event<'_>) {
        self.explode()
    }

    fn enter(&self, _: &span::Id) {
        self.explode()
    }

    fn exit(&self, _: &span::Id) {
        self.explode()
    }

    fn try_close(&self, _: span::Id) -> bool {
        self.explode()
    }
}

/// A recorder that panics whatever it is asked for.
#[cfg(feature = "metrics")]
mod recorder {
    use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    #[derive(Debug)]
    pub(super) struct Bomb;

    impl Recorder for Bomb {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("a recorder that panics");
        }

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("a recorder that panics");
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("a recorder that panics");
        }

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            panic!("a recorder that panics");
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            panic!("a recorder that panics");
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("a recorder that panics");
        }
    }
}

/// All that the tasks of a client are for: renewals, hand-overs by the stream, losses that are told, acquires that come
/// to nothing, claims that pass over documents.
async fn everything_works(ground: &Ground, a: &LockClient, b: &LockClient) {
    claims_pass_over_what_is_unreadable(ground, a).await;
    let held = a.mutex("x").acquire().await.unwrap();
    let kept = a.mutex("kept").acquire().await.unwrap();
    // The heart tells of this loss.
    let robbed = a.mutex("robbed").acquire().await.unwrap();
    within(PATIENCE, "the lock is broken", b.break_lock("robbed"))
        .await
        .unwrap();
    assert_eq!(within(PATIENCE, "the loss", robbed.lost()).await, LostReason::Broken);
    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
    let early = b.mutex("x").acquire().timeout(Duration::from_millis(50)).await;
    early.unwrap_err();

    let next = in_line(a, "x", 1, b.mutex("x").acquire()).await;
    until_mode(b, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!((held.lost_reason(), kept.lost_reason()), (None, None));
    held.release().await.unwrap();
    let next = within(PATIENCE, "the hand-over", next).await.unwrap().unwrap();
    tokio::time::sleep(2 * LEASE).await;
    assert_eq!((next.lost_reason(), kept.lost_reason()), (None, None));
    until_mode(b, PATIENCE, |mode| mode == WakeMode::ChangeStream).await;
    drop(next);
    kept.release().await.unwrap();
    let last = within(PATIENCE, "the drop", a.mutex("x").acquire()).await;
    last.unwrap().release().await.unwrap();
}

/// The type of the user's documents; one of them does not fit it.
#[derive(Debug, Deserialize)]
struct Order {
    total: i64,
}

async fn claims_pass_over_what_is_unreadable(ground: &Ground, locks: &LockClient) {
    let database = ground.driver().await.database(&ground.database);
    let orders = database.collection::<Document>("orders");
    let inserted = [doc! { "_id": 1, "total": "much" }, doc! { "_id": 2, "total": 7_i64 }];
    orders.insert_many(inserted).await.unwrap();
    let claim = locks.documents(orders.clone_with_type::<Order>());
    let claim = claim.try_claim(doc! {}).sort(doc! { "_id": 1 });
    let claimed = within(PATIENCE, "the claim", claim).await.unwrap().unwrap();
    assert_eq!((claimed.id(), claimed.document().total), (&Bson::Int32(2), 7));
    claimed.release().await.unwrap();
}

#[tokio::test]
async fn observers_that_panic_at_once_end_nothing() {
    observers_that_panic_end_nothing(false).await;
}

#[tokio::test]
async fn observers_that_panic_later_end_nothing() {
    observers_that_panic_end_nothing(true).await;
}

async fn observers_that_panic_end_nothing(takes_spans: bool) {
    let ground = Ground::replica_set("observers_that_panic").await;
    let panics = Arc::<AtomicU64>::default();
    let bomb = Bomb {
        takes_spans,
        panics: panics.clone(),
    };
    #[cfg(feature = "metrics")]
    let _recording = metrics::set_default_local_recorder(&recorder::Bomb);
    LazyLock::force(&ANOTHER);
    let _listening = tracing::subscriber::set_default(bomb);
    let (a, b) = (ground.locks_for(LEASE).await, ground.locks_for(LEASE).await);
    everything_works(&ground, &a, &b).await;
    a.shutdown().await;
    b.shutdown().await;
    // More than the first of them is met.
    assert!(panics.load(Ordering::Relaxed) > 3);
}
