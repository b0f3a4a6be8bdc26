//! Fencing tokens.

use std::collections::HashMap;

use super::{Case, Promise, Violation};

/// The grants among which a larger token was issued before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose<'a> {
    Anybody,
    /// Those beside which nobody else holds the lock.
    Excluding,
    Client(&'a str),
}

/// Checks that no token of a name is issued twice, and that a request after another's grant gets a larger one. A reader
/// that shares a hold of its process may have a smaller one than readers of other processes beside it. A hold that was left
/// behind and taken up has the token that it had.
pub(super) fn check(case: &Case<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for mut held in case.held_by_name().into_values() {
        held.retain(|held| !case.came_late(*held));
        let (taken_up, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.operation.takes_up());
        let own: HashMap<String, _> = held.iter().map(|held| (held.operation.reason(), held)).collect();
        for one in taken_up {
            let left = own.get(&one.operation.entry_reason());
            if left.is_none_or(|left| left.grant.token != one.grant.token) {
                let text = format!(
                    "{} took up {}",
                    one.describe(),
                    left.map_or_else(String::new, |left| left.describe())
                );
                violations.push(case.violation(Promise::Tokens, one, one.grant.from, text));
            }
        }
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
        let mut largest: HashMap<Whose<'_>, &super::Held<'_>> = HashMap::new();
        for one in by_request {
            while let Some(before) = granted.next_if(|before| before.grant.from < one.operation.requested) {
                let share = before.operation.share;
                let excludes = (share.permits == share.capacity).then_some(Whose::Excluding);
                let whose = [Whose::Anybody, Whose::Client(&before.operation.client)];
                for whose in whose.into_iter().chain(excludes) {
                    let largest = largest.entry(whose).or_insert(before);
                    if before.grant.token > largest.grant.token {
                        *largest = before;
                    }
                }
            }
            let bounds = match case.is_shared(one) {
                true => vec![Whose::Excluding, Whose::Client(&one.operation.client)],
                false => vec![Whose::Anybody],
            };
            let bounds = bounds.iter().filter_map(|whose| largest.get(whose));
            for largest in bounds.filter(|largest| largest.grant.token > one.grant.token) {
                let text = format!("{} asked after {} had been granted", one.describe(), largest.describe());
                violations.push(case.violation(Promise::Tokens, one, one.grant.from, text));
            }
        }
    }
    violations
}
