//! `watchlock ls`.

use std::{io, process::ExitCode, time::SystemTime};

use watchlock::operate::{HolderInfo, Listing, LockInfo, UnreadableInfo};

use crate::{
    arguments::List,
    connection::{Connection, Place},
    exit::Outcome,
    holder::{is_at_risk, who, why},
    messages::say,
    table::{Column, table},
    terminal,
    text::{plain, span},
};

/// The columns of locks; users look for the name of a lock, so everything else gives way first.
pub(crate) const COLUMNS: [Column; 8] = [
    Column::text("NAME", 32),
    Column::whole("KIND"),
    Column::text("HELD BY", 18),
    Column::whole("FOR"),
    Column::whole("LEFT"),
    Column::whole("TOKEN"),
    Column::whole("WAITING"),
    Column::text("WHY", 14),
];

/// Priority of the columns if there is no room for all: name, holder, held since, reason, time left of the lease,
/// number of waiters, token, kind.
pub(crate) const ORDER: [usize; 8] = [0, 2, 3, 7, 4, 6, 5, 1];

/// Limits the documents that are not locks and are named one by one: this many show that something is wrong.
const UNREADABLE_SHOWN: usize = 10;

/// The deadlocks that can be found. A lock is held by the task that acquired it, and each `watchlock run` is a task of
/// its own: one inside another waits for a lock, but holds none.
const SEEN: &str = "among tasks of one process each; a `watchlock run` inside another is not seen";

pub(crate) async fn list(connection: &Connection, arguments: List) -> Outcome {
    arguments.kept.check().await?;
    let is_selective = arguments.held
        || arguments.free
        || arguments.kind.is_some()
        || arguments.owner.is_some()
        || arguments.prefix.is_some()
        || arguments.older_than.is_some();
    let place = connection.prompt().await?;
    if arguments.deadlocks {
        return deadlocks(&place, &arguments).await;
    }
    let locks = arguments.kept.locks(&place).await?;
    let mut list = locks.list();
    if let Some(kind) = arguments.kind {
        list = list.kind(kind);
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
    if found.is_empty() && !arguments.output.json {
        let place = arguments.kept.place(&place);
        say(&if is_selective {
            format!("none of the locks in {place} is as requested")
        } else {
            format!("no locks in {place}")
        });
        return Ok(ExitCode::SUCCESS);
    }
    // The reader of a pipe gets all of it.
    let text = || formatted(&found, terminal::columns(io::stdout()));
    arguments.output.answer(&found, text, ExitCode::SUCCESS)
}

async fn deadlocks(place: &Place, arguments: &List) -> Outcome {
    let found = place.locks().await?.deadlocks().await?;
    if found.is_empty() && !arguments.output.json {
        say(&format!("no deadlocks in {}, {SEEN}", arguments.kept.place(place)));
    }
    let lines = || found.iter().map(|found| plain(&found.to_string()) + "\n").collect();
    arguments.output.answer(&found, lines, ExitCode::SUCCESS)
}

fn formatted(found: &[LockInfo], within: Option<usize>) -> String {
    // For each holder, so that a search through the output finds complete lines; one for a free lock.
    let rows: Vec<_> = found.iter().flat_map(rows).collect();
    table(COLUMNS, &rows, ORDER, within)
}

fn rows(lock: &LockInfo) -> Vec<[String; 8]> {
    match &lock.holders[..] {
        [] => vec![row(lock, None, lock.as_of)],
        holders => holders
            .iter()
            .map(|holder| row(lock, Some(holder), lock.as_of))
            .collect(),
    }
}

/// Returns the row of a holder: who it is, since when, the time left of its lease, token and reason; or that of a lock
/// without one.
pub(crate) fn row(lock: &LockInfo, holder: Option<&HolderInfo>, now: SystemTime) -> [String; 8] {
    let (name, kind) = (plain(&lock.name), lock.kind.to_string());
    let [by, held, left, token, why] = match holder {
        None => ["-"; 5].map(str::to_owned),
        Some(holder) => {
            let (held, token) = (span(holder.since, now), holder.token.to_string());
            [who(holder), held, left(holder, now), token, why(holder)]
        }
    };
    [name, kind, by, held, left, token, waiting(lock, now), why]
}

/// Returns how much of the lease is left, and whether nobody seems to renew it; nothing for a dead holder.
fn left(holder: &HolderInfo, now: SystemTime) -> String {
    if holder.until <= now {
        return "over".to_owned();
    }
    let left = span(now, holder.until);
    if is_at_risk(holder, now) {
        return format!("{left}, not renewed");
    }
    left
}

/// Returns how many wait, and how many of them have been silent for too long.
fn waiting(lock: &LockInfo, now: SystemTime) -> String {
    let all = lock.waiters.len();
    match lock.waiters.iter().filter(|waiter| waiter.until <= now).count() {
        0 => all.to_string(),
        dead => format!("{all} ({dead} dead)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{live, made_up::some, screen, show, text};

    /// Whatever a document has: it is printed in lines, none of which the terminal obeys, and not many times its length.
    #[test]
    fn whatever_a_document_has_can_be_printed() {
        let (mut locks, now) = some();
        let text = "a é 🔒 \u{1b}[2J \n \u{202e} \0 👩\u{200d}💻 ".repeat(3_000);
        for lock in &mut locks {
            lock.name.clone_from(&text);
            for holder in &mut lock.holders {
                holder.owner.host.clone_from(&text);
                (holder.owner.label, holder.owner.reason) = (Some(text.clone()), Some(text.clone()));
            }
        }
        let length: usize = locks.iter().flat_map(rows).flatten().map(|cell| cell.len()).sum();
        assert!(formatted(&locks, None).len() <= length + 8 * 8 * 300);
        for width in [1, 30, 80, 100_000] {
            let table = formatted(&locks, Some(width));
            assert!(table.lines().all(|line| text::width(line) <= width), "{width}");
            let lines = locks.iter().map(|lock| live::line(lock, Some(0), width));
            for line in lines {
                assert!(
                    text::width(&line) <= width && !line.chars().any(text::is_obeyed),
                    "{width}"
                );
            }
        }
        for lock in &locks {
            let shown = show::in_full(lock, now);
            assert!(!shown.chars().any(|each| each != '\n' && text::is_obeyed(each)));
        }
        screen::try_to_draw(locks, now);
    }
}
