//! An exchange with the server, by which clients learn what its clock shows.

use tokio::time::Instant;

use super::ServerTime;

/// One exchange with the server: its clock read `now` some time after `sent` and before `received` on ours.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    pub sent: Instant,
    pub received: Instant,
    /// `None` when the answer has no time: the server answers a retried command from its record of the first try.
    pub now: Option<ServerTime>,
}

impl Exchange {
    /// Returns the exchange of an answer that has just come.
    pub fn ending_now(sent: Instant, now: Option<ServerTime>) -> Self {
        let received = Instant::now();
        Self { sent, received, now }
    }
}
