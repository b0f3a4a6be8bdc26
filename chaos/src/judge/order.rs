//! The order of turns within one client.

use std::collections::{BTreeMap, HashMap};

use super::{Case, Held, Promise, Violation};
use crate::{history::Operation, record::Upon};

/// Checks that the tasks of one client that wait for one lock are granted it in the order in which they began to wait. An
/// upgrade goes before all, and a part of a multi-lock begins to wait when it has the parts before.
///
/// The first grant of an entry counts, by the servers' log: a grant that its client never saw, as it was cut off until
/// the claim lease had run out, has had its turn. An entry may also have gone to a later task, where the one that asked
/// for it was handed the lock inside its process.
pub(super) fn turn(case: &Case<'_>) -> Vec<Violation> {
    let mut first: HashMap<(&str, &str), i64> = HashMap::new();
    for version in &case.history.versions {
        for holder in version.state.iter().flat_map(|state| &state.holders) {
            if let Some(token) = holder.token {
                let known = first.entry((&version.name, &holder.reason)).or_insert(token);
                *known = token.min(*known);
            }
        }
    }
    let mut lines: BTreeMap<(&str, &str), Vec<(Held<'_>, i64)>> = BTreeMap::new();
    let stands_in_line = |operation: &Operation| {
        let begins_by_itself = matches!(operation.upon, None | Some(Upon::Holding(_)));
        operation.waits && begins_by_itself
    };
    for held in case.held().into_iter().filter(|held| stands_in_line(held.operation)) {
        let operation = held.operation;
        let reason = operation.reason();
        let token = first.get(&(operation.name.as_str(), reason.as_str())).copied();
        lines.entry((&operation.client, &operation.name)).or_default().push((
            held,
            token.map_or(held.grant.token, |token| token.min(held.grant.token)),
        ));
    }
    let mut violations = Vec::new();
    for mut line in lines.into_values() {
        line.sort_by_key(|(held, _)| held.operation.number);
        for pair in line.windows(2) {
            let [(earlier, before), (later, after)] = [pair[0], pair[1]];
            if before > after {
                let text = format!(
                    "{} was granted after {}, which asked later",
                    earlier.describe(),
                    later.describe()
                );
                violations.push(case.violation(Promise::Turn, earlier, earlier.grant.from, text));
            }
        }
    }
    violations
}
