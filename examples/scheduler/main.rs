//! Processes that elect who runs a job on each tick, on a real MongoDB: `cargo run --example scheduler`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Three processes stand for election, and the leader runs the job on each tick.
//! 2. The leader freezes. Another continues when its lease has expired, and the thawed process is no longer the leader.
//! 3. The leader is killed, and another continues when its lease has expired.
//! 4. The leader is asked to end, as in a deploy. It resigns, and another continues at once.
//! 5. A job that needs no leader: timers start it on every host at the same moment, and one of them does it.
//!
//! At the end the example checks the runs in the database. It fails if a tick was run twice, if an earlier leader ran a
//! tick after a later one had, or if the job rested for longer than the lease and a margin.
//!
//! `node.rs` has the code that a user of the library writes.

mod event;
mod ledger;
mod node;
mod story;

use std::process::ExitCode;

fn main() -> ExitCode {
    watchlock_testkit::stage::play("scheduler", story::tell, node::attend)
}
