//! The checks on holds beside renewals: their documents are read, and a jump of the server's clock brings their
//! deadlines forward.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    Session, Stream, Table,
    admin::ONCE,
    hold::{Hold, WORTH_A_COMMAND, names_of},
    line::UNANSWERED,
    timer_queue::AT_A_TIME,
};
use crate::{
    backoff::Backoff,
    config::Config,
    protocol::{Exchange, State, document::Malformed},
    store::View,
    telemetry,
};

/// Pause between two readings of up to a thousand held locks while no stream reports losses.
pub(super) const VERIFY_EVERY: Duration = Duration::from_millis(500);

/// Times that a reading of doubted holds has for itself, before others are read: each is twice the one before.
const PATIENCE: Backoff = Backoff::between(UNANSWERED, ONCE);

/// Time after which an answer shows the writes of a second of which the one before came too soon.
const LATER_IN_THE_SECOND: Duration = Duration::from_millis(250);

impl Table {
    /// Returns when a stream is demanded to report losses, or, where none can be, when the next holds are read.
    pub(super) fn watch_due_at(&self, wants_to_stream: bool, now: Instant) -> Option<Instant> {
        let since = self.timers.oldest()?.since;
        if wants_to_stream && !self.fleet.reads {
            // Where a task waits to be told, it is worth it sooner; most critical sections are over by then, too.
            let worth_it = WORTH_A_COMMAND / if self.losses_awaited { 10 } else { 1 };
            return Some(since + worth_it);
        }
        (self.stream != Stream::Open).then(|| (since + WORTH_A_COMMAND).max(self.verify_at.unwrap_or(now)))
    }

    /// Returns the next thousand holds to read while no stream reports losses, in turn.
    pub(super) fn next_to_verify(&mut self, config: &Config, now: Instant) -> Vec<Arc<Hold>> {
        let holds = self.timers.after(self.last_verified);
        // Start over after the last hold.
        let all = holds.len() < AT_A_TIME;
        self.last_verified = holds.last().filter(|_| !all).map_or(0, |hold| hold.number);
        self.verify_at = Some(now + self.fleet.read_every(config, self.timers.len()));
        holds
    }
}

impl Session {
    /// Notes that a task waits to be told of a loss: from now on holds are worth a stream sooner.
    pub(crate) fn await_losses(&self) {
        if !self.is_forked() && !std::mem::replace(&mut self.table().losses_awaited, true) {
            self.wake_heartbeat.notify_one();
        }
    }

    /// Has a stream report losses, or reads the next holds, if that is due.
    pub(super) fn watch_holds(self: &Arc<Self>, now: Instant) {
        let wants_to_stream = self.wants_to_stream();
        let to_read = {
            let mut table = self.table();
            if table.watch_due_at(wants_to_stream, now).is_none_or(|at| at > now) {
                return;
            }
            table.fleet.decide(&self.config);
            if wants_to_stream && !table.fleet.reads {
                self.demand_stream();
                Vec::new()
            } else {
                table.next_to_verify(&self.config, now)
            }
        };
        self.verify(to_read);
        self.consider_fleet();
    }

    /// Reads a document if nothing else has shown the server's clock since the renewal before, as renewals don't show it;
    /// or how busy the set is, as a renewal at the beginning of a second does not show that.
    pub(super) fn hear_the_clock(self: &Arc<Self>, name: &str, interval: Duration, now: Instant) {
        let Some(since) = now.checked_sub(interval) else {
            return;
        };
        let (is_stale, is_unseen) = {
            let table = &mut *self.table();
            let is_unseen = self.config.may_stream() && table.fleet.is_unseen_since(since + interval / 2, &self.config);
            (table.clock.is_stale(since, now), is_unseen)
        };
        if is_stale || is_unseen {
            let (session, names) = (self.clone(), [name.to_owned()]);
            self.spawn(async move {
                // Renewals keep their distance from the beginning of a second.
                sleep(LATER_IN_THE_SECOND).await;
                // If it fails, the next renewal asks again.
                if session.read_names(View::Newest, &names).await.is_ok() {
                    session.consider_fleet();
                }
            });
        }
    }

    /// Notes what an exchange shows of the server's clock, and acts on a contradiction. Call it with no mutex held.
    pub(super) fn note(self: &Arc<Self>, exchange: &Exchange) {
        let mut table = self.table();
        let Some(jump) = table.clock.note(exchange, &self.config) else {
            return;
        };
        if let Some(by) = jump.ahead {
            // Under one mutex: every look at a hold after this must see the earlier deadline, and what is granted by the
            // new clock must not come earlier too.
            let mut last = Some(0);
            while let Some(number) = last {
                let holds = table.timers.after(number);
                for hold in &holds {
                    hold.upkeep().shorten(by, Instant::now());
                    table.timers.update(hold);
                }
                last = holds.last().map(|hold| hold.number);
            }
        }
        drop(table);
        if jump.ahead.is_some() {
            self.wake_heartbeat.notify_one();
        }
        telemetry::clock_jumped(jump.by, jump.ahead.is_some());
    }

    /// Compares a hold with its document, as asked for at `sent`.
    pub(super) fn compare(self: &Arc<Self>, hold: &Hold, document: Option<&Result<State, Malformed>>, sent: Instant) {
        self.update(&hold.name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(&hold.name) {
                let entry = std::slice::from_ref(&hold.id);
                line.waitlist.step(context).verified(document, Some(sent), entry);
            }
        });
    }

    /// Reads the documents of holds whose state is in doubt. Holds that come up meanwhile go into the next reading.
    pub(super) fn verify(self: &Arc<Self>, holds: Vec<Arc<Hold>>) {
        let verifying = Arc::new(());
        {
            let table = &mut *self.table();
            table.doubted.extend(numbered(holds));
            if table.doubted.is_empty() || table.verifying.strong_count() > 0 {
                return;
            }
            table.verifying = Arc::downgrade(&verifying);
        }
        let session = self.clone();
        self.spawn(async move {
            // Whatever ends this task, the next doubt begins another.
            let _verifying = verifying;
            let mut patience = PATIENCE;
            while let Some(doubted) = session.next_doubted() {
                for together in doubted.chunks(AT_A_TIME) {
                    if timeout(patience.failed(), session.verify_together(together))
                        .await
                        .is_err()
                    {
                        // They go into the next reading, with others that have come.
                        session.table().doubted.extend(numbered(together.to_vec()));
                    }
                }
            }
        });
    }

    /// Takes the doubted holds; `None`, once there are none.
    fn next_doubted(&self) -> Option<Vec<Arc<Hold>>> {
        let table = &mut *self.table();
        if table.doubted.is_empty() {
            table.verifying = Weak::new();
            return None;
        }
        Some(std::mem::take(&mut table.doubted).into_values().collect())
    }

    /// Reads the documents of holds until the server answers. After the last of their deadlines that shows no more.
    pub(super) async fn verify_together(self: &Arc<Self>, holds: &[Arc<Hold>]) {
        let names = names_of(holds);
        let mut backoff = Backoff::default();
        while holds.iter().any(|hold| hold.lost_reason().is_none()) {
            match self.read_names(View::Newest, &names).await {
                Ok((documents, exchange)) => {
                    for hold in holds {
                        self.compare(hold, documents.get(&hold.name), exchange.sent);
                    }
                    return;
                }
                // A renewal shows more.
                Err(error) if error.is_final() => return,
                Err(_) => sleep(backoff.failed()).await,
            }
        }
    }
}

fn numbered(holds: Vec<Arc<Hold>>) -> impl Iterator<Item = (u64, Arc<Hold>)> {
    holds.into_iter().map(|hold| (hold.number, hold))
}

#[cfg(test)]
mod tests {
    use super::{super::fixtures, *};
    use crate::{
        client::LockClient,
        config::Config,
        protocol::{Evict, Operation},
        status::LostReason,
        tests::simulated::Link,
        wake_mode::WakeSource,
    };

    fn bench(wake_source: WakeSource) -> (Arc<Link>, Arc<Session>, LockClient) {
        let settings = Config {
            wake_source,
            ..Config::default()
        };
        let (link, session) = fixtures::client(&fixtures::memory(), fixtures::ONE, settings);
        (link, session.clone(), LockClient::new(session))
    }

    /// Its holds are read twice a second, as no stream reports losses, and each reading has eight attempts.
    #[tokio::test(start_paused = true)]
    async fn a_silent_server_gets_one_reading_of_a_doubted_hold_at_a_time() {
        let (link, _, locks) = bench(WakeSource::Polling);
        let _held = locks.mutex("x").acquire().await.unwrap();
        sleep(Duration::from_secs(2)).await;
        link.kill_idle(u64::MAX);
        sleep(Duration::from_secs(25)).await;
        // With renewals.
        let commands = u64::MAX - link.kill_idle(0);
        assert!((8..80).contains(&commands), "{commands}");
    }

    /// Each of its attempts meets a dead connection.
    #[tokio::test(start_paused = true)]
    async fn a_reading_without_an_answer_holds_up_no_other() {
        let (link, session, locks) = bench(WakeSource::default());
        let (x, y) = (
            locks.mutex("x").acquire().await.unwrap(),
            locks.mutex("y").acquire().await.unwrap(),
        );
        link.kill_idle(u64::MAX);
        session.verify(vec![x.hold().clone()]);
        sleep(Duration::from_millis(1)).await;
        let breaking = Operation {
            evict: Evict::Everybody,
            ..session.operation()
        };
        link.memory().run("y", &breaking).unwrap();
        session.verify(vec![y.hold().clone()]);
        sleep(Duration::from_secs(2)).await;
        link.kill_idle(0);
        let lost = timeout(Duration::from_secs(1), y.lost()).await;
        assert_eq!(lost.unwrap().reason, LostReason::Broken);
    }
}
