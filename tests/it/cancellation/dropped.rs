//! Every action and every call of a handle, dropped at each of its await points: on a replica set, and in memory. Those
//! that are one function for targets of all kinds are dropped with one of them.
//!
//! What was begun is done or undone by the client, at once and not when its lease is over (30 s here); nobody else is
//! kept waiting; and no task, cursor or connection stays behind.

use std::{
    ops::ControlFlow,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::future::LocalBoxFuture;
use tokio::{runtime::Handle, sync::Notify, time::timeout};
use watchlock::operate::WakeMode;

use crate::{
    documents::{self, Place},
    setup::*,
};

/// No function awaits as often as this on its way.
const MOST_POLLS: usize = 60;

/// As long as the lease: what nobody undoes is there for longer than anything is waited for here.
const CLAIM_LEASE: Duration = Duration::from_secs(30);

/// For as long as a lock is kept here: longer than anything is waited for.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Where a future is dropped.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// After so many polls. A future that is never polled does nothing, so the first cut is after none.
    polls: usize,
    /// When it has been woken once more: what it was told lies there untaken.
    woken: bool,
}

impl Cut {
    /// Polls the future whenever it is woken and drops it at this place; its output, if it came to its end before.
    async fn strike<F: Future>(self, future: F) -> Option<F::Output> {
        let bell = Arc::new(Bell::default());
        let waker = Waker::from(bell.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        for poll in 1..=self.polls {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            // Nothing wakes it any more: there is no further place to drop it at.
            if (poll < self.polls || self.woken) && !bell.rings_within(SOON).await {
                return None;
            }
        }
        None
    }
}

/// A waker that can be waited for.
#[derive(Debug, Default)]
struct Bell {
    rung: AtomicBool,
    heard: Notify,
}

impl Bell {
    async fn rings_within(&self, limit: Duration) -> bool {
        let ringing = async {
            while !self.rung.swap(false, Ordering::AcqRel) {
                self.heard.notified().await;
            }
        };
        timeout(limit, ringing).await.is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.heard.notify_one();
    }
}

/// One process: its locks, and the locks in a collection of the user's.
struct Process {
    locks: LockClient,
    events: DocumentLocks<Document>,
}

/// The process whose futures are dropped, and another that must not suffer.
struct Scene {
    place: documents::Scene,
    victim: Process,
    other: Process,
    /// Of the victim, where it is on a server.
    driver: Option<(Ground, Client)>,
}

impl Scene {
    async fn at(place: documents::Scene) -> Self {
        let process = async || {
            let locks = place.builder().await.claim_lease(CLAIM_LEASE).build().await.unwrap();
            let events = place.locks_of(&locks);
            Process { locks, events }
        };
        let (mut victim, other) = (process().await, process().await);
        let mut driver = None;
        if let Place::Server(ground) = &place.place {
            let client = ground.driver().await;
            let locks = LockClient::builder(client.database(&ground.database)).claim_lease(CLAIM_LEASE);
            victim.locks = locks.build().await.unwrap();
            victim.events = place.locks_of(&victim.locks);
            driver = Some((ground.clone(), client));
        }
        Self {
            place,
            victim,
            other,
            driver,
        }
    }

    async fn insert(&self, id: &str) {
        self.place.events.insert(doc! { "_id": id, "n": 0 }).await;
    }

    async fn find(&self, id: &str) -> Option<Document> {
        self.place.events.find(doc! { "_id": id }).await.pop()
    }

    /// Waits until nobody holds the lock any more, and opens it if it is kept; returns whether it was.
    async fn open(&self, name: &str) -> bool {
        let mut kept = false;
        eventually(PATIENCE, "it is kept or free", async || {
            let lock = self.other.locks.inspect(name).await.unwrap();
            let holders = lock.map_or_else(Vec::new, |lock| lock.holders);
            kept = !holders.is_empty();
            holders.iter().all(|holder| holder.released.is_some())
        })
        .await;
        if kept {
            self.other.locks.break_lock(name).await.unwrap();
        }
        kept
    }

    /// Nobody holds the lock of that name, or the document, or waits for it; and who wants it gets it.
    async fn assert_free(&self, name: &str, case: &str) {
        eventually(PATIENCE, case, async || is_vacant(&self.other.locks, name).await).await;
        eventually(PATIENCE, case, async || {
            let lock = self.other.events.inspect(name).await.unwrap();
            lock.is_none_or(|lock| lock.holders.is_empty() && lock.waiters.is_empty())
        })
        .await;
    }
}

/// Somebody else holds, and somebody else waits beside the victim: whatever becomes of that one, the rival gets it.
async fn beside<H, V: Future>(
    cut: Cut,
    releasing: impl Future<Output = H> + Send + 'static,
    victim: V,
    rival: impl Future<Output = ()> + Send + 'static,
) -> bool {
    let rival = spawn(rival);
    let releasing = spawn(async move {
        // So that some are dropped before the release, some after it, and some in between.
        pause(Duration::from_millis(5)).await;
        drop(releasing.await);
    });
    let struck = cut.strike(victim).await.is_some();
    releasing.await.unwrap();
    within(PATIENCE, "the rival's turn", rival).await.unwrap();
    struck
}

/// One function: begun, struck, and what is special of it looked at. Tells whether it came to its end before the cut.
type Case = for<'a> fn(&'a Scene, Cut, &'a str) -> LocalBoxFuture<'a, bool>;

macro_rules! cases {
    ($($case:ident($scene:ident, $cut:ident, $name:ident) $body:block)*) => {
        const CASES: &[(&str, Case)] = &[$((stringify!($case), $case)),*];
        $(fn $case<'a>($scene: &'a Scene, $cut: Cut, $name: &'a str) -> LocalBoxFuture<'a, bool> {
            Box::pin(async move { $body })
        })*
    };
}

cases! {
    acquire(scene, cut, name) {
        cut.strike(scene.victim.locks.mutex(name).acquire()).await.is_some()
    }
    acquire_behind_a_holder(scene, cut, name) {
        let held = scene.other.locks.mutex(name).acquire().await.unwrap();
        let (victim, rival) = (scene.victim.locks.mutex(name), scene.other.locks.mutex(name));
        beside(cut, held.release(), victim.acquire(), async move { drop(rival.acquire().await.unwrap()) }).await
    }
    acquire_that_times_out(scene, cut, name) {
        let held = scene.other.locks.mutex(name).acquire().await.unwrap();
        let acquire = scene.victim.locks.mutex(name).acquire().timeout(Duration::from_millis(20));
        let struck = cut.strike(acquire).await;
        assert!(struck.as_ref().is_none_or(Result::is_err));
        assert_eq!(held.release().await.unwrap(), Released::Released);
        struck.is_some()
    }
    try_acquire(scene, cut, name) {
        cut.strike(scene.victim.locks.mutex(name).try_acquire()).await.is_some()
    }
    or_held(scene, cut, name) {
        let held = scene.other.locks.mutex(name).acquire().await.unwrap();
        let struck = cut.strike(scene.victim.locks.mutex(name).try_acquire().or_held()).await;
        assert!(struck.as_ref().is_none_or(Result::is_err));
        assert_eq!(held.release().await.unwrap(), Released::Released);
        struck.is_some()
    }
    renew(scene, cut, name) {
        let held = scene.victim.locks.mutex(name).acquire().await.unwrap();
        let struck = cut.strike(held.renew()).await.is_some();
        assert_eq!(held.release().await.unwrap(), Released::Released);
        struck
    }
    release(scene, cut, name) {
        let held = scene.victim.locks.mutex(name).acquire().await.unwrap();
        let rival = scene.other.locks.mutex(name);
        beside(cut, async {}, held.release(), async move { drop(rival.acquire().await.unwrap()) }).await
    }
    release_that_keeps(scene, cut, name) {
        let held = scene.victim.locks.mutex(name).acquire().at_least_for(PERIOD).await.unwrap();
        let struck = cut.strike(held.release()).await;
        assert!(struck.as_ref().is_none_or(|released| matches!(released, Ok(Released::Kept))), "{struck:?}");
        // A handle that is dropped keeps the lock too.
        assert!(scene.open(name).await, "{cut:?}");
        struck.is_some()
    }
    once_begin(scene, cut, name) {
        let job = scene.victim.locks.once(name, PERIOD).since_success();
        cut.strike(job.begin()).await.is_some()
    }
    once_run(scene, cut, name) {
        let job = scene.victim.locks.once(name, PERIOD).since_success();
        let work = |_| async {
            tokio::task::yield_now().await;
            Ok::<_, ()>(())
        };
        let struck = cut.strike(job.run(work)).await;
        let kept = scene.open(name).await;
        assert!(kept || struck.is_none(), "{struck:?}");
        struck.is_some()
    }
    once_done(scene, cut, name) {
        let job = begun(scene.victim.locks.once(name, PERIOD).since_success()).await;
        let struck = cut.strike(job.done()).await.is_some();
        // What was never polled was never reported.
        assert_eq!(scene.open(name).await, cut.polls > 0, "{cut:?}");
        struck
    }
    once_give_up(scene, cut, name) {
        let job = begun(scene.victim.locks.once(name, PERIOD).since_success()).await;
        let struck = cut.strike(job.release()).await.is_some();
        assert!(!scene.open(name).await, "{cut:?}");
        struck
    }
    lost(scene, cut, name) {
        let held = scene.victim.locks.mutex(name).acquire().await.unwrap();
        let breaking = scene.other.locks.clone();
        let of = name.to_owned();
        let breaking = spawn(async move { breaking.break_lock(&of).await.unwrap() });
        let struck = cut.strike(held.lost()).await.is_some();
        breaking.await.unwrap();
        assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Broken);
        struck
    }
    write_between_readers(scene, cut, name) {
        let (victim, other) = (scene.victim.locks.rw_lock(name), scene.other.locks.rw_lock(name));
        let held = other.read().await.unwrap();
        let rival = async move { drop(other.read().await.unwrap()) };
        beside(cut, held.release(), victim.write(), rival).await
    }
    proclaim(scene, cut, name) {
        let leading = scene.victim.locks.election(name).campaign("old").await.unwrap();
        let struck = cut.strike(leading.proclaim("new")).await.is_some();
        eventually(PATIENCE, "its value", async || {
            let leader = scene.other.locks.election(name).leader().await.unwrap().unwrap();
            if struck || cut.polls == 0 {
                assert_eq!(leader.value == "new", struck, "{cut:?}");
            }
            true
        })
        .await;
        assert_eq!(leading.release().await.unwrap(), Released::Released);
        struck
    }
    election_run(scene, cut, name) {
        let election = scene.victim.locks.election(name);
        cut.strike(election.run("victim", |_| async {
            tokio::task::yield_now().await;
            ControlFlow::Break(())
        }))
        .await
        .is_some()
    }
    withdraw(scene, cut, name) {
        let candidacy = scene.victim.locks.election(name).stand("victim", |_| {}, |_| {});
        cut.strike(candidacy.withdraw()).await.is_some()
    }
    observe(scene, cut, name) {
        let leading = scene.other.locks.election(name).campaign("first").await.unwrap();
        let mut leaders = scene.victim.locks.election(name).observe();
        let struck = cut.strike(leaders.next()).await.is_some();
        leading.proclaim("second").await.unwrap();
        within(PATIENCE, "the news", async {
            while leaders.next().await.unwrap().unwrap().is_none_or(|leader| leader.value != "second") {}
        })
        .await;
        struck
    }
    inspect(scene, cut, name) {
        cut.strike(scene.victim.locks.inspect(name)).await.is_some()
    }
    list(scene, cut, name) {
        cut.strike(scene.victim.locks.list().prefix(name).into_future()).await.is_some()
    }
    watch(scene, cut, name) {
        let mut events = scene.victim.locks.watch(name);
        let granting = scene.other.locks.mutex(name).acquire().await.unwrap();
        let struck = cut.strike(events.next()).await.is_some();
        // Whether it was seen before or is the first to be seen: the release is.
        granting.release().await.unwrap();
        let again = scene.other.locks.mutex(name).acquire().await.unwrap();
        within(PATIENCE, "the news", async {
            while format!("{:?}", events.next().await.unwrap().unwrap()).matches(&again.token().to_string()).count() == 0 {}
        })
        .await;
        struck
    }
    break_lock(scene, cut, name) {
        let held = scene.other.locks.mutex(name).acquire().await.unwrap();
        let struck = cut.strike(scene.victim.locks.break_lock(name)).await.is_some();
        if cut.polls == 0 {
            assert_eq!(held.lost_reason(), None);
        }
        if struck {
            assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Broken);
        }
        struck
    }
    build(scene, cut, name) {
        let building = scene.place.builder().await.label(name).build();
        cut.strike(building).await.is_some()
    }
    shutdown(scene, cut, name) {
        let locks = scene.place.builder().await.claim_lease(CLAIM_LEASE).build().await.unwrap();
        let held = locks.mutex(name).acquire().await.unwrap();
        let waiting = spawn(locks.mutex(name).acquire());
        let struck = cut.strike(locks.shutdown()).await.is_some();
        if struck {
            assert_eq!(held.lost_reason(), Some(LostReason::Released));
        }
        drop((held, locks));
        waiting.abort();
        struck
    }
    scope(scene, cut, name) {
        let builder = scene.place.builder().await;
        let scope = builder.scope(|locks| async move {
            let held = locks.mutex(name).acquire().await.unwrap();
            tokio::task::yield_now().await;
            held.token()
        });
        cut.strike(scope).await.is_some()
    }
    wake_mode_changed(scene, cut, name) {
        let _ = name;
        // It has changed already.
        let present = WakeMode::Polling(watchlock::operate::PollingReason::Interrupted);
        cut.strike(scene.victim.locks.wake_mode_changed(present)).await.is_some()
    }
    multi_acquire(scene, cut, name) {
        let held = scene.other.locks.mutex(name).acquire().await.unwrap();
        let (victim, rival) = (scene.victim.locks.multi([name, "a", "z"]), scene.other.locks.multi(["z", name]));
        let struck = beside(cut, held.release(), victim.acquire(), async move {
            drop(rival.acquire().await.unwrap());
        })
        .await;
        scene.assert_free("a", name).await;
        scene.assert_free("z", name).await;
        struck
    }
    multi_try(scene, cut, name) {
        cut.strike(scene.victim.locks.multi([name, "a", "z"]).try_acquire().or_held()).await.is_some()
    }
    multi_renew(scene, cut, name) {
        let held = scene.victim.locks.multi([name, "a"]).acquire().await.unwrap();
        let struck = cut.strike(held.renew()).await.is_some();
        assert_eq!(held.release().await.unwrap(), Released::Released);
        scene.assert_free("a", name).await;
        struck
    }
    attach(scene, cut, name) {
        let (victim, other) = (&scene.victim.locks, &scene.other.locks);
        let detached = other.mutex(name).acquire().await.unwrap().detach().await.unwrap();
        if let Some(attached) = cut.strike(victim.attach(&detached)).await {
            assert_eq!(attached.unwrap().unwrap().release().await.unwrap(), Released::Released);
            return true;
        }
        // Nobody releases it by accident, though it may be attached for a moment.
        let mut held = None;
        eventually(PATIENCE, "its turn", async || {
            held = other.attach(&detached).await.unwrap_or_default();
            held.is_some()
        })
        .await;
        assert_eq!(held.unwrap().release().await.unwrap(), Released::Released);
        false
    }
    count_down(scene, cut, name) {
        let (victim, other) = (scene.victim.locks.latch(name, 2), scene.other.locks.latch(name, 2));
        let struck = cut.strike(victim.count_down()).await.is_some();
        other.count_down().await.unwrap();
        // The dropped one counts or not, and takes no place for long.
        eventually(PATIENCE, "the dropped one counts, or is gone", async || {
            let lock = info(&scene.other.locks, name).await.unwrap();
            lock.holders.iter().all(|holder| holder.released.is_some())
        })
        .await;
        let missing = other.missing().await.unwrap();
        assert!(missing <= u32::from(!struck), "{missing} {cut:?}");
        if missing == 1 {
            other.count_down().await.unwrap();
        }
        within(SOON, "the latch opens", other.wait()).await.unwrap();
        scene.other.locks.break_lock(name).await.unwrap();
        struck
    }
    multi_release(scene, cut, name) {
        let held = scene.victim.locks.multi([name, "a"]).acquire().await.unwrap();
        let struck = cut.strike(held.release()).await.is_some();
        scene.assert_free("a", name).await;
        struck
    }
    multi_lost(scene, cut, name) {
        let held = scene.victim.locks.multi([name, "a"]).acquire().await.unwrap();
        let (breaking, of) = (scene.other.locks.clone(), name.to_owned());
        let breaking = spawn(async move { breaking.break_lock(&of).await.unwrap() });
        let struck = cut.strike(held.lost()).await.is_some();
        breaking.await.unwrap();
        assert_eq!(within(PATIENCE, "the loss", held.lost()).await.name, name);
        struck
    }
    document_acquire(scene, cut, name) {
        scene.insert(name).await;
        let held = scene.other.events.acquire(name).await.unwrap();
        let (rival, id) = (scene.other.events.clone(), name.to_owned());
        let victim = scene.victim.events.acquire(name);
        beside(cut, held.release(), victim, async move { drop(rival.acquire(id).await.unwrap()) }).await
    }
    document_try(scene, cut, name) {
        scene.insert(name).await;
        cut.strike(scene.victim.events.try_acquire(name)).await.is_some()
    }
    claim(scene, cut, name) {
        scene.insert(name).await;
        cut.strike(scene.victim.events.claim(doc! { "_id": name })).await.is_some()
    }
    claim_of_what_is_held(scene, cut, name) {
        scene.insert(name).await;
        let held = scene.other.events.acquire(name).await.unwrap();
        let rival = scene.other.events.claim(doc! { "_id": name });
        let victim = scene.victim.events.claim(doc! { "_id": name });
        beside(cut, held.release(), victim, async move { drop(rival.await.unwrap()) }).await
    }
    try_claim(scene, cut, name) {
        scene.insert(name).await;
        cut.strike(scene.victim.events.try_claim(doc! { "_id": name })).await.is_some()
    }
    document_break_holder(scene, cut, name) {
        scene.insert(name).await;
        let held = scene.other.events.acquire(name).await.unwrap();
        let struck = cut.strike(scene.victim.events.break_holder(name, held.token())).await.is_some();
        if cut.polls == 0 {
            assert_eq!(held.lost_reason(), None);
        }
        if struck {
            assert_eq!(within(PATIENCE, "the loss", held.lost()).await, LostReason::Broken);
        }
        struck
    }
    document_run_that_deletes(scene, cut, name) {
        scene.insert(name).await;
        let claim = scene.victim.events.claim(doc! { "_id": name });
        let struck = cut.strike(claim.run(async |held| held.delete().await.unwrap())).await;
        let is_over = struck.is_some();
        if let Some(deleted) = struck {
            deleted.unwrap();
            assert_eq!(scene.find(name).await, None);
        }
        is_over
    }
    document_update(scene, cut, name) {
        scene.insert(name).await;
        let held = scene.victim.events.acquire(name).await.unwrap();
        let struck = cut.strike(held.update(doc! { "$inc": { "n": 1 } })).await.is_some();
        assert_eq!(held.release().await.unwrap(), Released::Released);
        let n = scene.find(name).await.unwrap().get_i32("n").unwrap();
        let done = if struck { 1..=1 } else if cut.polls == 0 { 0..=0 } else { 0..=1 };
        assert!(done.contains(&n), "{n} {cut:?}");
        struck
    }
    document_delete(scene, cut, name) {
        scene.insert(name).await;
        let held = scene.victim.events.acquire(name).await.unwrap();
        let struck = cut.strike(held.delete()).await.is_some();
        let released = held.release().await;
        match scene.find(name).await {
            Some(_) => assert!(!struck && released.is_ok_and(|released| released == Released::Released)),
            None => assert!(struck || cut.polls > 0),
        }
        struck
    }
    fenced_update(scene, cut, name) {
        let Some((ground, driver)) = &scene.driver else { return true };
        let accounts = ground.of(driver, "accounts");
        accounts.insert_one(doc! { "_id": name, "n": 0 }).await.unwrap();
        let held = scene.victim.locks.mutex(name).acquire().await.unwrap();
        let update = held.fence().update_one(&accounts, doc! { "_id": name }, doc! { "$inc": { "n": 1 } });
        let struck = cut.strike(update.into_future()).await.is_some();
        assert_eq!(held.release().await.unwrap(), Released::Released);
        struck
    }
    guard(scene, cut, name) {
        let Some((ground, driver)) = &scene.driver else { return true };
        let held = scene.victim.locks.mutex(name).acquire().await.unwrap();
        let mut session = transaction(driver).await;
        // What is dropped as the first operation of a transaction the driver can't abort.
        let accounts = ground.of(driver, "accounts");
        accounts.insert_one(doc! { "_id": name }).session(&mut session).await.unwrap();
        let struck = cut.strike(held.guard_transaction(&mut session)).await.is_some();
        session.abort_transaction().await.unwrap();
        drop(session);
        assert_eq!(held.release().await.unwrap(), Released::Released);
        struck
    }
}

/// Drops each function at each place until it comes to its end before.
async fn drop_everywhere(scene: &Scene) {
    for (function, case) in CASES {
        let mut places = 0;
        for polls in 0..MOST_POLLS {
            let mut ended = 0;
            for woken in [false, true] {
                let (cut, name) = (Cut { polls, woken }, format!("{function} {polls} {woken}"));
                ended += usize::from(case(scene, cut, &name).await);
                scene.assert_free(&name, &name).await;
            }
            places += 2 - ended;
            // Not each time there are as many places.
            if ended == 2 {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "{function} does not come to its end");
        }
        println!("{function}: dropped at {places} places");
        assert!(
            places > 0 || matches!(*function, "fenced_update" | "guard"),
            "{function}"
        );
    }
}

/// By when all tasks have ended. An operation that a busy machine holds up for too long counts as lost, and its entry
/// is taken out several times in the next 13 s; a task that was forgotten never ends.
const ALL_ENDED: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_dropped_anywhere_leaves_nothing_behind_in_memory() {
    let before = tasks();
    drop_everywhere(&Scene::at(documents::Scene::in_memory()).await).await;
    eventually(ALL_ENDED, "no task is left", async || tasks() <= before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_future_that_is_dropped_anywhere_leaves_nothing_behind_on_a_server() {
    let ground = Ground::replica_set("dropped_anywhere").await;
    let admin = ground.driver().await;
    // Its own tasks have begun.
    until_streaming(&ground, &admin, 0).await;
    let before = tasks();
    drop_everywhere(&Scene::at(documents::Scene::on(ground.clone()).await).await).await;
    until_streaming(&ground, &admin, 0).await;
    eventually(PATIENCE, "no cursor is left", async || {
        let operations = ground.operations(&admin).await;
        operations.iter().all(|operation| !operation.contains_key("cursor"))
    })
    .await;
    eventually(ALL_ENDED, "no task is left", async || tasks() <= before).await;
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}
