//! The way to the locks.

use std::time::Duration;

use clap::Args;
use mongodb::{Client, Database, error::Error, options::ClientOptions};
use watchlock::{LockClient, LockClientBuilder};

use crate::exit::{Failure, INTERNAL};

/// How long a look at the locks waits for a server, unless the connection string says so. The driver's own 30 s are meant
/// for services that can wait for a fail-over; `run` keeps them.
const SELECTION: Duration = Duration::from_secs(5);

#[derive(Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The connection string of the server
    #[arg(long, env = "MONGODB_URI", hide_env_values = true, global = true, value_name = "URI")]
    #[arg(default_value = "mongodb://localhost:27017")]
    uri: String,
    /// The database of the locks; that of the connection string by default
    #[arg(long, env = "WATCHLOCK_DATABASE", global = true, value_name = "NAME")]
    database: Option<String>,
    /// The collection of the locks
    #[arg(long, env = "WATCHLOCK_COLLECTION", global = true, value_name = "NAME")]
    #[arg(default_value = "distributed_locks")]
    collection: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the connection string.
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
}

impl Connection {
    /// Where the locks are, for a command that waits for the server as long as the driver does.
    pub(crate) async fn patient(&self) -> Result<Place, Failure> {
        self.place(None).await
    }

    /// Where the locks are, for a command of somebody who looks on.
    pub(crate) async fn prompt(&self) -> Result<Place, Failure> {
        self.place(Some(SELECTION)).await
    }

    async fn place(&self, selection: Option<Duration>) -> Result<Place, Failure> {
        let mut options = ClientOptions::parse(&self.uri)
            .await
            .map_err(|error| self.not_valid(&error))?;
        options.server_selection_timeout = options.server_selection_timeout.or(selection);
        options.app_name = options.app_name.or_else(|| Some("watchlock".to_owned()));
        let named = self.database.clone().or_else(|| options.default_database.clone());
        let Some(name) = named else {
            return Err(Failure::usage(
                "in which database are the locks? name it with --database, WATCHLOCK_DATABASE, or in the connection string, \
                 as in mongodb://localhost:27017/app",
            ));
        };
        check_database(&name)?;
        let client = Client::with_options(options).map_err(|error| self.not_valid(&error))?;
        Ok(Place {
            database: client.database(&name),
            collection: self.collection.clone(),
        })
    }

    /// The driver's reason is only told where the connection string has no secret that it could quote.
    fn not_valid(&self, error: &Error) -> Failure {
        let lower = self.uri.to_lowercase();
        let secret = ["@", "password", "token"].iter().any(|word| lower.contains(word));
        if secret {
            return Failure::usage(
                "the connection string (MONGODB_URI or --uri) is not valid, or its host can't be looked up; it is not shown \
                 as it has a secret. Characters like : / ? # [ ] @ % in user name and password must be percent-encoded",
            );
        }
        Failure::usage(format!(
            "the connection string (MONGODB_URI or --uri) is not valid: {error}"
        ))
    }
}

impl Place {
    pub(crate) fn builder(&self) -> LockClientBuilder {
        LockClient::builder(self.database.clone()).collection(&self.collection)
    }

    pub(crate) async fn locks(&self) -> Result<LockClient, Failure> {
        Ok(self.builder().build().await?)
    }
}

/// Runs an operation of the driver to its end by itself, as one that is dropped half-way stalls the driver's pool.
pub(crate) async fn to_its_end<T: Send + 'static>(
    operation: impl Future<Output = T> + Send + 'static,
) -> Result<T, Failure> {
    let stopped = |error| Failure::new(INTERNAL, format!("a task was stopped: {error}"));
    tokio::spawn(operation).await.map_err(stopped)
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
