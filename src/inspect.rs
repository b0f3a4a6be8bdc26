//! A lock as seen from outside.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use crate::{
    protocol::{Ended, Entry, Exchange, HoldEnd, Kind, Owner, ServerTime, State},
    token::FencingToken,
    truncated_debug::{in_a_line, shown_in_a_line},
};

/// A lock as its document shows it.
///
/// Times are readings of the server's clock. A holder whose [`until`](HolderInfo::until) is not after
/// [`as_of`](Self::as_of) has expired: the lock goes to the next request. `inspect` shows such a holder until then, and
/// lists leave it out. [`is_held`](Self::is_held) applies this rule. A waiter that has expired is shown by both.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The name of the lock.
    pub name: String,
    /// The kind that it is used as.
    pub kind: Kind,
    /// The number of its permits; `None` for a readers-writer lock.
    pub capacity: Option<u64>,
    /// The last fencing token that was issued.
    pub token: FencingToken,
    /// Its holders.
    pub holders: Vec<HolderInfo>,
    /// Its waiters, in the order in which they will be served: one, at times two, for each waiting client.
    pub waiters: Vec<WaiterInfo>,
    /// The last holds that ended, newest first, as far as clients with a
    /// [history](crate::LockClientBuilder::history) ended them.
    #[cfg_attr(feature = "serde", serde(default))]
    pub past: Vec<PastHold>,
    /// The time of the reading, by the server's clock: compare [`until`](HolderInfo::until) with it, and not with a
    /// clock of this machine. The Unix epoch in a form that an earlier version of this crate serialized.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339", default = "epoch"))]
    pub as_of: SystemTime,
}

/// A hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PastHold {
    /// Its fencing token.
    pub token: FencingToken,
    /// Whether a readers-writer lock was held to read or to write; `None` for every other kind.
    pub access: Option<Access>,
    /// The number of permits that it held; `None` for a readers-writer lock.
    pub permits: Option<u64>,
    /// When it was granted.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub since: SystemTime,
    /// When it ended. For a hold that expired, the end of its lease.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub ended: SystemTime,
    /// How it ended.
    pub how: HoldEnd,
    /// Who held it.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub owner: OwnerInfo,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HolderInfo {
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// Whether a readers-writer lock is held to read or to write; `None` for every other kind.
    pub access: Option<Access>,
    /// The number of held permits; `None` for a readers-writer lock.
    pub permits: Option<u64>,
    /// When it was granted.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub since: SystemTime,
    /// When the lease expires unless it is renewed; for a lock that is kept taken, when that time ends.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub until: SystemTime,
    /// The lease: the time that a renewal adds to the server's now. The first, after a hand-over, adds less.
    #[cfg_attr(
        feature = "serde",
        serde(default, rename = "lease_ms", with = "crate::rfc3339::millis")
    )]
    pub lease: Duration,
    /// When the holder released the lock, if it is [kept taken](crate::Acquire::at_least_for) beyond that: nobody holds
    /// it, and it stays taken until [`until`](Self::until). `None` while it is held.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339::option", default))]
    pub released: Option<SystemTime>,
    /// Whether the lock is idle: it was released, and stays with the holder's client for its next task
    /// ([`keep_idle`](crate::LockClientBuilder::keep_idle)). It can be five seconds old: a task may be at work.
    #[cfg_attr(feature = "serde", serde(default))]
    pub idle: bool,
    /// Whether no client has the hold: it was [detached](crate::Held::detach), and stays taken until
    /// [`until`](Self::until) unless a client attaches it. Host and process are those of the client that had it last.
    #[cfg_attr(feature = "serde", serde(default))]
    pub detached: bool,
    /// Who holds it.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub owner: OwnerInfo,
}

/// A waiter for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WaiterInfo {
    /// Whether a readers-writer lock is requested to read or to write; `None` for every other kind.
    pub access: Option<Access>,
    /// The number of requested permits; `None` for a readers-writer lock.
    pub permits: Option<u64>,
    /// When it joined the queue.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub since: SystemTime,
    /// When its queue position expires unless it is renewed; the next operation on the lock passes over an expired
    /// waiter.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub until: SystemTime,
    /// Who waits for it.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub owner: OwnerInfo,
}

/// A client that holds a lock, held it or waits for it, and what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OwnerInfo {
    /// Its host.
    pub host: String,
    /// Its process id on the host.
    pub pid: u32,
    /// Its [label](crate::LockClientBuilder::label).
    pub label: Option<String>,
    /// Why it holds or wants the lock, in its own words.
    pub reason: Option<String>,
    /// The value that it proclaims, or will proclaim, as the leader of an election; the name of a latch's party.
    pub value: Option<String>,
    /// Its [`owner_id`](crate::LockClientBuilder::owner_id).
    pub owner_id: Option<String>,
}

/// The access with which a readers-writer lock is held or requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Access {
    /// By a reader, shared with other readers.
    Read,
    /// By a writer, alone.
    Write,
}

/// Stands for the time of a form that has none.
#[cfg(feature = "serde")]
fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH
}

impl Access {
    /// Derives it from the permits: a reader takes one, and a writer all; an upgradeable reader more than half, and the
    /// others to become a writer.
    fn of(state: &State, permits: i64) -> Option<Self> {
        let reads = permits == 1 || (state.capacity / 2 < permits && permits < state.capacity);
        (state.kind == Kind::RwLock).then_some(if reads { Self::Read } else { Self::Write })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reader",
            Self::Write => "writer",
        })
    }
}

impl HolderInfo {
    pub(crate) fn new(state: &State, holder: &Entry) -> Self {
        Self {
            token: FencingToken::new(holder.token),
            permits: permits(state, holder.permits),
            access: Access::of(state, holder.permits),
            since: SystemTime::from(holder.since),
            until: SystemTime::from(holder.until),
            lease: Duration::from_millis(u64::try_from(holder.lease).unwrap_or(0)),
            released: holder.released.map(SystemTime::from),
            idle: holder.is_idle(),
            detached: holder.is_detached(),
            owner: OwnerInfo::new(&holder.owner),
        }
    }
}

impl PastHold {
    fn new(state: &State, past: &Ended) -> Self {
        Self {
            token: FencingToken::new(past.token),
            permits: permits(state, past.permits),
            access: Access::of(state, past.permits),
            since: SystemTime::from(past.since),
            ended: SystemTime::from(past.ended),
            how: past.how,
            owner: OwnerInfo::new(&past.owner),
        }
    }
}

impl LockInfo {
    /// Returns whether the lock was taken at [`as_of`](Self::as_of): whether it has a holder that has not expired. Of a
    /// semaphore, whether any permit is taken.
    ///
    /// A lock that is [kept taken](HolderInfo::released) or [idle](HolderInfo::idle) counts, as another client's try
    /// fails. It can change at any moment: to work under the lock, acquire it.
    pub fn is_held(&self) -> bool {
        self.holders.iter().any(|holder| holder.until > self.as_of)
    }

    /// Returns the lock of a reading. An answer without a time has at least that of the last write.
    pub(crate) fn of_reading(name: &str, (state, exchange): &(State, Exchange)) -> Self {
        Self::new(name, state, exchange.now.unwrap_or(state.at))
    }

    /// Returns the lock as the write that made this state left it.
    pub(crate) fn after_write(name: &str, state: &State) -> Self {
        Self::new(name, state, state.at)
    }

    pub(crate) fn new(name: &str, state: &State, as_of: ServerTime) -> Self {
        let holders = state.holders.iter().map(|holder| HolderInfo::new(state, holder));
        let waiters = state.queue.iter().map(|waiter| WaiterInfo {
            permits: permits(state, waiter.permits),
            access: Access::of(state, waiter.permits),
            since: SystemTime::from(waiter.since),
            until: SystemTime::from(waiter.until),
            owner: OwnerInfo::new(&waiter.owner),
        });
        Self {
            name: name.to_owned(),
            kind: state.kind,
            capacity: permits(state, state.capacity),
            token: FencingToken::new(state.token),
            holders: holders.collect(),
            waiters: waiters.collect(),
            past: state.ends.iter().map(|past| PastHold::new(state, past)).collect(),
            as_of: as_of.into(),
        }
    }
}

/// One line: ``mutex `invoice-42`, held by billing (web-1, process 4711) under token 7, 2 waiting``.
impl fmt::Display for LockInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`, ", self.kind, in_a_line(&self.name))?;
        if !self.is_held() {
            f.write_str("free")?;
        }
        let live = self.holders.iter().filter(|holder| holder.until > self.as_of);
        for (position, holder) in live.enumerate() {
            let lead = match (position, holder.released) {
                (0, None) if holder.idle => "idle with ",
                (0, None) => "held by ",
                (0, Some(_)) => "kept taken by ",
                (_, None) => ", ",
                (_, Some(_)) => ", kept taken by ",
            };
            write!(f, "{lead}{holder}")?;
        }
        match self.waiters.len() {
            0 => Ok(()),
            waiting => write!(f, ", {waiting} waiting"),
        }
    }
}

/// One line: `billing (web-1, process 4711) under token 7`.
impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        share(f, self.access, self.permits)?;
        write!(f, " under token {}", self.token)
    }
}

/// One line: `billing (web-1, process 4711) under token 7, released`.
impl fmt::Display for PastHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        share(f, self.access, self.permits)?;
        write!(f, " under token {}, {}", self.token, self.how)
    }
}

/// One line: `billing (web-1, process 4711)`.
impl fmt::Display for WaiterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        share(f, self.access, self.permits)
    }
}

impl OwnerInfo {
    fn new(owner: &Owner) -> Self {
        Self {
            host: owner.host.clone(),
            pid: u32::try_from(owner.pid).unwrap_or(0),
            label: owner.label.clone(),
            reason: owner.reason.clone(),
            value: owner.value.clone(),
            owner_id: owner.identity.as_ref().map(|identity| identity.id.clone()),
        }
    }
}

/// One line: `billing (web-1, process 4711)`. Control characters are escaped: others may have written anything.
impl fmt::Display for OwnerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, pid) = (shown_in_a_line(&self.host), self.pid);
        match &self.label {
            Some(label) => write!(f, "{} ({host}, process {pid})", shown_in_a_line(label)),
            None => write!(f, "process {pid} on {host}"),
        }
    }
}

fn share(f: &mut fmt::Formatter<'_>, access: Option<Access>, permits: Option<u64>) -> fmt::Result {
    match (access, permits) {
        (Some(access), _) => write!(f, " as {access}"),
        (None, None | Some(1)) => Ok(()),
        (None, Some(permits)) => write!(f, " with {permits} permits"),
    }
}

/// Returns a number of permits, unless it is that of a readers-writer lock, which means nothing to its users.
fn permits(state: &State, number: i64) -> Option<u64> {
    (state.kind != Kind::RwLock).then_some(u64::try_from(number).unwrap_or(0))
}
