//! The two worlds of calls: one awaits them, the other blocks the thread.

use std::{fmt, future::Future};

/// A trait that nobody else can implement.
pub trait Sealed {}

/// [`Async`], or `Blocking` with the feature `sync`: whether calls are awaited, or block the thread.
///
/// Each type of this crate that waits for something has its world as its last parameter, [`Async`] by default. Each
/// method is written once: it returns a [`Call`](Self::Call).
pub trait World: Sealed + Clone + Copy + fmt::Debug + Send + Sync + Unpin + Sized + 'static {
    /// The value of a method that waits: in the async world a future, in the blocking one the future's output, for which
    /// the thread waits. There, each such method panics on a thread of an async runtime.
    type Call<F: Future>;

    /// Makes the call.
    #[doc(hidden)]
    fn call<F: Future>(future: F) -> Self::Call<F>;

    /// Starts something that needs a runtime, without waiting for it.
    #[doc(hidden)]
    fn within<O>(start: impl FnOnce() -> O) -> O;
}

/// The world in which calls are awaited.
#[derive(Clone, Copy, Debug)]
pub enum Async {}

/// The world in which calls block the thread: see [`sync`](crate::sync). A client comes to it by
/// [`LockClient::blocking`](crate::LockClient::blocking).
#[cfg(feature = "sync")]
#[cfg_attr(docsrs, doc(cfg(feature = "sync")))]
#[derive(Clone, Copy, Debug)]
pub enum Blocking {}

impl Sealed for Async {}

impl World for Async {
    type Call<F: Future> = F;

    fn call<F: Future>(future: F) -> F {
        future
    }

    fn within<O>(start: impl FnOnce() -> O) -> O {
        start()
    }
}

#[cfg(feature = "sync")]
impl Sealed for Blocking {}
