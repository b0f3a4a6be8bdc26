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
