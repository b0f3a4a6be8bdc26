//! Values behind a pointer that hides their types from debug information.

use std::{ops::Deref, sync::Arc};

/// A value in a field whose type is hidden.
///
/// Debug information repeats, for each of some two hundred parts of the library that the compiler makes, every type to
/// which the fields of a type in that part lead. A session is known in most of them. Its own state leads to hundreds of
/// types, tokio's runtime and the driver's client to a thousand; hidden, they are described only where they are used.
pub(crate) type Hidden<T> = Arc<dyn Deref<Target = T> + Send + Sync>;

pub(crate) fn hidden<T: Send + Sync + 'static>(value: T) -> Hidden<T> {
    Arc::new(Box::new(value))
}
