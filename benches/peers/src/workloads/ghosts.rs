//! Acquires that are dropped half-way, as a time-out or an aborted task does, and the locks that they leave behind with
//! no holder.

use std::{
    pin::Pin,
    task::Poll,
    time::{Duration, Instant},
};

use futures::{
    future::{BoxFuture, join_all},
    poll,
};
use tokio::{task::yield_now, time};
use uuid::Uuid;

use super::{LEASE, Round, close, connect, fresh_name};
use crate::{
    client::{Held, Result},
    engines::Engine,
    peers::Peer,
};

/// Greatest delay after which an acquire of a free lock is dropped: about as long as one takes.
const LONGEST: Duration = Duration::from_millis(2);

/// Time that the libraries have to clear up in the background.
const CLEARING: Duration = Duration::from_secs(1);

/// Time in which another client must get the lock if nobody has it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Number of locks that are tried at once.
const AT_ONCE: usize = 50;

/// Counts the locks that nobody else gets although nobody has them.
pub(crate) async fn round(peer: &Peer, engine: &Engine, count: usize) -> Result<Round> {
    if !peer.cancellable {
        return Err("its acquire blocks a thread and can't be cancelled".into());
    }
    let clients = connect(peer, engine, 2, LEASE).await?;
    let [one, other] = clients.as_slice() else {
        return Err("two clients were asked for".into());
    };
    // This makes the connections, which would take longer than the longest delay.
    one.acquire(&fresh_name()).await?.release().await?;
    other.acquire(&fresh_name()).await?.release().await?;
    let mut dropped = Vec::new();
    // Those that return earlier do not count, and a service that is always faster ends this anyhow.
    for _ in 0..count * 10 {
        if dropped.len() == count {
            break;
        }
        let name = fresh_name();
        let random = Uuid::new_v4().as_u128() % LONGEST.as_nanos();
        let delay = Duration::from_nanos(u64::try_from(random)?);
        match drop_after(delay, one.acquire(&name)).await {
            None => dropped.push(name),
            Some(acquired) => acquired?.release().await?,
        }
    }
    time::sleep(CLEARING).await;
    let mut ghosts = 0;
    for names in dropped.chunks(AT_ONCE) {
        let tries = names.iter().map(|name| time::timeout(PATIENCE, other.acquire(name)));
        for tried in join_all(tries).await {
            match tried {
                Ok(acquired) => acquired?.release().await?,
                Err(_) => ghosts += 1,
            }
        }
    }
    close(clients).await;
    let mut round = Round::default();
    #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
    round.less("ghosts of 100", f64::from(ghosts) * 100.0 / dropped.len().max(1) as f64);
    Ok(round)
}

/// Polls the acquire for this long, which is shorter than any timer, and drops it.
async fn drop_after(delay: Duration, mut acquire: BoxFuture<'static, Result<Held>>) -> Option<Result<Held>> {
    let begun = Instant::now();
    loop {
        if let Poll::Ready(acquired) = poll!(Pin::new(&mut acquire)) {
            return Some(acquired);
        }
        if begun.elapsed() >= delay {
            return None;
        }
        yield_now().await;
    }
}
