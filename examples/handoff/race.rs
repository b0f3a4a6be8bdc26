//! The last scene: the duration of a hand-over, and its comparisons.
//!
//! Every number is the time from a call in one client to a return in another, each client with its own connections.
//! Hand-overs and raw hops alternate, so that other activity on the machine affects both alike.

use std::time::{Duration, Instant};

use futures::{StreamExt, future::try_join_all};
use mongodb::{
    Collection,
    bson::{Document, doc},
    change_stream::{ChangeStream, event::ChangeStreamEvent},
    error::{ErrorKind, WriteFailure},
    options::{CollectionOptions, WriteConcern},
};
use tokio::{sync::mpsc, time::sleep};
use watchlock::{Held, LockClient, locks};
use watchlock_testkit::stage::{Result, Server, chance};

use crate::locks;

type Events = ChangeStream<ChangeStreamEvent<Document>>;

const LOCK: &str = "the-baton";

/// Rounds that are not counted: connections are made, and the server gets to know the statements.
const WARM_UP: usize = 20;

const ROUNDS: usize = 200;

/// Number of hand-overs of polling locks. All at once, as one after the other would take minutes; they ask so seldom
/// that they do not disturb each other.
const POLLING_ROUNDS: usize = 100;

/// Shortest and longest sleep of the waiters of a polling lock: the default of the .NET library DistributedLock.
const POLL: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(800));

/// Pause before each measurement: everything before has been answered, and every stream waits for its next event.
const SETTLE: Duration = Duration::from_millis(3);

/// Limit for a waiter to join the queue.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10);

/// Measures all three, and prints the table.
pub(crate) async fn run(server: Server) -> Result<()> {
    println!("\n4. From release() in one client to acquire() in another\n");
    let mut hop = Hop::open(&server).await?;
    let mut relay = Relay::start(&server).await?;
    let (mut hops, mut hand_overs) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + ROUNDS {
        hops.push(hop.once().await?);
        let took;
        (relay, took) = relay.hand_over().await?;
        hand_overs.push(took);
    }
    relay.finish().await?;
    let polls = polling(&server).await?;
    print_table([
        (
            "raw change-stream hop (update sent to event received)",
            hops.split_off(WARM_UP),
        ),
        ("watchlock", hand_overs.split_off(WARM_UP)),
        ("a lock that polls every 10 to 800 ms", polls),
    ]);
    Ok(())
}

/// A majority write in one client and its event in another: no lock that a change stream hands over can be faster.
struct Hop {
    sender: Collection<Document>,
    received: mpsc::UnboundedReceiver<Result<(i32, Instant)>>,
    count: i32,
}

impl Hop {
    async fn open(server: &Server) -> Result<Self> {
        let sender = majority(server, "hops").await?;
        sender.insert_one(doc! { "_id": LOCK, "count": 0 }).await?;
        let receiver = majority(server, "hops").await?;
        let pipeline = [doc! { "$match": { "documentKey._id": LOCK } }];
        let stream = receiver.watch().pipeline(pipeline).await?;
        let (tell, received) = mpsc::unbounded_channel();
        tokio::spawn(receive(stream, tell));
        Ok(Self {
            sender,
            received,
            count: 0,
        })
    }

    async fn once(&mut self) -> Result<Duration> {
        sleep(SETTLE).await;
        self.count += 1;
        let change = doc! { "$set": { "count": self.count } };
        let sent_at = Instant::now();
        self.sender.update_one(doc! { "_id": LOCK }, change).await?;
        match self.received.recv().await {
            Some(Ok((count, at))) if count == self.count => Ok(at - sent_at),
            Some(Err(error)) => Err(error),
            _ => Err("the change stream skipped an event".into()),
        }
    }
}

/// Sends the count in each event and the time of its arrival, until the first error.
async fn receive(mut stream: Events, tell: mpsc::UnboundedSender<Result<(i32, Instant)>>) {
    while let Some(event) = stream.next().await {
        let at = Instant::now();
        let failed = event.is_err();
        let told = event.map(|event| (count(event), at)).map_err(Into::into);
        if tell.send(told).is_err() || failed {
            break;
        }
    }
}

fn count(event: ChangeStreamEvent<Document>) -> i32 {
    let fields = event.update_description.map(|update| update.updated_fields);
    fields
        .and_then(|fields| fields.get_i32("count").ok())
        .unwrap_or_default()
}

/// Two clients that hand a lock to each other, and one observer, each on its own connections.
struct Relay {
    holder: LockClient,
    waiter: LockClient,
    spectator: LockClient,
    held: Held<locks::Mutex>,
}

impl Relay {
    async fn start(server: &Server) -> Result<Self> {
        let [holder, waiter, spectator] = [
            locks(server, |builder| builder.label("left")).await?,
            locks(server, |builder| builder.label("right")).await?,
            locks(server, |builder| builder.label("spectator")).await?,
        ];
        let held = holder.mutex(LOCK).acquire().await?;
        Ok(Self {
            holder,
            waiter,
            spectator,
            held,
        })
    }

    /// Hands the lock over and swaps the roles.
    async fn hand_over(self) -> Result<(Self, Duration)> {
        let Self {
            holder,
            waiter,
            spectator,
            held,
        } = self;
        let mutex = waiter.mutex(LOCK);
        let waiting = tokio::spawn(async move { mutex.acquire().await.map(|handle| (handle, Instant::now())) });
        until_in_line(&spectator).await?;
        sleep(SETTLE).await;
        let released_at = Instant::now();
        held.release().await?;
        let (held, acquired_at) = waiting.await??;
        Ok((
            Self {
                holder: waiter,
                waiter: holder,
                spectator,
                held,
            },
            acquired_at - released_at,
        ))
    }

    async fn finish(self) -> Result<()> {
        self.held.release().await?;
        for locks in [self.holder, self.waiter] {
            locks.shutdown().await;
        }
        Ok(())
    }
}

/// Waits until there is a waiter in the server's queue.
async fn until_in_line(spectator: &LockClient) -> Result<()> {
    let deadline = Instant::now() + QUEUE_PATIENCE;
    while spectator
        .inspect(LOCK)
        .await?
        .is_none_or(|lock| lock.waiters.is_empty())
    {
        if Instant::now() > deadline {
            return Err(format!("no waiter in the queue after {QUEUE_PATIENCE:?}").into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Measures hand-overs of a lock whose waiters try, sleep, and try again.
async fn polling(server: &Server) -> Result<Vec<Duration>> {
    let (holder, waiter) = (majority(server, "polled").await?, majority(server, "polled").await?);
    let rounds = (0..POLLING_ROUNDS).map(|round| {
        let lock = doc! { "_id": format!("lock-{round}") };
        poll_once(holder.clone(), waiter.clone(), lock)
    });
    try_join_all(rounds).await
}

async fn poll_once(holder: Collection<Document>, waiter: Collection<Document>, lock: Document) -> Result<Duration> {
    holder.insert_one(&lock).await?;
    let wanted = lock.clone();
    let waiting = tokio::spawn(async move {
        while !try_insert(&waiter, &wanted).await? {
            sleep(chance::between(POLL.0, POLL.1)).await;
        }
        Ok::<_, mongodb::error::Error>(Instant::now())
    });
    // At any point of the waiter's sleep, with equal probability.
    sleep(chance::between(POLL.1, 2 * POLL.1)).await;
    let released_at = Instant::now();
    holder.delete_one(lock).await?;
    Ok(waiting.await?? - released_at)
}

/// Returns whether the lock's document could be inserted; it can't while another one exists.
async fn try_insert(locks: &Collection<Document>, lock: &Document) -> mongodb::error::Result<bool> {
    match locks.insert_one(lock).await {
        Ok(_) => Ok(true),
        Err(error) if is_duplicate(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == 11000)
}

/// Returns a collection through its own client, whose writes are as durable as a lock's.
async fn majority(server: &Server, name: &str) -> Result<Collection<Document>> {
    let options = CollectionOptions::builder()
        .write_concern(WriteConcern::majority())
        .build();
    Ok(server.connect().await?.collection_with_options(name, options))
}

fn print_table(rows: [(&str, Vec<Duration>); 3]) {
    println!(
        "   {:<53}  {:>6}  {:>9}  {:>9}  {:>8}",
        "", "rounds", "p50", "p99", "to hop"
    );
    let mut hop = None;
    for (name, mut samples) in rows {
        samples.sort_unstable();
        let (median, worst) = (percentile(&samples, 50), percentile(&samples, 99));
        let ratio = median / *hop.get_or_insert(median);
        println!(
            "   {name:<53}  {:>6}  {median:>6.2} ms  {worst:>6.2} ms  {ratio:>6.2} x",
            samples.len()
        );
    }
}

/// Returns a percentile in milliseconds, by nearest rank.
fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map_or(0.0, |sample| sample.as_secs_f64() * 1e3)
}
