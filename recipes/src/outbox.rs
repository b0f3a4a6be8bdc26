//! Messages that are written together with the data, and sent later by any number of workers.

use std::time::Duration;

use mongodb::{Collection, bson::doc};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use watchlock::{FencingToken, LockClient};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A message to be sent; its document has the field `sent` too. Insert it in the transaction that changes the data.
#[derive(Debug, Deserialize, Serialize)]
pub struct Message {
    /// Where it goes.
    pub topic: String,
    /// What it says.
    pub body: String,
}

/// Limits how often a message is claimed, so that one that can't be sent does not hold up the others. Those that are
/// left are dead letters, for people to look at.
pub const ATTEMPTS: u32 = 10;

/// Sends messages, oldest first, until `stop` is ready. A waiting worker is woken by the insertion of a message.
///
/// The index that makes it cheap: `{ sent: 1, _id: 1 }`.
pub async fn drain<Fut: Future<Output = Result<(), Error>>>(
    locks: &LockClient,
    outbox: Collection<Message>,
    mut send: impl FnMut(&Message, FencingToken) -> Fut,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let outbox = locks.documents(outbox);
    tokio::pin!(stop);
    loop {
        let open = outbox.claim(doc! { "sent": false }).sort(doc! { "_id": 1 });
        let message = tokio::select! {
            claimed = open.max_attempts(ATTEMPTS) => claimed?,
            () = &mut stop => return Ok(()),
        };
        let sent = tokio::select! {
            biased;
            // Another worker may have it now.
            _ = message.lost() => continue,
            sent = send(message.document(), message.token()) => sent,
        };
        match sent {
            // A worker that dies before this sends the message again, under a later token: the receiver must expect it.
            Ok(()) => message.update_and_release(doc! { "$set": { "sent": true } }).await?,
            Err(error) => {
                println!("not sent: {error}");
                // Held meanwhile, so that no worker tries it again at once.
                tokio::select! {
                    () = sleep(Duration::from_secs(1)) => {}
                    () = &mut stop => return message.release().await.map(|_| ()).map_err(Into::into),
                }
                message.release().await?;
            }
        }
    }
}
