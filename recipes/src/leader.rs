//! One of all replicas sweeps once a second: the leader.

use std::time::Duration;

use tokio::time::interval;
use watchlock::{FencingToken, LockClient};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Stands for election until `stop` is ready, and sweeps for as long as this replica leads.
pub async fn sweep_while_leading<Fut: Future<Output = ()>>(
    locks: &LockClient,
    replica: &str,
    mut sweep: impl FnMut(FencingToken) -> Fut,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let election = locks.election("sweeper");
    let mut ticks = interval(Duration::from_secs(1));
    tokio::pin!(stop);
    loop {
        let leading = tokio::select! {
            () = &mut stop => return Ok(()),
            elected = election.campaign(replica) => elected?,
        };
        println!("elected under token {}", leading.token());
        loop {
            // The sweep ends at its next await point when the lead is lost, or when the replica stops.
            tokio::select! {
                biased;
                () = &mut stop => {
                    // The next leader is elected now, not at the end of the lease.
                    leading.resign().await?;
                    return Ok(());
                }
                lost = leading.lost() => {
                    println!("no longer the leader: {lost}");
                    break;
                }
                () = async { ticks.tick().await; sweep(leading.token()).await } => {}
            }
        }
    }
}
