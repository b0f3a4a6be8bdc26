//! Quantiles, fairness, and the question whether a number has moved.

/// Part by which a number must move at least before that is reported, however quiet the rounds were.
const LEAST_MOVE: f64 = 0.05;

/// Returns the sample at this part of the sorted samples (0 is the least, 1 the greatest), or NaN where there is none.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place among some thousands"
    )]
    let place = (last as f64 * part).round() as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// Returns the samples in order.
pub(crate) fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}

/// Returns the sample in the middle, or NaN where there is none.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(&sorted(samples.to_vec()), 0.5)
}

/// Returns Jain's index of these shares: 1 where all are equal, 1/n where one has everything. Nothing at all, shared by
/// anybody, is fair.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, squares + share * share)
    });
    if squares == 0.0 {
        return 1.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a number of waiters")]
    let count = shares.len() as f64;
    sum * sum / (count * squares)
}

/// Returns the distance between the least and the greatest of the rounds.
pub(crate) fn spread(rounds: &[f64]) -> f64 {
    let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most - least).max(0.0)
}

/// Returns whether the medians of two series of rounds lie further apart than either series does in itself, and than a
/// twentieth.
pub(crate) fn differ(one: &[f64], other: &[f64]) -> bool {
    let (a, b) = (median(one), median(other));
    let noise = spread(one).max(spread(other)).max(LEAST_MOVE * a.abs().min(b.abs()));
    (a - b).abs() > noise
}

/// Returns a number with three digits that say something.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_samples() {
        let samples: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        let samples = sorted(samples);
        assert_eq!(quantile(&samples, 0.0), 1.0);
        assert_eq!(quantile(&samples, 0.5), 51.0);
        assert_eq!(quantile(&samples, 0.9), 91.0);
        assert_eq!(quantile(&samples, 0.99), 100.0);
        assert_eq!(quantile(&samples, 1.0), 101.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn fairness_lies_between_one_and_one_of_many() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[1.0, 3.0]) - 0.8).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
        assert_eq!(jain(&[]), 1.0);
    }

    #[test]
    fn a_move_within_the_noise_of_either_run_is_none() {
        // Each run is spread by 20, and they lie 10 apart.
        assert!(!differ(&[90.0, 100.0, 110.0], &[100.0, 110.0, 120.0]));
        assert!(!differ(&[100.0, 100.0, 100.0], &[80.0, 110.0, 120.0]));
        assert!(differ(&[99.0, 100.0, 101.0], &[109.0, 110.0, 111.0]));
        assert!(differ(&[109.0, 110.0, 111.0], &[99.0, 100.0, 101.0]));
    }

    #[test]
    fn a_single_round_has_a_twentieth_of_noise() {
        assert!(!differ(&[100.0], &[104.0]));
        assert!(differ(&[100.0], &[106.0]));
        assert!(!differ(&[0.0], &[0.0]));
        assert!(differ(&[0.0], &[1.0]));
    }

    #[test]
    fn nothing_is_known_of_no_rounds() {
        assert!(!differ(&[], &[1.0]));
        assert_eq!(spread(&[]), 0.0);
    }
}
