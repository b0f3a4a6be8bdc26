//! Candidates that lead in the background, with callbacks.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::Election;
use crate::{
    backoff::Backoff,
    error::{AcquireError, CandidacyError},
    handle::{Held, View},
    status::{Lost, LostReason},
    telemetry,
    truncated_debug::{MESSAGE_MOST, shown_up_to},
    world::World,
};

impl<W: World> Election<W> {
    /// Sets whether [`run`](Self::run) and [`stand`](Self::stand) wait while the name is in use as another kind of
    /// lock; by default they end with [`AcquireError::KindMismatch`]. They ask again soon, and then less and less
    /// often, down to once a second.
    #[must_use = "the election that waits is returned"]
    pub fn wait_out_other_uses(self, waits: bool) -> Self {
        Self {
            waits_out_other_uses: waits,
            ..self
        }
    }

    /// Campaigns, and repeats it while the name is in other use, if the election waits for that.
    pub(super) async fn campaign_on(&self, value: &str) -> Result<Held<Election, W>, AcquireError> {
        // Nothing announces when the other program releases it.
        let mut backoff = Backoff::default();
        loop {
            match self.campaign(value).held().await {
                Err(AcquireError::KindMismatch(_)) if self.waits_out_other_uses => {
                    sleep(backoff.failed()).await;
                }
                campaigned => return campaigned,
            }
        }
    }
}

impl Election {
    /// Leads in the background, with callbacks: `elected` when a term begins, `lost` when it ends.
    ///
    /// It ends, and resigns, when the returned [`Candidacy`] is withdrawn or dropped. If it is withdrawn while it
    /// leads, the reason of the loss is [`LostReason::Released`]; if it is dropped, no callback comes. It ends by
    /// itself after an error of a campaign, and when a callback panics: [`Candidacy::ended`] and the event
    /// `watchlock.candidacy_ended` report that. Call it on a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// let candidacy = locks.election("scheduler").stand(
    ///     "node 7",
    ///     |leading| println!("elected, token {}", leading.token()),
    ///     |lost| println!("no longer the leader: {lost}"),
    /// );
    /// tokio::select! {
    ///     () = async { /* until the program is told to stop */ } => {}
    ///     // Such as a name that is in use as another kind of lock.
    ///     error = candidacy.ended() => return Err(error.into()),
    /// }
    /// candidacy.withdraw().await?;
    /// # Ok(()) }
    /// ```
    pub fn stand(
        &self,
        value: impl Into<String>,
        elected: impl FnMut(View<Election>) + Send + 'static,
        lost: impl FnMut(Lost) + Send + 'static,
    ) -> Candidacy {
        let withdrawn = CancellationToken::new();
        let (election, value, until) = (self.clone(), value.into(), withdrawn.clone());
        let task = tokio::spawn(async move {
            // The callbacks own their state, and they are not called again.
            let standing = AssertUnwindSafe(election.stand_until(&value, elected, lost, until)).catch_unwind();
            let end = match standing.await {
                Ok(end) => end.map_err(CandidacyError::from),
                Err(panic) => Err(CandidacyError::Panicked {
                    message: message(&*panic),
                }),
            };
            if let Err(error) = &end {
                telemetry::candidacy_ended(election.name(), error);
            }
            end
        });
        // Without an answer the task can only end with its runtime.
        let ended = AbortOnDropHandle::new(task).map(|ended| ended.unwrap_or(Err(CandidacyError::Stopped)));
        Candidacy {
            withdrawn,
            ended: ended.boxed().shared(),
        }
    }

    async fn stand_until(
        &self,
        value: &str,
        mut elected: impl FnMut(View<Election>),
        mut lost: impl FnMut(Lost),
        until: CancellationToken,
    ) -> Result<(), AcquireError> {
        loop {
            let leadership = tokio::select! {
                biased;
                () = until.cancelled() => return Ok(()),
                leadership = self.campaign_on(value) => leadership?,
            };
            elected(leadership.view());
            tokio::select! {
                loss = leadership.lost() => lost(loss),
                () = until.cancelled() => {
                    lost(leadership.own.lost_as(LostReason::Released));
                    // The lease limits an unconfirmed resignation.
                    let _ = leadership.release().await;
                    return Ok(());
                }
            }
        }
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    shown_up_to(MESSAGE_MOST, text.unwrap_or("a value that is not text"))
}

/// A standing candidate. Made by [`Election::stand`]; dropping it ends the candidacy, and resigns in the background.
#[must_use = "dropping the candidacy ends it: `let _ = ..` does so at once"]
#[derive(Debug)]
pub struct Candidacy {
    withdrawn: CancellationToken,
    /// Has the task, which ends with it.
    ended: Shared<BoxFuture<'static, Result<(), CandidacyError>>>,
}

impl Candidacy {
    /// Waits until the candidacy has ended by itself, and returns why: it no longer has a candidate then.
    /// [`Election::stand`] has an example.
    ///
    /// Cancel safe: use it in `select!`, again and again.
    pub async fn ended(&self) -> CandidacyError {
        match self.ended.clone().await {
            Err(error) => error,
            // Only a withdrawal ends it without an error, and consumes the candidacy.
            Ok(()) => CandidacyError::Stopped,
        }
    }

    /// Resigns if it leads, and ends the candidacy; also if the future is dropped. The error is the reason why it had
    /// ended already, if it had. [`Election::stand`] has an example.
    pub async fn withdraw(self) -> Result<(), CandidacyError> {
        self.withdrawn.cancel();
        self.ended.await
    }
}
