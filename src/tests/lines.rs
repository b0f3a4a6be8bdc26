//! The fuzzing of a waiting client of `watchlock_proofs` with the holds of the library, as tasks have them, and with the
//! errors that it makes of what they are told.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};
use watchlock_proofs::fuzzing::{
    Fuzzed,
    seeds::{bytes_of, on_all},
    waitlist_of,
};

use crate::{
    session::hold::{AcquireOutcome, Hold, ReleaseOutcome},
    status::LostReason,
};

impl Fuzzed for Hold {
    // Nobody listens.
    fn task() -> oneshot::Sender<AcquireOutcome> {
        oneshot::channel().0
    }

    fn release() -> oneshot::Sender<ReleaseOutcome> {
        oneshot::channel().0
    }

    fn tokens(&self) -> (i64, i64) {
        (self.token.as_i64(), self.granted_as)
    }

    fn believed_until(&self) -> Instant {
        self.deadline()
    }

    fn held_too_long(self: &Arc<Self>) -> Arc<Self> {
        self.lose(LostReason::HeldTooLong);
        self.clone()
    }
}

#[test]
fn a_hold_is_granted_only_as_a_document_says() {
    on_all(4_000, 320, |data| {
        waitlist_of::<Hold>(data);
    });
}

/// Else the fuzzing would say nothing about repeated requests, grants and claims.
#[test]
fn waitlists_with_holds_ask_again_are_granted_and_claim() {
    let courses = (0..1_000).map(|seed| waitlist_of::<Hold>(&bytes_of(seed, 320)));
    let (mut repeated, mut grants, mut claims) = (0, 0, 0);
    for course in courses {
        repeated += course.repeated;
        grants += course.grants;
        claims += course.claims;
    }
    assert!(
        repeated > 50 && grants > 500 && claims > 100,
        "{repeated}, {grants}, {claims}"
    );
}
