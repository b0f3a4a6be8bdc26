//! Futures of the driver's that nobody may wait for any more.

use std::any::Any;

use futures::{FutureExt as _, future::BoxFuture};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::error::ServerError;

/// The output of any future.
pub(crate) type Output = Box<dyn Any + Send>;

/// A future in a task of its own, which runs to its end even if this is dropped; see [`detached`].
pub(crate) type Detached<T> = BoxFuture<'static, Result<T, ServerError>>;

/// Runs a future to its end in a task of its own, whether or not anybody waits for it. It is stopped only when the
/// runtime shuts down, which then is the error.
///
/// All commands of the driver run so, except those in a transaction of the user's: a command that is dropped half-way
/// may still be applied, and stalls the connection pool.
pub(crate) fn detached<T: Send + 'static>(
    runtime: &Handle,
    running: impl Future<Output = T> + Send + 'static,
) -> Detached<T> {
    let task = spawned(runtime, running);
    Box::pin(async { downcast(task.await.map_err(ServerError::stopped)?) })
}

/// Does the same for a future whose output nobody asks for.
pub(crate) fn spawned<T: Send + 'static>(
    runtime: &Handle,
    running: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<Output> {
    // All tasks have one type: the runtime's code for a task is some sixty functions, which would be compiled anew for
    // each future and each output.
    // An async block would keep the future twice, as what it captures and as what it awaits.
    let running: BoxFuture<'static, Output> = Box::pin(running.map(|output| Box::new(output) as Output));
    runtime.spawn(running)
}

/// Returns the output of a future, of the type that it had.
pub(crate) fn downcast<T: 'static>(output: Output) -> Result<T, ServerError> {
    let output = output.downcast();
    output.map_or_else(|_| Err(ServerError::runtime_ended()), |output| Ok(*output))
}
