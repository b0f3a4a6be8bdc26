//! The ways to ask for a lock.

use std::{collections::BTreeSet, pin::Pin, time::Duration};

use tokio::{sync::watch, time::timeout};
use watchlock::{
    Acquire,
    action::{CanAcquire, One, Try},
    errors::AcquireError,
};

use super::{
    Actor, Way,
    holding::{Held, Left, Look, look},
};
use crate::{
    clock::now,
    locks::{CROSSED, Kind, Share},
    record::{End, Upon, What},
};

/// A request that is about to be made.
pub(super) struct Asked<'a> {
    /// The operation of its first part.
    pub(super) op: u64,
    pub(super) task: usize,
    /// More than one of a multi-lock, sorted by name.
    pub(super) parts: &'a [(&'a str, Share)],
    pub(super) upon: Option<Upon>,
    pub(super) way: Way,
}

/// An acquire of any kind, on its way.
pub(super) type Acquiring<'a> = Pin<Box<dyn Future<Output = Result<Option<Held>, AcquireError>> + Send + 'a>>;

impl Actor {
    /// Waits for an acquire. One that is on its way when everything is to stop is dropped.
    ///
    /// There is no await between the request's line and the first poll of the acquire, and the runtime has one thread:
    /// the order of the lines is the order in which the tasks get in line.
    pub(super) async fn ask(
        &self,
        asked: Asked<'_>,
        acquiring: Acquiring<'_>,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<Held> {
        let Asked {
            op,
            task,
            parts,
            upon,
            way,
        } = asked;
        for (op, (name, share)) in (op..).zip(parts) {
            let request = What::Request {
                name: (*name).to_owned(),
                share: *share,
                task,
                waits: !matches!(way, Way::Tries),
                limit: match way {
                    Way::Waits(limit) => u64::try_from(limit.as_millis()).ok(),
                    _ => None,
                },
                upon: upon.clone(),
            };
            self.log(op, now(), request);
        }
        let patience = match way {
            Way::Dropped(after) => after,
            // Tries of documents have no timeout of their own.
            Way::Tries => Duration::from_secs(30),
            // The judge sees it, if it does not end by itself.
            Way::Waits(_) => Duration::MAX,
        };
        let acquired = tokio::select! {
            biased;
            acquired = timeout(patience, acquiring) => acquired.ok(),
            _ = stopping.wait_for(|stop| *stop) => None,
        };
        let (how, error) = match acquired {
            Some(Ok(Some(held))) => return self.granted(op, held),
            None => (End::Cancelled, None),
            Some(Ok(None) | Err(AcquireError::Held { .. })) => (End::NotFree, None),
            Some(Err(AcquireError::Timeout { .. } | AcquireError::Unanswered { .. })) => (End::TimedOut, None),
            Some(Err(AcquireError::Deadlock(deadlock))) => {
                let names: BTreeSet<&str> = deadlock.locks.iter().map(|lock| lock.name.as_str()).collect();
                if names != CROSSED.iter().map(|lock| lock.name).collect() {
                    let text = deadlock.to_string();
                    self.log(op, now(), What::Complaint { text });
                }
                (End::Deadlock, None)
            }
            Some(Err(error)) => (End::Failed, Some(error.to_string())),
        };
        for (op, _) in (op..).zip(parts) {
            let error = error.clone();
            self.log(op, now(), What::Ended { how, error });
        }
        None
    }

    /// Records a grant; `None` if it came too late.
    fn granted(&self, op: u64, held: Held) -> Option<Held> {
        let parts = held.parts();
        let looks = look(&parts);
        let is_lost = looks.iter().any(|look| look.lost.is_some());
        for (op, (view, Look { at, safe_for, .. })) in (op..).zip(parts.iter().zip(looks)) {
            let token = view.token().as_i64();
            let what = match is_lost {
                true => What::GrantedTooLate { token },
                false => What::Granted { token, safe_for },
            };
            self.log(op, at, what);
        }
        (!is_lost).then_some(held)
    }

    /// Returns an acquire of a lock, or of several as a multi-lock.
    pub(super) fn acquire(&self, parts: &[(&'static str, Share)], way: Way, reason: String) -> Acquiring<'_> {
        let limit = limit(way);
        let tries = matches!(way, Way::Tries);
        let &[(name, share)] = parts else {
            return self.acquire_several(parts, way, reason);
        };
        if share.kind == Kind::Document {
            return Box::pin(async move {
                let handle = if tries {
                    self.jobs.try_acquire(name).reason(reason).await?
                } else {
                    Some(self.jobs.acquire(name).timeout(limit).reason(reason).await?)
                };
                Ok(handle.map(|handle| Held::Document(Box::new(handle))))
            });
        }
        if share.kind == Kind::Election {
            // There is no try: asking without waiting comes closest.
            let limit = if tries { Duration::ZERO } else { limit };
            let campaign = self
                .locks
                .election(name)
                .campaign(&self.label)
                .timeout(limit)
                .reason(reason);
            return Box::pin(async move { Ok(Some(Held::Leader(campaign.await?))) });
        }
        let (mutex, lock) = (self.locks.mutex(name), self.locks.rw_lock(name));
        let semaphore = self.locks.semaphore(name, share.capacity);
        if share == Share::upgradeable_reader() {
            return Box::pin(async move {
                let handle = if tries {
                    let attempt = lock.try_upgradeable_read().timeout(limit);
                    attempt.reason(reason).await?
                } else {
                    Some(lock.upgradeable_read().timeout(limit).reason(reason).await?)
                };
                Ok(handle.map(Held::Upgradeable))
            });
        }
        match share.kind {
            Kind::Semaphore => {
                let (waits, tries) = (
                    semaphore.acquire_many(share.permits),
                    semaphore.try_acquire_many(share.permits),
                );
                asked(waits, tries, way, reason)
            }
            Kind::RwLock if share.is_exclusive() => asked(lock.write(), lock.try_write(), way, reason),
            Kind::RwLock => asked(lock.read(), lock.try_read(), way, reason),
            _ => asked(mutex.acquire(), mutex.try_acquire(), way, reason),
        }
    }

    fn acquire_several(&self, parts: &[(&'static str, Share)], way: Way, reason: String) -> Acquiring<'_> {
        let part = |(name, share): &(&'static str, Share)| match share.kind {
            Kind::Semaphore => self.locks.semaphore(*name, share.capacity).part(share.permits),
            Kind::RwLock if share.is_exclusive() => self.locks.rw_lock(*name).write_part(),
            Kind::RwLock => self.locks.rw_lock(*name).read_part(),
            _ => self.locks.mutex(*name).part(),
        };
        // They are given in the wrong order.
        let multi = self.locks.multi(parts.iter().rev().map(part));
        let limit = limit(way);
        Box::pin(async move {
            let handle = if matches!(way, Way::Tries) {
                multi.try_acquire().timeout(limit).reason(reason).await?
            } else {
                Some(multi.acquire().timeout(limit).reason(reason).await?)
            };
            Ok(handle.map(Held::Several))
        })
    }

    /// Returns an attempt to take up a hold that was left behind. Nobody has to try again once it is taken up, or over.
    pub(super) fn attach<'a>(&'a self, left: &'a Left) -> Acquiring<'a> {
        Box::pin(async move {
            let attached = self.locks.attach(&left.hold).await?;
            left.remove(&self.left);
            Ok(attached.map(Held::Lock))
        })
    }
}

/// Returns the time after which an acquire gives up by itself.
pub(super) fn limit(way: Way) -> Duration {
    match way {
        Way::Waits(timeout) => timeout,
        // Much longer than it waits before it is dropped.
        Way::Dropped(_) => Duration::from_secs(60),
        Way::Tries => Duration::from_secs(10),
    }
}

/// Waits for a lock of any kind, or tries.
pub(super) fn asked<T: CanAcquire<Count = One>>(
    acquire: Acquire<T>,
    attempt: Acquire<T, Try>,
    way: Way,
    reason: String,
) -> Acquiring<'static>
where
    watchlock::Held<T::Held>: Into<watchlock::Held>,
{
    let limit = limit(way);
    if matches!(way, Way::Tries) {
        let attempt = attempt.timeout(limit).reason(reason);
        return Box::pin(async move { Ok(attempt.await?.map(|handle| Held::Lock(handle.into()))) });
    }
    let acquire = acquire.timeout(limit).reason(reason);
    Box::pin(async move { Ok(Some(Held::Lock(acquire.await?.into()))) })
}
