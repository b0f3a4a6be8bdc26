//! What a worker tells its parent: one line of text per event, on its standard output.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

/// A line of a worker.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// It has acquired the lock.
    Holds { token: i64, at: SystemTime },
    /// It is about to release the lock.
    Releases { at: SystemTime },
    /// It has lost the lock.
    Lost { at: SystemTime, reason: String },
    /// It can't go on.
    Failed { message: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds { token, at } => write!(f, "holds {} {token}", to_nanos(*at)),
            Self::Releases { at } => write!(f, "releases {}", to_nanos(*at)),
            Self::Lost { at, reason } => write!(f, "lost {} {reason}", to_nanos(*at)),
            // One line, whatever the driver has to say.
            Self::Failed { message } => write!(f, "failed {}", message.replace('\n', " ")),
        }
    }
}

impl Event {
    /// Reads a line; `None` when no worker wrote it.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        if word == "failed" {
            return Some(Self::Failed {
                message: rest.to_owned(),
            });
        }
        let (at, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let at = from_nanos(at)?;
        match word {
            "holds" => Some(Self::Holds {
                token: rest.parse().ok()?,
                at,
            }),
            "releases" => Some(Self::Releases { at }),
            "lost" => Some(Self::Lost {
                at,
                reason: rest.to_owned(),
            }),
            _ => None,
        }
    }
}

// All processes run on this machine, so the wall clock is one clock for all of them, and unlike `Instant` it can be
// written down.

fn to_nanos(at: SystemTime) -> u128 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

fn from_nanos(text: &str) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(text.parse().ok()?))
}
