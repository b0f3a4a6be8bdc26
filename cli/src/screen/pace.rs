//! When the locks are listed again, and when the view is drawn again, however many events and keys come.

use std::{future::pending, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Shortest time between two listings, however many events there are.
const PAUSE: Duration = Duration::from_millis(200);

/// Shortest time between two drawings because of events; a key is answered at once.
const FRAME: Duration = Duration::from_millis(50);

/// Multiple of a listing's duration to wait before the next one, so that slow listings do not take a whole core.
const REST: u32 = 4;

/// Age at which a listing is marked as stale, as one arrives about once a second.
const STALE: Duration = Duration::from_secs(4);

/// The rests between listings, and between drawings.
#[derive(Debug)]
pub(super) struct Pace {
    /// The start of the listing that is under way, one at a time.
    listing: Option<Instant>,
    /// Whether the locks have to be listed again.
    due: bool,
    /// The earliest start of the next listing.
    next: Instant,
    /// Whether there is something to draw.
    changed: bool,
    /// The earliest time of the next drawing.
    frame: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            listing: None,
            due: true,
            next: now,
            changed: true,
            frame: now,
        }
    }

    pub(super) fn is_listing_due(&self, now: Instant) -> bool {
        self.due && self.listing.is_none() && now >= self.next
    }

    /// Notes that a listing begins.
    pub(super) fn listing(&mut self, now: Instant) {
        (self.listing, self.due, self.next) = (Some(now), false, now + PAUSE);
    }

    /// Notes the end of the listing, and returns its duration.
    pub(super) fn listed(&mut self, now: Instant) -> Duration {
        let took = self.listing.take().map(|began| now - began).unwrap_or_default();
        self.next = self.next.max(now + took * REST);
        self.changed = true;
        took
    }

    pub(super) fn is_drawing_due(&self, now: Instant) -> bool {
        self.changed && now >= self.frame
    }

    /// Notes the end of a drawing. The next one rests from here on, as a terminal may be slow.
    pub(super) fn drawn(&mut self, now: Instant) {
        (self.changed, self.frame) = (false, now + FRAME);
    }

    /// Notes news of the locks: they are listed again, and drawn.
    pub(super) fn note_news(&mut self) {
        (self.due, self.changed) = (true, true);
    }

    /// Notes what is drawn at once: the answer to a key, or a terminal of another size.
    pub(super) fn note_answer(&mut self, now: Instant) {
        (self.changed, self.frame) = (true, now);
    }

    /// Waits until there is something to list or to draw; for ever if there is nothing.
    pub(super) async fn rest(&self) {
        match self.due_at() {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }

    fn due_at(&self) -> Option<Instant> {
        let lists_at = (self.due && self.listing.is_none()).then_some(self.next);
        let draws_at = self.changed.then_some(self.frame);
        lists_at.into_iter().chain(draws_at).min()
    }
}

/// Returns whether the last listing is of so long ago that the server seems not to answer.
pub(super) fn is_stale(age: Duration, took: Duration) -> bool {
    age > STALE.max(took * 2 * REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_are_listed_one_at_a_time_and_slow_listings_rest() {
        let start = Instant::now();
        let took = Duration::from_secs(1);
        let mut pace = Pace::new(start);
        assert!(pace.is_listing_due(start));
        pace.listing(start);
        pace.note_news();
        assert!(!pace.is_listing_due(start + PAUSE), "one is under way");
        assert_eq!(pace.listed(start + took), took);
        assert!(
            !pace.is_listing_due(start + took * 4),
            "it rests for four times its duration"
        );
        assert!(pace.is_listing_due(start + took * 5));
        pace.listing(start + took * 5);
        pace.listed(start + took * 5);
        assert!(!pace.is_listing_due(start + took * 9), "nothing has happened since");
    }

    #[test]
    fn quick_listings_rest_too() {
        let (start, tick) = (Instant::now(), Duration::from_millis(1));
        let mut pace = Pace::new(start);
        pace.listing(start);
        pace.listed(start + tick);
        pace.note_news();
        assert!(!pace.is_listing_due(start + PAUSE - tick));
        assert!(pace.is_listing_due(start + PAUSE));
    }

    #[test]
    fn events_are_drawn_together_and_a_key_is_answered_at_once() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.is_drawing_due(start));
        pace.listing(start);
        pace.drawn(start);
        assert_eq!(pace.due_at(), None);
        pace.note_news();
        assert!(!pace.is_drawing_due(start));
        assert_eq!(pace.due_at(), Some(start + FRAME));
        assert!(pace.is_drawing_due(start + FRAME));
        // On a slow terminal.
        pace.drawn(start + FRAME * 3);
        pace.note_news();
        assert!(!pace.is_drawing_due(start + FRAME * 3));
        assert_eq!(pace.due_at(), Some(start + FRAME * 4));
        pace.note_answer(start + FRAME * 3);
        assert!(pace.is_drawing_due(start + FRAME * 3));
    }

    #[test]
    fn a_listing_is_stale_when_several_more_should_have_come() {
        assert!(!is_stale(STALE, Duration::ZERO));
        assert!(is_stale(STALE + Duration::from_millis(1), Duration::ZERO));
        assert!(!is_stale(Duration::from_secs(16), Duration::from_secs(2)));
        assert!(is_stale(Duration::from_secs(17), Duration::from_secs(2)));
    }
}
