//! The choice of how holders learn that their lock was taken away.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

use std::time::Duration;

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

impl HoldWatch {
    /// Budget of streams in thousandths of a core, if none is set.
    const MILLICORES: u32 = 100;
}

impl Default for HoldWatch {
    fn default() -> Self {
        Self::Budget {
            millicores: Self::MILLICORES,
        }
    }
}
