//! Holds, tasks and waitlists of plain values: for the model, the fuzzing, and the unit tests of single files.

use tokio::time::Instant;

use super::{Context, Grant, Hold, LeftAs, RemainingLease};
use crate::protocol::Use;

/// A hold of plain values; numbers stand for the tasks and releases that are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainHold {
    pub entry: String,
    pub used: Use,
    pub permits: i64,
    pub token: i64,
    /// The token of its entry in the document.
    pub granted_as: i64,
    pub deadline: Instant,
    /// When its lease is no other task's to have any more, as it is due to be renewed.
    pub renew_at: Instant,
    /// Whether its task has released it.
    pub released: bool,
    pub left_as: LeftAs,
    pub is_idle: bool,
}

impl Hold for PlainHold {
    type Task = u64;
    type Release = u64;

    fn of_grant(_: &str, entry: &str, grant: &Grant, _: Option<&Self>, _: &Context<'_>) -> Self {
        Self {
            entry: entry.to_owned(),
            used: grant.used,
            permits: i64::try_from(grant.permits).unwrap_or(i64::MAX),
            token: grant.token,
            granted_as: grant.granted_as,
            deadline: grant.deadline,
            renew_at: grant.deadline,
            released: false,
            left_as: LeftAs::Free,
            is_idle: false,
        }
    }

    fn idle(&self, left: RemainingLease) -> Self {
        Self {
            deadline: left.deadline,
            is_idle: true,
            ..self.clone()
        }
    }

    fn entry(&self) -> &str {
        &self.entry
    }

    fn used(&self) -> Use {
        self.used
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.entry, self.token, self.is_idle) == (&other.entry, other.token, other.is_idle)
    }

    fn enter(&self, permits: i64) -> bool {
        self.permits == permits && !self.released
    }

    fn given_back(&self) {}

    fn is_over(&self) -> bool {
        self.released
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn released_lease(&self) -> Option<RemainingLease> {
        (self.released && self.left_as == LeftAs::Free).then_some(RemainingLease {
            deadline: self.deadline,
            renew_at: self.renew_at,
        })
    }

    fn shared_lease(&self) -> Option<RemainingLease> {
        Some(RemainingLease {
            deadline: self.deadline,
            renew_at: self.renew_at,
        })
    }

    fn left_as(&self) -> LeftAs {
        self.left_as.clone()
    }
}

#[cfg(test)]
pub(super) use of_tests::*;

#[cfg(test)]
mod of_tests {
    use super::{
        super::{
            AcquireOptions, Held, Patience, Stage, StreamState, Waiting, Waitlist, clock::ServerClock, ids::Ids,
            prospect::Prospect,
        },
        *,
    };
    use std::{collections::VecDeque, sync::Arc, time::Duration};

    use crate::{
        config::Config,
        hold_options::Terms,
        protocol::{CapacityIs, Entry, Kind, Owner, ServerTime, State, fixtures},
    };

    pub(in crate::waitlist) const MUTEX: (Use, i64) = ((Kind::Mutex, 1), 1);
    pub(in crate::waitlist) const READER: (Use, i64) = ((Kind::RwLock, 1_000), 1);
    pub(in crate::waitlist) const WRITER: (Use, i64) = ((Kind::RwLock, 1_000), 1_000);
    pub(in crate::waitlist) const PERMIT: (Use, i64) = ((Kind::Semaphore, 4), 1);

    /// The server's time.
    pub(in crate::waitlist) const NOW: ServerTime = ServerTime(1_000_000);

    pub(in crate::waitlist) fn in_context<T>(act: impl FnOnce(&Context<'_>) -> T) -> T {
        let config = Config::default();
        let (clock, ids) = (ServerClock::default(), Ids::new("me".to_owned()));
        act(&Context {
            now: Instant::now(),
            config: &config,
            clock: &clock,
            stream: StreamState::Open,
            ids: &ids,
            room: 100,
        })
    }

    /// A task that waits, with the entry `me-KEY`.
    pub(in crate::waitlist) fn task(key: u64, (used, permits): (Use, i64)) -> Waiting<u64> {
        let options = AcquireOptions {
            used,
            by: CapacityIs::Demanded,
            permits,
            patience: Patience::Wait,
            reentrant: false,
            upgrades: None,
            terms: Terms::default(),
            owner: Owner::default(),
        };
        let config = Config::default();
        Waiting::new(key, key, format!("me-{key}"), options, Instant::now(), &config)
    }

    /// A hold under the entry `me-0`.
    pub(in crate::waitlist) fn held(
        (used, permits): (Use, i64),
        (deadline, renew_at): (Instant, Instant),
    ) -> Held<PlainHold> {
        let hold = PlainHold {
            entry: "me-0".to_owned(),
            used,
            permits,
            token: 1,
            granted_as: 1,
            deadline,
            renew_at,
            released: false,
            left_as: LeftAs::Free,
            is_idle: false,
        };
        Held {
            used,
            permits,
            token: 1,
            handing_on: None,
            tasks: vec![Arc::new(hold)],
            lease: Duration::from_secs(30),
            uncertain: false,
            taken_up_at: None,
        }
    }

    /// A task whose entry stands in the server's queue.
    pub(in crate::waitlist) fn queued(key: u64, used: (Use, i64)) -> Waiting<u64> {
        Waiting {
            stage: Stage::Queued,
            ..task(key, used)
        }
    }

    /// The sight of a waiter with so many others ahead of it, while the present hold has lasted for so many milliseconds.
    pub(in crate::waitlist) fn ahead(turns: u64, lasted: i64) -> Prospect {
        let seen = Prospect {
            entry: "me-1".to_owned(),
            position: usize::try_from(turns).unwrap_or(usize::MAX),
            turns,
            served_at: Some(NOW.plus_millis(-lasted)),
            now: NOW,
            seen_at: Instant::now(),
            is_near: false,
        };
        let is_near = seen.comes_near(None, Config::default().near);
        Prospect { is_near, ..seen }
    }

    pub(in crate::waitlist) fn waitlist(tasks: impl IntoIterator<Item = Waiting<u64>>) -> Waitlist<PlainHold> {
        let waiting: VecDeque<_> = tasks.into_iter().collect();
        Waitlist {
            may_have_tries: waiting.iter().any(|task| !task.waits()),
            waiting,
            ..Waitlist::new(String::new(), None, Duration::ZERO)
        }
    }

    /// A holder since now, until so many milliseconds later.
    pub(in crate::waitlist) fn holder(lasts: i64) -> Entry {
        Entry {
            lease: 30_000,
            claim: 5_000,
            since: NOW,
            until: NOW.plus_millis(lasts),
            ..fixtures::holder("other-0", 1)
        }
    }

    /// A waiter since now, until so many milliseconds later.
    pub(in crate::waitlist) fn waiter(id: &str, lasts: i64) -> Entry {
        Entry {
            lease: 30_000,
            claim: 5_000,
            since: NOW,
            until: NOW.plus_millis(lasts),
            ..fixtures::waiter(id)
        }
    }

    /// A mutex that another client holds for a minute.
    pub(in crate::waitlist) fn state(queue: Vec<Entry>) -> State {
        State {
            at: NOW,
            purge_at: NOW,
            ..fixtures::lock(fixtures::MUTEX, [holder(60_000)], queue)
        }
    }
}
