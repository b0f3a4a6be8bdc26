//! A lock service as the workloads see it: one process with its connections, and locks by name.

use std::{error::Error, fmt};

use futures::future::BoxFuture;

/// An error ends the measurement of the peer that it came from.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The stand-in for one process: connections of its own, and whatever its library starts once for each process.
pub(crate) trait Client: Send + Sync {
    /// Waits for the lock, for as long as it takes.
    fn acquire(&self, name: &str) -> BoxFuture<'static, Result<Held>>;

    /// Takes the lock of this name away from its holder behind the library's back, as another program would: deletes
    /// its document, or ends its session. `None` for a library that would not tell its holder.
    fn take_away(&self, _name: &str) -> Option<BoxFuture<'static, Result<()>>> {
        None
    }

    /// Ends the background work of the client.
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// A held lock. Dropping it does what the library does with a dropped handle.
pub(crate) struct Held {
    release: BoxFuture<'static, Result<()>>,
    lost: Option<BoxFuture<'static, ()>>,
}

impl Held {
    /// Takes the release, which owns whatever the library calls its guard and runs only when it is polled.
    pub(crate) fn new(release: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        Self {
            release: Box::pin(release),
            lost: None,
        }
    }

    /// Adds the library's signal for a lost lock: a future that ends when the library says so.
    pub(crate) fn with_signal(mut self, lost: impl Future<Output = ()> + Send + 'static) -> Self {
        self.lost = Some(Box::pin(lost));
        self
    }

    /// Takes the signal for a lost lock, where the library has one.
    pub(crate) fn take_signal(&mut self) -> Option<BoxFuture<'static, ()>> {
        self.lost.take()
    }

    /// Gives the lock back, and returns when the service has confirmed (or when the library thinks that it has).
    pub(crate) async fn release(self) -> Result<()> {
        self.release.await
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}
