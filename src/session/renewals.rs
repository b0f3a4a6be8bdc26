//! Which holds are renewed together, and when.
//!
//! Holds that are due at about the same time go together, in commands of up to a thousand, one command after the other:
//! a client with very many locks keeps one connection busy, and leaves the server to others. A hold with less than half
//! of its lease left does not wait for its turn.
//!
//! A renewal without an answer does not hold up the next, as a connection to a frozen or vanished server can hang for
//! longer than the lease. It is repeated beside itself when a sixth of the time is over that its holds have left. Then
//! its holds go out in as many commands as there may be at once, as a single document can be the one that hangs: one
//! that a transaction has written, about which the server says nothing until the transaction ends. So it costs the
//! others one round, and after two or three it is alone. The same is done with holds whose documents the server refuses
//! to write. A failed renewal is not a loss; the deadline is.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Session, Table,
    hold::{Hold, Turn},
    timer_queue::AT_A_TIME,
};

/// Maximum number of renewals that are awaited at once, and number of commands for the holds of one that was not
/// answered.
const AT_ONCE: usize = 32;

/// The renewals of a session that are on their way, without those that had another sent beside them.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    awaited: usize,
    /// Whether a [usual](Turn::Usual) one is among them.
    usual: bool,
}

/// The slot of a renewal that is on its way, for as long as its answer is awaited.
pub(super) struct Awaited {
    session: Arc<Session>,
    usual: bool,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        {
            let renewals = &mut self.session.table().renewals;
            renewals.awaited -= 1;
            renewals.usual &= !self.usual;
        }
        // Others may have waited for the slot.
        self.session.wake_heartbeat.notify_one();
    }
}

/// The holds that one command renews.
pub(super) struct Batch {
    pub(super) holds: Vec<Arc<Hold>>,
    usual: bool,
    pub(super) sent: Instant,
    /// Wait for an answer before another renewal goes out beside it.
    pub(super) pause: Duration,
    /// Time that the server may take.
    pub(super) within: Duration,
}

impl Batch {
    /// Returns its slot, which [`Table::next_batch`] has taken.
    pub(super) fn awaited(&self, session: &Arc<Session>) -> Awaited {
        Awaited {
            session: session.clone(),
            usual: self.usual,
        }
    }
}

impl Table {
    /// Returns when the next renewal is due for which there is room.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        let turns = [Turn::Usual, Turn::Urgent, Turn::Apart];
        let turns = turns.into_iter().filter(|_| self.renewals.awaited < AT_ONCE);
        let times = turns.filter_map(|turn| {
            let (at, hold) = self.timers.first_renewal(turn)?;
            let waits = turn == Turn::Usual && self.renewals.usual;
            Some(if waits { at.max(hold.upkeep().urgent_at()) } else { at })
        });
        times.min()
    }

    /// Returns how many holds go together of those that are renewed apart.
    pub(super) fn apart_together(&self, now: Instant) -> usize {
        let due = self.timers.count_renewals(Turn::Apart, now, AT_ONCE * AT_A_TIME);
        due.div_ceil(AT_ONCE)
    }

    /// Returns the next renewal for which there is room, and marks its holds as being renewed.
    pub(super) fn next_batch(&mut self, apart_together: usize, now: Instant) -> Option<Batch> {
        if self.renewals.awaited >= AT_ONCE {
            return None;
        }
        let mut holds = self.timers.take_renewals(Turn::Urgent, now, AT_A_TIME);
        if !holds.is_empty() {
            return Some(self.batch(holds, Turn::Urgent, now));
        }
        if let Some((_, hold)) = self.timers.first_renewal(Turn::Usual).filter(|(at, _)| *at <= now) {
            let is_late = hold.upkeep().urgent_at() <= now;
            // Those that are due soon go along, so that holds acquired at different times come to be renewed together.
            let soon = now + hold.lease.interval.unwrap_or_default() / 2;
            if is_late || !self.renewals.usual {
                let turn = if is_late { Turn::Urgent } else { Turn::Usual };
                holds = self.timers.take_renewals(Turn::Usual, soon, AT_A_TIME);
                return Some(self.batch(holds, turn, now));
            }
        }
        while holds.len() < apart_together
            && let Some((_, hold)) = self.timers.first_renewal(Turn::Apart).filter(|(at, _)| *at <= now)
        {
            // A transaction that is known of would hold up the others.
            let goes_alone = hold.upkeep().is_guarded();
            if goes_alone && !holds.is_empty() {
                break;
            }
            holds.extend(self.timers.take_renewals(Turn::Apart, now, 1));
            if goes_alone {
                break;
            }
        }
        (!holds.is_empty()).then(|| self.batch(holds, Turn::Apart, now))
    }

    fn batch(&mut self, holds: Vec<Arc<Hold>>, turn: Turn, now: Instant) -> Batch {
        // One time for all of them keeps them together.
        let pauses = holds.iter().map(|hold| hold.upkeep().pause(now));
        let pause = pauses.min().unwrap_or_default();
        // A command that hangs occupies a connection of the pool. So the first may hang for as long as it is of use,
        // and each repetition until the next but one is sent, which keeps few beside it.
        let within = if turn == Turn::Apart {
            pause * 2
        } else {
            let last = holds.iter().map(|hold| hold.deadline()).max().unwrap_or(now);
            last.saturating_duration_since(now)
        };
        for hold in &holds {
            hold.upkeep().sent(now, now + pause);
            self.timers.update(hold, now);
        }
        let usual = turn == Turn::Usual;
        self.renewals.awaited += 1;
        self.renewals.usual |= usual;
        Batch {
            holds,
            usual,
            sent: now,
            pause,
            within,
        }
    }
}
