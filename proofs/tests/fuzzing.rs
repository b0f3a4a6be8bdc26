//! The checks on the bytes of all seeds, in every run of the tests.
//!
//! A failing seed is printed; run it again alone with `WATCHLOCK_SEED=<seed> cargo test -p watchlock-proofs --test
//! fuzzing`. `WATCHLOCK_SEED=0..1000000` runs more seeds than a daily run does.

use watchlock_proofs::fuzzing::{
    self,
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

/// Else the fuzzing of waitlists would say nothing about looks.
#[test]
fn waitlists_at_random_send_looks() {
    let sent: usize = (0..1_000)
        .map(|seed| fuzzing::waitlist(&bytes_of(seed, 320)).looks)
        .sum();
    assert!(sent > 50, "{sent}");
}

/// Else it would say nothing about grants.
#[test]
fn waitlists_at_random_are_granted() {
    let granted: usize = (0..1_000)
        .map(|seed| fuzzing::waitlist(&bytes_of(seed, 320)).grants)
        .sum();
    assert!(granted > 500, "{granted}");
}

/// Else it would say nothing about claims.
#[test]
fn waitlists_at_random_claim() {
    let claimed: usize = (0..1_000)
        .map(|seed| fuzzing::waitlist(&bytes_of(seed, 320)).claims)
        .sum();
    assert!(claimed > 100, "{claimed}");
}
