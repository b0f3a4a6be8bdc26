//! The work of a service's tasks: locks of every kind, held shortly and for long, waited for, tried and given up.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mongodb::bson::{Document, doc};
use tokio::{sync::watch, time::sleep};
use watchlock::{action::CanAcquire, locks::MultiLock};

use super::{
    Tally,
    ledger::{Asked, WRITER},
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
        let (asked, acquire): (Asked, Acquiring) = match self {
            Self::Short => (service.ask(SHORT, 1), lock(locks.mutex(SHORT).acquire())),
            Self::GivesUp => {
                gives_up = Some(random.millis(0..30));
                (service.ask(SHORT, 1), lock(locks.mutex(SHORT).acquire()))
            }
            Self::Long => {
                hold = random.millis(500..6_000);
                gives_up = Some(random.millis(0..5_000)).filter(|_| random.chance(30));
                (service.ask(LONG, 1), lock(locks.mutex(LONG).acquire()))
            }
            Self::Tries => {
                let name = random.pick(&[SHORT, LONG]);
                let acquire = locks.mutex(name).try_acquire().timeout(PATIENCE);
                let acquire = async move { Ok(acquire.await?.map(|handle| Held::Lock(handle.into()))) };
                (service.ask(name, 1), Box::pin(acquire))
            }
            Self::Semaphore => {
                hold = random.millis(0..400);
                let acquire = locks
                    .semaphore("permits", PERMITS)
                    .acquire_many(random.pick(&[1, 1, 2]));
                (service.ask("permits", PERMITS.into()), lock(acquire))
            }
            Self::ReadersWriters => {
                hold = random.millis(0..250);
                let rw_lock = locks.rw_lock("shelf");
                let writes = random.chance(15);
                let acquire = if writes {
                    lock(rw_lock.write())
                } else {
                    lock(rw_lock.read())
                };
                (service.ask("shelf", WRITER), acquire)
            }
            Self::Election => {
                hold = random.millis(500..4_000);
                let campaign = locks.election("leader").campaign(&service.label).timeout(PATIENCE);
                let acquire = async move { Ok(Some(Held::Leader(campaign.await?))) };
                (service.ask("leader", 1), Box::pin(acquire))
            }
            Self::Document => return document(service, tally, random).await,
            Self::Claim => return claim(service, random).await,
            Self::Multi => return multi(service, random).await,
            Self::Once => return once(service, tally).await,
        };
        let Some(held) = service.wait(&asked, acquire, gives_up).await else {
            return false;
        };
        let view = held.view();
        let Some(holds) = asked.granted(view.clone()) else {
            return false;
        };
        if !service.hold(&view, hold).await {
            return false;
        }
        if let Held::Leader(leadership) = &held
            && let Err(error) = leadership.proclaim("still here").await
        {
            service.ledger.complain(format!("proclaiming: {error:?}"));
        }
        service.let_go(held, holds, random.chance(75)).await;
        true
    }
}

fn lock<T: CanAcquire>(acquire: watchlock::Acquire<T>) -> Acquiring
where
    watchlock::Held<T::Held>: Into<watchlock::Held>,
{
    Box::pin(async move { Ok(Some(Held::Lock(acquire.timeout(PATIENCE).await?.into()))) })
}

/// Reads a number, adds one and writes it back, under the lock of its document.
async fn document(service: &Service, tally: &Tally, random: &mut Random) -> bool {
    let id = i32::try_from(random.within(0..4)).unwrap_or(0) % DOCUMENTS;
    let name = format!("document {id}");
    let acquire = service.jobs.acquire(id).timeout(PATIENCE);
    let acquire = Box::pin(async move { Ok(Some(Held::Document(Box::new(acquire.await?)))) });
    let asked = service.ask(&name, 1);
    let Some(held) = service.wait(&asked, acquire, None).await else {
        return false;
    };
    let Some(holds) = asked.granted(held.view()) else {
        return false;
    };
    if !service.hold(&held.view(), random.millis(0..50)).await {
        return false;
    }
    if let Held::Document(handle) = &held {
        let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
        match handle.update(doc! { "$set": { "count": count } }).await {
            Ok(_) => drop(tally.counted.add(1)),
            Err(error) => service.ledger.complain(format!("{name}: the update: {error:?}")),
        }
    }
    service.let_go(held, holds, random.chance(75)).await;
    true
}

/// Claims any of some documents.
async fn claim(service: &Service, random: &mut Random) -> bool {
    // The claimed one is not known in advance, so all are asked for.
    let mut asked: HashMap<String, Asked> = (DOCUMENTS..DOCUMENTS + CLAIMED)
        .map(|id| format!("document {id}"))
        .map(|name| (name.clone(), service.ask(&name, 1)))
        .collect();
    let claim = service
        .jobs
        .claim(doc! { "claimed": true })
        .sort(doc! { "count": 1 })
        .timeout(PATIENCE);
    let handle = match claim.await {
        Ok(handle) => handle,
        Err(error) => {
            service
                .ledger
                .complain(format!("{}: a claim: {error:?}", service.label));
            return false;
        }
    };
    let name = format!("document {}", handle.id().as_i32().unwrap_or(-1));
    let held = Held::Document(Box::new(handle));
    let view = held.view();
    let Some(holds) = asked.remove(&name).and_then(|asked| asked.granted(view.clone())) else {
        return false;
    };
    drop(asked);
    if !service.hold(&view, random.millis(0..2_000)).await {
        return false;
    }
    service.let_go(held, holds, random.chance(75)).await;
    true
}

/// Locks two or three of a few mutexes.
async fn multi(service: &Service, random: &mut Random) -> bool {
    let first = random.within(0..PARTS);
    let names: Vec<String> = (0..random.within(2..4))
        .map(|part| format!("part {}", (first + part) % PARTS))
        .collect();
    let asked: Vec<Asked> = names.iter().map(|name| service.ask(name, 1)).collect();
    let handle: watchlock::Held<MultiLock> = match service.locks.multi(&names).acquire().timeout(PATIENCE).await {
        Ok(handle) => handle,
        Err(error) => {
            service.ledger.complain(format!("{names:?}: {error:?}"));
            return false;
        }
    };
    let view = handle.view();
    let parts = names.iter().zip(asked);
    let holds: Vec<_> = parts.map(|(name, asked)| asked.granted(view.part(name)?)).collect();
    sleep(random.millis(0..100)).await;
    if let Err(lost) = view.check() {
        service.ledger.complain(format!("{names:?}: {lost}"));
    }
    if let Err(error) = handle.release().await {
        service.ledger.complain(format!("{names:?}: the release: {error:?}"));
    }
    drop(holds);
    true
}

/// Locks a name that is used once: each adds a document, until it is purged.
async fn once(service: &Service, tally: &Tally) -> bool {
    let name = format!("once {}", tally.names.add(1));
    match service.locks.mutex(name).acquire().timeout(PATIENCE).await {
        Ok(handle) => drop(handle),
        Err(error) => {
            service.ledger.complain(format!("{}: {error:?}", service.label));
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
                return service
                    .ledger
                    .complain(format!("an observer came to its end: {ended:?}"));
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
