//! The checks on the bytes of all seeds, in every run of the tests.
//!
//! A failing seed is printed; run it again alone with `WATCHLOCK_SEED=<seed> cargo test -p watchlock-proofs --test
//! fuzzing`. `WATCHLOCK_SEED=0..1000000` runs more seeds than a daily run does.

use watchlock_proofs::fuzzing::{
    self, Course,
    seeds::{bytes_of, on_all},
};

#[test]
fn documents_of_any_kind_are_read_or_refused() {
    on_all(6_000, 64, |data| drop(fuzzing::lock(data)));
}

#[test]
fn words_of_any_kind_are_read_or_passed_over() {
    on_all(10_000, 64, fuzzing::words);
}

#[test]
fn nothing_is_granted_that_no_document_says() {
    on_all(4_000, 320, |data| {
        fuzzing::waitlist(data);
    });
}

/// Else the fuzzing of waitlists would say nothing about these.
#[test]
fn waitlists_at_random_ask_again_claim_upgrade_and_are_granted() {
    let courses: Vec<_> = (0..1_000).map(|seed| fuzzing::waitlist(&bytes_of(seed, 320))).collect();
    let number = |of: fn(&Course) -> usize| courses.iter().map(of).sum::<usize>();
    let repeated = number(|course| course.repeated);
    let claims = number(|course| course.claims);
    let upgrades = number(|course| course.upgrades);
    let grants = number(|course| course.grants);
    let all = [repeated, claims, upgrades, grants];
    assert!(
        repeated > 50 && claims > 100 && upgrades > 100 && grants > 500,
        "{all:?}"
    );
}
