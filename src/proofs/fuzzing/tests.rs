//! The checks on the bytes of all seeds, in every run of the tests.
//!
//! A failing seed is printed; run it again alone with `WATCHLOCK_SEED=<seed> cargo test --lib fuzzing`.
//! `WATCHLOCK_SEED=0..1000000` runs more seeds than a daily run does.

use std::{
    env,
    panic::{self, AssertUnwindSafe},
};

use super::Choices;
use crate::proofs::{random::Random, share_of};

/// Runs the check on the bytes of this many seeds, or of half of them every day.
fn on_all(seeds: u64, most: u64, check: fn(&[u8])) {
    let seeds = match env::var("WATCHLOCK_SEED") {
        Ok(named) => {
            let number = |text: &str| text.parse::<u64>().expect("a number");
            match named.split_once("..") {
                Some((from, to)) => number(from)..number(to),
                None => number(&named)..number(&named) + 1,
            }
        }
        Err(_) => 0..share_of(seeds),
    };
    for seed in seeds {
        let data = bytes_of(seed, most);
        if let Err(why) = panic::catch_unwind(AssertUnwindSafe(|| check(&data))) {
            eprintln!("seed {seed}: WATCHLOCK_SEED={seed} runs it again");
            panic::resume_unwind(why);
        }
    }
}

fn bytes_of(seed: u64, most: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let length = random.below(most) + 1;
    let byte = |_| u8::try_from(random.below(256)).expect("a byte");
    (0..length).map(byte).collect()
}

#[test]
fn documents_of_any_kind_are_read_or_refused() {
    on_all(6_000, 64, super::lock);
}

#[test]
fn events_of_any_kind_are_read_or_passed_over() {
    on_all(6_000, 64, super::event);
    on_all(10_000, 64, super::words);
}

#[test]
fn ids_of_any_kind_have_a_name() {
    on_all(10_000, 32, super::name);
}

#[test]
fn errors_of_any_kind_are_sorted() {
    on_all(10_000, 32, super::failure);
}

#[test]
fn nothing_is_granted_that_no_document_says() {
    on_all(4_000, 320, super::line);
}

/// Else the fuzzing of lines would say nothing about looks.
#[test]
fn lines_at_random_send_looks() {
    let looks = |seed| super::line::drive(&mut Choices::new(&bytes_of(seed, 320)));
    let sent: usize = (0..1_000).map(looks).sum();
    assert!(sent > 50, "{sent}");
}
