//! Which holds are renewed together, and when.
//!
//! Holds that are due at about the same time go together, in commands of up to a thousand, one command after the other:
//! a client with very many locks keeps one connection busy, and leaves the server to others. A hold with less than half
//! of its lease left does not wait for its turn, but goes beside, in one of a few commands: all of them at once would make
//! an overloaded server slower still.
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

/// Maximum number of [urgent](Turn::Urgent) renewals among those: one alone could hang, and those of more than four
/// thousand holds are sooner done one after the other.
const URGENT_AT_ONCE: usize = 4;

/// The renewals of a session that are on their way, without those that had another sent beside them.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    /// By their turns.
    awaited: [usize; 3],
}

impl Renewals {
    /// Whether another may go out in this turn.
    fn has_room(&self, turn: Turn) -> bool {
        let most = match turn {
            Turn::Usual => 1,
            Turn::Urgent => URGENT_AT_ONCE,
            Turn::Apart => AT_ONCE,
        };
        self.awaited[turn as usize] < most && self.awaited.iter().sum::<usize>() < AT_ONCE
    }
}

/// The slot of a renewal that is on its way, for as long as its answer is awaited.
pub(super) struct Awaited {
    session: Arc<Session>,
    turn: Turn,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.session.table().renewals.awaited[self.turn as usize] -= 1;
        // Others may have waited for the slot.
        self.session.wake_heartbeat.notify_one();
    }
}

/// The holds that one command renews.
pub(super) struct Batch {
    pub(super) holds: Vec<Arc<Hold>>,
    turn: Turn,
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
            turn: self.turn,
        }
    }
}

impl Table {
    /// Returns when the next renewal is due for which there is room.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        let turns = [Turn::Usual, Turn::Urgent, Turn::Apart];
        let times = turns.into_iter().filter_map(|turn| {
            let (at, hold) = self.timers.first_renewal(turn)?;
            if self.renewals.has_room(turn) {
                return Some(at);
            }
            let goes_beside = turn == Turn::Usual && self.renewals.has_room(Turn::Urgent);
            goes_beside.then(|| at.max(hold.upkeep().urgent_at()))
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
        let [usual, urgent, apart] = [Turn::Usual, Turn::Urgent, Turn::Apart].map(|turn| self.renewals.has_room(turn));
        let mut holds = Vec::new();
        if urgent {
            holds = self.timers.take_renewals(Turn::Urgent, now, AT_A_TIME);
            if !holds.is_empty() {
                return Some(self.batch(holds, Turn::Urgent, now));
            }
        }
        if let Some((_, hold)) = self.timers.first_renewal(Turn::Usual).filter(|(at, _)| *at <= now) {
            let is_late = hold.upkeep().urgent_at() <= now;
            // Those that are due soon go along, so that holds acquired at different times come to be renewed together.
            let soon = now + hold.upkeep().lease().interval.unwrap_or_default() / 2;
            let goes_beside = is_late && urgent;
            if goes_beside || usual {
                let turn = if goes_beside { Turn::Urgent } else { Turn::Usual };
                holds = self.timers.take_renewals(Turn::Usual, soon, AT_A_TIME);
                return Some(self.batch(holds, turn, now));
            }
        }
        while apart
            && holds.len() < apart_together
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
        self.renewals.awaited[turn as usize] += 1;
        Batch {
            holds,
            turn,
            sent: now,
            pause,
            within,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Settings,
        hold_options::Terms,
        protocol::{Kind, ServerTime},
        store::{MemoryStore, Store},
        tests::simulated::Link,
        waitlist::{Grant, How, deadline::Deadline},
        wake_mode::WakeMode,
    };

    /// Whether they came to be late while they waited, or have been so before.
    #[tokio::test(start_paused = true)]
    async fn renewals_that_are_late_do_not_go_out_all_at_once() {
        let second = Duration::from_secs(1);
        let link = Link::new(Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000))), 1);
        let config = Settings::default().validate().unwrap();
        let session = Session::of(
            "a".to_owned(),
            config,
            Store::Simulated(link),
            None,
            WakeMode::ChangeStream,
        );
        let begun = Instant::now();
        for (left, count) in [(10, 5 * AT_A_TIME), (20, 3 * AT_A_TIME)] {
            for number in 0..count {
                let grant = Grant {
                    token: 1,
                    granted_as: 1,
                    used: (Kind::Mutex, 1),
                    permits: 1,
                    lease: Terms::default().lease(&Settings::default().unchecked()),
                    deadline: Deadline::at(begun + left * second),
                    renew_at: Some(begun),
                    how: How::AtOnce,
                };
                let hold = Arc::new(Hold::new(format!("a-{number}"), format!("lock {number}"), &grant));
                session.table().timers.came(&hold, begun);
            }
        }
        // Nothing else runs meanwhile.
        tokio::time::advance(6 * second).await;
        let next = || session.table().next_batch(0, Instant::now());
        let mut batches: Vec<Batch> = std::iter::from_fn(next).collect();
        assert_eq!(batches.len(), URGENT_AT_ONCE + 1);
        for _ in 0..3 {
            drop(batches.remove(0).awaited(&session));
            batches.extend(next());
        }
        assert_eq!(batches.len(), URGENT_AT_ONCE + 1);
        drop(batches.pop().unwrap().awaited(&session));
        assert!(next().is_none(), "all have gone out");
    }
}
