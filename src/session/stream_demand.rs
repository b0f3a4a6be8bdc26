//! The lines' demand for the change stream, counted: the count is asked for after every event.

use tokio::time::Instant;

use super::line::Need;

/// Maximum number of names whose queues a session looks at, or whose next events it reckons. Beyond that one stream costs
/// less than the reads.
pub(super) const LOOKS_MOST: usize = 8;

/// The number of lines with each need of the change stream.
#[derive(Debug, Default)]
pub(super) struct StreamDemand {
    stream: usize,
    losses: usize,
    pub(super) looks: usize,
    /// Whether holders hear of losses by reads, and not by the stream.
    reads_losses: bool,
    /// When the last line that needed the stream went away.
    pub(super) unneeded_since: Option<Instant>,
}

impl StreamDemand {
    /// Notes that the need of a line changed.
    pub(super) fn change(&mut self, before: Need, now: Need) {
        self.update(|demand| {
            if let Some(count) = demand.count(before) {
                *count -= 1;
            }
            if let Some(count) = demand.count(now) {
                *count += 1;
            }
        });
    }

    /// Sets whether holders hear of losses by reads.
    pub(super) fn read_losses(&mut self, reads: bool) {
        self.update(|demand| demand.reads_losses = reads);
    }

    pub(super) fn need_stream(&self) -> bool {
        self.stream > 0 || self.looks > LOOKS_MOST || (self.losses > 0 && !self.reads_losses)
    }

    fn count(&mut self, need: Need) -> Option<&mut usize> {
        match need {
            Need::Nothing => None,
            Need::Looks => Some(&mut self.looks),
            Need::Losses => Some(&mut self.losses),
            Need::Stream => Some(&mut self.stream),
        }
    }

    fn update(&mut self, change: impl FnOnce(&mut Self)) {
        let needed = self.need_stream();
        change(self);
        if needed && !self.need_stream() {
            self.unneeded_since = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_needed_for_one_that_waits_for_events_or_many_that_look() {
        let mut demand = StreamDemand::default();
        for number in 1..=LOOKS_MOST + 1 {
            assert!(!demand.need_stream(), "{number}");
            demand.change(Need::Nothing, Need::Looks);
        }
        assert!(demand.need_stream() && demand.unneeded_since.is_none());
        demand.change(Need::Looks, Need::Stream);
        demand.change(Need::Looks, Need::Nothing);
        assert!(demand.need_stream() && demand.unneeded_since.is_none());
        demand.change(Need::Stream, Need::Nothing);
        assert!(!demand.need_stream() && demand.unneeded_since.is_some());
        assert_eq!((demand.stream, demand.looks), (0, LOOKS_MOST - 1));
    }

    #[test]
    fn holders_need_the_stream_unless_they_read_their_locks() {
        let mut demand = StreamDemand::default();
        demand.change(Need::Nothing, Need::Losses);
        assert!(demand.need_stream() && demand.unneeded_since.is_none());
        demand.read_losses(true);
        assert!(!demand.need_stream() && demand.unneeded_since.is_some());
        demand.change(Need::Nothing, Need::Stream);
        assert!(demand.need_stream(), "a task waits for its turn");
        demand.change(Need::Stream, Need::Nothing);
        demand.read_losses(false);
        assert!(demand.need_stream());
    }
}
