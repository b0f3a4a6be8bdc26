//! One session per client: the lines before its locks, one heartbeat for all its holds, one change stream.
//!
//! All state is behind one mutex that is never held across an await. Whatever happens (a task joins, a future is
//! dropped, an answer or an event arrives, a timer fires) is fed to the [`Line`] of the name under the mutex; the
//! effects are carried out after it is let go; and when the line wants an operation, a task runs it (see [`asking`]).
//! The driver's futures are never dropped: one given up half-way may still be applied, and stalls the connection pool.

mod agenda;
pub(crate) mod asking;
pub(crate) mod budget;
pub(crate) mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod guard;
mod heartbeat;
pub(crate) mod hold;
mod holds;
mod in_place;
mod index;
pub(crate) mod line;
mod opening;
mod pace;
mod passed;
mod process;
mod renewals;
mod runtime;
mod shut_down;
#[cfg(test)]
mod simulation;
mod subscription;
mod watcher;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::{AcquireError, ServerError},
    protocol::{Evict, Expects, Operation, Proclaim, QUEUE_MOST, ServerTime, State, wake},
    store::{Event, Exchange, Store, StoreError},
    telemetry,
    waitlist::{clock::ServerClock, ids::Ids},
    wake_mode::WakeMode,
};
use agenda::Agenda;
use asking::Asking;
use budget::StreamBudget;
use heartbeat::AT_A_TIME;
use hold::{Hold, Remains};
use holds::Change;
use in_place::Claims;
pub(crate) use in_place::Given;
use line::{Context, Effect, Line, Look, Need, Outcome, Pending, Standing, Wanted};
pub(crate) use passed::PASSED_AT_ONCE;
use process::Process;
use renewals::Renewals;
use watcher::Demand;

/// How many idle names are remembered: as many as a service is likely to use again and again.
const IDLE_REMEMBERED: usize = 1_024;

/// Maximum number of names at whose queues a session looks. For more of them one stream costs less than the reads.
const LOOKS_MOST: usize = 8;

/// The state of one client, shared by its handles and its tasks.
pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) store: Arc<Store>,
    ids: Ids,
    table: Mutex<Table>,
    /// The heartbeat has something to do earlier than it knows.
    beat: Arc<Notify>,
    asking: Arc<Asking>,
    claims: Claims,
    mode: watch::Sender<WakeMode>,
    /// Shared by all sessions of the client.
    budget: Arc<StreamBudget>,
    /// What the change stream is needed for.
    demand: watch::Sender<Demand>,
    /// The last line went idle; only of interest to a shutdown.
    drained: Notify,
    /// Nothing new is acquired any more.
    closing: CancellationToken,
    ended: CancellationToken,
    /// Its runtime has ended.
    stopped: CancellationToken,
    made_in: Process,
    started: OnceLock<Handle>,
    /// The runtime on which the client was built, where there is a driver.
    home: OnceLock<Handle>,
    /// Filled when the index is asked for, and cancelled when nobody is to wait for it any more.
    prepared: OnceLock<CancellationToken>,
}

#[derive(Debug, Default)]
struct Table {
    lines: Lines,
    clock: ServerClock,
    /// Grants arrive as events.
    streaming: bool,
    /// What the heartbeat sleeps up to.
    beat_at: Option<Instant>,
    /// What the heartbeat has to do.
    agenda: Agenda,
    /// Holds whose documents are to be read, by their numbers, and whether that is under way.
    doubted: BTreeMap<u64, Arc<Hold>>,
    verifying: bool,
    /// When the holds are read again while no stream tells of them.
    verify_at: Option<Instant>,
    /// The number of the last that was.
    looked_after: u64,
    /// Every name is gone through, as events may have been missed; `true`: and once more then.
    gap: Option<bool>,
    renewals: Renewals,
}

/// The lines of all names that this process holds, waits for or leaves.
#[derive(Debug, Default)]
struct Lines {
    by_name: BTreeMap<String, Line>,
    /// Names without a line whose document was idle when it was last seen, and when that was.
    idle: HashMap<String, Instant>,
    needs: Needs,
    closed: bool,
}

/// What the lines need of the change stream: how many of them, as that is asked after every event.
#[derive(Debug, Default)]
struct Needs {
    stream: usize,
    looks: usize,
    /// When the last that needed it went.
    unneeded_since: Option<Instant>,
}

impl Session {
    pub(crate) fn new(config: Config, store: Store, first: Option<&Exchange>, mode: WakeMode) -> Arc<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        // 64 random bits: unique among all sessions that ever meet in one collection.
        Self::of(id[..16].to_owned(), config, store, first, mode)
    }

    fn of(id: String, config: Config, store: Store, first: Option<&Exchange>, mode: WakeMode) -> Arc<Self> {
        let budget = StreamBudget::new(config.max_streams);
        Self::within(budget, id, config, store, first, mode)
    }

    /// Another session of the same client: it shares the room for change streams.
    pub(crate) fn beside(&self, store: Store, mode: WakeMode) -> Arc<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let (budget, config) = (self.budget.clone(), self.config.clone());
        Self::within(budget, id[..16].to_owned(), config, store, None, mode)
    }

    fn within(
        budget: Arc<StreamBudget>,
        id: String,
        mut config: Config,
        store: Store,
        first: Option<&Exchange>,
        mode: WakeMode,
    ) -> Arc<Self> {
        config.begin(first.and_then(|exchange| exchange.now));
        if store.is_in_memory() {
            // There a stream costs nobody anything.
            config.near = u64::MAX;
        }
        telemetry::session_began(mode);
        let mut clock = ServerClock::default();
        if let Some(exchange) = first {
            // The first there is contradicts nothing.
            let _ = clock.note(exchange, &config);
        }
        Arc::new(Self {
            config,
            store: Arc::new(store),
            ids: Ids::new(id),
            table: Mutex::new(Table {
                clock,
                ..Table::default()
            }),
            beat: Arc::default(),
            asking: Asking::new(),
            claims: Claims::default(),
            mode: watch::Sender::new(mode),
            budget,
            demand: watch::Sender::default(),
            drained: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            stopped: CancellationToken::new(),
            made_in: Process::this(),
            started: OnceLock::new(),
            home: OnceLock::new(),
            prepared: OnceLock::new(),
        })
    }

    pub(crate) fn mode(&self) -> watch::Receiver<WakeMode> {
        self.mode.subscribe()
    }

    /// Gets in line for `name`; the receiver has the outcome. Dropping the returned place gives it up.
    pub(crate) fn join(self: &Arc<Self>, name: &str, wanted: Wanted) -> Place {
        let (to, outcome) = oneshot::channel();
        let key = self.ids.number();
        let pending = Pending::new(key, self.ids.entry(), wanted, to);
        self.feed(name, |lines, context, effects| {
            if lines.closed {
                effects.push(Effect::Answer(pending.to, Err(self.why_closed())));
            } else {
                lines.line(name).join(pending, context, effects);
            }
        });
        Place {
            session: self.clone(),
            name: name.to_owned(),
            key,
            outcome,
            answered: false,
        }
    }

    /// Lets go of a hold; the receiver has what became of it.
    pub(crate) fn let_go(self: &Arc<Self>, hold: &Hold) -> oneshot::Receiver<line::Left> {
        let (to, left) = oneshot::channel();
        self.feed(&hold.name, |lines, context, _| {
            lines.line(&hold.name).let_go(hold, Some(to), context)
        });
        left
    }

    /// Feeds something to the lines, carries out what follows from it, and sees to the line of `name`. In a fork nothing is
    /// fed, so that the sender of whoever waits for an answer goes without a word.
    fn feed(self: &Arc<Self>, name: &str, input: impl FnOnce(&mut Lines, &Context<'_>, &mut Vec<Effect>)) {
        if !self.made_in.is_this() {
            return;
        }
        let mut effects = Vec::new();
        let (operation, look) = {
            let mut table = self.table();
            let table = &mut *table;
            let context = self.context(table.streaming, &table.clock);
            input(&mut table.lines, &context, &mut effects);
            if self.stopped.is_cancelled()
                && let Some(line) = table.lines.by_name.remove(name)
            {
                table.lines.needs.change(line.counted, Need::Nothing);
                line.stop(&StoreError::runtime_ended(), &mut effects);
            }
            let line = table.lines.by_name.get_mut(name);
            let (operation, look) = line.map_or((None, None), |line| match line.next(&context) {
                Some(operation) => (Some((operation, line.vain())), None),
                None => (None, line.next_look(&context)),
            });
            self.after(table, name);
            (operation, look)
        };
        if operation.is_some() {
            self.spawn(self.clone().run(name.to_owned(), operation));
        }
        if let Some(look) = look {
            self.spawn(self.clone().look_at_place(name.to_owned(), look));
        }
        self.carry_out(name, effects);
    }

    /// Looks at the place of an entry in the queue. Where that fails, the entry asks, which tells why.
    async fn look_at_place(self: Arc<Self>, name: String, look: Look) {
        let reading = self.read_short(|store| {
            let (name, entry) = (name.clone(), look.entry.clone());
            async move { store.ahead(&name, &entry).await }
        });
        let ahead = reading.await.ok().and_then(|(ahead, exchange)| {
            self.note(&exchange);
            ahead
        });
        self.feed(&name, |lines, context, _| {
            if let Some(line) = lines.by_name.get_mut(&name) {
                line.looked(&look, ahead, context);
            }
        });
    }

    /// Keeps the books after a line changed: idle lines go, the heartbeat knows the next instant.
    fn after(&self, table: &mut Table, name: &str) {
        let Lines { by_name, needs, .. } = &mut table.lines;
        let Some(line) = by_name.get_mut(name) else {
            return;
        };
        let need = line.need();
        needs.change(std::mem::replace(&mut line.counted, need), need);
        let now = Instant::now();
        for change in line.take_changes() {
            match change {
                Change::Came(hold) => table.agenda.came(&hold, now),
                Change::Gone(hold) => table.agenda.gone(&hold),
            }
        }
        table.agenda.ask(name, line.due_at());
        if line.is_idle() {
            if let Some(at) = line.alone_at() {
                table.lines.remember_idle(name, at);
            }
            table.lines.by_name.remove(name);
            if table.lines.by_name.is_empty() {
                self.drained.notify_waiters();
            }
            return;
        }
        if line.waits_for_event() || needs.looks > LOOKS_MOST {
            self.demand_stream();
        }
        self.beat_in_time(table);
    }

    fn carry_out(self: &Arc<Self>, name: &str, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer(to, outcome) => {
                    // Nobody waits for it any more: give it back.
                    if let Err(Ok(Some(hold))) = to.send(outcome) {
                        self.discard(&hold);
                    }
                }
                Effect::Left(to, left) => {
                    // Whoever released may well not wait for the answer.
                    if let Err(Err(error)) = to.send(left) {
                        telemetry::release_failed(name, &error);
                    }
                }
                Effect::Doubted(hold) => self.verify(vec![hold]),
                Effect::Lost(hold, reason) => {
                    hold.lose(reason);
                    hold.tell_end();
                }
            }
        }
    }

    /// Drops a handle that nobody will ask about, and lets go of the hold if it was the last.
    pub(crate) fn discard(self: &Arc<Self>, hold: &Hold) {
        let remains = hold.exit();
        hold.tell_end();
        if remains == Remains::Nothing {
            drop(self.let_go(hold));
        }
    }

    /// An event of the change stream. Only routes: what is to be done is done by tasks.
    fn on_event(self: &Arc<Self>, event: &Event) {
        match event {
            Event::Addressed { name, wake, at } => {
                let mut ours = false;
                for (id, signal) in wake::signals(wake, self.ids.session()) {
                    ours = true;
                    self.feed(name, |lines, context, effects| {
                        if context.ids.remember(id, signal, *at) {
                            return;
                        }
                        // A grant of an entry that nobody knows any more: it is taken out again.
                        let known = lines.by_name.contains_key(name);
                        if known || matches!(signal, wake::Signal::Granted { .. }) {
                            lines.line(name).signalled(id, signal, *at, context, effects);
                        }
                    });
                }
                if ours {
                    self.on_time(name, *at);
                } else {
                    // It came to us for its age alone: somebody wrote an earlier copy of the lock.
                    self.on_doubt(name);
                }
            }
            Event::Foreign { name } => self.on_doubt(name),
            // The claims are told of all of them at once.
            Event::Freed => {}
            Event::Everything => self.on_gap(),
        }
    }

    /// A write bears this time. One from before a hold was granted is an earlier copy of the lock, or its event is late.
    fn on_time(self: &Arc<Self>, name: &str, at: ServerTime) {
        let held: Vec<_> = {
            let table = self.table();
            let holds = table.lines.by_name.get(name).into_iter().flat_map(Line::holds);
            holds.filter(|hold| hold.is_granted_after(at)).cloned().collect()
        };
        self.verify(held);
    }

    /// The document of `name` may have changed in any way: who waits asks again, who holds is verified.
    fn on_doubt(self: &Arc<Self>, name: &str) {
        let mut held = Vec::new();
        self.feed(name, |lines, context, _| {
            context.ids.doubt(Some(name));
            if let Some(line) = lines.by_name.get_mut(name) {
                line.doubt(context);
                held.extend(line.holds().cloned());
            }
        });
        self.verify(held);
    }

    /// Events may have been missed: the same for every name.
    fn on_gap(self: &Arc<Self>) {
        let under_way = {
            let mut table = self.table();
            self.ids.doubt(None);
            let gap = &mut table.gap;
            gap.replace(gap.is_some()).is_some()
        };
        if !under_way {
            self.spawn(self.clone().doubt_all());
        }
    }

    /// Doubts every name, some at a time, so that nothing else has to wait for long.
    async fn doubt_all(self: Arc<Self>) {
        let mut last: Option<String> = None;
        loop {
            let names = self.names_after(last.as_deref());
            for name in &names {
                self.on_doubt(name);
            }
            last = names.into_iter().next_back();
            if last.is_none() {
                let gap = &mut self.table().gap;
                // There was another gap meanwhile.
                *gap = gap.filter(|again| *again).map(|_| false);
                if gap.is_none() {
                    return;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// The next names that have lines, in their order.
    fn names_after(&self, last: Option<&str>) -> Vec<String> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let table = self.table();
        let names = table.lines.by_name.range::<str, _>((from, Bound::Unbounded));
        names.take(AT_A_TIME).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the change stream would tell of a loss, if it were open.
    fn wants_to_stream(&self) -> bool {
        self.config.wake_source.may_stream() && !self.demand.borrow().stream
    }

    fn demand_stream(&self) {
        self.demand
            .send_if_modified(|demand| !std::mem::replace(&mut demand.stream, true));
    }

    fn set_mode(&self, mode: WakeMode) {
        let before = self.mode.send_replace(mode);
        if before != mode {
            telemetry::wake_mode(before, mode);
        }
    }

    /// Reads the document of `name`; with it, the server's clock at that moment.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        let read = self.read_names(&[name.to_owned()]).await;
        let (mut documents, exchange) = read.map_err(ServerError::from)?;
        match documents.remove(name) {
            None => Ok(None),
            Some(Ok(state)) => Ok(Some((state, exchange))),
            Some(Err(malformed)) => Err(StoreError::from(malformed).into()),
        }
    }

    /// Gives a holder another value; `false` when it holds no more.
    pub(crate) async fn proclaim(self: &Arc<Self>, hold: &Hold, value: String) -> Result<bool, ServerError> {
        let number = hold.proclamation();
        let proclaim = Some(Proclaim {
            id: hold.id.clone(),
            value,
            number,
        });
        let operation = Operation {
            proclaim,
            ..self.operation()
        };
        let state = self
            .operate(&hold.name, operation, asking::PROCLAIM, Some(hold.deadline()))
            .await?;
        let holder = state
            .iter()
            .flat_map(|state| &state.holders)
            .find(|holder| hold.is(holder));
        // A later value may have got there first, and then stays.
        Ok(holder.is_some_and(|holder| holder.owner.proclaimed >= number))
    }

    fn operation(&self) -> Operation {
        Operation {
            id: self.ids.operation(),
            leave: Vec::new(),
            leave_capacity: None,
            evict: Evict::Nobody,
            proclaim: None,
            requests: None,
            expects: Expects::Nothing,
            room: QUEUE_MOST,
            keep: self.config.keep_millis(),
        }
    }

    /// Spawns what must come to its end whoever waits for it.
    pub(crate) fn spawn_for<T: Send + 'static>(
        self: &Arc<Self>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.start().spawn(task)
    }

    fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        // A runtime that is shutting down drops the task; then the lease is the bound.
        drop(self.start().spawn(task));
    }

    /// Whether nothing is held, waited for or to be taken out.
    #[cfg(test)]
    fn rests(&self) -> bool {
        let table = self.table();
        let rests = table.lines.by_name.is_empty();
        assert!(!rests || table.agenda.is_empty(), "{:?}", table.agenda);
        rests
    }

    fn context<'a>(&'a self, streaming: bool, clock: &'a ServerClock) -> Context<'a> {
        Context {
            now: Instant::now(),
            config: &self.config,
            clock,
            streaming,
            resting: !streaming && self.wants_to_stream() && *self.mode.borrow() == WakeMode::ChangeStream,
            ids: &self.ids,
            room: QUEUE_MOST,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The lines are written so that no step panics; should one, the others must go on being renewed.
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
        if !self.made_in.is_this() {
            return;
        }
        self.ended.cancel();
        let mode = *self.mode.borrow();
        telemetry::session_ended(mode);
    }
}

impl Needs {
    /// A line needs something else than before.
    fn change(&mut self, before: Need, now: Need) {
        let needed = self.need_stream();
        match before {
            Need::Nothing => {}
            Need::Looks => self.looks -= 1,
            Need::Stream => self.stream -= 1,
        }
        match now {
            Need::Nothing => {}
            Need::Looks => self.looks += 1,
            Need::Stream => self.stream += 1,
        }
        if needed && !self.need_stream() {
            self.unneeded_since = Some(Instant::now());
        }
    }

    fn need_stream(&self) -> bool {
        self.stream > 0 || self.looks > LOOKS_MOST
    }
}

impl Lines {
    fn line(&mut self, name: &str) -> &mut Line {
        self.by_name
            .entry(name.to_owned())
            .or_insert_with(|| Line::new(name.to_owned(), self.idle.remove(name)))
    }

    fn remember_idle(&mut self, name: &str, at: Instant) {
        if self.idle.len() >= IDLE_REMEMBERED {
            // Only a hint: what is forgotten costs the server a little more work the next time.
            self.idle.clear();
        }
        self.idle.insert(name.to_owned(), at);
    }
}

/// A place in the line. Dropping it gives it up, and gives back what was granted meanwhile.
#[derive(Debug)]
pub(crate) struct Place {
    session: Arc<Session>,
    name: String,
    key: u64,
    outcome: oneshot::Receiver<Outcome>,
    answered: bool,
}

impl Place {
    /// Waits for the outcome, for `timeout` at most.
    pub(crate) async fn outcome(mut self, timeout: Option<Duration>) -> Outcome {
        let session = self.session.clone();
        let waiting = async {
            match timeout {
                None => Ok((&mut self.outcome).await),
                Some(timeout) => tokio::time::timeout(timeout, &mut self.outcome).await,
            }
        };
        let waited = tokio::select! {
            biased;
            waited = waiting => waited,
            stands_still = session.stands_still() => return Err(stands_still.into()),
        };
        let answered = match (waited, timeout) {
            (Ok(answered), _) => answered,
            (Err(_), timeout) => {
                let standing = self.give_up();
                match self.outcome.try_recv() {
                    // Granted in the very moment: then it is ours, and not too late.
                    Ok(answered) => Ok(answered),
                    Err(_) => return Err(self.overdue(timeout.unwrap_or_default(), standing)),
                }
            }
        };
        self.answered = true;
        // The sender goes without a word only when the runtime of the session ends, or in a fork.
        answered.unwrap_or_else(|_| Err(self.session.why_closed()))
    }

    fn overdue(&self, waited: Duration, standing: Option<Standing>) -> AcquireError {
        let (contention, trouble) = standing.map_or((None, None), |standing| standing.tell(&self.session.ids));
        AcquireError::Timeout {
            name: self.name.clone(),
            waited,
            contention: contention.map(Box::new),
            source: trouble.map(ServerError::from),
        }
    }

    fn give_up(&self) -> Option<Standing> {
        let mut standing = None;
        self.session.feed(&self.name, |lines, context, _| {
            if let Some(line) = lines.by_name.get_mut(&self.name) {
                standing = line.cancel(self.key, context);
            }
        });
        standing
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        self.give_up();
        // What is sent from here on comes back to the sender, which gives it back to the server.
        self.outcome.close();
        if let Ok(Ok(Some(hold))) = self.outcome.try_recv() {
            self.session.discard(&hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_needed_for_one_that_waits_for_events_or_many_that_look() {
        let mut needs = Needs::default();
        for number in 1..=LOOKS_MOST + 1 {
            assert!(!needs.need_stream(), "{number}");
            needs.change(Need::Nothing, Need::Looks);
        }
        assert!(needs.need_stream() && needs.unneeded_since.is_none());
        needs.change(Need::Looks, Need::Stream);
        needs.change(Need::Looks, Need::Nothing);
        assert!(needs.need_stream() && needs.unneeded_since.is_none());
        needs.change(Need::Stream, Need::Nothing);
        assert!(!needs.need_stream() && needs.unneeded_since.is_some());
        assert_eq!((needs.stream, needs.looks), (0, LOOKS_MOST - 1));
    }
}
