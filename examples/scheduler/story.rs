//! The scenes.

use std::{
    collections::HashSet,
    convert::Infallible,
    error::Error,
    time::{Duration, SystemTime},
};

use futures::future::try_join_all;
use tokio::time::sleep;
use watchlock::{LockClient, election::Leader, locks::OnceOutcome, operate::Events};
use watchlock_testkit::stage::{
    Crew, Result, Server,
    moment::{clock, millis, since},
};

use crate::{
    event::Event,
    ledger::Ledger,
    node::{ELECTION, LEASE, TICK, begin_of},
};

const NODES: usize = 3;

/// Lateness of each timer of the last scene, beside the one before it.
const LATE: Duration = Duration::from_millis(50);

/// Number of times that the timers of the last scene fire.
const FIRINGS: usize = 2;

/// Number of ticks that each scene shows after its event.
const TICKS: usize = 4;

/// Plays the scenes, and checks the runs in the database.
pub(crate) async fn tell(server: Server) -> Result<()> {
    let database = server.connect().await?;
    let ledger = Ledger::of(&database);
    let locks = LockClient::builder(database).label("spectator").build().await?;
    let leaders = locks.election(ELECTION).observe();
    let crew = Crew::start((1..=NODES).map(|number| format!("node-{number}")), &server)?;
    let mut story = Story {
        crew,
        locks,
        leaders,
        elected: None,
        ticks: HashSet::new(),
    };

    story.lead().await?;
    story.freeze_the_leader().await?;
    story.kill_the_leader().await?;
    story.dismiss_the_leader().await?;
    story.crew.dismiss_all().await?;
    once_a_period(&server).await?;
    story.locks.shutdown().await;

    let verdict = ledger.judge().await?;
    println!(
        "\n{} ticks run by {} leaders, one after the other, and none twice; the longest rest was {}, the lease is {}",
        verdict.runs,
        verdict.leaders,
        millis(verdict.longest_rest),
        millis(LEASE)
    );
    Ok(())
}

/// A job that needs no leader: a timer starts it on every host at the same moment.
async fn once_a_period(server: &Server) -> Result<()> {
    const PERIOD: Duration = Duration::from_secs(2);
    heading(
        5,
        &format!("{NODES} timers fire at about the same moment, every {PERIOD:?}; the job is done once in each period"),
    );
    let mut hosts = Vec::new();
    for number in 1..=NODES {
        let builder = LockClient::builder(server.connect().await?).label(format!("host-{number}"));
        hosts.push(builder.build().await?);
    }
    let mut periods = HashSet::new();
    for _ in 0..FIRINGS {
        // The timers fire at even seconds, and the windows begin at odd ones: a timer that is a little late or early
        // still fires in the same window as the others.
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        sleep(PERIOD - Duration::from_nanos((since_epoch.as_nanos() % PERIOD.as_nanos()).try_into()?)).await;
        let runs = hosts.iter().enumerate().map(async |(number, locks)| {
            // No two clocks agree.
            sleep(LATE * u32::try_from(number)?).await;
            let job = locks.once("sweep", PERIOD).offset(PERIOD / 2);
            let label = format!("host-{}", number + 1);
            let outcome = job.run(async |held| Ok::<_, Infallible>(held.token())).await?;
            match outcome {
                OnceOutcome::Done { output, .. } => {
                    say(&format!("{label} has done it, under token {output}"));
                    Ok::<_, Box<dyn Error + Send + Sync>>(Some(output))
                }
                OnceOutcome::RanAlready(run) => {
                    say(&format!("{label} has not: {run}"));
                    Ok(None)
                }
                OnceOutcome::Busy(contention) => {
                    say(&format!("{label} has not: {contention}"));
                    Ok(None)
                }
                _ => Ok(None),
            }
        });
        let done: Vec<_> = try_join_all(runs).await?.into_iter().flatten().collect();
        // The record of the last one says for which window it counts.
        let record = hosts[0]
            .inspect("sweep")
            .await?
            .into_iter()
            .flat_map(|lock| lock.holders)
            .next();
        if let (Some(record), false) = (record, done.is_empty())
            && (record.released.is_none() || !periods.insert(record.until))
        {
            return Err(format!(
                "the job was done twice in a period, the last time under token {}",
                record.token
            )
            .into());
        }
        println!();
    }
    for host in hosts {
        host.shutdown().await;
    }
    if periods.is_empty() {
        return Err("nobody has done the job".into());
    }
    Ok(())
}

struct Story {
    crew: Crew<Event>,
    locks: LockClient,
    leaders: Events<Option<Leader>>,
    /// The node whose campaign succeeded last, and when.
    elected: Option<(usize, SystemTime)>,
    /// All ticks that were run.
    ticks: HashSet<i64>,
}

/// A run of the job.
#[derive(Clone, Copy)]
struct Run {
    node: usize,
    token: i64,
    at: SystemTime,
}

impl Story {
    async fn lead(&mut self) -> Result<()> {
        heading(
            1,
            &format!("{NODES} processes stand for the election `{ELECTION}`; the leader runs the job every {TICK:?}"),
        );
        self.some_ticks().await
    }

    async fn freeze_the_leader(&mut self) -> Result<()> {
        heading(2, &format!("The leader freezes (SIGSTOP); its lease is {LEASE:?}"));
        let last = self.tick().await?;
        let label = self.crew.label(last.node).to_owned();
        self.crew.freeze(last.node).await?;
        say(&format!("{label} is frozen; as far as it knows, it still leads"));
        self.taken_over(last).await?;
        self.crew.thaw(last.node).await?;
        while !self.is_candidate(&label).await? {
            self.tick().await?;
        }
        say(&format!(
            "{label} has thawed and is a candidate like the others; it ran nothing in between"
        ));
        self.tick().await?;
        Ok(())
    }

    async fn kill_the_leader(&mut self) -> Result<()> {
        heading(3, &format!("The leader is killed (SIGKILL); its lease is {LEASE:?}"));
        let last = self.tick().await?;
        self.crew.kill(last.node).await?;
        say(&format!("{} is dead", self.crew.label(last.node)));
        self.taken_over(last).await?;
        self.some_ticks().await
    }

    async fn dismiss_the_leader(&mut self) -> Result<()> {
        heading(4, "The leader is asked to end, as in a deploy, and resigns");
        let last = self.tick().await?;
        let told = SystemTime::now();
        self.crew.dismiss(last.node).await?;
        let label = self.crew.label(last.node).to_owned();
        self.taken_over(last).await?;
        if let Some((next, at)) = self.elected.filter(|&(next, at)| next != last.node && at >= told) {
            let next = self.crew.label(next);
            say(&format!(
                "{next} was elected {} after {label} was asked to end",
                millis(since(told, at))
            ));
        }
        self.some_ticks().await
    }

    /// Waits for a leader after the one of `last`.
    async fn taken_over(&mut self, last: Run) -> Result<()> {
        let next = loop {
            let run = self.tick().await?;
            if run.token > last.token && run.node != last.node {
                break run;
            }
        };
        let (earlier, later) = (self.crew.label(last.node), self.crew.label(next.node));
        say(&format!(
            "{later} continues {} after the last run of {earlier}; the token rose by {}",
            millis(since(last.at, next.at)),
            next.token - last.token
        ));
        Ok(())
    }

    async fn is_candidate(&self, label: &str) -> Result<bool> {
        let election = self.locks.inspect(ELECTION).await?;
        let mut candidates = election.into_iter().flat_map(|election| election.waiters);
        Ok(candidates.any(|candidate| candidate.label.as_deref() == Some(label)))
    }

    async fn some_ticks(&mut self) -> Result<()> {
        for _ in 0..TICKS {
            self.tick().await?;
        }
        Ok(())
    }

    /// Waits until the job is run, and prints that and all events until then.
    async fn tick(&mut self) -> Result<Run> {
        loop {
            let (node, event) = tokio::select! {
                event = self.crew.next() => event?,
                leader = self.leaders.next() => {
                    match leader.ok_or("the observation of the leaders ended")?? {
                        Some(leader) => say(&format!("{} leads (process {})", leader.value, leader.pid)),
                        None => say("nobody leads"),
                    }
                    continue;
                }
            };
            match event {
                Event::Elected { at, .. } => self.elected = Some((node, at)),
                Event::Ran { at, token, tick } => {
                    let (label, begin) = (self.crew.label(node), begin_of(tick));
                    let late = millis(since(begin, at));
                    println!(
                        "   tick {tick}  {}  run by {label}  token {token}  done after {late:>9}",
                        clock(begin)
                    );
                    if !self.ticks.insert(tick) {
                        return Err(format!("tick {tick} was run twice, the second time by {label}").into());
                    }
                    return Ok(Run { node, token, at });
                }
            }
        }
    }
}

fn heading(number: u32, text: &str) {
    println!("\n{number}. {text}\n");
}

fn say(text: &str) {
    println!("   -> {text}");
}
