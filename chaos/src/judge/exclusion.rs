//! Exclusion: a lock is never held more often at once than it has room for.

use super::{Case, Held, Promise, Violation};
use crate::clock::{MILLI, Moment};

/// Checks that at no moment the handles that call themselves valid, or have called themselves safe for longer, exceed
/// the capacity, and that no hold has two handles.
pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for held in case.held_by_name().into_values() {
        // The holds that may still last when the next comes.
        let mut open: Vec<(Held<'_>, Moment)> = Vec::new();
        for next in held {
            let Some(until) = case.claimed_until(next).filter(|until| *until > next.grant.from) else {
                continue;
            };
            open.retain(|(_, until)| *until > next.grant.from);
            let share = next.operation.share;
            let taken: u64 = open
                .iter()
                .map(|(held, _)| u64::from(held.operation.share.permits))
                .sum();
            let twice = open.iter().any(|(held, _)| held.grant.token == next.grant.token);
            if twice || taken + u64::from(share.permits) > u64::from(share.capacity) {
                let others: Vec<String> = open
                    .iter()
                    .map(|(held, until)| {
                        format!(
                            "{} for another {} ms",
                            held.describe(),
                            (until - next.grant.from) / MILLI
                        )
                    })
                    .collect();
                let text = format!(
                    "{} was granted while it was held by {}",
                    next.describe(),
                    others.join(", ")
                );
                violations.push(case.violation(Promise::Exclusion, next, next.grant.from, text));
            }
            open.push((next, until));
        }
    }
    violations
}
