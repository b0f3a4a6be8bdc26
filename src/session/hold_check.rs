//! The checks on holds beside renewals: their documents are read, and a jump of the server's clock brings their
//! deadlines forward.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use super::{
    Session, Stream, Table,
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
                if is_unseen {
                    // Renewals keep their distance from the beginning of a second.
                    sleep(LATER_IN_THE_SECOND).await;
                }
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
                    table.timers.update(hold, Instant::now());
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
        let is_first = {
            let doubted = &mut self.table().doubted;
            let is_first = doubted.is_empty() && !holds.is_empty();
            doubted.extend(holds.into_iter().map(|hold| (hold.number, hold)));
            is_first
        };
        // The others are read with the first, once the reading before is over.
        if is_first {
            let session = self.clone();
            self.spawn(async move {
                let _turn = session.verifying.lock().await;
                let doubted = std::mem::take(&mut session.table().doubted);
                let doubted: Vec<Arc<Hold>> = doubted.into_values().collect();
                for together in doubted.chunks(AT_A_TIME) {
                    let (reading, together) = (session.clone(), together.to_vec());
                    let reading = session.spawn_for(async move { reading.verify_together(&together).await });
                    // One without an answer goes on beside the next, which may be about others.
                    let _ = timeout(UNANSWERED, reading).await;
                }
            });
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::LockClient,
        config::Settings,
        protocol::{Evict, Operation},
        status::LostReason,
        store::Store,
        tests::simulated::Link,
        wake_mode::WakeMode,
    };

    /// Each of its attempts meets a dead connection.
    #[tokio::test(start_paused = true)]
    async fn a_reading_without_an_answer_holds_up_no_other() {
        let link = Link::new(Arc::default(), 1);
        link.calm();
        let (config, store) = (Settings::default().validate().unwrap(), Store::Simulated(link.clone()));
        let session = Session::of(
            "0123456789abcdef".to_owned(),
            config,
            store,
            None,
            WakeMode::ChangeStream,
        );
        let locks = LockClient::new(session.clone());
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
