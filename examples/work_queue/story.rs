//! The scenes.

use std::{collections::HashMap, time::Duration};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::time::{Instant, sleep_until};
use watchlock_testkit::stage::{
    Crew, Result, Server, chance,
    moment::{millis, uptime},
};

use crate::{
    journal::Journal,
    news::News,
    queue::{self, Source},
    worker::LEASE,
};

const WORKERS: usize = 4;

/// Number of workers that are killed.
const KILLS: usize = 6;

/// Number of grants that the first scene shows.
const SHOWN: usize = 8;

/// Shortest and longest quiet time before the next worker is killed.
const PEACE: (Duration, Duration) = (Duration::from_millis(150), Duration::from_millis(450));

/// Shortest and longest time until another worker is started in a free place.
const VACANCY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(150));

/// Interval of checks for changes that nobody reports.
const LOOK: Duration = Duration::from_millis(100);

/// Plays the scenes, and checks the results in the database.
pub(crate) async fn tell(server: Server) -> Result<()> {
    let database = server.connect().await?;
    let events = queue::events(&database);
    let labels = (1..=WORKERS).map(label);
    let mut story = Story {
        crew: Crew::start(labels, &server)?,
        server,
        events: events.clone(),
        at_work: (0..WORKERS).collect(),
        left: HashMap::new(),
    };

    let source = story.share(events).await?;
    story.kill_at_random().await?;
    story.freeze_one().await?;
    let count = source.close().await?;
    story.drain().await?;
    story.crew.dismiss_all().await?;

    let verdict = Journal::of(&database).judge(count).await?;
    println!("\nAll {count} events were processed, each once, and none by two workers at a time.");
    println!("{} of them had to be begun again.\n", verdict.begun_again);
    for (worker, finished) in &verdict.finished {
        println!("   {worker}  finished {finished:>3}");
    }
    if verdict.begun_again < 2 {
        return Err("no worker was killed at work, so little was shown".into());
    }
    Ok(())
}

struct Story {
    crew: Crew<News>,
    server: Server,
    events: Collection<Document>,
    /// The living processes.
    at_work: Vec<usize>,
    /// Events whose workers were killed or frozen, by their ids.
    left: HashMap<i64, Left>,
}

/// An event whose worker was killed or frozen.
struct Left {
    by: String,
    token: i64,
    since: Duration,
}

/// An event that a worker begins to process.
#[derive(Clone, Copy)]
struct Taken {
    worker: usize,
    event: i64,
    token: i64,
}

impl Story {
    async fn share(&mut self, events: Collection<Document>) -> Result<Source> {
        heading(
            1,
            &format!("{WORKERS} processes wait for events, and share them as they come"),
        );
        let source = Source::open(events);
        for _ in 0..SHOWN {
            let taken = self.taken().await?;
            let label = self.crew.label(taken.worker);
            println!(
                "   event {:>3}  is locked by {label}, token {}",
                taken.event, taken.token
            );
        }
        Ok(source)
    }

    async fn kill_at_random(&mut self) -> Result<()> {
        heading(
            2,
            &format!("Workers are killed at random (SIGKILL), others replace them; the lease is {LEASE:?}"),
        );
        for number in 1..=KILLS {
            self.work_on(chance::between(PEACE.0, PEACE.1)).await?;
            let victim = *chance::one_of(&self.at_work).ok_or("nobody is left")?;
            self.crew.kill(victim).await?;
            self.at_work.retain(|worker| *worker != victim);
            self.mourn(victim).await?;
            self.work_on(chance::between(VACANCY.0, VACANCY.1)).await?;
            let next = self.crew.hire(label(WORKERS + number), &self.server)?;
            self.at_work.push(next);
            say(&format!("{} is started", self.crew.label(next)));
        }
        // All abandoned events are taken over.
        while !self.left.is_empty() {
            self.work_on(LOOK).await?;
            self.forget_finished().await?;
        }
        Ok(())
    }

    /// Looks up the event that a worker had when it was killed: the event names it.
    async fn mourn(&mut self, victim: usize) -> Result<()> {
        let by = self.crew.label(victim).to_owned();
        let since = uptime();
        let mut held = queue::open();
        held.insert("watchlock.holders.owner.label", &by);
        let Some(event) = self.events.find_one(held).await? else {
            say(&format!("{by} is killed between two events"));
            return Ok(());
        };
        let (id, lock) = (event.get_i64("_id")?, event.get_document("watchlock")?);
        say(&format!("{by} is killed while working on event {id}"));
        let token = lock.get_i64("token")?;
        self.left.insert(id, Left { by, token, since });
        Ok(())
    }

    async fn freeze_one(&mut self) -> Result<()> {
        heading(
            3,
            &format!("A worker freezes at its work (SIGSTOP); the lease is {LEASE:?}"),
        );
        let (frozen, by) = loop {
            let taken = self.taken().await?;
            let by = self.crew.label(taken.worker).to_owned();
            self.crew.freeze(taken.worker).await?;
            let left = Left {
                by: by.clone(),
                token: taken.token,
                since: uptime(),
            };
            self.left.insert(taken.event, left);
            if self.is_taken_over(taken.event).await? {
                break (taken, by);
            }
            // The worker was faster than the signal.
            self.crew.thaw(taken.worker).await?;
        };
        self.crew.thaw(frozen.worker).await?;
        loop {
            match self.news().await? {
                (worker, News::Refused { event }) if worker == frozen.worker && event == frozen.event => break,
                (worker, News::Finished { event }) if worker == frozen.worker && event == frozen.event => {
                    return Err(format!("{by} finished event {event} although another had it").into());
                }
                _ => {}
            }
        }
        say(&format!(
            "{by} has thawed, and its update of event {} is refused",
            frozen.event
        ));
        Ok(())
    }

    /// Waits until a worker takes over an event whose worker was frozen; `false` if that worker had finished it.
    async fn is_taken_over(&mut self, event: i64) -> Result<bool> {
        say(&format!(
            "{} is frozen while working on event {event}",
            self.left[&event].by
        ));
        while self.left.contains_key(&event) {
            self.work_on(LOOK).await?;
            if self.forget_finished().await? {
                say("it had just finished it");
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes events that were not abandoned after all, as the worker's update was already on its way.
    async fn forget_finished(&mut self) -> Result<bool> {
        let mut finished = Vec::new();
        for (event, left) in &self.left {
            let done = doc! { "_id": event, "done": true, "by": &left.by };
            if self.events.find_one(done).await?.is_some() {
                finished.push(*event);
            }
        }
        for event in &finished {
            self.left.remove(event);
        }
        Ok(!finished.is_empty())
    }

    /// Waits until no work is left.
    async fn drain(&mut self) -> Result<()> {
        while self.events.find_one(queue::open()).await?.is_some() {
            self.work_on(LOOK).await?;
        }
        Ok(())
    }

    /// Listens to the workers for a while.
    async fn work_on(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => return Ok(()),
                news = self.news() => news?,
            };
        }
    }

    /// Waits until a worker begins to process an event.
    async fn taken(&mut self) -> Result<Taken> {
        loop {
            if let (worker, News::Took { event, token }) = self.news().await? {
                return Ok(Taken { worker, event, token });
            }
        }
    }

    /// Returns the next report of a worker, and its worker. Prints who takes over an abandoned event.
    ///
    /// Cancel safe: no report is lost.
    async fn news(&mut self) -> Result<(usize, News)> {
        let (worker, news) = self.crew.next().await?;
        if let News::Took { event, token } = news
            && self.left.get(&event).is_some_and(|left| token > left.token)
            && let Some(left) = self.left.remove(&event)
        {
            say(&format!(
                "event {event}, left by {}, is taken over by {} after {}; the token rose by {}",
                left.by,
                self.crew.label(worker),
                millis(uptime().saturating_sub(left.since)),
                token - left.token
            ));
        }
        Ok((worker, news))
    }
}

fn label(number: usize) -> String {
    format!("worker-{number:02}")
}

fn heading(number: u32, text: &str) {
    println!("\n{number}. {text}\n");
}

fn say(text: &str) {
    println!("   -> {text}");
}
