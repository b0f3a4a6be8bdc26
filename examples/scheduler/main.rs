//! Processes that elect who runs a job on each tick, on a real MongoDB: `cargo run --example scheduler`.
//!
//! Nothing has to be there beforehand: a server is found or installed, started as a throw-away replica set, and gone
//! afterwards. With `MONGODB_URI` set that server is used, in a database of its own that is dropped at the end.
//!
//! 1. Three processes stand for election, and the leader runs the job on each tick.
//! 2. The leader freezes. Another goes on when its lease has run out, and what thaws is no leader any more.
//! 3. The leader is killed, and another goes on when its lease has run out.
//! 4. The leader is told to end, as at a deploy. It resigns, and another goes on at once.
//!
//! At the end the database is asked what was run. The example fails if a tick was run twice, if an earlier leader ran a
//! tick after a later one had, or if the job rested for longer than the lease and a margin.
//!
//! What a user of the library writes is in `node.rs`.

mod event;
mod ledger;
mod node;
mod story;

use std::process::ExitCode;

fn main() -> ExitCode {
    watchlock_testkit::stage::play("scheduler", story::tell, node::attend)
}
