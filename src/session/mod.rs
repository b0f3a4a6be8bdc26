//! One session per client: the lines before its locks, one heartbeat for all its holds, one change stream.
//!
//! All state is behind one mutex that is never held across an await. Whatever happens (a task joins, a future is
//! dropped, an answer or an event arrives, a timer fires) is fed to the [`Line`] of the name under the mutex; the
//! effects are carried out after it is let go; and when the line wants an operation, a task runs it. Operations are
//! never dropped or timed out: a driver future given up half-way may still be applied, and stalls the connection pool.

pub(crate) mod clock;
pub(crate) mod follow;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod guard;
mod heartbeat;
pub(crate) mod hold;
mod ids;
mod in_place;
pub(crate) mod line;
#[cfg(test)]
mod simulation;
mod stream;
mod watcher;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, oneshot, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::{AcquireError, ServerError},
    protocol::{Expects, Operation, State, wake},
    status::LostReason,
    store::{Answer, Event, Exchange, Store, StoreError},
    telemetry,
    wake_mode::WakeMode,
};
use clock::ServerClock;
use heartbeat::Renewals;
use hold::{Hold, Remains};
use ids::Ids;
use in_place::Claims;
use line::{Context, Effect, Line, Outcome, Pending, Standing, Wanted};

/// Operations of one client that are on their way at one time, so that a burst of acquires and cancels leaves room in
/// the connection pool, which is the user's; the driver's has ten connections by default.
const OPERATIONS_AT_ONCE: usize = 6;

/// How many idle names are remembered: as many as a service is likely to use again and again.
const IDLE_REMEMBERED: usize = 1_024;

/// The state of one client, shared by its handles and its tasks.
pub(crate) struct Session {
    pub(crate) config: Config,
    pub(crate) store: Store,
    ids: Ids,
    table: Mutex<Table>,
    /// The heartbeat has something to do earlier than it knows.
    beat: Arc<Notify>,
    operations: Semaphore,
    claims: Claims,
    mode: watch::Sender<WakeMode>,
    /// Whether anybody needs the change stream.
    demand: watch::Sender<bool>,
    /// The last line went idle; only of interest to a shutdown.
    drained: Notify,
    /// Nothing new is acquired any more.
    closing: CancellationToken,
    ended: CancellationToken,
    started: OnceLock<Handle>,
    /// Filled when the index has been asked for.
    prepared: OnceLock<()>,
}

#[derive(Debug, Default)]
struct Table {
    lines: Lines,
    clock: ServerClock,
    /// Grants arrive as events.
    streaming: bool,
    /// What the heartbeat sleeps up to.
    beat_at: Option<Instant>,
    /// Holds whose documents are to be read, and whether that is under way.
    doubted: Vec<Arc<Hold>>,
    verifying: bool,
    /// When the holds are read again while no stream tells of them.
    verify_at: Option<Instant>,
    renewals: Renewals,
}

/// The lines of all names that this process holds, waits for or leaves.
#[derive(Debug, Default)]
struct Lines {
    by_name: BTreeMap<String, Line>,
    /// Names without a line whose document was idle when it was last seen, and when that was.
    idle: HashMap<String, Instant>,
    closed: bool,
}

impl Session {
    pub(crate) fn new(config: Config, store: Store, first: Option<&Exchange>, mode: WakeMode) -> Arc<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        // 64 random bits: unique among all sessions that ever meet in one collection.
        Self::of(id[..16].to_owned(), config, store, first, mode)
    }

    fn of(id: String, mut config: Config, store: Store, first: Option<&Exchange>, mode: WakeMode) -> Arc<Self> {
        config.begin(first.and_then(|exchange| exchange.now));
        telemetry::session_began(mode);
        let mut clock = ServerClock::default();
        if let Some(exchange) = first {
            clock.note(exchange);
        }
        Arc::new(Self {
            config,
            store,
            ids: Ids::new(id),
            table: Mutex::new(Table {
                clock,
                ..Table::default()
            }),
            beat: Arc::default(),
            operations: Semaphore::new(OPERATIONS_AT_ONCE),
            claims: Claims::default(),
            mode: watch::Sender::new(mode),
            demand: watch::Sender::new(false),
            drained: Notify::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            started: OnceLock::new(),
            prepared: OnceLock::new(),
        })
    }

    /// Starts the session's tasks on the present runtime, the first time that it is needed.
    fn start(self: &Arc<Self>) -> &Handle {
        self.started.get_or_init(|| {
            let runtime = Handle::current();
            runtime.spawn(heartbeat::run(
                Arc::downgrade(self),
                self.beat.clone(),
                self.ended.clone(),
            ));
            if self.config.wake_source.may_stream() {
                runtime.spawn(watcher::run(
                    Arc::downgrade(self),
                    self.demand.subscribe(),
                    self.ended.clone(),
                ));
            }
            runtime
        })
    }

    /// Makes the index, the first time that a lock is wanted: who only looks at locks writes nothing.
    fn prepare(self: &Arc<Self>) {
        self.prepared.get_or_init(|| {
            let session = self.clone();
            self.spawn(async move {
                if let Err(error) = session.store.prepare().await {
                    telemetry::index_missing(&error);
                }
            });
        });
    }

    pub(crate) fn mode(&self) -> watch::Receiver<WakeMode> {
        self.mode.subscribe()
    }

    /// Gets in line for `name`; the receiver has the outcome. Dropping the returned place gives it up.
    pub(crate) fn join(self: &Arc<Self>, name: &str, wanted: Wanted) -> Place {
        self.prepare();
        let (to, outcome) = oneshot::channel();
        let key = self.ids.number();
        let pending = Pending::new(key, self.ids.entry(), wanted, to);
        self.feed(name, |lines, context, effects| {
            if lines.closed {
                effects.push(Effect::Answer(pending.to, Err(AcquireError::Closed)));
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

    /// Feeds something to the lines, carries out what follows from it, and sees to the line of `name`.
    fn feed(self: &Arc<Self>, name: &str, input: impl FnOnce(&mut Lines, &Context<'_>, &mut Vec<Effect>)) {
        let mut effects = Vec::new();
        {
            let mut table = self.table();
            let table = &mut *table;
            let context = self.context(table.streaming, &table.clock);
            input(&mut table.lines, &context, &mut effects);
            if let Some(operation) = table.lines.by_name.get_mut(name).and_then(|line| line.next(&context)) {
                self.spawn(self.clone().run(name.to_owned(), operation));
            }
            self.after(table, name);
        }
        self.carry_out(name, effects);
    }

    /// Keeps the books after a line changed: idle lines go, the heartbeat knows the next instant.
    fn after(&self, table: &mut Table, name: &str) {
        let Some(line) = table.lines.by_name.get(name) else {
            return;
        };
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
        if line.is_queued() {
            self.demand_stream();
        }
        if let Some(at) = heartbeat::due_at(line, self.wants_to_stream())
            && table.beat_at.is_none_or(|beat_at| at < beat_at)
        {
            table.beat_at = Some(at);
            self.beat.notify_one();
        }
    }

    /// Runs operations on one name for as long as its line wants any.
    async fn run(self: Arc<Self>, name: String, mut operation: Operation) {
        loop {
            let answer = {
                // The semaphore is never closed.
                let _permit = self.operations.acquire().await;
                self.store.run(&name, &operation).await
            };
            match self.settle(&name, &operation, answer) {
                Some(next) => operation = next,
                None => break,
            }
        }
        // What is still to be taken out has nobody else: its handles and futures, and the client too, may be gone, and
        // with them the session but for this task.
        let leaves_at = self.table().lines.by_name.get(&name).and_then(Line::leaves_at);
        if let Some(at) = leaves_at {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at) => self.feed(&name, |_, _, _| {}),
                () = self.ended.cancelled() => {}
            }
        }
    }

    fn settle(
        self: &Arc<Self>,
        name: &str,
        operation: &Operation,
        answer: Result<Answer, StoreError>,
    ) -> Option<Operation> {
        let mut effects = Vec::new();
        let next = {
            let mut table = self.table();
            let table = &mut *table;
            if let Ok(answer) = &answer {
                table.clock.note(&answer.exchange);
            }
            let context = self.context(table.streaming, &table.clock);
            let line = table.lines.by_name.get_mut(name)?;
            match answer {
                Ok(answer) => {
                    line.answered(operation, &answer, &context, &mut effects);
                    line.remember(answer, &context);
                }
                Err(error) => {
                    line.failed(operation, &error, &context, &mut effects);
                }
            }
            let next = line.next(&context);
            self.after(table, name);
            next
        };
        self.carry_out(name, effects);
        next
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
                for (id, signal) in wake::signals(wake, self.ids.session()) {
                    self.feed(name, |lines, context, effects| {
                        // A grant of an entry that nobody knows any more: it is taken out again.
                        let known = lines.by_name.contains_key(name);
                        if known || matches!(signal, wake::Signal::Granted { .. }) {
                            lines.line(name).signalled(id, signal, *at, context, effects);
                        }
                    });
                }
            }
            Event::Foreign { name } => self.on_doubt(name),
            Event::Everything => self.on_gap(),
        }
    }

    /// The document of `name` may have changed in any way: who waits asks again, who holds is verified.
    fn on_doubt(self: &Arc<Self>, name: &str) {
        let mut held = Vec::new();
        self.feed(name, |lines, context, _| {
            if let Some(line) = lines.by_name.get_mut(name) {
                line.doubt(context);
                held.extend(line.holds().cloned());
            }
        });
        self.verify(held);
    }

    /// Events may have been missed: the same for every name.
    fn on_gap(self: &Arc<Self>) {
        let names: Vec<String> = self.table().lines.by_name.keys().cloned().collect();
        for name in names {
            self.on_doubt(&name);
        }
    }

    /// Whether the change stream would tell of a loss, if it were open.
    fn wants_to_stream(&self) -> bool {
        self.config.wake_source.may_stream() && !*self.demand.borrow()
    }

    fn demand_stream(&self) {
        self.demand.send_if_modified(|demand| !std::mem::replace(demand, true));
    }

    fn set_mode(&self, mode: WakeMode) {
        let before = self.mode.send_replace(mode);
        if before != mode {
            telemetry::wake_mode(before, mode);
        }
    }

    /// Refuses new acquires, lets go of everything, and waits until the server knows, for a lease at most.
    pub(crate) async fn shut_down(self: &Arc<Self>) {
        self.close();
        let (names, holds) = {
            let table = self.table();
            let holds: Vec<_> = table.lines.by_name.values().flat_map(Line::holds).cloned().collect();
            (table.lines.by_name.keys().cloned().collect::<Vec<_>>(), holds)
        };
        for name in &names {
            self.feed(name, |lines, context, effects| lines.line(name).close(context, effects));
        }
        for hold in &holds {
            // However many handles it has.
            if hold.lose(LostReason::Released) {
                hold.tell_end();
                drop(self.let_go(hold));
            }
        }
        let rest = async {
            loop {
                let mut drained = std::pin::pin!(self.drained.notified());
                // Registered before the look, so that no change after the look is missed.
                drained.as_mut().enable();
                if self.table().lines.by_name.is_empty() && !self.ids.is_claiming() {
                    return;
                }
                drained.await;
            }
        };
        // Beyond that the leases have run out.
        let _ = tokio::time::timeout(self.config.lease, rest).await;
        self.ended.cancel();
    }

    /// Refuses new acquires and claims.
    pub(crate) fn close(&self) {
        self.table().lines.closed = true;
        self.closing.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Reads the document of `name`; with it, the server's clock at that moment.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &str) -> Result<Option<(State, Exchange)>, ServerError> {
        let (session, names) = (self.clone(), [name.to_owned()]);
        let reading = self.start().spawn(async move { session.store.read(&names).await });
        let read = reading
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)));
        let (mut documents, exchange) = read.map_err(ServerError::from)?;
        match documents.remove(name) {
            None => Ok(None),
            Some(Ok(state)) => Ok(Some((state, exchange))),
            Some(Err(malformed)) => Err(StoreError::from(malformed).into()),
        }
    }

    /// Puts every holder of `name` out. Not repeated when its outcome is unknown: it could be those who came after.
    pub(crate) async fn evict(self: &Arc<Self>, name: &str) -> Result<Option<State>, ServerError> {
        let operation = Operation {
            evict: true,
            ..self.operation()
        };
        let state = self.operate(name, operation, None).await?;
        telemetry::broke(name);
        Ok(state)
    }

    /// Gives a holder another value; `false` when it holds no more.
    pub(crate) async fn proclaim(self: &Arc<Self>, hold: &Hold, value: String) -> Result<bool, ServerError> {
        let proclaim = Some((hold.id.clone(), value.clone()));
        let operation = Operation {
            proclaim,
            ..self.operation()
        };
        let state = self.operate(&hold.name, operation, Some(hold.deadline())).await?;
        let holder = state
            .iter()
            .flat_map(|state| &state.holders)
            .find(|holder| holder.id == hold.id);
        Ok(holder.is_some_and(|holder| holder.owner.value == Some(value)))
    }

    fn operation(&self) -> Operation {
        Operation {
            id: self.ids.operation(),
            leave: Vec::new(),
            leave_capacity: None,
            evict: false,
            proclaim: None,
            requests: None,
            expects: Expects::Nothing,
            keep: self.config.keep_millis(),
        }
    }

    /// Runs an operation; one that can be run twice again and again until it gets through, up to a deadline.
    async fn operate(
        self: &Arc<Self>,
        name: &str,
        operation: Operation,
        deadline: Option<Instant>,
    ) -> Result<Option<State>, ServerError> {
        let mut pause = line::BACKOFF.0;
        loop {
            let session = self.clone();
            let (name, operation) = (name.to_owned(), operation.clone());
            let running = self
                .start()
                .spawn(async move { session.store.run(&name, &operation).await });
            match running
                .await
                .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)))
            {
                Ok(answer) => return Ok(answer.state),
                Err(error) if error.is_final() || deadline.is_none_or(|deadline| Instant::now() > deadline) => {
                    return Err(error.into());
                }
                Err(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(line::BACKOFF.1);
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
        self.table().lines.by_name.is_empty()
    }

    fn context<'a>(&'a self, streaming: bool, clock: &'a ServerClock) -> Context<'a> {
        Context {
            now: Instant::now(),
            config: &self.config,
            clock,
            streaming,
            ids: &self.ids,
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
        self.ended.cancel();
        let mode = *self.mode.borrow();
        telemetry::session_ended(mode);
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
        let answered = match timeout {
            None => (&mut self.outcome).await,
            Some(timeout) => match tokio::time::timeout(timeout, &mut self.outcome).await {
                Ok(answered) => answered,
                Err(_) => {
                    let standing = self.give_up();
                    match self.outcome.try_recv() {
                        // Granted in the very moment: then it is ours, and not too late.
                        Ok(answered) => Ok(answered),
                        Err(_) => return Err(self.overdue(timeout, standing)),
                    }
                }
            },
        };
        self.answered = true;
        // The sender goes without a word only when the runtime of the session ends.
        answered.unwrap_or(Err(AcquireError::Closed))
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
