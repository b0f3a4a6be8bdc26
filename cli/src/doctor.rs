//! `watchlock doctor`.

mod collection;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use futures::TryStreamExt as _;
use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind},
    options::{ReadPreference, SelectionCriteria},
};
use serde::Serialize;
use watchlock::{WakeMode, WakeSource};

use crate::{
    arguments::Doctor,
    clock::{self, Offset},
    connection::{Connection, Place, to_its_end},
    exit::{self, Failure, Outcome},
    json,
    text::{plain, span_of},
};

/// Oldest server with all the operators that watchlock uses.
const OLDEST: (i32, i32) = (4, 4);

/// Maximum difference between the clocks of a replica set's members: the default skew margin.
const SKEW: Duration = Duration::from_secs(1);

/// Actions of the library on the collection, and their purpose.
const ACTIONS: [(&str, &str); 5] = [
    ("find", "nothing works without it"),
    ("insert", "nothing can be acquired without it"),
    ("update", "nothing can be acquired without it"),
    ("changeStream", "without it watchlock polls"),
    (
        "createIndex",
        "without it somebody else must create the index that purges free locks",
    ),
];

/// Connections of one client: its change streams, and those for the operations with which it begins. See
/// `docs/operating.md`, Connections.
const STREAMS: u32 = 4;
const COMMANDS: u32 = 6;

/// The driver's default pool size.
const POOL: u32 = 10;

/// Number of actions without which nothing works.
const NEEDED: usize = 3;

/// The server's code `Unauthorized`.
const UNAUTHORIZED: i32 = 13;

/// One check and its result. The names are part of the `--json` interface.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    found: String,
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
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
    let place = connection.prompt().await?;
    // Checked as every command does, before anything is sent.
    let (checks, failure) = match place.builder().wake_source(WakeSource::Auto).build().await {
        Ok(locks) => (look(&place, locks.wake_mode(), None).await?, None),
        Err(watchlock::BuildError::Unsuitable { problem, .. }) => {
            (look(&place, WakeMode::ChangeStream, Some(&problem)).await?, None)
        }
        Err(watchlock::BuildError::Server(error)) => {
            let failure = Failure::from(error);
            (vec![unreachable(&failure)], Some(failure))
        }
        Err(error) => return Err(error.into()),
    };
    let healthy = checks.iter().all(|check| check.status != Status::Problem);
    let written = if arguments.output.json {
        json::print(&Report { healthy, checks })
    } else {
        io::stdout().lock().write_all(in_full(&checks).as_bytes())
    };
    let code = if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let code = exit::after(written, code)?;
    match failure {
        Some(failure) => Err(failure.silenced()),
        None => Ok(code),
    }
}

fn unreachable(failure: &Failure) -> Check {
    Check::new("server", Status::Problem, failure.message()).advice(
        "check the address in the connection string, user and password, and whether the server is running and can be \
         reached from this machine; a replica set must have a primary",
    )
}

/// `unsuitable`: why the library keeps no locks in the collection.
async fn look(place: &Place, mode: WakeMode, unsuitable: Option<&str>) -> Result<Vec<Check>, Failure> {
    let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
    let asked = to_its_end(clock::ask(place.database.clone(), primary)).await?;
    let (offset, hello) = match asked {
        Ok(answer) => answer,
        Err(error) => return Ok(vec![unreachable(&Failure::driver(&error))]),
    };
    let mut checks = vec![Check::ok(
        "server",
        format!("answers within {}", span_of(offset.within * 2)),
    )];
    checks.push(version(place).await?);
    checks.push(topology(&hello));
    let (permitted, may_create_index) = privileges(place).await?;
    checks.push(permitted);
    checks.push(pool(place));
    checks.push(own_clock(offset));
    checks.extend(member_clocks(place, &hello).await?);
    checks.push(wake_mode(place, mode).await?);
    if let Some(problem) = unsuitable {
        checks.push(collection::unsuitable(problem));
        return Ok(checks);
    }
    checks.push(collection::collection(place, &hello).await?);
    checks.push(index(place, may_create_index).await?);
    Ok(checks)
}

async fn version(place: &Place) -> Result<Check, Failure> {
    let database = place.database.clone();
    let answer = to_its_end(async move { database.run_command(doc! { "buildInfo": 1 }).await }).await?;
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

fn topology(hello: &Document) -> Check {
    if let Ok(name) = hello.get_str("setName") {
        let members = hello.get_array("hosts").map_or(1, Vec::len);
        let plural = if members == 1 { "member" } else { "members" };
        return Check::ok(
            "topology",
            format!("replica set {} of {members} {plural} with data", plain(name)),
        );
    }
    if hello.get_str("msg").is_ok_and(|message| message == "isdbgrid") {
        return Check::new("topology", Status::Warning, "sharded cluster").advice(
            "watchlock is not tested on one, and an idle shard can delay wake-ups by seconds: if you can, keep the locks in \
             their own replica set",
        );
    }
    Check::new("topology", Status::Warning, "standalone server").advice(
        "locks are safe here, but waiters poll: start the server with --replSet and call rs.initiate() once; one member is \
         enough for change streams",
    )
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
                "{found}; a client takes up to {STREAMS} for change streams, and begins with {COMMANDS} for commands; under \
                 load it uses more, and the guide's page Operating says how many"
            ),
        );
    }
    let advice = if most == 1 {
        "an open change stream occupies the only connection, so no command gets a turn: set maxPoolSize to 10 or more for \
         each client on the pool"
            .to_owned()
    } else {
        format!(
            "set maxPoolSize to {} or more for each client on the pool: {STREAMS} for change streams \
             (LockClientBuilder::max_streams can lower that) and {COMMANDS} for the first commands; your own operations come \
             on top",
            STREAMS + COMMANDS
        )
    };
    Check::new("pool", Status::Warning, found).advice(advice)
}

/// Checks the privileges; also returns whether the index may be created.
async fn privileges(place: &Place) -> Result<(Check, bool), Failure> {
    let database = place.database.clone();
    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let answer = to_its_end(async move { database.run_command(status).await }).await?;
    let info = answer
        .as_ref()
        .ok()
        .and_then(|answer| answer.get_document("authInfo").ok());
    let Some(info) = info else {
        return Ok((unseen("privileges", answer.err().as_ref()), false));
    };
    if info.get_array("authenticatedUsers").map_or(0, Vec::len) == 0 {
        return Ok((anybody(place).await?, false));
    }
    let given = info
        .get_array("authenticatedUserPrivileges")
        .map_or(&[][..], |given| given);
    let has = |action: &str| {
        given
            .iter()
            .filter_map(Bson::as_document)
            .any(|one| grants(one, place, action))
    };
    let missing: Vec<_> = ACTIONS.iter().filter(|(action, _)| !has(action)).collect();
    if missing.is_empty() {
        let all = ACTIONS.map(|(action, _)| action).join(", ");
        return Ok((Check::ok("privileges", format!("all that watchlock uses: {all}")), true));
    }
    let needed = &ACTIONS[..NEEDED];
    let status = if missing.iter().any(|lacking| needed.contains(lacking)) {
        Status::Problem
    } else {
        Status::Warning
    };
    let names: Vec<_> = missing.iter().map(|(action, _)| *action).collect();
    let reasons: Vec<_> = missing.iter().map(|(action, why)| format!("{action}: {why}")).collect();
    let (database, collection) = (place.database.name(), &place.collection);
    let check = Check::new("privileges", status, format!("missing: {}", names.join(", "))).advice(format!(
        "grant the user a role with these actions on {database}.{collection} ({})",
        reasons.join("; ")
    ));
    Ok((check, has("createIndex")))
}

/// Checks the privileges without a login: either everybody may do everything, or nobody may do anything.
async fn anybody(place: &Place) -> Result<Check, Failure> {
    let collection = documents(place);
    let found = to_its_end(async move { collection.find_one(doc! {}).await }).await?;
    Ok(match found {
        Ok(_) => Check::ok(
            "privileges",
            "the server requires no authentication, so everything is permitted",
        ),
        Err(error) if code(&error) == Some(UNAUTHORIZED) => Check::new(
            "privileges",
            Status::Problem,
            "the server requires authentication, and nobody has logged in",
        )
        .advice("put user, password and authSource into the connection string, in MONGODB_URI"),
        Err(error) => Check::new(
            "privileges",
            Status::Problem,
            format!("the locks can't be read: {}", Failure::driver(&error).message()),
        ),
    })
}

/// Returns whether a privilege covers an action on the locks' collection.
fn grants(privilege: &Document, place: &Place, action: &str) -> bool {
    let Ok(resource) = privilege.get_document("resource") else {
        return false;
    };
    let any = resource.get_bool("anyResource").unwrap_or(false);
    // An empty text stands for all.
    let covers = |field: &str, name: &str| resource.get_str(field).is_ok_and(|it| it.is_empty() || it == name);
    let actions = privilege.get_array("actions").map_or(&[][..], |actions| actions);
    (any || covers("db", place.database.name()) && covers("collection", &place.collection))
        && actions.iter().any(|given| {
            given
                .as_str()
                .is_some_and(|given| given == action || given == "anyAction")
        })
}

fn own_clock(offset: Offset) -> Check {
    let found = describe(offset);
    if Duration::from_millis(offset.millis.unsigned_abs()) <= SKEW + offset.within {
        return Check::ok("clock", format!("this machine's clock: {found}"));
    }
    Check::new("clock", Status::Warning, format!("this machine's clock: {found}")).advice(
        "locks do not depend on it, as the server's clock decides and holders count on the monotonic clock; but logs are hard \
         to compare: synchronize it (NTP)",
    )
}

/// Describes an offset: `3ms behind the server's, give or take 1ms`.
fn describe(offset: Offset) -> String {
    let distance = span_of(Duration::from_millis(offset.millis.unsigned_abs()));
    let side = if offset.millis >= 0 { "behind" } else { "ahead of" };
    format!(
        "{distance} {side} the server's, give or take {}",
        span_of(offset.within)
    )
}

/// Compares the members' clocks: a new primary whose clock is ahead ends leases early.
async fn member_clocks(place: &Place, hello: &Document) -> Result<Option<Check>, Failure> {
    let members = hello.get_array("hosts").map_or(&[][..], |hosts| hosts);
    if members.len() < 2 {
        return Ok(None);
    }
    let (mut offsets, mut silent) = (Vec::new(), Vec::new());
    for member in members.iter().filter_map(Bson::as_str) {
        let wanted = member.to_lowercase();
        let that = SelectionCriteria::Predicate(Arc::new(move |server| {
            server.address().to_string().to_lowercase() == wanted
        }));
        match to_its_end(clock::ask(place.database.clone(), that)).await? {
            Ok((offset, _)) => offsets.push((member, offset)),
            Err(_) => silent.push(member),
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
    let opened = to_its_end(async move { collection.watch().await.map(drop) }).await?;
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
                format!(
                    "polling, as no change stream can be opened: {}",
                    Failure::driver(&error).message()
                ),
            )
            .advice(advice)
        }
    })
}

async fn index(place: &Place, may_create: bool) -> Result<Check, Failure> {
    let collection = documents(place);
    let listed = to_its_end(async move { collection.list_indexes().await?.try_collect::<Vec<_>>().await }).await?;
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
            return Ok(Check::ok(
                "index",
                "clients may create it, and do so with their first lock; seeing it needs the action listIndexes",
            ));
        }
        Err(error) if code(&error) == Some(UNAUTHORIZED) => {
            return Ok(unseen("index", Some(&error))
                .advice("seeing it needs the action listIndexes, which nothing else in watchlock uses"));
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
    let why = error
        .map(|error| format!(": {}", Failure::driver(error).message()))
        .unwrap_or_default();
    Check::new(name, Status::Unknown, format!("it can't be checked{why}"))
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
    let mut text = String::new();
    for check in checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Problem => "PROBLEM",
            Status::Unknown => "unknown",
        };
        let (name, found) = (check.name, plain(&check.found));
        // Writing to a String can't fail.
        let _ = writeln!(text, "{status:8} {name:width$}  {found}");
        if let Some(advice) = &check.advice {
            let _ = writeln!(text, "{:8} {:width$}  -> {}", "", "", plain(advice));
        }
    }
    text
}
