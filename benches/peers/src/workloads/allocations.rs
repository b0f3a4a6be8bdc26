//! The memory that this process asks for in an acquire and release: that of the library and of its driver.

use std::{alloc::System, sync::Arc};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};

use super::{LEASE, Round, close, connect, fresh_name};
use crate::{
    client::{Client, Result},
    engines::Engine,
    peers::Peer,
};

/// Counts for the whole program, which takes some nanoseconds for each allocation.
#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of cycles that are counted.
const TIMES: usize = 200;

/// Number of cycles before anything is counted: by then all buffers have their size.
const WARM_UP: usize = 50;

pub(crate) async fn round(peer: &Peer, engine: &Engine) -> Result<Round> {
    let mut clients = connect(peer, engine, 1, LEASE).await?;
    count(clients.pop().ok_or("one client was asked for")?).await
}

/// Counts the allocations of cycles by a client, one after the other.
pub(crate) async fn count(client: Arc<dyn Client>) -> Result<Round> {
    // Fresh ones: a library whose release goes on in the background would run into its own lock.
    let names = |count: usize| (0..count).map(|_| fresh_name()).collect::<Vec<_>>();
    let cycles = async |names: &[String]| -> Result<()> {
        for name in names {
            client.acquire(name).await?.release().await?;
        }
        Ok(())
    };
    cycles(&names(WARM_UP)).await?;
    let names = names(TIMES);
    let region = Region::new(COUNTED);
    cycles(&names).await?;
    let change = region.change();
    close(vec![client]).await;
    let (number, bytes) = each(&change, TIMES);
    let mut round = Round::default();
    round.less("allocations", number);
    round.less("KiB allocated", bytes / 1024.0);
    Ok(round)
}

/// Returns the number of allocations in a cycle, and their bytes. A reallocation is one too.
#[expect(clippy::cast_precision_loss, reason = "some hundred thousands")]
fn each(change: &Stats, cycles: usize) -> (f64, f64) {
    let each = |count: usize| count as f64 / cycles as f64;
    (
        each(change.allocations + change.reallocations),
        each(change.bytes_allocated),
    )
}
