//! The locks of a run, and the strings and ids of their steps.

use watchlock_core::protocol::{Kind, Location, Use};

/// Locks of all sorts, one after the other in the same document.
pub const MIXED: &[Use] = &[
    (Kind::Mutex, 1),
    (Kind::Semaphore, 1),
    (Kind::Semaphore, 3),
    (Kind::RwLock, 1 << 20),
    (Kind::Semaphore, 4),
];

/// Ids as clients make them.
const PLAIN: [&str; 5] = ["a-1", "a-2", "b-1", "b-2", "c-1"];

/// The subject of a run of sequences.
#[derive(Debug)]
pub struct Setup {
    pub at: Location,
    /// The kinds and capacities of the locks.
    pub uses: &'static [Use],
    /// Strings for names, owners and values: all of them hostile.
    pub strings: Vec<String>,
    /// Ids for entries: the plain ones, and then hostile ones. They are few, so that entries meet themselves again.
    pub ids: Vec<String>,
}

impl Setup {
    pub fn new(at: Location, uses: &'static [Use]) -> Self {
        let strings = hostile();
        let short = strings.iter().filter(|text| text.len() < 100).take(20).cloned();
        let ids = PLAIN.iter().map(|id| (*id).to_owned()).chain(short).collect();
        Self { at, uses, strings, ids }
    }

    /// Creates the setup of locks under a path. Where it is empty, a document is the lock's alone.
    pub fn at_path(path: &str, uses: &'static [Use]) -> Self {
        let at = if path.is_empty() {
            Location::default()
        } else {
            Location::under(path)
        };
        Self::new(at, uses)
    }

    pub fn plain_ids(&self) -> &[String] {
        &self.ids[..PLAIN.len()]
    }
}

/// Strings that would do harm if the server read them as anything but strings.
fn hostile() -> Vec<String> {
    let mut strings: Vec<String> = [
        "$$NOW",
        "$holders",
        "$$ROOT",
        "$_watchlock.holders",
        "a.b",
        "$",
        ".",
        "",
        "'",
        "\"",
        "\\",
        "{\"$ne\": 1}",
        "a\0b",
        "🔒🦀",
        "\u{202e}",
        "-",
        "h;",
        ";a-1+1@1;",
        "null",
        "a.b",
        "_watchlock",
    ]
    .map(str::to_owned)
    .to_vec();
    strings.push("x".repeat(1024));
    strings.push("é".repeat(512));
    strings
}
