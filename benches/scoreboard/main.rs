//! The cost of a lock beside the raw driver commands it is made of, measured in the same run.
//!
//! `cargo bench --bench scoreboard` starts its own servers, prints a table and writes `scoreboard.json` to the target
//! directory. A number beyond its bound is shown and is no failure: the machine may be busy.
//!
//! `cargo bench --bench scoreboard -- one_node` measures a part of it, which is then not written. The parts are
//! `allocations`, `one_node`, `distinct`, `three_nodes`, `standalone`, `contention`, `inside`, `crowd`, `fleet`, `scaling`
//! and `steady_state`.

mod allocations;
mod board;
mod claims;
mod cost;
mod counters;
mod crowd;
mod fleet;
mod inside;
mod latency;
mod load;
#[path = "../../cli/src/measure.rs"]
mod measure;
mod peer;
mod scaling;
mod throughput;

use std::{
    error::Error,
    time::{Duration, Instant},
};

use board::Board;
use cost::Beside;
use load::RENEWAL_ROUNDS;
use measure::{Compared, Samples};
use peer::LogReader;
use watchlock_testkit::Cluster;

/// An error ends the run: a measurement on a server that does not answer has nothing to save.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Number of rounds of one comparison on one node, where a round takes a few milliseconds.
const ROUNDS_RS1: usize = 500;

/// Number of rounds on three nodes, where every write waits for another node.
const ROUNDS_RS3: usize = 300;

/// Number of rounds on a standalone server, where the waiter waits for up to 100 ms each time.
const ROUNDS_POLLING: usize = 100;

/// Number of rounds of contention, in turns with clients that poll.
const ROUNDS_CONTENDED: u32 = 3;

/// Number of rounds with a holder that dies, which take a lease each.
const ROUNDS_EXPIRY: usize = 15;

const PARTS: [&str; 11] = [
    "allocations",
    "one_node",
    "distinct",
    "three_nodes",
    "standalone",
    "contention",
    "inside",
    "crowd",
    "fleet",
    "scaling",
    "steady_state",
];

#[tokio::main]
async fn main() -> Result<()> {
    // `cargo test --all-targets` runs benches too, without this argument and without the patience.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("the scoreboard is measured by `cargo bench --bench scoreboard`");
        return Ok(());
    }
    let parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        return Err(format!(
            "`{unknown}` is no part of the scoreboard; the parts are {}",
            PARTS.join(", ")
        )
        .into());
    }
    let begun = Instant::now();
    let mut board = Board::default();
    for part in PARTS {
        if !parts.is_empty() && parts.iter().all(|wanted| wanted != part) {
            continue;
        }
        match part {
            "allocations" => allocations(&mut board).await?,
            "one_node" => one_node(&mut board).await?,
            "distinct" => distinct(&mut board).await?,
            "three_nodes" => three_nodes(&mut board).await?,
            "standalone" => standalone(&mut board).await?,
            "contention" => contention(&mut board).await?,
            "inside" => inside(&mut board).await?,
            "crowd" => crowd(&mut board).await?,
            "fleet" => fleet(&mut board).await?,
            "scaling" => scaling(&mut board).await?,
            _ => steady_state(&mut board).await?,
        }
    }
    println!("{board}\n\nmeasured in {:.0} s", begun.elapsed().as_secs_f64());
    // A part must not be taken for the whole.
    if parts.is_empty() {
        println!("written to {}", board.save()?.display());
    }
    Ok(())
}

async fn allocations(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "what is allocated").await?;
    let (lock, raw) = allocations::compared(&cluster).await?;
    let from = format!("{lock} / {raw} of two raw findOneAndUpdate");
    board.enter(board::ALLOCATIONS, lock.times / raw.times, from);
    Ok(())
}

async fn distinct(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "locks of their own").await?;
    let (locks, pairs) = throughput::distinct(&cluster).await?;
    let from = format!("{locks} / raw pairs: {pairs}");
    board.enter(board::DISTINCT, locks.per_second / pairs.per_second, from.clone());
    board.enter(board::DISTINCT_CPU, locks.server / pairs.server, from);
    Ok(())
}

async fn one_node(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "one node").await?;
    let _reader = LogReader::start(&cluster).await?;
    // First, as no stream of a lock client is open yet.
    let uncontended = latency::taken(&cluster, ROUNDS_RS1, |_| "free".to_owned()).await?;
    board.compare(board::UNCONTENDED_RS1, &uncontended, "findOneAndUpdate + deleteOne");
    let fresh = latency::taken(&cluster, ROUNDS_RS1, |round| format!("invoice {round}")).await?;
    board.compare(board::FRESH_RS1, &fresh, "upsert + deleteOne");
    let handoff = latency::handoff(&cluster, ROUNDS_RS1).await?;
    board.compare(board::HANDOFF_RS1, &handoff, "hop");
    let (lost, breaking) = latency::lost(&cluster, ROUNDS_RS1).await?;
    board.compare(board::LOST_RS1, &lost, "hop");
    let deleted = latency::lost_by_delete(&cluster, ROUNDS_RS1).await?;
    board.compare(board::LOST_BY_DELETE_RS1, &deleted, "deletion to its event");
    let rw_lock = latency::rw_lock_handoff(&cluster, ROUNDS_RS1).await?;
    board.compare(board::RW_LOCK_RS1, &rw_lock, "hop");
    let semaphore = latency::semaphore_handoff(&cluster, ROUNDS_RS1).await?;
    board.compare(board::SEMAPHORE_RS1, &semaphore, "hop");
    let election = latency::election_failover(&cluster, ROUNDS_RS1).await?;
    board.compare(board::ELECTION_RS1, &election, "hop");
    let claim = claims::claim(&cluster, ROUNDS_RS1).await?;
    board.compare(board::CLAIM_RS1, &claim, "findOneAndUpdate + updateOne");
    let done = claims::claim_done(&cluster, ROUNDS_RS1).await?;
    board.compare(board::CLAIM_DONE, &done, "findOneAndUpdate + updateOne");
    let (many, one) = claims::claim_many(&cluster).await?;
    let from = format!("{many:.0} documents/s, 16 at a time / {one:.0}, one at a time");
    board.enter(board::CLAIM_MANY, many / one, from);
    let expiry = latency::expiry(&cluster, ROUNDS_EXPIRY).await?;
    board.enter(board::EXPIRY, expiry.median(), expiry.to_string());

    board.note("raw hop, one node", &handoff.raw);
    board.note("hand-over, one node", &handoff.lock);
    board.note("readers-writer lock, one node", &rw_lock.lock);
    board.note("semaphore, one node", &semaphore.lock);
    board.note("election, one node", &election.lock);
    board.note("raw findOneAndUpdate + updateOne, one node", &claim.raw);
    board.note("claim + release of a document, one node", &claim.lock);
    board.note("claim + update and release of a document, one node", &done.lock);
    board.note("raw update, one node", &breaking.raw);
    board.note("break_lock, one node", &breaking.lock);
    board.note("raw hop beside it", &lost.raw);
    board.note("break_lock to lost(), one node", &lost.lock);
    board.note("raw findOneAndUpdate + deleteOne, one node", &uncontended.raw);
    board.note("acquire + release, one node", &uncontended.lock);
    Ok(())
}

async fn three_nodes(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(3), "three nodes").await?;
    let uncontended = latency::taken(&cluster, ROUNDS_RS3, |_| "free".to_owned()).await?;
    board.compare(board::UNCONTENDED_RS3, &uncontended, "findOneAndUpdate + deleteOne");
    let handoff = latency::handoff(&cluster, ROUNDS_RS3).await?;
    board.compare(board::HANDOFF_RS3, &handoff, "hop");

    board.note("raw hop, three nodes", &handoff.raw);
    board.note("hand-over, three nodes", &handoff.lock);
    board.note("raw findOneAndUpdate + deleteOne, three nodes", &uncontended.raw);
    board.note("acquire + release, three nodes", &uncontended.lock);
    Ok(())
}

async fn standalone(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::standalone(), "a standalone").await?;
    let uncontended = latency::taken(&cluster, ROUNDS_RS1, |_| "free".to_owned()).await?;
    board.compare(
        board::UNCONTENDED_STANDALONE,
        &uncontended,
        "findOneAndUpdate + deleteOne",
    );
    let polling = latency::polling_handoff(&cluster, ROUNDS_POLLING).await?;
    board.enter(board::POLLING, polling.median(), polling.to_string());
    let contended = throughput::contended(&cluster, load::many_clients(&cluster, 32).await?).await?;
    board.enter(board::POLLING_RATE, contended.per_second(), contended.to_string());
    Ok(())
}

async fn contention(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "32 clients in contention").await?;
    let (mut rates, mut polled_rates, mut costs) = (0.0, 0.0, (0.0, 0.0));
    let (mut commands, mut getmores) = (0.0, 0.0);
    for _ in 0..ROUNDS_CONTENDED {
        let polled = throughput::polled(&cluster, 32).await?;
        let contended = throughput::contended(&cluster, load::many_clients(&cluster, 32).await?).await?;
        let two = throughput::contended(&cluster, load::many_clients(&cluster, 2).await?).await?;
        board.remark(format!(
            "32 clients in contention: {:.0} locks/s, {contended}",
            contended.per_second()
        ));
        board.remark(format!(
            "32 clients that poll: {:.0} locks/s, {polled}",
            polled.per_second()
        ));
        commands += contended.commands_each() / f64::from(ROUNDS_CONTENDED);
        getmores += contended.getmores_each() / f64::from(ROUNDS_CONTENDED);
        rates += contended.per_second();
        polled_rates += polled.per_second();
        costs = (costs.0 + contended.server_millis(), costs.1 + two.server_millis());
    }
    let from =
        format!("{rates:.0} locks/s / {polled_rates:.0} of 32 clients that poll, sums of {ROUNDS_CONTENDED} rounds");
    board.enter(
        board::COMMANDS_32,
        commands,
        format!("means of {ROUNDS_CONTENDED} rounds"),
    );
    board.enter(board::GETMORES_32, getmores, String::from("(the same rounds)"));
    board.enter(board::CONTENDED, rates / polled_rates, from);
    let from = format!("{:.2} ms of the server's processor / {:.2} ms, sums", costs.0, costs.1);
    board.enter(board::CPU_32, costs.0 / costs.1, from);
    Ok(())
}

async fn inside(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "50 tasks of one client in contention").await?;
    let one = load::many_clients(&cluster, 1).await?;
    let local = throughput::contended(&cluster, vec![one[0].clone(); 50]).await?;
    board.enter(board::COMMANDS_LOCAL, local.commands_each(), local.to_string());
    board.remark(format!("50 tasks of one client: {:.0} locks/s", local.per_second()));
    let handoff = inside::handoff(&cluster).await?;
    board.enter(board::LOCAL_HANDOFF, handoff.median() * 1e3, handoff.to_string());
    let (commands, reads) = inside::reads(&cluster).await?;
    let from = format!("{reads} reads: {commands}; without getMore, hello, ping");
    board.enter(board::SHARED_READ, commands.of_use() / reads as f64, from);
    let visits = inside::visits(&cluster).await?;
    let beside_hops = |compared: &Compared| format!("{}; three raw hops {}", compared.lock, compared.raw);
    // The longest wait but for one in a hundred, over the longest three hops but for as many.
    let longest = visits.lock.quantile(0.99) / visits.raw.quantile(0.99);
    board.enter(board::FOREIGN_WAIT, longest, beside_hops(&visits));
    let (takes, per_take) = inside::takes_of_idle(&cluster).await?;
    board.compare(board::IDLE_TAKE, &takes, "update");
    board.enter(board::IDLE_TAKE_COMMANDS, per_take, String::from("(the same run)"));
    let waits = inside::waits_for_idle(&cluster).await?;
    board.enter(board::IDLE_WAIT, waits.ratio(), beside_hops(&waits));
    Ok(())
}

async fn crowd(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "200 clients that wait for one lock").await?;
    crowd::crowd(&cluster, board).await?;
    let cluster = start(Cluster::replica_set(1), "2,000 waiters of 200 clients, and of 10").await?;
    let (many, few) = crowd::served(&cluster).await?;
    let from = format!("{many} / {few}");
    board.enter(board::HANDOFF_200, many.median() / few.median(), from);
    drop(cluster);
    let cluster = start(Cluster::replica_set(1), "what 64 clients that wait cost everybody else").await?;
    let tax = crowd::tax(&cluster).await?;
    board.enter(board::TAX_64, tax.ratio(), taxed(&tax));
    drop(cluster);
    let cluster = start(Cluster::replica_set(1), "the streams of one client with 64 observers").await?;
    let streams = crowd::streams_of_observers(&cluster).await?;
    let of = "of one client with 64 observers, latches, barriers and holds".to_owned();
    board.enter(board::STREAMS_64, streams as f64, of);
    Ok(())
}

async fn fleet(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "what 64 clients that hold cost everybody else").await?;
    let tax = fleet::tax(&cluster).await?;
    board.enter(board::FLEET_TAX_64, tax.ratio(), taxed(&tax));
    drop(cluster);
    let cluster = start(Cluster::replica_set(1), "a fast writer beside 128 clients that hold").await?;
    let rate = fleet::rate(&cluster).await?;
    let Beside { alone, beside } = rate;
    let from = format!(
        "{beside:.0} foreign writes/s beside {} holders / {alone:.0} alone",
        fleet::MANY
    );
    board.enter(board::FLEET_RATE_128, rate.ratio(), from);
    drop(cluster);
    let cluster = start(Cluster::replica_set(1), "losses of 64 clients that hold").await?;
    let lost = fleet::lost(&cluster, fleet::HOLDERS, true).await?.lock;
    board.enter(board::FLEET_LOST, lost.quantile(0.99), lost.to_string());
    let quiet = fleet::lost(&cluster, fleet::HOLDERS, false).await?;
    drop(cluster);
    let cluster = start(Cluster::replica_set(1), "losses of 4 clients that hold on a busy set").await?;
    let few = fleet::lost(&cluster, fleet::FEW, true).await?;
    let of = |losses: &Compared| format!("{:.3} ms / {:.3} ms raw", losses.lock.median(), losses.raw.median());
    let from = format!(
        "the larger of {} of 64 holders on a quiet set, and {} of 4 at 500 writes/s",
        of(&quiet),
        of(&few)
    );
    board.enter(board::QUIET_LOST, quiet.ratio().max(few.ratio()), from);
    Ok(())
}

async fn scaling(board: &mut Board) -> Result<()> {
    let cluster = start(Cluster::replica_set(1), "a user's commands beside locks").await?;
    let own = scaling::own_commands(&cluster).await?;
    board.enter(board::OWN_COMMANDS, own.ratio(), own.to_string());
    let cluster = start(Cluster::replica_set(1), "what each change stream costs").await?;
    let costs = scaling::streams(&cluster).await?;
    for (what, of) in [("a foreign write", 0), ("an acquire and release", 1)] {
        let of = |cost: &scaling::Cost| (cost.streams, [cost.foreign, cost.lock][of]);
        let (without, each) = scaling::line(costs.iter().map(of));
        board.remark(format!(
            "{what}: {without:.0} us of the server's processor, and {each:.1} us more for each stream"
        ));
    }
    costs.iter().for_each(|cost| board.remark(cost.to_string()));
    Ok(())
}

/// Measures both at once: both only count commands over a long time, so one does not disturb the other.
async fn steady_state(board: &mut Board) -> Result<()> {
    let waited = start(Cluster::replica_set(1), "50 waiters of 5 clients").await?;
    let held = start(Cluster::replica_set(1), "10,000 locks of one client").await?;
    let (idle, renewals) = tokio::join!(load::idle(&waited), load::renewals(&held));
    let ((commands, elapsed), seconds) = (idle?, |time: Duration| time.as_secs_f64());
    // Everything, the drivers' monitors included, except the holder's renewals: nothing else sends an `update`.
    let a_second = (commands.all() - commands.of("update")) as f64 / seconds(elapsed);
    let from = format!(
        "{:.0} s of 6 clients: {commands}; without the holder's update",
        seconds(elapsed)
    );
    board.enter(board::IDLE, a_second, from);
    let (commands, acquired_in) = renewals?;
    let a_round = (commands.of("update") + commands.of("find")) as f64 / f64::from(RENEWAL_ROUNDS);
    let acquired_in = seconds(acquired_in);
    let from = format!("{RENEWAL_ROUNDS} rounds: {commands}; acquired in {acquired_in:.1} s, none lost; update, find");
    board.enter(board::RENEW_10K, a_round, from);
    Ok(())
}

fn taxed(Beside { alone, beside }: &Beside) -> String {
    format!("{beside:.0} us / {alone:.0} us of the server's processor a foreign write")
}

/// Starts a cluster and prints the next step: the run takes minutes.
async fn start(
    cluster: impl Future<Output = std::result::Result<Cluster, watchlock_testkit::Error>>,
    what: &str,
) -> Result<Cluster> {
    eprintln!("measuring {what} ...");
    Ok(cluster.await?)
}

impl Board {
    fn compare(&mut self, key: board::Key, compared: &Compared, raw: &str) {
        let (lock, floor) = (compared.lock.median(), compared.raw.median());
        self.enter(key, compared.ratio(), format!("{lock:.3} ms / {floor:.3} ms raw {raw}"));
    }

    fn note(&mut self, what: &str, samples: &Samples) {
        self.remark(format!("{what}: {samples}"));
    }
}
