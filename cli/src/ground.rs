//! The collections of one run of `watchlock verify` or `watchlock bench`, and their end.
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
use rustix::process::Signal;
use tokio::time::{sleep, timeout};
use watchlock::{Held, LockClient, errors::AcquireError, locks};

use crate::{
    connection::{Connection, Place, to_its_end},
    doctor::{as_the_library, privileges},
    exit::{Failure, NOT_PERMITTED},
    signals::{ENDING, Signals},
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

/// How often the collections are dropped, until there is none at two looks; and the pause between them, in which a late
/// write makes one anew.
const CLEARED_AT_MOST: usize = 8;
const AGAIN: Duration = Duration::from_millis(250);

/// Actions on its collections without which there is no run; and those without which it does less.
const NEEDED: [&str; 6] = [
    "find",
    "insert",
    "update",
    "remove",
    "listCollections",
    "dropCollection",
];
const USEFUL: [&str; 2] = ["changeStream", "createIndex"];

/// The collections of a run, and the clients that use them.
pub(crate) struct Ground<'a> {
    connection: &'a Connection,
    pub(crate) place: Place,
    /// Begins the names of the collections.
    prefix: String,
    clients: Mutex<Vec<LockClient>>,
    /// Those of the useful actions that the user lacks.
    lacking: Vec<&'static str>,
}

/// Does the work of a run, and drops its collections at the end, be it that of the work or a signal's.
pub(crate) async fn on_ground<T>(
    connection: &Connection,
    work: impl AsyncFnOnce(&Ground<'_>) -> Result<T, Failure>,
) -> Result<Result<T, Signal>, Failure> {
    let mut signals = Signals::listen(&ENDING)?;
    let ground = tokio::select! {
        prepared = Ground::prepare(connection) => prepared?,
        signal = signals.ending() => return Ok(Err(signal)),
    };
    let done = tokio::select! {
        done = work(&ground) => done.map(Ok),
        signal = signals.ending() => Ok(Err(signal)),
    };
    let cleared = ground.clear().await;
    let done = done?;
    cleared?;
    Ok(done)
}

impl<'a> Ground<'a> {
    /// Drops what earlier runs have left, and makes the names of another.
    async fn prepare(connection: &'a Connection) -> Result<Self, Failure> {
        let prefix = format!("{PREFIX}{}", ObjectId::new().to_hex());
        let place = as_the_library(Place {
            collection: format!("{prefix}_locks"),
            ..connection.prompt().await?
        });
        let mut ground = Self {
            connection,
            place,
            prefix,
            clients: Mutex::default(),
            lacking: Vec::new(),
        };
        let needed = privileges::missing(&ground.place, &NEEDED).await?;
        if !needed.is_empty() {
            let message = format!(
                "the user lacks {} on the collections of `{}` whose names begin with `{PREFIX}`: grant a role with the \
                 resource {{ db: {:?}, collection: \"\" }}",
                needed.join(", "),
                ground.place.database.name(),
                ground.place.database.name(),
            );
            return Err(Failure::new(NOT_PERMITTED, message));
        }
        ground.lacking = privileges::missing(&ground.place, &USEFUL).await?;
        clear_leftovers(&ground.place).await?;
        Ok(ground)
    }

    /// Takes the lock of this run, for as long as its clients live. The inner failure: the server grants no lock.
    pub(crate) async fn begin(&self) -> Result<Result<Held<locks::Mutex>, Failure>, Failure> {
        let begun = async {
            let locks = self.client().await?;
            let acquiring = locks.mutex(ALIVE).acquire().reason("watchlock verify");
            acquiring.timeout(GRANTED).await.map_err(|error| match error {
                // Nobody else has it: that is no outage.
                AcquireError::Timeout { .. } | AcquireError::Unanswered { .. } => Failure::internal(error),
                error => error.into(),
            })
        };
        match begun.await {
            Err(failure) if failure.ends_a_run() => Err(failure),
            begun => Ok(begun),
        }
    }

    /// Returns one more lock client, on a client of the driver of its own: as another process has it.
    pub(crate) async fn client(&self) -> Result<LockClient, Failure> {
        let place = Place {
            collection: self.place.collection.clone(),
            ..self.connection.prompt().await?
        };
        self.built(&place).await
    }

    /// Returns one more lock client, on the driver's client of the collections: transactions need that.
    pub(crate) async fn client_beside_them(&self) -> Result<LockClient, Failure> {
        self.built(&self.place).await
    }

    async fn built(&self, place: &Place) -> Result<LockClient, Failure> {
        let locks = client(place).await?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push(locks.clone());
        Ok(locks)
    }

    /// Returns the reason why a check is skipped that needs this action.
    pub(crate) fn lacks(&self, action: &str) -> Option<String> {
        self.lacking
            .contains(&action)
            .then(|| format!("the user lacks {action} on the collections of the run"))
    }

    /// Returns the collection of the locks.
    pub(crate) fn locks(&self) -> Collection<Document> {
        self.collection("locks")
    }

    /// Returns another collection of this run.
    pub(crate) fn collection(&self, part: &str) -> Collection<Document> {
        self.place.database.collection(&format!("{}_{part}", self.prefix))
    }

    pub(crate) fn database(&self) -> &Database {
        &self.place.database
    }

    /// Ends the clients, and drops the collections.
    async fn clear(self) -> Result<(), Failure> {
        let clients = self.clients.into_inner().unwrap_or_else(PoisonError::into_inner);
        join_all(clients.iter().map(|client| timeout(LEAVING, client.shutdown()))).await;
        // A command that is on its way may still make one anew.
        let mut was_empty = false;
        for _ in 0..CLEARED_AT_MOST {
            let is_empty = drop_all(&self.place.database, &self.prefix).await? == 0;
            if is_empty && was_empty {
                break;
            }
            was_empty = is_empty;
            sleep(AGAIN).await;
        }
        Ok(())
    }
}

/// Builds a lock client on the collection of a run.
async fn client(place: &Place) -> Result<LockClient, Failure> {
    let builder = LockClient::builder(place.database.clone()).collection(&place.collection);
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
        let its = Place {
            collection: format!("{prefix}_locks"),
            ..place.clone()
        };
        let locks = client(&its).await?;
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

/// Drops the collections of a run, and returns how many there were.
async fn drop_all(database: &Database, prefix: &str) -> Result<usize, Failure> {
    let names = names(database, prefix).await?;
    for name in &names {
        let collection = database.collection::<Document>(name);
        asked(async move { collection.drop().await }).await?;
    }
    Ok(names.len())
}

async fn names(database: &Database, prefix: &str) -> Result<Vec<String>, Failure> {
    let (database, filter) = (database.clone(), doc! { "name": { "$regex": format!("^{prefix}") } });
    asked(async move { database.list_collection_names().filter(filter).await }).await
}

/// Runs an operation of the driver to its end.
pub(crate) async fn asked<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Failure> {
    to_its_end(operation).await?.map_err(|error| Failure::driver(&error))
}
