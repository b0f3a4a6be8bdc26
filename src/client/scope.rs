//! The life of a client around a piece of work: it is shut down when the work ends, however it ends.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
};

use futures::FutureExt as _;
use scopeguard::guard;

use super::{LockClient, builder::LockClientBuilder};
use crate::error::BuildError;
#[cfg(feature = "sync")]
use {crate::world::Blocking, std::panic::catch_unwind};

impl LockClientBuilder {
    /// Builds a client, runs the future that `work` makes with it, and [shuts the client down](LockClient::shutdown):
    /// also after an error, and after a panic, which goes on then. So no lock of the program stays taken after its end.
    ///
    /// The future's own output, even a `Result`, is returned unchanged. Clones and handles may outlive the scope, but
    /// acquires fail with [`AcquireError::Closed`](crate::errors::AcquireError::Closed) then, and the handles are lost.
    /// A process that is killed, or calls `std::process::exit`, runs nothing any more: so end the work when the process
    /// is asked to end, as in the example.
    ///
    /// Errors are those of [`build`](Self::build); `work` is not called then. If the future is dropped, so is the work,
    /// and the client is shut down in the background, for as long as the runtime lives.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn bill_invoices(_: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
    /// # async fn example(client: mongodb::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = watchlock::LockClient::builder(client.database("app"));
    /// locks
    ///     .scope(async |locks| {
    ///         tokio::select! {
    ///             billed = bill_invoices(locks) => billed,
    ///             stopped = tokio::signal::ctrl_c() => Ok(stopped?),
    ///         }
    ///     })
    ///     .await?
    /// # }
    /// ```
    pub async fn scope<F, Fut>(self, work: F) -> Result<Fut::Output, BuildError>
    where
        F: FnOnce(LockClient) -> Fut,
        Fut: Future,
    {
        // Dropped before its end, it shuts the client down in the background.
        let locks = guard(self.build().await?, |locks| {
            locks.close().iter().for_each(|session| session.end_in_background());
        });
        let working = async { work(locks.clone()).await };
        // Nothing is seen of the work after its panic.
        let worked = AssertUnwindSafe(working).catch_unwind().await;
        locks.shutdown().await;
        Ok(worked.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

#[cfg(feature = "sync")]
impl LockClientBuilder<Blocking> {
    /// Builds a client, calls `work` with it, and [shuts the client down](LockClient::shutdown): also after an error or
    /// a panic. Errors are those of [`build`](Self::build); `work` is not called then.
    pub fn scope<R>(self, work: impl FnOnce(LockClient<Blocking>) -> R) -> Result<R, BuildError> {
        let locks = self.build()?;
        let worked = catch_unwind(AssertUnwindSafe(|| work(locks.clone())));
        locks.shutdown();
        Ok(worked.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}
