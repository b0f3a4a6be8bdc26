//! `watchlock run`.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use watchlock::{
    Acquire, LockClient, LockClientBuilder, Released,
    action::{CanAcquire, IsLock, One, OrHeld, Patience, Try},
    errors::{AcquireError, HoldError},
    locks::{Once, Turn},
    testing::InMemory,
};

use crate::{
    arguments::Run,
    attend::attend,
    connection::{Connection, NAME, Place, URI},
    exit::{self, Failure, LOST, NOT_OBTAINED, Outcome, UNAVAILABLE, ended_by},
    held::Held,
    job,
    leaving::{LEAVE, caught, give_back, hold_may_stay, run_may_count},
    live,
    messages::{self, fail, say},
    process::Running,
    signals::{JOB_CONTROL, PASSED_ON, Signals},
    text::{exact, plain},
};

/// Limit of a try, including the connecting before it: it is for users who do not want to wait.
pub(crate) const TRY: Duration = Duration::from_secs(5);

/// Least time that the server has to answer: a shorter limit is for the lock alone.
const ANSWER: Duration = Duration::from_secs(2);

/// Time before the end of the limit at which the driver gives up, and says what is wrong. A share of the limit would cut
/// off the end of fail-overs, which take some 12 s.
const EXPLAINED: Duration = Duration::from_millis(500);

/// Longest reason that the library accepts, in bytes.
const REASON_MOST: usize = 1_024;

pub(crate) async fn run(connection: &Connection, arguments: Run) -> Outcome {
    if arguments.voice.quiet {
        messages::be_quiet();
    }
    rehearse(&arguments).await?;
    let mut signals = Signals::listen(PASSED_ON.iter().chain(&JOB_CONTROL))?;
    let deadline = deadline(&arguments);
    let locks = tokio::select! {
        connected = connect(connection, &arguments) => connected?,
        signal = signals.ending() => return Ok(ended_by(signal)),
    };
    let outcome = caught(under_lock(&locks, &arguments, deadline, &mut signals)).await;
    if let Ok(Finished { code, is_left: true }) = outcome {
        return Ok(code);
    }
    Ok(give_back(outcome, &locks, &arguments).await?.code)
}

/// The result of the run.
#[derive(Debug)]
struct Finished {
    code: ExitCode,
    /// Whether the lock may stay taken, which the user has been told.
    is_left: bool,
}

/// Returns how long it may take to obtain the lock.
fn limit(arguments: &Run) -> Option<Duration> {
    let tries = arguments.share.once || arguments.once_per.is_some();
    if tries { Some(TRY) } else { arguments.patience.timeout }
}

/// Returns when the lock must be obtained. A limit beyond the clock's range is no limit.
pub(crate) fn deadline(arguments: &Run) -> Option<Instant> {
    limit(arguments).and_then(|limit| Instant::now().checked_add(limit))
}

/// Returns how long the server has to answer, from connecting on; a limit of zero is a try.
fn answer(limit: Duration) -> Duration {
    if limit.is_zero() { TRY } else { limit.max(ANSWER) }
}

/// Connects, within the limit of the arguments.
pub(crate) async fn connect(connection: &Connection, arguments: &Run) -> Result<LockClient, Failure> {
    let Some(within) = limit(arguments).map(answer) else {
        return build(connection.patient().await?, arguments).await;
    };
    let selection = within.saturating_sub(EXPLAINED);
    let connecting = async { build(connection.within(selection).await?, arguments).await };
    timeout(within, connecting)
        .await
        .unwrap_or_else(|_| Err(unanswered(within)))
}

/// Checks names, texts and durations by the library's own rules: takes the lock in memory, before anything is sent.
pub(crate) async fn rehearse(arguments: &Run) -> Result<(), Failure> {
    let locks = set(InMemory::new().builder(), arguments).build().await?;
    drop(begin(&locks, arguments, None).await?);
    Ok(())
}

async fn build(place: Place, arguments: &Run) -> Result<LockClient, Failure> {
    Ok(set(place.builder(), arguments).build().await?)
}

fn set(builder: LockClientBuilder, arguments: &Run) -> LockClientBuilder {
    let mut builder = builder.lease(arguments.renewed.lease);
    if let Some(limit) = arguments.warn_after {
        builder = builder.warn_after(limit);
    }
    if let Some(limit) = arguments.lose_after {
        builder = builder.lose_after(limit);
    }
    // An empty variable of the environment is as good as none.
    if let Some(label) = arguments.holder.label.as_ref().filter(|label| !label.is_empty()) {
        builder = builder.label(label);
    }
    if let Some(id) = &arguments.renewed.owner_id {
        builder = builder.owner_id(id);
    }
    builder
}

async fn under_lock(
    locks: &LockClient,
    arguments: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<Finished, Failure> {
    let handle = match obtain(locks, arguments, deadline, signals).await? {
        Ok(handle) => handle,
        Err(code) => return Ok(Finished { code, is_left: false }),
    };
    if let Some(reason) = handle.lost_reason() {
        // This program was stopped or frozen just now.
        return Err(Failure::lost(&handle.name(), reason));
    }
    let token = handle.token(&arguments.name).map(|token| token.to_string());
    let token = token.unwrap_or_default();
    if arguments.voice.verbose {
        say(&format!("`{}` is held, token {token}", plain(&handle.name())));
    }
    let command = arguments.command();
    if command.is_empty() {
        return hold(handle, &token, arguments, signals).await;
    }
    // Names and numbers always have a form.
    let tokens = handle
        .tokens()
        .map(|tokens| serde_json::to_string(&tokens).unwrap_or_default());
    let mut environment = vec![("WATCHLOCK_TOKEN", &token[..]), (NAME, &arguments.name)];
    environment.extend(tokens.as_ref().map(|tokens| ("WATCHLOCK_TOKENS", &tokens[..])));
    let without = (!arguments.care.keep_uri).then_some(URI);
    let mut running = Running::start(&command, &environment, without)?;
    let end = attend(&mut running, &handle, signals, &arguments.care, arguments.warn_after).await;
    let name = plain(&handle.name());
    let ended = end.ended.map(|ended| ended.code());
    let done = ended == Some(0) || arguments.failures_count;
    let given = match end.lost {
        // Of several locks, the others go back with the handle.
        Some(reason) => Given::Lost(reason.to_string()),
        None => release(handle, done, arguments, signals).await,
    };
    let is_left = matches!(given, Given::Unconfirmed);
    let code = match (given, ended) {
        (Given::Back | Given::Unconfirmed, Some(code)) => code.into(),
        (Given::Lost(reason), Some(code)) => {
            fail(&format!("`{name}` was lost ({reason}); the command ended with {code}"));
            LOST.into()
        }
        (_, None) => LOST.into(),
    };
    if let Some(signal) = end.by_keyboard {
        // The keyboard would have sent it to our neighbours too, had the command been in their group: a script ends
        // with the command that it runs. Nothing is left to do here, so it does not matter that we receive it as well.
        job::signal_our_group(signal);
    }
    Ok(Finished { code, is_left })
}

/// Prints the token, and holds the lock without a command until a signal asks the program to end.
async fn hold(held: Held, token: &str, arguments: &Run, signals: &mut Signals) -> Result<Finished, Failure> {
    let name = plain(&held.name());
    let written = writeln!(io::stdout().lock(), "{token}");
    // It is held whether or not anybody reads this; without room for it, the lock goes back with the handle.
    exit::after(written, ExitCode::SUCCESS)?;
    let given = tokio::select! {
        biased;
        reason = held.lost() => Given::Lost(reason.to_string()),
        _ = signals.ending() => release(held, true, arguments, signals).await,
    };
    let is_left = matches!(given, Given::Unconfirmed);
    let code = match given {
        Given::Back => ExitCode::SUCCESS,
        Given::Unconfirmed => UNAVAILABLE.into(),
        Given::Lost(reason) => {
            fail(&format!("`{name}` is lost: {reason}"));
            LOST.into()
        }
    };
    Ok(Finished { code, is_left })
}

/// Waits for the lock; returns the code to exit with if a signal comes first.
pub(crate) async fn obtain(
    locks: &LockClient,
    arguments: &Run,
    deadline: Option<Instant>,
    signals: &mut Signals,
) -> Result<Result<Held, ExitCode>, Failure> {
    let names = arguments.names();
    tokio::select! {
        acquired = begin(locks, arguments, deadline) => acquired.map(Ok),
        never = live::show(locks, &names, arguments.voice.verbose) => match never {},
        signal = signals.ending() => Ok(Err(ended_by(signal))),
    }
}

/// Waits for the lock. If the limit is over before any server can have answered, the lock is tried.
async fn acquire(locks: &LockClient, arguments: &Run, deadline: Option<Instant>) -> Result<Held, Failure> {
    let not_obtained =
        |error: AcquireError| Failure::from(error).if_not_obtained(arguments.patience.conflict_exit_code);
    let left = left(arguments, deadline);
    let limit = limit(arguments).unwrap_or(Duration::MAX);
    let within = answer(limit);
    if left != Some(Duration::ZERO) {
        let acquired = ask(locks, arguments, left).await;
        if within == limit || !matches!(acquired, Err(AcquireError::Unanswered { .. })) {
            return acquired.map_err(not_obtained);
        }
    }
    let end = deadline.unwrap_or_else(Instant::now) + (within - limit);
    match timeout_at(end, ask(locks, arguments, Some(Duration::ZERO))).await {
        Ok(acquired) => acquired.map_err(not_obtained),
        Err(_) => Err(unanswered(within)),
    }
}

pub(crate) fn unanswered(limit: Duration) -> Failure {
    let limit = exact(limit);
    Failure::new(UNAVAILABLE, format!("the server did not answer within {limit}"))
}

/// Acquires the lock, several of them, or the lead in an election, within the time that is left.
async fn ask(locks: &LockClient, arguments: &Run, left: Option<Duration>) -> Result<Held, AcquireError> {
    let name = &arguments.name;
    if let Some(value) = &arguments.value {
        let lead = wait(locks.election(name).campaign(value), arguments, left).await;
        return lead.map(|lead| Held::Lock(lead.into()));
    }
    if !arguments.and.is_empty() {
        let several = locks.multi(arguments.names());
        let held = wait_or_try(several.acquire(), several.try_acquire().or_held(), arguments, left).await;
        return held.map(Held::Locks);
    }
    let (mutex, rw_lock) = (locks.mutex(name), locks.rw_lock(name));
    let acquired = match arguments.share.semaphore {
        Some(permits) => {
            let (semaphore, permits) = (locks.semaphore(name, permits), arguments.share.permits);
            let (acquire, attempt) = (semaphore.acquire_many(permits), semaphore.try_acquire_many(permits));
            lock(acquire, attempt, arguments, left).await
        }
        None if arguments.share.read => lock(rw_lock.read(), rw_lock.try_read(), arguments, left).await,
        None if arguments.share.write => lock(rw_lock.write(), rw_lock.try_write(), arguments, left).await,
        None => lock(mutex.acquire(), mutex.try_acquire(), arguments, left).await,
    };
    acquired.map(Held::Lock)
}

/// Acquires a lock of any kind, or tries it once, to hold it as long as the command line says.
async fn lock<T: CanAcquire<Count = One> + IsLock>(
    acquire: Acquire<T>,
    attempt: Acquire<T, Try>,
    arguments: &Run,
    left: Option<Duration>,
) -> Result<watchlock::Held, AcquireError> {
    let attempt = for_its_time(attempt.or_held(), arguments);
    let acquire = for_its_time(acquire, arguments);
    wait_or_try(acquire, attempt, arguments, left).await.map(Into::into)
}

fn for_its_time<T: IsLock, P: Patience>(acquire: Acquire<T, P>, arguments: &Run) -> Acquire<T, P> {
    match arguments.fixed {
        Some(length) => acquire.fixed(length),
        None => acquire.at_least_for(arguments.at_least_for.unwrap_or_default()),
    }
}

async fn wait_or_try<T: CanAcquire<Count = One>>(
    acquire: Acquire<T>,
    attempt: Acquire<T, OrHeld>,
    arguments: &Run,
    left: Option<Duration>,
) -> Result<watchlock::Held<T::Held>, AcquireError> {
    if !arguments.share.once {
        return wait(acquire, arguments, left).await;
    }
    let attempt = attempt.timeout(left.unwrap_or(TRY));
    match reason(arguments) {
        Some(reason) => attempt.reason(reason).await,
        None => attempt.await,
    }
}

/// Waits, and has an error report the whole limit.
async fn wait<T: CanAcquire<Count = One>>(
    acquire: Acquire<T>,
    arguments: &Run,
    left: Option<Duration>,
) -> Result<watchlock::Held<T::Held>, AcquireError> {
    let acquire = match left {
        Some(left) => acquire.timeout(left),
        None => acquire,
    };
    let mut acquired = match reason(arguments) {
        Some(reason) => acquire.reason(reason).await,
        None => acquire.await,
    };
    if let (Err(AcquireError::Timeout { waited, .. } | AcquireError::Unanswered { waited, .. }), Some(timeout)) =
        (&mut acquired, arguments.patience.timeout)
    {
        *waited = timeout;
    }
    acquired
}

/// Acquires the lock, or begins the job unless it is done for this period.
async fn begin(locks: &LockClient, arguments: &Run, deadline: Option<Instant>) -> Result<Held, Failure> {
    let Some(period) = arguments.once_per else {
        return acquire(locks, arguments, deadline).await;
    };
    let name = plain(&arguments.name);
    let left = left(arguments, deadline).unwrap_or(TRY);
    match once(locks, arguments, period).timeout(left).begin().await? {
        Turn::Ours(job) => Ok(Held::Job(job)),
        Turn::RanAlready(ran) => {
            let message = format!("`{name}` was {ran}");
            // A user who sets the code 0 expects this outcome.
            let expected = arguments.ran_exit_code == 0;
            let failure = Failure::new(arguments.ran_exit_code, &message).unless_quiet();
            if expected {
                say(&message);
                return Err(failure.silenced());
            }
            Err(failure)
        }
        Turn::Busy(contention) => {
            let message = format!("another run of `{name}` is in progress: {contention}");
            Err(Failure::new(NOT_OBTAINED, message).if_not_obtained(arguments.patience.conflict_exit_code))
        }
        _ => Err(Failure::internal(
            "the library knows an outcome that this program does not",
        )),
    }
}

fn once(locks: &LockClient, arguments: &Run, period: Duration) -> Once {
    let mut once = locks.once(&arguments.name, period);
    if let Some(offset) = arguments.offset {
        once = once.offset(offset);
    }
    if arguments.since_success {
        once = once.since_success();
    }
    if let Some(reason) = reason(arguments) {
        once = once.reason(reason);
    }
    once
}

/// Returns what is left of the limit. Connecting has used up a part of it.
fn left(arguments: &Run, deadline: Option<Instant>) -> Option<Duration> {
    let Some(deadline) = deadline else {
        return arguments.patience.timeout;
    };
    Some(deadline.saturating_duration_since(Instant::now()))
}

/// Returns why the lock is held, for others to read; nothing if that was asked for.
fn reason(arguments: &Run) -> Option<String> {
    let reason = match &arguments.holder.reason {
        Some(reason) => reason.clone(),
        None => program_name(&arguments.command()),
    };
    Some(reason).filter(|reason| !reason.is_empty())
}

/// Returns only the name of the program: its arguments may have a secret, and would end up in the database.
fn program_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new);
    let name = program.and_then(Path::file_name).unwrap_or_default();
    let mut name = name.to_string_lossy().into_owned();
    if name.len() > REASON_MOST {
        let fits = (0..=REASON_MOST).rev().find(|at| name.is_char_boundary(*at));
        name.truncate(fits.unwrap_or(0));
    }
    name
}

/// The outcome of a release.
#[derive(Debug)]
enum Given {
    Back,
    /// The lock may stay taken, which the user has been told.
    Unconfirmed,
    /// It was lost before, for this reason.
    Lost(String),
}

/// Releases the lock, or ends the job; with `--verbose`, says so.
async fn release(held: Held, done: bool, arguments: &Run, signals: &mut Signals) -> Given {
    let name = plain(&held.name());
    let records = done && matches!(held, Held::Job(_));
    let begun = Instant::now();
    let insisting = async {
        signals.ending().await;
        sleep_until(begun + LEAVE).await;
    };
    let released = tokio::select! {
        released = held.release(done) => released.map_err(|error| match error {
            HoldError::Unconfirmed { error, .. } => error.to_string(),
            error => error.to_string(),
        }),
        () = insisting => Err("the server did not answer".to_owned()),
    };
    match released {
        Ok(released @ (Released::Released | Released::Kept)) => {
            if arguments.voice.verbose {
                let kept = if released == Released::Kept {
                    ", and kept taken"
                } else {
                    ""
                };
                say(&format!("`{name}` is released{kept}"));
            }
            Given::Back
        }
        Ok(_) => Given::Lost("it was taken away before it could be released".to_owned()),
        Err(why) => {
            let left = if records { run_may_count } else { hold_may_stay };
            fail(&format!("{}: {why}", left(&name, arguments)));
            Given::Unconfirmed
        }
    }
}
