//! watchlock against real servers.

mod mutex;
