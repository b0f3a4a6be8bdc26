//! What operators see: spans and events, as docs/observability.md tells them. The tests of the numbers are those of the
//! recipes, where a recorder is.
//!
//! Everything runs on the thread of the test, as the subscriber is that thread's.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, LazyLock, Mutex},
};

use tokio::task::JoinHandle;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, NoSubscriber},
};
use tracing_subscriber::{
    layer::{Context, Layer, SubscriberExt},
    registry::LookupSpan,
};
use watchlock::{
    locks::Mutex as LockMutex,
    operate::{WakeMode, WakeSource},
};
use watchlock_testkit::Cluster;

use crate::setup::*;

const DOCUMENTED: &str = include_str!("../../../docs/observability.md");

/// A span that ended, or an event.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    name: &'static str,
    level: Level,
    fields: Fields,
}

type Fields = BTreeMap<&'static str, String>;

impl Told {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    /// Asserts its level and all of its fields in the order of their names, with `*` for any value.
    fn assert(&self, level: Level, fields: &[(&str, &str)]) {
        let told = self.fields.iter().filter(|(name, _)| **name != "message");
        let told: Vec<_> = told.map(|(name, value)| (*name, &value[..])).collect();
        let is_so = told.len() == fields.len()
            && told
                .iter()
                .zip(fields)
                .all(|((name, value), (of, wanted))| name == of && (*wanted == "*" || value == wanted));
        assert!(is_so && self.level == level, "{self:?}, and not {fields:?}");
    }

    fn number(&self, name: &str) -> f64 {
        self.field(name).parse().unwrap()
    }
}

/// A subscriber that is never gone. While there is but one, `tracing` lets the thread that meets a place first say
/// whether anybody listens there; a thread of another test would say no, for all and for good.
pub(crate) static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::default()));

/// Notes all that watchlock tells on this thread, at every level.
#[derive(Clone, Debug, Default)]
struct Ear(Arc<Mutex<Vec<Told>>>);

impl Ear {
    fn listen() -> (Self, DefaultGuard) {
        LazyLock::force(&ANOTHER);
        let ear = Self::default();
        let subscriber = tracing_subscriber::registry().with(ear.clone());
        (ear, tracing::subscriber::set_default(subscriber))
    }

    fn heard(&self) -> Vec<Told> {
        self.0.lock().unwrap().clone()
    }

    fn all(&self, name: &str) -> Vec<Told> {
        self.heard().into_iter().filter(|told| told.name == name).collect()
    }

    /// The only one of that name.
    fn only(&self, name: &str) -> Told {
        match &self.all(name)[..] {
            [told] => told.clone(),
            _ => panic!("not one {name} in {:#?}", self.heard()),
        }
    }

    async fn until(&self, name: &str) {
        eventually(PATIENCE, name, async || !self.all(name).is_empty()).await;
    }

    fn hears(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target() == "watchlock";
        assert!(ours || !metadata.target().starts_with("watchlock::"), "{metadata:?}");
        ours
    }

    /// That nothing was told that is not documented.
    fn assert_documented(&self) {
        let heard = self.heard();
        assert!(!heard.is_empty());
        for told in heard {
            assert!(DOCUMENTED.contains(&format!("`{}`", told.name)), "{told:?}");
            for (field, value) in &told.fields {
                let text = match *field {
                    "message" => format!("| {value} |"),
                    field => format!("`{field}`"),
                };
                assert!(DOCUMENTED.contains(&text), "{text} of {told:?}");
            }
        }
    }
}

struct Writing<'a>(&'a mut Fields);

impl Visit for Writing<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Ear {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if self.hears(attributes.metadata()) {
            let mut fields = Fields::new();
            attributes.record(&mut Writing(&mut fields));
            context.span(id).unwrap().extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(fields) = context.span(id).unwrap().extensions_mut().get_mut::<Fields>() {
            values.record(&mut Writing(fields));
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if let Some(fields) = span.extensions_mut().remove::<Fields>() {
            self.0.lock().unwrap().push(Told {
                name: span.name(),
                level: *span.metadata().level(),
                fields,
            });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if !self.hears(metadata) {
            return;
        }
        let mut fields = Fields::new();
        event.record(&mut Writing(&mut fields));
        let name = metadata.name();
        // Those that belong to an acquire are told in its span.
        let acquiring = context
            .event_span(event)
            .is_some_and(|span| span.name() == "watchlock.acquire");
        let of_acquire = ["watchlock.granted", "watchlock.timed_out", "watchlock.not_acquired"].contains(&name);
        assert!(acquiring || !of_acquire, "{name} outside of its span");
        self.0.lock().unwrap().push(Told {
            name,
            level: *metadata.level(),
            fields,
        });
    }
}

/// Two clients of one memory, woken in that way.
async fn pair(source: WakeSource) -> (LockClient, LockClient) {
    let memory = InMemory::new();
    let client = || memory.builder().wake_source(source).build();
    (client().await.unwrap(), client().await.unwrap())
}

/// A task that waits for the lock, in the server's queue.
async fn in_line(locks: &LockClient, mutex: LockMutex) -> JoinHandle<Result<Held<LockMutex>, AcquireError>> {
    let waiting = spawn(async move { mutex.acquire().await });
    until_waiting(locks, "x", 1).await;
    waiting
}

/// As many as the queue has room for are not told, and parts of one hold count once.
#[tokio::test(start_paused = true)]
async fn many_holders_are_told() {
    let (ear, _listening) = Ear::listen();
    let locks = LockClient::in_memory();
    let pool = locks.semaphore("x", 2_000);
    let many = pool.acquire_many(1_000).await.unwrap();
    let parts: Vec<_> = (0..999).map(|_| many.split(1).unwrap()).collect();
    let mut held = join_all((0..255).map(|_| pool.acquire())).await;
    assert!(held.iter().all(Result::is_ok) && ear.all("watchlock.many_holders").is_empty());
    held.push(pool.acquire().await);
    let told = ear.only("watchlock.many_holders");
    told.assert(Level::INFO, &[("holders", "257"), ("lock", "x")]);
    ear.assert_documented();
    drop((held, parts, many));
}

#[tokio::test(start_paused = true)]
async fn a_grant_and_a_release_are_told() {
    let (ear, _listening) = Ear::listen();
    let locks = LockClient::in_memory();
    let handle = locks
        .semaphore("x", 3)
        .acquire_many(2)
        .reason("night of the 3rd")
        .await
        .unwrap();
    let token = handle.token().to_string();
    tokio::time::advance(Duration::from_millis(150)).await;
    handle.release().await.unwrap();

    let span = ear.only("watchlock.acquire");
    let of_lock = [("how", "at_once"), ("kind", "semaphore"), ("lock", "x")];
    let asked = [
        ("outcome", "granted"),
        ("permits", "2"),
        ("reason", "night of the 3rd"),
        ("token", &token),
        ("waits", "true"),
    ];
    span.assert(Level::INFO, &[&of_lock[..], &asked].concat());
    let granted = [&of_lock[..], &[("token", &token), ("waited_ms", "*")]].concat();
    ear.only("watchlock.granted").assert(Level::DEBUG, &granted);
    let released = [
        ("held_ms", "150.0"),
        ("kind", "semaphore"),
        ("lock", "x"),
        ("token", &token),
    ];
    ear.only("watchlock.released").assert(Level::DEBUG, &released);
    assert!(ear.all("watchlock.lost").is_empty());
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_tells_how_it_came() {
    let ways = [
        (WakeSource::Auto, false, "event"),
        (WakeSource::Polling, false, "asking"),
        (WakeSource::Polling, true, "local"),
    ];
    for (source, same, how) in ways {
        let (a, b) = pair(source).await;
        let held = a.mutex("x").acquire().await.unwrap();
        let (ear, _listening) = Ear::listen();
        let waiting = in_line(&a, if same { a.mutex("x") } else { b.mutex("x") }).await;
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        let granted = ear.only("watchlock.granted");
        assert_eq!((granted.field("how"), granted.field("lock")), (how, "x"));
        assert_eq!(ear.only("watchlock.acquire").field("how"), how);
        drop(next);
        // Of the holder before, and of the one that was dropped.
        assert_eq!(ear.all("watchlock.released").len(), 2);
        ear.assert_documented();
    }
}

#[tokio::test(start_paused = true)]
async fn each_document_of_a_claim_of_many_is_told() {
    let (ear, _listening) = Ear::listen();
    let collection = MemoryCollection::new();
    for id in 0..3 {
        collection.insert_one(doc! { "_id": id }).await.unwrap();
    }
    let events = LockClient::in_memory().documents_in_memory::<Document>(&collection);
    for held in events.claim_many(doc! {}, 3).await.unwrap() {
        held.release().await.unwrap();
    }
    let locks = |name| {
        let mut locks: Vec<_> = ear.all(name).iter().map(|told| told.field("lock").to_owned()).collect();
        locks.sort_unstable();
        locks
    };
    assert_eq!(locks("watchlock.granted"), ["0", "1", "2"]);
    assert_eq!(locks("watchlock.released"), ["0", "1", "2"]);
    ear.only("watchlock.acquire");
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_entered_again_is_granted_to_each_and_released_once() {
    let (ear, _listening) = Ear::listen();
    let locks = LockClient::in_memory();
    let outer = locks.mutex("x").acquire().await.unwrap();
    let inner = locks.mutex("x").acquire().reentrant().await.unwrap();
    outer.release().await.unwrap();
    assert!(ear.all("watchlock.released").is_empty());
    drop(inner);
    let granted: Vec<_> = ear
        .all("watchlock.granted")
        .iter()
        .map(|told| told.field("how").to_owned())
        .collect();
    assert_eq!(granted, ["at_once", "reentered"]);
    ear.only("watchlock.released");
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_held_too_long_is_told_once() {
    let (ear, _listening) = Ear::listen();
    let minute = Duration::from_secs(60);
    let builder = InMemory::new().builder().warn_after(minute).lose_after(5 * minute);
    let locks = builder.build().await.unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    let again = locks.mutex("x").acquire().reentrant().await.unwrap();
    let short = locks.mutex("y").acquire().await.unwrap();
    tokio::time::sleep(minute / 2).await;
    short.release().await.unwrap();
    tokio::time::sleep(3 * minute).await;
    let told = ear.only("watchlock.held_too_long");
    let token = held.token().to_string();
    let of_lock = [
        ("held_ms", "*"),
        ("kind", "mutex"),
        ("lock", "x"),
        ("most_ms", "60000.0"),
        ("token", &token),
    ];
    told.assert(Level::WARN, &of_lock);
    let held_ms = told.number("held_ms");
    assert!((60_000.0..60_100.0).contains(&held_ms), "{held_ms}");
    assert_eq!(held.lost().await, LostReason::HeldTooLong);
    ear.until("watchlock.lost").await;
    let lost = ear.only("watchlock.lost");
    assert_eq!(
        [lost.field("reason"), lost.field("held_ms")],
        ["held_too_long", "300000.0"]
    );
    drop((held, again));
    ear.only("watchlock.held_too_long");
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_each_other_are_told_once() {
    let (ear, _listening) = Ear::listen();
    let locks = LockClient::in_memory();
    let (x, y) = (locks.mutex("x").acquire(), locks.mutex("y").acquire());
    let other = spawn(async move {
        let _y = y.reason("the other").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        x.await
    });
    let held = locks.mutex("x").acquire().reason("the first time").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waited = locks.mutex("y").acquire().timeout(Duration::from_secs(600)).await;
    assert!(matches!(waited, Err(AcquireError::Timeout { .. })), "{waited:?}");
    drop(held);
    drop(other.await.unwrap().unwrap());
    let told = ear.all("watchlock.deadlock");
    let of = |lock| told.iter().filter(move |told| told.field("lock") == lock).count();
    assert_eq!((told.len(), of("x"), of("y")), (2, 1, 1), "{told:?}");
    told[0].assert(Level::WARN, &[("deadlock", "*"), ("lock", "*")]);
    assert_says(
        &told[0].field("deadlock"),
        &["because of \"the first time\", who waits for `y`"],
    );
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn what_came_to_nothing_tells_why() {
    let (a, b) = pair(WakeSource::Auto).await;
    let _held = a.mutex("x").acquire().reason("of the holder").await.unwrap();
    let (ear, _listening) = Ear::listen();

    let overdue = b
        .mutex("x")
        .acquire()
        .timeout(Duration::from_millis(70))
        .reason("of the waiter")
        .await;
    assert!(matches!(overdue, Err(AcquireError::Timeout { .. })));
    assert_eq!(ear.only("watchlock.acquire").field("outcome"), "timeout");
    let timed_out = ear.only("watchlock.timed_out");
    let fields = [
        ("answered", "true"),
        ("kind", "mutex"),
        ("lock", "x"),
        ("waited_ms", "*"),
    ];
    timed_out.assert(Level::INFO, &fields);
    assert!(timed_out.number("waited_ms") >= 70.0);

    assert!(b.mutex("x").try_acquire().await.unwrap().is_none());
    b.mutex("x").try_acquire().or_held().await.unwrap_err();
    b.semaphore("x", 2).acquire().await.unwrap_err();
    in_line(&a, b.mutex("x")).await.abort();
    ear.until("watchlock.not_acquired").await;
    let outcomes = || -> Vec<String> {
        let told = ear.all("watchlock.not_acquired");
        told.iter().map(|told| told.field("outcome").to_owned()).collect()
    };
    eventually(PATIENCE, "the task is gone", async || outcomes().len() == 4).await;
    assert_eq!(outcomes(), ["busy", "busy", "used_otherwise", "cancelled"]);
    b.shutdown().await;
    b.mutex("x").acquire().await.unwrap_err();
    assert_eq!(outcomes().last().unwrap(), "closed");
    let fields = [
        ("kind", "mutex"),
        ("lock", "x"),
        ("outcome", "busy"),
        ("waited_ms", "*"),
    ];
    ear.all("watchlock.not_acquired")[0].assert(Level::DEBUG, &fields);

    // Refused before anything is sent.
    let before = ear.heard().len();
    a.mutex("n".repeat(2_000)).acquire().await.unwrap_err();
    assert_eq!(ear.heard().len(), before);
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_was_attached_is_told_as_one_that_was_acquired() {
    let (ear, _listening) = Ear::listen();
    let (a, b) = pair(WakeSource::Auto).await;
    let mut detached = a.mutex("x").acquire().await.unwrap().detach().await.unwrap();
    detached = b.attach(&detached).await.unwrap().unwrap().detach().await.unwrap();
    for told in ["watchlock.granted", "watchlock.released"] {
        assert_eq!(ear.all(told).len(), 2, "{told}");
    }
    let held = b.attach(&detached).await.unwrap().unwrap();
    a.break_lock("x").await.unwrap();
    held.lost().await;
    ear.until("watchlock.lost").await;
    assert_eq!(ear.only("watchlock.lost").field("reason"), "broken");
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn a_broken_lock_is_told_on_both_sides() {
    let (ear, _listening) = Ear::listen();
    let (a, b) = pair(WakeSource::Auto).await;
    let held = a.mutex("x").acquire().await.unwrap();
    // The stream is open when somebody has held for a while.
    tokio::time::sleep(Duration::from_secs(1)).await;
    b.break_lock("x").await.unwrap();
    assert_eq!(held.lost().await, LostReason::Broken);
    ear.only("watchlock.broke").assert(Level::INFO, &[("lock", "x")]);
    ear.until("watchlock.lost").await;
    drop(held);
    let of_lock = [
        ("held_ms", "*"),
        ("kind", "mutex"),
        ("lock", "x"),
        ("reason", "broken"),
        ("token", "*"),
    ];
    ear.only("watchlock.lost").assert(Level::WARN, &of_lock);
    assert!(ear.all("watchlock.released").is_empty());
    // Nobody holds it any more.
    b.break_lock("x").await.unwrap();
    assert_eq!(ear.all("watchlock.broke").len(), 1);
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn the_last_attempt_at_a_document_is_told_and_no_other() {
    let (ear, _listening) = Ear::listen();
    let memory = MemoryCollection::new();
    memory.insert_one(doc! { "_id": "order-7" }).await.unwrap();
    let orders = LockClient::in_memory().documents_in_memory::<Document>(&memory);
    for attempt in 1..=2 {
        assert!(ear.all("watchlock.last_attempt").is_empty());
        let order = orders.claim(doc! {}).max_attempts(2).await.unwrap();
        assert_eq!(order.attempt(), Some(attempt));
        order.release().await.unwrap();
    }
    assert!(orders.try_claim(doc! {}).max_attempts(2).await.unwrap().is_none());
    orders.claim(doc! {}).await.unwrap().release().await.unwrap();
    let attempt = [("attempt", "2"), ("lock", "\"order-7\"")];
    ear.only("watchlock.last_attempt").assert(Level::WARN, &attempt);
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_told_with_the_time_it_was_held() {
    let (ear, _listening) = Ear::listen();
    let locks = InMemory::new()
        .builder()
        .lease(Duration::from_secs(10))
        .build()
        .await
        .unwrap();
    let held = locks.mutex("x").acquire().await.unwrap();
    // As a process that is frozen for an hour.
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(held.lost().await, LostReason::Expired);
    ear.until("watchlock.lost").await;
    drop(held);
    let lost = ear.only("watchlock.lost");
    assert_eq!((lost.level, lost.field("reason")), (Level::WARN, "expired"));
    // The lease less the skew margin.
    let held_ms = lost.number("held_ms");
    assert!((8_000.0..10_000.0).contains(&held_ms), "{held_ms}");
    ear.assert_documented();
}

/// For many locks by one warning, and none for each command that has failed.
#[tokio::test]
async fn a_server_that_hangs_is_told_once_before_a_lock_is_lost_and_once_when_it_answers() {
    const LEASE: Duration = Duration::from_secs(10);
    let cluster = Cluster::builder().standalone().in_memory(true).start().await.unwrap();
    let ground = Ground::on(&cluster, "hangs");
    let (ear, _listening) = Ear::listen();
    let locks = ground.builder().await.lease(LEASE).build().await.unwrap();
    let mutexes = (0..12).map(|number| locks.mutex(format!("lock {number}")));
    let acquired = join_all(mutexes.map(|mutex| async move { mutex.acquire().await.unwrap() })).await;
    let told = |name: &str| ear.all(name).len();
    let until = async |name: &str, times| eventually(PATIENCE, name, async || told(name) == times).await;
    for times in 1..=2 {
        cluster.freeze(0).unwrap();
        until("watchlock.renewals_overdue", times).await;
        let least = acquired.iter().map(|handle| handle.safe_for()).min().unwrap();
        let overdue = ear.all("watchlock.renewals_overdue").remove(times - 1);
        overdue.assert(
            Level::WARN,
            &[("error", "unanswered"), ("left_ms", "*"), ("locks", "*")],
        );
        let (locks, left_ms) = (overdue.number("locks"), overdue.number("left_ms"));
        assert!((1.0..=12.0).contains(&locks), "{locks}");
        let (in_time, left) = (
            (LEASE / 4).max(least)..LEASE / 2,
            Duration::from_secs_f64(left_ms / 1e3),
        );
        assert!(in_time.contains(&left), "{left:?}, {least:?}");
        if times == 1 {
            cluster.thaw(0).unwrap();
            until("watchlock.renewals_recovered", 1).await;
        }
    }
    assert_eq!(told("watchlock.lost"), 0);
    until("watchlock.lost", 12).await;
    assert_eq!(
        (told("watchlock.renewals_overdue"), told("watchlock.renewals_recovered")),
        (2, 1)
    );
    cluster.thaw(0).unwrap();
    let again = within(PATIENCE, "an answer", locks.mutex("another").acquire())
        .await
        .unwrap();
    until("watchlock.renewals_recovered", 2).await;
    let recovered = ear.all("watchlock.renewals_recovered");
    recovered
        .iter()
        .for_each(|told| told.assert(Level::WARN, &[("overdue_ms", "*")]));
    again.release().await.unwrap();
    let warnings = ear.heard().iter().filter(|told| told.level == Level::WARN).count();
    assert_eq!(warnings, 2 + 2 + 12, "{:#?}", ear.heard());
    ear.assert_documented();
}

#[tokio::test(start_paused = true)]
async fn what_users_write_is_told_where_it_is_said_to_be() {
    let (ear, _listening) = Ear::listen();
    let (a, b) = pair(WakeSource::Auto).await;
    let leading = a
        .election("x")
        .campaign("the value")
        .reason("the reason")
        .await
        .unwrap();
    let campaign = b
        .election("x")
        .campaign("another value")
        .timeout(Duration::from_secs(1));
    campaign.await.unwrap_err();
    leading.proclaim("a third value").await.unwrap();
    leading.release().await.unwrap();
    for told in ear.heard() {
        for (field, text) in &told.fields {
            assert!(!text.contains("value"), "{told:?}");
            let documented = told.name == "watchlock.acquire" && *field == "reason";
            assert!(documented || !text.contains("the reason"), "{told:?}");
        }
    }
    ear.assert_documented();
}

#[test]
fn what_another_thread_met_first_is_heard() {
    fn tell() {
        tracing::info!(name: "met", target: "watchlock", "met");
    }
    let (ear, _listening) = Ear::listen();
    std::thread::spawn(tell).join().unwrap();
    tell();
    ear.only("met");
}

#[tokio::test]
async fn no_credentials_are_told_when_a_client_can_not_be_built() {
    let ground = Ground::standalone("secrets").await;
    let nowhere = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200".to_owned();
    // Nobody is there; and somebody who knows no such user.
    for (uri, error) in [(nowhere, "unavailable"), (ground.uri().to_owned(), "refused")] {
        let (ear, _listening) = Ear::listen();
        let uri = uri.replacen("mongodb://", "mongodb://watcher:hunter2@", 1) + "&appName=secretive";
        let client = Client::with_uri_str(&uri).await.unwrap();
        LockClient::builder(client.database("app")).build().await.unwrap_err();
        let failed = ear.only("watchlock.operation_failed");
        failed.assert(
            failed.level,
            &[("error", error), ("operation", "connect"), ("source", "*")],
        );
        for told in ear.heard() {
            for secret in ["hunter2", "watcher", "mongodb://", "secretive"] {
                assert!(!format!("{told:?}").contains(secret), "{told:?}");
            }
        }
        ear.assert_documented();
    }
}

/// As an operator makes it who does not know the name by which clients ask for it.
#[tokio::test]
async fn an_index_under_another_name_is_as_good() {
    let ground = Ground::replica_set("told_index").await;
    let options = mongodb::options::IndexOptions::builder()
        .expire_after(Duration::ZERO)
        .build();
    let index = mongodb::IndexModel::builder()
        .keys(doc! { "purge_at": 1 })
        .options(options)
        .build();
    ground.documents().await.create_index(index).await.unwrap();
    let (ear, _listening) = Ear::listen();
    let locks = ground.locks().await;
    // The first operation waits for the answer.
    let _held = locks.mutex("first").acquire().await.unwrap();
    assert_eq!(ear.all("watchlock.index_missing").len(), 0);
}

#[tokio::test]
async fn what_the_server_refuses_is_told_by_its_code() {
    let ground = Ground::replica_set("told").await;
    let database = ground.driver().await.database(&ground.database);
    // The server says which document it refuses; and an index of the same name, and another one.
    database.create_collection(COLLECTION).await.unwrap();
    let index = mongodb::IndexModel::builder().keys(doc! { "purge_at": 1 }).build();
    ground.documents().await.create_index(index).await.unwrap();

    let (ear, _listening) = Ear::listen();
    let locks = ground.locks().await;
    let _held = locks.mutex("first").acquire().await.unwrap();
    ear.until("watchlock.index_missing").await;
    let validator = doc! { "collMod": COLLECTION, "validator": { "never": { "$exists": true } } };
    database.run_command(validator).await.unwrap();
    let refused = locks.mutex("x").acquire().reason("the reason").await.unwrap_err();
    assert!(matches!(refused, AcquireError::Server(_)), "{refused:?}");

    let conflict = [("error", "refused"), ("source", "IndexOptionsConflict (85)")];
    ear.only("watchlock.index_missing").assert(Level::WARN, &conflict);
    let failed = ear.all("watchlock.operation_failed");
    // A busy server may not have answered an earlier request soon, which is told as such.
    let is_refused = |told: &&Told| {
        told.fields
            .get("source")
            .is_some_and(|source| source.ends_with("(121)"))
    };
    let request = failed.iter().find(is_refused).unwrap();
    let validation = [("operation", "request"), ("source", "DocumentValidationFailure (121)")];
    request.assert(
        Level::DEBUG,
        &[&[("error", "*"), ("lock", "*")], &validation[..]].concat(),
    );
    let spans = ear.all("watchlock.acquire");
    let span = spans.iter().find(|told| told.field("lock") == "x").unwrap();
    assert_eq!(span.field("outcome"), "failed");
    let events = ear.heard().into_iter().filter(|told| told.name != "watchlock.acquire");
    events.for_each(|told| assert!(!format!("{told:?}").contains("the reason"), "{told:?}"));
    ear.assert_documented();
}

#[tokio::test]
async fn a_stream_that_breaks_is_told_and_so_is_the_wake_mode() {
    let ground = Ground::replica_set("toldstream").await;
    let (holder, waiter, admin) = (ground.locks().await, ground.locks().await, ground.driver().await);
    let held = holder.mutex("x").acquire().await.unwrap();
    let (ear, _listening) = Ear::listen();
    let waiting = in_line(&holder, waiter.mutex("x")).await;
    until_streaming(&ground, &admin, 2).await;
    eventually(PATIENCE, "the waiter's stream is interrupted", async || {
        let streams = ground.streams(&admin).await;
        let kill = doc! { "killCursors": COLLECTION, "cursors": streams };
        // Where there is none just now, there is nothing to be killed.
        let _ = admin.database(&ground.database).run_command(kill).await;
        ear.all("watchlock.stream_interrupted").len() >= 2
    })
    .await;
    eventually(PATIENCE, "both stream again", async || {
        [&holder, &waiter]
            .iter()
            .all(|locks| locks.wake_mode() == WakeMode::ChangeStream)
    })
    .await;
    held.release().await.unwrap();
    let next = within(PATIENCE, "the grant", waiting).await.unwrap().unwrap();
    next.release().await.unwrap();

    let interrupted = [("error", "*"), ("source", "*")];
    ear.all("watchlock.stream_interrupted")[0].assert(Level::INFO, &interrupted);
    let modes = ear.all("watchlock.wake_mode");
    let has = |field, value| move |told: &&Told| told.fields.get(field).is_some_and(|told| told == value);
    let lost = modes
        .iter()
        .position(|told| has("reason", "interrupted")(&told))
        .unwrap();
    // Not the last one: what was killed last may be noticed only now.
    let back = modes[lost..].iter().find(has("mode", "change_stream")).unwrap();
    back.assert(Level::INFO, &[("mode", "change_stream")]);
    assert!(ear.all("watchlock.stream_opened").len() > 1);
    ear.assert_documented();
}

/// A program that returns from `main` drops its handles, and ends the runtime before their releases are sent.
#[test]
fn a_runtime_that_ends_with_locks_says_how_many_are_left_taken() {
    let (ear, _listening) = Ear::listen();
    let memory = InMemory::new();
    let left = |end: &str| {
        let before = ear.all("watchlock.left_taken").len();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        // The client outlives the runtime, as one in a static does.
        let locks = memory.client();
        let kept = runtime.block_on(async {
            let held = [
                locks.mutex("x").acquire().await.unwrap(),
                locks.mutex("y").acquire().await.unwrap(),
            ];
            let fixed = locks.mutex("z").acquire().fixed(Duration::from_secs(60)).await.unwrap();
            match end {
                "shutdown" => locks.shutdown().await,
                "release" => {
                    for handle in held {
                        handle.release().await.unwrap();
                    }
                    return Vec::from([fixed]);
                }
                "drop" => return Vec::from([fixed]),
                _ => {}
            }
            held.into_iter().chain([fixed]).collect()
        });
        let client = (end != "drop").then_some(locks);
        drop(runtime);
        drop((kept, client));
        let told = ear.all("watchlock.left_taken");
        // Another client shares the memory, and is not to wait.
        memory.client();
        let breaking = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        breaking.block_on(async {
            for name in ["x", "y", "z"] {
                memory.client().break_lock(name).await.unwrap();
            }
        });
        told[before..]
            .iter()
            .map(|told| told.field("locks").to_owned())
            .collect::<Vec<_>>()
    };
    // What nobody renews is made to outlive its process.
    assert_eq!(left("drop"), ["2"]);
    assert_eq!(left("return"), ["2"]);
    assert!(left("release").is_empty());
    assert!(left("shutdown").is_empty());
    ear.all("watchlock.left_taken")[0].assert(Level::WARN, &[("locks", "2")]);
    ear.assert_documented();
}
