//! Holders and waiters that are processes of their own, frozen and killed.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Instant, SystemTime},
};

use watchlock_testkit::signal;

use crate::setup::*;

/// Where a child finds its task. Without it, its test is none.
pub(crate) const TASK: &str = "WATCHLOCK_TEST_CHILD";

/// How the lines begin that are for the parent, among those of the test harness.
const MARK: &str = "child: ";

/// The lock that all children are about.
const NAME: &str = "x";

/// How far the clocks of one and the same machine may be apart, and more.
const SKEW: Duration = Duration::from_millis(100);

/// How late news of an expiry may be on a busy machine.
const MARGIN: Duration = Duration::from_millis(700);

/// Not a test but the process that others start: this very program, told to run this one function.
#[test]
fn child_process() {
    let Ok(task) = env::var(TASK) else { return };
    // Whoever started it has gone: so does the child.
    let (told, orders) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = told.send(line);
        }
        std::process::exit(1);
    });
    let [uri, database, lease, claim, owner] = task.split('|').collect::<Vec<_>>()[..] else {
        panic!("{task}")
    };
    let [lease, claim] = [lease, claim].map(|millis| Duration::from_millis(millis.parse().unwrap()));
    let runtime = runtime();
    let acquire = async {
        let client = Client::with_uri_str(uri).await.unwrap();
        let mut builder = LockClient::builder(client.database(database));
        if !owner.is_empty() {
            builder = builder.owner_id(owner);
        }
        let locks = builder
            .lease(lease)
            .claim_lease(claim)
            .skew_margin(SKEW)
            .label("child")
            .build()
            .await
            .unwrap();
        say("ready");
        locks.mutex(NAME).acquire().await.unwrap()
    };
    let handle = runtime.block_on(acquire);
    say(&format!("acquired {}", handle.token()));
    // Looks all the time, and tells what it saw first after it had not looked for long.
    let mut looked_at = Instant::now();
    loop {
        if let Ok(order) = orders.try_recv() {
            assert_eq!(order, "release");
            say(&format!("released {:?}", runtime.block_on(handle.release()).unwrap()));
            runtime.shutdown_timeout(SOON);
            return;
        }
        let now = Instant::now();
        let status = handle.status();
        if now - looked_at > lease {
            say(&format!(
                "after a gap {status:?} {:?} {:?}",
                handle.lost_reason(),
                handle.safe_for()
            ));
        }
        looked_at = now;
        thread::sleep(Duration::from_micros(200));
    }
}

pub(crate) fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{what}").unwrap();
    out.flush().unwrap();
}

/// A child, killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) orders: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    async fn start(ground: &Ground, lease: Duration, claim: Duration) -> Self {
        Self::start_as(ground, lease, claim, "").await
    }

    /// Under an owner id.
    async fn start_as(ground: &Ground, lease: Duration, claim: Duration, owner: &str) -> Self {
        let uri = shared::replica_set().await.uri();
        let task = format!(
            "{uri}|{}|{}|{}|{owner}",
            ground.database,
            lease.as_millis(),
            claim.as_millis()
        );
        Self::run("faults::processes::child_process", task).await
    }

    /// Starts this very program anew, for one of its tests to be the child.
    pub(crate) async fn run(test: &str, task: String) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(TASK, task)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let (line, lines) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for text in output.lines().map_while(Result::ok) {
                if let Some((_, said)) = text.split_once(MARK) {
                    let _ = line.send(said.to_owned());
                }
            }
        });
        let mut process = Self { child, orders, lines };
        assert_eq!(process.hears("ready").await, "");
        process
    }

    /// What the child says next, which must begin with `what`; returns the rest.
    pub(crate) async fn hears(&mut self, what: &str) -> String {
        let mut heard = None;
        eventually(PATIENCE, what, async || {
            heard = self.lines.try_recv().ok();
            heard.is_some()
        })
        .await;
        let heard = heard.unwrap();
        heard
            .strip_prefix(what)
            .unwrap_or_else(|| panic!("{heard} instead of {what}"))
            .trim()
            .to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(&mut self) {
        signal::kill(self.pid()).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_holder_sees_first_of_all_that_it_lost() {
    let lease = Duration::from_millis(1500);
    let ground = Ground::replica_set("frozen").await;
    let locks = ground.locks_for(lease).await;
    let mut old = Process::start(&ground, lease, lease).await;
    let old_token: i64 = old.hears("acquired").await.parse().unwrap();

    signal::freeze(old.pid()).unwrap();
    let frozen = Instant::now();
    // From here on it can't renew.
    let until = info(&locks, NAME).await.unwrap().holders[0].until;
    let next = within(PATIENCE, "the next gets it", locks.mutex(NAME).acquire())
        .await
        .unwrap();
    assert!(SystemTime::now() >= until, "the lease of a frozen holder is honoured");
    assert!(next.token().as_i64() > old_token);
    // More than a lease was slept through, so that the child notices the gap. Its last renewal may have been late, so
    // that is not known from the end of its lease.
    eventually(PATIENCE, "time passes", async || frozen.elapsed() > lease).await;

    signal::thaw(old.pid()).unwrap();
    assert_eq!(old.hears("after a gap").await, "Lost Some(Expired) 0ns");
    writeln!(old.orders, "release").unwrap();
    assert_eq!(old.hears("released").await, "WasLost");
    within(PATIENCE, "the child ends", async {
        while old.child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;

    // The new holder is as it was.
    assert_eq!(next.lost_reason(), None);
    next.renew().await.unwrap();
    let holders = info(&locks, NAME).await.unwrap().holders;
    assert_eq!(
        holders.iter().map(|holder| holder.token).collect::<Vec<_>>(),
        [next.token()]
    );
    let token = next.token();
    drop(next);
    let last = within(SOON, "the last", locks.mutex(NAME).acquire()).await.unwrap();
    assert!(last.token() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_costs_its_lease_and_no_more() {
    let lease = Duration::from_millis(1500);
    let ground = Ground::replica_set("killed").await;
    // Left to itself the waiter would ask every ten seconds.
    let (locks, admin) = (ground.locks().await, ground.driver().await);
    let mut holder = Process::start(&ground, lease, lease).await;
    let token: i64 = holder.hears("acquired").await.parse().unwrap();
    let mutex = locks.mutex(NAME);
    let waiting = spawn(async move { (mutex.acquire().await.unwrap(), SystemTime::now()) });
    until_waiting(&locks, NAME, 1).await;
    until_streaming(&ground, &admin, 2).await;

    holder.kill();
    let lock = info(&locks, NAME).await.unwrap();
    let (pid, until) = (lock.holders[0].owner.pid, lock.holders[0].until);
    assert_eq!(
        (pid, lock.holders[0].owner.label.as_deref()),
        (holder.pid(), Some("child"))
    );
    let (next, at) = within(lease + SOON, "the waiter gets it", waiting).await.unwrap();
    let late = at.duration_since(until).expect("not before the lease has run out");
    assert!(late < MARGIN, "{late:?} after the end of the lease");
    assert!(next.token().as_i64() > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_killed_costs_the_claim_lease_at_most() {
    let (lease, claim) = (Duration::from_secs(30), Duration::from_secs(1));
    let ground = Ground::replica_set("gone").await;
    let (locks, admin) = (ground.locks().await, ground.driver().await);
    let held = locks.mutex(NAME).acquire().await.unwrap();
    let mut dead = Process::start(&ground, lease, claim).await;
    until_waiting(&locks, NAME, 1).await;
    let other = ground.locks().await;
    let waiting = in_line(&locks, NAME, 2, other.mutex(NAME).acquire()).await;
    // The holder's, the dead one's, and that of the one behind it, which therefore does not ask all the time.
    until_streaming(&ground, &admin, 3).await;

    dead.kill();
    // The server hands the lock over before the answer to the release is here.
    let start = Instant::now();
    held.release().await.unwrap();
    let next = within(claim + SOON, "the one behind it", waiting)
        .await
        .unwrap()
        .unwrap();
    // It was the dead one's turn, and its entry was honoured.
    assert!(start.elapsed() > claim - SKEW, "{:?}", start.elapsed());
    assert_eq!(next.status(), LockStatus::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_that_is_started_again_has_its_lock_back_at_once() {
    // For ever, as this test goes.
    let lease = Duration::from_secs(60);
    let ground = Ground::replica_set("again").await;
    let locks = ground.locks().await;
    let mut before = Process::start_as(&ground, lease, lease, "worker-3").await;
    let token: i64 = before.hears("acquired").await.parse().unwrap();
    let waiting = in_line(&locks, NAME, 1, locks.mutex(NAME).acquire()).await;

    before.kill();
    let dead = info(&locks, NAME).await.unwrap().holders[0].clone();
    assert_eq!(
        (dead.owner.pid, dead.owner.owner_id.as_deref()),
        (before.pid(), Some("worker-3"))
    );
    let mut again = Process::start_as(&ground, lease, lease, "worker-3").await;
    let next: i64 = again.hears("acquired").await.parse().unwrap();
    assert!(next > token);
    assert!(
        SystemTime::now() < dead.until,
        "before the lease of its former self has run out"
    );
    let lock = info(&locks, NAME).await.unwrap();
    let holders: Vec<_> = lock
        .holders
        .iter()
        .map(|holder| (holder.owner.pid, holder.token.as_i64()))
        .collect();
    assert_eq!(holders, [(again.pid(), next)]);
    assert_eq!(lock.waiters.len(), 1, "who waited keeps its place behind");

    // Another worker is not its former self.
    let mut other = Process::start_as(&ground, lease, lease, "worker-4").await;
    until_waiting(&locks, NAME, 2).await;
    writeln!(again.orders, "release").unwrap();
    assert_eq!(again.hears("released").await, "Released");
    let turn = within(PATIENCE, "who waited", waiting).await.unwrap().unwrap();
    turn.release().await.unwrap();
    other.hears("acquired").await;
}
