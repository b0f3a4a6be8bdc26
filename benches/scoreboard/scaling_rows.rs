//! The rows of `docs/scaling.md` about a thousand processes: measured with up to 256 clients in this program, and
//! extrapolated from these.

use std::{fmt, time::Duration};

use tokio::{task::JoinSet, time::sleep};
use watchlock::{Held, LockClient, locks::Mutex};
use watchlock_testkit::Cluster;

use crate::{
    Result,
    cost::{cost_of_writes, others_write},
    counters::{Commands, Observer},
    crowd::streams,
    load::many_clients,
    peer::Peer,
    scaling::line,
};

/// Numbers of clients, each with connections of its own.
const CLIENTS: [usize; 3] = [64, 128, 256];

/// Number of clients that the table is about.
const THOUSAND: f64 = 1_000.0;

/// Time for which commands are counted: a multiple of the pauses between renewals (6 s) and of a stream (4.75 s), nearly.
const COUNTED: Duration = Duration::from_secs(30);

/// Time for holders to see how busy the set is, to count each other, and for their streams to linger.
const SETTLING: Duration = Duration::from_secs(45);

/// What each of the clients does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doing {
    Hold,
    WaitAtALatch,
    Observe,
}

pub(crate) const ALL: [Doing; 3] = [Doing::Hold, Doing::WaitAtALatch, Doing::Observe];

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hold => "each hold a lock of their own",
            Self::WaitAtALatch => "wait at one latch",
            Self::Observe => "observe one election",
        })
    }
}

/// The cost of so many clients, while others write nothing, and while they write 500 times a second.
#[derive(Debug)]
pub(crate) struct Row {
    doing: Doing,
    clients: usize,
    quiet: Cost,
    busy: Cost,
    /// Additional microseconds of the server's processor for each write of others.
    tax: f64,
}

#[derive(Debug)]
struct Cost {
    streams: usize,
    commands: Commands,
    elapsed: Duration,
}

impl Cost {
    /// Without the drivers' monitoring and the writes of others.
    fn commands_a_second(&self) -> f64 {
        let counted = self.commands.all() - self.commands.monitoring() - self.commands.of("insert");
        counted as f64 / self.elapsed.as_secs_f64()
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (streams, commands) = (self.streams, self.commands_a_second());
        write!(f, "{streams} streams, {commands:.0} commands/s ({})", self.commands)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            doing,
            clients,
            quiet,
            busy,
            tax,
        } = self;
        write!(
            f,
            "{clients} clients that {doing}: on a quiet set {quiet}; at 500 foreign writes/s {busy}, {tax:.0} us more for \
             each of these writes"
        )
    }
}

/// Measures with more and more clients.
pub(crate) async fn rows(cluster: &Cluster, doing: Doing) -> Result<Vec<Row>> {
    let (observer, peer) = (Observer::new(cluster).await?, Peer::new(cluster).await?);
    // This makes the connections and the collection.
    cost_of_writes(cluster, &peer.driver).await?;
    let alone = cost_of_writes(cluster, &peer.driver).await?;
    let (mut clients, mut held, mut tasks) = (Vec::new(), Vec::new(), JoinSet::new());
    let mut rows = Vec::new();
    for count in CLIENTS {
        for locks in many_clients(cluster, count - clients.len()).await? {
            begin(doing, &locks, clients.len(), &mut held, &mut tasks).await?;
            clients.push(locks);
        }
        sleep(SETTLING).await;
        let quiet = cost(&observer, &peer).await?;
        let writing = others_write(&peer.driver);
        sleep(SETTLING).await;
        let busy = cost(&observer, &peer).await?;
        writing.abort();
        let beside = cost_of_writes(cluster, &peer.driver).await?;
        rows.push(Row {
            doing,
            clients: count,
            quiet,
            busy,
            tax: beside - alone,
        });
        if let Some(ended) = tasks.try_join_next() {
            return Err(format!("a client did not go on: {ended:?}").into());
        }
    }
    tasks.shutdown().await;
    drop(held);
    for locks in clients {
        locks.shutdown().await;
    }
    Ok(rows)
}

async fn begin(
    doing: Doing,
    locks: &LockClient,
    number: usize,
    held: &mut Vec<Held<Mutex>>,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    match doing {
        Doing::Hold => held.push(locks.mutex(format!("held {number}")).acquire().await?),
        Doing::WaitAtALatch => {
            let latch = locks.latch("gate", 1);
            tasks.spawn(async move { drop(latch.wait().await) });
        }
        Doing::Observe => {
            let mut leaders = locks.election("led").observe();
            leaders.next().await.transpose()?;
            tasks.spawn(async move { while leaders.next().await.is_some() {} });
        }
    }
    Ok(())
}

async fn cost(observer: &Observer, peer: &Peer) -> Result<Cost> {
    let (commands, elapsed) = observer.count_for(COUNTED).await?;
    let streams = streams(&peer.driver).await?;
    Ok(Cost {
        streams,
        commands,
        elapsed,
    })
}

/// Returns what lines through the rows say of a thousand clients.
pub(crate) fn extrapolated(rows: &[Row]) -> String {
    let of = |value: fn(&Row) -> f64| {
        let (at_none, each) = line(rows.iter().map(|row| (row.clients, value(row))));
        at_none + each * THOUSAND
    };
    let doing = rows.first().map(|row| row.doing.to_string()).unwrap_or_default();
    format!(
        "1,000 clients that {doing}, extrapolated: on a quiet set {:.0} streams, {:.0} commands/s; at 500 foreign writes/s \
         {:.0} streams, {:.0} commands/s, {:.0} us more for each of these writes",
        of(|row| row.quiet.streams as f64),
        of(|row| row.quiet.commands_a_second()),
        of(|row| row.busy.streams as f64),
        of(|row| row.busy.commands_a_second()),
        of(|row| row.tax)
    )
}
