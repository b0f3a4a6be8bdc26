//! One session per client: the lines before its locks, one heartbeat for all its holds, one change stream.
//!
//! All state is behind one mutex that is never held across an await. Every input (a task joins, a future is dropped,
//! an answer or an event arrives, a timer fires) is fed to the [`Line`] of its name under the mutex. The effects are
//! carried out after the mutex is released. When the line wants an operation, a task runs it (see [`in_flight`]). The
//! driver's futures are never dropped: each is part of a task that runs [`detached`]. The exception is a command in a
//! transaction of the user's ([`guard`]): it borrows the user's driver session, so no task can have it. Dropping it is
//! like dropping any other command there: the user has to abort the transaction.

mod acquiring;
mod admin;
mod bypassing;
pub(crate) mod claims;
mod deadlocks;
mod detaching;
mod documents;
#[cfg(test)]
mod fixtures;
mod fleet;
mod guard;
mod heartbeat;
pub(crate) mod hedged_read;
pub(crate) mod hold;
mod hold_check;
mod in_flight;
mod index;
pub(crate) mod line;
mod renewing;
mod routing;
mod runtime;
mod shut_down;
pub(crate) mod streams;
mod task;
mod timer_queue;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Deref,
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::ServerError,
    hidden::{Hidden, hidden},
    machine::wall_clock,
    protocol::{Exchange, QUEUE_MOST},
    store::{Detached, Store, detached, spawned},
    telemetry,
    waitlist::{StreamState, clock::ServerClock, ids::Ids},
    wake_mode::{PollingReason, WakeMode},
};
use claims::Claims;
pub(crate) use claims::{Claiming, skip_list::SKIPPED_AT_ONCE};
use deadlocks::LongWaits;
use fleet::Fleet;
use hold::{Hold, ReleaseOutcome};
use in_flight::InFlight;
pub(crate) use in_flight::TOGETHER as CLAIMED_MOST;
use line::{Context, Effect, Ended, Line, Need, error_of, refused};
pub(crate) use shut_down::{ClientLife, UserHandle};
use streams::{failover_detector::Primary, observers::Observers};
use timer_queue::Timers;

/// Maximum number of names for whose queue positions a session asks, or whose next events it reckons. Beyond that one
/// stream costs less than the questions.
const POSITIONS_MOST: usize = 8;

/// Maximum number of names without a line to remember: as many as a service is likely to use again and again.
const REMEMBERED: usize = 1_024;

/// The state of one client, shared by its handles and its tasks.
pub(crate) struct Session(Hidden<Parts>);

impl Deref for Session {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// The parts of a session.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) store: Store,
    ids: Ids,
    table: Mutex<Table>,
    /// Wakes the heartbeat when something is due earlier than it knows.
    wake_heartbeat: Arc<Notify>,
    in_flight: Arc<InFlight>,
    claims: Claims,
    mode: watch::Sender<WakeMode>,
    /// Whether something needs the change stream. Sent anew when an event is expected earlier than its task knows.
    demand: watch::Sender<bool>,
    observers: Mutex<Observers>,
    /// Notified when the last line goes, a claim settles, or nothing of claims is searched for; only the end of the
    /// session waits for it.
    drained: Notify,
    /// Cancelled when nothing new is acquired any more.
    closing: CancellationToken,
    ended: CancellationToken,
    /// Cancelled when the session's runtime has ended.
    stopped: CancellationToken,
    /// The id of the process; a fork of it has another: see [`is_forked`](Session::is_forked).
    made_in: u32,
    started: OnceLock<Handle>,
    /// The runtime on which the client was built, where there is a driver.
    home: OnceLock<Handle>,
    /// Set when the index is asked for, and cancelled when nothing needs to wait for it any more.
    prepared: OnceLock<CancellationToken>,
    /// The primary by its last answer, for the change stream.
    primary: watch::Sender<Option<Primary>>,
    /// Notified when it is to be asked which it is.
    primary_wanted: Arc<Notify>,
}

/// The change stream: while it is open, grants arrive as events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stream {
    /// It is opened as soon as something needs it.
    #[default]
    Closed,
    Open,
    /// It can't be opened, or broke, for this reason.
    Unavailable(PollingReason),
}

#[derive(Debug, Default)]
struct Table {
    lines: Lines,
    clock: ServerClock,
    stream: Stream,
    /// Whether a task has waited to be told of a loss.
    losses_awaited: bool,
    /// While no event is asked for: since when, and until when.
    calm: Option<(Instant, Instant)>,
    /// The instant up to which the heartbeat sleeps.
    beat_at: Option<Instant>,
    timers: Timers,
    /// Holds whose documents are to be read, by their numbers.
    doubted: BTreeMap<u64, Arc<Hold>>,
    /// The task that reads them, while there is one.
    verifying: Weak<()>,
    fleet: Fleet,
    /// When the holds are read again while no stream reports losses.
    verify_at: Option<Instant>,
    /// The number of the hold that was read last.
    last_verified: u64,
    /// Had by the renewals that are awaited, by their turns: those that had another sent beside them have it no more, nor
    /// those whose tasks are gone.
    awaited: [Arc<()>; 3],
    /// When it was reported that renewals are overdue, until they are not any more.
    overdue_since: Option<Instant>,
    /// The reason for which the last renewal failed.
    renewal_failure: Option<ServerError>,
    long_waits: LongWaits,
}

/// The lines of all names that this process holds, waits for or leaves.
#[derive(Debug, Default)]
struct Lines {
    by_name: BTreeMap<String, Line>,
    /// Names without a line: when the lock was seen free if it was so last, and the time of a hand-over when it was
    /// waited for.
    remembered: HashMap<String, (Option<Instant>, Duration)>,
    /// Whether the lock of a name that is new to the client is expected to be free, as that of the last one was.
    ///
    /// The request for a lock that is expected to be free is less than half as long as one that provides for a queue
    /// ([`Expects::Alone`](crate::protocol::Expects::Alone)). A client that takes a lock for each invoice meets a name once,
    /// and its lock is free. One that takes part in an election, or runs a job that all its siblings run, meets a name whose
    /// lock is held. If the expectation is wrong, nothing was written, and the request in full follows: one more round trip.
    expects_free: bool,
    /// The number of lines with each [`Need`] of the change stream, counted as it is asked for after every event. That of
    /// lines with none says nothing.
    needs: [usize; 4],
    /// When the last line that needed the stream went away, which may have come since anything looked.
    needed_until: Option<Instant>,
    closed: bool,
}

impl Session {
    pub(crate) fn new(config: Config, store: Store, first: Option<&Exchange>, mode: WakeMode) -> Arc<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        // 64 random bits: unique among all sessions that ever meet in one collection.
        Self::of(id[..16].to_owned(), config, store, first, mode)
    }

    pub(crate) fn of(
        id: String,
        mut config: Config,
        store: Store,
        first: Option<&Exchange>,
        mode: WakeMode,
    ) -> Arc<Self> {
        let now = first.and_then(|exchange| exchange.now);
        let logged_by = first.and_then(|exchange| exchange.logged_by);
        config.begin(now.unwrap_or_else(wall_clock), logged_by);
        if store.is_in_memory() {
            // An in-memory stream costs no server anything.
            config.near = u64::MAX;
        }
        telemetry::session_began(mode);
        let mut clock = ServerClock::default();
        if let Some(exchange) = first {
            // The first exchange has nothing to contradict.
            let _ = clock.note(exchange, &config);
        }
        let stream = match mode {
            WakeMode::Polling(reason) => Stream::Unavailable(reason),
            _ => Stream::Closed,
        };
        let may_stream = config.may_stream();
        let in_flight = InFlight::new(config.max_operations, !store.is_in_place());
        Arc::new(Self(hidden(Parts {
            config,
            store,
            ids: Ids::new(id),
            table: Mutex::new(Table {
                clock,
                stream,
                ..Table::default()
            }),
            wake_heartbeat: Arc::default(),
            in_flight,
            claims: Claims::default(),
            mode: watch::Sender::new(mode),
            demand: watch::Sender::default(),
            observers: Mutex::new(Observers::new(may_stream)),
            drained: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            stopped: CancellationToken::new(),
            made_in: process::id(),
            started: OnceLock::new(),
            home: OnceLock::new(),
            prepared: OnceLock::new(),
            primary: watch::Sender::default(),
            primary_wanted: Arc::default(),
        })))
    }

    pub(crate) fn mode(&self) -> watch::Receiver<WakeMode> {
        self.mode.subscribe()
    }

    /// Gives an input to the lines, carries out the effects, and runs what the line of `name` wants next; `ended`: the
    /// operation whose end the input is. In a fork it does nothing, so a task that waits for an answer finds its sender
    /// dropped.
    fn update(self: &Arc<Self>, name: &str, ended: Option<&Ended>, input: impl FnOnce(&mut Lines, &Context<'_>)) {
        let mut input = Some(input);
        self.update_with(name, ended, &mut |lines, context| {
            if let Some(input) = input.take() {
                input(lines, context);
            }
        });
    }

    /// Does so as one function, which is not compiled anew for each input; the input is called once.
    fn update_with(
        self: &Arc<Self>,
        name: &str,
        ended: Option<&Ended>,
        input: &mut dyn FnMut(&mut Lines, &Context<'_>),
    ) {
        if self.is_forked() {
            return;
        }
        let (mut operation, mut stopped) = (None, None);
        let effects = {
            let mut table = self.table();
            let table = &mut *table;
            let context = self.context(table.stream, &table.clock);
            input(&mut table.lines, &context);
            if self.stopped.is_cancelled() {
                let line = table.lines.by_name.remove(name);
                let ended = line.map(|mut line| (line.waitlist.take_effects(), table.lines.stop(line)));
                let (effects, stops) = ended.unwrap_or_default();
                stopped = Some(stops);
                effects
            } else {
                if let Some(line) = table.lines.by_name.get_mut(name) {
                    line.waitlist.step(&context).settle();
                    operation = line.next(&context).map(|next| (next, line.waitlist.overdue()));
                }
                self.after(table, name)
            }
        };
        if let Some(operation) = operation {
            self.spawn(self.clone().run(name.to_owned(), operation));
        }
        self.carry_out(name, effects, ended);
        if let Some(effects) = stopped {
            self.carry_out(name, effects, Some(&Err(ServerError::runtime_ended())));
        }
    }

    /// Updates the books after a line changed: removes a line that is not used any more, and gives the heartbeat its
    /// next instant. Returns the effects to [carry out](Self::carry_out) when the mutex is released.
    fn after(&self, table: &mut Table, name: &str) -> Vec<Effect> {
        let Some(line) = table.lines.by_name.get_mut(name) else {
            return Vec::new();
        };
        let effects = line.waitlist.take_effects();
        for effect in &effects {
            match effect {
                Effect::Came(hold) => table.timers.came(hold),
                Effect::Gone(hold) | Effect::Lost { hold, .. } => table.timers.gone(hold),
                _ => {}
            }
        }
        table.timers.plan_line(name, line.waitlist.due_at());
        if let Some((begun, until)) = table.calm {
            let context = self.context(table.stream, &table.clock);
            if line.calm_until(begun, &context) < until {
                table.calm = None;
                self.demand.send_modify(|_| {});
            }
        }
        let need = line.waitlist.need();
        let before = std::mem::replace(&mut line.counted, need);
        let waits_for_event = line.waitlist.waits_for_event() || line.waitlist.attend_at().is_some();
        if line.waitlist.is_unused() {
            // What was only expected is not worth remembering.
            let free_at = line.waitlist.alone_at().filter(|_| !line.is_unknown);
            let pace = line.waitlist.pace();
            let gone = table.lines.by_name.remove_entry(name);
            if let Some((name, _)) = gone.filter(|_| free_at.is_some() || !pace.is_zero()) {
                table.lines.remember(name, free_at, pace);
            }
            if table.lines.by_name.is_empty() {
                self.drained.notify_waiters();
            }
        }
        table.lines.change_need(before, need, table.fleet.reads);
        if waits_for_event || table.lines.needs[Need::Position as usize] > POSITIONS_MOST {
            self.demand_stream();
        }
        self.beat_in_time(table);
        effects
    }

    /// Carries out what a line owes; `ended`: the operation behind it.
    fn carry_out(self: &Arc<Self>, name: &str, mut effects: Vec<Effect>, ended: Option<&Ended>) {
        // The release of a writer asks whether its reader was lost by the same answer.
        effects.sort_by_key(|effect| !matches!(effect, Effect::Lost { .. }));
        for effect in effects {
            match effect {
                Effect::Granted { to, hold } => {
                    // The task is gone: give the hold back.
                    if let Err(Ok(hold)) = to.send(Ok(hold)) {
                        self.discard(&hold);
                    }
                }
                // The task may be gone.
                Effect::Refused { to, why } => drop(to.send(Err(refused(why, name, ended, &self.ids)))),
                // A release need not wait for its answer.
                Effect::Released { to, found } => {
                    if let Err(Err(error)) = to.send(found.ok_or_else(|| error_of(ended))) {
                        telemetry::release_failed(name, &error);
                    }
                }
                Effect::Doubted(hold) => self.verify(vec![hold]),
                Effect::Wanted(hold) => hold.want(),
                Effect::Lost { hold, reason } => {
                    hold.lose(reason);
                    self.let_go_if_over(&hold);
                }
                Effect::Came(_) | Effect::Gone(_) => {}
            }
        }
    }

    /// Whether the change stream would report losses, if it were open.
    fn wants_to_stream(&self) -> bool {
        self.config.may_stream() && !*self.demand.borrow()
    }

    fn demand_stream(&self) {
        self.demand.send_if_modified(|demand| !std::mem::replace(demand, true));
    }

    /// Shows users and operators how waiters and holders are woken at present.
    fn show_mode(&self) {
        let table = self.table();
        let mode = match table.stream {
            Stream::Unavailable(reason) => WakeMode::Polling(reason),
            Stream::Closed if table.fleet.reads => WakeMode::StreamForWaiters,
            Stream::Closed | Stream::Open => WakeMode::ChangeStream,
        };
        let mut before = mode;
        // Under the mutex, so that the last change is shown last.
        self.mode.send_if_modified(|shown| {
            before = std::mem::replace(shown, mode);
            before != mode
        });
        drop(table);
        if before != mode {
            telemetry::wake_mode(before, mode);
        }
    }

    /// Spawns a task that must run to its end even if nothing waits for it.
    pub(crate) fn spawn_for<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Detached<T> {
        detached(self.start(), task)
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        // A runtime that is shutting down drops the task; the lease is the bound then.
        drop(spawned(self.start(), task));
    }

    /// Whether nothing is held, waited for or about to leave.
    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        let table = self.table();
        let unused = table.lines.by_name.is_empty();
        assert!(!unused || table.timers.is_empty(), "{:?}", table.timers);
        unused
    }

    fn context<'a>(&'a self, stream: Stream, clock: &'a ServerClock) -> Context<'a> {
        let stream = match stream {
            Stream::Open => StreamState::Open,
            Stream::Unavailable(_) => StreamState::Unavailable,
            Stream::Closed if *self.demand.borrow() => StreamState::Opening,
            Stream::Closed => StreamState::OnDemand,
        };
        Context {
            now: Instant::now(),
            config: &self.config,
            clock,
            stream,
            ids: &self.ids,
            room: QUEUE_MOST,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The lines are written so that no step panics. If one does, the others must go on being renewed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the store: the driver's client shows the user's connection options.
        f.debug_struct("Session")
            .field("id", &self.ids.session())
            .finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // The runtime drops the tasks one by one, and this one was the last to have the session.
        self.report_left_taken();
        self.ended.cancel();
        let mode = *self.mode.borrow();
        telemetry::session_ended(mode);
    }
}

impl Lines {
    fn line(&mut self, name: &str) -> &mut Line {
        let expects_free = self.expects_free;
        // A name with a line is not remembered.
        let remembered = self.remembered.remove_entry(name);
        let (name, (free_at, pace)) = remembered.unwrap_or_else(|| (name.to_owned(), Default::default()));
        self.by_name.entry(name).or_insert_with_key(|name| {
            let expected_at = expects_free.then(Instant::now).or(free_at);
            let mut line = Line::new(name.clone(), expected_at, pace);
            line.is_unknown = free_at.is_none();
            line
        })
    }

    /// Returns the holds of the lock `name`.
    fn holds_of(&self, name: &str) -> Vec<Arc<Hold>> {
        let line = self.by_name.get(name);
        line.into_iter()
            .flat_map(|line| line.waitlist.holds())
            .cloned()
            .collect()
    }

    /// Lets go of a hold, unless its line has let go of it already; `to` gets the outcome of the release.
    fn let_go(&mut self, hold: &Hold, to: Option<oneshot::Sender<ReleaseOutcome>>, context: &Context<'_>) {
        if let Some(line) = self.by_name.get_mut(&hold.name)
            && line.waitlist.has(hold)
        {
            line.waitlist.step(context).let_go(hold, to);
        }
    }

    /// Notes that the need of a line changed; `reads`: holders hear of losses by reads.
    fn change_need(&mut self, before: Need, now: Need, reads: bool) {
        let was_needed = self.need_stream(reads);
        self.needs[before as usize] = self.needs[before as usize].saturating_sub(1);
        self.needs[now as usize] += 1;
        if was_needed && !self.need_stream(reads) {
            self.needed_until = Some(Instant::now());
        }
    }

    /// Whether the stream is needed; `reads`: holders hear of losses by reads.
    fn need_stream(&self, reads: bool) -> bool {
        let of = |need: Need| self.needs[need as usize];
        of(Need::Stream) > 0 || of(Need::Position) > POSITIONS_MOST || (of(Need::Losses) > 0 && !reads)
    }

    /// Ends a line that was taken out, as nothing more is sent.
    fn stop(&mut self, line: Line) -> Vec<Effect> {
        self.change_need(line.counted, Need::Nothing, true);
        line.waitlist.stop()
    }

    fn remember(&mut self, name: String, free_at: Option<Instant>, pace: Duration) {
        if self.remembered.len() >= REMEMBERED {
            // Only hints: a forgotten name costs the server a little more work the next time.
            self.remembered.clear();
        }
        self.remembered.insert(name, (free_at, pace));
    }
}
