//! The connection to the locks.

use std::{
    env, io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use clap::{ArgMatches, Args, parser::ValueSource};
use mongodb::{
    Client, Database,
    bson::{Document, doc},
    error::{Error, ErrorKind as DriverKind},
    options::{ClientOptions, ServerAddress, Tls},
};
use tokio::time::{Instant, sleep, timeout};
use watchlock::{LockClient, LockClientBuilder};

use crate::{
    exit::{Failure, INTERNAL, UNAVAILABLE},
    text::plain,
};

/// Server selection timeout for commands that only look at the locks, unless the connection string sets one. The
/// driver's own 30 s are meant for services that can wait for a fail-over; `run` keeps them.
const SELECTION: Duration = Duration::from_secs(5);

/// Number of past holds that are kept for `show`: a command takes far longer than the record of its end.
const HISTORY: u32 = 5;

/// Environment variable that names the server.
pub(crate) const URI: &str = "MONGODB_URI";

/// Environment variable that names the database.
const DATABASE: &str = "WATCHLOCK_DATABASE";

/// Environment variable in which the command of `run` finds the name of its lock.
pub(crate) const NAME: &str = "WATCHLOCK_NAME";

/// Bounds of the server selection timeout for a command with a time limit: a selection needs the time to connect and
/// log in, as it also does for everything later; the driver's own default is the maximum.
const SELECTION_LEAST: Duration = Duration::from_millis(1_500);
const SELECTION_MOST: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The connection string of the server
    #[arg(long, env = URI, hide_env_values = true, value_name = "URI")]
    uri: Option<String>,
    /// The database of the locks; by default that of the connection string
    #[arg(long, env = DATABASE, value_name = "NAME")]
    database: Option<String>,
    /// The collection of the locks
    #[arg(long, env = "WATCHLOCK_COLLECTION", value_name = "NAME")]
    #[arg(default_value = "distributed_locks")]
    collection: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The connection string is left out.
        f.debug_struct("Connection")
            .field("database", &self.database)
            .field("collection", &self.collection)
            .finish_non_exhaustive()
    }
}

/// A database, and the collection of the locks in it. Nothing has been sent yet.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) database: Database,
    pub(crate) collection: String,
    /// The driver's pool size (`maxPoolSize`), if it is set.
    pub(crate) pool: Option<u32>,
    /// Whether the driver talks to the one host of the connection string alone (`directConnection`).
    pub(crate) is_direct: bool,
}

impl Connection {
    /// Returns the options that are given on a command line, and not by the environment.
    pub(crate) fn given(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, String)> {
        ["uri", "database", "collection"].into_iter().filter_map(|option| {
            // An error for a command that does not have it.
            let value = matches.try_get_one::<String>(option).ok()??;
            let is_given = matches.value_source(option) == Some(ValueSource::CommandLine);
            is_given.then(|| (option, value.clone()))
        })
    }

    /// Takes the options that are given after the command.
    pub(crate) fn prefer(&mut self, of_command: &ArgMatches) {
        for (option, value) in Self::given(of_command) {
            match option {
                "uri" => self.uri = Some(value),
                "database" => self.database = Some(value),
                _ => self.collection = value,
            }
        }
    }

    /// Returns the place of the locks, for a command that waits for the server as long as the driver does.
    pub(crate) async fn patient(&self) -> Result<Place, Failure> {
        self.place(None).await
    }

    /// Returns the place of the locks, for a command of an observer.
    pub(crate) async fn prompt(&self) -> Result<Place, Failure> {
        self.place(Some(SELECTION)).await
    }

    /// Returns the place of the locks, for a command with this time limit.
    pub(crate) async fn within(&self, limit: Duration) -> Result<Place, Failure> {
        self.place(Some(limit.clamp(SELECTION_LEAST, SELECTION_MOST))).await
    }

    /// Returns the connection string. There is no default: a lock on the wrong server excludes nobody.
    fn uri(&self) -> Result<&str, Failure> {
        let named = self.uri.as_deref().filter(|uri| !uri.is_empty());
        named.ok_or_else(|| {
            let removed = if env::var_os(NAME).is_some() {
                "; `watchlock run` has removed it from the environment of this command: give --keep-uri to that run"
            } else {
                ""
            };
            Failure::usage(format!(
                "the server is missing: name it with {URI} or --uri, as in mongodb://localhost:27017/app{removed}"
            ))
        })
    }

    /// Returns the connection string as the driver reads it.
    pub(crate) async fn options(&self) -> Result<ClientOptions, Failure> {
        ClientOptions::parse(self.uri()?)
            .await
            .map_err(|error| self.not_valid(&error))
    }

    async fn place(&self, selection: Option<Duration>) -> Result<Place, Failure> {
        let mut options = self.options().await?;
        options.server_selection_timeout = options.server_selection_timeout.or(selection);
        options.app_name = options.app_name.or_else(|| Some("watchlock".to_owned()));
        let named = self.database.clone().or_else(|| options.default_database.clone());
        let Some(name) = named else {
            return Err(Failure::usage(
                "the database of the locks is missing: name it with --database, WATCHLOCK_DATABASE, or in the connection \
                 string, as in mongodb://localhost:27017/app",
            ));
        };
        check_database(&name)?;
        let pool = options.max_pool_size;
        let is_direct = options.direct_connection == Some(true);
        let client = Client::with_options(options).map_err(|error| self.not_valid(&error))?;
        Ok(Place {
            database: client.database(&name),
            collection: self.collection.clone(),
            pool,
            is_direct,
        })
    }

    /// Describes the driver's reason, unless it could quote a part of a secret in the connection string.
    fn not_valid(&self, error: &Error) -> Failure {
        let cause = error.kind.to_string();
        let why = if quotes_a_secret(&cause, self.uri.as_deref().unwrap_or_default()) {
            "is not valid; the reason is hidden, as it would show a part of the secret. Characters like : / ? # [ ] @ % in \
             user name and password must be percent-encoded"
                .to_owned()
        } else {
            format!("is not valid: {cause}")
        };
        if let DriverKind::DnsResolve { .. } = &*error.kind {
            // Host names are not secret, and come from nowhere else.
            return Failure::new(
                UNAVAILABLE,
                format!(
                    "the host of the connection string can't be looked up: {}",
                    of_the_resolver(&cause)
                ),
            );
        }
        Failure::usage(format!("the connection string (MONGODB_URI or --uri) {why}"))
    }

    /// Adds to a failure that the connection string asks for another replica set than the server's: the driver leaves
    /// out members of sets that it was not asked for. Takes no longer than this.
    pub(crate) async fn explain(&self, failure: Failure, within: Duration) -> Failure {
        let Ok(options) = self.options().await else {
            return failure;
        };
        let (Some(asked), Some(host)) = (&options.repl_set_name, options.hosts.first()) else {
            return failure;
        };
        let within = within.min(SELECTION_LEAST);
        let hello = timeout(within, hello(&options, host.clone(), options.tls.clone(), within)).await;
        let mismatch = hello.ok().and_then(|hello| other_set(&hello.ok()?, asked));
        match mismatch {
            Some(mismatch) => failure.and(&mismatch),
            None => failure,
        }
    }
}

/// Asks one host of a connection string what it is, by itself and as nobody: that takes neither a replica set nor a user.
pub(crate) async fn hello(
    options: &ClientOptions,
    host: ServerAddress,
    tls: Option<Tls>,
    within: Duration,
) -> Result<Document, Error> {
    let mut alone = ClientOptions::default();
    alone.hosts = vec![host];
    alone.direct_connection = Some(true);
    alone.app_name = options.app_name.clone();
    alone.tls = tls;
    alone.server_selection_timeout = Some(within);
    alone.connect_timeout = Some(within);
    let client = Client::with_options(alone)?;
    let asked = to_its_end(async move { client.database("admin").run_command(doc! { "hello": 1 }).await });
    let stopped = |failure: Failure| Error::custom(failure.message().to_owned());
    asked.await.map_err(stopped)?
}

/// Returns in which way the server does not belong to the replica set that was asked for, if it answered so.
pub(crate) fn other_set(hello: &Document, asked: &str) -> Option<String> {
    let there = match hello.get_str("setName") {
        Ok(there) if there == asked => return None,
        Ok(there) => format!("`{}`", plain(there)),
        Err(_) if hello.contains_key("isreplicaset") => "one that was never initiated, or has removed it".to_owned(),
        Err(_) => "none".to_owned(),
    };
    Some(format!(
        "the connection string asks for the replica set `{}`, but the server belongs to {there}",
        plain(asked)
    ))
}

/// Returns the reason of a failed look-up without the query, which the resolver quotes in the form of its own code.
fn of_the_resolver(cause: &str) -> String {
    const QUOTED: &str = "Name(\"";
    let reason = cause
        .strip_prefix("An error occurred during DNS resolution: ")
        .unwrap_or(cause);
    let (reason, query) = reason.split_once(" for Query {").unwrap_or((reason, ""));
    let name = query.split_once(QUOTED).and_then(|(_, rest)| rest.split_once('"'));
    match name {
        Some((name, _)) => format!("{reason} for {}", plain(name)),
        None => plain(reason),
    }
}

/// Returns whether a text contains any part of a possible secret in a connection string: of a password, or of an option
/// that names a password or a token.
fn quotes_a_secret(text: &str, uri: &str) -> bool {
    let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    let credentials = rest.rsplit_once('@').map(|(credentials, _)| credentials);
    // A user name is not secret.
    let credentials = credentials.and_then(|credentials| Some(credentials.split_once(':')?.1));
    let options = rest.split(['?', '&']).filter_map(|option| {
        let (name, value) = option.split_once('=')?;
        let name = name.to_lowercase();
        ["password", "token", "properties"]
            .iter()
            .any(|word| name.contains(word))
            .then_some(value)
    });
    let parts: Vec<&str> = credentials.into_iter().chain(options).collect();
    // A percent-encoded part may be quoted in decoded form.
    if parts.iter().any(|part| part.contains('%')) {
        return true;
    }
    let words = parts
        .iter()
        .flat_map(|part| part.split(|character: char| !character.is_alphanumeric()));
    let marks = parts.iter().flat_map(|part| part.split(':'));
    let text = text.to_lowercase();
    words
        .chain(marks)
        .filter(|piece| !piece.is_empty())
        .any(|piece| text.contains(&piece.to_lowercase()))
}

impl Place {
    pub(crate) fn builder(&self) -> LockClientBuilder {
        LockClient::builder(self.database.clone())
            .collection(&self.collection)
            .history(HISTORY)
    }

    pub(crate) async fn locks(&self) -> Result<LockClient, Failure> {
        Ok(self.builder().build().await?)
    }
}

/// Maximum wait for an answer of the server: longer than the driver looks for one unless told otherwise, as its error
/// says more. The driver itself waits for ever on a connection that swallows what is sent.
const ANSWER: Duration = Duration::from_secs(35);

/// Number of operations that have not ended, also of those for which nobody waits any more.
static ON_THEIR_WAY: AtomicUsize = AtomicUsize::new(0);

struct OnItsWay;

impl OnItsWay {
    fn begun() -> Self {
        ON_THEIR_WAY.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        ON_THEIR_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until all operations have ended, but not for long: one that is on its way may still write.
pub(crate) async fn ended(within: Duration) {
    let end = Instant::now() + within;
    let mut pause = Duration::from_millis(1);
    while ON_THEIR_WAY.load(Ordering::Relaxed) > 0 && Instant::now() < end {
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Runs an operation of the driver to its end in its own task, as an operation dropped half-way stalls the driver's
/// pool. One without an answer counts as failed, and runs on by itself.
pub(crate) async fn to_its_end<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<Result<T, Error>, Failure> {
    let stopped = |error| Failure::new(INTERNAL, format!("a task was stopped: {error}"));
    let on_its_way = OnItsWay::begun();
    let operation = async move {
        let _until_here = on_its_way;
        operation.await
    };
    match timeout(ANSWER, tokio::spawn(operation)).await {
        Ok(ended) => ended.map_err(stopped),
        Err(_) => {
            let silent = format!("no answer within {} s", ANSWER.as_secs());
            Ok(Err(io::Error::new(io::ErrorKind::TimedOut, silent).into()))
        }
    }
}

fn check_database(name: &str) -> Result<(), Failure> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > 63 {
        "is longer than 63 bytes"
    } else if name.contains(['/', '\\', '.', ' ', '"', '$', '\0']) {
        "contains one of / \\ . $ \", a space or NUL"
    } else {
        return Ok(());
    };
    Err(Failure::usage(format!(
        "the database name `{}` {problem}",
        name.escape_debug()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_is_never_answered_fails() {
        let answer = to_its_end(std::future::pending::<Result<(), Error>>()).await;
        let failure = Failure::driver(&answer.expect("the task runs").expect_err("there is no answer"));
        assert!(failure.is_unavailable(), "{failure:?}");
        assert!(failure.message().contains("no answer within 35 s"), "{failure:?}");
    }

    #[test]
    fn a_failed_look_up_names_the_record() {
        let cause = "An error occurred during DNS resolution: DNS error: no records found for Query { name: \
                     Name(\"_mongodb._tcp.app.example.\"), query_type: SRV, query_class: IN }";
        assert_eq!(
            of_the_resolver(cause),
            "DNS error: no records found for _mongodb._tcp.app.example."
        );
        assert_eq!(of_the_resolver("no network"), "no network");
    }

    #[test]
    fn only_what_could_be_a_part_of_a_secret_is_hidden() {
        let uri = "mongodb://locker:pa/ss-word@host/app?replicaSet=rs0";
        assert!(quotes_a_secret("invalid port: 'pa'", uri));
        assert!(quotes_a_secret("illegal host SS", uri));
        assert!(!quotes_a_secret("connection string contains no scheme", uri));
        assert!(quotes_a_secret("bad value abc", "mongodb://host/?proxyPassword=abc"));
        assert!(quotes_a_secret("no port !!", "mongodb://locker:!!@host"));
        assert!(quotes_a_secret("no port pw", "mongodb://locker:%70%77@host"));
        assert!(!quotes_a_secret("bad value abc", "mongodb://host/?appName=abc"));
    }
}
