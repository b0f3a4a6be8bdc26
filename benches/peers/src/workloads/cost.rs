//! The load of a server and of this process, for each second.

use std::time::{Duration, Instant};

use crate::{
    client::Result,
    engines::{Engine, own_processor_time},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Commands that the server has executed, where it counts them.
    pub(crate) commands: Option<f64>,
    /// Bytes that the server has received and sent, where it counts them.
    pub(crate) bytes: Option<f64>,
    /// Processor time of the server, in seconds.
    pub(crate) server: f64,
    /// Processor time of this process, in seconds: that of all clients together, as nothing else is played meanwhile.
    pub(crate) process: f64,
}

/// Measures for this long.
pub(crate) async fn of(engine: &Engine, time: Duration) -> Result<Cost> {
    let (before, processor) = (engine.traffic().await?, engine.processor_time()?);
    let (process, begun) = (own_processor_time()?, Instant::now());
    tokio::time::sleep(time).await;
    let seconds = begun.elapsed().as_secs_f64();
    let process = own_processor_time()?.saturating_sub(process);
    let processor = engine
        .processor_time()?
        .unwrap_or_default()
        .saturating_sub(processor.unwrap_or_default());
    let after = engine.traffic().await?;
    // The answer to the first question is among what was sent before the second.
    let asked = before.answer;
    Ok(Cost {
        commands: rate(before.commands, after.commands, 0, seconds),
        bytes: rate(before.bytes, after.bytes, asked, seconds),
        server: processor.as_secs_f64() / seconds,
        process: process.as_secs_f64() / seconds,
    })
}

/// Returns the growth of a counter in a second, without a part that is known.
#[expect(clippy::cast_precision_loss, reason = "a count")]
fn rate(before: Option<u64>, after: Option<u64>, without: u64, seconds: f64) -> Option<f64> {
    let growth = after?.saturating_sub(before?).saturating_sub(without);
    Some(growth as f64 / seconds)
}
