//! The lines' needs of the change stream, counted: the count is asked for after every event.

use tokio::time::Instant;

use super::line::Need;

/// Maximum number of names whose queues a session looks at. Beyond that one stream costs less than the reads.
pub(super) const LOOKS_MOST: usize = 8;

/// The number of lines with each need of the change stream.
#[derive(Debug, Default)]
pub(super) struct Needs {
    stream: usize,
    pub(super) looks: usize,
    /// When the last line that needed the stream went away.
    pub(super) unneeded_since: Option<Instant>,
}

impl Needs {
    /// Notes that the need of a line changed.
    pub(super) fn change(&mut self, before: Need, now: Need) {
        let needed = self.need_stream();
        match before {
            Need::Nothing => {}
            Need::Looks => self.looks -= 1,
            Need::Stream => self.stream -= 1,
        }
        match now {
            Need::Nothing => {}
            Need::Looks => self.looks += 1,
            Need::Stream => self.stream += 1,
        }
        if needed && !self.need_stream() {
            self.unneeded_since = Some(Instant::now());
        }
    }

    pub(super) fn need_stream(&self) -> bool {
        self.stream > 0 || self.looks > LOOKS_MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_needed_for_one_that_waits_for_events_or_many_that_look() {
        let mut needs = Needs::default();
        for number in 1..=LOOKS_MOST + 1 {
            assert!(!needs.need_stream(), "{number}");
            needs.change(Need::Nothing, Need::Looks);
        }
        assert!(needs.need_stream() && needs.unneeded_since.is_none());
        needs.change(Need::Looks, Need::Stream);
        needs.change(Need::Looks, Need::Nothing);
        assert!(needs.need_stream() && needs.unneeded_since.is_none());
        needs.change(Need::Stream, Need::Nothing);
        assert!(!needs.need_stream() && needs.unneeded_since.is_some());
        assert_eq!((needs.stream, needs.looks), (0, LOOKS_MOST - 1));
    }
}
