//! The one change stream of a session, for grants and losses, and for freed documents while a task claims. It is
//! opened when something needs it, and closed when nothing has needed it for a while.

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
    super::Session,
    subscription::{News, Opener, Subscription},
};
use crate::{
    error::ServerError,
    store::{Event, Watched},
    telemetry::StreamOf,
    wake_mode::{PollingReason, WakeMode},
};

/// Time without need after which the stream is closed, so that short pauses don't cost opening it again.
const LINGER: Duration = Duration::from_secs(30);

/// The same while waiters will need it later, or the fleet's streams cost too much: it is opened again in time, and costs
/// the server for every write.
const LINGER_FOR_LATER: Duration = Duration::from_secs(5);

/// Maximum number of names for a pause before events are asked for: the pauses of more would seldom coincide.
const LINES_MOST: usize = 4;

/// Pause between two checks whether anything still needs a stream that could not be opened so far.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The uses of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::session) struct Demand {
    /// Whether a task waits, or holds for long, or claims.
    pub(in crate::session) stream: bool,
    /// Whether a task claims.
    pub(in crate::session) claims: bool,
}

impl Demand {
    /// Returns the events that the stream reports, and the name under which operators know it.
    fn watched(self) -> (Watched, StreamOf) {
        if self.claims {
            (Watched::LocksAndFree, StreamOf::Claims)
        } else {
            (Watched::Locks, StreamOf::Locks)
        }
    }

    fn next_freed(self) -> NextFreed {
        if self.claims {
            NextFreed::Reported
        } else {
            NextFreed::Unreported
        }
    }
}

/// The way in which the next document that becomes free is noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::session) enum NextFreed {
    /// By polling.
    #[default]
    Unreported,
    /// The stream reports it.
    Reported,
}

/// Runs until the session ends.
///
/// # Recovery
///
/// After every opening all waiters ask again and all holds are verified, in case events were missed meanwhile. While
/// no stream is open, the lines and the claims poll. The back-off of the subscription paces the openings, and so this.
pub(in crate::session) async fn run(session: Weak<Session>, demand: watch::Receiver<Demand>, ended: CancellationToken) {
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        _ = watch(&session, demand) => {}
    }
}

/// Routes events whenever something needs them; ends with `None` when the session is gone.
async fn watch(weak: &Weak<Session>, mut demand: watch::Receiver<Demand>) -> Option<()> {
    let present = *demand.wait_for(|demand| demand.stream).await.ok()?;
    let mut watching = Watching::new(&weak.upgrade()?, present);
    let mut signs = weak.upgrade()?.suspicion.signs();
    loop {
        if std::mem::take(&mut watching.had_events) {
            calm(weak).await?;
        }
        let news = tokio::select! {
            news = watching.subscription.next() => Some(news),
            changed = demand.changed() => changed.map(|()| None).ok()?,
            sign = signs.next() => watching.subscription.heed(&sign?),
            () = sleep(CHECK_EVERY), if !watching.is_open => None,
        };
        let mut session = weak.upgrade()?;
        if let Some(news) = news {
            watching.note(news, &session);
        }
        let now = Instant::now();
        watching.note_need(&session, now);
        if watching.is_unneeded(&session, now) && session.close_stream() {
            drop(session);
            watching.suspend();
            demand.wait_for(|demand| demand.stream).await.ok()?;
            watching.needed_from(Instant::now());
            session = weak.upgrade()?;
        }
        if watching.claimed_at + LINGER <= now {
            session.end_claiming();
        }
        let wanted = *demand.borrow_and_update();
        watching.turn(wanted, &session);
    }
}

/// The stream and the need for it, as the task that watches knows them.
struct Watching {
    /// One for the life of the session: its back-off outlives short pauses without need for it.
    subscription: Subscription<Event>,
    /// What the stream reports.
    present: Demand,
    is_open: bool,
    /// Whether the last report had events: after some, the task pauses while none is expected.
    had_events: bool,
    /// The last time that something needed the stream, and that a task claimed.
    needed_at: Instant,
    claimed_at: Instant,
}

impl Watching {
    fn new(session: &Arc<Session>, present: Demand) -> Self {
        let now = Instant::now();
        Self {
            subscription: session.subscribe(present),
            present,
            is_open: false,
            had_events: false,
            needed_at: now,
            claimed_at: now,
        }
    }

    fn note(&mut self, news: News<Event>, session: &Arc<Session>) {
        match news {
            News::Opened => {
                self.is_open = true;
                session.stream_opened(self.present);
                session.ask_for_primary();
            }
            News::Quiet => session.ask_for_primary(),
            News::Events(events) => {
                session.on_events(&events, self.present);
                self.had_events = !events.is_empty();
            }
            News::Closed(reason) => {
                session.stream_closed(reason, self.is_open);
                self.is_open = false;
            }
        }
    }

    fn note_need(&mut self, session: &Session, now: Instant) {
        if session.needs_stream() {
            self.needed_at = now;
        } else if let Some(at) = session.unneeded_since() {
            self.needed_at = self.needed_at.max(at);
        }
        if session.is_claiming() {
            self.claimed_at = now;
        }
    }

    /// Whether nothing has needed the stream for its time to linger. A stream that is not open does not linger, nor one
    /// whose room others wait for.
    fn is_unneeded(&self, session: &Session, now: Instant) -> bool {
        let linger = if session.must_save_streams() {
            LINGER_FOR_LATER
        } else {
            LINGER
        };
        let lingers = self.is_open && !self.subscription.is_in_the_way() && now < self.needed_at + linger;
        self.needed_at < now && !lingers
    }

    fn suspend(&mut self) {
        self.subscription.suspend();
        (self.is_open, self.had_events) = (false, false);
    }

    fn needed_from(&mut self, now: Instant) {
        (self.needed_at, self.claimed_at) = (now, now);
    }

    /// Has the stream report more or less, from its last event on, if tasks have begun or ended to claim.
    fn turn(&mut self, wanted: Demand, session: &Arc<Session>) {
        if wanted.claims != self.present.claims {
            self.present = wanted;
            let (_, of) = wanted.watched();
            self.subscription.turn(of, session.opener(wanted));
            session.note_freed(NextFreed::Unreported);
        }
    }
}

/// Waits as long as no event is expected: the next ones are not asked for before.
async fn calm(weak: &Weak<Session>) -> Option<()> {
    let begun = Instant::now();
    loop {
        let session = weak.upgrade()?;
        let Some(until) = session.calm_until(begun) else {
            return Some(());
        };
        let stirred = session.stirred.clone();
        drop(session);
        tokio::select! {
            () = sleep_until(until) => {}
            () = stirred.notified() => {}
        }
    }
}

impl Session {
    /// Returns until when no line expects an event, if that is later than now. None was asked for since `begun`.
    fn calm_until(&self, begun: Instant) -> Option<Instant> {
        let mut table = self.table();
        table.calm = None;
        if table.lines.by_name.len() > LINES_MOST || self.is_claiming() || self.store.is_in_memory() {
            return None;
        }
        let context = self.context(table.streaming, &table.clock);
        let now = context.now;
        let lines = table.lines.by_name.values();
        let until = lines.map(|line| line.calm_until(begun, &context)).min();
        let until = until.filter(|until| *until > now);
        table.calm = until.map(|until| (begun, until));
        until
    }

    fn subscribe(self: &Arc<Self>, demand: Demand) -> Subscription<Event> {
        let (_, of) = demand.watched();
        let budget = self.counts_stream().then(|| self.budget.clone());
        Subscription::new(of, budget, self.opener(demand))
    }

    fn opener(self: &Arc<Self>, demand: Demand) -> Opener<Event> {
        let session = Arc::downgrade(self);
        let (watched, _) = demand.watched();
        Box::new(move |resume| {
            let session = session.clone();
            Box::pin(async move {
                match session.upgrade() {
                    Some(session) => {
                        session
                            .store
                            .watch(session.ids.session(), watched, resume.as_ref())
                            .await
                    }
                    // Nothing is left to receive the events. It ends all the same: it has a task of its own.
                    None => Err(ServerError::runtime_ended()),
                }
            })
        })
    }

    /// Whether the stream counts against the budget: that of the locks always has room, and those in memory take none.
    fn counts_stream(&self) -> bool {
        self.store.is_remote() && self.store.is_in_place()
    }

    fn stream_opened(self: &Arc<Self>, demand: Demand) {
        self.set_streaming(true);
        self.set_mode(WakeMode::ChangeStream);
        self.on_gap();
        self.note_freed(demand.next_freed());
    }

    /// Notes that the stream is closed. Events may be missed from now on, so nothing known of a document is trusted:
    /// `on_gap` leads, name by name, to `Step::doubt` in `waitlist/news.rs`, by which the head of the queue asks
    /// the server at once. The answer also plans the next look at the queue position, as no event will come
    /// (`plan_asking` in `waitlist/timing.rs`). The same is done again when a stream opens.
    fn stream_closed(self: &Arc<Self>, reason: PollingReason, was_open: bool) {
        self.set_streaming(false);
        self.set_mode(WakeMode::Polling(reason));
        if was_open {
            self.on_gap();
            self.note_freed(NextFreed::Unreported);
        }
    }

    fn on_events(self: &Arc<Self>, events: &[Event], demand: Demand) {
        for event in events {
            self.on_event(event);
        }
        // Once, however many of them there are.
        let frees = |event: &Event| matches!(event, Event::Freed | Event::Everything);
        if events.iter().any(frees) {
            self.note_freed(demand.next_freed());
        }
    }

    fn needs_stream(&self) -> bool {
        self.table().lines.needs.need_stream() || self.is_claiming()
    }

    fn unneeded_since(&self) -> Option<Instant> {
        self.table().lines.needs.unneeded_since
    }

    /// Whether a waiter is far from its turn, and will need the stream later, or holders read their locks as streams cost
    /// too much.
    fn must_save_streams(&self) -> bool {
        let table = self.table();
        table.lines.needs.looks > 0 || table.fleet.reads()
    }

    /// Lets the stream go, unless something has come to need it.
    fn close_stream(self: &Arc<Self>) -> bool {
        let waits = {
            // A task that comes to need it says so under the same lock, or after it has subscribed to freed documents.
            let mut table = self.table();
            let idle = !table.lines.needs.need_stream()
                && self.demand.send_if_modified(|demand| {
                    let idle = !self.is_claiming();
                    if idle {
                        *demand = Demand::default();
                    }
                    idle
                });
            if !idle {
                return false;
            }
            table.streaming = false;
            // Holds are read from now on, also for what the events would have told that nobody has read.
            self.beat_in_time(&mut table);
            table.lines.needs.looks > 0
        };
        self.note_freed(NextFreed::Unreported);
        // No waiter is woken late any more, so there is no cause for alarm.
        let mode = self.mode.borrow().at_rest();
        self.set_mode(mode);
        self.show_hold_watch();
        if waits {
            // No event reported what happened since the last one.
            self.on_gap();
        }
        true
    }

    /// Makes the stream stop reporting freed documents, unless a task has begun to claim.
    fn end_claiming(&self) {
        self.demand
            .send_if_modified(|demand| !self.is_claiming() && std::mem::take(&mut demand.claims));
    }

    fn set_streaming(&self, streaming: bool) {
        self.table().streaming = streaming;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Settings, store::Store};

    #[tokio::test(start_paused = true)]
    async fn an_attempt_to_open_a_stream_ends_with_its_session() {
        let (config, store) = (Settings::default().unchecked(), Arc::default());
        let mode = WakeMode::ChangeStream;
        let session = Session::of("0123456789abcdef".to_owned(), config, Store::Memory(store), None, mode);
        let opener = session.opener(Demand::default());
        let (before, after) = (opener(None), opener(None));
        assert!(before.await.is_ok());
        drop(session);
        let opened = tokio::time::timeout(Duration::from_secs(3_600), after).await;
        assert!(opened.is_ok_and(|opened| opened.is_err()));
    }
}
