//! The choices of what wakes waiters, and of how holders learn that their lock was taken away.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

use std::time::Duration;

use crate::input::{InvalidInput, at_least, at_most, check_count};

/// The source from which waiters may learn of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WakeSource {
    /// The change stream if there is one, polling if and while there is none.
    #[default]
    Auto,
    /// Like `Auto`, but building the client fails on a server without change streams.
    ChangeStream,
    /// Only polling: no change stream is opened.
    Polling,
}

/// The way in which a client learns that a lock it holds was broken, deleted or overwritten.
///
/// A change stream reports it the instant it happens, and each open stream is woken by every write of the whole replica
/// set. So what the holders of a fleet cost the server grows with the number of their clients times the writes of the
/// set. A read of the held locks costs the same on a busy set as on a quiet one, and finds out a little later. In every
/// case a lock is lost at its deadline at the latest, before the server would give it to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldWatch {
    /// By the change stream while the streams of all clients that hold locks in the collection cost the server at most
    /// so many thousandths of a processor core; by reads, every 250 ms or less often by the same budget, while they
    /// would cost more. Documents of your own are not counted: each client counts as the only one that holds some. 100,
    /// the default, is the streams of ten holders at 400 writes a second, or of a hundred at 40.
    Budget {
        /// Thousandths of a core, 1 to 64,000.
        millicores: u32,
    },
    /// By the change stream, however much it costs.
    Stream,
    /// By a read of the locks that the client holds after every pause of this length, a thousand at a time in turn; 10 ms
    /// to one minute.
    Reads(Duration),
}

/// Largest budget of change streams, in thousandths of a core: more cores than a server of a replica set has.
const MILLICORES_MOST: u32 = 64_000;

/// Shortest and longest pause between two reads of the held locks: a read takes about a millisecond, and a hold that is
/// looked at less often than once a minute may as well not be looked at.
const READS_LEAST: Duration = Duration::from_millis(10);
const READS_MOST: Duration = Duration::from_secs(60);

impl HoldWatch {
    pub(crate) fn check(self) -> Result<(), InvalidInput> {
        match self {
            Self::Stream => Ok(()),
            Self::Budget { millicores } => check_count(
                "budget of the holders' change streams",
                millicores,
                "thousandths of a core",
                1..=MILLICORES_MOST,
            ),
            Self::Reads(pause) => {
                at_least("pause between two reads of held locks", pause, READS_LEAST)?;
                at_most(
                    "pause between two reads of held locks",
                    pause,
                    "longest accepted value",
                    READS_MOST,
                )
            }
        }
    }
}

impl Default for HoldWatch {
    fn default() -> Self {
        Self::Budget { millicores: 100 }
    }
}
