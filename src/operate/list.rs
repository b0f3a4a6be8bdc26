//! Lists of locks.

use std::{
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    time::{Duration, SystemTime},
};

#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    error::{InvalidInput, OperateError},
    input::check_text,
    inspect::LockInfo,
    protocol::{Kind, State},
    session::UserHandle,
    store::{Listed, Selection, UNREADABLE_MOST, UnreadableInfo, View},
    telemetry,
    world::{Async, World},
};

/// Maximum number of documents of the user's own in a list. A free lock stays in its document, so there can be as many
/// as the user has documents, and they are all kept in memory.
const LISTED_MOST: usize = 100_000;

/// A list of locks; await it, or in the blocking world run it. Made by [`LockClient::list`](crate::LockClient::list),
/// [`DocumentLocks::list`](crate::documents::DocumentLocks::list) and
/// [`ElementLocks::list`](crate::documents::ElementLocks::list).
///
/// All given conditions must be met. Documents that are not locks, or can't be read, are skipped and hide no others:
/// the event `watchlock.unreadable` reports each, and so does [`watch_all`](crate::LockClient::watch_all).
#[derive(Clone, Debug)]
#[must_use = "a listing does nothing until it is awaited, or run in the blocking world"]
pub struct List<W: World = Async> {
    /// `Err`: there is no session under a field that is refused.
    session: Result<UserHandle, InvalidInput>,
    /// The conditions by which the store selects, as far as it can.
    selection: Selection,
    owner: Option<String>,
    older_than: Option<Duration>,
    of: PhantomData<fn() -> W>,
}

impl<W: World> List<W> {
    pub(crate) fn new(session: Result<UserHandle, InvalidInput>) -> Self {
        let in_place = session.as_ref().is_ok_and(|session| session.store.is_in_place());
        Self {
            session,
            selection: Selection {
                most: in_place.then_some(LISTED_MOST),
                ..Selection::default()
            },
            owner: None,
            older_than: None,
            of: PhantomData,
        }
    }

    /// Returns whether the lock meets every condition, those included that the server has already selected by.
    fn matches(&self, lock: &LockInfo, now: SystemTime) -> bool {
        let owned = |owner: &String| {
            lock.holders.iter().any(|holder| {
                let by = &holder.owner;
                let names = [Some(&by.host), by.label.as_ref(), by.owner_id.as_ref()];
                names.contains(&Some(owner))
            })
        };
        let old = |age: Duration| {
            lock.holders
                .iter()
                .any(|holder| now.duration_since(holder.since).is_ok_and(|held| held > age))
        };
        self.selection.kind.is_none_or(|kind| kind == lock.kind)
            && self.selection.held.is_none_or(|held| held == lock.is_held())
            && self.owner.as_ref().is_none_or(owned)
            && self.older_than.is_none_or(old)
    }

    /// Lists only locks whose name begins with this prefix, of at most 1,024 bytes, like names. Among documents: only
    /// those whose `_id` is a text that begins with it.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.selection.prefix = prefix.into();
        self
    }

    /// Lists only locks of this kind.
    pub fn kind(mut self, kind: Kind) -> Self {
        self.selection.kind = Some(kind);
        self
    }

    /// Lists only locks that somebody holds, or that nobody does, as [`LockInfo::is_held`] tells. A holder whose lease
    /// is over does not count.
    pub fn held(mut self, held: bool) -> Self {
        self.selection.held = Some(held);
        self
    }

    /// Lists only locks with a holder whose label, owner id or host is this.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Lists only locks that some holder has held for longer than this, by the server's clock.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }
}

/// The contents of the locks' collection. Made by [`List::with_unreadable`].
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Listing {
    /// The locks, sorted by name.
    pub locks: Vec<LockInfo>,
    /// Documents that are not locks, or can't be read, regardless of conditions that concern the contents of a lock. In
    /// a collection of your own: those with something else in the place of the lock, and at most 1,000 of them.
    pub unreadable: Vec<UnreadableInfo>,
}

impl IntoFuture for List {
    type Output = Result<Vec<LockInfo>, OperateError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// The result is sorted by name. Holders whose lease has expired are left out, unlike in
    /// [`inspect`](crate::LockClient::inspect).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.listing().await?.locks) })
    }
}

impl<W: World> List<W> {
    /// Lists the locks, and with them the documents that can't be read as locks. Errors and cancel safety are those of
    /// [`LockClient::list`](crate::LockClient::list), except that its result is a [`Listing`].
    pub fn with_unreadable(self) -> W::Call<impl Future<Output = Result<Listing, OperateError>>> {
        W::call(self.listing())
    }

    async fn listing(self) -> Result<Listing, OperateError> {
        let session = self.session.clone()?;
        check_text("name prefix", &self.selection.prefix)?;
        let listing = session.list(&self.selection, View::Newest);
        let Listed {
            found,
            unreadable,
            now,
            more,
            ..
        } = listing.await?;
        if more {
            return Err(OperateError::TooMany { most: LISTED_MOST });
        }
        for document in unreadable.iter().take(UNREADABLE_MOST) {
            telemetry::unreadable(&document.name, &document.problem);
        }
        let mut locks: Vec<_> = found
            .into_iter()
            // The store selects documents of the user's own by the texts in their names.
            .filter(|(name, _)| session.store.is_in_place() || name.starts_with(&self.selection.prefix))
            .map(|(name, mut state): (String, State)| {
                state.holders.retain(|holder| now.is_none_or(|now| holder.until > now));
                LockInfo::new(&name, &state, now.unwrap_or(state.at))
            })
            .filter(|lock| self.matches(lock, now.map_or_else(SystemTime::now, SystemTime::from)))
            .collect();
        locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(Listing { locks, unreadable })
    }
}

#[cfg(feature = "sync")]
impl List<Blocking> {
    /// Lists on this thread, and blocks it until the server has answered. The result is sorted by name. An
    /// [`OperateError`] says why it failed.
    pub fn run(self) -> Result<Vec<LockInfo>, OperateError> {
        self.with_unreadable().map(|listing| listing.locks)
    }
}
