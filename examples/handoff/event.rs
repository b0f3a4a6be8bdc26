//! Reports of a worker to the scenes: one line of text per event.

use std::{fmt, str::FromStr, time::SystemTime};

use watchlock_testkit::stage::moment::{from_word, to_word};

/// A line of a worker.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// It has acquired the lock.
    Holds { token: i64, at: SystemTime },
    /// It is about to release the lock.
    Releases { at: SystemTime },
    /// It has lost the lock.
    Lost { at: SystemTime, reason: String },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds { token, at } => write!(f, "holds {} {token}", to_word(*at)),
            Self::Releases { at } => write!(f, "releases {}", to_word(*at)),
            Self::Lost { at, reason } => write!(f, "lost {} {reason}", to_word(*at)),
        }
    }
}

impl FromStr for Event {
    /// `()`: no worker wrote the line.
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let (word, rest) = line.split_once(' ').ok_or(())?;
        let (at, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let at = from_word(at).ok_or(())?;
        match word {
            "holds" => Ok(Self::Holds {
                token: rest.parse().map_err(|_| ())?,
                at,
            }),
            "releases" => Ok(Self::Releases { at }),
            "lost" => Ok(Self::Lost {
                at,
                reason: rest.to_owned(),
            }),
            _ => Err(()),
        }
    }
}
