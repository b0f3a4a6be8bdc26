//! One hold of a lock, from its holder's side: whether it is still held, and if not, why.

mod handles;
mod reports;
mod upkeep;

use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::Shared;
use tokio::{
    sync::{SetOnce, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::task::Task;
use crate::{
    config::{Config, Limits, LockLabel, millis},
    error::{AcquireError, InvalidInput, ServerError},
    hold_options::{Lease, Terms},
    protocol::{Entry, Kept, KeptUntil, ServerTime, Use, is_issued_after, wake},
    status::{LockStatus, Lost, LostReason},
    store::LogTime,
    token::FencingToken,
    waitlist::{self, Context, Grant, How, LeftAs, RemainingLease, idling},
};
pub(crate) use handles::Remains;
pub(super) use upkeep::REPEATED_AFTER;
use upkeep::Upkeep;

/// Age from which a hold is worth a command of its own, to have its loss reported. Most critical sections are shorter.
pub(super) const WORTH_A_COMMAND: Duration = Duration::from_millis(200);

/// A grant, with the local deadline up to which it is surely ours.
///
/// The deadline is counted on this machine's monotonic clock from before the request was sent, so it comes before the
/// server's own `until`. Every look at the hold compares the clock with the deadline on the spot: a process that was
/// frozen sees the loss with its first look, before any task of the session has run.
#[derive(Debug)]
pub struct Hold {
    /// Larger than that of any earlier hold of this process.
    pub(super) number: u64,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) token: FencingToken,
    /// The token of its entry in the document: a smaller one, if the hold was handed on inside the process, or is
    /// shared.
    pub(crate) granted_as: i64,
    pub(crate) used: Use,
    /// Its lease at the grant; a renewal may give it a longer one: [`length`](Self::length).
    pub(crate) lease: Lease,
    pub(crate) since: Instant,
    /// Its grant is no later than this in the server's log; unset if that is not known.
    logged_by: OnceLock<LogTime>,
    /// Whether no task has it: it stays with the client for the next one.
    pub(super) is_idle: bool,
    /// The first task that acquired it.
    task: OnceLock<Task>,
    /// Set if the lock has metrics of its own.
    pub(super) label: Option<LockLabel>,
    upkeep: Mutex<Upkeep>,
    state: Mutex<HoldState>,
    ended: CancellationToken,
    /// Set once somebody waits for the lock.
    wanted: SetOnce<()>,
    /// The outcome of its release by a shutdown of the client, if that has ended it.
    pub(crate) left_by_shutdown: OnceLock<Shared<oneshot::Receiver<ReleaseOutcome>>>,
    /// The id of the process.
    held_in: u32,
}

#[derive(Debug)]
struct HoldState {
    permits: u64,
    /// Whether the document was written under this hold: by its grant, or since it was handed on.
    written: bool,
    /// Number of proclaimed values.
    proclaimed: i64,
    /// Set if the lock is to stay taken after a release.
    kept: Option<KeptUntil>,
    /// Number of handles: more than one where the hold was re-entered, or has become a writer's.
    handles: usize,
    /// The reader's hold that became a writer's with this one. This one has a handle of it, and is over when it is.
    upgrades: Option<Arc<Hold>>,
    /// Whether tasks besides the first have acquired it, or a part of it was given away.
    is_of_several: bool,
    /// Whether it is about to be detached: no task enters or inherits it any more.
    detaching: bool,
    lost: Option<LostReason>,
    /// Number of writes by its holder that are on their way and end it, with the document or without: until they are
    /// answered, that it is gone is no news.
    deleting: usize,
    /// How it was gone meanwhile.
    gone: Option<LostReason>,
    /// Whether one of them did.
    deleted: bool,
    over_at: Option<Instant>,
    reported: Reported,
    /// Whether observers were told that it is held too long.
    reported_too_long: bool,
}

/// The number of the next hold of this process.
static HELD_HERE: AtomicU64 = AtomicU64::new(1);

/// Returns a number that is larger than that of any hold so far.
pub(super) fn next_number() -> u64 {
    HELD_HERE.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
thread_local! {
    /// Number of looks of this thread at any hold.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The events of a hold that observers have seen.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// None, as nothing has the hold so far; with how it was granted.
    Nothing(How),
    Granted,
    Over,
}

/// The outcome of an acquire.
pub(crate) type AcquireOutcome = Result<Arc<Hold>, AcquireError>;

/// The outcome of a release.
pub(crate) type ReleaseOutcome = Result<wake::Left, ServerError>;

impl Hold {
    pub(crate) fn new(id: String, name: String, grant: &Grant) -> Self {
        let at_least = grant.lease.at_least;
        let is_reader = i64::try_from(grant.permits).is_ok_and(|permits| permits < grant.used.1);
        Self {
            number: next_number(),
            id,
            name,
            token: FencingToken::new(grant.token),
            granted_as: grant.granted_as,
            used: grant.used,
            lease: grant.lease,
            since: Instant::now(),
            logged_by: OnceLock::new(),
            is_idle: false,
            task: OnceLock::new(),
            label: None,
            upkeep: Mutex::new(Upkeep::new(grant)),
            state: Mutex::new(HoldState {
                permits: grant.permits,
                // Since a reader's entry was written, nobody can have written under the lock.
                written: grant.token == grant.granted_as || is_reader,
                proclaimed: 0,
                kept: (!at_least.is_zero()).then(|| KeptUntil::AfterGrant(millis(at_least))),
                handles: 1,
                upgrades: None,
                is_of_several: false,
                detaching: false,
                lost: None,
                deleting: 0,
                gone: None,
                deleted: false,
                over_at: None,
                reported: Reported::Nothing(grant.how),
                reported_too_long: false,
            }),
            ended: CancellationToken::new(),
            wanted: SetOnce::new(),
            left_by_shutdown: OnceLock::new(),
            held_in: std::process::id(),
        }
    }

    /// Whether the document's holder is this hold.
    pub(crate) fn is(&self, holder: &Entry) -> bool {
        holder.is_grant(&self.id, self.granted_as)
    }

    /// Whether it was granted later than this; or earlier, where the token's counter was ahead of the clock.
    pub(crate) fn is_granted_after(&self, at: ServerTime) -> bool {
        is_issued_after(self.granted_as, at)
    }

    /// Whether its grant is known to come before this in the server's log.
    pub(super) fn is_logged_before(&self, at: LogTime) -> bool {
        self.logged_by.get().is_some_and(|logged_by| *logged_by < at)
    }

    /// Notes that its grant is no later than this in the server's log, unless more is known.
    pub(super) fn note_logged(&self, at: LogTime) {
        self.logged_by.get_or_init(|| at);
    }

    /// Returns the number of the next proclaimed value.
    pub(crate) fn proclamation(&self) -> i64 {
        let mut state = self.state();
        state.proclaimed += 1;
        state.proclaimed
    }

    /// Whether the document was written since the holder has it. For a hold that was handed on inside the process, or
    /// is shared, it was not.
    pub(super) fn is_written(&self) -> bool {
        self.state().written
    }

    pub(super) fn note_written(&self) {
        self.state().written = true;
    }

    /// Has the lock stay taken after a release, and reports whether the hold was not over yet.
    pub(crate) fn keep(&self, until: KeptUntil) -> bool {
        if self.look().is_err() {
            return false;
        }
        let mut state = self.state();
        state.kept = Some(until);
        state.lost.is_none()
    }

    pub(super) fn acquired_by(&self, task: Task) {
        if *self.task.get_or_init(|| task) != task {
            self.state().is_of_several = true;
        }
    }

    /// Returns the task that acquired it, if that is a single one: of several, any may have let go of it.
    pub(super) fn task(&self) -> Option<Task> {
        self.task.get().copied().filter(|_| !self.state().is_of_several)
    }

    /// Waits until the hold is lost.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let reader = self.upgraded();
            match self.look() {
                // The heartbeat ends the hold if the deadline has come forward since.
                Ok(deadline) => tokio::select! {
                    biased;
                    () = self.ended.cancelled() => {}
                    () = async {
                        match &reader {
                            Some(reader) => reader.ended.cancelled().await,
                            None => pending().await,
                        }
                    } => {}
                    () = sleep_until(deadline) => {}
                },
                // Nothing cancels the token in a fork.
                Err(LostReason::Forked) => return LostReason::Forked,
                Err(reason) => {
                    // The task that noticed the loss may be about to cancel the token: the two must agree.
                    self.ended.cancelled().await;
                    return reason;
                }
            }
        }
    }

    /// Notes that somebody waits for the lock. Call it with no mutex held.
    pub(super) fn want(&self) {
        // It may have been noted before.
        let _ = self.wanted.set(());
    }

    /// Waits until somebody waits for the lock, or the hold is over.
    pub(crate) async fn wanted(&self) {
        tokio::select! {
            biased;
            // First, as a fork must not ask the other one.
            _ = self.lost() => {}
            _ = self.wanted.wait() => {}
        }
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.look().err()
    }

    /// Returns its loss for this reason.
    pub(crate) fn lost_as(&self, reason: LostReason) -> Lost {
        Lost {
            name: self.name.clone(),
            token: self.token,
            reason,
        }
    }

    pub(crate) fn safe_for(&self) -> Duration {
        self.look().map_or(Duration::ZERO, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        })
    }

    pub(crate) fn status(&self) -> LockStatus {
        let reader = self.upgraded();
        let any = |is: fn(&Self) -> bool| is(self) || reader.as_deref().is_some_and(is);
        match self.look() {
            Err(_) => LockStatus::Lost,
            Ok(_) if any(|hold| hold.upkeep().failing) => LockStatus::AtRisk,
            Ok(_) if any(Self::is_held_too_long) => LockStatus::HeldTooLong,
            Ok(_) => LockStatus::Held,
        }
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.upkeep().deadline()
    }

    /// Ends the hold; the first reason stays. Returns whether this was the first.
    ///
    /// A hold whose deadline has passed may be given to somebody else, and the news of that, or of what the next holder
    /// did, can be read before anything here has looked at the clock, as when a frozen process thaws. What the document
    /// says about a hold counts up to its end.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let first = {
            let (end, explanation) = self.end_of();
            let mut state = self.state();
            let is_news = matches!(
                reason,
                LostReason::Overwritten | LostReason::Deleted | LostReason::Broken | LostReason::Adopted
            );
            let reason = match reason {
                LostReason::Expired => self.run_out(),
                _ if is_news && end <= Instant::now() => explanation,
                reason => reason,
            };
            let may_be_ours = state.deleting > 0 && matches!(reason, LostReason::Deleted | LostReason::Overwritten);
            let first = state.lost.is_none() && !may_be_ours;
            if first {
                self.end(&mut state, reason);
            } else if may_be_ours {
                state.gone = Some(reason);
            }
            first
        };
        if first {
            self.ended.cancel();
        }
        first
    }

    /// Notes that its holder is about to end it by a write. News of that can come before its answer.
    pub(crate) fn begin_deleting(&self) {
        self.state().deleting += 1;
    }

    /// Notes the answer to that, or that there is none. If the holder did not end it, the news that came meanwhile is of
    /// another program.
    pub(crate) fn end_deleting(&self, deleted: bool) {
        let gone = {
            let mut state = self.state();
            state.deleting = state.deleting.saturating_sub(1);
            state.deleted |= deleted;
            state.gone.filter(|_| state.deleting == 0)
        };
        if let Some(reason) = deleted.then_some(LostReason::Released).or(gone) {
            self.lose(reason);
        }
    }

    /// Reports whether a write is on its way by which its holder ends it.
    pub(crate) fn is_being_deleted(&self) -> bool {
        self.state().deleting > 0
    }

    /// Reports whether its holder ended it by a write.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state().deleted
    }

    /// Whether this is a copy in a fork: a thread of the parent may have had its mutexes, which then stay locked.
    fn is_forked(&self) -> bool {
        self.held_in != std::process::id()
    }

    /// Returns the time that a renewal gives at present.
    pub(crate) fn length(&self) -> Duration {
        self.upkeep().lease.length
    }

    /// Returns its lease with this length; `None` if it has no shorter one.
    pub(crate) fn longer_lease(&self, length: Duration, config: &Config) -> Result<Option<Lease>, InvalidInput> {
        let present = self.upkeep().lease;
        let mut terms = Terms::default();
        match present.interval {
            Some(_) => terms.set_lease(length),
            None => terms.set_fixed(length),
        }
        terms.check(config)?;
        Ok((length > present.length).then(|| Lease {
            at_least: present.at_least,
            limits: present.limits,
            ..terms.lease(config)
        }))
    }

    /// Returns when it is lost in spite of all renewals.
    fn limit(&self) -> Option<Instant> {
        self.lease.limits.lose.map(|most| self.since + most)
    }

    /// Returns when it wants to be renewed next, if at all.
    #[cfg(test)]
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        self.upkeep().renew_at()
    }

    /// Returns when each [thing](super::timer_queue::Due) is due for it.
    pub(super) fn schedule(&self) -> [Option<Instant>; 5] {
        let (state, upkeep) = (self.state(), self.upkeep());
        match state.lost {
            // The release sees to the rest.
            Some(LostReason::Released) => return [None; 5],
            Some(_) => return [None, None, None, state.over_at, None],
            None => {}
        }
        let report_at = self.reported_from().filter(|_| !state.reported_too_long);
        let times = report_at.into_iter().chain(self.limit());
        let attend_at = times.chain([upkeep.deadline()]).min();
        // A task loses nothing with an idle hold.
        let overdue_at = upkeep.overdue_at().filter(|_| !self.is_idle);
        let renew_at = upkeep.renew_at();
        if upkeep.goes_apart() {
            return [None, None, renew_at, attend_at, overdue_at];
        }
        // One that is due may wait behind others which are not urgent.
        let urgent_at = renew_at.map(|at| at.max(upkeep.urgent_at()));
        [renew_at, urgent_at, None, attend_at, overdue_at]
    }

    /// Returns when the hold is over unless it is renewed, or why it is over: as soon as its deadline or its limit has
    /// come.
    fn look(&self) -> Result<Instant, LostReason> {
        if self.is_forked() {
            return Err(LostReason::Forked);
        }
        let (lost, reader) = {
            let state = self.state();
            (state.lost, state.upgrades.clone())
        };
        if let Some(reason) = lost {
            return Err(reason);
        }
        let own = self.end_of();
        let (end, reason) = match reader.map(|reader| reader.look()) {
            Some(Err(reason)) => (Instant::now(), reason),
            Some(Ok(readers)) => (own.0.min(readers), own.1),
            None => own,
        };
        if Instant::now() < end {
            return Ok(end);
        }
        self.lose(reason);
        // Another task may have been first, with another reason.
        Err(self.state().lost.unwrap_or(reason))
    }

    /// Returns when it is over unless it is renewed, and why it will be.
    fn end_of(&self) -> (Instant, LostReason) {
        let deadline = self.deadline();
        match self.limit().filter(|limit| *limit < deadline) {
            Some(limit) => (limit, LostReason::HeldTooLong),
            None => (deadline, self.run_out()),
        }
    }

    /// Returns the reason of its loss at its deadline.
    pub(super) fn run_out(&self) -> LostReason {
        match self.lease.interval {
            Some(_) => LostReason::Expired,
            None => LostReason::Elapsed,
        }
    }

    fn end(&self, state: &mut HoldState, reason: LostReason) {
        // Perhaps nothing looked when the deadline or the limit came.
        let over_at = match (reason, self.limit()) {
            (LostReason::Expired | LostReason::Elapsed, _) => self.deadline(),
            (LostReason::HeldTooLong, Some(limit)) => limit,
            _ => Instant::now(),
        };
        state.over_at = Some(over_at.min(Instant::now()));
        state.lost = Some(reason);
    }

    /// Returns its lease and renewals. Where both are locked, the state is first.
    pub(crate) fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        // Each change is a plain assignment: a panic leaves nothing half-done.
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, HoldState> {
        // As above.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hold as the waitlist has it: what goes on from one task to the next, and what is left of it.
impl waitlist::Hold for Hold {
    type Task = oneshot::Sender<AcquireOutcome>;
    type Release = oneshot::Sender<ReleaseOutcome>;

    fn of_grant(name: &str, entry: &str, grant: &Grant, before: Option<&Self>, context: &Context<'_>) -> Self {
        let mut hold = Self::new(entry.to_owned(), name.to_owned(), grant);
        hold.label = context.config.label(name);
        if let Some(before) = before {
            hold.logged_by = before.logged_by.clone();
            hold.upkeep().shown_by = before.upkeep().shown_by;
        }
        hold
    }

    /// The hold is renewed as often as its document is to be read, it has no limits, and observers never hear of it.
    fn idle(&self, inherited: RemainingLease) -> Self {
        let RemainingLease { deadline, renew_at } = inherited;
        let renew_at = renew_at.min(Instant::now() + idling::IDLE_LOOK_EVERY);
        let interval = self
            .lease
            .interval
            .map(|interval| interval.min(idling::IDLE_LOOK_EVERY));
        let limits = Limits::default();
        let grant = Grant {
            token: self.token.as_i64(),
            granted_as: self.granted_as,
            used: self.used,
            permits: self.permits(),
            lease: Lease {
                interval,
                limits,
                ..self.lease
            },
            how: How::Local,
            deadline,
            renew_at: Some(renew_at),
        };
        let hold = Self::new(self.id.clone(), self.name.clone(), &grant);
        hold.state().reported = Reported::Over;
        hold.upkeep().shown_by = self.upkeep().shown_by;
        Self {
            is_idle: true,
            since: self.since,
            logged_by: self.logged_by.clone(),
            ..hold
        }
    }

    fn entry(&self) -> &str {
        &self.id
    }

    fn used(&self) -> Use {
        self.used
    }

    fn is_same(&self, other: &Self) -> bool {
        self.number == other.number
    }

    /// Decided under the same mutex as its loss and the end of its last handle: a hold that is over is never entered
    /// again.
    fn enter(&self, permits: i64) -> bool {
        if self.look().is_err() {
            return false;
        }
        let mut state = self.state();
        let held = state.lost.is_none() && !state.detaching && u64::try_from(permits) == Ok(state.permits);
        state.handles += usize::from(held);
        held
    }

    fn given_back(&self) {
        self.exit();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.initialized()
    }

    fn is_over(&self) -> bool {
        self.lost_reason().is_some()
    }

    /// Nor was the hold downgraded: others may hold the lock beside it.
    fn released_lease(&self) -> Option<RemainingLease> {
        let state = self.state();
        let whole = u64::try_from(self.used.1).is_ok_and(|capacity| capacity == state.permits);
        let released = state.lost == Some(LostReason::Released);
        self.upkeep()
            .released_lease()
            .filter(|_| whole && released && state.is_plain())
    }

    /// The hold is not held too long either.
    fn shared_lease(&self) -> Option<RemainingLease> {
        self.look().ok().filter(|_| !self.is_held_too_long())?;
        let state = self.state();
        let goes_on = state.lost.is_none() && state.is_plain();
        self.upkeep().released_lease().filter(|_| goes_on)
    }

    fn left_as(&self) -> LeftAs {
        let state = self.state();
        let kept = |until| {
            let (id, token) = (self.id.clone(), self.granted_as);
            LeftAs::Kept(Kept { id, token, until })
        };
        match (state.lost, state.kept) {
            (Some(LostReason::Released | LostReason::HeldTooLong), Some(until)) => kept(until),
            // Nobody has lost anything with it.
            _ if self.is_idle => LeftAs::Free,
            // Not its own time is over, but that of its reader.
            (Some(LostReason::Expired | LostReason::Elapsed), _)
                if state.upgrades.is_some() && state.over_at < Some(self.deadline()) =>
            {
                LeftAs::Free
            }
            // Its time ends earlier here than at the server, and somebody else may have renewed it.
            (Some(LostReason::Expired | LostReason::Elapsed), _) => kept(KeptUntil::Expiry),
            (Some(LostReason::HeldTooLong), _) => LeftAs::HeldTooLong,
            // Released, or its entry is gone from the document already.
            _ => LeftAs::Free,
        }
    }
}

impl HoldState {
    /// Whether the release frees the lock and leaves the document.
    fn is_plain(&self) -> bool {
        self.kept.is_none() && self.deleting == 0 && !self.detaching
    }
}

/// Returns the names of the locks of these holds, each once.
pub(super) fn names_of<'a>(holds: impl IntoIterator<Item = &'a Arc<Hold>>) -> Vec<String> {
    let mut names: Vec<String> = holds.into_iter().map(|hold| hold.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::{super::timer_queue::Due, *};
    use crate::{
        config::Config,
        protocol::{Exchange, Kind},
        waitlist::{clock::ServerClock, deadline},
    };

    fn hold() -> Hold {
        let later = Instant::now() + Duration::from_secs(30);
        let grant = Grant {
            token: 1,
            granted_as: 1,
            used: (Kind::Document, 1),
            permits: 1,
            lease: Terms::default().lease(&Config::default()),
            deadline: later,
            renew_at: Some(later),
            how: How::AtOnce,
        };
        Hold::new("a-1".to_owned(), "7".to_owned(), &grant)
    }

    /// A thread of the parent had it at the fork.
    #[test]
    fn what_a_fork_asks_of_a_hold_waits_for_no_mutex() {
        let mut forked = hold();
        forked.held_in = 0;
        let forked = Arc::new(forked);
        let _locked = forked.state();
        let (asked, (to, told)) = (forked.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || to.send((asked.status(), asked.take_upgraded().is_none())));
        let told = told.recv_timeout(Duration::from_secs(10));
        assert_eq!(told, Ok((LockStatus::Lost, true)));
    }

    /// Also if nothing looked for longer than both.
    #[tokio::test(start_paused = true)]
    async fn of_its_limit_and_its_deadline_the_earlier_one_ends_a_hold() {
        let second = Duration::from_secs(1);
        for (limit, reason, held) in [(20, LostReason::HeldTooLong, 20), (40, LostReason::Expired, 30)] {
            let mut hold = hold();
            hold.lease.limits.report = Some(10 * second);
            hold.lease.limits.lose = Some(limit * second);
            let began = hold.since;
            assert_eq!(hold.schedule()[Due::Attention as usize], Some(began + 10 * second));
            assert_eq!(hold.safe_for(), held * second);
            tokio::time::advance(10 * second).await;
            assert_eq!(hold.status(), LockStatus::HeldTooLong);
            hold.report_too_long();
            assert_eq!(hold.schedule()[Due::Attention as usize], Some(began + held * second));
            tokio::time::advance(60 * second).await;
            assert_eq!(hold.lost_reason(), Some(reason));
            assert_eq!(hold.lost().await, reason);
            assert_eq!(hold.state().over_at, Some(began + held * second));
        }
    }

    /// What the server denied before its time may still hold a lock that is kept taken, or be renewed by another.
    #[tokio::test(start_paused = true)]
    async fn only_a_writer_whose_reader_is_over_frees_its_entry_before_its_own_time() {
        for upgrades in [true, false] {
            let writer = hold();
            if upgrades {
                writer.note_upgraded(&Arc::new(hold()));
            }
            writer.lose(LostReason::Expired);
            let is_free = matches!(waitlist::Hold::left_as(&writer), LeftAs::Free);
            assert_eq!(is_free, upgrades);
        }
    }

    /// A frozen process that thaws may hear that its lock has another holder before its own clock ends the hold.
    #[tokio::test(start_paused = true)]
    async fn what_was_given_away_after_its_deadline_has_expired() {
        let second = Duration::from_secs(1);
        for news in [
            LostReason::Overwritten,
            LostReason::Deleted,
            LostReason::Broken,
            LostReason::Adopted,
        ] {
            for (limit, after, told, over) in [
                (40, 29, news, 29),
                (40, 35, LostReason::Expired, 30),
                (20, 35, LostReason::HeldTooLong, 20),
            ] {
                let mut hold = hold();
                hold.lease.limits.lose = Some(limit * second);
                tokio::time::advance(after * second).await;
                assert!(hold.lose(news));
                assert_eq!(hold.lost_reason(), Some(told));
                assert_eq!(hold.state().over_at, Some(hold.since + over * second));
            }
        }
        let released = hold();
        tokio::time::advance(35 * second).await;
        released.lose(LostReason::Released);
        assert_eq!(released.lost_reason(), Some(LostReason::Released));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_from_before_the_clock_was_set_puts_off_none_by_that_clock() {
        let (hold, config) = (hold(), Config::default());
        let second = Duration::from_secs(1);
        let mut clock = ServerClock::default();
        let mut hear = |ahead: i64| {
            let (sent, begun) = (Instant::now(), 1_700_000_000_000);
            let now = i64::try_from(hold.since.elapsed().as_millis()).unwrap() + begun + ahead;
            let exchange = Exchange::new(sent, sent, Some(ServerTime(now)));
            (clock.note(&exchange, &config), clock)
        };
        let lease = hold.lease.length;
        let renewed = |sent, clock: &ServerClock| {
            if !clock.ran_ahead_since(sent) {
                hold.upkeep()
                    .acknowledged(deadline::of_renewal(sent, lease, &config), sent);
            }
        };
        let (_, before) = hear(0);
        // Long enough after the grant for the renewal to give more than the margins take.
        tokio::time::advance(5 * second).await;
        renewed(Instant::now(), &before);
        let long = hold.safe_for();
        assert!(long > lease - 5 * second, "{long:?}");

        // One is on its way when the clock is found to be ahead, and another goes out at once.
        tokio::time::advance(second).await;
        let early = Instant::now();
        hold.upkeep().sent(early, early + 6 * second);
        tokio::time::advance(second).await;
        let (jump, after) = hear(10_000);
        let noticed = Instant::now();
        hold.upkeep().shorten(jump.unwrap().ahead.unwrap(), noticed);
        assert_eq!(hold.renew_at(), Some(noticed));
        hold.upkeep().sent(noticed, noticed + 3 * second);
        let short = hold.safe_for();
        assert!(short < long - 10 * second, "{short:?}");
        renewed(early, &after);
        assert_eq!((hold.safe_for(), hold.status()), (short, LockStatus::AtRisk));
        assert_eq!(hold.renew_at(), Some(noticed + 3 * second));
        // One that goes out by that clock is as good as any.
        renewed(noticed, &after);
        let next = noticed + config.renewal_interval();
        assert_eq!((hold.renew_at(), hold.status()), (Some(next), LockStatus::Held));
    }

    #[tokio::test]
    async fn the_news_of_a_deletion_can_come_before_its_answer() {
        for deleted in [true, false] {
            let hold = hold();
            hold.begin_deleting();
            assert!(!hold.lose(LostReason::Deleted));
            assert_eq!(hold.lost_reason(), None);
            hold.end_deleting(deleted);
            let reason = if deleted {
                LostReason::Released
            } else {
                LostReason::Deleted
            };
            assert_eq!(hold.lost().await, reason);
        }
        // Another reason applies at once.
        let broken = hold();
        broken.begin_deleting();
        assert!(broken.lose(LostReason::Broken));
        broken.end_deleting(false);
        assert_eq!(broken.lost_reason(), Some(LostReason::Broken));
    }
}
