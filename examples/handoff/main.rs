//! Processes that hand one lock to each other, on a real MongoDB: `cargo run --example handoff`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Three processes contend for one lock, and one line per hand-over shows who has it.
//! 2. The holder is killed, and another takes over when its lease has expired.
//! 3. Another program deletes the lock's document, and the holder finds out.
//! 4. The hand-over is timed, and compared with the fastest possible change stream and with a lock that polls.

mod event;
mod race;
mod story;
mod worker;

use std::process::ExitCode;

use watchlock::{LockClient, LockClientBuilder, operate::WakeSource};
use watchlock_testkit::stage::{self, Result, Server};

fn main() -> ExitCode {
    stage::play("handoff", scenes, worker::work)
}

async fn scenes(server: Server) -> Result<()> {
    story::tell(&server).await?;
    // In a task, like the code of applications: the main future is woken from another thread, which takes longer.
    tokio::spawn(race::run(server)).await?
}

/// Returns a lock client with its own connection pool and change stream.
async fn locks(server: &Server, configure: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Result<LockClient> {
    let builder = LockClient::builder(server.connect().await?).wake_source(WakeSource::ChangeStream);
    Ok(configure(builder).build().await?)
}
