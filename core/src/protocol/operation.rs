//! Operations: the steps that clients ask for, each one atomic write of one lock.

use super::{Ended, Entry, HoldEnd, Identity, Kind, Owner, ServerTime};

/// Maximum length of a lock's queue; see [`Operation::room`].
///
/// Every write of a document rewrites its queue and every answer carries it, about 175 bytes for an entry. A longer
/// queue would slow down each hand-over, and in the end make the document too large for the server.
pub const QUEUE_MOST: usize = 256;

/// Maximum number of entries of one kind in an operation: of tasks that wait in one request (the head of a line, and
/// those behind it that fit the capacity with it), and of holders that a request notifies, each of which costs a word and
/// an event. More would cost the server more than they spare; more holders stop sharing by themselves, after half a
/// second at the latest. Of tries there are as many as the queue has room for.
pub const AT_ONCE: usize = 64;

/// Length of the queue up to which a request that lines up notifies the holder. Of the entries before it, one or two
/// can be of the holder's own process; with more, the holder was notified before.
pub(crate) const NOTIFIES_UP_TO: usize = 3;

/// One atomic step on one lock. It goes through the phases of [`super`].
///
/// Leaving and requesting in one step lets a process hand a lock from one of its tasks to the next with a single
/// command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// New for every operation; the first word of `wake`.
    pub id: String,
    /// Entries that leave, whether they hold or wait. Unknown ones are ignored.
    pub leave: Vec<String>,
    /// Of these, the holders whose lock is kept for a while.
    pub kept: Vec<Kept>,
    /// The holders that are evicted; an operation that evicts does nothing else. `wake` names those that an operator
    /// evicts.
    pub evict: Evict,
    pub change: Option<Change>,
    pub requests: Option<Requests>,
    /// The expected state of the document; where the document differs, the operation is a no-op.
    pub expects: Expects,
    /// Maximum length of the queue. Requested entries beyond it, the last to come, are dropped; those that take the
    /// place of an adopted holder are not.
    pub room: usize,
    /// Minimum time that the document is kept after this write, in milliseconds. Longer than the lease of every entry
    /// that the operation writes.
    pub keep: i64,
    /// Number of ends of holds that the document keeps; zero: the operation records none, and leaves those of others
    /// alone.
    pub history: usize,
    /// Entries that leave because they were held for as long as they may be.
    pub held_too_long: Vec<String>,
}

/// A holder that leaves, and whose lock stays taken all the same until a time of the server's clock.
///
/// The token names the grant: if a late request has put the entry in once more, that grant leaves for good.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    pub id: String,
    pub token: i64,
    pub until: KeptUntil,
}

impl Kept {
    /// Whether it names this grant.
    fn is_for(&self, holder: &Entry) -> bool {
        (&self.id, self.token) == (&holder.id, holder.token)
    }

    /// Whether the time for which the lock is kept is over. A token begins with the server's clock at the grant, or is
    /// ahead of it: then that time counts as longer than it is.
    pub fn is_over(&self, now: ServerTime) -> bool {
        let granted = ServerTime(self.token / 1_000);
        self.until.of(granted, now) <= now
    }
}

/// The end of the time for which a lock is kept, reckoned by the server. Durations are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeptUntil {
    /// This long after the grant.
    AfterGrant(i64),
    /// This long after the release.
    AfterRelease(i64),
    /// The end of the window in which the lock was granted. One window begins at `offset` after the Unix epoch, and the
    /// others follow on each other.
    WindowEnd { length: i64, offset: i64 },
    /// The end of its lease: that grant was not released, and stays as it is. What leaves is another grant of the entry,
    /// which a late request has put in.
    Expiry,
}

/// The holders that are removed without their doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    Nobody,
    Everybody,
    /// The one with this token.
    Holder(i64),
    /// Those that were released and are kept taken, up to this token, unless one up to that token is still held: the
    /// places of a barrier that all its parties have passed. No holder loses anything, so nobody is notified.
    Kept(i64),
}

/// A change of a holder under the same token, which also renews it: it gives up permits, gets a longer lease, shows
/// another value, or goes on under another entry.
///
/// It may arrive twice and late: the token names the grant, permits only fall and a lease only grows, values are
/// numbered, and no entry has a name that an earlier one had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub id: String,
    pub token: i64,
    /// Maximum number of permits that it keeps.
    pub permits: i64,
    /// Minimum length of its lease from now on, in milliseconds.
    pub lease: i64,
    /// The entry that it is afterwards.
    pub becomes: String,
    /// Its owner afterwards; `None`: the same.
    pub owner: Option<Owner>,
    /// The value that it shows, and its number: the value stays where the holder has proclaimed that one or a later one,
    /// as a command that was sent again may arrive late.
    pub value: Option<(String, i64)>,
}

impl Change {
    /// Returns the change of this holder that only renews it.
    pub fn of(id: String, token: i64) -> Self {
        Self {
            becomes: id.clone(),
            id,
            token,
            permits: i64::MAX,
            lease: 0,
            owner: None,
            value: None,
        }
    }

    /// Returns the names that the holder has before and after it: where the answer was lost, it has the second already.
    pub(super) fn ids(&self) -> [&String; 2] {
        [&self.id, &self.becomes]
    }

    /// Whether it changes this holder.
    pub(super) fn is_for(&self, holder: &Entry) -> bool {
        let mut ids = self.ids().into_iter();
        ids.any(|id| holder.is_grant(id, self.token))
    }
}

/// The state of the document that an operation expects. The fewer cases an operation provides for, the less it costs
/// the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expects {
    /// Any state.
    Nothing,
    /// The one entry that leaves is a holder, and nothing is requested.
    Holding,
    /// It is also the only holder, of a lock with one permit whose number of permits nobody can set.
    OnlyHolder,
    /// The lock has one permit. The holder that leaves is its only entry; if an entry is requested instead, there is
    /// none, or the lock has no document so far.
    Alone,
}

/// One or more entries that are requested in a lock that is used as `kind` with `capacity`; none, if the capacity is to
/// be [set](CapacityIs::Set).
///
/// They are sent together with entries that leave only where those are of the same kind and capacity. On a kind
/// mismatch the whole operation is a no-op, and none of the entries that leave can be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    pub kind: Kind,
    pub capacity: i64,
    pub by: CapacityIs,
    pub entries: Vec<Request>,
    /// The owner whose earlier incarnations lose their entries. If one of them held, the requested entries go to the
    /// head of the queue. Never combined with an expectation.
    pub adopts: Option<Identity>,
}

/// The bearing of a requested capacity on that of the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CapacityIs {
    /// A lock with another one is a kind mismatch.
    #[default]
    Demanded,
    /// A lock that has one keeps it, and only an entry with more permits than that is a mismatch. For a semaphore.
    Offered,
    /// It becomes the lock's at once, and stays while nobody holds the lock. For a semaphore.
    Set,
}

/// A requested entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub id: String,
    pub permits: i64,
    pub lease: i64,
    pub claim: i64,
    /// Whether to stay in the queue when the request can't be granted at once.
    pub wait: bool,
    /// Whether this is the first time that the request is sent. If its entry is there all the same, a repetition has
    /// overtaken it, and it adds nothing.
    pub fresh: bool,
    /// Number of tokens that a grant by this very operation takes out of the counter, after those of all its grants,
    /// for the tasks of the process to which the hold is handed on, or which share it as readers.
    pub reserve: i64,
    /// The holder that keeps its entry and becomes a writer with this one beside it. The entry then goes to the head of
    /// the queue; without that holder it is not in it. Never combined with an expectation.
    pub upgrades: Option<String>,
    pub owner: Owner,
}

impl Operation {
    /// Returns an operation that changes nothing, to be filled in.
    pub fn blank(id: String, keep: i64) -> Self {
        Self {
            id,
            leave: Vec::new(),
            kept: Vec::new(),
            evict: Evict::Nobody,
            change: None,
            requests: None,
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep,
            history: 0,
            held_too_long: Vec::new(),
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().flat_map(|requests| &requests.entries)
    }

    pub(super) fn adopts(&self) -> Option<&Identity> {
        self.requests.as_ref()?.adopts.as_ref()
    }

    /// Returns whether the operation requests this entry. Such an entry learns of its grant from the answer, so `wake`
    /// does not announce it.
    pub(crate) fn asks_for(&self, id: &str) -> bool {
        self.entries().any(|entry| entry.id == id)
    }

    /// Returns the first entry that the operation requests; empty if it requests none.
    pub fn requested(&self) -> &str {
        self.entries().next().map_or("", |entry| &entry.id)
    }

    /// Returns whether the operation may create the document of a lock that has none. An upgrade does not: its reader was
    /// in the document, and is lost with it.
    pub fn creates(&self) -> bool {
        let comes_by_itself = self.sets() || self.entries().any(|entry| entry.upgrades.is_none());
        comes_by_itself && matches!(self.expects, Expects::Nothing | Expects::Alone)
    }

    /// Returns the requested entries that upgrade a holder, with the entry of that holder.
    pub(crate) fn upgrades(&self) -> impl Iterator<Item = (&String, &String)> {
        self.entries()
            .filter_map(|entry| Some((&entry.id, entry.upgrades.as_ref()?)))
    }

    /// Returns the number of tokens that a grant to this entry takes beside its own.
    pub(super) fn reserve_for(&self, id: &str) -> i64 {
        let mut entries = self.entries().filter(|entry| entry.id == id);
        entries.next().map_or(0, |entry| entry.reserve)
    }

    /// Returns the requested entry that takes more tokens than its own when it is granted, if there is one.
    pub(super) fn reserving(&self) -> Option<&Request> {
        self.entries().find(|entry| entry.reserve > 0)
    }

    /// Returns how the entries of the requesting session begin, if the operation requests one that waits: holders that
    /// hand on the lock within their process, or share it, are then notified. A repeated request notifies them too, as
    /// the first may never have arrived.
    pub(super) fn asks_as(&self) -> Option<&str> {
        let asking = self.entries().find(|entry| entry.wait)?;
        Some(asking.id.rfind('-').map_or(&asking.id, |end| &asking.id[..=end]))
    }

    /// Returns whether the operation sets the lock's capacity.
    pub fn sets(&self) -> bool {
        self.requests
            .as_ref()
            .is_some_and(|requests| requests.by == CapacityIs::Set)
    }

    /// Returns the time until which the lock is kept when this holder leaves, if that lies ahead.
    pub(super) fn kept_until(&self, holder: &Entry, now: ServerTime) -> Option<ServerTime> {
        let kept = self.kept.iter();
        let mut kept = kept.filter(|kept| kept.is_for(holder) && kept.until != KeptUntil::Expiry);
        let until = kept.next()?.until.of(holder.since, now);
        (until > now).then_some(until)
    }

    /// Returns whether an entry leaves by the operation, for all grants but this one of a holder.
    pub fn spares(&self, holder: &Entry) -> bool {
        let mut kept = self.kept.iter();
        kept.any(|kept| kept.is_for(holder) && kept.until == KeptUntil::Expiry)
    }

    /// Returns the end of a holder that this operation removes.
    ///
    /// A hold whose lease was over has expired, whatever the operation does with its entry.
    pub(super) fn end_of(&self, holder: &Entry, now: ServerTime) -> Ended {
        let superseded = |identity: &Identity| identity.supersedes(&holder.owner);
        let (ended, how) = if let Some(released) = holder.released {
            (released, HoldEnd::Released)
        } else if !holder.is_live(now) {
            (holder.until, HoldEnd::Expired)
        } else if self.held_too_long.contains(&holder.id) {
            (now, HoldEnd::HeldTooLong)
        } else if self.leave.contains(&holder.id) {
            (now, HoldEnd::Released)
        } else if self.adopts().is_some_and(superseded) {
            (now, HoldEnd::Adopted)
        } else {
            (now, HoldEnd::Broken)
        };
        Ended {
            token: holder.token,
            permits: holder.permits,
            since: holder.since,
            owner: holder.owner.clone(),
            ended,
            how,
        }
    }

    /// Returns whether a holder shows another value.
    pub fn proclaims(&self) -> bool {
        self.change.as_ref().is_some_and(|change| change.value.is_some())
    }

    /// Returns whether an operator evicts holders by the operation.
    pub fn breaks(&self) -> bool {
        matches!(self.evict, Evict::Everybody | Evict::Holder(_))
    }

    /// Returns whether one entry at most comes and one leaves by the operation, and nothing else happens: most
    /// operations.
    pub fn is_simple(&self) -> bool {
        let requests = self.requests.as_ref();
        self.leave.len() <= 1
            && requests.is_none_or(|requests| requests.entries.len() == 1 && requests.adopts.is_none())
            && self.kept.is_empty()
            && self.evict == Evict::Nobody
            && self.change.is_none()
            && self.held_too_long.is_empty()
    }

    /// Returns whether the operation can share a command with operations on other locks: it takes a lock with one permit
    /// that is expected to be free, or releases one.
    pub fn is_shareable(&self) -> bool {
        let is_release = self.requests.is_none() && self.leave.len() == 1;
        let is_expected = match self.expects {
            Expects::Alone => is_release || (self.requests.is_some() && self.leave.is_empty()),
            Expects::OnlyHolder => is_release,
            Expects::Holding | Expects::Nothing => false,
        };
        is_expected && self.is_simple()
    }

    /// Returns whether two shareable operations differ at most in their ids and owners, so that one statement does both.
    pub fn is_like(&self, other: &Self) -> bool {
        let used = |operation: &Self| {
            operation
                .requests
                .as_ref()
                .map(|requests| (requests.kind, requests.capacity, requests.by))
        };
        let entry = |operation: &Self| {
            let entry = operation.entries().next();
            entry.map(|it| (it.permits, it.lease, it.claim, it.wait, it.fresh, it.reserve))
        };
        (self.expects, used(self), entry(self)) == (other.expects, used(other), entry(other))
            && (self.keep, self.history) == (other.keep, other.history)
    }

    /// Returns whether the operation may be a no-op, and then must not write: a try, or a repeated request.
    pub(super) fn may_be_no_op(&self) -> bool {
        self.leave.is_empty() && self.entries().any(|entry| !entry.wait || !entry.fresh)
    }
}

impl KeptUntil {
    fn of(self, granted: ServerTime, released: ServerTime) -> ServerTime {
        match self {
            Self::AfterGrant(millis) => granted.plus_millis(millis),
            Self::AfterRelease(millis) => released.plus_millis(millis),
            Self::WindowEnd { length, offset } => {
                let into = granted.0.saturating_sub(offset) % length.max(1);
                granted.plus_millis(length.saturating_sub(into))
            }
            // The entry has it.
            Self::Expiry => ServerTime(i64::MAX),
        }
    }

    /// Returns the longest time after the release for which it can keep a lock, in milliseconds.
    pub fn most(self) -> i64 {
        match self {
            Self::AfterGrant(millis) | Self::AfterRelease(millis) => millis,
            Self::WindowEnd { length, .. } => length,
            Self::Expiry => 0,
        }
    }
}

impl Evict {
    pub(super) fn includes(self, holder: &Entry) -> bool {
        match self {
            Self::Nobody => false,
            Self::Everybody => true,
            Self::Holder(token) => holder.token == token,
            Self::Kept(last) => holder.is_kept() && holder.token <= last,
        }
    }
}

impl Request {
    /// Returns the least time that an entry in the queue has left without a refresh when it is requested again, in
    /// milliseconds. With more left a repeated request changes nothing, so that asking for its queue position costs the
    /// server few writes. A waiter confirms its position when half of the lease is left.
    pub(super) fn refresh_below(&self) -> i64 {
        self.lease - self.lease / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::{asking, holder, kept, request};

    #[test]
    fn the_time_for_which_a_lock_is_kept_counts_from_the_grant_that_the_token_shows() {
        let is_over = |until, now| {
            let kept = Kept {
                id: "a-1".to_owned(),
                token: 5_000_001,
                until,
            };
            kept.is_over(ServerTime(now))
        };
        let window = KeptUntil::WindowEnd { length: 50, offset: 20 };
        for (until, end) in [(KeptUntil::AfterGrant(90), 5_090), (window, 5_020)] {
            assert_eq!(
                [end - 1, end].map(|now| is_over(until, now)),
                [false, true],
                "{until:?}"
            );
        }
        assert!(
            !is_over(KeptUntil::AfterRelease(90), 9_000),
            "it begins with the release"
        );
        let longest = [KeptUntil::AfterGrant(90), KeptUntil::AfterRelease(80), window].map(KeptUntil::most);
        assert_eq!(longest, [90, 80, 50]);
    }

    #[test]
    fn the_end_of_a_hold_shows_how_and_when_it_ended() {
        let worker = |born| Identity {
            id: "worker".to_owned(),
            born,
        };
        let mut operation = Operation {
            leave: vec!["a-1".to_owned(), "a-2".to_owned()],
            history: 5,
            held_too_long: vec!["a-2".to_owned()],
            ..asking("n.1", request("n-1"))
        };
        if let Some(requests) = &mut operation.requests {
            requests.adopts = Some(worker(2));
        }
        let earlier = Owner {
            identity: Some(worker(1)),
            ..Owner::default()
        };
        let adopted = Entry {
            owner: earlier,
            ..holder("b-1", 7)
        };
        // Their leases end at 100.
        for (held, now, how, ended) in [
            (kept("a-1", 7), 50, HoldEnd::Released, 1),
            (holder("a-1", 7), 50, HoldEnd::Released, 50),
            (holder("a-1", 7), 150, HoldEnd::Expired, 100),
            (holder("a-2", 7), 99, HoldEnd::HeldTooLong, 99),
            (holder("a-2", 7), 100, HoldEnd::Expired, 100),
            (holder("b-1", 7), 150, HoldEnd::Expired, 100),
            (holder("b-1", 7), 100, HoldEnd::Expired, 100),
            (adopted, 99, HoldEnd::Adopted, 99),
            (holder("b-1", 7), 99, HoldEnd::Broken, 99),
        ] {
            let expected = Ended {
                token: 7,
                permits: 1,
                since: ServerTime(0),
                owner: held.owner.clone(),
                ended: ServerTime(ended),
                how,
            };
            assert_eq!(operation.end_of(&held, ServerTime(now)), expected);
        }
    }
}
