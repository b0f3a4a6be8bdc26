//! The way into a line and out of it: a task that acquires, up to its outcome or until it gives up, and the end of a
//! hold.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::sleep};

use super::{
    Session,
    hold::{AcquireOutcome, Hold, ReleaseOutcome, Remains},
    task::Task,
};
use crate::{
    error::AcquireError,
    protocol::wake::Left,
    status::LostReason,
    telemetry,
    waitlist::{AcquireOptions, Patience, answers::TRY_FOR, ids::Ids},
};

impl Session {
    /// Acquires the lock `name` as a task in its line, for `timeout` at most, and fails on a deadlock if it is to. A try
    /// has a limit without a timeout too. Dropping the future gives up.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &str,
        options: AcquireOptions,
        timeout: Option<Duration>,
        fails_on_deadlock: bool,
    ) -> AcquireOutcome {
        let (to, outcome) = oneshot::channel();
        let (key, task) = (self.ids.number(), Task::current().await);
        let limit = timeout.or((options.patience == Patience::Try).then_some(TRY_FOR));
        self.update(name, None, |lines, context| {
            if lines.closed {
                // Nothing waits for it yet.
                drop(to.send(Err(self.why_closed())));
            } else {
                lines.line(name).waitlist.step(context).join(key, to, options);
            }
        });
        let mut waiting = InLine {
            session: self,
            name,
            key,
            outcome,
            answered: false,
        };
        let timed_out = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => pending().await,
            }
        };
        let has_enough = async {
            tokio::select! {
                biased;
                () = timed_out => None,
                deadlock = self.deadlocked(key, name, fails_on_deadlock) => Some(AcquireError::Deadlock(deadlock)),
            }
        };
        let answered = tokio::select! {
            biased;
            answered = &mut waiting.outcome => answered,
            deadlock = has_enough => match waiting.give_up(timeout) {
                Some(error) => return Err(deadlock.unwrap_or_else(|| error(name, &self.ids))),
                // It is answered in this very moment, and the answer is sent once the session's mutex is free: a hold
                // is ours and not too late, and as somebody else's it would be in the way of our next request.
                None => (&mut waiting.outcome).await,
            },
            stands_still = self.stands_still() => return Err(stands_still.into()),
        };
        waiting.answered = true;
        if let Ok(Ok(hold)) = &answered {
            hold.acquired_by(task);
        }
        // The sender is dropped without an answer only when the session's runtime ends, or in a fork.
        answered.unwrap_or_else(|_| Err(self.why_closed()))
    }

    /// Lets go of a hold, before it returns; the future waits for the outcome of the release. The reader that it has
    /// upgraded leaves with it, unless that has other handles; the hold was lost if that was.
    pub(crate) fn let_go(
        self: &Arc<Self>,
        hold: &Hold,
    ) -> impl Future<Output = Result<ReleaseOutcome, oneshot::error::RecvError>> + use<> {
        let (to, left) = oneshot::channel();
        let reader = hold.take_upgraded().map(|reader| (reader.exit(), reader));
        let (to_reader, reader_left) = reader.as_ref().map(|_| oneshot::channel()).unzip();
        self.update(&hold.name, None, |lines, context| {
            let mut step = lines.line(&hold.name).waitlist.step(context);
            step.let_go(hold, Some(to));
            if let Some((Remains::Nothing, reader)) = &reader {
                step.let_go(reader, to_reader);
            }
        });
        reader.iter().for_each(|(_, reader)| reader.report_end());
        async move {
            let left = left.await;
            match reader.zip(reader_left) {
                Some(((remains, reader), reader_left)) if matches!(left, Ok(Ok(Left::Holder))) => match remains {
                    Remains::Nothing => reader_left.await,
                    _ if matches!(reader.lost_reason(), None | Some(LostReason::Released)) => left,
                    _ => Ok(Ok(Left::Nowhere)),
                },
                _ => left,
            }
        }
    }

    /// Gives back the handle of the reader that a hold has upgraded, as that is over or is a reader's again.
    pub(crate) fn discard_upgraded(self: &Arc<Self>, hold: &Hold) {
        if let Some(reader) = hold.take_upgraded() {
            self.discard(&reader);
        }
    }

    /// Drops a handle whose end nobody asks about, and lets go of the hold if it was the last.
    pub(crate) fn discard(self: &Arc<Self>, hold: &Hold) {
        let remains = hold.exit();
        hold.report_end();
        if remains == Remains::Nothing {
            drop(self.let_go(hold));
        }
    }

    /// Does the same with a handle of so many permits.
    pub(crate) fn discard_part(self: &Arc<Self>, hold: &Arc<Hold>, permits: u64) {
        match hold.exit_part(permits) {
            Remains::Nothing => drop(self.let_go(hold)),
            Remains::Parts(left) => {
                let (session, hold) = (self.clone(), hold.clone());
                self.spawn(async move {
                    let left = i64::try_from(left).unwrap_or(i64::MAX);
                    if let Err(error) = session.downgrade(&hold, left).await {
                        telemetry::release_failed(&hold.name, &error);
                    }
                });
            }
            Remains::Held => {}
            Remains::Lost(_) => self.discard_upgraded(hold),
        }
        hold.report_end();
    }
}

/// A task in line that waits for its outcome. Dropping it gives up, and gives back what was granted meanwhile.
struct InLine<'a> {
    session: &'a Arc<Session>,
    name: &'a str,
    key: u64,
    outcome: oneshot::Receiver<AcquireOutcome>,
    answered: bool,
}

impl InLine<'_> {
    /// Gives up after its timeout, if it had one, and returns what makes the error; `None`: it was answered before.
    fn give_up(&self, timeout: Option<Duration>) -> Option<impl FnOnce(&str, &Ids) -> AcquireError + use<>> {
        let mut error = None;
        self.session.update(self.name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(self.name) {
                error = line.give_up(self.key, timeout, context);
            }
        });
        error
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.session.update(self.name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(self.name) {
                line.waitlist.step(context).cancel(self.key);
            }
        });
        // From here on the sender gets back what it sends, and releases it.
        self.outcome.close();
        if let Ok(Ok(hold)) = self.outcome.try_recv() {
            self.session.discard(&hold);
        }
    }
}
