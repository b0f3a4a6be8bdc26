//! The cost of holding: one client holds many locks, and keeps them alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{LEASE, Round, close, connect, cost, fresh_name};
use crate::{
    client::{Client, Held, Result},
    engines::Engine,
    peers::{Death, Peer},
};

/// Number of acquires or releases at once.
const AT_ONCE: usize = 64;

/// Time between the last acquire and the measurement: what belongs to the acquires is done by then.
const SETTLING: Duration = Duration::from_millis(500);

/// Measures commands and processor time, of the server and of this process, while a client holds `count` locks.
pub(crate) async fn round(peer: &Peer, engine: &Engine, count: usize, time: Duration) -> Result<Round> {
    if peer.death == Death::Never {
        return Err("its locks have no lease, so there is nothing to renew".into());
    }
    if !peer.renews {
        return Err("no renewal: its locks end with their lease, whether or not their holder is at work".into());
    }
    if count > peer.most_held {
        return Err(format!(
            "a client holds at most {}: each lock takes a connection",
            peer.most_held
        )
        .into());
    }
    let clients = connect(peer, engine, 1, LEASE).await?;
    let [client] = clients.as_slice() else {
        return Err("one client was asked for".into());
    };
    let before = Instant::now();
    let mut held = acquire(client, count).await?;
    let acquired = before.elapsed();
    tokio::time::sleep(SETTLING).await;
    let cost = cost::of(engine, time).await?;
    let signals: Vec<_> = held.iter_mut().filter_map(Held::take_signal).collect();
    let signalled = !signals.is_empty();
    let lost = signals.into_iter().filter_map(FutureExt::now_or_never).count();
    let before = Instant::now();
    stream::iter(held.into_iter().map(Held::release))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    let released = before.elapsed();
    close(clients).await;

    let mut round = Round::default();
    if let Some(commands) = cost.commands {
        round.less("commands/s", commands);
    }
    if let Some(bytes) = cost.bytes {
        round.less("KiB/s", bytes / 1024.0);
    }
    if peer.death != Death::Together {
        round.less("server, ms of CPU/s", cost.server * 1e3);
    }
    round.less("this process, ms of CPU/s", cost.process * 1e3);
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    let (count, lost) = (count as f64, lost as f64);
    round.more("acquires/s", count / acquired.as_secs_f64());
    round.more("releases/s", count / released.as_secs_f64());
    if signalled {
        round.less("lost meanwhile", lost);
    }
    Ok(round)
}

async fn acquire(client: &Arc<dyn Client>, count: usize) -> Result<Vec<Held>> {
    let acquires = (0..count).map(|_| client.acquire(&fresh_name()));
    stream::iter(acquires).buffer_unordered(AT_ONCE).try_collect().await
}
