//! Latencies, in rounds that alternate with the raw driver commands they are compared with.
//!
//! The machine is shared and its noise comes and goes, so every round of a lock has a raw neighbour.

use std::time::Duration;

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::time::{Instant, sleep};
use watchlock::{
    Acquire, Held, LostReason, Released,
    action::{CanAcquire, One},
    locks::Mutex,
    operate::WakeMode,
};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    measure::{Compared, Hop, Samples, upserted_and_deleted},
    peer::{Peer, wait},
};

/// Number of rounds that are thrown away: connections are made, streams opened, and the server gets to know its
/// queries.
const WARM_UP: usize = 30;

/// The shortest lease there is, for the holder that dies.
const SHORT_LEASE: Duration = Duration::from_millis(500);

/// Pause before a loss, so that the holder is listening already; and before the raw write that it is compared with, as
/// a processor that has been idle takes longer to answer.
pub(crate) const LISTENING: Duration = Duration::from_millis(2);

/// Measures from the sending of a deletion to the arrival of its event.
pub(crate) async fn deleted(hop: &mut Hop, raw: &Collection<Document>) -> Result<Duration> {
    hop.after(raw.insert_one(doc! { "_id": "gone" }).into_future()).await?;
    sleep(LISTENING).await;
    Ok(hop.after(raw.delete_one(doc! { "_id": "gone" }).into_future()).await?)
}

/// Measures `acquire` and `release` of free locks, beside an upsert and a deletion of such ids: the least that any lock in a
/// document does. `name` has the name of each round.
pub(crate) async fn taken(cluster: &Cluster, rounds: usize, name: impl Fn(usize) -> String) -> Result<Compared> {
    let peer = Peer::new(cluster).await?;
    let raw = peer.raw();
    let compared = compare(
        rounds,
        async |round| Ok(upserted_and_deleted(raw.clone(), name(round)).await?),
        async |round| {
            let mutex = peer.locks.mutex(name(round));
            let sent = Instant::now();
            expect_released(mutex.acquire().await?.release().await?)?;
            Ok(sent.elapsed())
        },
    );
    let compared = compared.await?;
    peer.locks.shutdown().await;
    Ok(compared)
}

/// Compares rounds of a lock with raw commands, in turns.
pub(crate) async fn compare(
    rounds: usize,
    mut raw: impl AsyncFnMut(usize) -> Result<Duration>,
    mut lock: impl AsyncFnMut(usize) -> Result<Duration>,
) -> Result<Compared> {
    let mut compared = Compared::default();
    for round in 0..WARM_UP + rounds {
        let raw = raw(round).await?;
        let lock = lock(round).await?;
        compared.push(round >= WARM_UP, Some(raw), lock);
    }
    Ok(compared)
}

/// A client that holds, one that waits in the queue for it, and one that looks whether it does.
#[derive(Debug)]
struct Trio {
    holder: Peer,
    waiter: Peer,
    observer: Peer,
}

impl Trio {
    async fn of(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            holder: Peer::new(cluster).await?,
            waiter: Peer::new(cluster).await?,
            observer: Peer::new(cluster).await?,
        })
    }

    /// Measures from the call of `release` by the holder of `held` until `wanted` has returned in the other client.
    async fn hand_over<H: CanAcquire<Count = One>, T: CanAcquire<Count = One>>(
        &self,
        name: &str,
        held: Acquire<H>,
        wanted: Acquire<T>,
        waited: Duration,
    ) -> Result<Duration>
    where
        Held<T::Held>: Into<Held>,
    {
        let held = held.await?;
        let waiting = wait(wanted);
        self.observer.until_queued(name, 1).await?;
        if waited.is_zero() {
            // A sleep of no time would let the processors idle until the timer's next millisecond, which the raw hop
            // has not. A write is answered once a majority has what was written before it, so the waiter's entry too.
            let written = doc! { "$set": { "seen": true } };
            // Not in the collection of the hop, whose stream would report it.
            let queued = self.observer.collection("queued");
            queued.update_one(doc! { "_id": name }, written).upsert(true).await?;
        } else {
            sleep(waited).await;
        }

        let called = Instant::now();
        expect_released(held.release().await?)?;
        let acquired = waiting.await??;
        expect_released(acquired.handle.release().await?)?;
        Ok(acquired.at - called)
    }

    /// Compares rounds of a hand-over, each beside a raw hop the same way.
    async fn compare(
        &self,
        rounds: usize,
        mut hand_over: impl AsyncFnMut(usize) -> Result<Duration>,
    ) -> Result<Compared> {
        let mut hop = Hop::between(self.holder.raw(), self.waiter.raw()).await?;
        let by_stream = async |round| {
            let lock = hand_over(round).await?;
            match self.waiter.locks.wake_mode() {
                WakeMode::ChangeStream => Ok(lock),
                mode => Err(format!("the waiter is woken by {mode}").into()),
            }
        };
        compare(rounds, async |_| Ok(hop.once().await?), by_stream).await
    }

    async fn shutdown(self) {
        for peer in [self.holder, self.waiter, self.observer] {
            peer.locks.shutdown().await;
        }
    }
}

/// Measures from the call of `release` until `acquire` has returned in another client that stands in the queue.
pub(crate) async fn handoff(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let trio = Trio::of(cluster).await?;
    let name = "handed over";
    let (held, wanted) = (trio.holder.locks.mutex(name), trio.waiter.locks.mutex(name));
    let one = async |_| {
        trio.hand_over(name, held.acquire(), wanted.acquire(), Duration::ZERO)
            .await
    };
    let compared = trio.compare(rounds, one).await?;
    trio.shutdown().await;
    Ok(compared)
}

/// Measures the same of a readers-writer lock: from a writer to a reader, and from a reader to a writer, in turns.
pub(crate) async fn rw_lock_handoff(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let trio = Trio::of(cluster).await?;
    let name = "read and written";
    let (held, wanted) = (trio.holder.locks.rw_lock(name), trio.waiter.locks.rw_lock(name));
    let one = async |round: usize| {
        if round.is_multiple_of(2) {
            trio.hand_over(name, held.write(), wanted.read(), Duration::ZERO).await
        } else {
            trio.hand_over(name, held.read(), wanted.write(), Duration::ZERO).await
        }
    };
    let compared = trio.compare(rounds, one).await?;
    trio.shutdown().await;
    Ok(compared)
}

/// Measures the same of the last of four permits, while others hold the other three.
pub(crate) async fn semaphore_handoff(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let trio = Trio::of(cluster).await?;
    let name = "one of four";
    let semaphore = |peer: &Peer| peer.locks.semaphore(name, 4);
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(semaphore(&trio.observer).acquire().await?);
    }
    let (held, wanted) = (semaphore(&trio.holder), semaphore(&trio.waiter));
    let one = async |_| {
        trio.hand_over(name, held.acquire(), wanted.acquire(), Duration::ZERO)
            .await
    };
    let compared = trio.compare(rounds, one).await?;
    for other in others {
        expect_released(other.release().await?)?;
    }
    trio.shutdown().await;
    Ok(compared)
}

/// Measures from the call of the release until the next leader's `campaign` has returned.
pub(crate) async fn election_failover(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let trio = Trio::of(cluster).await?;
    let name = "led";
    let (led, wanted) = (trio.holder.locks.election(name), trio.waiter.locks.election(name));
    let one = async |_| {
        let leading = led.campaign("the present one").await?;
        let campaign = wanted.campaign("the next one");
        let next = tokio::spawn(async move { campaign.await.map(|leading| (leading, Instant::now())) });
        trio.observer.until_queued(name, 1).await?;

        let called = Instant::now();
        expect_released(leading.release().await?)?;
        let (leading, at) = next.await??;
        expect_released(leading.release().await?)?;
        Ok(at - called)
    };
    let compared = trio.compare(rounds, one).await?;
    trio.shutdown().await;
    Ok(compared)
}

/// Measures a mutex without a change stream, for a waiter that has waited for 50 to 100 ms.
pub(crate) async fn polling_handoff(cluster: &Cluster, rounds: usize) -> Result<Samples> {
    let trio = Trio::of(cluster).await?;
    let name = "handed over";
    let (held, wanted) = (trio.holder.locks.mutex(name), trio.waiter.locks.mutex(name));
    let mut samples = Samples::default();
    for round in 0..rounds {
        // Spread out, so that the release does not always meet the same moment between two polls.
        let waited = Duration::from_millis(50 + u64::try_from(round * 17 % 50)?);
        samples.push(trio.hand_over(name, held.acquire(), wanted.acquire(), waited).await?);
    }
    Ok(samples)
}

/// Measures from the deletion of a lock's document, by a command of another program's, until `lost` has resolved in the
/// holder.
pub(crate) async fn lost_by_delete(cluster: &Cluster, rounds: usize) -> Result<Compared> {
    let (other, holder) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(other.raw(), holder.raw()).await?;
    let (raw_documents, documents) = (other.raw(), other.locks_documents());
    let mutex = listening(&holder, "deleted").await?;
    let delete = async || documents.delete_one(doc! { "_id": "deleted" }).await.map(drop);
    let compared = compare(
        rounds,
        async |_| deleted(&mut hop, &raw_documents).await,
        async |_| Ok(lose(&mutex, LostReason::Deleted, async || Ok(delete().await?)).await?.0),
    );
    let compared = compared.await?;
    for peer in [other, holder] {
        peer.locks.shutdown().await;
    }
    Ok(compared)
}

/// Measures from the call of `break_lock` until `lost` has resolved in the holder; and beside it the command alone, as
/// how much of that is the signal's own: until `break_lock` has returned, and a raw update.
pub(crate) async fn lost(cluster: &Cluster, rounds: usize) -> Result<(Compared, Compared)> {
    let (operator, holder) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut hop = Hop::between(operator.raw(), holder.raw()).await?;
    let mutex = listening(&holder, "broken").await?;
    let (mut compared, mut commands) = (Compared::default(), Compared::default());
    // Not in the collection of the hop, whose stream would report it.
    let written = operator.collection("written");
    for round in 0..WARM_UP + rounds {
        sleep(LISTENING).await;
        let raw = hop.once().await?;
        let sent = Instant::now();
        written
            .update_one(doc! { "_id": "written" }, doc! { "$set": { "round": round as i64 } })
            .upsert(true)
            .await?;
        let update = sent.elapsed();
        let breaking = async || Ok(operator.locks.break_lock("broken").await.map(drop)?);
        let (lost, broken) = lose(&mutex, LostReason::Broken, breaking).await?;
        compared.push(round >= WARM_UP, Some(raw), lost);
        commands.push(round >= WARM_UP, Some(update), broken);
    }
    for peer in [operator, holder] {
        peer.locks.shutdown().await;
    }
    Ok((compared, commands))
}

/// Returns a mutex whose holder listens for its loss: no stream is opened for one before it has held for some time, and it
/// stays open from then on.
async fn listening(holder: &Peer, name: &str) -> Result<Mutex> {
    let mutex = holder.locks.mutex(name);
    let held = mutex.acquire().await?;
    sleep(Duration::from_secs(1)).await;
    held.release().await?;
    Ok(mutex)
}

/// Takes a mutex, and has it taken away. Measures until its holder knows, and until the command has returned.
async fn lose(
    mutex: &Mutex,
    expected: LostReason,
    take_away: impl AsyncFnOnce() -> Result<()>,
) -> Result<(Duration, Duration)> {
    let held = mutex.acquire().await?;
    let losing = tokio::spawn(async move { (held.lost().await, Instant::now()) });
    sleep(LISTENING).await;
    let called = Instant::now();
    take_away().await?;
    let returned = called.elapsed();
    let (reason, at) = losing.await?;
    if reason != expected {
        return Err(format!("a lock was lost for another reason: {reason}").into());
    }
    Ok((at - called, returned))
}

/// Measures from the end of a dead holder's lease, on the server's clock, until `acquire` has returned in a waiter.
///
/// Servers and clients are on one machine, so the server's clock is the system's.
pub(crate) async fn expiry(cluster: &Cluster, rounds: usize) -> Result<Samples> {
    let (waiter, observer) = (Peer::new(cluster).await?, Peer::new(cluster).await?);
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let uri = cluster.uri();
        tokio::task::spawn_blocking(move || acquire_and_die(&uri, "expired")).await??;
        let waiting = wait(waiter.locks.mutex("expired").acquire());
        let lock = observer.until_queued("expired", 1).await?;
        let until = lock
            .holders
            .first()
            .ok_or("nobody holds the lock of the dead holder")?
            .until;
        let acquired = waiting.await??;
        samples.push(acquired.at_clock.duration_since(until)?);
        expect_released(acquired.handle.release().await?)?;
    }
    for peer in [waiter, observer] {
        peer.locks.shutdown().await;
    }
    Ok(samples)
}

/// Ends as a killed process does: everything that would renew or release the lock stops with its runtime.
fn acquire_and_die(uri: &str, name: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let peer = Peer::with_lease(uri, SHORT_LEASE).await?;
        std::mem::forget(peer.locks.mutex(name).acquire().await?);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    runtime.shutdown_background();
    Ok(())
}

pub(crate) fn expect_released(released: Released) -> Result<()> {
    if released != Released::Released {
        return Err("a lock was lost while it was measured".into());
    }
    Ok(())
}
