//! Processes that drain a collection of events, locked in place, on a real MongoDB: `cargo run --example work_queue`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Four processes wait for events, and share them as they come.
//! 2. Processes are killed at random, and others are started in their place. Another takes over a dead one's event when
//!    its lease has expired.
//! 3. One freezes at its work for longer than its lease. Another does the work, and the thawed process is refused.
//!
//! At the end the example checks the results in the database. It fails if an event was not processed, if one was
//! finished twice, or if two workers with a valid lock worked on one at the same time, by the machine's monotonic
//! clock.
//!
//! `worker.rs` has the code that a user of the library writes.

mod journal;
mod news;
mod queue;
mod story;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    watchlock_testkit::stage::play("work_queue", story::tell, worker::work)
}
