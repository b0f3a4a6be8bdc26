//! Fail points: faults that a server with test commands enabled commits on request.

use std::{thread, time::Duration};

use mongodb::{
    Client,
    bson::{Bson, Document, doc},
};

use crate::Error;

/// A fail point that has been switched on at one node. Switched off by [`off`](Self::off), or on drop.
#[derive(Debug)]
#[must_use = "a fail point is switched off when it is dropped"]
pub struct FailPoint {
    uri: String,
    name: String,
    /// Number of times that it had been entered, in the life of the server, when it was switched on.
    entered_before: i64,
    on: bool,
}

impl FailPoint {
    /// Runs a `configureFailPoint` command at the node that `uri` leads to.
    pub(crate) async fn configure(uri: String, command: Document) -> Result<Self, Error> {
        let name = command
            .get_str("configureFailPoint")
            .map_err(|error| Error::caused("not a configureFailPoint command", error))?
            .to_owned();
        let reply = Client::with_uri_str(&uri)
            .await?
            .database("admin")
            .run_command(command)
            .await?;
        let entered_before = match reply.get("count") {
            Some(Bson::Int32(count)) => i64::from(*count),
            Some(Bson::Int64(count)) => *count,
            _ => 0,
        };
        Ok(Self {
            uri,
            name,
            entered_before,
            on: true,
        })
    }

    /// Waits until the fail point has struck `times` times since it was switched on.
    ///
    /// # Errors
    ///
    /// It has not within `timeout`, or the server does not know `waitForFailPoint`.
    pub async fn wait_entered(&self, times: u32, timeout: Duration) -> Result<(), Error> {
        let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
        Client::with_uri_str(&self.uri)
            .await?
            .database("admin")
            .run_command(doc! {
                "waitForFailPoint": &self.name,
                "timesEntered": self.entered_before + i64::from(times),
                "maxTimeMS": millis,
            })
            .await?;
        Ok(())
    }

    /// Switches the fail point off.
    ///
    /// # Errors
    ///
    /// The server could not be reached.
    pub async fn off(mut self) -> Result<(), Error> {
        self.on = false;
        switch_off(&self.uri, &self.name).await
    }
}

impl Drop for FailPoint {
    /// Spares the other tests at the same server the fault that a failed test had asked for. Uses a thread with a
    /// runtime, as the current runtime can't be waited on.
    fn drop(&mut self) {
        if !self.on {
            return;
        }
        let (uri, name) = (self.uri.clone(), self.name.clone());
        let off = thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            // The server may be frozen or dead; that ends the fail point too.
            let _ =
                runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), switch_off(&uri, &name)).await });
        });
        let _ = off.join();
    }
}

async fn switch_off(uri: &str, name: &str) -> Result<(), Error> {
    Client::with_uri_str(uri)
        .await?
        .database("admin")
        .run_command(doc! { "configureFailPoint": name, "mode": "off" })
        .await?;
    Ok(())
}
