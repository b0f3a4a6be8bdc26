//! The work of a service's tasks: locks of every kind, held shortly and for long, waited for, tried and given up.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Document, doc};
use tokio::{sync::watch, time::sleep};
use watchlock::action::CanAcquire;

use super::{
    Tally,
    service::{Acquiring, PATIENCE, Service},
};
use crate::{client::Held, random::Random};

/// The mutex for which short critical sections queue up.
const SHORT: &str = "short";

/// The mutex that is held for longer, and that clients die with.
pub(super) const LONG: &str = "long";

const PERMITS: u32 = 3;

/// Number of documents that are locked by their ids.
pub(super) const DOCUMENTS: i32 = 4;

/// Number of documents of which any will do.
const CLAIMED: i32 = 5;

/// Number of names that multi-locks are made of.
const PARTS: u64 = 5;

/// The repeated work of one task.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Short critical sections under one mutex.
    Short,
    /// The same, but most acquires are dropped soon.
    GivesUp,
    /// Held over renewals.
    Long,
    Tries,
    Semaphore,
    ReadersWriters,
    Election,
    Document,
    Claim,
    Multi,
    /// A name that nobody has used before, nor will again.
    Once,
}

/// The works of each service at once.
pub(super) const MIXTURE: [Work; 15] = [
    Work::Short,
    Work::Short,
    Work::GivesUp,
    Work::Long,
    Work::Tries,
    Work::Semaphore,
    Work::Semaphore,
    Work::ReadersWriters,
    Work::ReadersWriters,
    Work::ReadersWriters,
    Work::Election,
    Work::Document,
    Work::Claim,
    Work::Multi,
    Work::Once,
];

impl Work {
    /// Works until everything is to stop.
    pub(super) async fn go_on(
        self,
        service: Arc<Service>,
        tally: Arc<Tally>,
        mut random: Random,
        mut stopping: watch::Receiver<bool>,
    ) {
        while !*stopping.borrow() {
            if self.once(&service, &tally, &mut random).await {
                tally.operations.add(1);
            }
            let pause = match self {
                Self::Once => random.millis(400..1_000),
                Self::Long | Self::Election => random.millis(1_000..4_000),
                _ => random.millis(500..2_500),
            };
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Works once. Returns whether it got a lock.
    async fn once(self, service: &Service, tally: &Tally, random: &mut Random) -> bool {
        let locks = &service.locks;
        let (mut gives_up, mut hold) = (None, random.millis(0..15));
        let acquire: Acquiring = match self {
            Self::Short => lock(locks.mutex(SHORT).acquire()),
            Self::GivesUp => {
                gives_up = Some(random.millis(0..30));
                lock(locks.mutex(SHORT).acquire())
            }
            Self::Long => {
                hold = random.millis(500..6_000);
                gives_up = Some(random.millis(0..5_000)).filter(|_| random.chance(30));
                lock(locks.mutex(LONG).acquire())
            }
            Self::Tries => {
                let acquire = locks.mutex(random.pick(&[SHORT, LONG])).try_acquire().timeout(PATIENCE);
                Box::pin(async move { Ok(acquire.await?.map(|handle| Held::Lock(handle.into()))) })
            }
            Self::Semaphore => {
                hold = random.millis(0..400);
                let permits = random.pick(&[1, 1, 2]);
                lock(locks.semaphore("permits", PERMITS).acquire_many(permits))
            }
            Self::ReadersWriters => {
                hold = random.millis(0..250);
                let rw_lock = locks.rw_lock("shelf");
                if random.chance(15) {
                    lock(rw_lock.write())
                } else {
                    lock(rw_lock.read())
                }
            }
            Self::Election => {
                hold = random.millis(500..4_000);
                let campaign = locks.election("leader").campaign(&service.label).timeout(PATIENCE);
                Box::pin(async move { Ok(Some(Held::Leader(campaign.await?))) })
            }
            Self::Document => {
                hold = random.millis(0..50);
                let id = i32::try_from(random.within(0..4)).unwrap_or(0) % DOCUMENTS;
                let acquire = service.jobs.acquire(id).timeout(PATIENCE);
                Box::pin(async move { Ok(Some(Held::Document(Box::new(acquire.await?)))) })
            }
            Self::Claim => {
                hold = random.millis(0..2_000);
                let claim = service.jobs.claim(doc! { "claimed": true }).sort(doc! { "count": 1 });
                Box::pin(async move { Ok(Some(Held::Document(Box::new(claim.timeout(PATIENCE).await?)))) })
            }
            Self::Multi => return multi(service, random).await,
            Self::Once => return once(service, tally).await,
        };
        let Some(held) = service.wait(acquire, gives_up).await else {
            return false;
        };
        if !service.hold(&held.parts()[0], hold).await {
            return false;
        }
        match &held {
            Held::Leader(leadership) => {
                if let Err(error) = leadership.proclaim("still here").await {
                    service.complain(format!("proclaiming: {error:?}"));
                }
            }
            // Reads a number, adds one and writes it back.
            Held::Document(handle) => {
                let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
                match handle.update(doc! { "$set": { "count": count } }).await {
                    Ok(_) => drop(tally.counted.add(1)),
                    Err(error) => service.complain(format!("{:?}: the update: {error:?}", handle.id())),
                }
            }
            Held::Lock(_) | Held::Upgradeable(_) | Held::Several(_) => {}
        }
        service.let_go(held, random.chance(75)).await;
        true
    }
}

fn lock<T: CanAcquire>(acquire: watchlock::Acquire<T>) -> Acquiring
where
    watchlock::Held<T::Held>: Into<watchlock::Held>,
{
    Box::pin(async move { Ok(Some(Held::Lock(acquire.timeout(PATIENCE).await?.into()))) })
}

/// Locks two or three of a few mutexes.
async fn multi(service: &Service, random: &mut Random) -> bool {
    let first = random.within(0..PARTS);
    let parts = (0..random.within(2..4)).map(|part| format!("part {}", (first + part) % PARTS));
    let handle = match service.locks.multi(parts).acquire().timeout(PATIENCE).await {
        Ok(handle) => handle,
        Err(error) => {
            service.complain(format!("several: {error:?}"));
            return false;
        }
    };
    sleep(random.millis(0..100)).await;
    if let Err(lost) = handle.check() {
        service.complain(format!("several: {lost}"));
    }
    if let Err(error) = handle.release().await {
        service.complain(format!("several: the release: {error:?}"));
    }
    true
}

/// Locks a name that is used once: each adds a document, until it is purged.
async fn once(service: &Service, tally: &Tally) -> bool {
    let name = format!("once {}", tally.names.add(1));
    match service.locks.mutex(&name).acquire().timeout(PATIENCE).await {
        Ok(handle) => drop(handle),
        Err(error) => {
            service.complain(format!("{name}: {error:?}"));
            return false;
        }
    }
    true
}

/// Watches all events, until everything is to stop.
pub(super) async fn observe(service: Arc<Service>, mut stopping: watch::Receiver<bool>) {
    let mut events = service.locks.watch_all();
    let mut leaders = service.locks.election("leader").observe();
    loop {
        let seen = tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => return,
            event = events.next() => event.map(|event| event.map(drop)),
            leader = leaders.next() => leader.map(|leader| leader.map(drop)),
        };
        match seen {
            Some(Ok(())) => {}
            ended => {
                return service.complain(format!("an observer came to its end: {ended:?}"));
            }
        }
    }
}

/// Returns the documents that are locked in place.
pub(super) fn documents() -> Vec<Document> {
    (0..DOCUMENTS + CLAIMED)
        .map(|id| doc! { "_id": id, "count": 0_i64, "claimed": id >= DOCUMENTS })
        .collect()
}

/// Returns a pause that is never quite the same.
pub(super) fn about(seconds: u64, random: &mut Random) -> Duration {
    random.millis(500 * seconds..1_500 * seconds)
}
