//! One of all replicas sweeps once a second: the leader, which callbacks tell apart from the others.

use std::time::Duration;

use tokio::{sync::watch, time::interval};
use watchlock::{FencingToken, LockClient};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Stands for election until `stop` is ready, and sweeps for as long as this replica leads.
pub async fn sweep_while_leading<Fut: Future<Output = ()>>(
    locks: &LockClient,
    replica: &str,
    mut sweep: impl FnMut(FencingToken) -> Fut,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    // The callbacks only report, as they must not block. A page for health checks would look at `term` too.
    let (elected, term) = watch::channel(None);
    let lost = elected.clone();
    let candidacy = locks.election("sweeper").stand(
        replica,
        move |leading| {
            println!("elected under token {}", leading.token());
            elected.send_replace(Some(leading));
        },
        move |reason| {
            println!("no longer the leader: {reason}");
            lost.send_replace(None);
        },
    );
    let mut ticks = interval(Duration::from_secs(1));
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            error = candidacy.ended() => return Err(error.into()),
            _ = ticks.tick() => {}
        }
        let leading = term.borrow().clone();
        if let Some(leading) = leading {
            // The sweep ends at its next await point when the lead is lost, or when the replica stops.
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = leading.lost() => {}
                () = sweep(leading.token()) => {}
            }
        }
    }
    // The next leader is elected now, not at the end of the lease.
    candidacy.withdraw().await?;
    Ok(())
}
