//! The server of an example.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use mongodb::{Client, Database, options::ClientOptions};
use tokio::time::timeout;

use super::Result;
use crate::shared::unique_name;

/// Maximum time to find a server that `MONGODB_URI` names. The driver's own 30 s are long to watch.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time to drop the database, even if the server is gone.
const CLEARING_PATIENCE: Duration = Duration::from_secs(5);

/// The server in use, and the database that is the example's there.
#[derive(Clone)]
pub struct Server {
    pub(super) uri: String,
    pub(super) database: String,
}

impl Server {
    pub(super) fn new(uri: String, example: &str) -> Self {
        // Another machine may play the same example on the same server.
        let moment = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis();
        let database = format!("{}_{moment:x}", unique_name(&format!("watchlock_{example}")));
        Self { uri, database }
    }

    /// Returns the database, through a connection pool of its own: each process of an application has one.
    ///
    /// # Errors
    ///
    /// The connection string is wrong.
    pub async fn connect(&self) -> Result<Database> {
        let mut options = ClientOptions::parse(&self.uri).await?;
        options.server_selection_timeout.get_or_insert(SERVER_PATIENCE);
        Ok(Client::with_options(options)?.database(&self.database))
    }

    /// Drops the database.
    pub(super) async fn clear(&self) -> Result<()> {
        let database = self.connect().await?;
        match timeout(CLEARING_PATIENCE, database.drop()).await {
            Ok(dropped) => Ok(dropped?),
            Err(_) => Err(format!("the database {} could not be dropped in time", self.database).into()),
        }
    }
}

// The connection string may hold a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}
