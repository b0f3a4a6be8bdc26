//! Processes that elect who runs a job on each tick, on a real MongoDB: `cargo run --example scheduler`.
//!
//! No preparation is needed: the example finds or installs a server, starts it as a throw-away replica set, and removes
//! it afterwards. With `MONGODB_URI` set it uses that server, in its own database that is dropped at the end.
//!
//! 1. Three processes stand for election, and the leader runs the job on each tick.
//! 2. The leader freezes. Another continues when its lease has expired, and the thawed process is no longer the leader.
//! 3. The leader is killed, and another continues when its lease has expired.
//! 4. The leader is asked to end, as in a deploy. It resigns, and another continues at once.
//! 5. A job that needs no leader: timers start it on every host at the same moment, and one of them does it.
//!
//! The example fails if a tick was run twice, or by an earlier leader after a later one.

use std::{
    convert::Infallible,
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use futures::{TryStreamExt, future::try_join_all};
use mongodb::{
    Collection, Database,
    bson::{Document, doc},
};
use tokio::time::{sleep, timeout};
use watchlock::{
    LockClient, View,
    election::{Election, Leader},
    locks::OnceOutcome,
    operate::Events,
};
use watchlock_testkit::stage::{self, Process, Result, Stage};

const ELECTION: &str = "nightly-report";

/// A short lease, as the death of a leader costs this long, and somebody is watching. Real programs should use the
/// default, 30 s: a leader also survives an outage of the server this long.
const LEASE: Duration = Duration::from_secs(1);

/// Interval of the job. The nights of this example are short.
const TICK: Duration = Duration::from_millis(200);

/// Maximum time without a leader, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> Result<()> {
    stage::play("scheduler", scenes, node).await
}

/// What each of the processes does: it leads whenever it is elected, until it is dismissed.
async fn node(stage: Stage, label: String) -> Result<()> {
    let database = stage.connect().await?;
    let runs = runs(&database);
    let locks = LockClient::builder(database).lease(LEASE).label(&label);
    // The end of the scope resigns, so that nobody has to wait for the lease to expire.
    let work = async |locks: LockClient| {
        let election = locks.election(ELECTION);
        // The future that the closure returns is dropped when the lead is lost, and the next campaign begins.
        let leading = election.run(&label, async |leading| {
            match run_each_tick(&leading, &runs, &label).await {
                Ok(never) => match never {},
                Err(error) => ControlFlow::Break(error),
            }
        });
        tokio::select! {
            ended = leading => Err(ended?),
            () = stage::dismissed() => Ok(()),
        }
    };
    locks.scope(work).await?
}

/// Runs the job on each tick that begins under this lead. Another leader may have run an earlier one.
async fn run_each_tick(leading: &View<Election>, runs: &Collection<Document>, label: &str) -> Result<Infallible> {
    let mut last = tick()?;
    loop {
        while tick()? == last {
            sleep(TICK / 20).await;
        }
        last = tick()?;
        // The job: a second run of the same tick is an error. The token goes with it, so that its receiver can refuse a
        // leader that is not the last.
        let token = leading.token().as_i64();
        runs.insert_one(doc! { "_id": last, "token": token, "by": label })
            .await?;
        println!("   tick {last}  run by {label}  token {token}");
    }
}

/// Returns the present tick by the wall clock, so that all nodes count alike.
fn tick() -> Result<i64> {
    Ok(i64::try_from(
        SystemTime::UNIX_EPOCH.elapsed()?.as_millis() / TICK.as_millis(),
    )?)
}

fn runs(database: &Database) -> Collection<Document> {
    database.collection("runs")
}

async fn scenes(stage: Stage) -> Result<()> {
    let database = stage.connect().await?;
    let locks = LockClient::builder(database.clone()).build().await?;
    let mut leaders = locks.election(ELECTION).observe();

    println!("\n1. Three processes stand for the election `{ELECTION}`; the leader runs the job every {TICK:?}\n");
    let labels = ["node-1", "node-2", "node-3"];
    let mut nodes = labels
        .map(|label| stage.start(label))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let leader = another(&mut leaders, None).await?;

    println!("\n2. The leader freezes (SIGSTOP); its lease is {LEASE:?}\n");
    let frozen = taken(&mut nodes, &leader)?;
    frozen.freeze()?;
    let leader = another(&mut leaders, Some(&frozen.label)).await?;
    frozen.thaw()?;
    sleep(TICK * 3).await;
    nodes.push(frozen);

    println!("\n3. The leader is killed (SIGKILL); its lease is {LEASE:?}\n");
    let mut killed = taken(&mut nodes, &leader)?;
    killed.kill().await?;
    let leader = another(&mut leaders, Some(&killed.label)).await?;

    println!("\n4. The leader is asked to end, as in a deploy, and resigns\n");
    taken(&mut nodes, &leader)?.dismiss().await?;
    another(&mut leaders, Some(&leader)).await?;
    for node in nodes {
        node.dismiss().await?;
    }

    once_a_period(&stage).await?;
    locks.shutdown().await;
    let runs: Vec<Document> = runs(&database)
        .find(doc! {})
        .sort(doc! { "_id": 1 })
        .await?
        .try_collect()
        .await?;
    if !runs.is_sorted_by_key(|run| run.get_i64("token").unwrap_or(i64::MAX)) {
        return Err("an earlier leader ran a tick after a later one".into());
    }
    println!("\n{} ticks were run, none of them twice", runs.len());
    Ok(())
}

/// Waits until another one leads, and lets it run some ticks.
async fn another(leaders: &mut Events<Option<Leader>>, than: Option<&str>) -> Result<String> {
    loop {
        let leader = timeout(PATIENCE, leaders.next()).await?;
        match leader.ok_or("the observation of the leaders has ended")?? {
            Some(leader) if Some(leader.value.as_str()) != than => {
                println!("   -> {} leads", leader.value);
                sleep(TICK * 4).await;
                return Ok(leader.value);
            }
            Some(_) => {}
            None => println!("   -> nobody leads"),
        }
    }
}

fn taken(nodes: &mut Vec<Process>, label: &str) -> Result<Process> {
    let at = nodes.iter().position(|node| node.label == label);
    Ok(nodes.remove(at.ok_or("somebody else leads")?))
}

/// A job that needs no leader: a timer starts it on every host at about the same moment.
async fn once_a_period(stage: &Stage) -> Result<()> {
    println!("\n5. Timers of three hosts fire at about the same moment; the job is done once in each period\n");
    let hosts = (1..=3).map(async |number| {
        let locks = LockClient::builder(stage.connect().await?).build().await?;
        // No two clocks agree.
        sleep(TICK / 4 * number).await;
        let job = locks.once("sweep", Duration::from_secs(3_600)).since_success();
        let outcome = job.run(async |held| Ok::<_, Infallible>(held.token())).await?;
        locks.shutdown().await;
        let done = match outcome {
            OnceOutcome::Done { .. } => Ok("has done it".to_owned()),
            OnceOutcome::RanAlready(run) => Err(run.to_string()),
            other => Err(format!("{other:?}")),
        };
        println!("   host {number}: {}", done.as_ref().unwrap_or_else(|why| why));
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(done.is_ok())
    });
    let done = try_join_all(hosts).await?;
    match done.iter().filter(|done| **done).count() {
        1 => Ok(()),
        times => Err(format!("the job was done {times} times").into()),
    }
}
