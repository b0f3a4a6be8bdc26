//! `watchlock bench`: locks beside the raw driver commands that each needs at least, on the user's own server.
//!
//! Rounds of a lock and of the raw commands take turns, as the noise of a machine comes and goes.

use std::{
    io,
    process::ExitCode,
    time::{Duration, Instant},
};

use mongodb::bson::doc;
use serde::Serialize;
use tokio::time::sleep;
use watchlock::LockClient;

use crate::{
    arguments::Bench,
    connection::Connection,
    exit::{self, Failure, Outcome},
    ground::{Ground, asked, on_ground},
    measure::{Compared, claimed_and_freed, upserted_and_deleted},
    messages,
    table::{Column, table},
    terminal,
    verify::wakeups::{Loss, handed_over, hop, hopped, lost_one},
};

/// Number of measurements, which share the time.
const PARTS: u32 = 5;

/// Rounds that are counted at least; half as many before them are thrown away, as connections are made and streams
/// opened. And the most, which are more than a median needs.
const LEAST: usize = 10;
const MOST: usize = 5_000;

/// Documents to claim.
const DOCUMENTS: i32 = 100;

/// Time after which a holder listens for its loss by a stream of its own.
const LISTENING: Duration = Duration::from_millis(1_200);

/// A comparison. The names are part of the `--json` interface.
#[derive(Debug, Serialize)]
struct Row {
    key: &'static str,
    what: &'static str,
    beside: &'static str,
    unit: &'static str,
    lock: f64,
    raw: Option<f64>,
    ratio: Option<f64>,
    rounds: usize,
}

#[derive(Debug, Serialize)]
struct Measured {
    watchlock: &'static str,
    seconds: f64,
    rows: Vec<Row>,
}

pub(crate) async fn bench(connection: &Connection, arguments: Bench) -> Outcome {
    let begun = Instant::now();
    let share = Duration::from_secs(arguments.seconds) / PARTS;
    let rows = match on_ground(connection, async |ground| measure(ground, share).await).await? {
        Ok(rows) => rows,
        Err(signal) => return Ok(exit::ended_by(signal)),
    };
    let measured = Measured {
        watchlock: env!("CARGO_PKG_VERSION"),
        seconds: begun.elapsed().as_secs_f64(),
        rows,
    };
    let table = || shown(&measured.rows, terminal::columns(io::stdout()));
    arguments.output.answer(&measured, table, ExitCode::SUCCESS)
}

/// Draws the table.
fn shown(rows: &[Row], within: Option<usize>) -> String {
    let columns = [
        Column::text("WHAT", 20),
        Column::whole("WATCHLOCK"),
        Column::whole("RAW"),
        Column::whole("RATIO"),
        Column::text("BESIDE", 20),
    ];
    let cells = rows.iter().map(|row| {
        let value = |value: f64| format!("{value:.2} ms");
        let or_none = |shown: Option<String>| shown.unwrap_or_else(|| "-".to_owned());
        [
            row.what.to_owned(),
            value(row.lock),
            or_none(row.raw.map(value)),
            or_none(row.ratio.map(|ratio| format!("{ratio:.2}"))),
            row.beside.to_owned(),
        ]
    });
    table(columns, &cells.collect::<Vec<_>>(), [0, 1, 3, 2, 4], within)
}

async fn measure(ground: &Ground<'_>, share: Duration) -> Result<Vec<Row>, Failure> {
    let _alive = ground.begin().await??;
    let (first, second) = (ground.client().await?, ground.client().await?);
    Ok(vec![
        Row::of(
            ("uncontended", "acquire, release", "findOneAndUpdate + deleteOne"),
            taken(ground, &first, share, |_| "uncontended".to_owned()).await?,
        ),
        Row::of(
            ("fresh", "the same, of a new name", "upsert + deleteOne"),
            taken(ground, &first, share, |round| format!("fresh {round}")).await?,
        ),
        Row::of(
            ("handoff", "hand-over to a waiter", "raw hop"),
            beside_hops(ground, share, async |round| {
                let lock = format!("handed over {round}");
                Ok(handed_over(&first, &second, &lock).await??)
            })
            .await?,
        ),
        Row::of(
            ("lost", "break to lost()", "raw hop"),
            lost(ground, &first, &second, share).await?,
        ),
        Row::of(
            ("claim", "claim, release", "findOneAndUpdate + updateOne"),
            claimed(ground, &first, share).await?,
        ),
    ])
}

/// Returns the rounds of a part, and which of them count: a few at least, and then as many as there is time for.
fn rounds(share: Duration) -> impl Iterator<Item = (usize, bool)> {
    let (begun, warm_up) = (Instant::now(), LEAST / 2);
    let goes_on = move |round: &usize| *round < warm_up + LEAST || begun.elapsed() < share;
    (0..MOST)
        .take_while(goes_on)
        .map(move |round| (round, round >= warm_up))
}

impl Row {
    fn of((key, what, beside): (&'static str, &'static str, &'static str), compared: Compared) -> Self {
        let Compared { raw, lock } = &compared;
        let is_compared = raw.len() > 0;
        Self {
            key,
            what,
            beside,
            unit: "ms",
            lock: lock.median(),
            raw: is_compared.then(|| raw.median()),
            ratio: is_compared.then(|| compared.ratio()),
            rounds: lock.len(),
        }
    }
}

/// Takes and frees a lock that nobody else wants.
async fn taken(
    ground: &Ground<'_>,
    locks: &LockClient,
    share: Duration,
    name: impl Fn(usize) -> String,
) -> Result<Compared, Failure> {
    messages::say("measuring: free locks ...");
    let mut compared = Compared::default();
    for (round, counts) in rounds(share) {
        let raw = asked(upserted_and_deleted(ground.collection("raw"), name(round))).await?;
        let mutex = locks.mutex(name(round));
        let begun = Instant::now();
        drop(mutex.acquire().await?.release().await);
        compared.push(counts, Some(raw), begun.elapsed());
    }
    Ok(compared)
}

/// Measures something beside raw hops, as far as there are any.
async fn beside_hops(
    ground: &Ground<'_>,
    share: Duration,
    measured: impl AsyncFn(usize) -> Result<Duration, Failure>,
) -> Result<Compared, Failure> {
    messages::say("measuring: wake-ups ...");
    let mut open = hop(ground).await?.ok();
    let mut compared = Compared::default();
    for (round, counts) in rounds(share) {
        let mut raw = None;
        if let Some(hop) = open.take()
            && let Some((hop, latency)) = hopped(hop).await?
        {
            (open, raw) = (Some(hop), Some(latency));
        }
        let lock = measured(round).await?;
        compared.push(counts, raw, lock);
    }
    Ok(compared)
}

async fn lost(
    ground: &Ground<'_>,
    holder: &LockClient,
    other: &LockClient,
    share: Duration,
) -> Result<Compared, Failure> {
    // As long as it is held, the holder's stream stays open.
    let held = holder.mutex("listening").acquire().await?;
    sleep(LISTENING).await;
    let compared = beside_hops(ground, share, async |round| {
        let lock = format!("lost {round}");
        let lost = lost_one(ground, holder, other, &lock, Loss::Broken).await?;
        lost.ok_or_else(|| Failure::internal("a holder did not learn that its lock was broken"))
    });
    let compared = compared.await;
    drop(held.release().await);
    compared
}

async fn claimed(ground: &Ground<'_>, locks: &LockClient, share: Duration) -> Result<Compared, Failure> {
    messages::say("measuring: claims ...");
    let (raw, documents) = (ground.collection("raw"), ground.collection("documents"));
    for collection in [&raw, &documents] {
        let pending = (0..DOCUMENTS).map(|id| doc! { "_id": id, "state": "pending", "payload": "x".repeat(100) });
        let (collection, pending) = (collection.clone(), pending.collect::<Vec<_>>());
        asked(async move { collection.insert_many(pending).await }).await?;
    }
    let documents = locks.documents(documents);
    let mut compared = Compared::default();
    for (_, counts) in rounds(share) {
        let bare = asked(claimed_and_freed(raw.clone())).await?;
        let begun = Instant::now();
        let held = documents.claim(doc! { "state": "pending" }).await?;
        drop(held.release().await);
        compared.push(counts, Some(bare), begun.elapsed());
    }
    Ok(compared)
}
