//! The bytes of all seeds, for the tests: a fuzzer makes its own.

use std::{
    env,
    panic::{self, AssertUnwindSafe},
};

use crate::{Random, share_of};

/// Runs the check on the bytes of this many seeds, or of half of them every day; on those that `WATCHLOCK_SEED` names,
/// if it is set.
///
/// # Panics
///
/// If the check does, after naming the seed.
pub fn on_all(seeds: u64, most: u64, check: impl Fn(&[u8])) {
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

/// Returns the bytes of a seed, at most so many.
pub fn bytes_of(seed: u64, most: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let length = random.below(most) + 1;
    let byte = |_| u8::try_from(random.below(256)).unwrap_or(0);
    (0..length).map(byte).collect()
}
