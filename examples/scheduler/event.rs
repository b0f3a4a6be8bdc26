//! Reports of a node to the scenes: one line of text per event.

use std::{fmt, str::FromStr, time::SystemTime};

use watchlock_testkit::stage::moment::{from_word, to_word};

/// A line of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Its campaign was successful.
    Elected { at: SystemTime, token: i64 },
    /// It has run the job.
    Ran { at: SystemTime, token: i64, tick: i64 },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elected { at, token } => write!(f, "elected {} {token}", to_word(*at)),
            Self::Ran { at, token, tick } => write!(f, "ran {} {token} {tick}", to_word(*at)),
        }
    }
}

impl FromStr for Event {
    /// `()`: no node wrote the line.
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let number = |word: &str| word.parse::<i64>().map_err(|_| ());
        let moment = |word: &str| from_word(word).ok_or(());
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["elected", at, token] => Ok(Self::Elected {
                at: moment(at)?,
                token: number(token)?,
            }),
            ["ran", at, token, tick] => Ok(Self::Ran {
                at: moment(at)?,
                token: number(token)?,
                tick: number(tick)?,
            }),
            _ => Err(()),
        }
    }
}
