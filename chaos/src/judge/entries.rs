//! The entries of the servers' log to which the holds of the clients belong.

use std::collections::{BTreeMap, HashMap};

use super::{Held, Moment};
use crate::history::History;

/// The number of tokens that one entry takes at most, for the tasks of its process.
const RANGE: i64 = 64;

/// The holders in the servers' log, by the name of the lock and their tokens.
#[derive(Debug, Default)]
pub(super) struct Entries<'a>(HashMap<&'a str, BTreeMap<i64, Logged<'a>>>);

/// The record of a holder in the log.
#[derive(Clone, Copy, Debug, Default)]
struct Logged<'a> {
    /// The client that it is of.
    client: &'a str,
    /// The last moment at which the log lets it be.
    until: Moment,
    /// Whether an earlier version has it.
    seen: bool,
    /// The document's counter while it was the only holder, or a reader with the last grant: the tokens up to this are
    /// its own.
    last: i64,
}

impl<'a> Entries<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let mut entries = Self::default();
        for version in &history.versions {
            let Some(state) = &version.state else { continue };
            let of_name = entries.0.entry(&version.name).or_default();
            for holder in &state.holders {
                let Some(token) = holder.token else { continue };
                let logged = of_name.entry(token).or_default();
                logged.client = holder.reason.split('#').next().unwrap_or_default();
                logged.until = logged.until.max(history.moment(holder.until));
                // Of a reader beside others only the write of its grant shows its range.
                let granted = std::mem::replace(&mut logged.seen, true);
                if state.holders.len() == 1 || !granted {
                    logged.last = logged.last.max(state.token);
                }
            }
        }
        entries
    }

    /// Returns the token under which the log has a hold: its own, or that of the task of its process which had the hold
    /// first and handed it on. `None`: the log does not have it.
    pub(super) fn token(&self, held: Held<'_>) -> Option<i64> {
        self.find(held).map(|(token, _)| token)
    }

    /// Returns up to when the log lets a hold be.
    pub(super) fn until(&self, held: Held<'_>) -> Option<Moment> {
        self.find(held).map(|(_, logged)| logged.until)
    }

    fn find(&self, held: Held<'_>) -> Option<(i64, Logged<'a>)> {
        let own = held.grant.token;
        let of_name = self.0.get(held.operation.name.as_str())?;
        if let Some(logged) = of_name.get(&own) {
            return Some((own, *logged));
        }
        let near = of_name
            .range(..own)
            .rev()
            .take_while(|(token, _)| own - **token < RANGE);
        // Ranges of several clients can be in use at a time: it has to be that of the client that asked.
        let reason = held.operation.entry_reason();
        let client = reason.split('#').next();
        let mut of_client = near.filter(|(_, logged)| Some(logged.client) == client);
        let (token, logged) = of_client.next()?;
        (own <= logged.last).then_some((*token, *logged))
    }
}
