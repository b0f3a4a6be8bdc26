//! A fleet of clients that hold a lock each, while other programs write more and less, on a paused clock.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::simulated::{Link, Log};
use crate::{
    client::LockClient,
    config::Config,
    handle::Held,
    locks::mutex::Mutex,
    protocol::ServerTime,
    session::Session,
    store::{MemoryStore, Store},
    wake_mode::{HoldWatch, WakeMode},
};

const CLIENTS: usize = 100;

/// Lease of each lock, which is renewed five times in it.
const LEASE: Duration = Duration::from_secs(24);

/// Time for a renewal of each, and time for their streams to linger too.
const RENEWED: Duration = Duration::from_secs(15);
const SETTLED: Duration = Duration::from_secs(27);

/// Time of a command and of its answer, at most.
const HOP: Duration = Duration::from_millis(10);

/// Number of losses in each look.
const LOSSES: usize = 10;

/// One client of the fleet.
struct Member {
    link: Arc<Link>,
    session: Arc<Session>,
    locks: LockClient,
    held: Option<Held<Mutex>>,
    mode: WakeMode,
    /// Number of times that it went from streams to reads or back.
    changes: u32,
}

struct Fleet {
    memory: Arc<MemoryStore>,
    log: Arc<Log>,
    members: Vec<Member>,
    operator: LockClient,
}

fn name(number: usize) -> String {
    format!("lock {number}")
}

fn client(memory: &Arc<MemoryStore>, number: usize, settings: Config) -> (Arc<Link>, Arc<Session>) {
    let link = Link::new(memory.clone(), number as u64);
    link.calm();
    let (id, store) = (format!("{number:016x}"), Store::Simulated(link.clone()));
    let config = settings.validate().unwrap();
    let session = Session::of(id, config, store, None, WakeMode::ChangeStream);
    (link, session)
}

impl Fleet {
    /// Has all clients acquire, one after the other, within the time from renewal to renewal.
    async fn begin(millicores: u32, lease: Duration) -> Self {
        let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
        let log = Arc::new(Log::default());
        let mut members = Vec::with_capacity(CLIENTS);
        for number in 0..CLIENTS {
            let settings = Config {
                lease,
                hold_watch: HoldWatch::Budget { millicores },
                ..Config::default()
            };
            let (link, session) = client(&memory, number, settings);
            link.tell_of(log.clone());
            let locks = LockClient::new(session.clone());
            let held = locks.mutex(name(number)).acquire().await.unwrap();
            members.push(Member {
                link,
                session,
                locks,
                held: Some(held),
                mode: WakeMode::ChangeStream,
                changes: 0,
            });
            sleep(lease / 5 / CLIENTS as u32).await;
        }
        let (_, operator) = client(&memory, CLIENTS, Config::default());
        Self {
            memory,
            log,
            members,
            operator: LockClient::new(operator),
        }
    }

    /// Lets time pass while others write so often, and notes who goes from streams to reads or back.
    async fn pass(&mut self, time: Duration, others: u32) {
        self.log.set_others(others);
        let end = Instant::now() + time;
        while Instant::now() < end {
            sleep(Duration::from_millis(500)).await;
            for member in &mut self.members {
                let mode = member.locks.wake_mode();
                member.changes += u32::from(std::mem::replace(&mut member.mode, mode) != mode);
            }
        }
    }

    /// Checks that all read, or that all have a stream, and have changed between the two so often.
    fn check(&self, reads: bool, changes: u32) {
        for (number, member) in self.members.iter().enumerate() {
            assert_eq!(
                member.mode == WakeMode::StreamForWaiters,
                reads,
                "{number}: {:?}",
                member.mode
            );
            assert_eq!(member.changes, changes, "{number}");
        }
        assert_eq!(self.memory.streams(), if reads { 0 } else { CLIENTS });
    }

    /// Breaks some locks, and returns the longest time until a holder was told. Its client acquires again.
    async fn longest_loss(&mut self) -> Duration {
        let mut longest = Duration::ZERO;
        for number in (0..CLIENTS).step_by(CLIENTS / LOSSES) {
            // Not in step with the reads.
            sleep(Duration::from_millis(37 + number as u64 / 5)).await;
            let member = &mut self.members[number];
            let held = member.held.take().unwrap();
            let broken = Instant::now();
            self.operator.break_lock(&name(number)).await.unwrap();
            held.lost().await;
            longest = longest.max(broken.elapsed());
            member.held = Some(member.locks.mutex(name(number)).acquire().await.unwrap());
        }
        longest
    }

    /// Returns the number of reads in a second.
    async fn reads(&mut self, others: u32) -> f64 {
        const COUNTED: Duration = Duration::from_secs(10);
        let reads = |fleet: &Self| fleet.members.iter().map(|member| member.link.reads()).sum::<u64>();
        let before = reads(self);
        self.pass(COUNTED, others).await;
        (reads(self) - before) as f64 / COUNTED.as_secs_f64()
    }

    /// Releases all, and checks that nothing is left.
    async fn end(mut self) {
        for member in &mut self.members {
            member.held.take().unwrap().release().await.unwrap();
        }
        // Streams that nothing needs linger for a while; the last write finds them closed.
        sleep(Duration::from_secs(15)).await;
        let last = self.operator.mutex("last").acquire().await.unwrap();
        last.release().await.unwrap();
        assert_eq!(self.memory.streams(), 0);
        assert!(self.memory.is_unused() && self.members.iter().all(|member| member.session.is_unused()));
    }
}

/// Their streams cost 0.06 cores at 24 writes a second, of which 21 are the renewals.
#[tokio::test(start_paused = true)]
async fn a_fleet_decides_alike_and_does_not_go_to_and_fro() {
    let mut fleet = Fleet::begin(150, LEASE).await;
    let phases = [
        (3, RENEWED, false, 0),
        (100, SETTLED, true, 1),
        (22, RENEWED, true, 1),
        (3, RENEWED, false, 2),
        (22, RENEWED, false, 2),
    ];
    for (others, time, reads, changes) in phases {
        fleet.pass(time, others).await;
        fleet.check(reads, changes);
        let longest = fleet.longest_loss().await;
        let bound = if reads {
            Duration::from_millis(250)
        } else {
            Duration::ZERO
        };
        assert!(longest <= bound + 2 * HOP, "{others}: {longest:?}");
    }
    fleet.check(false, 2);
    // At first every ten seconds or more, and more seldom as time goes on.
    assert!(fleet.log.counts() <= 7 * CLIENTS as u64, "{}", fleet.log.counts());
    fleet.end().await;
}

/// With the default lease, and their part of a budget for a thousand, the fleet's own renewals are too much for streams,
/// and its reads keep to the budget of a hundredth of a core: at 205 µs each, 49 in a second.
#[tokio::test(start_paused = true)]
async fn the_reads_of_a_fleet_keep_to_the_budget() {
    let mut fleet = Fleet::begin(10, Duration::from_secs(30)).await;
    fleet.pass(SETTLED, 0).await;
    fleet.check(true, 1);
    let reads = fleet.reads(0).await;
    assert!((40.0..50.0).contains(&reads), "{reads}");
    // A busy set makes no difference to them.
    let reads = fleet.reads(500).await;
    assert!((40.0..50.0).contains(&reads), "{reads}");
    let longest = fleet.longest_loss().await;
    assert!(longest <= Duration::from_millis(2_050) + 2 * HOP, "{longest:?}");
    fleet.check(true, 1);
    fleet.end().await;
}
