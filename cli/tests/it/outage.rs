//! Outages while a lock is asked for, held or given back: a command that fails leaves nothing behind, or it says what
//! may be left, and for how long.

use std::{future::IntoFuture as _, time::Duration};

use futures::future::join_all;
use tokio::time::Instant;
use watchlock::{
    LockClient,
    locks::{self, Turn},
};
use watchlock_testkit::{Proxy, shared};

use crate::{
    Started,
    common::{Ground, PATIENCE, SOON, eventually, is_vacant, until_waiting, within},
    signal,
    terminal::open,
};

/// The commands that wait for a lock, and for how many seconds a request of theirs may keep it taken.
const WAITING: [(&str, u64); 4] = [
    ("run --lease 6s X sleep 300", 11),
    ("run --lease 6s X --and X-too -- sleep 300", 11),
    ("hold --lease 6s X", 11),
    ("acquire --for 6s X", 11),
];

/// The way in which a server falls silent: nothing gets through, no reply does, or no connection holds.
#[derive(Clone, Copy, PartialEq)]
enum Silence {
    Nothing,
    NoReply,
    NoConnection,
}

const SILENCES: [Silence; 3] = [Silence::Nothing, Silence::NoReply, Silence::NoConnection];

/// A command that waits for a lock when its server falls silent.
struct Case {
    name: String,
    command: String,
    most: u64,
    silence: Silence,
    /// Whether the lock comes to it then, which it can't learn.
    is_granted: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let cases = WAITING
            .into_iter()
            .flat_map(|waiting| SILENCES.map(|silence| (waiting, silence)));
        cases.enumerate().map(|(number, ((command, most), silence))| {
            let name = format!("lock-{number}");
            Self {
                command: command.replace('X', &name),
                name,
                most,
                silence,
                is_granted: number % 2 == 0,
            }
        })
    }

    /// Starts the command, which has no way to the server but through the proxy, and has it wait. Returns the holder of
    /// the lock too.
    async fn wait(&self, ground: &Ground, locks: &LockClient, proxy: &Proxy) -> (Started, Held) {
        let held = locks.mutex(&self.name).acquire().await.unwrap();
        let waiting = Started::run(&ground.through(proxy.uri()), &self.command);
        until_waiting(locks, &self.name, 1).await;
        (waiting, held)
    }

    /// The server falls silent for the command. Returns whoever holds the lock still.
    async fn fall_silent(&self, proxy: &Proxy, held: Held, waiting: u32, locks: &LockClient) -> Option<Held> {
        match self.silence {
            Silence::Nothing => proxy.black_hole(),
            Silence::NoReply => proxy.black_hole_replies(),
            Silence::NoConnection => proxy.cut(),
        }
        if !self.is_granted {
            return Some(held);
        }
        held.release().await.unwrap();
        assert!(self.is_left(waiting, locks).await, "it has the lock");
        None
    }

    /// Whether this process has an entry in the lock.
    async fn is_left(&self, process: u32, locks: &LockClient) -> bool {
        let Some(lock) = locks.inspect(&self.name).await.unwrap() else {
            return false;
        };
        let holders = lock.holders.iter().map(|holder| holder.owner.pid);
        let waiters = lock.waiters.iter().map(|waiter| waiter.owner.pid);
        holders.chain(waiters).any(|pid| pid == process)
    }
}

type Held = watchlock::Held<locks::Mutex>;

async fn proxy() -> Proxy {
    Proxy::before(shared::replica_set().await.addr(0)).unwrap()
}

/// A message says that something may be left, and for how many seconds.
fn assert_left(told: &str, name: &str, most: u64) {
    let names = format!("`{name}`");
    let most = format!(" may stay taken for up to {most}s once the server has all that was sent: it did not confirm");
    assert!(told.contains(&names) && told.contains(&most), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_left_on_a_silent_server_is_told_with_its_end() {
    let ground = Ground::replica_set("cli_left").await;
    let locks = ground.locks().await;
    let scenes = Case::all().map(async |case| {
        let proxy = proxy().await;
        let (waiting, held) = case.wait(&ground, &locks, &proxy).await;
        let held = case.fall_silent(&proxy, held, waiting.pid(), &locks).await;
        signal("TERM", waiting.pid());
        let told = waiting.done().await.expect(143).err;
        assert_left(&told, &case.name, case.most);
        drop(held);
        // Nothing of what is on its way arrives.
        drop(proxy);
        let most = Duration::from_secs(case.most) + SOON;
        let next = locks.mutex(&case.name).acquire().into_future();
        drop(within(most, &case.command, next).await.unwrap());
    });
    join_all(scenes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_on_a_silent_server_tells_what_may_be_left_with_the_failure() {
    let ground = Ground::replica_set("cli_overdue").await;
    let locks = ground.locks().await;
    let silent = Case::all().filter(|case| case.silence == Silence::Nothing);
    let scenes = silent.map(async |mut case| {
        case.command = case.command.replacen(' ', " --timeout 5s ", 1);
        let proxy = proxy().await;
        // The server is silent from its request on: its limit may be over before we see that it waits.
        proxy.black_hole_after("findAndModify");
        let (waiting, held) = case.wait(&ground, &locks, &proxy).await;
        let _held = case.fall_silent(&proxy, held, waiting.pid(), &locks).await;
        let told = waiting.done().await.expect(69).err;
        assert_left(&told, &case.name, case.most);
        assert!(told.lines().count() == 1 && told.contains("was not acquired"), "{told}");
    });
    join_all(scenes).await;
}

/// Whatever the server does, a limit is exceeded only by the time in which a request is taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_holds_in_an_outage() {
    let ground = Ground::replica_set("cli_late").await;
    let limits = [
        ("--timeout 1s", 2),
        ("--timeout 2s", 2),
        ("--try", 5),
        ("--once-per 1h", 5),
    ];
    let scenes = limits
        .into_iter()
        .flat_map(|limit| [false, true].map(|connects| (limit, connects)));
    let scenes = scenes.map(async |((options, most), connects)| {
        let proxy = proxy().await;
        match connects {
            true => proxy.black_hole_after("findAndModify"),
            false => proxy.black_hole(),
        }
        let begun = Instant::now();
        let told = Started::run(&ground.through(proxy.uri()), format!("run {options} x true"))
            .done()
            .await
            .expect(69);
        let most = Duration::from_secs(most + if connects { 3 } else { 0 });
        let took = begun.elapsed();
        assert!(
            took < most + Duration::from_millis(1_500),
            "{options}: {took:?}, {told:?}"
        );
    });
    join_all(scenes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_is_told_of_an_outage_and_of_its_end() {
    let ground = Ground::replica_set("cli_watched").await;
    let locks = ground.locks().await;
    let _leader = locks.election("x").campaign("").await.unwrap();
    let commands = ["watch", "watch --json", "observe x"].map(async |line| {
        let proxy = proxy().await;
        let mut watching = Started::run(&ground.through(proxy.uri()), line);
        // The present leader.
        watching.line().await;
        proxy.black_hole();
        watching
            .until_told("; changes are reported when it answers again")
            .await;
        proxy.heal();
        watching.until_told("watchlock: the server answers again").await;
    });
    join_all(commands).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_without_an_answer_is_told_with_its_end() {
    let ground = Ground::replica_set("cli_unreleased").await;
    let locks = ground.locks().await;
    let once = "run --once-per 1h --since-success --failures-count";
    let again = ", and may then be run again in this period";
    let scenes = [
        ("a", "hold", 69, 4, ""),
        ("b", "run", 3, 4, ""),
        ("c", "run --at-least-for 6s", 3, 6, ""),
        ("d", once, 3, 4, again),
        ("e", once, 3, 4, again),
    ]
    .map(async |(name, options, code, most, then)| {
        let script = if code == 3 { "-c `echo; read _; exit 3`" } else { "" };
        let command = format!("{options} --lease 4s {name} {script}");
        let proxy = proxy().await;
        let mut holding = Started::run(&ground.through(proxy.uri()), &command);
        holding.line().await;
        match name {
            // The server gets the release, and nothing after it.
            "e" => proxy.black_hole_after("findAndModify"),
            _ => proxy.black_hole(),
        }
        if name == "a" {
            signal("TERM", holding.pid());
        }
        let told = holding.done().await.expect(code).err;
        let left =
            format!("`{name}` may stay taken for up to {most}s once the server has all that was sent{then}: the");
        assert!(told.contains(&left) && told.lines().count() == 1, "{told}");
        let recorded = format!("recorded this run of `{name}`, which then is not run again in this period; or ");
        assert_eq!(told.contains(&recorded), !then.is_empty(), "{told}");
        if name == "e" {
            let hour = Duration::from_secs(3_600);
            eventually(PATIENCE, "the run is recorded", async || {
                let turn = locks.once(name, hour).since_success().begin().await;
                matches!(turn.unwrap(), Turn::RanAlready(_))
            })
            .await;
            return;
        }
        // Nothing of what is on its way arrives.
        drop(proxy);
        let next = locks.mutex(name).acquire().into_future();
        let next = within(Duration::from_secs(most) + SOON, "the lease ends", next).await;
        next.unwrap().release().await.unwrap();
    });
    join_all(scenes).await;
}

/// The lock is held, and its token not printed yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_printed_leaves_nothing_taken() {
    let ground = Ground::replica_set("cli_unprinted").await;
    let locks = ground.locks().await;
    let scenes =
        [("x", Some("TERM"), 143), ("y", Some("HUP"), 129), ("z", None, 0)].map(async |(name, killed, code)| {
            let proxy = proxy().await;
            let before = locks.mutex(name).acquire().await.unwrap();
            let taking = Started::run(&ground.through(proxy.uri()), format!("acquire --for 30m {name}"));
            until_waiting(&locks, name, 1).await;
            // The next one that it sends leaves its hold.
            proxy.lose_next("findAndModify");
            before.release().await.unwrap();
            eventually(PATIENCE, "it leaves its hold", async || !proxy.is_losing()).await;
            if let Some(killed) = killed {
                signal(killed, taking.pid());
            }
            let told = taking.done().await.expect(code);
            // Unless it is killed, the write is sent again.
            assert_eq!(told.out.is_empty(), killed.is_some(), "{told:?}");
            assert_eq!(is_vacant(&locks, name).await, killed.is_some(), "{told:?}");
        });
    join_all(scenes).await;
}

/// As when the window of a terminal is closed, or a connection of ssh is lost.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_taken_for_a_terminal_that_is_lost() {
    let ground = Ground::replica_set("cli_hung_up").await;
    let locks = ground.locks().await;
    let held = locks.mutex("waited-for").acquire().await.unwrap();
    let scenes = [
        ("waited-for", "exec $W run waited-for true"),
        ("waited-for", "$W acquire waited-for --for 30m; echo $?"),
        ("a", "exec $W hold a"),
        ("b", "$W hold b"),
        ("c", "exec $W run c -- sleep 300"),
        ("d", "$W run d -- sleep 300; :"),
    ];
    let terminals = scenes.map(|(_, script)| open(&ground, script, 80));
    until_waiting(&locks, "waited-for", 2).await;
    for (name, _) in &scenes[2..] {
        eventually(PATIENCE, "it is held", async || !is_vacant(&locks, name).await).await;
    }
    // The children are killed when they are dropped.
    let _children = terminals.map(|(_, _, child)| child);
    until_waiting(&locks, "waited-for", 0).await;
    for (name, _) in &scenes[2..] {
        eventually(PATIENCE, "it is given back", async || is_vacant(&locks, name).await).await;
    }
    held.release().await.unwrap();
}
