//! Processes that hand one lock to each other, on a real MongoDB: `cargo run --example handoff`.
//!
//! Nothing has to be there beforehand: a server is found or installed, started as a throw-away replica set, and gone
//! afterwards. With `MONGODB_URI` set that server is used, in a database of its own that is dropped at the end.
//!
//! 1. Three processes contend for one lock, and one line per hand-over shows who has it.
//! 2. The holder is killed, and another takes over when its lease has run out.
//! 3. The lock's document is deleted by a foreign hand, and the holder learns of it.
//! 4. The hand-over is timed, beside the fastest a change stream can be and beside a lock that polls.

mod event;
mod race;
mod story;
mod worker;

use std::process::ExitCode;

use watchlock::{LockClient, LockClientBuilder, WakeSource};
use watchlock_testkit::stage::{self, Result, Server};

fn main() -> ExitCode {
    stage::play("handoff", scenes, worker::work)
}

async fn scenes(server: Server) -> Result<()> {
    story::tell(&server).await?;
    // In a task, where the code of applications runs too: the main future is woken from another thread, which takes
    // longer.
    tokio::spawn(race::run(server)).await?
}

/// A lock client with a connection pool and a change stream of its own.
async fn locks(server: &Server, configure: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Result<LockClient> {
    let builder = LockClient::builder(server.connect().await?).wake_source(WakeSource::ChangeStream);
    Ok(configure(builder).build().await?)
}
