//! A process that stands for election and runs the job while it leads.

use std::{
    convert::Infallible,
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use tokio::time::sleep;
use watchlock::{LockClient, View, election};
use watchlock_testkit::stage::{Part, Result, say};

use crate::{event::Event, ledger::Ledger};

/// The name of the election.
pub(crate) const ELECTION: &str = "nightly-report";

/// A short lease, as the death of a leader costs this long, and somebody is watching. Real programs should use the
/// default, 30 s: a leader also survives an outage of the server this long.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Interval of the job. The nights of this example are short.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// Leads whenever it is elected, until it is dismissed.
pub(crate) async fn attend(part: Part) -> Result<()> {
    let database = part.server.connect().await?;
    let ledger = Ledger::of(&database);
    let locks = LockClient::builder(database).lease(LEASE).label(&part.label);
    // Its end resigns, so that nobody has to wait for the lease to expire.
    locks.scope(|locks| lead(locks, ledger, part)).await?
}

async fn lead(locks: LockClient, ledger: Ledger, part: Part) -> Result<()> {
    let election = locks.election(ELECTION);

    // The future that the closure returns is dropped when the leadership is lost, and the next campaign begins.
    let leading = election.run(&part.label, async |leading| {
        match run_each_tick(&leading, &ledger, &part.label).await {
            Ok(never) => match never {},
            Err(error) => ControlFlow::Break(error),
        }
    });
    tokio::select! {
        ended = leading => Err(ended?),
        _ = part.dismissed => Ok(()),
    }
}

/// Runs the job on each tick that begins under this leadership. Another leader may have run an earlier one.
async fn run_each_tick(leading: &View<election::Election>, ledger: &Ledger, label: &str) -> Result<Infallible> {
    let token = leading.token().as_i64();
    let at = SystemTime::now();
    say(Event::Elected { at, token })?;
    let mut tick = tick_at(at);
    loop {
        tick = next_tick(tick).await;
        // The job. The token goes with it, so that its receiver can refuse a leader that is not the last.
        ledger.enter(tick, token, label).await?;
        say(Event::Ran {
            at: SystemTime::now(),
            token,
            tick,
        })?;
    }
}

/// Waits until a tick other than `last` has begun, and returns it.
async fn next_tick(last: i64) -> i64 {
    loop {
        let now = SystemTime::now();
        let tick = tick_at(now);
        if tick > last {
            return tick;
        }
        sleep(begin_of(last + 1).duration_since(now).unwrap_or(TICK)).await;
    }
}

/// Returns the tick at a moment, by the wall clock, so that all nodes count alike.
fn tick_at(moment: SystemTime) -> i64 {
    let since_epoch = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis() / TICK.as_millis()).unwrap_or(i64::MAX)
}

/// Returns the moment when a tick begins.
pub(crate) fn begin_of(tick: i64) -> SystemTime {
    let ticks = u64::try_from(tick).unwrap_or(0);
    let tick = u64::try_from(TICK.as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(ticks.saturating_mul(tick))
}
