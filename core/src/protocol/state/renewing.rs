//! Renewals: the writes that only extend leases.

use super::State;
use crate::protocol::{Entry, ServerTime, Showing, Shown, wake};

/// Renews the holders in `ids` whose leases have not run out, and returns whether that changed anything.
///
/// The document stays as it is where none of them holds: a renewal neither revives nor creates anew.
pub fn renew(state: &mut State, operation: &str, ids: &[String], keep: i64, now: ServerTime) -> bool {
    renew_and_show(state, operation, (ids, None), keep, now)
}

/// The same, and shows what their client does with them, unless a later renewal has shown that.
pub fn renew_and_show(
    state: &mut State,
    operation: &str,
    (ids, shows): (&[String], Option<&Showing>),
    keep: i64,
    now: ServerTime,
) -> bool {
    let mut renewed = false;
    for holder in &mut state.holders {
        if holder.is_live(now) && !holder.is_kept() && ids.contains(&holder.id) {
            // Renewals overtake each other, and none may take away time that another gave.
            let until = holder.until.max(now.plus_millis(holder.lease));
            renewed |= holder.until != until;
            holder.until = until;
            if let Some(Showing { idle, awaits, as_of }) = shows
                && holder.shown.as_ref().is_none_or(|shown| shown.as_of < *as_of)
            {
                holder.shown = Some(Shown {
                    is_idle: idle.contains(&holder.id),
                    awaits: awaits.get(&holder.id).cloned(),
                    as_of: *as_of,
                });
                renewed = true;
            }
        }
    }
    if renewed {
        state.stamp(wake::of_change(operation), keep, now);
    }
    renewed
}

/// Renews the holder `id` if it holds under this token, and returns whether it does; if so, it writes in any case.
///
/// A guard is a step of a transaction of the user's, which the in-memory store does not have. This one is compared with
/// the pipeline.
pub fn guard(state: &mut State, operation: &str, (id, token): (&str, i64), keep: i64, now: ServerTime) -> bool {
    let holds = |holder: &&mut Entry| holder.is_grant(id, token) && holder.is_live(now);
    let Some(holder) = state.holders.iter_mut().find(holds) else {
        return false;
    };
    holder.until = holder.until.max(now.plus_millis(holder.lease));
    state.stamp(wake::of_change(operation), keep, now);
    true
}
