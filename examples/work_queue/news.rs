//! Reports of a worker to the scenes: one line of text each.

use std::{fmt, str::FromStr};

/// A line of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// It has locked an event and begins to process it.
    Took { event: i64, token: i64 },
    /// It has processed an event.
    Finished { event: i64 },
    /// It was too late: it had lost its lock on the event, and its update was not made.
    Refused { event: i64 },
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Took { event, token } => write!(f, "took {event} {token}"),
            Self::Finished { event } => write!(f, "finished {event}"),
            Self::Refused { event } => write!(f, "refused {event}"),
        }
    }
}

impl FromStr for News {
    /// `()`: no worker wrote the line.
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let number = |word: &str| word.parse::<i64>().map_err(|_| ());
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["took", event, token] => Ok(Self::Took {
                event: number(event)?,
                token: number(token)?,
            }),
            ["finished", event] => Ok(Self::Finished { event: number(event)? }),
            ["refused", event] => Ok(Self::Refused { event: number(event)? }),
            _ => Err(()),
        }
    }
}
