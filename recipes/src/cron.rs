//! A job that every replica's scheduler starts at the same time, and one of them does.

use std::{sync::Arc, time::Duration};

use tokio_cron_scheduler::{Job, JobScheduler};
use watchlock::{FencingToken, LockClient, locks::OnceOutcome};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Does the job `name` at the times that `cron` names, in UTC, at most once per period among all replicas; `log` gets
/// each outcome. Each job needs a name of its own.
///
/// For a report at 02:00 UTC each day, pass `"0 0 2 * * *"`, a period of 24 hours and an offset of 12 hours. The timer
/// must fire far from `offset + n x period`, in UTC: there one window ends and the next begins.
pub async fn schedule<Fut>(
    locks: &LockClient,
    name: &str,
    cron: &str,
    period: Duration,
    offset: Duration,
    job: impl Fn(FencingToken) -> Fut + Send + Sync + 'static,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> Result<JobScheduler, Error>
where
    Fut: Future<Output = Result<(), Error>> + Send + 'static,
{
    let once = locks.once(name, period).offset(offset);
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
