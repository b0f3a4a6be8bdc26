//! Processes that drain a collection of events, locked in place, on a real MongoDB: `cargo run --example work_queue`.
//!
//! Nothing has to be there beforehand: a server is found or installed, started as a throw-away replica set, and gone
//! afterwards. With `MONGODB_URI` set that server is used, in a database of its own that is dropped at the end.
//!
//! 1. Four processes wait for events, and share them as they come.
//! 2. Processes are killed at random, and others are started in their place. What a dead one had begun is taken over
//!    when its lease has run out.
//! 3. One freezes at its work for longer than its lease. Another does it, and what thaws is refused.
//!
//! At the end the database is asked what was done. The example fails if an event was not processed, if one was finished
//! twice, or if two workers with a valid lock were at one at the same time, by the machine's monotonic clock.
//!
//! What a user of the library writes is in `worker.rs`.

mod journal;
mod news;
mod queue;
mod story;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    watchlock_testkit::stage::play("work_queue", story::tell, worker::work)
}
