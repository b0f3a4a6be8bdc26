//! The options of an acquire, and which targets have them.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::InvalidInput,
    handle::target::Target,
    hold_options::Terms,
    input::{check_duration, check_text},
};

/// The options of all acquires, as the user sets them.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) timeout: Option<Duration>,
    pub(crate) reason: Option<String>,
    pub(crate) terms: Terms,
    pub(crate) reentrant: bool,
    /// Ends the acquire when it is cancelled.
    pub(crate) cancelled: Option<CancellationToken>,
    /// Whether it ends when it is part of a deadlock.
    pub(crate) fails_on_deadlock: bool,
}

impl Options {
    /// Returns the options of an acquire whose hold lasts by its nature.
    pub(crate) fn unlimited() -> Self {
        let mut options = Self::default();
        options.terms.unlimited = true;
        options
    }

    /// Refuses values that are out of bounds, before anything is sent.
    pub(crate) fn check(&self, config: &Config) -> Result<(), InvalidInput> {
        let reason = self.reason.as_ref();
        reason.map_or(Ok(()), |reason| check_text("reason", reason))?;
        self.timeout
            .map_or(Ok(()), |timeout| check_duration("timeout", timeout))?;
        self.terms.check(config)
    }
}

/// A lock of its own: a mutex, permits, a reader or a writer. It can stay taken after its release.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.multi(["a", "b"]).acquire().at_least_for(time).await;
/// # }
/// ```
///
/// ```
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.mutex("a").acquire().at_least_for(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be kept taken after its release",
    note = "a mutex, a semaphore and a readers-writer lock can"
)]
pub trait CanKeep: CanFix + CanLimit + HasHolder {}

/// A target that can stay with the client after its release.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.rw_lock("prices").read().keep_idle(time).await;
/// # }
/// ```
///
/// ```
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.rw_lock("prices").write().keep_idle(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't stay idle with the client after its release",
    note = "a mutex, a writer and all permits of a semaphore can"
)]
pub trait CanIdle: Target {}

/// A target whose hold can be shared by another acquire of the same client.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.semaphore("exports", 4).acquire().reentrant().await;
/// # }
/// ```
///
/// ```
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.rw_lock("prices").read().reentrant().await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be acquired re-entrantly",
    note = "a mutex and a readers-writer lock can; of a semaphore, acquire more permits"
)]
pub trait CanReenter: Target {}

/// A target whose hold can have a limit.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.election("scheduler").campaign("node 7").warn_after(time).await;
/// # }
/// ```
///
/// ```
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.multi(["a", "b"]).acquire().warn_after(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "a hold of `{Self}` has no limit",
    note = "a leader leads for as long as it can"
)]
pub trait CanLimit: Target {}

/// A target that can be held for a fixed time, without renewals.
///
/// ```compile_fail,E0277
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.multi(["a", "b"]).acquire().fixed(time).await;
/// # }
/// ```
///
/// ```
/// # async fn example(locks: watchlock::LockClient, time: std::time::Duration) {
/// locks.semaphore("exports", 4).acquire().fixed(time).await;
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be held for a fixed time",
    note = "the parts of a multi-lock and a leadership are always renewed"
)]
pub trait CanFix: Target {}

/// A target whose holder an error can name.
///
/// ```compile_fail,E0277
/// # async fn example(events: watchlock::documents::DocumentLocks<mongodb::bson::Document>) {
/// events.try_claim(mongodb::bson::doc! { "done": false }).or_held().await;
/// # }
/// ```
///
/// ```
/// # async fn example(events: watchlock::documents::DocumentLocks<mongodb::bson::Document>) {
/// events.try_acquire(7).or_held().await;
/// # }
/// ```
#[diagnostic::on_unimplemented(message = "`{Self}` has no holder to name", note = "a claim takes any free document")]
pub trait HasHolder: Target {}
