//! Locks without a server, for tests.

use std::sync::Arc;

use crate::{
    client::{
        LockClient,
        builder::{Home, LockClientBuilder},
    },
    error::InvalidInput,
    machine,
    store::MemoryStore,
    world::World,
};

/// Locks in the memory of this process, for tests of your own code: the same semantics through the same transitions,
/// without a server. Each of its clients plays the part of another process; clones share the locks. A
/// [`MemoryCollection`](crate::testing::MemoryCollection) has the documents to lock in place.
///
/// It has the guarantees of a replica set that never fails, except for the faults that a test sets. Time is tokio's. On
/// its paused clock (its feature `test-util`) days pass in no time: while all tasks wait, time advances to the next
/// timer, and leases are renewed as usual. `tokio::time::advance` jumps instead, which looks to a process as if it had
/// been frozen.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tokio::time::{advance, sleep};
/// use watchlock::{LostReason, errors::AcquireError, testing::InMemory};
///
/// // As `#[tokio::test(start_paused = true)]` does.
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = InMemory::new();
/// let one = memory.builder().lease(Duration::from_secs(30)).build().await?;
/// let other = memory.client();
/// let handle = one.mutex("invoice-42").acquire().await?;
///
/// // A day's work: the lock is renewed in the background.
/// sleep(Duration::from_secs(24 * 3600)).await;
/// assert_eq!(handle.lost_reason(), None);
///
/// // A pause longer than the lease.
/// advance(Duration::from_secs(31)).await;
/// assert_eq!(handle.lost_reason(), Some(LostReason::Expired));
/// let next = other.mutex("invoice-42").acquire().await?;
/// assert!(next.token() > handle.token());
///
/// // The server hears nothing of the holder any more, and gives the lock to the next.
/// memory.set_frozen(&other, true)?;
/// let last = one.mutex("invoice-42").acquire().await?;
/// assert_eq!(next.lost_reason(), Some(LostReason::Expired));
///
/// memory.set_outage(true);
/// assert!(matches!(one.mutex("invoice-43").try_acquire().await, Err(AcquireError::Server(_))));
/// memory.set_outage(false);
/// # last.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct InMemory {
    store: Arc<MemoryStore>,
}

impl InMemory {
    /// Returns memory without any locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a client with the default settings.
    pub fn client(&self) -> LockClient {
        LockClient::over_memory(&self.store, machine::config())
    }

    /// Returns a builder of a client with other settings. Settings that concern a server have no effect.
    pub fn builder(&self) -> LockClientBuilder {
        LockClientBuilder::new(Home::Memory(self.store.clone()))
    }

    /// Begins an outage, or ends it: while there is one, every command of every client fails at once, as if no server
    /// could be reached.
    pub fn set_outage(&self, outage: bool) {
        self.store.connection().set_outage(outage);
    }

    /// Freezes a client of this memory, or thaws it: while it is frozen, no command of it is answered, also not on
    /// [documents](LockClient::documents_in_memory). Its leases run out, and others take over. Commands that it has
    /// sent in the last 30 seconds are carried out when it is thawed; earlier ones have failed. The client of another
    /// memory is refused.
    pub fn set_frozen<W: World>(&self, client: &LockClient<W>, frozen: bool) -> Result<(), InvalidInput> {
        let connection = client.as_async().connection();
        if !connection.is_beside(self.store.connection()) {
            return Err(InvalidInput::new(
                "the client to be frozen is not a client of this memory",
            ));
        }
        connection.set_frozen(frozen);
        Ok(())
    }
}

impl LockClient {
    /// Returns a client whose locks live in the memory of this process, for itself alone: the clients of an
    /// [`InMemory`] share their locks.
    pub fn in_memory() -> Self {
        InMemory::new().client()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_client_knows_the_name_of_its_machine() {
        let memory = InMemory::new();
        let clients = [memory.client(), memory.builder().build().await.unwrap()];
        let hosts = clients.each_ref().map(LockClient::host);
        assert!(!hosts[0].is_empty() && hosts[0] == hosts[1], "{hosts:?}");
    }
}
