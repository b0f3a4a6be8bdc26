//! A job that every replica's scheduler starts at the same time, and one of them does.

use std::{sync::Arc, time::Duration};

use tokio_cron_scheduler::{Job, JobScheduler};
use watchlock::{FencingToken, LockClient, OnceOutcome};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Does `job` at the times that `cron` names, at most once per period among all replicas; `log` gets each outcome.
///
/// For a report at 02:00 UTC each day, pass `"0 0 2 * * *"` and a period of 24 hours. The windows are moved by half a
/// period, so that no timer fires at the boundary of two windows.
pub async fn schedule<Fut>(
    locks: &LockClient,
    cron: &str,
    period: Duration,
    job: impl Fn(FencingToken) -> Fut + Send + Sync + 'static,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> Result<JobScheduler, Error>
where
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let once = locks.once("nightly-report", period).offset(period / 2);
    let (job, log) = (Arc::new(job), Arc::new(log));
    let scheduled = Job::new_async(cron, move |_, _| {
        let (once, job, log) = (once.clone(), job.clone(), log.clone());
        Box::pin(async move {
            // If the lock is lost, the job's future is dropped, and the period stays open.
            match once.run(|held| job(held.token())).await {
                Ok(OnceOutcome::Done { .. }) => log("done"),
                Ok(OnceOutcome::Failed(error)) => log(&format!("failed; the period stays open: {error}")),
                Ok(OnceOutcome::RanAlready(run)) => log(&run.to_string()),
                Ok(OnceOutcome::Busy(contention)) => log(&format!("in progress: {contention}")),
                Ok(_) => {}
                Err(error) => log(&format!("not run: {error}")),
            }
        })
    })?;
    let scheduler = JobScheduler::new().await?;
    scheduler.add(scheduled).await?;
    scheduler.start().await?;
    Ok(scheduler)
}
