//! The report of a command that waits: its queue position, the holder, for how long, and why. At a terminal it is one
//! line that is renewed; elsewhere, if asked for, a line for each change of the holder. A lock that is kept taken for long
//! is reported in any case, as that may last for days.

use std::{convert::Infallible, io, time::Duration};

use tokio::time::{MissedTickBehavior, interval_at, sleep};
use watchlock::{
    LockClient,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    holder::{short, why},
    messages,
    show::live,
    terminal,
    text::{cut, plain, span},
};

/// Time for which a user at a terminal waits before the line appears.
const SILENT: Duration = Duration::from_secs(1);

/// Interval at which the line is renewed: each costs a small read.
const TICK: Duration = Duration::from_secs(1);

/// Least pause between two lines where there is no terminal: logs keep all of them.
const BETWEEN: Duration = Duration::from_secs(60);

/// Limit for delaying the command until the line is gone from the screen, so that it does not mix with the command's
/// output. A paused terminal is not waited for.
const GONE: Duration = Duration::from_millis(200);

/// Width of a terminal that does not say how wide it is.
const WIDTH: usize = 80;

/// Removes the line when the waiting is over, after any outcome.
struct Shown(bool);

impl Drop for Shown {
    fn drop(&mut self) {
        if self.0 {
            messages::show("");
            messages::settle_within(GONE);
        }
    }
}

/// Shows the line while it is polled, if there is a terminal to show it on. Elsewhere it prints lines: with `verbose` of
/// all holders, otherwise of those that keep the lock taken. Reads nothing if nobody wants to know.
pub(crate) async fn show(locks: &LockClient, names: &[&str], verbose: bool) -> Infallible {
    if messages::is_quiet() {
        return std::future::pending().await;
    }
    if !terminal::can_draw(io::stderr()) {
        return tell(locks, names, verbose, messages::say).await;
    }
    let mut shown = Shown(false);
    let mut tick = interval_at(tokio::time::Instant::now() + SILENT, TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // Without an answer the line stays as it is; the acquire reports the problem.
        if let Some((lock, position)) = awaited(locks, names).await {
            // The last column is left free, as some terminals wrap there.
            let width = terminal::columns(io::stderr()).unwrap_or(WIDTH).saturating_sub(1);
            messages::show(&line(&lock, position, width));
            shown.0 = true;
        }
    }
}

/// Prints whom the command waits for, and again when that has changed.
async fn tell(locks: &LockClient, names: &[&str], verbose: bool, mut say: impl FnMut(&str)) -> Infallible {
    let mut told = None;
    // What lasts for days is soon enough known after a minute, and most waits are over by then.
    let mut pause = if verbose { SILENT } else { BETWEEN };
    loop {
        sleep(pause).await;
        if let Some((lock, position)) = awaited(locks, names).await {
            let first = in_order(&lock).first().map(|holder| (holder.token, holder.released));
            if told != Some(first) {
                if verbose || first.is_some_and(|(_, released)| released.is_some()) {
                    say(&line(&lock, position, usize::MAX));
                }
                told = Some(first);
            }
        }
        // Until the first line, a lock may be between two holders, or the server not answer.
        pause = if told.is_some() {
            BETWEEN
        } else {
            (2 * pause).min(BETWEEN)
        };
    }
}

/// Returns the holders whose time is not over: first those that were released and keep the lock taken, as that may last
/// the longest.
fn in_order(lock: &LockInfo) -> Vec<&HolderInfo> {
    let mut holders: Vec<&HolderInfo> = live(lock).collect();
    holders.sort_by_key(|holder| holder.released.is_none());
    holders
}

/// Returns the lock that this process waits for, and its position in the queue, if it has one. For several locks it
/// waits for one after the other.
async fn awaited(locks: &LockClient, names: &[&str]) -> Option<(LockInfo, Option<usize>)> {
    let mut held = None;
    for name in names {
        let Ok(Some(lock)) = locks.inspect(name).await else {
            continue;
        };
        if let position @ Some(_) = position(&lock, locks.host()) {
            return Some((lock, position));
        }
        held = held.or_else(|| lock.is_held().then_some((lock, None)));
    }
    held
}

fn position(lock: &LockInfo, host: &str) -> Option<usize> {
    // In containers, many processes have the same id.
    let ours = std::process::id();
    lock.waiters
        .iter()
        .position(|waiter| waiter.owner.pid == ours && waiter.owner.host == host)
}

/// Returns the line, most important parts first, as the end is cut off if there is no room.
pub(crate) fn line(lock: &LockInfo, position: Option<usize>, width: usize) -> String {
    let mut line = format!("waiting for {}", cut(&plain(&lock.name), (width / 3).max(9)));
    if let Some(position) = position {
        line += &format!(": {} of {}", position + 1, lock.waiters.len());
    }
    let holders = in_order(lock);
    if let Some(holder) = holders.first() {
        let by = short(holder.owner.label.as_deref(), &holder.owner.host, holder.owner.pid);
        line += &match holder.released {
            Some(_) => format!(", kept taken for {} more by {by}", span(lock.as_of, holder.until)),
            None => format!(", held {} by {by}", span(holder.since, lock.as_of)),
        };
        if let more @ 1.. = holders.len() - 1 {
            line += &format!(" and {more} more");
        }
        let why = why(holder);
        if why != "-" {
            line += &format!(": {why}");
        }
    }
    cut(&line, width)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(host: &str, pid: u32, reason: Option<&str>) -> Value {
        json!({
            "token": 7, "access": null, "permits": 1, "since": "2026-01-01T00:00:00.000Z",
            "until": "2026-01-01T00:10:00.000Z", "host": host, "pid": pid, "label": "billing", "reason": reason,
            "value": null, "owner_id": null,
        })
    }

    fn lock(name: &str, holders: &[Value], waiters: &[Value]) -> LockInfo {
        let lock = json!({
            "name": name, "kind": "semaphore", "capacity": 2, "token": 7, "holders": holders, "waiters": waiters,
            "as_of": "2026-01-01T00:03:05.000Z",
        });
        serde_json::from_value(lock).unwrap()
    }

    fn shown(lock: &LockInfo, width: usize) -> String {
        line(lock, position(lock, "here"), width)
    }

    #[test]
    fn what_matters_most_comes_first() {
        let ours = entry("here", std::process::id(), None);
        // A container has a process of the same id.
        let other = entry("elsewhere", std::process::id(), None);
        let holder = entry("web-1", 4711, Some("monthly run"));
        let lock = lock("nightly", &[holder.clone(), holder], &[other.clone(), ours, other]);
        let whole = "waiting for nightly: 2 of 3, held 3m 5s by billing@web-1:4711 and 1 more: monthly run";
        assert_eq!(shown(&lock, 119), whole);
        assert_eq!(
            shown(&lock, 59),
            "waiting for nightly: 2 of 3, held 3m 5s by billing@web-1:4…"
        );
        assert_eq!(shown(&lock, 29), "waiting for nightly: 2 of 3,…");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_terminal_each_holder_is_told_once_and_none_more_often_than_each_minute() {
        let memory = watchlock::testing::InMemory::new();
        let (ours, other) = (memory.client(), memory.client());
        let first = other.mutex("x").acquire().reason("the first").await.unwrap();
        let mutex = ours.mutex("x");
        let told = std::sync::Mutex::new(Vec::new());
        let say = |line: &str| {
            told.lock()
                .unwrap()
                .push((tokio::time::Instant::now(), line.to_owned()))
        };
        let lines = || told.lock().unwrap().len();
        let scene = async {
            // Ours waits behind the other client's second task all the time.
            let second = other.mutex("x").acquire().reason("the second");
            let second = tokio::spawn(second);
            let waiting = tokio::spawn(mutex.acquire());
            sleep(3 * BETWEEN).await;
            assert_eq!(lines(), 1, "{told:?}");
            first.release().await.unwrap();
            let second = second.await.unwrap().unwrap();
            sleep(3 * BETWEEN).await;
            assert_eq!(lines(), 2, "{told:?}");
            second.release().await.unwrap();
            waiting.await.unwrap().unwrap()
        };
        tokio::select! {
            never = tell(&ours, &["x"], true, say) => match never {},
            _held = scene => {}
        }
        let told = told.into_inner().unwrap();
        assert!(
            told[0].1.contains("the first") && told[1].1.contains("the second"),
            "{told:?}"
        );
        assert!(told[1].0 - told[0].0 >= BETWEEN, "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_kept_taken_is_told_in_any_case() {
        let memory = watchlock::testing::InMemory::new();
        let (ours, other) = (memory.client(), memory.client());
        let day = Duration::from_secs(24 * 3600);
        // Of two permits the second is kept.
        let two = other.semaphore("x", 2);
        let held = two.acquire().await.unwrap();
        let kept = two.acquire().at_least_for(day).await.unwrap();
        let told = std::sync::Mutex::new(Vec::new());
        let scene = async {
            let waiting = tokio::spawn(ours.semaphore("x", 2).acquire_many(2));
            sleep(3 * BETWEEN).await;
            assert_eq!(told.lock().unwrap()[..], [""; 0], "it is held");
            kept.release().await.unwrap();
            sleep(3 * BETWEEN).await;
            assert_eq!(told.lock().unwrap().len(), 1, "the other is held");
            held.release().await.unwrap();
            waiting.await.unwrap().unwrap()
        };
        tokio::select! {
            never = tell(&ours, &["x"], false, |line| told.lock().unwrap().push(line.to_owned())) => match never {},
            _held = scene => {}
        }
        let told = told.into_inner().unwrap();
        assert!(
            told.len() == 1 && told[0].starts_with("waiting for x: 1 of 1, kept taken for 23h"),
            "{told:?}"
        );
    }
}
