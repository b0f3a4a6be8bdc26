//! JSON output: the names of the fields are part of the command line's interface. Those of locks are the library's.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::SystemTime,
};

use serde::Serialize;
use watchlock::operate::{LockEvent, LockInfo};

use crate::text;

/// The answer of a command that has failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failed<'a> {
    pub(crate) error: &'a str,
    pub(crate) code: u8,
}

/// An event, with the time at which it was seen and the name of its lock.
#[derive(Debug, Serialize)]
pub(crate) struct Event<'a> {
    at: String,
    lock: &'a str,
    #[serde(flatten)]
    event: &'a LockEvent,
}

impl<'a> Event<'a> {
    pub(crate) fn new(at: SystemTime, lock: &'a str, event: &'a LockEvent) -> Self {
        let at = text::time(at);
        Self { at, lock, event }
    }
}

/// Returns the answer of a command that changes a lock: what it has changed, under a name of its own, and the lock
/// afterwards.
pub(crate) fn change(name: &str, what: &str, change: impl Serialize, lock: Option<&LockInfo>) -> serde_json::Value {
    serde_json::json!({ "name": name, what: change, "lock": lock })
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
