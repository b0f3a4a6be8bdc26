//! The connection to the locks.

use std::{env, io, time::Duration};

use clap::Args;
use mongodb::{
    Client, Database,
    bson::{Document, doc},
    error::{Error, ErrorKind as DriverKind},
    options::{ClientOptions, ServerAddress, Tls},
};
use tokio::time::timeout;
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
    #[arg(long, global = true, env = URI, hide_env_values = true, value_name = "URI")]
    uri: Option<String>,
    /// The database of the locks; by default that of the connection string
    #[arg(long, global = true, env = DATABASE, value_name = "NAME")]
    database: Option<String>,
    /// The collection of the locks
    #[arg(long, global = true, env = "WATCHLOCK_COLLECTION", value_name = "NAME")]
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
        let cause = plain(&error.kind.to_string());
        if let DriverKind::DnsResolve { .. } = &*error.kind {
            // Host names are not secret, and come from nowhere else.
            let told = format!("the host of the connection string can't be looked up: {cause}");
            return Failure::new(UNAVAILABLE, told);
        }
        let why = if has_a_secret(self.uri.as_deref().unwrap_or_default()) {
            "; the reason is hidden, as it could show a part of the secret. Characters like : / ? # [ ] @ % in user name and \
             password must be percent-encoded"
                .to_owned()
        } else {
            format!(": {cause}")
        };
        Failure::usage(format!(
            "the connection string (MONGODB_URI or --uri) is not valid{why}"
        ))
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

/// Returns whether a connection string may have a password or a token.
fn has_a_secret(uri: &str) -> bool {
    let uri = uri.to_lowercase();
    ["@", "password", "token", "properties"]
        .iter()
        .any(|mark| uri.contains(mark))
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

/// Runs an operation of the driver to its end in its own task, as an operation dropped half-way stalls the driver's
/// pool. One without an answer counts as failed, and runs on by itself.
pub(crate) async fn to_its_end<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<Result<T, Error>, Failure> {
    let stopped = |error| Failure::new(INTERNAL, format!("a task was stopped: {error}"));
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
}
