//! `watchlock doctor`.

mod collection;
mod hosts;
pub(crate) mod privileges;
pub(crate) mod topology;

use std::{fmt::Write as _, process::ExitCode, sync::Arc, time::Duration};

use futures::{TryStreamExt as _, future::join_all};
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR},
    options::{DatabaseOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern},
};
use serde::Serialize;
use tokio::time::timeout;
use watchlock::{
    errors::{ServerError, ServerErrorKind},
    operate::{WakeMode, WakeSource},
};

use crate::{
    arguments::Doctor,
    clock::{self, Offset},
    connection::{Connection, Place, to_its_end},
    exit::{Failure, Outcome},
    text::{plain, span_of, wrapped},
};

/// Oldest server with all the operators that watchlock uses.
const OLDEST: (i32, i32) = (4, 4);

/// Maximum difference between the clocks of a replica set's members: the default skew margin.
const SKEW: Duration = Duration::from_secs(1);

/// Maximum time for a member to say its time.
const MEMBER_ANSWERED: Duration = Duration::from_secs(5);

/// Connections of one client: that of its change stream, and those for the operations with which it begins. See
/// `docs/operating.md`, Connections.
const STREAMS: u32 = 1;
const COMMANDS: u32 = 6;

/// The driver's default pool size.
const POOL: u32 = 10;

/// The server's code `Unauthorized`.
const UNAUTHORIZED: i32 = 13;

/// The server's code `MaxTimeMSExpired`.
const OUT_OF_TIME: i32 = 50;

/// One check and its result. The names are part of the `--json` interface.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    pub(crate) status: Status,
    pub(crate) found: String,
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Ok,
    /// It works, but less well than it could.
    Warning,
    Problem,
    /// It could not be determined.
    Unknown,
}

#[derive(Debug, Serialize)]
struct Report {
    healthy: bool,
    checks: Vec<Check>,
}

impl Check {
    fn new(name: &'static str, status: Status, found: impl Into<String>) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            advice: None,
        }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, found)
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

pub(crate) async fn doctor(connection: &Connection, arguments: Doctor) -> Outcome {
    let place = match connection.prompt().await {
        Err(failure) if failure.is_unavailable() => return unusable(connection, &arguments, failure, Vec::new()).await,
        place => as_the_library(place?),
    };
    // Connected as by every command: what stops it stops them.
    let (mode, unsuitable) = match place.builder().wake_source(WakeSource::Auto).build().await {
        Ok(locks) => (locks.wake_mode(), None),
        Err(watchlock::errors::BuildError::Unsuitable { problem, .. }) => (WakeMode::ChangeStream, Some(problem)),
        Err(watchlock::errors::BuildError::Server(error)) => {
            return unusable(connection, &arguments, error.into(), Vec::new()).await;
        }
        Err(error) => return Err(error.into()),
    };
    let mut checks = Vec::new();
    let answer = match to_its_end(clock::ask(place.database.clone(), primary())).await? {
        Err(error) => return unusable(connection, &arguments, Failure::driver(&error), checks).await,
        Ok(answer) => answer,
    };
    match look(&mut checks, &place, answer, mode, unsuitable.as_deref()).await {
        Err(failure) if failure.is_unavailable() => unusable(connection, &arguments, failure, checks).await,
        looked => {
            looked?;
            let code = if is_bad(&checks) {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
            report(&arguments, checks, code)
        }
    }
}

/// Reports why there is no server to work with, with the checks that it still answered, and exits as every other
/// command does.
async fn unusable(connection: &Connection, arguments: &Doctor, failure: Failure, answered: Vec<Check>) -> Outcome {
    let mut checks = hosts::unusable(connection, &failure).await;
    // It did answer, and does not any more.
    checks.extend(answered.into_iter().filter(|check| check.name != "server"));
    report(arguments, checks, failure.silenced().report(false))
}

fn report(arguments: &Doctor, checks: Vec<Check>, code: ExitCode) -> Outcome {
    let healthy = !is_bad(&checks);
    let report = Report { healthy, checks };
    arguments.output.answer(&report, || in_full(&report.checks), code)
}

/// Reads and writes as the library does, whatever the connection string says of it.
pub(crate) fn as_the_library(place: Place) -> Place {
    let options = DatabaseOptions::builder()
        .write_concern(WriteConcern::majority())
        .read_concern(ReadConcern::majority())
        .selection_criteria(primary())
        .build();
    let client = place.database.client();
    Place {
        database: client.database_with_options(place.database.name(), options),
        ..place
    }
}

pub(crate) fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// Checks a server that answers. A problem ends the checks that would only have to wait for the same. Fails once the
/// server answers no more.
async fn look(
    checks: &mut Vec<Check>,
    place: &Place,
    answer: (Offset, Document),
    mode: WakeMode,
    unsuitable: Option<&str>,
) -> Result<(), Failure> {
    let (offset, hello) = answer;
    checks.push(Check::ok(
        "server",
        format!("answers within {}", span_of(offset.within * 2)),
    ));
    checks.push(version(place).await?);
    checks.push(topology::topology(&hello));
    if is_bad(checks) {
        return Ok(());
    }
    let (permitted, may_create_index) = privileges::privileges(place).await?;
    checks.extend(permitted);
    if let Some(problem) = unsuitable {
        checks.push(collection::unsuitable(problem));
        return Ok(());
    }
    let writes = topology::writes(place, &hello).await?;
    checks.extend(topology::journal(place).await?);
    let are_confirmed = writes.as_ref().is_none_or(|check| check.status != Status::Problem);
    checks.extend(writes);
    checks.push(pool(place));
    checks.extend(member_clocks(place, &hello).await?);
    if !are_confirmed {
        return Ok(());
    }
    checks.push(wake_mode(place, mode).await?);
    checks.push(collection::collection(place, &hello).await?);
    checks.push(index(place, may_create_index).await?);
    Ok(())
}

/// Returns the answer to a check's operation, be it a refusal. Fails if the server gave none, or is not the primary any
/// more: nobody can acquire a lock then, and all other checks would only wait for the same.
async fn ask<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<Result<T, Error>, Failure> {
    let answer = to_its_end(operation).await?;
    let is_gone = answer.as_ref().is_err_and(|error| {
        // These are answers, too.
        let is_busy = error.contains_label(TRANSIENT_TRANSACTION_ERROR) || code(error) == Some(OUT_OF_TIME);
        let is_refused = matches!(&*error.kind, ErrorKind::InsertMany(_) | ErrorKind::Write(_));
        ServerError::from(error.clone()).kind() == ServerErrorKind::Unavailable && !is_busy && !is_refused
    });
    match answer {
        Err(error) if is_gone => Err(Failure::driver(&error)),
        answer => Ok(answer),
    }
}

fn is_bad(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.status == Status::Problem)
}

async fn version(place: &Place) -> Result<Check, Failure> {
    let database = place.database.clone();
    let answer = ask(async move { database.run_command(doc! { "buildInfo": 1 }).await }).await?;
    let told = answer.as_ref().ok().and_then(|told| {
        let numbers = told.get_array("versionArray").ok()?;
        let number = |at: usize| numbers.get(at).and_then(Bson::as_i32);
        Some(((number(0)?, number(1)?), told.get_str("version").ok()?))
    });
    Ok(match told {
        Some((version, text)) if version >= OLDEST => Check::ok("version", format!("MongoDB {}", plain(text))),
        Some((_, text)) => Check::new("version", Status::Problem, format!("MongoDB {}", plain(text)))
            .advice("watchlock needs MongoDB 4.4 or newer: upgrade the server"),
        None => unseen("version", answer.err().as_ref()),
    })
}

/// Checks that there are enough connections for one client on the pool.
fn pool(place: &Place) -> Check {
    let most = place.pool.unwrap_or(POOL);
    let found = match place.pool {
        Some(most) => format!("maxPoolSize={most}"),
        None => format!("up to {POOL} connections, the driver's default"),
    };
    if most >= STREAMS + COMMANDS {
        return Check::ok(
            "pool",
            format!(
                "{found}; a client takes {STREAMS} for its change stream, and begins with {COMMANDS} for commands; under load, and \
                 for documents, it uses more, and the guide's page Operating says how many"
            ),
        );
    }
    let advice = format!(
        "set maxPoolSize to {} or more for each client on the pool: {STREAMS} for its change stream, without which no command \
         gets a turn, and {COMMANDS} for the first commands; your own operations come on top",
        STREAMS + COMMANDS
    );
    Check::new("pool", Status::Warning, found).advice(advice)
}

/// Compares the members' clocks: a new primary whose clock is ahead ends leases early.
pub(crate) async fn member_clocks(place: &Place, hello: &Document) -> Result<Option<Check>, Failure> {
    let members = topology::with_data(hello);
    if members.len() < 2 {
        return Ok(None);
    }
    if place.is_direct {
        let found = "the members' clocks are not compared, as the connection string has directConnection=true";
        let advice =
            "name the set instead (replicaSet in the connection string), if clients of this machine reach its members";
        return Ok(Some(Check::new("member-clocks", Status::Unknown, found).advice(advice)));
    }
    let asked = join_all(members.iter().map(async |member| {
        let wanted = member.to_lowercase();
        let that = SelectionCriteria::Predicate(Arc::new(move |server| {
            server.address().to_string().to_lowercase() == wanted
        }));
        let asking = to_its_end(clock::ask(place.database.clone(), that));
        (*member, timeout(MEMBER_ANSWERED, asking).await.ok())
    }));
    let (mut offsets, mut silent) = (Vec::new(), Vec::new());
    for (member, answer) in asked.await {
        match answer.transpose()? {
            Some(Ok((offset, _))) => offsets.push((member, offset)),
            _ => silent.push(member),
        }
    }
    let first = offsets.iter().min_by_key(|(_, offset)| offset.millis);
    let last = offsets.iter().max_by_key(|(_, offset)| offset.millis);
    let (Some((slow, least)), Some((fast, most))) = (first, last) else {
        return Ok(Some(unseen("member-clocks", None)));
    };
    let millis = most.millis.saturating_sub(least.millis).unsigned_abs();
    let (apart, within) = (Duration::from_millis(millis), most.within + least.within);
    let found = format!(
        "the members' clocks differ by {}, give or take {}",
        span_of(apart),
        span_of(within)
    );
    if apart > SKEW + within {
        let advice = format!(
            "{fast} is ahead of {slow} by more than the default skew margin of {}: after a fail-over a lock could be given away \
             while its holder still relies on it. Synchronize the members' clocks (NTP), or have all clients built with a larger \
             skew margin",
            span_of(SKEW)
        );
        return Ok(Some(Check::new("member-clocks", Status::Problem, found).advice(advice)));
    }
    if silent.is_empty() {
        return Ok(Some(Check::ok("member-clocks", found)));
    }
    let found = format!("{found}; no answer from {}", silent.join(", "));
    Ok(Some(Check::new("member-clocks", Status::Warning, found).advice(
        "check the members that do not answer: grants wait for a majority",
    )))
}

/// Opens a change stream, as waiters do.
async fn wake_mode(place: &Place, mode: WakeMode) -> Result<Check, Failure> {
    if let WakeMode::Polling(reason) = mode {
        let advice = "change streams need a replica set; see topology";
        return Ok(Check::new("wake-mode", Status::Warning, format!("polling, {reason}")).advice(advice));
    }
    let collection = documents(place);
    // It is dropped once it is open: the driver closes it.
    let opened = ask(async move { collection.watch().await.map(drop) }).await?;
    Ok(match opened {
        Ok(()) => Check::ok("wake-mode", "change stream: waiters are woken at once"),
        Err(error) => {
            let advice = match code(&error) {
                Some(UNAUTHORIZED) => "grant the user the actions find and changeStream on the collection",
                _ => "watchlock polls until the stream can be opened; the reason is the server's",
            };
            Check::new(
                "wake-mode",
                Status::Warning,
                format!("polling, as no change stream can be opened: {}", told(&error)),
            )
            .advice(advice)
        }
    })
}

async fn index(place: &Place, may_create: bool) -> Result<Check, Failure> {
    let collection = documents(place);
    let listed = ask(async move { collection.list_indexes().await?.try_collect::<Vec<_>>().await }).await?;
    let make = format!(
        "free locks are never purged without it: db.getSiblingDB({:?}).getCollection({:?}).createIndex({{ purge_at: 1 }}, \
         {{ name: \"watchlock_purge_at\", expireAfterSeconds: 0 }})",
        place.database.name(),
        place.collection
    );
    let indexes = match listed {
        Ok(indexes) => indexes,
        // NamespaceNotFound.
        Err(error) if code(&error) == Some(26) => {
            return Ok(Check::ok(
                "index",
                "no lock was ever acquired here; the collection and its index are created with the first",
            ));
        }
        Err(error) if code(&error) == Some(UNAUTHORIZED) && may_create => {
            let found =
                "clients may create it, and do so with their first lock; seeing it needs the action listIndexes";
            return Ok(Check::ok("index", found));
        }
        Err(error) if code(&error) == Some(UNAUTHORIZED) => {
            let advice = "seeing it needs the action listIndexes, without which no client notices an index that deletes held locks";
            return Ok(unseen("index", Some(&error)).advice(advice));
        }
        Err(error) => return Ok(unseen("index", Some(&error))),
    };
    let of_ours = indexes.iter().find(|index| {
        let mut keys = index.keys.keys();
        keys.next().is_some_and(|key| key == "purge_at") && keys.next().is_none()
    });
    let expiry = of_ours.map(|index| index.options.as_ref().and_then(|options| options.expire_after));
    Ok(match expiry {
        Some(Some(Duration::ZERO)) => Check::ok("index", "free locks are purged by the TTL index on purge_at"),
        Some(Some(other)) => Check::new(
            "index",
            Status::Warning,
            format!("the TTL index on purge_at waits for another {}", span_of(other)),
        )
        .advice("harmless, but free locks stay longer than their retention; it should have expireAfterSeconds: 0"),
        Some(None) => Check::new("index", Status::Warning, "the index on purge_at is not a TTL index")
            .advice(format!("drop it, and create it again: {make}")),
        None => Check::new("index", Status::Warning, "there is no TTL index on purge_at").advice(make),
    })
}

fn unseen(name: &'static str, error: Option<&Error>) -> Check {
    let why = error.map(|error| format!(": {}", told(error))).unwrap_or_default();
    Check::new(name, Status::Unknown, format!("it can't be checked{why}"))
        .advice("try again; the reason is the server's")
}

/// Describes an error in a line.
fn told(error: &Error) -> String {
    ServerError::from(error.clone()).to_string()
}

fn documents(place: &Place) -> Collection<Document> {
    place.database.collection(&place.collection)
}

fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        _ => None,
    }
}

fn in_full(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    // `PROBLEM  server  `
    let left = 9 + width + 2;
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Problem => "PROBLEM",
            Status::Unknown => "unknown",
        };
        let (name, found) = (check.name, wrapped(&plain(&check.found), left));
        // Writing to a String can't fail.
        let _ = writeln!(text, "{status:8} {name:width$}  {found}");
        if let Some(advice) = &check.advice {
            let advice = wrapped(&plain(advice), left + 3);
            let _ = writeln!(text, "{:left$}-> {advice}", "");
        }
    }
    text
}
