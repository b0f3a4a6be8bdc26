//! A lock is taken away from its holder, by another program that deletes its document or ends its session: how long
//! until the holder's library says so?

use std::time::{Duration, Instant};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use tokio::time;

use super::{Round, close, connect, fresh_name, millis};
use crate::{
    client::{Held, Result},
    engines::Engine,
    peers::{Death, Peer},
};

/// Lease here: a library that only notices a loss when it renews does so within this time.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// Number of locks of a round.
const LOCKS: u32 = 20;

/// Pause between two losses. Together they are spread over more than the third of a lease in which a library renews, so
/// that a loss comes at any time of it.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum time until the signal, from when it is called missed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for which a held lock must be quiet: a signal before that is false.
const QUIET: Duration = Duration::from_millis(500);

/// Maximum time for a release: that of a lost lock can hang.
const LEAVING: Duration = Duration::from_secs(2);

pub(crate) async fn round(peer: &Peer, engine: &Engine) -> Result<Round> {
    if peer.death == Death::Together {
        return Err("nobody else can reach the locks of this process".into());
    }
    let clients = connect(peer, engine, 2, LEASE).await?;
    let [holder, other] = clients.as_slice() else {
        return Err("two clients were asked for".into());
    };
    let (mut held, mut signals) = (Vec::new(), Vec::new());
    for _ in 0..LOCKS {
        let name = fresh_name();
        let mut lock = holder.acquire(&name).await?;
        let Some(signal) = lock.take_signal() else {
            lock.release().await?;
            close(clients).await;
            return Err("none: this client has no call that tells a holder of its loss".into());
        };
        held.push(lock);
        signals.push((name, signal));
    }
    time::sleep(QUIET).await;
    let mut heard = Vec::new();
    for (name, signal) in signals {
        heard.push(tokio::spawn(listen(signal, other.take_away(&name), PATIENCE)));
        time::sleep(PAUSE).await;
    }
    let mut round = Round::default();
    let (mut early, mut missed) = (0, 0);
    for heard in join_all(heard).await {
        match heard?? {
            Heard::After(delay) => round.latencies.push(millis(delay)),
            Heard::Early => early += 1,
            Heard::Never => missed += 1,
        }
    }
    // Theirs is no lock any more, so an error is as good as an answer.
    let _ = time::timeout(LEAVING, join_all(held.into_iter().map(Held::release))).await;
    close(clients).await;
    let of_hundred = |count: u32| f64::from(count) * 100.0 / f64::from(LOCKS);
    round.less("false signals of 100", of_hundred(early));
    round.less("missed of 100", of_hundred(missed));
    Ok(round)
}

/// What a holder hears of its loss.
#[derive(Debug, PartialEq)]
enum Heard {
    /// The signal came before the loss.
    Early,
    After(Duration),
    Never,
}

/// Takes the lock away and waits for the signal, unless that has come already.
async fn listen(
    mut signal: BoxFuture<'static, ()>,
    take_away: Option<BoxFuture<'static, Result<()>>>,
    patience: Duration,
) -> Result<Heard> {
    if signal.as_mut().now_or_never().is_some() {
        return Ok(Heard::Early);
    }
    let taken = take_away.ok_or("its locks can't be taken away")?;
    // The loss is at some time between the call and the answer. The call counts, as in all other cases.
    let begun = Instant::now();
    let signalled = async {
        signal.await;
        begun.elapsed()
    };
    let (taken, signalled) = tokio::join!(time::timeout(patience, taken), time::timeout(patience, signalled));
    taken??;
    Ok(signalled.map_or(Heard::Never, Heard::After))
}
