//! Fencing tokens.

use std::collections::HashMap;

use super::{Case, Promise, Violation};

/// Checks that no token of a name is issued twice, and that a request after another's grant gets a larger one.
pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for mut held in case.held_by_name().into_values() {
        held.retain(|held| !case.came_late(*held));
        let mut seen = HashMap::new();
        for one in &held {
            if let Some(other) = seen.insert(one.grant.token, one) {
                let text = format!("{} and {} have the same", other.describe(), one.describe());
                violations.push(case.violation(Promise::Tokens, *one, one.grant.from, text));
            }
        }
        // Grants in their order, and requests in theirs: what was granted before a request is a prefix of the first.
        let mut by_request = held.clone();
        by_request.sort_by_key(|held| held.operation.requested);
        let mut granted = held.iter().peekable();
        let mut largest: Option<&super::Held<'_>> = None;
        for one in by_request {
            while let Some(before) = granted.next_if(|before| before.grant.from < one.operation.requested) {
                if largest.is_none_or(|largest| before.grant.token > largest.grant.token) {
                    largest = Some(before);
                }
            }
            if let Some(largest) = largest.filter(|largest| largest.grant.token > one.grant.token) {
                let text = format!("{} asked after {} had been granted", one.describe(), largest.describe());
                violations.push(case.violation(Promise::Tokens, one, one.grant.from, text));
            }
        }
    }
    violations
}
