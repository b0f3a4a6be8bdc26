//! One held lock, from its holder's side.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::process::Process;
use crate::{
    config::{Config, Limits, millis},
    error::{AcquireError, ServerError},
    hold_options::Lease,
    metric_names::LockLabel,
    protocol::{Holder, Kept, KeptUntil, ServerTime, Use, clock_token, wake},
    status::{LockStatus, Lost, LostReason},
    store::LogTime,
    telemetry::{self, Granted},
    token::FencingToken,
    waitlist::{self, Context, Grant, How, LeftAs, RemainingLease, clock::ServerClock, deadline::Deadline, idling},
};

/// A grant, with the local deadline up to which it is surely ours.
///
/// The deadline is counted on this machine's monotonic clock from before the request was sent, so it comes before the
/// server's own `until`. Every look at the hold compares the clock with the deadline on the spot: a process that was
/// frozen sees the loss with its first look, before any task of the session has run.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Larger than that of any earlier hold of this process.
    pub(super) number: u64,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) token: FencingToken,
    /// The token of its entry in the document: a smaller one, if the hold was handed on inside the process, or is
    /// shared.
    pub(crate) granted_as: i64,
    pub(crate) used: Use,
    pub(crate) lease: Lease,
    pub(crate) since: Instant,
    /// Its grant is no later than this in the server's log; unset if that is not known.
    logged_by: OnceLock<LogTime>,
    /// Whether no task has it: it stays with the client for the next one.
    pub(super) is_idle: bool,
    /// Whether the document may show it as idle.
    shown_idle: AtomicBool,
    /// Set if the lock has metrics of its own.
    pub(super) label: Option<LockLabel>,
    /// Whether the document was written under this hold: by its grant, or since it was handed on.
    written: AtomicBool,
    /// Number of proclaimed values.
    proclaimed: AtomicI64,
    progress: Mutex<Progress>,
    changed: Notify,
    ended: CancellationToken,
    held_in: Process,
}

#[derive(Debug)]
struct Progress {
    permits: u64,
    deadline: Deadline,
    /// `None`: nobody renews it.
    renew_at: Option<Instant>,
    /// When it is renewed at the latest because the document shows it as idle.
    show_at: Option<Instant>,
    /// When the renewal was due that was sent and is not acknowledged.
    due_at: Option<Instant>,
    /// Whether that was found to be overdue.
    overdue: bool,
    /// Set if the lock is to stay taken after a release.
    kept: Option<KeptUntil>,
    /// Number of renewals sent.
    renewals: u64,
    /// Renewals sent since the last timely answer.
    in_vain: u32,
    /// Number of renewals in a row that the server has refused.
    refusals: u32,
    /// Whether the last renewal failed or has not been answered in time.
    failing: bool,
    /// When the deadline was last brought forward, as the server's clock was set ahead: a renewal that was sent before
    /// that leaves the next one due.
    shortened_at: Option<Instant>,
    /// Number of handles: more than one where the hold was re-entered.
    handles: usize,
    /// When it was made part of a transaction that may not have ended yet.
    guarded_at: Option<Instant>,
    lost: Option<LostReason>,
    /// Number of deletions of the document by its holder that are on their way: their answers decide the reason of the
    /// loss.
    deleting: usize,
    /// Whether the document was seen to be gone during such a deletion.
    gone: bool,
    over_at: Option<Instant>,
    reported: Reported,
    /// Whether observers were told that it is held too long.
    reported_too_long: bool,
}

/// The number of the next hold of this process.
static HELD_HERE: AtomicU64 = AtomicU64::new(1);

#[cfg(test)]
thread_local! {
    /// Number of looks of this thread at any hold.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The times at which the heartbeat acts on a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// `None`: it is over.
    pub(super) renew_at: Option<Instant>,
    /// When it is over unless it is renewed; in the past if it is over already. Far ahead if its holder let go of it,
    /// as the release sees to the rest.
    pub(super) end: Instant,
    /// When the hold wants attention: at its end, or earlier as its renewal is overdue or it is held too long.
    pub(super) attend_at: Instant,
    /// Whether its renewal was found to be overdue.
    pub(super) overdue: bool,
    pub(super) in_vain: u32,
    pub(super) guarded: bool,
    pub(super) refused: bool,
}

/// Pause before a renewal that shows a hold as held while its document shows it as idle: most holds are over by then,
/// and need no such renewal.
const SHOWN_AFTER: Duration = Duration::from_millis(300);

/// Later than anything that the heartbeat waits for.
const FAR_OFF: Duration = Duration::from_secs(366 * 24 * 3600);

/// The events of a hold that observers have seen.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// None, as nothing has the hold so far; with how it was granted.
    Nothing(How),
    Granted,
    Over,
}

/// The remains of a hold when one of its handles goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Other handles.
    Held,
    /// Nothing: this was the last handle, and the hold must be released.
    Nothing,
    /// Nothing: it was lost before.
    Lost(LostReason),
}

impl Hold {
    /// Whether it was granted later than this, by the server's clock, from which every token starts.
    ///
    /// Where the counter was ahead of the clock, it can be `true` for a time that was later.
    pub(crate) fn is_granted_after(&self, at: ServerTime) -> bool {
        clock_token(at.plus_millis(1)) <= self.granted_as
    }

    /// Whether its grant is known to come before this in the server's log.
    pub(super) fn is_logged_before(&self, at: LogTime) -> bool {
        self.logged_by.get().is_some_and(|logged_by| *logged_by < at)
    }

    /// Notes that its grant is no later than this in the server's log, unless more is known.
    pub(super) fn note_logged(&self, at: LogTime) {
        self.logged_by.get_or_init(|| at);
    }

    pub(crate) fn new(id: String, name: String, grant: &Grant) -> Self {
        let at_least = grant.lease.at_least;
        let is_reader = i64::try_from(grant.permits).is_ok_and(|permits| permits < grant.used.1);
        Self {
            number: HELD_HERE.fetch_add(1, Ordering::Relaxed),
            id,
            name,
            token: FencingToken::new(grant.token),
            granted_as: grant.granted_as,
            used: grant.used,
            lease: grant.lease,
            since: Instant::now(),
            logged_by: OnceLock::new(),
            is_idle: false,
            shown_idle: AtomicBool::new(false),
            label: None,
            // Since a reader's entry was written, nobody can have written under the lock.
            written: AtomicBool::new(grant.token == grant.granted_as || is_reader),
            proclaimed: AtomicI64::new(0),
            progress: Mutex::new(Progress {
                permits: grant.permits,
                deadline: grant.deadline,
                renew_at: grant.renew_at,
                show_at: None,
                due_at: None,
                overdue: false,
                kept: (!at_least.is_zero()).then(|| KeptUntil::AfterGrant(millis(at_least))),
                renewals: 0,
                in_vain: 0,
                refusals: 0,
                failing: false,
                shortened_at: None,
                handles: 1,
                guarded_at: None,
                lost: None,
                deleting: 0,
                gone: false,
                over_at: None,
                reported: Reported::Nothing(grant.how),
                reported_too_long: false,
            }),
            changed: Notify::new(),
            ended: CancellationToken::new(),
            held_in: Process::this(),
        }
    }

    /// Notes that a renewal may have written it as idle.
    pub(super) fn note_shown_idle(&self) {
        self.shown_idle.store(true, Ordering::Release);
    }

    pub(super) fn is_shown_idle(&self) -> bool {
        self.shown_idle.load(Ordering::Acquire)
    }

    /// Has a renewal show this hold as held again in a document that shows it as idle, unless the hold is over before
    /// that.
    pub(super) fn show_held(&self, now: Instant) {
        self.note_shown_idle();
        self.progress().show_at = Some(now + SHOWN_AFTER);
    }

    /// Whether the document's holder is this hold.
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        holder.is_grant(&self.id, self.granted_as)
    }

    /// Returns the number of the next proclaimed value.
    pub(crate) fn proclamation(&self) -> i64 {
        self.proclaimed.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has the lock stay taken after a release, and reports whether the hold was not over yet.
    pub(crate) fn keep(&self, until: KeptUntil) -> bool {
        if self.look().is_err() {
            return false;
        }
        let mut progress = self.progress();
        progress.kept = Some(until);
        progress.lost.is_none()
    }

    /// Waits until the hold is lost.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change after the look is missed.
            changed.as_mut().enable();
            let deadline = match self.look() {
                Ok(deadline) => deadline,
                // Nothing cancels the token in a fork.
                Err(LostReason::Forked) => return LostReason::Forked,
                Err(reason) => {
                    // The task that noticed the loss may be about to cancel the token: the two must agree.
                    self.ended.cancelled().await;
                    return reason;
                }
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(deadline) => {}
            }
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
        match self.look() {
            Err(_) => LockStatus::Lost,
            Ok(_) if self.progress().failing => LockStatus::AtRisk,
            Ok(_) if self.reported_from().is_some_and(|from| from <= Instant::now()) => LockStatus::HeldTooLong,
            Ok(_) => LockStatus::Held,
        }
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.progress().deadline.instant()
    }

    /// Ends the hold; the first reason stays. Returns whether this was the first.
    ///
    /// A hold whose deadline has passed may be given to somebody else, and the news of that, or of what the next holder
    /// did, can be read before anything here has looked at the clock, as when a frozen process thaws. What the document
    /// says about a hold counts up to its end.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let first = {
            let mut progress = self.progress();
            let (end, explanation) = self.end_of(&progress);
            let is_news = matches!(
                reason,
                LostReason::Overwritten | LostReason::Deleted | LostReason::Broken | LostReason::Adopted
            );
            let reason = match reason {
                LostReason::Expired => self.run_out(),
                _ if is_news && end <= Instant::now() => explanation,
                reason => reason,
            };
            if progress.deleting > 0 && reason == LostReason::Deleted {
                progress.gone = true;
                return false;
            }
            let first = progress.lost.is_none();
            if first {
                progress.end(reason, self.limit());
            }
            first
        };
        if first {
            self.announce();
        }
        first
    }

    /// Notes that its holder is about to delete the document. News of the deletion can come before its answer.
    pub(crate) fn begin_deleting(&self) {
        self.progress().deleting += 1;
    }

    /// Notes the answer to that, or that there is none. If the holder did not delete the document, another program
    /// did.
    pub(crate) fn end_deleting(&self, deleted: bool) {
        let gone = {
            let mut progress = self.progress();
            progress.deleting = progress.deleting.saturating_sub(1);
            progress.gone && progress.deleting == 0
        };
        if deleted {
            self.lose(LostReason::Released);
        } else if gone {
            self.lose(LostReason::Deleted);
        }
    }

    pub(crate) fn permits(&self) -> u64 {
        self.progress().permits
    }

    /// Makes it the hold of a reader, unless it has more than one handle; returns their number then.
    ///
    /// Decided under the same mutex as [`enter`](waitlist::Hold::enter): no task shares it as a writer from now on.
    pub(crate) fn downgrade(&self, permits: u64) -> Result<(), usize> {
        let mut progress = self.progress();
        if progress.handles > 1 {
            return Err(progress.handles);
        }
        progress.permits = progress.permits.min(permits);
        Ok(())
    }

    /// Drops a handle; with the last one the hold is over.
    pub(crate) fn exit(&self) -> Remains {
        if let Err(reason) = self.look() {
            return Remains::Lost(reason);
        }
        {
            let mut progress = self.progress();
            if let Some(reason) = progress.lost {
                return Remains::Lost(reason);
            }
            progress.handles = progress.handles.saturating_sub(1);
            if progress.handles > 0 {
                return Remains::Held;
            }
            progress.end(LostReason::Released, None);
        }
        self.announce();
        Remains::Nothing
    }

    /// Returns the grant to report to observers, now that a task has it. Of the tasks that share a hold, the first
    /// reports how it was granted.
    pub(crate) fn granted(&self) -> Granted<'_> {
        let mut progress = self.progress();
        let how = match progress.reported {
            Reported::Nothing(how) => {
                progress.reported = Reported::Granted;
                how
            }
            Reported::Granted | Reported::Over => How::Reentered,
        };
        Granted {
            lock: &self.name,
            kind: self.used.0,
            token: self.token,
            how,
            label: self.label.as_ref(),
        }
    }

    /// Reports to observers that it is over, if it is: once, and only if its grant was reported.
    ///
    /// Call it whenever the hold may be over and no mutex is held, as the code that notices the end may hold one.
    pub(crate) fn report_end(&self) {
        let Err(reason) = self.look() else { return };
        if reason == LostReason::Forked {
            return;
        }
        // Perhaps nothing looked since that time.
        self.report_too_long();
        let over_at = {
            let mut progress = self.progress();
            if !matches!(progress.reported, Reported::Granted) {
                return;
            }
            progress.reported = Reported::Over;
            progress.over_at
        };
        let held = over_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.since));
        telemetry::ended(&self.name, self.label.as_ref(), self.used.0, self.token, reason, held);
    }

    /// Reports to observers that it is held too long, if it is or was: once. Call it while no mutex is held.
    pub(super) fn report_too_long(&self) {
        let (Some(most), Some(from)) = (self.lease.limits.report, self.reported_from()) else {
            return;
        };
        let held_until = {
            let mut progress = self.progress();
            let held_until = progress.over_at.unwrap_or_else(Instant::now);
            if progress.reported_too_long || held_until < from {
                return;
            }
            progress.reported_too_long = true;
            held_until
        };
        let held = held_until.saturating_duration_since(self.since);
        telemetry::held_too_long(&self.name, self.label.as_ref(), self.used.0, self.token, held, most);
    }

    /// Returns from when on it is held too long.
    fn reported_from(&self) -> Option<Instant> {
        self.lease.limits.report.map(|most| self.since + most)
    }

    /// Returns when it is lost in spite of all renewals.
    fn limit(&self) -> Option<Instant> {
        self.lease.limits.lose.map(|most| self.since + most)
    }

    fn announce(&self) {
        self.changed.notify_waiters();
        self.ended.cancel();
    }

    /// Returns when it wants to be renewed next, if at all.
    #[cfg(test)]
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        self.schedule().renew_at
    }

    pub(super) fn schedule(&self) -> Schedule {
        let progress = self.progress();
        let end = match progress.lost {
            None => progress.deadline.instant(),
            Some(LostReason::Released) => Instant::now() + FAR_OFF,
            Some(_) => progress.over_at.unwrap_or(progress.deadline.instant()),
        };
        let report_at = self.reported_from().filter(|_| !progress.reported_too_long);
        let overdue_at = self.overdue_at(&progress).filter(|_| !progress.overdue);
        let limits = report_at.into_iter().chain(self.limit()).chain(overdue_at);
        let limits = limits.filter(|_| progress.lost.is_none());
        let renew_at = progress
            .renew_at
            .map(|at| progress.show_at.map_or(at, |show_at| show_at.min(at)));
        Schedule {
            renew_at: renew_at.filter(|_| progress.lost.is_none()),
            end,
            attend_at: limits.min().map_or(end, |at| at.min(end)),
            overdue: progress.overdue && progress.lost.is_none(),
            in_vain: progress.in_vain,
            guarded: progress.guarded_at.is_some(),
            refused: progress.refusals > 0,
        }
    }

    /// Notes that a renewal is sent; without an answer another goes out beside it at `again`. Returns its number.
    pub(crate) fn renewing(&self, again: Instant) -> u64 {
        let mut progress = self.progress();
        progress.due_at = progress.due_at.or(progress.renew_at);
        (progress.renew_at, progress.show_at) = (Some(again), None);
        progress.renewals += 1;
        // This renewal goes out beside another.
        progress.failing |= progress.in_vain > 0;
        progress.in_vain = progress.in_vain.saturating_add(1);
        progress.renewals
    }

    /// Notes that a renewal that was sent at `sent` was acknowledged.
    ///
    /// It wakes no task: one that waits for the loss looks again at the deadline that it knows of.
    pub(crate) fn renewed(&self, deadline: Deadline, sent: Instant) {
        let mut progress = self.progress();
        // Renewals overtake each other; and a lost hold stays lost, even if a renewal succeeds.
        if deadline.instant() > progress.deadline.instant() {
            progress.deadline = deadline;
            progress.in_vain = 0;
            progress.refusals = 0;
            if progress.shortened_at.is_none_or(|at| at <= sent) {
                progress.renew_at = self.lease.next_renewal(sent);
                progress.failing = false;
                (progress.due_at, progress.overdue) = (None, false);
            }
            if !self.is_idle && progress.show_at.is_none() {
                self.shown_idle.store(false, Ordering::Release);
            }
        }
    }

    /// Brings the deadline forward because the server's clock was set ahead, and has the hold renewed at once by that
    /// clock.
    pub(super) fn shorten(&self, clock: &ServerClock, config: &Config) {
        let mut progress = self.progress();
        let (before, now) = (progress.deadline.instant(), Instant::now());
        progress.deadline = progress.deadline.corrected(clock, config);
        if self.lease.interval.is_some() {
            progress.failing = true;
            progress.renew_at = Some(now);
            if progress.deadline.instant() < before {
                progress.shortened_at = Some(now);
            }
        }
    }

    /// Wakes the tasks that wait for the loss, as the deadline comes earlier than they know.
    pub(super) fn look_again(&self) {
        self.changed.notify_waiters();
    }

    /// Notes that a renewal failed: not a loss, as long as the deadline is ahead. Another goes out at `again` at the
    /// latest, unless one has gone out since.
    pub(crate) fn failed(&self, renewal: u64, again: Instant, answered: bool) {
        let mut progress = self.progress();
        // A fixed hold whose grant is confirmed needs no more of them.
        if progress.renewals == renewal && progress.renew_at.is_some() {
            progress.failing = true;
            if answered {
                progress.in_vain = 0;
            }
            progress.renew_at = progress.renew_at.map(|at| at.min(again));
        }
    }

    /// Notes that the server refused to renew this hold. The next try comes after `pause`, which is given the number
    /// of refusals before this one and the time left. Returns the number of refusals in a row.
    pub(crate) fn refused(&self, pause: impl FnOnce(u32, Duration) -> Duration) -> u32 {
        let now = Instant::now();
        let mut progress = self.progress();
        if progress.renew_at.is_none() {
            return progress.refusals;
        }
        progress.failing = true;
        (progress.in_vain, progress.overdue) = (0, false);
        let left = progress.deadline.instant().saturating_duration_since(now);
        progress.renew_at = Some(now + pause(progress.refusals, left));
        progress.refusals = progress.refusals.saturating_add(1);
        progress.refusals
    }

    /// Returns when its renewal is overdue, unless it is acknowledged before: when the next one would be due, and while
    /// half of the time is left that it had. A task loses nothing with an idle hold, and a refusal is reported by
    /// itself.
    fn overdue_at(&self, progress: &Progress) -> Option<Instant> {
        let renew_at = progress.renew_at.filter(|_| !self.is_idle && progress.refusals == 0)?;
        let due_at = progress.due_at.unwrap_or(renew_at);
        let half = progress.deadline.instant().saturating_duration_since(due_at) / 2;
        Some(due_at + self.lease.interval.map_or(half, |interval| interval.min(half)))
    }

    /// Notes whether its renewal is overdue.
    pub(super) fn note_if_overdue(&self, now: Instant) {
        let mut progress = self.progress();
        progress.overdue |= self.overdue_at(&progress).is_some_and(|at| at <= now);
    }

    /// Whether the document was written since the holder has it. For a hold that was handed on inside the process, or
    /// is shared, it was not.
    pub(super) fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn note_written(&self) {
        self.written.store(true, Ordering::Release);
    }

    /// Notes that it becomes part of a transaction: as long as that is open, renewals are not answered.
    pub(crate) fn note_guarded(&self, at: Instant) {
        self.progress().guarded_at = Some(at);
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.progress().guarded_at.is_some()
    }

    /// Notes that a renewal sent at that time was answered, so no transaction from before it is open any more.
    pub(crate) fn note_no_transaction_before(&self, sent: Instant) {
        let mut progress = self.progress();
        progress.guarded_at = progress.guarded_at.filter(|guarded_at| *guarded_at >= sent);
    }

    /// Returns when the hold is over unless it is renewed, or why it is over: as soon as its deadline or its limit has
    /// come.
    fn look(&self) -> Result<Instant, LostReason> {
        if !self.held_in.is_this() {
            return Err(LostReason::Forked);
        }
        let (end, reason) = {
            let progress = self.progress();
            match progress.lost {
                Some(reason) => return Err(reason),
                None => self.end_of(&progress),
            }
        };
        if Instant::now() < end {
            return Ok(end);
        }
        self.lose(reason);
        // Another task may have been first, with another reason.
        Err(self.progress().lost.unwrap_or(reason))
    }

    /// Returns when it is over unless it is renewed, and why it will be.
    fn end_of(&self, progress: &Progress) -> (Instant, LostReason) {
        let deadline = progress.deadline.instant();
        match self.limit().filter(|limit| *limit < deadline) {
            Some(limit) => (limit, LostReason::HeldTooLong),
            None => (deadline, self.run_out()),
        }
    }

    /// Returns the reason of its loss at its deadline.
    fn run_out(&self) -> LostReason {
        match self.lease.interval {
            Some(_) => LostReason::Expired,
            None => LostReason::Elapsed,
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        // Each change is a plain assignment: a panic leaves nothing half-done.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of an acquire.
pub(crate) type AcquireOutcome = Result<Option<Arc<Hold>>, AcquireError>;

/// The outcome of a release.
pub(crate) type ReleaseOutcome = Result<wake::Left, ServerError>;

/// A waiting task: its channel, and the kind of answer it wants.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) to: oneshot::Sender<AcquireOutcome>,
    /// Whether a failed try returns [`AcquireError::Held`] rather than `None`.
    pub(crate) reports_contention: bool,
}

/// The hold as the waitlist has it.
impl waitlist::Hold for Hold {
    type Task = Task;
    type Release = oneshot::Sender<ReleaseOutcome>;

    fn of_grant(name: &str, entry: &str, grant: &Grant, before: Option<&Self>, context: &Context<'_>) -> Self {
        let mut hold = Self::new(entry.to_owned(), name.to_owned(), grant);
        hold.label = context.config.metered.label(name);
        if let Some(before) = before {
            hold.logged_by = before.logged_by.clone();
            if before.is_shown_idle() {
                hold.show_held(context.now);
            }
        }
        hold
    }

    /// The hold is renewed as often as its document is to be read, it has no limits, and observers never hear of it.
    fn idle(&self, left: RemainingLease) -> Self {
        let RemainingLease { deadline, renew_at } = left;
        let renew_at = renew_at.min(Instant::now() + idling::IDLE_LOOK_EVERY);
        let interval = self
            .lease
            .interval
            .map(|interval| interval.min(idling::IDLE_LOOK_EVERY));
        let limits = Limits::NONE;
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
        hold.progress().reported = Reported::Over;
        Self {
            is_idle: true,
            since: self.since,
            logged_by: self.logged_by.clone(),
            // The hold that must be shown as held may not have been shown so.
            shown_idle: AtomicBool::new(self.is_shown_idle()),
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
        let mut progress = self.progress();
        let held = progress.lost.is_none() && u64::try_from(permits) == Ok(progress.permits);
        progress.handles += usize::from(held);
        held
    }

    fn given_back(&self) {
        self.exit();
    }

    fn is_over(&self) -> bool {
        self.lost_reason().is_some()
    }

    /// Nothing about the lease has failed or is on its way, and no transaction hangs on it. Nor was the hold downgraded:
    /// others may hold the lock beside it.
    fn released_lease(&self) -> Option<RemainingLease> {
        let progress = self.progress();
        let whole = u64::try_from(self.used.1).is_ok_and(|capacity| capacity == progress.permits);
        let released = progress.lost == Some(LostReason::Released);
        let renew_at = progress.renew_at.filter(|_| whole && released && progress.is_plain())?;
        let deadline = progress.deadline;
        Some(RemainingLease { deadline, renew_at })
    }

    /// The hold is not held too long either.
    fn shared_lease(&self) -> Option<RemainingLease> {
        self.look().ok()?;
        if self.reported_from().is_some_and(|from| from <= Instant::now()) {
            return None;
        }
        let progress = self.progress();
        let is_held = progress.lost.is_none();
        let renew_at = progress.renew_at.filter(|_| is_held && progress.is_plain())?;
        let deadline = progress.deadline;
        Some(RemainingLease { deadline, renew_at })
    }

    fn left_as(&self) -> LeftAs {
        let progress = self.progress();
        let kept = |until| {
            let (id, token) = (self.id.clone(), self.granted_as);
            LeftAs::Kept(Kept { id, token, until })
        };
        match (progress.lost, progress.kept) {
            (Some(LostReason::Released | LostReason::HeldTooLong), Some(until)) => kept(until),
            // Nobody has lost anything with it.
            _ if self.is_idle => LeftAs::Free,
            // Its time ends earlier here than at the server, and somebody else may have renewed it.
            (Some(LostReason::Expired | LostReason::Elapsed), _) => kept(KeptUntil::Expiry),
            (Some(LostReason::HeldTooLong), _) => LeftAs::HeldTooLong,
            // Released, or its entry is gone from the document already.
            _ => LeftAs::Free,
        }
    }
}

/// Returns the names of the locks of these holds, each once.
pub(super) fn names_of<'a>(holds: impl IntoIterator<Item = &'a Arc<Hold>>) -> Vec<String> {
    let names: BTreeSet<&String> = holds.into_iter().map(|hold| &hold.name).collect();
    names.into_iter().cloned().collect()
}

impl Progress {
    /// Whether nothing about its lease has failed or is on its way, and nothing hangs on it.
    fn is_plain(&self) -> bool {
        let certain = !self.failing && self.in_vain == 0 && self.refusals == 0;
        let unbound = self.kept.is_none() && self.guarded_at.is_none() && self.deleting == 0;
        certain && unbound
    }

    /// Ends the hold, which may be held up to `limit`.
    fn end(&mut self, reason: LostReason, limit: Option<Instant>) {
        // Perhaps nothing looked when the deadline or the limit came.
        self.over_at = Some(match (reason, limit) {
            (LostReason::Expired | LostReason::Elapsed, _) => self.deadline.instant(),
            (LostReason::HeldTooLong, Some(limit)) => limit,
            _ => Instant::now(),
        });
        self.lost = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Settings,
        hold_options::Terms,
        protocol::{Exchange, Kind},
    };

    fn hold() -> Hold {
        let later = Instant::now() + Duration::from_secs(30);
        let grant = Grant {
            token: 1,
            granted_as: 1,
            used: (Kind::Document, 1),
            permits: 1,
            lease: Terms::default().lease(&Settings::default().unchecked()),
            deadline: Deadline::at(later),
            renew_at: Some(later),
            how: How::AtOnce,
        };
        Hold::new("a-1".to_owned(), "7".to_owned(), &grant)
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
            assert_eq!(hold.schedule().attend_at, began + 10 * second);
            assert_eq!(hold.safe_for(), held * second);
            tokio::time::advance(10 * second).await;
            assert_eq!(hold.status(), LockStatus::HeldTooLong);
            hold.report_too_long();
            assert_eq!(hold.schedule().attend_at, began + held * second);
            tokio::time::advance(60 * second).await;
            assert_eq!(hold.lost_reason(), Some(reason));
            assert_eq!(hold.lost().await, reason);
            assert_eq!(hold.progress().over_at, Some(began + held * second));
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
                assert_eq!(hold.progress().over_at, Some(hold.since + over * second));
            }
        }
        let released = hold();
        tokio::time::advance(35 * second).await;
        released.lose(LostReason::Released);
        assert_eq!(released.lost_reason(), Some(LostReason::Released));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_from_before_the_clock_was_set_puts_off_none_by_that_clock() {
        let (hold, config) = (hold(), Settings::default().unchecked());
        let second = Duration::from_secs(1);
        let mut clock = ServerClock::default();
        let mut hear = |ahead: i64| {
            let (sent, begun) = (Instant::now(), 1_700_000_000_000);
            let now = i64::try_from(hold.since.elapsed().as_millis()).unwrap() + begun + ahead;
            let exchange = Exchange {
                sent,
                received: sent,
                now: Some(ServerTime(now)),
            };
            (clock.note(&exchange, &config), clock)
        };
        let lease = hold.lease.length;
        let renewed = |sent, then: &ServerClock, now: &ServerClock| {
            let deadline = Deadline::of_renewal(sent, lease, then, &config);
            hold.renewed(deadline.corrected(now, &config), sent);
        };
        let (_, before) = hear(0);
        // Long enough after the grant for the renewal to give more than the margins take.
        tokio::time::advance(5 * second).await;
        renewed(Instant::now(), &before, &before);
        let long = hold.safe_for();
        assert!(long > lease - 5 * second, "{long:?}");

        // One is on its way when the clock is found to be ahead, and another goes out at once.
        tokio::time::advance(second).await;
        let early = Instant::now();
        hold.renewing(early + 6 * second);
        tokio::time::advance(second).await;
        let (jump, after) = hear(10_000);
        assert!(jump.is_some_and(|jump| jump.ahead));
        let noticed = Instant::now();
        hold.shorten(&after, &config);
        assert_eq!(hold.renew_at(), Some(noticed));
        hold.renewing(noticed + 3 * second);
        let short = hold.safe_for();
        assert!(short < long - 10 * second, "{short:?}");
        renewed(early, &before, &after);
        assert!(hold.safe_for() > short, "it was taken in");
        assert_eq!(
            (hold.renew_at(), hold.status()),
            (Some(noticed + 3 * second), LockStatus::AtRisk)
        );
        // One that goes out by that clock is as good as any.
        renewed(noticed, &after, &after);
        let next = noticed + config.renewal_interval;
        assert_eq!((hold.renew_at(), hold.status()), (Some(next), LockStatus::Held));
        // Where that takes nothing from the deadline, the answer to an earlier one will do.
        tokio::time::advance(second).await;
        renewed(Instant::now(), &after, &after);
        tokio::time::advance(second).await;
        let early = Instant::now();
        tokio::time::advance(second).await;
        hold.shorten(&after, &config);
        assert_eq!(hold.status(), LockStatus::AtRisk);
        renewed(early, &after, &after);
        let next = early + config.renewal_interval;
        assert_eq!((hold.renew_at(), hold.status()), (Some(next), LockStatus::Held));
    }

    #[tokio::test]
    async fn the_news_of_a_deletion_can_come_before_its_answer() {
        for (deleted, reason) in [(true, LostReason::Released), (false, LostReason::Deleted)] {
            let hold = hold();
            hold.begin_deleting();
            assert!(!hold.lose(LostReason::Deleted));
            assert_eq!(hold.lost_reason(), None);
            hold.end_deleting(deleted);
            assert_eq!(hold.lost().await, reason);
        }
        // Another reason applies at once; and after a failed deletion by the holder, so does a deletion by others.
        let (broken, robbed) = (hold(), hold());
        broken.begin_deleting();
        assert!(broken.lose(LostReason::Broken));
        broken.end_deleting(false);
        assert_eq!(broken.lost_reason(), Some(LostReason::Broken));
        robbed.begin_deleting();
        robbed.end_deleting(false);
        assert_eq!(robbed.lost_reason(), None);
        assert!(robbed.lose(LostReason::Deleted));
    }
}
