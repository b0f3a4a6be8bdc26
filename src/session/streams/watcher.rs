//! The one change stream of a session, for grants and losses, for freed documents while a task claims, and for
//! observers. It is opened when something needs it, and closed when nothing has needed it for a while.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{POSITIONS_MOST, Session, Stream, Table, line::Need},
    failover_detector::ask_for_primaries,
    subscription::{News, Opener, Subscription},
};
use crate::{
    backoff::LONGEST_PAUSE,
    error::ServerError,
    store::{Event, Watched},
    wake_mode::PollingReason,
};

/// Time without need after which the stream is closed, or reports less, so that short pauses don't cost opening it again.
/// Meanwhile it costs the server for every write.
const LINGER: Duration = Duration::from_secs(5);

/// Runs until the session ends.
///
/// # Recovery
///
/// After every opening all waiters ask again, all holds are verified, and everything that is observed is read, in case
/// events were missed meanwhile. While no stream is open, the lines, the claims and the observers poll. The back-off of
/// the subscription paces the openings, and so this.
pub(in crate::session) async fn run(session: Weak<Session>, demand: watch::Receiver<bool>, ended: CancellationToken) {
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        _ = watch(&session, demand) => {}
        _ = ask_for_primaries(&session) => {}
    }
}

/// Routes events whenever something needs them; ends with `None` when the session is gone.
async fn watch(weak: &Weak<Session>, mut demand: watch::Receiver<bool>) -> Option<()> {
    demand.wait_for(|needed| *needed).await.ok()?;
    let mut watching = Watching::new(&weak.upgrade()?);
    let mut primary = weak.upgrade()?.primary.subscribe();
    loop {
        if std::mem::take(&mut watching.had_events) {
            calm(weak, &mut demand).await?;
            // It may have taken the notice of somebody who came meanwhile.
            let session = weak.upgrade()?;
            watching.turn(&session, Instant::now());
        }
        let news = tokio::select! {
            news = watching.subscription.next() => Some(news),
            changed = demand.changed() => {
                changed.ok()?;
                None
            }
            changed = primary.changed() => {
                changed.ok()?;
                watching.subscription.heed(*primary.borrow_and_update());
                None
            }
            () = sleep(LONGEST_PAUSE), if watching.open.is_none() => None,
        };
        let session = weak.upgrade()?;
        if let Some(news) = news {
            watching.note(news, &session);
        }
        let now = Instant::now();
        watching.note_need(&session, now);
        if watching.is_unneeded(now) && session.close_stream() {
            drop(session);
            watching.suspend();
            demand.wait_for(|needed| *needed).await.ok()?;
            watching.needed_at = Instant::now();
            continue;
        }
        watching.turn(&session, now);
    }
}

/// The stream and the need for it, as the task that watches knows them.
struct Watching {
    /// One for the life of the session: its back-off outlives short pauses without need for it.
    subscription: Subscription,
    /// What the open stream reports.
    open: Option<Watched>,
    /// Whether the last report had events: after some, the task pauses while none is expected.
    had_events: bool,
    /// The last time that something needed the stream, and that something needed all that it reports.
    needed_at: Instant,
    all_needed_at: Instant,
}

impl Watching {
    fn new(session: &Arc<Session>) -> Self {
        let now = Instant::now();
        Self {
            subscription: Subscription::new(session.opener()),
            open: None,
            had_events: false,
            needed_at: now,
            all_needed_at: now,
        }
    }

    fn note(&mut self, news: News, session: &Arc<Session>) {
        match news {
            News::Opened { watched, is_gap } => {
                session.observers().seen_as_of(self.subscription.as_of());
                session.stream_opened(&watched, is_gap);
                if is_gap || self.open.as_ref().is_none_or(|open| open.free != watched.free) {
                    session.note_freed(watched.free);
                }
                // An election before its answer would be taken for that of the stream.
                session.ask_primary_at_once();
                session.ask_for_primary();
                self.open = Some(watched);
            }
            News::Events(events) => {
                session.observers().seen_as_of(self.subscription.as_of());
                events.iter().for_each(|event| session.on_event(event));
                // Once, however many of them there are.
                let frees = |event: &Event| matches!(event, Event::Freed | Event::Everything);
                if events.iter().any(frees) {
                    session.note_freed(self.open.as_ref().is_some_and(|open| open.free));
                }
                if !events.is_empty() {
                    session.ask_for_primary();
                }
                self.had_events = !events.is_empty();
            }
            News::Closed(reason) => {
                session.stream_closed(reason, self.open.take().is_some());
            }
        }
    }

    fn note_need(&mut self, session: &Session, now: Instant) {
        let (is_needed, until) = {
            let table = session.table();
            (table.need_stream(), table.lines.needed_until)
        };
        if is_needed || session.is_claiming() || !session.observers().are_none() {
            self.needed_at = now;
        }
        self.needed_at = until.map_or(self.needed_at, |until| until.max(self.needed_at));
    }

    /// Whether nothing has needed the stream for its time to linger. A stream that is not open does not linger.
    fn is_unneeded(&self, now: Instant) -> bool {
        self.needed_at < now && (self.open.is_none() || now >= self.needed_at + LINGER)
    }

    fn suspend(&mut self) {
        self.subscription.suspend();
        (self.open, self.had_events) = (None, false);
    }

    /// Has the stream report more or less, from its last event on: more at once, and less after a while.
    fn turn(&mut self, session: &Arc<Session>, now: Instant) {
        let Some(open) = &self.open else { return };
        let wanted = session.watched();
        if *open == wanted {
            self.all_needed_at = now;
        } else if !open.covers(&wanted) || now >= self.all_needed_at + LINGER {
            self.subscription.turn();
        }
    }
}

/// Waits as long as no event is expected: the next ones are not asked for before.
async fn calm(weak: &Weak<Session>, demand: &mut watch::Receiver<bool>) -> Option<()> {
    let begun = Instant::now();
    loop {
        let Some(until) = weak.upgrade()?.calm_until(begun) else {
            return Some(());
        };
        tokio::select! {
            () = sleep_until(until) => {}
            changed = demand.changed() => changed.ok()?,
        }
    }
}

impl Table {
    /// Whether a line needs the stream.
    fn need_stream(&self) -> bool {
        self.lines.need_stream(self.fleet.reads)
    }
}

impl Session {
    /// Returns until when no line expects an event, if that is later than now. None was asked for since `begun`.
    fn calm_until(&self, begun: Instant) -> Option<Instant> {
        let mut table = self.table();
        table.calm = None;
        let is_reported_to_others = self.is_claiming() || !self.observers().are_none();
        // The pauses of many names would seldom coincide.
        if table.lines.by_name.len() > POSITIONS_MOST || is_reported_to_others || self.store.is_in_memory() {
            return None;
        }
        let context = self.context(table.stream, &table.clock);
        let now = context.now;
        let lines = table.lines.by_name.values();
        let until = lines.map(|line| line.calm_until(begun, &context)).min();
        let until = until.filter(|until| *until > now);
        table.calm = until.map(|until| (begun, until));
        until
    }

    /// Returns what the stream is to report now.
    fn watched(&self) -> Watched {
        Watched {
            free: self.is_claiming(),
            observed: self.observers().observed(),
        }
    }

    fn opener(self: &Arc<Self>) -> Opener {
        let session = Arc::downgrade(self);
        Box::new(move |resume| {
            let session = session.clone();
            Box::pin(async move {
                // Otherwise nothing is left to receive the events. It ends all the same: it has a task of its own.
                let session = session.upgrade().ok_or_else(ServerError::runtime_ended)?;
                let watched = session.watched();
                let opening = session.store.watch(session.ids.session(), &watched, resume.as_ref());
                Ok((opening.await?, watched))
            })
        })
    }

    /// Has the stream opened, or turned to what is to be watched by now.
    pub(in crate::session) fn need_stream(&self) {
        if self.config.may_stream() {
            self.demand.send_replace(true);
        }
    }

    fn stream_opened(self: &Arc<Self>, watched: &Watched, is_gap: bool) {
        self.table().stream = Stream::Open;
        self.show_mode();
        if is_gap {
            self.on_gap();
        }
        self.observers().stream_opened(&watched.observed, is_gap);
    }

    /// Notes that the stream is closed. Events may be missed from now on, so nothing known of a document is trusted:
    /// `on_gap` leads, name by name, to `Step::doubt` in `waitlist/news.rs`, by which the head of the queue asks
    /// the server at once. The answer also plans the next question, as no event will come (`plan_asking` in `waitlist/timing.rs`). The same is done again when a stream opens.
    fn stream_closed(self: &Arc<Self>, reason: PollingReason, was_open: bool) {
        self.table().stream = Stream::Unavailable(reason);
        self.show_mode();
        self.observers().stream_closed(true);
        if was_open {
            self.on_gap();
            self.note_freed(false);
        }
    }

    /// Lets the stream go, unless something has come to need it.
    fn close_stream(self: &Arc<Self>) -> bool {
        let (reads, waits) = {
            // A task that comes to need it says so under the same lock, or after it has subscribed to freed documents
            // or has begun to observe.
            let mut table = self.table();
            let idle = !table.need_stream()
                && self.demand.send_if_modified(|demand| {
                    let idle = !self.is_claiming() && self.observers().are_none();
                    *demand &= !idle;
                    idle
                });
            if !idle {
                return false;
            }
            // No waiter is woken late any more, so there is no cause for alarm, unless there can be no stream.
            if matches!(
                table.stream,
                Stream::Open | Stream::Unavailable(PollingReason::Interrupted)
            ) {
                table.stream = Stream::Closed;
            }
            // Holds are read from now on, also for what the events would have told that nobody has read.
            self.beat_in_time(&mut table);
            (
                table.stream != Stream::Closed,
                table.lines.needs[Need::Position as usize] > 0,
            )
        };
        self.note_freed(false);
        self.show_mode();
        self.observers().stream_closed(reads);
        if waits {
            // No event reported what happened since the last one.
            self.on_gap();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::LockClient,
        config::Config,
        session::fixtures::{ONE, OTHER, client, memory, unreachable},
        store::Store,
        wake_mode::WakeMode,
    };

    /// Nothing looks at those that come and go between two of its reports.
    #[tokio::test(start_paused = true)]
    async fn a_stream_stays_open_for_those_that_wait_now_and_then() {
        let memory = memory();
        let [session, other] = [ONE, OTHER].map(|id| client(&memory, id, Config::default()).1);
        let (locks, others) = (LockClient::new(session.clone()), LockClient::new(other));
        for round in 0..20 {
            let held = others.mutex("x").acquire().await.unwrap();
            assert!(round == 0 || session.table().stream == Stream::Open, "{round}");
            let waiting = tokio::spawn(locks.mutex("x").acquire());
            sleep(Duration::from_millis(100)).await;
            held.release().await.unwrap();
            waiting.await.unwrap().unwrap().release().await.unwrap();
            sleep(LINGER - Duration::from_secs(1)).await;
        }
    }

    #[tokio::test]
    async fn the_primary_of_a_stream_is_asked_for_as_soon_as_it_is_open() {
        let (store, session) = unreachable().await;
        let mut watching = Watching::new(&session);
        let before = Arc::strong_count(&store);
        let (watched, is_gap) = (Watched::default(), false);
        watching.note(News::Opened { watched, is_gap }, &session);
        // Each question that waits has the store.
        assert_eq!(Arc::strong_count(&store), before + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_to_open_a_stream_ends_with_its_session() {
        let (config, store) = (Config::default(), Arc::default());
        let mode = WakeMode::ChangeStream;
        let session = Session::of("0123456789abcdef".to_owned(), config, Store::Memory(store), None, mode);
        let opener = session.opener();
        let (before, after) = (opener(None), opener(None));
        assert!(before.await.is_ok());
        drop(session);
        let opened = tokio::time::timeout(Duration::from_secs(3_600), after).await;
        assert!(opened.is_ok_and(|opened| opened.is_err()));
    }
}
