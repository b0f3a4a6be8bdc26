//! Random choices of the scenes.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Returns a duration between two, each as likely as any other.
pub fn between(least: Duration, most: Duration) -> Duration {
    // The standard library protects its hash maps with this: new random keys each time, and no dependency.
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    let fraction = f64::from(u32::try_from(bits).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    least + most.saturating_sub(least).mul_f64(fraction)
}

/// Returns one of them, each as likely as any other; `None` where there is none.
pub fn one_of<T>(things: &[T]) -> Option<&T> {
    let count = u64::try_from(things.len()).ok().filter(|&count| count > 0)?;
    things.get(usize::try_from(RandomState::new().hash_one(0_u8) % count).ok()?)
}
