//! The cost of holding: one client holds many locks, and keeps them alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{Round, close, connect, cost, fresh_name};
use crate::{
    client::{Client, Held, Result},
    engines::Engine,
    peers::{Death, Peer},
};

/// Number of acquires or releases at once.
const AT_ONCE: usize = 64;

/// Time between the last acquire and the measurement: what belongs to the acquires is done by then.
const SETTLING: Duration = Duration::from_millis(500);

/// Measures commands, bytes and processor time, of the server and of this process, while a client holds `count` locks.
/// That takes a third of the lease, so that each lock is renewed once by a library that renews as often.
pub(crate) async fn round(peer: &Peer, engine: &Engine, count: usize, lease: Duration) -> Result<Round> {
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
    let mut clients = connect(peer, engine, 1, lease).await?;
    let client = clients.pop().ok_or("one client was asked for")?;
    let (mut held, acquired) = acquire(&client, count).await?;
    tokio::time::sleep(SETTLING).await;
    let cost = cost::of(engine, lease / 3).await?;
    let signals: Vec<_> = held.iter_mut().filter_map(Held::take_signal).collect();
    let signalled = !signals.is_empty();
    let lost = signals.into_iter().filter_map(FutureExt::now_or_never).count();
    let released = release(held).await?;
    close(vec![client]).await;

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
    speed(&mut round, count, acquired, released);
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    if signalled {
        round.less("lost meanwhile", lost as f64);
    }
    Ok(round)
}

/// Measures the acquires and the releases alone.
pub(crate) async fn turnover(client: Arc<dyn Client>, count: usize) -> Result<Round> {
    let (held, acquired) = acquire(&client, count).await?;
    let released = release(held).await?;
    close(vec![client]).await;
    let mut round = Round::default();
    speed(&mut round, count, acquired, released);
    Ok(round)
}

#[expect(clippy::cast_precision_loss, reason = "some thousands")]
fn speed(round: &mut Round, count: usize, acquired: Duration, released: Duration) {
    round.more("acquires/s", count as f64 / acquired.as_secs_f64());
    round.more("releases/s", count as f64 / released.as_secs_f64());
}

async fn acquire(client: &Arc<dyn Client>, count: usize) -> Result<(Vec<Held>, Duration)> {
    let begun = Instant::now();
    let acquires = (0..count).map(|_| client.acquire(&fresh_name()));
    let held = stream::iter(acquires).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok((held, begun.elapsed()))
}

async fn release(held: Vec<Held>) -> Result<Duration> {
    let begun = Instant::now();
    let releases = stream::iter(held.into_iter().map(Held::release));
    releases.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(begun.elapsed())
}
