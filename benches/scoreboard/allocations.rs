//! The memory that an acquire and release ask for, beside the raw commands they are made of.

use std::{alloc::System, fmt};

use mongodb::bson::doc;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use watchlock_testkit::Cluster;

use crate::{Result, peer::Peer};

/// Counts for the whole program; that takes some nanoseconds for each.
#[global_allocator]
static COUNTED: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Number of times that each is done, and before anything is counted: by then all buffers have their size.
const TIMES: u32 = 400;
const WARM_UP: u32 = 50;

/// Allocations, by the bytes of all of them, for one round.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) times: f64,
    bytes: f64,
}

impl Asked {
    /// Counts from the beginning of the region on. What the drivers' monitors ask for meanwhile is among it: a few in a
    /// hundred.
    fn since(region: &Region<'_, System>) -> Self {
        let change = region.change();
        let each = |count: usize| count as f64 / f64::from(TIMES);
        Self {
            times: each(change.allocations + change.reallocations),
            bytes: each(change.bytes_allocated),
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} allocations, {:.0} bytes", self.times, self.bytes)
    }
}

/// Counts for an acquire and release of a free lock, and for two raw commands.
pub(crate) async fn compared(cluster: &Cluster) -> Result<(Asked, Asked)> {
    let peer = Peer::new(cluster).await?;
    let (raw, mutex) = (peer.raw(), peer.locks.mutex("allocated"));
    let pair = async |times: u32| -> Result<()> {
        for _ in 0..times {
            raw.find_one_and_update(doc! { "_id": "free" }, doc! { "$set": { "holder": 1 } })
                .upsert(true)
                .await?;
            raw.find_one_and_update(doc! { "_id": "free" }, doc! { "$unset": { "holder": 1 } })
                .await?;
        }
        Ok(())
    };
    let lock = async |times: u32| -> Result<()> {
        for _ in 0..times {
            mutex.acquire().await?.release().await?;
        }
        Ok(())
    };
    pair(WARM_UP).await?;
    let region = Region::new(COUNTED);
    pair(TIMES).await?;
    let raw = Asked::since(&region);
    lock(WARM_UP).await?;
    let region = Region::new(COUNTED);
    lock(TIMES).await?;
    let lock = Asked::since(&region);
    peer.locks.shutdown().await;
    Ok((lock, raw))
}
