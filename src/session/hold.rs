//! One held lock, as its holder sees it.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::process::Process;
use crate::{
    config::Config,
    protocol::{Holder, ServerTime, Use, clock_token},
    status::{LockStatus, LostReason},
    telemetry::{self, Granted, How},
    token::FencingToken,
    waitlist::{Grant, clock::ServerClock, deadline::Deadline},
};

/// A grant, with the local deadline up to which it is surely ours.
///
/// The deadline is counted on this machine's monotonic clock from before the request was sent, so it comes before the
/// server's own `until`. Whoever looks at the hold compares the clock with the deadline on the spot: a process that
/// was frozen sees the loss with its first look, before any task of the session has run.
#[derive(Debug)]
pub(crate) struct Hold {
    /// Larger than that of any hold that this process got before.
    pub(super) number: u64,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) token: FencingToken,
    pub(crate) used: Use,
    pub(crate) permits: u64,
    pub(crate) lease: Duration,
    pub(crate) since: Instant,
    /// How many values were proclaimed.
    proclaimed: AtomicI64,
    progress: Mutex<Progress>,
    changed: Notify,
    ended: CancellationToken,
    held_in: Process,
}

#[derive(Debug)]
struct Progress {
    deadline: Deadline,
    renew_at: Instant,
    /// How many renewals were sent so far.
    renewals: u64,
    /// How many of them since the last of which the server said anything in time.
    in_vain: u32,
    /// How many renewals in a row the server has refused.
    refusals: u32,
    /// The last renewal failed or has not been answered in time.
    failing: bool,
    /// How many handles there are to it: more than one where it was re-entered.
    handles: usize,
    /// When it was made part of a transaction that may not have ended yet.
    guarded_at: Option<Instant>,
    lost: Option<LostReason>,
    /// Deletions of the document by its holder that are on their way: that it is gone is theirs to tell.
    deleting: usize,
    /// It was seen that the document is gone, while one was.
    gone: bool,
    over_at: Option<Instant>,
    reported: Reported,
}

/// How many holds this process has had.
static HELD_HERE: AtomicU64 = AtomicU64::new(1);

#[cfg(test)]
thread_local! {
    /// How often this thread has looked at a hold, whichever.
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// When the heartbeat is to see to a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// `None`: it is over.
    pub(super) renew_at: Option<Instant>,
    /// When it is over unless it is renewed; in the past where it is already. Far ahead where its holder let go of it, who
    /// sees to the rest.
    pub(super) end: Instant,
    pub(super) in_vain: u32,
    pub(super) guarded: bool,
    pub(super) refused: bool,
}

/// Later than anything that the heartbeat waits for.
const NEVER: Duration = Duration::from_secs(366 * 24 * 3600);

/// What observers know of a hold.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// Nothing, as nobody has it so far; and how it was granted.
    Nothing(How),
    Granted,
    Over,
}

/// What is left of a hold when one of its handles goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    /// Other handles.
    Held,
    /// Nothing: it was the last, and the hold is to be given back.
    Nothing,
    /// It was lost before.
    Lost(LostReason),
}

impl Hold {
    /// Whether it was granted later than this, on the server's clock, which every token begins from.
    ///
    /// Where the counter was ahead of the clock it can be told of a time that was later.
    pub(crate) fn is_granted_after(&self, at: ServerTime) -> bool {
        clock_token(at.plus_millis(1)) <= self.token.as_i64()
    }

    pub(crate) fn new(id: String, name: String, grant: &Grant) -> Self {
        Self {
            number: HELD_HERE.fetch_add(1, Ordering::Relaxed),
            id,
            name,
            token: FencingToken::new(grant.token),
            used: grant.used,
            permits: grant.permits,
            lease: grant.lease,
            since: Instant::now(),
            proclaimed: AtomicI64::new(0),
            progress: Mutex::new(Progress {
                deadline: grant.deadline,
                renew_at: grant.renew_at,
                renewals: 0,
                in_vain: 0,
                refusals: 0,
                failing: false,
                handles: 1,
                guarded_at: None,
                lost: None,
                deleting: 0,
                gone: false,
                over_at: None,
                reported: Reported::Nothing(grant.how),
            }),
            changed: Notify::new(),
            ended: CancellationToken::new(),
            held_in: Process::this(),
        }
    }

    /// Whether the document's holder is this hold. The entry alone does not tell: where it was put out and a request for
    /// it was still on its way, it is granted anew, which is another hold that nobody has.
    pub(crate) fn is(&self, holder: &Holder) -> bool {
        holder.id == self.id && holder.token == self.token.as_i64()
    }

    /// The number of the next value that is proclaimed.
    pub(crate) fn proclamation(&self) -> i64 {
        self.proclaimed.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits until the hold is lost.
    pub(crate) async fn lost(&self) -> LostReason {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that no change after the look is missed.
            changed.as_mut().enable();
            let deadline = match self.look() {
                Ok(deadline) => deadline,
                // Nobody cancels anything there.
                Err(LostReason::Forked) => return LostReason::Forked,
                Err(reason) => {
                    // Whoever lost it may be about to cancel the token: they are to agree.
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

    pub(crate) fn safe_for(&self) -> Duration {
        self.look().map_or(Duration::ZERO, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        })
    }

    pub(crate) fn status(&self) -> LockStatus {
        match self.look() {
            Err(_) => LockStatus::Lost,
            Ok(_) if self.progress().failing => LockStatus::AtRisk,
            Ok(_) => LockStatus::Held,
        }
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.progress().deadline.instant()
    }

    /// Ends the hold; the first reason stays. Returns whether this was it.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let first = {
            let mut progress = self.progress();
            if progress.deleting > 0 && reason == LostReason::Deleted {
                progress.gone = true;
                return false;
            }
            let first = progress.lost.is_none();
            if first {
                progress.end(reason);
            }
            first
        };
        if first {
            self.announce();
        }
        first
    }

    /// Its holder is about to delete the document. The news of it can be here before the answer.
    pub(crate) fn begin_deleting(&self) {
        self.progress().deleting += 1;
    }

    /// The answer is here, or there is none. Where the holder did not delete it, it was somebody else.
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

    /// One more handle to it, unless it is over.
    ///
    /// Decided together with its loss and with the going of its last handle: what is over is never entered again.
    pub(crate) fn enter(&self) -> bool {
        if self.look().is_err() {
            return false;
        }
        let mut progress = self.progress();
        let held = progress.lost.is_none();
        progress.handles += usize::from(held);
        held
    }

    /// A handle goes; with the last one the hold is over.
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
            progress.end(LostReason::Released);
        }
        self.announce();
        Remains::Nothing
    }

    /// Somebody has it from now on, as is to be told. Of those who share a hold the first brings how it was granted.
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
        }
    }

    /// Tells observers that it is over, if it is: once, and only those who know that it was granted.
    ///
    /// To be called whenever it may be over and no mutex is held, as whoever found out first may have held one.
    pub(crate) fn report_end(&self) {
        let Err(reason) = self.look() else { return };
        if reason == LostReason::Forked {
            return;
        }
        let over_at = {
            let mut progress = self.progress();
            if !matches!(progress.reported, Reported::Granted) {
                return;
            }
            progress.reported = Reported::Over;
            progress.over_at
        };
        let held = over_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(self.since));
        telemetry::ended(&self.name, self.used.0, self.token, reason, held);
    }

    fn announce(&self) {
        self.changed.notify_waiters();
        self.ended.cancel();
    }

    /// When it wants to be renewed next, if it still is to be.
    #[cfg(test)]
    pub(crate) fn renew_at(&self) -> Option<Instant> {
        self.schedule().renew_at
    }

    pub(super) fn schedule(&self) -> Schedule {
        let progress = self.progress();
        Schedule {
            renew_at: progress.lost.is_none().then_some(progress.renew_at),
            end: match progress.lost {
                None => progress.deadline.instant(),
                Some(LostReason::Released) => Instant::now() + NEVER,
                Some(_) => progress.over_at.unwrap_or(progress.deadline.instant()),
            },
            in_vain: progress.in_vain,
            guarded: progress.guarded_at.is_some(),
            refused: progress.refusals > 0,
        }
    }

    /// A renewal is under way; unless it is answered another goes out beside it at `again`. Returns which it is.
    pub(crate) fn renewing(&self, again: Instant) -> u64 {
        let mut progress = self.progress();
        progress.renew_at = again;
        progress.renewals += 1;
        // This one goes out beside another.
        progress.failing |= progress.in_vain > 0;
        progress.in_vain = progress.in_vain.saturating_add(1);
        progress.renewals
    }

    /// A renewal was acknowledged.
    ///
    /// Nobody is woken: whoever waits for the loss looks again when the deadline comes that they know of.
    pub(crate) fn renewed(&self, deadline: Deadline, renew_at: Instant) {
        let mut progress = self.progress();
        // Renewals overtake each other; and what was lost stays lost, however good the news.
        if deadline.instant() > progress.deadline.instant() {
            progress.deadline = deadline;
            progress.renew_at = renew_at;
            progress.in_vain = 0;
            progress.refusals = 0;
            progress.failing = false;
        }
    }

    /// The server's clock was set ahead: the deadline comes earlier, and the hold is renewed at once, by that clock.
    pub(super) fn shorten(&self, clock: &ServerClock, config: &Config) {
        let mut progress = self.progress();
        progress.deadline = progress.deadline.corrected(clock, config);
        progress.failing = true;
        progress.renew_at = Instant::now();
    }

    /// The deadline comes earlier than those may know who wait for it.
    pub(super) fn look_again(&self) {
        self.changed.notify_waiters();
    }

    /// A renewal failed: not a loss, as long as the deadline is ahead. Another goes out at `again` at the latest, unless
    /// one has since.
    pub(crate) fn failed(&self, renewal: u64, again: Instant, answered: bool) {
        let mut progress = self.progress();
        if progress.renewals == renewal {
            progress.failing = true;
            if answered {
                progress.in_vain = 0;
            }
            progress.renew_at = progress.renew_at.min(again);
        }
    }

    /// The server answered that it does not renew this one; it is asked again after a pause that is reckoned from how often it
    /// had refused before, and from what is left. Returns how often it has refused in a row.
    pub(crate) fn refused(&self, pause: impl FnOnce(u32, Duration) -> Duration) -> u32 {
        let now = Instant::now();
        let mut progress = self.progress();
        progress.failing = true;
        progress.in_vain = 0;
        let left = progress.deadline.instant().saturating_duration_since(now);
        progress.renew_at = now + pause(progress.refusals, left);
        progress.refusals = progress.refusals.saturating_add(1);
        progress.refusals
    }

    /// It becomes part of a transaction: as long as that is open, renewals are not answered.
    pub(crate) fn guarded_at(&self, at: Instant) {
        self.progress().guarded_at = Some(at);
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.progress().guarded_at.is_some()
    }

    /// A renewal sent at that time was answered, so no transaction from before it is open any more.
    pub(crate) fn answered(&self, sent: Instant) {
        let mut progress = self.progress();
        progress.guarded_at = progress.guarded_at.filter(|guarded_at| *guarded_at >= sent);
    }

    /// The deadline, or why the hold is over; it is over as soon as the deadline has come.
    fn look(&self) -> Result<Instant, LostReason> {
        if !self.held_in.is_this() {
            return Err(LostReason::Forked);
        }
        let deadline = {
            let progress = self.progress();
            match progress.lost {
                Some(reason) => return Err(reason),
                None => progress.deadline.instant(),
            }
        };
        if Instant::now() < deadline {
            return Ok(deadline);
        }
        self.lose(LostReason::Expired);
        // Somebody else may have been first, with another reason.
        Err(self.progress().lost.unwrap_or(LostReason::Expired))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        #[cfg(test)]
        LOOKS.with(|looks| looks.set(looks.get() + 1));
        // Each change is a plain assignment: nothing is left half-done by a panic.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn end(&mut self, reason: LostReason) {
        // Nobody may have looked when the deadline came.
        let expired = reason == LostReason::Expired;
        self.over_at = Some(if expired {
            self.deadline.instant()
        } else {
            Instant::now()
        });
        self.lost = Some(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Kind;

    fn hold() -> Hold {
        let later = Instant::now() + Duration::from_secs(30);
        let grant = Grant {
            token: 1,
            used: (Kind::Document, 1),
            permits: 1,
            lease: Duration::from_secs(30),
            deadline: Deadline::at(later),
            renew_at: later,
            how: How::AtOnce,
        };
        Hold::new("a-1".to_owned(), "7".to_owned(), &grant)
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
        // Another reason is one at once; and who does not delete is told of a deletion at once.
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
