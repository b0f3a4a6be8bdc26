//! JSON output: the names of the fields are part of the command line's interface.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::SystemTime,
};

use serde::Serialize;
use watchlock::{Access, FencingToken, HolderInfo, Kind, LockEvent, LockInfo, WaiterInfo};

use crate::text;

#[derive(Debug, Serialize)]
pub(crate) struct Lock<'a> {
    name: &'a str,
    kind: &'static str,
    capacity: Option<u64>,
    token: i64,
    holders: Vec<Holder<'a>>,
    waiters: Vec<Waiter<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder<'a> {
    token: i64,
    access: Option<&'static str>,
    permits: Option<u64>,
    since: String,
    until: String,
    host: &'a str,
    pid: u32,
    label: Option<&'a str>,
    reason: Option<&'a str>,
    value: Option<&'a str>,
    owner_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Waiter<'a> {
    access: Option<&'static str>,
    permits: Option<u64>,
    since: String,
    until: String,
    host: &'a str,
    pid: u32,
    label: Option<&'a str>,
    reason: Option<&'a str>,
    owner_id: Option<&'a str>,
}

/// The answer of a command that has failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failed<'a> {
    pub(crate) error: &'a str,
    pub(crate) code: u8,
}

#[derive(Debug, Serialize)]
pub(crate) struct Event<'a> {
    at: String,
    lock: &'a str,
    event: &'static str,
    token: Option<i64>,
    holder: Option<Holder<'a>>,
    waiting: Option<usize>,
    problem: Option<&'a str>,
}

impl<'a> From<&'a LockInfo> for Lock<'a> {
    fn from(lock: &'a LockInfo) -> Self {
        Self {
            name: &lock.name,
            kind: lock.kind.as_str(),
            // The capacity of a readers-writer lock is an implementation detail.
            capacity: (lock.kind != Kind::RwLock).then_some(lock.capacity),
            token: lock.token.as_i64(),
            holders: lock.holders.iter().map(Holder::from).collect(),
            waiters: lock.waiters.iter().map(Waiter::from).collect(),
        }
    }
}

impl<'a> From<&'a HolderInfo> for Holder<'a> {
    fn from(holder: &'a HolderInfo) -> Self {
        Self {
            token: holder.token.as_i64(),
            access: holder.access.map(access),
            permits: holder.access.is_none().then_some(holder.permits),
            since: text::time(holder.since),
            until: text::time(holder.until),
            host: &holder.host,
            pid: holder.pid,
            label: holder.label.as_deref(),
            reason: holder.reason.as_deref(),
            value: holder.value.as_deref(),
            owner_id: holder.owner_id.as_deref(),
        }
    }
}

impl<'a> From<&'a WaiterInfo> for Waiter<'a> {
    fn from(waiter: &'a WaiterInfo) -> Self {
        Self {
            access: waiter.access.map(access),
            permits: waiter.access.is_none().then_some(waiter.permits),
            since: text::time(waiter.since),
            until: text::time(waiter.until),
            host: &waiter.host,
            pid: waiter.pid,
            label: waiter.label.as_deref(),
            reason: waiter.reason.as_deref(),
            owner_id: waiter.owner_id.as_deref(),
        }
    }
}

impl<'a> Event<'a> {
    /// Returns `None` for a kind that this program does not know.
    pub(crate) fn new(at: SystemTime, lock: &'a str, event: &'a LockEvent) -> Option<Self> {
        let (word, token) = match event {
            LockEvent::Granted { holder, .. } => ("granted", Some(holder.token)),
            LockEvent::Released { token, .. } => ("released", Some(*token)),
            LockEvent::Expired { token, .. } => ("expired", Some(*token)),
            LockEvent::Adopted { token, .. } => ("adopted", Some(*token)),
            LockEvent::Broken { token, .. } => ("broken", Some(*token)),
            LockEvent::Deleted { token, .. } => ("deleted", Some(*token)),
            LockEvent::Unreadable { .. } => ("unreadable", None),
            _ => return None,
        };
        let problem = match event {
            LockEvent::Unreadable { problem, .. } => Some(&problem[..]),
            _ => None,
        };
        let (holder, waiting) = match event {
            LockEvent::Granted { holder, waiting, .. } => (Some(Holder::from(holder)), Some(*waiting)),
            _ => (None, None),
        };
        Some(Self {
            at: text::time(at),
            lock,
            event: word,
            token: token.map(FencingToken::as_i64),
            holder,
            waiting,
            problem,
        })
    }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Write => "write",
        _ => "read",
    }
}

/// Prints one document, for a program or a person.
pub(crate) fn print(value: &impl Serialize) -> io::Result<()> {
    writeln!(
        io::stdout().lock(),
        "{}",
        harmless(&serde_json::to_string_pretty(value)?)
    )
}

/// Prints one object on its own line, and flushes it at once.
pub(crate) fn print_line(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", harmless(&serde_json::to_string(value)?))?;
    out.flush()
}

/// Escapes JSON for a terminal. JSON escapes only the first control characters, and between its strings the only ones
/// are line breaks.
fn harmless(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if character != '\n' && text::is_obeyed(character) {
            let _ = write!(shown, "\\u{:04x}", u32::from(character));
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_stays_the_same() {
        let hostile = "\u{1b}[2J \u{7f}\u{9b}31m \u{202e}abc \u{feff} é 🔒\n";
        let shown = harmless(&serde_json::to_string_pretty(&[hostile]).unwrap());
        assert!(
            !shown
                .chars()
                .any(|character| character != '\n' && text::is_obeyed(character)),
            "{shown:?}"
        );
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [hostile]);
    }
}
