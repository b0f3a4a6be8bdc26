//! A client's record of itself, one JSON document a line.
//!
//! # What a line says
//!
//! `at` is a reading of the machine's monotonic clock, and it is *taken before* the event of its line:
//!
//! - `request`: before the acquire is polled for the first time.
//! - `granted` and `look`: before [`lost_reason`](watchlock::View::lost_reason) was asked, which then said `None`.
//!   The handle was valid when it was asked, later than `at`; a handle does not become valid again, and it had been
//!   returned before. So it was valid at `at`, *however long the process was frozen between the reading, the question
//!   and the writing of the line*. Whatever is derived from looks is proved: there are no false alarms.
//! - `safe_for`, asked in the same way, is a promise about the time after the look: until `at` plus `safe_for` nobody
//!   else gets the lock, unless it is given back or a foreign hand takes it. That closes the gaps between looks, and
//!   the time after the last look of a process that was frozen or killed: there is no blind spot either.
//! - `letting_go`: before the release is called, or the handle dropped or detached. Nothing is claimed from there on,
//!   except by a hold that was detached: its last promise stands, as nobody gives it back. Where a client has taken it up
//!   under its token, it lasted until that, as no entry of a document comes again.
//! - `lost`: before the question that was answered with a reason. Only promises of earlier looks count from there on.
//!
//! Every line goes to the file with one `write` as it comes up: a process that is killed simply ends, and leaves at
//! worst half a line.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::{clock::Moment, locks::Share};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) at: Moment,
    /// The number of the client's operation.
    pub(crate) op: u64,
    #[serde(flatten)]
    pub(crate) what: What,
}

/// The event of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum What {
    /// The client is ready.
    Ready { wake_mode: String },
    /// An acquire is about to be polled for the first time.
    Request {
        name: String,
        share: Share,
        task: usize,
        waits: bool,
        /// Number of milliseconds after which it gives up.
        #[serde(default)]
        limit: Option<u64>,
        #[serde(default)]
        upon: Option<Upon>,
    },
    /// It returned a handle that is valid.
    Granted { token: i64, safe_for: u64 },
    /// It returned a handle that was lost already.
    GrantedTooLate { token: i64 },
    /// The handle is still valid.
    Look { safe_for: u64 },
    /// The handle is not valid any more.
    Lost { reason: String },
    /// The handle is about to be released or dropped.
    LettingGo { released: bool },
    /// The release has returned.
    LetGo { outcome: String },
    /// The acquire ended without a handle.
    Ended { how: End, error: Option<String> },
    /// The locked document is about to be counted up.
    Writing { count: i64 },
    /// It was written, or surely not, or nobody knows.
    Wrote { written: Option<bool> },
    /// The way in which the client waits has changed.
    Wakes { by_stream: bool },
    /// What the process uses at this moment.
    Reading { figures: BTreeMap<String, u64> },
    /// Something is wrong, and needs no judge.
    Complaint { text: String },
    /// Everything has been given back; the process ends.
    Farewell,
}

/// The operation upon which another builds, by its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Upon {
    /// It takes up the hold that was detached from this one, as a try.
    Detached(String),
    /// It makes this upgradeable reader a writer.
    Reader(String),
    /// It is a part of the multi-lock that begins with this one.
    Multi(String),
    /// It waits while its task holds the lock of this one, and is told if that is a deadlock.
    Holding(String),
}

/// The outcome of a release that left the lock taken, for a client that takes the hold up.
pub(crate) const DETACHED: &str = "Detached";

/// The end of an acquire that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    TimedOut,
    NotFree,
    Cancelled,
    Deadlock,
    Failed,
}

/// The file of one process's records.
#[derive(Debug)]
pub(crate) struct Log(Mutex<File>);

impl Log {
    /// Appends to the file; creates it if there is none.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes a line.
    ///
    /// # Panics
    ///
    /// The disk is full or gone: a history with a hole must not be judged.
    pub(crate) fn write(&self, line: &impl Serialize) {
        let mut text = serde_json::to_string(line).expect("records are plain");
        text.push('\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(text.as_bytes()).expect("the history can't be written");
    }
}

/// Reads lines back, without a last line that its process did not finish before it was killed.
pub(crate) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<Vec<T>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole
        .lines()
        .map(|line| serde_json::from_str(line).map_err(io::Error::other));
    lines.collect()
}
