//! The way into a line and out of it: a task that acquires, up to its outcome or until it gives up, and the end of a
//! hold.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Session,
    hold::{AcquireOutcome, Hold, ReleaseOutcome, Remains, Task},
    line::Standing,
};
use crate::{
    error::AcquireError,
    waitlist::{AcquireOptions, Hold as _, LeftAs},
};

impl Session {
    /// Adds a task to the line of `name`. The returned [`Acquiring`] waits for the outcome; dropping it gives up.
    /// `reports_contention`: a try that fails names the holder.
    pub(crate) fn join(self: &Arc<Self>, name: &str, options: AcquireOptions, reports_contention: bool) -> Acquiring {
        let (to, outcome) = oneshot::channel();
        let key = self.ids.number();
        let task = Task { to, reports_contention };
        self.feed(name, |lines, context| {
            if lines.closed {
                // Nothing waits for it yet.
                drop(task.to.send(Err(self.why_closed())));
            } else {
                lines.line(name).waitlist.step(context).join(key, task, options);
            }
        });
        Acquiring {
            session: self.clone(),
            name: name.to_owned(),
            key,
            outcome,
            answered: false,
        }
    }

    /// Lets go of a hold; the receiver gets the outcome of the release.
    pub(crate) fn let_go(self: &Arc<Self>, hold: &Hold) -> oneshot::Receiver<ReleaseOutcome> {
        let (to, left) = oneshot::channel();
        self.feed(&hold.name, |lines, context| {
            lines.line(&hold.name).waitlist.step(context).let_go(hold, Some(to));
        });
        left
    }

    /// Whether the lock stays taken although this hold of it was released, by what is known of the server's clock.
    pub(crate) fn stays_taken(&self, hold: &Hold) -> bool {
        let now = self.table().clock.at_least(Instant::now());
        matches!(hold.left_as(), LeftAs::Kept(kept) if !now.is_some_and(|now| kept.is_over(now)))
    }

    /// Drops a handle whose end nobody asks about, and lets go of the hold if it was the last.
    pub(crate) fn discard(self: &Arc<Self>, hold: &Hold) {
        let remains = hold.exit();
        hold.report_end();
        if remains == Remains::Nothing {
            drop(self.let_go(hold));
        }
    }
}

/// A task in line that waits for its outcome. Dropping it gives up, and gives back what was granted meanwhile.
#[derive(Debug)]
pub(crate) struct Acquiring {
    session: Arc<Session>,
    name: String,
    key: u64,
    outcome: oneshot::Receiver<AcquireOutcome>,
    answered: bool,
}

impl Acquiring {
    /// Waits for the outcome, for `timeout` at most.
    pub(crate) async fn outcome(mut self, timeout: Option<Duration>) -> AcquireOutcome {
        let session = self.session.clone();
        let waiting = async {
            match timeout {
                None => Ok((&mut self.outcome).await),
                Some(timeout) => tokio::time::timeout(timeout, &mut self.outcome).await,
            }
        };
        let waited = tokio::select! {
            biased;
            waited = waiting => waited,
            stands_still = session.stands_still() => return Err(stands_still.into()),
        };
        let answered = match (waited, timeout) {
            (Ok(answered), _) => answered,
            (Err(_), timeout) => match self.give_up() {
                // It is answered in this very moment, and the answer is sent once the session's mutex is free: a hold
                // is ours and not too late, and as somebody else's it would be in the way of our next request.
                None => (&mut self.outcome).await,
                standing => return Err(self.overdue(timeout.unwrap_or_default(), standing)),
            },
        };
        self.answered = true;
        // The sender is dropped without an answer only when the session's runtime ends, or in a fork.
        answered.unwrap_or_else(|_| Err(self.session.why_closed()))
    }

    /// Returns the error of a task that gives up. Only an answer of the server says that the lock is taken.
    pub(super) fn overdue(&self, waited: Duration, standing: Option<Standing>) -> AcquireError {
        let (contention, trouble) = standing.map_or((None, None), |standing| standing.report(&self.session.ids));
        let (name, contention) = (self.name.clone(), contention.map(Box::new));
        if contention.is_some() && trouble.is_none() {
            return AcquireError::Timeout {
                name,
                waited,
                contention,
            };
        }
        AcquireError::Unanswered {
            name,
            waited,
            contention,
            error: trouble,
        }
    }

    pub(super) fn give_up(&self) -> Option<Standing> {
        let mut standing = None;
        self.session.feed(&self.name, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(&self.name) {
                standing = line.cancel(self.key, context);
            }
        });
        standing
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.give_up();
        // From here on the sender gets back what it sends, and releases it.
        self.outcome.close();
        if let Ok(Ok(Some(hold))) = self.outcome.try_recv() {
            self.session.discard(&hold);
        }
    }
}
