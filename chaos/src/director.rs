//! A whole run: bursts of faults, pauses in which everything has to recover, and the judgement.

use std::{fs, path::Path, sync::Arc, time::Duration};

use futures::future::join_all;
use mongodb::{
    bson::{DateTime, Document, doc},
    options::WriteConcern,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use watchlock_testkit::{Cluster, clock};

use crate::{
    Result,
    client::{Actor, Ending, LEASE, Options, Plan, Way, connect},
    clock::wall_ahead,
    fault::NODES,
    gauge,
    history::{HISTORY, History, JOURNAL, SERVERS},
    journal::{Note, SLOW},
    judge::{Case, PROBE, growth},
    locks::{ALL, CROSSED, FEW_PERMITS, JOBS, Kind, Share},
    oplog::Reader,
    outcome::{self, Evidence, Outcome},
    record::Log,
    schedule::Play,
    stage::Stage,
    streams::Stream,
    timeline,
};

/// The database of every run.
const DATABASE: &str = "chaos";

/// Maximum wait of the director for a lock when the cluster is whole: longer than all clients' leases together.
const PROBE_PATIENCE: Duration = Duration::from_secs(60);

/// Maximum time for change streams of gone clients to stay open: the server checks the connection of a waiting
/// `getMore` only now and then.
const STREAM_PATIENCE: Duration = Duration::from_secs(30);

/// Time without the primary after which the others elect another.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(3);

/// Time for which clients contend at the end without any fault: they have to come to rest, and then to be served in
/// time.
const CALM: Duration = Duration::from_secs(12);

/// Pause between two writes of the director that show whether machine and servers have time.
const PULSE: Duration = Duration::from_millis(100);

/// Maximum number of violations whose events are written to a file.
const TOLD: usize = 10;

/// Time of normal use before each burst of a soak.
const EVERYDAY: Duration = Duration::from_secs(20);

/// Settings of a soak's servers. A dead client's stream stays open at the server until its session is over: half an hour,
/// unless told otherwise; with less than this the driver would use no session twice.
const SOAKING: [&str; 3] = [
    "--setParameter=localLogicalSessionTimeoutMinutes=3",
    "--setParameter=logicalSessionRefreshMillis=10000",
    "--setParameter=ttlMonitorSleepSecs=5",
];

/// Runs and judges. Returns whether no promise was broken.
pub(crate) async fn run(play: Play) -> Result<bool> {
    if play.folder.exists() {
        fs::remove_dir_all(&play.folder)?;
    }
    fs::create_dir_all(&play.folder)?;
    println!("seed {}: the cluster starts", play.seed);
    let cluster = Cluster::builder()
        .replica_set(NODES)
        .proxied(true)
        // Without the library those faults are missed, and the outcome says so.
        .clocks(clock::library().is_some())
        .election_timeout(ELECTION_TIMEOUT)
        .args(SOAKING.into_iter().filter(|_| play.soaks))
        .start()
        .await?;
    let jobs = connect(&cluster.uri(), DATABASE, "director")
        .await?
        .collection::<Document>(JOBS);
    let documents = ALL.iter().filter(|lock| lock.kind == Kind::Document);
    jobs.insert_many(documents.map(|lock| doc! { "_id": lock.name, "count": 0_i64 }))
        .await?;

    let journal = Log::open(&play.folder.join(JOURNAL))?;
    let probe = Arc::new(
        Actor::start(Options {
            uri: cluster.uri(),
            database: DATABASE.to_owned(),
            label: "director".to_owned(),
            seed: play.seed,
            history: play.folder.join(format!("director{HISTORY}")),
            ignores_loss: false,
            soaks: play.soaks,
        })
        .await?,
    );
    let folder = play.folder.clone();
    let stage = Arc::new(Stage::new(cluster, DATABASE.to_owned(), journal, play, probe.clone()));
    perform(&stage, &probe).await?;
    drop((stage, probe));
    judge(&folder)
}

async fn perform(stage: &Arc<Stage>, probe: &Actor) -> Result<()> {
    let play = &stage.play;
    let servers = Log::open(&play.folder.join(SERVERS))?;
    let mut reader = Reader::new(DATABASE);
    let clock = || {
        stage.note(Note::Clock {
            ahead: i64::try_from(wall_ahead()).unwrap_or(0),
        })
    };
    clock();
    let pulse = tokio::spawn(feel_pulse(stage.clone()));
    stage.fill().await?;
    stage.await_clients().await;
    let gauging = play.soaks.then(|| tokio::spawn(note_readings(stage.clone())));

    let start = Instant::now();
    let mut faults = 0;
    for number in 0.. {
        if play.soaks {
            sleep(EVERYDAY).await;
        }
        let burst = play.burst(number);
        println!("burst {number}, after {} s\n{burst}", start.elapsed().as_secs());
        let inflicted = burst.faults.into_iter().map(|planned| {
            faults += 1;
            let (stage, fault) = (stage.clone(), faults);
            tokio::spawn(async move { stage.inflict(fault, planned).await })
        });
        for inflicted in inflicted.collect::<Vec<_>>() {
            inflicted.await?;
        }
        stage.make_whole().await?;
        look(probe).await;
        match probe.deadlocks().await {
            Ok(texts) => texts.into_iter().for_each(|text| stage.note(Note::Deadlock { text })),
            Err(error) => stage.note(Note::Trouble {
                text: format!("deadlocks can't be listed: {error}"),
            }),
        }
        clock();
        read(stage, &mut reader, &servers).await?;
        if start.elapsed() > play.lasts {
            break;
        }
    }

    let whole_since = DateTime::now().timestamp_millis();
    gauging.inspect(tokio::task::JoinHandle::abort);
    stage.note(Note::Calm);
    sleep(CALM).await;
    stage.note(Note::Dismissing);
    stage.dismiss().await?;
    // The remains of killed clients, and of holds that were lost.
    sleep(LEASE + Duration::from_secs(1)).await;
    pulse.abort();
    probe.end().await;
    stage.note(Note::Silence);
    clock();
    read(stage, &mut reader, &servers).await?;
    left_streams(stage, whole_since).await
}

/// Writes again and again, as a client that no fault strikes, and notes slow answers.
async fn feel_pulse(stage: Arc<Stage>) -> Result<()> {
    let pulses = stage.cluster.client().await?.database(DATABASE);
    let pulses = pulses.collection::<Document>("pulses");
    loop {
        let start = Instant::now();
        let write = pulses
            .update_one(doc! { "_id": 0 }, doc! { "$inc": { "count": 1 } })
            .upsert(true)
            .write_concern(WriteConcern::majority());
        let written = write.await;
        if written.is_err() || start.elapsed() > SLOW {
            let millis = u64::try_from(start.elapsed().as_millis())?;
            stage.note(Note::Slow { millis });
        }
        sleep(PULSE).await;
    }
}

/// Notes what the primary uses, again and again.
async fn note_readings(stage: Arc<Stage>) -> Result<()> {
    let primary = stage.cluster.primary().await?;
    let database = stage.cluster.node_client(primary).await?.database(DATABASE);
    loop {
        let figures = gauge::of_server(&database).await?;
        stage.note(Note::Reading { figures });
        sleep(gauge::PAUSE).await;
    }
}

/// Acquires every lock, all at the same time: whole, but for semaphores, of which the smaller number may be in force.
async fn look(probe: &Actor) {
    let (_never, stopping) = watch::channel(false);
    let looks = ALL.into_iter().chain(CROSSED).map(|lock| {
        let share = match lock.kind {
            Kind::Semaphore => Share::permits(FEW_PERMITS),
            Kind::RwLock => Share::writer(),
            kind => Share::whole(kind),
        };
        let plan = Plan {
            parts: vec![(lock.name, share)],
            way: Way::Waits(PROBE_PATIENCE),
            hold: Duration::ZERO,
            ending: Ending::Released,
        };
        let mut stopping = stopping.clone();
        async move { probe.operate(PROBE, plan, &mut stopping).await }
    });
    join_all(looks).await;
}

async fn read(stage: &Stage, reader: &mut Reader, servers: &Log) -> Result<()> {
    let primary = stage.cluster.primary().await?;
    reader.read(&stage.cluster.node_client(primary).await?, servers).await
}

/// Notes the change streams that are left although all clients have gone. Nothing has been disturbed since
/// `whole_since`, by the servers' clock.
async fn left_streams(stage: &Stage, whole_since: i64) -> Result<()> {
    let deadline = Instant::now() + STREAM_PATIENCE;
    loop {
        // A client that was killed or cut off between two reads of its stream can't cancel the stream at the server.
        // And the driver cancels it at the primary, also if the stream is on a node that has stepped down and goes on
        // there. Their servers close these streams when the session is over. All others must be closed by the clients
        // that opened them.
        let primary = stage.cluster.primary().await?;
        let is_abandoned = |stream: &Stream| {
            let since = stream.idle_since;
            since.is_some_and(|since| since < whole_since || stream.node != primary)
        };
        let (abandoned, open): (Vec<Stream>, Vec<Stream>) = stage.streams().await?.into_iter().partition(is_abandoned);
        if open.is_empty() || Instant::now() > deadline {
            for Stream {
                node,
                collection,
                idle_since,
                of,
                ..
            } in open
            {
                let idle = idle_since.map_or("being read".to_owned(), |since| {
                    format!("idle since {} ms after the last fault", since - whole_since)
                });
                let text = format!("a change stream on `{collection}` is open on node {node} {of}, {idle}");
                stage.note(Note::Remains { text });
            }
            stage.note(Note::Abandoned {
                streams: abandoned.len(),
            });
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Judges the records in a folder, and prints the result. Returns whether no promise was broken.
pub(crate) fn judge(folder: &Path) -> Result<bool> {
    let history = History::read(folder)?;
    let case = Case::new(&history);
    let (violations, judged) = case.judge();
    for (number, violation) in violations.iter().take(TOLD).enumerate() {
        let told = timeline::tell(&case, violation);
        fs::write(folder.join(format!("violation-{number}.txt")), told)?;
    }
    let growth = growth::verdicts(&history);
    let evidence = Evidence::of(&history, &violations, judged, &growth);
    fs::write(folder.join(outcome::FILE), serde_json::to_string(&evidence)?)?;
    let outcome = Outcome {
        evidence: &evidence,
        violations: &violations,
        growth: &growth,
        folder,
    };
    println!("{outcome}");
    Ok(violations.is_empty())
}
