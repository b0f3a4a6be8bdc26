//! Joining a hold: a task that may re-enter has the hold of another task of this client, without the server.
//!
//! It joins only the very same share: as many permits of the same kind. So a reader gets in although a writer waits:
//! behind the writer, which waits for the reader's own hold, it would be stuck. And no reader becomes a writer by it.

use std::sync::Arc;

use super::{Effect, Hold, Key, Step, Waiting, Waitlist};

impl<H: Hold> Step<'_, H> {
    /// Answers the tasks that may join a hold granted since they came.
    pub(super) fn let_reenter(&mut self) {
        if !self.may_have_reentering {
            // Of thousands that wait, hardly ever one may: this is part of each hand-over.
            return;
        }
        let reentering = self.waiting.iter().filter(|waiting| waiting.wants.reentrant);
        let keys: Vec<Key> = reentering.map(|waiting| waiting.key).collect();
        self.may_have_reentering = !keys.is_empty();
        for key in keys {
            let waiting = self.waiting.iter().find(|waiting| waiting.key == key);
            if let Some(hold) = waiting.and_then(|waiting| self.reenter(waiting))
                && let Some(to) = self.cancel(key)
            {
                self.effects.push(Effect::Granted { to, hold });
            }
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Returns a hold of this client that the task may join, with one more handle: the oldest that is not over.
    pub(super) fn reenter(&self, waiting: &Waiting<H::Task>) -> Option<Arc<H>> {
        if !waiting.wants.reentrant {
            return None;
        }
        let same = |held: &&super::Held<H>| held.used == waiting.wants.used && held.idle.is_none();
        let mut holds: Vec<_> = self.holds.values().filter(same).collect();
        holds.sort_unstable_by_key(|held| held.token);
        let mut tasks = holds.into_iter().flat_map(|held| &held.tasks);
        tasks.find(|hold| hold.enter(waiting.wants.permits)).cloned()
    }
}
