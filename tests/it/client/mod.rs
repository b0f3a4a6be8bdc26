//! A client: who it is to others, and how it ends.

mod identity;
mod lazy;
mod panics;
mod runtime;
mod shutdown;
