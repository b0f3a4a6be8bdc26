//! The cost of an open change stream for everybody else's writes, as far as that is seen from outside.

use std::time::Instant;

use mongodb::bson::Document;

use super::report::Check;
use crate::{
    connection::to_its_end,
    exit::Failure,
    ground::{Ground, asked},
    measure::Samples,
};

pub(super) const SECTION: &str = "cost";

/// Streams that are open at once: few enough for the pool.
const STREAMS: usize = 8;

/// Writes that are timed.
const WRITES: usize = 200;

pub(super) async fn run(ground: &Ground<'_>, checks: &mut Vec<Check>) -> Result<(), Failure> {
    let name = "streams beside writes";
    let alone = writes(ground).await?;
    let watched = ground.collection("watched");
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..STREAMS {
        let watched = watched.clone();
        match to_its_end(async move { watched.watch().await }).await? {
            Ok(mut stream) => readers.spawn(async move {
                use futures::StreamExt as _;
                while stream.next().await.is_some_and(|event| event.is_ok()) {}
            }),
            Err(error) => {
                let why = format!("no change stream: {}", Failure::driver(&error).message());
                checks.push(Check::skipped(SECTION, name, why));
                return Ok(());
            }
        };
    }
    let beside = writes(ground).await?;
    readers.shutdown().await;
    let found = format!(
        "a write to another collection takes {alone:.1} ms, and {beside:.1} ms beside {STREAMS} open streams (medians of \
         {WRITES}); see the guide's page Scaling for what a fleet may hold"
    );
    checks.push(Check::noted(SECTION, name, found));
    Ok(())
}

/// Returns the median time of a write to another collection, in milliseconds.
async fn writes(ground: &Ground<'_>) -> Result<f64, Failure> {
    let mut samples = Samples::default();
    for _ in 0..WRITES {
        let (begun, written) = (Instant::now(), ground.collection("written"));
        let write = async move { written.insert_one(Document::new()).await };
        asked(write).await?;
        samples.push(begun.elapsed());
    }
    Ok(samples.median())
}
