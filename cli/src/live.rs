//! The report of a command that waits: its queue position, the holder, for how long, and why. At a terminal it is one
//! line that is renewed; elsewhere, if asked for, a line for each change of the holder.

use std::{convert::Infallible, io, time::Duration};

use tokio::time::sleep;
use watchlock::{LockClient, operate::LockInfo};

use crate::{
    holder::{short, why},
    messages,
    show::live,
    terminal,
    text::{cut, plain, span},
};

/// Interval at which the line is renewed, and for which it does not appear at first: each costs a small read.
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

/// Shows the line while it is polled, if there is a terminal to show it on. Elsewhere, with `verbose`, it prints a line
/// for each holder. Reads nothing if nobody wants to know.
pub(crate) async fn show(locks: &LockClient, names: &[&str], verbose: bool) -> Infallible {
    let can_draw = terminal::can_draw(io::stderr());
    if messages::is_quiet() || !(can_draw || verbose) {
        return std::future::pending().await;
    }
    let (mut shown, mut told) = (Shown(false), None);
    loop {
        // Several lines in a log can wait longer than a user.
        sleep(if can_draw || told.is_none() { TICK } else { BETWEEN }).await;
        // Without an answer the line stays as it is; the acquire reports the problem.
        let Some((lock, position)) = awaited(locks, names).await else {
            continue;
        };
        if can_draw {
            // The last column is left free, as some terminals wrap there.
            let width = terminal::columns(io::stderr()).unwrap_or(WIDTH).saturating_sub(1);
            messages::show(&line(&lock, position, width));
            shown.0 = true;
        } else {
            let first = lock.holders.first().map(|holder| holder.token);
            if told.replace(first) != Some(first) {
                messages::say(&line(&lock, position, usize::MAX));
            }
        }
    }
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
    let holders: Vec<_> = live(lock).collect();
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
