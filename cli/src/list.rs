//! `watchlock ls`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::SystemTime,
};

use rustix::termios::tcgetwinsize;

use watchlock::{HolderInfo, Listing, LockInfo, UnreadableInfo};

use crate::{
    arguments::List,
    clock::Offset,
    connection::Connection,
    exit::{Failure, Outcome},
    json,
    messages::say,
    text::{self, plain},
};

/// Priority of the columns if there is no room for all: name, holder, time left of the lease, number of waiters, held
/// since, reason, token, kind.
const ORDER: [usize; 8] = [0, 2, 4, 6, 3, 7, 5, 1];

/// Limits the documents that are not locks and are named one by one: this many show that something is wrong.
const UNREADABLE_SHOWN: usize = 10;

pub(crate) async fn list(connection: &Connection, arguments: List) -> Outcome {
    arguments.kept.check().await?;
    let place = connection.prompt().await?;
    let locks = arguments.kept.locks(&place).await?;
    let mut list = locks.list();
    if let Some(kind) = arguments.kind {
        list = list.kind(kind.into());
    }
    if arguments.held || arguments.free {
        list = list.held(arguments.held);
    }
    if let Some(owner) = arguments.owner {
        list = list.owner(owner);
    }
    if let Some(prefix) = arguments.prefix {
        list = list.prefix(prefix);
    }
    if let Some(age) = arguments.older_than {
        list = list.older_than(age);
    }
    let held = arguments.held;
    let Listing {
        locks: found,
        unreadable,
        ..
    } = list.with_unreadable().await?;
    for UnreadableInfo { name, problem, .. } in unreadable.iter().take(UNREADABLE_SHOWN) {
        say(&format!("`{}` is not a lock: {}", plain(name), plain(problem)));
    }
    if let more @ 1.. = unreadable.len().saturating_sub(UNREADABLE_SHOWN) {
        say(&format!("and {more} more that are not locks"));
    }
    if arguments.output.json {
        json::print(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    if found.is_empty() {
        let place = arguments.kept.place(&place);
        say(&if held {
            format!("none of the requested locks in {place} is held")
        } else {
            format!("no locks in {place}")
        });
        return Ok(ExitCode::SUCCESS);
    }
    let now = Offset::measure(&place).await?.now();
    print(&found, now)?;
    Ok(ExitCode::SUCCESS)
}

fn print(found: &[LockInfo], now: SystemTime) -> Result<(), Failure> {
    let rows: Vec<_> = found.iter().flat_map(|lock| rows(lock, now)).collect();
    let headings = ["NAME", "KIND", "HELD BY", "FOR", "LEFT", "TOKEN", "WAITING", "WHY"];
    // The reader of a pipe gets all of it.
    let within = io::stdout()
        .is_terminal()
        .then(|| tcgetwinsize(io::stdout()).ok())
        .flatten();
    let within = within.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let table = text::table(headings, &rows, ORDER, within);
    io::stdout().lock().write_all(table.as_bytes())?;
    Ok(())
}

/// Returns one row for each holder, so that a search through the output finds complete lines; one for a free lock.
fn rows(lock: &LockInfo, now: SystemTime) -> Vec<[String; 8]> {
    let row = |holder: Option<&HolderInfo>| {
        let [by, held, left, token, why] = holder.map_or_else(
            || ["-"; 5].map(str::to_owned),
            |holder| {
                [
                    who(holder),
                    text::span(holder.since, now),
                    left(holder, now),
                    holder.token.to_string(),
                    why(holder),
                ]
            },
        );
        let (name, kind) = (text::plain(&lock.name), lock.kind.to_string());
        [name, kind, by, held, left, token, waiting(lock, now), why]
    };
    match &lock.holders[..] {
        [] => vec![row(None)],
        holders => holders.iter().map(|holder| row(Some(holder))).collect(),
    }
}

/// Returns how much of the lease is left; nothing for a dead holder.
pub(crate) fn left(holder: &HolderInfo, now: SystemTime) -> String {
    if holder.until <= now {
        return "over".to_owned();
    }
    text::span(now, holder.until)
}

/// Returns how many wait, and how many of them have been silent for too long.
fn waiting(lock: &LockInfo, now: SystemTime) -> String {
    let all = lock.waiters.len();
    match lock.waiters.iter().filter(|waiter| waiter.until <= now).count() {
        0 => all.to_string(),
        dead => format!("{all} ({dead} dead)"),
    }
}

/// Returns a short form of the holder: `billing@web-1:4711 (writer)`, and whether the lock is kept after its release,
/// or idle.
pub(crate) fn who(holder: &HolderInfo) -> String {
    let share = match (holder.access, holder.permits) {
        (Some(access), _) => format!(" ({access})"),
        (None, 1) => String::new(),
        (None, permits) => format!(" ({permits} permits)"),
    };
    let kept = match holder.released {
        Some(_) => " (released, kept taken)",
        None if holder.idle => " (idle)",
        None => "",
    };
    short(holder.label.as_deref(), &holder.host, holder.pid) + &share + kept
}

pub(crate) fn short(label: Option<&str>, host: &str, pid: u32) -> String {
    let host = text::plain(host);
    match label {
        Some(label) => format!("{}@{host}:{pid}", text::plain(label)),
        None => format!("{host}:{pid}"),
    }
}

/// Returns the value that a leader proclaims, or why the lock is held.
pub(crate) fn why(holder: &HolderInfo) -> String {
    let said = holder.value.as_ref().or(holder.reason.as_ref());
    said.map_or_else(|| "-".to_owned(), |said| text::plain(said))
}
