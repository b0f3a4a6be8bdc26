//! Locks without a server, for tests.

use std::sync::Arc;

use crate::{
    client::{LockClient, LockClientBuilder},
    machine::settings,
    store::MemoryStore,
};

/// Locks in the memory of this process: the same semantics through the same transitions, without a server.
///
/// For tests of your own code. Each of its clients plays the part of another process; clones share the locks. A
/// [`MemoryCollection`](crate::testing::MemoryCollection) has the documents to lock in place.
///
/// # Guarantees
///
/// Those of a replica set that never fails. Time is tokio's: with its clock paused, leases expire as the test advances
/// it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = watchlock::testing::InMemory::new();
/// let (one, other) = (memory.client(), memory.client());
/// let handle = one.mutex("invoice-42").acquire().await?;
/// assert!(other.mutex("invoice-42").try_acquire().await?.is_none());
/// # handle.release().await?;
/// # Ok(()) }
/// ```
///
/// On tokio's paused clock (its feature `test-util`) days pass in no time: while all tasks wait, time advances to the
/// next timer, and leases are renewed as usual. `tokio::time::advance` jumps instead, which looks to a process as if it
/// had been frozen.
///
/// ```
/// use std::time::Duration;
/// use tokio::time::{advance, sleep};
/// use watchlock::{LostReason, testing::InMemory};
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
        LockClient::over_memory(self.store.clone(), settings().unchecked())
    }

    /// Returns a builder of a client with other settings. Settings that concern a server have no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let lease = std::time::Duration::from_secs(5);
    /// let locks = watchlock::testing::InMemory::new().builder().lease(lease).build().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder(&self) -> LockClientBuilder {
        LockClientBuilder::in_memory(self.store.clone())
    }
}

impl LockClient {
    /// Returns a client whose locks live in the memory of this process, for itself alone: the clients of an
    /// [`InMemory`] share their locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = watchlock::LockClient::in_memory();
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// assert!(locks.mutex("invoice-42").try_acquire().await?.is_none());
    /// # handle.release().await?;
    /// # Ok(()) }
    /// ```
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
