//! The change streams that are open at a node, by its own report.

use futures::TryStreamExt;
use mongodb::{
    Client,
    bson::{Bson, doc},
};

use crate::Result;

/// A change stream as its server sees it.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) node: usize,
    pub(crate) collection: String,
    pub(crate) id: i64,
    /// The owner, if the server reports it.
    pub(crate) of: String,
    /// When it was last read, by the server's clock in milliseconds; `None` while it is being read.
    pub(crate) idle_since: Option<i64>,
}

/// Returns the streams on collections of `database` at the node that `client` leads to.
pub(crate) async fn find(client: &Client, node: usize, database: &str) -> Result<Vec<Stream>> {
    let mut found = Vec::new();
    let look = [doc! { "$currentOp": { "idleCursors": true, "allUsers": true } }];
    let mut operations = client.database("admin").aggregate(look).await?;
    while let Some(operation) = operations.try_next().await? {
        let Ok(cursor) = operation.get_document("cursor") else {
            continue;
        };
        let pipeline = cursor
            .get_document("originatingCommand")
            .and_then(|command| command.get_array("pipeline"));
        let stream = pipeline.is_ok_and(|pipeline| {
            let first = pipeline.first().and_then(Bson::as_document);
            first.is_some_and(|stage| stage.contains_key("$changeStream"))
        });
        let namespace = operation.get_str("ns").unwrap_or_default();
        let ours = namespace.strip_prefix(&format!("{database}."));
        if let (true, Some(collection), Ok(id)) = (stream, ours, cursor.get_i64("cursorId")) {
            let idle = operation.get_str("type").is_ok_and(|kind| kind == "idleCursor");
            let used = cursor.get_datetime("lastAccessDate").ok();
            found.push(Stream {
                node,
                collection: collection.to_owned(),
                id,
                of: operation.get_str("appName").unwrap_or_default().to_owned(),
                idle_since: used.filter(|_| idle).map(|used| used.timestamp_millis()),
            });
        }
    }
    Ok(found)
}

/// Makes the node close a stream's cursor.
pub(crate) async fn kill(client: &Client, database: &str, stream: &Stream) -> Result<()> {
    let command = doc! { "killCursors": &stream.collection, "cursors": [stream.id] };
    client.database(database).run_command(command).await?;
    Ok(())
}
