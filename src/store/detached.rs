//! Futures of the driver's that nobody may wait for any more.

use std::future::Future;

use futures::{TryFutureExt, future::MapErr};
use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
};

use crate::error::ServerError;

/// A future in a task of its own, which runs to its end even if this is dropped; see [`detached`].
pub(crate) type Detached<T> = MapErr<JoinHandle<T>, fn(JoinError) -> ServerError>;

/// Runs a future to its end in a task of its own, whether or not anybody waits for it. It is stopped only when the
/// runtime shuts down, which then is the error.
///
/// All commands of the driver run so, except those in a transaction of the user's: a command that is dropped half-way
/// may still be applied, and stalls the connection pool.
pub(crate) fn detached<T: Send + 'static>(
    runtime: &Handle,
    running: impl Future<Output = T> + Send + 'static,
) -> Detached<T> {
    runtime.spawn(running).map_err(ServerError::stopped)
}
