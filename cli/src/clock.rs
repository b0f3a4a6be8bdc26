//! The server's clock, which all times of locks refer to.

use std::time::{Duration, SystemTime};

use mongodb::{
    Database,
    bson::{Document, doc},
    error::Error,
    options::SelectionCriteria,
};
use tokio::time::Instant;

use crate::{
    connection::{Place, to_its_end},
    exit::Failure,
};

/// The difference to add to this machine's clock, in milliseconds, to get the server's; and its maximum error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offset {
    pub(crate) millis: i64,
    pub(crate) within: Duration,
}

impl Offset {
    /// Measures the offset by asking a server for its time.
    pub(crate) async fn measure(place: &Place) -> Result<Self, Failure> {
        let primary = SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary);
        let asked = to_its_end(ask(place.database.clone(), primary)).await?;
        let (offset, _) = asked.map_err(|error| Failure::driver(&error))?;
        Ok(offset)
    }

    /// Returns the server's time now.
    pub(crate) fn now(self) -> SystemTime {
        self.at(SystemTime::now())
    }

    /// Returns the server's time when it is `now` here.
    pub(crate) fn at(self, now: SystemTime) -> SystemTime {
        let distance = Duration::from_millis(self.millis.unsigned_abs());
        let moved = if self.millis >= 0 {
            now.checked_add(distance)
        } else {
            now.checked_sub(distance)
        };
        moved.unwrap_or(now)
    }
}

/// Asks a server for its type and its time.
pub(crate) async fn ask(database: Database, whom: SelectionCriteria) -> Result<(Offset, Document), Error> {
    // One request before, so that the measurement does not include connecting.
    database
        .run_command(doc! { "ping": 1 })
        .selection_criteria(whom.clone())
        .await?;
    let (sent, start) = (SystemTime::now(), Instant::now());
    let hello = database
        .run_command(doc! { "hello": 1 })
        .selection_criteria(whom)
        .await?;
    let round_trip = start.elapsed();
    // The server read its clock somewhere in between; half-way is wrong by at most half the round trip.
    let here = sent
        .checked_add(round_trip / 2)
        .and_then(|here| here.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    let there = hello
        .get_datetime("localTime")
        .map_or(here, |time| time.timestamp_millis());
    let offset = Offset {
        millis: there.saturating_sub(here),
        within: round_trip / 2 + Duration::from_millis(1),
    };
    Ok((offset, hello))
}
