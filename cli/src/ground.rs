//! The collections of one run of `watchlock verify`, and their end.
//!
//! A run writes nothing but what is in collections of its own. Their names begin with `watchlock_verify_` and an object
//! id, whose first bytes are the time. As long as a run lives it holds a lock there; so the next run knows which
//! collections were left by one that was killed, and drops them.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use mongodb::{
    Collection, Database,
    bson::{Document, doc, oid::ObjectId},
    error::Error,
};
use tokio::time::timeout;
use watchlock::{Held, LockClient, errors::AcquireError, locks};

use crate::{
    connection::{Connection, Place, to_its_end},
    exit::Failure,
};

const PREFIX: &str = "watchlock_verify_";

/// The lock that a run holds while it lives.
const ALIVE: &str = "this run";

/// Collections of a run that holds no lock are left alone for this long: it may be about to take it.
const BEGINNING: Duration = Duration::from_secs(30);

/// Maximum time for a lock that nobody else wants.
const GRANTED: Duration = Duration::from_secs(10);

/// Maximum time for a client of a run to give its locks back before the collections are dropped.
const LEAVING: Duration = Duration::from_secs(5);

/// The collections of a run, and the clients that use them.
pub(super) struct Ground<'a> {
    connection: &'a Connection,
    pub(super) place: Place,
    prefix: String,
    clients: Mutex<Vec<LockClient>>,
    /// The reason why there is none, if the server grants none.
    pub(super) alive: Result<Held<locks::Mutex>, Failure>,
}

impl<'a> Ground<'a> {
    /// Drops what earlier runs have left, and begins a run.
    pub(super) async fn prepare(connection: &'a Connection) -> Result<Self, Failure> {
        let place = connection.prompt().await?;
        clear_leftovers(&place).await?;
        let prefix = format!("{PREFIX}{}", ObjectId::new().to_hex());
        let mut ground = Self {
            connection,
            place,
            prefix,
            clients: Mutex::default(),
            alive: Err(Failure::internal("nobody has asked for it yet")),
        };
        // Held until the clients shut down.
        ground.alive = match ground.begin().await {
            Err(failure) if failure.is_unavailable() && !failure.is_refusal() => return Err(failure),
            begun => begun,
        };
        Ok(ground)
    }

    async fn begin(&self) -> Result<Held<locks::Mutex>, Failure> {
        let locks = self.client().await?;
        let acquiring = locks.mutex(ALIVE).acquire().reason("watchlock verify");
        acquiring.timeout(GRANTED).await.map_err(|error| match error {
            // Nobody else has it: that is no outage.
            AcquireError::Timeout { .. } | AcquireError::Unanswered { .. } => Failure::internal(error),
            error => error.into(),
        })
    }

    /// Returns one more lock client, on a client of the driver of its own: as another process has it.
    pub(super) async fn client(&self) -> Result<LockClient, Failure> {
        let place = self.connection.prompt().await?;
        let locks = client(&place, &self.prefix).await?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(locks.clone());
        Ok(locks)
    }

    /// Returns the collection of the locks.
    pub(super) fn locks(&self) -> Collection<Document> {
        self.collection("locks")
    }

    /// Returns another collection of this run.
    pub(super) fn collection(&self, part: &str) -> Collection<Document> {
        self.place.database.collection(&format!("{}_{part}", self.prefix))
    }

    pub(super) fn database(&self) -> &Database {
        &self.place.database
    }

    /// Ends the clients, and drops the collections.
    pub(super) async fn clear(self) -> Result<(), Failure> {
        let clients = self.clients.into_inner().unwrap_or_else(PoisonError::into_inner);
        join_all(clients.iter().map(|client| timeout(LEAVING, client.shutdown()))).await;
        // A command of a client that did not shut down in time may still make one anew.
        for _ in 0..2 {
            drop_all(&self.place.database, &self.prefix).await?;
        }
        Ok(())
    }
}

/// Builds a lock client on the collection of a run.
async fn client(place: &Place, prefix: &str) -> Result<LockClient, Failure> {
    let builder = LockClient::builder(place.database.clone()).collection(format!("{prefix}_locks"));
    Ok(builder.label("watchlock verify").build().await?)
}

/// Drops the collections of runs that were killed.
async fn clear_leftovers(place: &Place) -> Result<(), Failure> {
    let names = names(&place.database, PREFIX).await?;
    let ids: BTreeSet<&str> = names.iter().filter_map(|name| id_of(name)).collect();
    for id in ids {
        let Ok(begun) = ObjectId::parse_str(id) else { continue };
        let age = SystemTime::now().duration_since(begun.timestamp().to_system_time());
        if age.is_ok_and(|age| age < BEGINNING) {
            continue;
        }
        let prefix = format!("{PREFIX}{id}");
        let locks = client(place, &prefix).await?;
        let lives = locks.inspect(ALIVE).await?.is_some_and(|lock| !lock.holders.is_empty());
        locks.shutdown().await;
        if !lives {
            drop_all(&place.database, &prefix).await?;
        }
    }
    Ok(())
}

/// Returns the object id in the name of a run's collection.
fn id_of(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.get(..24)
}

async fn drop_all(database: &Database, prefix: &str) -> Result<(), Failure> {
    for name in names(database, prefix).await? {
        let collection = database.collection::<Document>(&name);
        told(to_its_end(async move { collection.drop().await }).await?)?;
    }
    Ok(())
}

async fn names(database: &Database, prefix: &str) -> Result<Vec<String>, Failure> {
    let (database, filter) = (database.clone(), doc! { "name": { "$regex": format!("^{prefix}") } });
    told(to_its_end(async move { database.list_collection_names().filter(filter).await }).await?)
}

/// Returns what the driver says as what the program says.
pub(super) fn told<T>(outcome: Result<T, Error>) -> Result<T, Failure> {
    outcome.map_err(|error| Failure::driver(&error))
}
