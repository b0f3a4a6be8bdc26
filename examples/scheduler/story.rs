//! The scenes.

use std::{collections::HashSet, time::SystemTime};

use futures::StreamExt;
use watchlock::{Leaders, LockClient};
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

struct Story {
    crew: Crew<Event>,
    locks: LockClient,
    leaders: Leaders,
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
