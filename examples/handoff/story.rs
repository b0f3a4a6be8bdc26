//! The first three scenes: processes that contend, one that dies, and a document that is deleted.

use std::time::{Duration, SystemTime};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use tokio::time::sleep;
use watchlock::{LockClient, operate::HolderInfo};
use watchlock_testkit::stage::{
    Crew, Result, Server,
    moment::{clock, millis, since},
};

use crate::{event::Event, locks, worker};

const WORKERS: usize = 3;

/// Number of grants in the first scene: three for each worker, so that the order of the queue is visible.
const GRANTS: usize = 9;

/// Time after its report during which a holder surely still works: two thirds of the shortest time that a worker holds.
const FRESH: Duration = Duration::from_millis(100);

/// Time for the other workers to line up behind a new holder.
const LINE_UP: Duration = Duration::from_millis(40);

/// The library's default collection for its locks.
const COLLECTION: &str = "distributed_locks";

/// Plays the scenes.
pub(crate) async fn tell(server: &Server) -> Result<()> {
    let database = server.connect().await?;
    let locks = locks(server, |builder| builder.label("spectator")).await?;
    let crew = Crew::start((1..=WORKERS).map(|number| format!("worker-{number}")), server)?;
    let mut story = Story {
        crew,
        locks,
        collection: database.collection(COLLECTION),
        token: 0,
        released: None,
    };

    story.contend().await?;
    story.kill_a_holder().await?;
    story.delete_the_document().await?;
    story.crew.dismiss_all().await
}

struct Story {
    crew: Crew<Event>,
    locks: LockClient,
    collection: Collection<Document>,
    /// The last token seen.
    token: i64,
    /// The start of the last release.
    released: Option<SystemTime>,
}

/// A worker that has just acquired the lock.
struct Grant {
    worker: usize,
    token: i64,
    at: SystemTime,
}

impl Story {
    async fn contend(&mut self) -> Result<()> {
        heading(
            1,
            &format!("Separate processes contend for the lock `{}`", worker::LOCK),
        );
        print_columns();
        for _ in 0..GRANTS {
            let grant = self.next_grant().await?;
            self.show(&grant).await?;
        }
        Ok(())
    }

    async fn kill_a_holder(&mut self) -> Result<()> {
        heading(
            2,
            &format!("The holder is killed (SIGKILL); its lease is {:?}", worker::LEASE),
        );
        let holder = self.fresh_grant().await?;
        self.show(&holder).await?;
        let killed_at = SystemTime::now();
        self.crew.kill(holder.worker).await?;
        let label = self.crew.label(holder.worker).to_owned();
        let Some(left) = self.look_up(&holder).await?.0 else {
            return Err(format!("{label} released the lock before it could be killed").into());
        };
        say(&format!(
            "{label} is dead; the document still names it, until {} at the latest",
            clock(left.until)
        ));

        let next = self.next_grant().await?;
        let waited = since(killed_at, next.at);
        let overdue = self.look_up(&next).await?.0.map(|taken| since(left.until, taken.since));
        self.show(&next).await?;
        let overdue = overdue.map_or_else(String::new, |overdue| {
            format!(", {} after the lease expired", millis(overdue))
        });
        let (label, tokens) = (self.crew.label(next.worker), tokens(holder.token, next.token));
        say(&format!(
            "{label} took over {:.2} s after the kill{overdue}; {tokens}",
            waited.as_secs_f64()
        ));
        Ok(())
    }

    async fn delete_the_document(&mut self) -> Result<()> {
        heading(3, "Another program deletes the document of the held lock");
        let holder = self.fresh_grant().await?;
        self.show(&holder).await?;
        let deleted_at = SystemTime::now();
        // The token is part of the filter, so that nobody else's lock is deleted if this process is slow.
        let document = doc! { "_id": worker::LOCK, "holders.token": holder.token };
        if self.collection.delete_one(document).await?.deleted_count == 0 {
            return Err("the holder had released the lock before its document could be deleted".into());
        }

        // The same change event notifies both, so either may be first to report it.
        let (mut lost, mut next) = (None, None);
        let ((lost_at, reason), next) = loop {
            match self.next_event().await? {
                (worker, Event::Lost { at, reason }) if worker == holder.worker => lost = Some((at, reason)),
                (worker, Event::Holds { token, at }) => next = Some(self.granted(worker, token, at)?),
                _ => {}
            }
            (lost, next) = match (lost, next) {
                (Some(lost), Some(next)) => break (lost, next),
                pending => pending,
            };
        };
        let (label, after) = (self.crew.label(holder.worker), millis(since(deleted_at, lost_at)));
        say(&format!(
            "lost() resolved in {label} {after} after the delete was sent: \"{reason}\""
        ));
        self.show(&next).await?;
        let (label, after) = (self.crew.label(next.worker), millis(since(deleted_at, next.at)));
        say(&format!(
            "{label} acquired it again {after} after the delete was sent; {}",
            tokens(holder.token, next.token)
        ));
        Ok(())
    }

    /// Waits for the next grant. A release in between is kept for the line that shows the grant.
    async fn next_grant(&mut self) -> Result<Grant> {
        loop {
            match self.next_event().await? {
                (worker, Event::Holds { token, at }) => return self.granted(worker, token, at),
                (worker, Event::Lost { reason, .. }) => say(&format!("{} lost it: {reason}", self.crew.label(worker))),
                _ => {}
            }
        }
    }

    /// Waits for the next grant that the holder surely still has, with the others in line behind it.
    async fn fresh_grant(&mut self) -> Result<Grant> {
        loop {
            let grant = self.next_grant().await?;
            sleep(LINE_UP).await;
            if since(grant.at, SystemTime::now()) < FRESH {
                return Ok(grant);
            }
        }
    }

    async fn next_event(&mut self) -> Result<(usize, Event)> {
        let (worker, event) = self.crew.next().await?;
        if let Event::Releases { at } = event {
            self.released = Some(at);
        }
        Ok((worker, event))
    }

    fn granted(&mut self, worker: usize, token: i64, at: SystemTime) -> Result<Grant> {
        if token <= self.token {
            let label = self.crew.label(worker);
            return Err(format!("{label} was given the token {token} after {}", self.token).into());
        }
        self.token = token;
        Ok(Grant { worker, token, at })
    }

    /// Prints the line of a grant.
    async fn show(&mut self, grant: &Grant) -> Result<()> {
        let (holder, waiting) = self.look_up(grant).await?;
        // From the call of the release in one process to the return of the acquire in another.
        let handed_over = self
            .released
            .take()
            .map_or_else(|| "-".to_owned(), |at| millis(since(at, grant.at)));
        let token = grant.token;
        match holder {
            Some(HolderInfo {
                host,
                pid,
                label,
                since,
                reason,
                ..
            }) => {
                let who = format!("{host}/{pid}/{}", label.unwrap_or_default());
                let (since, reason) = (clock(since), reason.unwrap_or_default());
                println!("   {who:<32}  {token}  {since:<12}  {reason:<8}  {waiting:>7}  {handed_over:>9}");
            }
            // Only if this process is much slower than the workers.
            None => println!(
                "   {:<32}  {token}  over before it could be looked up",
                self.crew.label(grant.worker)
            ),
        }
        Ok(())
    }

    /// Looks up the grant and the number of waiters in the lock's document.
    async fn look_up(&self, grant: &Grant) -> Result<(Option<HolderInfo>, usize)> {
        let Some(lock) = self.locks.inspect(worker::LOCK).await? else {
            return Ok((None, 0));
        };
        let holder = lock
            .holders
            .into_iter()
            .find(|holder| holder.token.as_i64() == grant.token);
        Ok((holder, lock.waiters.len()))
    }
}

fn heading(number: u32, text: &str) {
    println!("\n{number}. {text}\n");
}

fn print_columns() {
    let [who, token, since, reason, waiting, handed_over] = [
        "held by (host/pid/label)",
        "token",
        "since (UTC)",
        "reason",
        "waiting",
        "hand-over",
    ];
    println!("   {who:<32}  {token:<16}  {since:<12}  {reason:<8}  {waiting:>7}  {handed_over:>9}");
}

fn say(text: &str) {
    println!("   -> {text}");
}

fn tokens(before: i64, after: i64) -> String {
    format!("the token rose by {}", after - before)
}
