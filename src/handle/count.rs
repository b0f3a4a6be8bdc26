//! The number of handles that an acquire gives.

use crate::world::Sealed;

/// [`One`] or [`Several`]: how many handles an acquire gives.
pub trait Count: Sealed + Send + Sync + Unpin + 'static {
    /// One `X`, or several.
    type Of<X>;

    /// Returns what was acquired; `None` if that is nothing.
    #[doc(hidden)]
    fn of<X>(acquired: Vec<X>) -> Option<Self::Of<X>>;

    #[doc(hidden)]
    fn each<X, Y>(acquired: Self::Of<X>, to: impl FnMut(X) -> Y) -> Self::Of<Y>;
}

/// One handle.
#[derive(Clone, Copy, Debug)]
pub enum One {}

/// A list of handles, which is not empty.
#[derive(Clone, Copy, Debug)]
pub enum Several {}

impl Sealed for One {}
impl Sealed for Several {}

impl Count for One {
    type Of<X> = X;

    fn of<X>(mut acquired: Vec<X>) -> Option<X> {
        acquired.pop()
    }

    fn each<X, Y>(acquired: X, mut to: impl FnMut(X) -> Y) -> Y {
        to(acquired)
    }
}

impl Count for Several {
    type Of<X> = Vec<X>;

    fn of<X>(acquired: Vec<X>) -> Option<Vec<X>> {
        Some(acquired).filter(|acquired| !acquired.is_empty())
    }

    fn each<X, Y>(acquired: Vec<X>, to: impl FnMut(X) -> Y) -> Vec<Y> {
        acquired.into_iter().map(to).collect()
    }
}
