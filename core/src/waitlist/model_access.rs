//! The model's access to the waitlist: timers that the checker fires, and the parts of a value that decide its next
//! step.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Hold, Leaving, SWEEPS, Stage, Waiting, Waitlist, timing};
use crate::protocol::KeptUntil;

/// One word of a value for its comparison with other values: times count from now, and tokens by their order.
#[derive(Clone, Copy, Debug)]
pub enum Word<'a> {
    Entry(&'a str),
    Token(i64),
    Time(Instant),
    Number(i64),
}

impl<H: Hold> Waitlist<H> {
    pub fn token_of_hold(&self, entry: &str) -> Option<i64> {
        self.holds.get(entry).map(|held| held.token)
    }

    /// Changes a hold as its task has it.
    pub fn change_hold(&mut self, hold: &H, change: impl FnOnce(&mut H))
    where
        H: Clone,
    {
        let held = self.holds.get_mut(hold.entry());
        let mut tasks = held.into_iter().flat_map(|held| &mut held.tasks);
        if let Some(task) = tasks.find(|task| task.is_same(hold)) {
            change(Arc::make_mut(task));
        }
    }

    /// Whether a timer has cause to fire.
    pub fn may_ask(&self, now: Instant) -> bool {
        let leaves = || self.leaving.iter().any(|leaving| leaving.not_before <= now);
        self.under_way.is_none() && (!self.waiting.is_empty() || leaves())
    }

    /// Whether the task with the client's queue position, if there is one, is in the server's queue as far as it knows, is
    /// being asked for, or pauses: the queue was full, or the last try failed.
    pub fn is_lined_up(&self) -> bool {
        let pauses = self.under_way.is_some() || self.is_full || self.retry_at.is_some();
        pauses || self.waiting.get(self.place()).is_none_or(Waiting::is_queued)
    }

    /// Fires the timers: a pause is over, and the head asks again.
    pub fn fire_timers(&mut self, now: Instant) {
        (self.retry_at, self.ask_at) = (None, Some(now));
    }

    /// Puts every timer off until the checker fires it. Sweeps follow each other by a `tick`, and there is one. Entries
    /// are never left to the server's expiry.
    pub fn stop_timers(&mut self, now: Instant, tick: Duration, never: Instant) {
        let put_off = |at: &mut Instant| {
            if *at > now {
                *at = never;
            }
        };
        self.ask_at.iter_mut().for_each(put_off);
        self.retry_at.iter_mut().for_each(put_off);
        self.prospect = None;
        self.pace = Duration::ZERO;
        if !self.waiting.iter().any(Waiting::is_queued) {
            // The answer that shows a queued head sets these anew.
            self.ask_at.take_if(|_| !self.is_full);
            self.others_wait.take_if(|wait| !*wait);
        }
        // A tick is longer than the time for which a holder is expected to be alone still.
        let old = now - timing::SHORT_HOLD - tick;
        if self.alone_at.is_some_and(|at| at < now || self.holds.is_empty()) {
            self.alone_at = Some(old);
        }
        self.races = 0;
        (self.backoff, self.overdue) = Default::default();
        if let Some(idle) = &mut self.idle {
            put_off(&mut idle.attend_at);
        }
        for leaving in self.leaving.iter_mut().chain(self.under_way.iter_mut().flatten()) {
            leaving.give_up = never;
            if leaving.not_before > now {
                leaving.not_before = now + tick;
            }
            if leaving.is_sweep() {
                leaving.sweep = Some(SWEEPS.len());
            }
        }
    }

    /// Returns the tokens among its [`words`](Self::words).
    pub fn tokens(&self) -> impl Iterator<Item = i64> {
        let above = self.waiting.iter().map(|waiting| waiting.above);
        let held = self.holds.values().map(|held| held.token);
        let handing_on = self.holds.values().filter_map(|held| held.handing_on.as_ref());
        let leaving = self.leaving.iter().chain(self.under_way.iter().flatten());
        let kept = leaving.filter_map(|leaving| leaving.left_as.kept());
        above
            .chain(held)
            .chain(kept.map(|kept| kept.token))
            .chain(self.expired.iter().map(|expired| expired.token))
            .chain(handing_on.flat_map(|handing_on| [handing_on.token, handing_on.last]))
    }

    /// Whether anything known of the hold that no task has may be wrong.
    pub fn idle_in_doubt(&self) -> bool {
        let held = self.idle.as_ref().and_then(|idle| self.holds.get(&idle.entry));
        let handing_on = held.and_then(|held| held.handing_on.as_ref());
        handing_on.is_some_and(|it| it.doubted_at.is_some())
    }

    /// Takes a task out and leaves its entry where it is: the mistake that the model must find.
    pub fn vanish(&mut self, key: super::Key) {
        self.waiting.retain(|waiting| waiting.key != key);
    }

    /// Has all readers but one part with a hold that they share: the mistake that the model must find.
    pub fn forget_sharers(&mut self, hold: &H) {
        if let Some(held) = self.holds.get_mut(hold.entry()) {
            held.tasks.retain(|task| task.is_same(hold));
        }
    }

    /// Writes everything that decides this value's next step, after a call of [`stop_timers`](Self::stop_timers).
    pub fn words<'a>(&'a self, now: Instant, write: &mut impl FnMut(Word<'a>)) {
        let mut flags = Vec::with_capacity(32);
        for waiting in &self.waiting {
            write(Word::Entry(&waiting.entry));
            write(Word::Number(waiting.wants.permits));
            write(Word::Number(waiting.capacity));
            write(Word::Token(waiting.above));
            let stage = match waiting.stage {
                Stage::New => 0,
                Stage::Asked => 1,
                Stage::Queued => 2,
            };
            write(Word::Number(stage));
            flags.extend([waiting.waits(), waiting.uncertain, waiting.upgrades()]);
            if !waiting.waits() {
                flags.extend([waiting.covered && self.under_way.is_some(), waiting.let_down]);
            }
        }
        write(Word::Number(-1));
        let mut holds: Vec<_> = self.holds.iter().collect();
        holds.sort_unstable_by_key(|(_, held)| held.token);
        for (entry, held) in holds {
            write(Word::Entry(entry));
            write(Word::Number(held.permits));
            write(Word::Number(held.tasks.len().try_into().unwrap_or(-1)));
            write(Word::Token(held.token));
            flags.extend([held.uncertain, held.handing_on.is_some(), self.is_idle(entry)]);
            if let Some(handing_on) = &held.handing_on {
                flags.push(handing_on.doubted_at.is_some());
                write(Word::Token(handing_on.token));
                write(Word::Token(handing_on.last));
            }
        }
        write(Word::Number(-1));
        for expired in &self.expired {
            write(Word::Entry(&expired.entry));
            write(Word::Token(expired.token));
            write(Word::Time(expired.forget_at));
        }
        write(Word::Number(-1));
        for leaving in self.leaving.iter().chain(self.under_way.iter().flatten()) {
            leaving.words(write);
            flags.extend([leaving.may_hold, leaving.repeated, leaving.used.is_some()]);
            flags.push(leaving.left_as.kept().is_some());
        }
        write(Word::Number(self.leaving.len().try_into().unwrap_or(-1)));
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let alone = self.alone_at.map(|at| i64::from(at == now));
        write(Word::Number(alone.unwrap_or(-1)));
        flags.extend([
            self.under_way.is_some(),
            self.others_wait == Some(false),
            self.overtaken,
            self.asked_alone,
            is_due(self.ask_at),
            self.ask_at.is_none(),
            self.retry_at.is_some(),
            self.is_full,
        ]);
        for part in flags.chunks(60) {
            let bits = part.iter().fold(1, |bits, flag| bits << 1 | i64::from(*flag));
            write(Word::Number(bits));
        }
    }
}

impl<R> Leaving<R> {
    fn words<'a>(&'a self, write: &mut impl FnMut(Word<'a>)) {
        write(Word::Entry(&self.entry));
        if let Some(kept) = self.left_as.kept() {
            write(Word::Token(kept.token));
            write(Word::Number(i64::from(kept.until == KeptUntil::Expiry)));
        }
        write(Word::Time(self.not_before));
        let sweeps = self.sweep.unwrap_or(SWEEPS.len());
        write(Word::Number(sweeps.try_into().unwrap_or(-1)));
    }
}
