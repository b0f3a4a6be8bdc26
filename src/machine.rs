//! This machine, for what no server says of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::{
    config::{Config, millis},
    protocol::{Exchange, ServerTime},
};

/// Returns the settings of a client in this process, all of them by default.
pub(crate) fn config() -> Config {
    Config {
        host: host(),
        pid: std::process::id(),
        ..Config::default()
    }
}

/// Returns this machine's own name: only shown to people.
fn host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = kernel
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok());
    name.unwrap_or_default().trim().chars().take(256).collect()
}

/// Returns the time by this machine's own clock, for a client that has no server's.
pub(crate) fn wall_clock() -> ServerTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    ServerTime(millis(now))
}

/// Returns the exchange of an answer that has just come.
pub(crate) fn exchanged(sent: Instant, now: Option<ServerTime>) -> Exchange {
    let received = Instant::now();
    Exchange::new(sent, received, now)
}
