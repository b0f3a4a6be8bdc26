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
    /// When the last line that needed the stream went away, which may have come since anything looked.
    pub(super) needed_until: Option<Instant>,
}

impl StreamDemand {
    /// Notes that the need of a line changed; `reads`: holders hear of losses by reads.
    pub(super) fn change(&mut self, before: Need, now: Need, reads: bool) {
        let was_needed = self.need_stream(reads);
        self.count(before).into_iter().for_each(|count| *count -= 1);
        self.count(now).into_iter().for_each(|count| *count += 1);
        if was_needed && !self.need_stream(reads) {
            self.needed_until = Some(Instant::now());
        }
    }

    /// Whether the stream is needed; `reads`: holders hear of losses by reads.
    pub(super) fn need_stream(&self, reads: bool) -> bool {
        self.stream > 0 || self.looks > LOOKS_MOST || (self.losses > 0 && !reads)
    }

    fn count(&mut self, need: Need) -> Option<&mut usize> {
        match need {
            Need::Nothing => None,
            Need::Looks => Some(&mut self.looks),
            Need::Losses => Some(&mut self.losses),
            Need::Stream => Some(&mut self.stream),
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
            assert!(!demand.need_stream(false), "{number}");
            demand.change(Need::Nothing, Need::Looks, false);
        }
        assert!(demand.need_stream(false));
        demand.change(Need::Looks, Need::Stream, false);
        demand.change(Need::Looks, Need::Nothing, false);
        assert!(demand.need_stream(false));
        assert_eq!(demand.needed_until, None);
        demand.change(Need::Stream, Need::Nothing, false);
        assert!(!demand.need_stream(false) && demand.needed_until.is_some());
        assert_eq!((demand.stream, demand.looks), (0, LOOKS_MOST - 1));
    }

    #[test]
    fn holders_need_the_stream_unless_they_read_their_locks() {
        let mut demand = StreamDemand::default();
        demand.change(Need::Nothing, Need::Losses, false);
        assert!(demand.need_stream(false) && !demand.need_stream(true));
        demand.change(Need::Nothing, Need::Stream, false);
        assert!(demand.need_stream(true), "a task waits for its turn");
    }
}
