//! The table of peers: each a library with one setting.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use watchlock::operate::WakeSource;

use crate::{
    adapters as a,
    client::{Client, Result},
    engines::Kind,
};

/// Durability of MongoDB's writes where nobody says otherwise, since 5.0.
const MAJORITY: &str = "majority, journalled (the server's default)";

/// Pause between two tries at a peer's best setting: the shortest that a timer of the runtime keeps.
const EAGER: Duration = Duration::from_millis(1);

/// The end of a holder that dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    /// Its lock ends with its lease.
    Lease,
    /// Its lock ends with its connection.
    Connection,
    /// Its lock never ends.
    Never,
    /// It is no process of its own.
    Together,
}

/// The part that a peer has in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A setting of this repository's library.
    Ours,
    Peer,
    /// No lock: the commands that a lock on this server can't do without.
    Floor,
}

/// How its waiters try for the lock. Decides which cases a peer plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As the library's users get it.
    Usual,
    /// A poll every millisecond. Without waiters it is the same as the usual one.
    Eager,
}

/// One library with one setting.
pub(crate) struct Peer {
    pub(crate) id: &'static str,
    /// The crate by which it is used, whose version the lock file knows.
    pub(crate) package: &'static str,
    pub(crate) waits: &'static str,
    pub(crate) durability: &'static str,
    pub(crate) engine: Kind,
    pub(crate) death: Death,
    pub(crate) role: Role,
    pub(crate) pace: Pace,
    /// Whether some waiters of it take a good part of the machine.
    pub(crate) is_restless: bool,
    /// Whether held locks are kept alive in the background, so that they can be held for longer than a lease.
    pub(crate) renews: bool,
    /// Maximum number of locks that one client can hold at once.
    pub(crate) most_held: usize,
    /// Whether dropping an acquire cancels it: a thread that blocks can't be cancelled.
    pub(crate) cancellable: bool,
    connect: Connect,
}

type Connect = fn(String, Duration) -> BoxFuture<'static, Result<Arc<dyn Client>>>;

impl Peer {
    /// Connects one client, whose locks last for `lease` without a sign of life.
    pub(crate) async fn connect(&self, address: &str, lease: Duration) -> Result<Arc<dyn Client>> {
        (self.connect)(address.to_owned(), lease).await
    }

    pub(crate) fn find(id: &str) -> Option<&'static Self> {
        PEERS.iter().find(|peer| peer.id == id)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id)
    }
}

/// A peer of MongoDB with a lease and the default write concern, from which the others differ in what they say.
const MONGODB: Peer = Peer {
    id: "",
    package: "",
    waits: "",
    durability: MAJORITY,
    engine: Kind::MongoDb,
    death: Death::Lease,
    role: Role::Peer,
    pace: Pace::Usual,
    is_restless: false,
    renews: false,
    most_held: usize::MAX,
    cancellable: true,
    connect: |_, _| Box::pin(async { Err("a peer without a client".into()) }),
};

/// The one of ours that the others are compared with.
pub(crate) const OURS: &str = "watchlock";

/// The commands of MongoDB without any lock.
pub(crate) const FLOOR: &str = "mongodb-raw";

/// A setting of ours, from which the others differ in what they say.
const WATCHLOCK: Peer = Peer {
    durability: "majority, journalled (set by the library)",
    role: Role::Ours,
    renews: true,
    ..MONGODB
};

/// All peers, ours first.
pub(crate) const PEERS: &[Peer] = &[
    Peer {
        id: OURS,
        package: "watchlock",
        waits: "change stream",
        connect: |uri, lease| {
            Box::pin(async move { a::watchlock::connect(&uri, lease, WakeSource::ChangeStream).await })
        },
        ..WATCHLOCK
    },
    Peer {
        id: "watchlock-polling",
        package: "watchlock",
        waits: "polls; the next in line after 1 to 10 ms, others less often",
        connect: |uri, lease| Box::pin(async move { a::watchlock::connect(&uri, lease, WakeSource::Polling).await }),
        ..WATCHLOCK
    },
    Peer {
        id: "watchlock-memory",
        package: "watchlock",
        waits: "in the same process",
        durability: "none: memory",
        engine: Kind::Memory,
        death: Death::Together,
        connect: |_, lease| Box::pin(async move { a::watchlock::in_memory(lease).await }),
        ..WATCHLOCK
    },
    Peer {
        id: FLOOR,
        package: "mongodb",
        waits: "no lock: the driver's commands alone, and one event of a change stream for a hand-over",
        durability: "majority, journalled (set by the commands)",
        role: Role::Floor,
        ..MONGODB
    },
    Peer {
        id: "mongo-lock",
        package: "mongo-lock",
        waits: "polls every 100 ms (as in its tests: it has no default); blocks a thread",
        cancellable: false,
        connect: |uri, lease| {
            Box::pin(async move { a::mongo_lock::connect(&uri, lease, Duration::from_millis(100)).await })
        },
        ..MONGODB
    },
    Peer {
        id: "mongo-lock-eager",
        pace: Pace::Eager,
        is_restless: true,
        package: "mongo-lock",
        waits: "polls every 1 ms; blocks a thread",
        cancellable: false,
        connect: |uri, lease| Box::pin(async move { a::mongo_lock::connect(&uri, lease, EAGER).await }),
        ..MONGODB
    },
    Peer {
        id: "mongo-lock-async",
        package: "mongo-lock-async",
        waits: "polls every 100 ms (as in its tests: it has no default)",
        connect: |uri, lease| {
            Box::pin(async move { a::mongo_lock_async::connect(&uri, lease, Duration::from_millis(100)).await })
        },
        ..MONGODB
    },
    Peer {
        id: "mongo-lock-async-eager",
        pace: Pace::Eager,
        is_restless: true,
        package: "mongo-lock-async",
        waits: "polls every 1 ms",
        connect: |uri, lease| Box::pin(async move { a::mongo_lock_async::connect(&uri, lease, EAGER).await }),
        ..MONGODB
    },
    Peer {
        id: "mongodb-lock",
        package: "mongodb-lock",
        waits: "polls every 500 ms (its default)",
        death: Death::Never,
        connect: |uri, _| Box::pin(async move { a::mongodb_lock::connect(&uri, mongodb_lock::DEFAULT_WAIT).await }),
        ..MONGODB
    },
    Peer {
        id: "mongodb-lock-eager",
        pace: Pace::Eager,
        is_restless: true,
        package: "mongodb-lock",
        waits: "polls every 1 ms",
        death: Death::Never,
        connect: |uri, _| Box::pin(async move { a::mongodb_lock::connect(&uri, EAGER).await }),
        ..MONGODB
    },
    Peer {
        id: "distributed-lock-mongo",
        package: "distributed-lock-mongo",
        waits: "polls every 10 ms (its default)",
        is_restless: true,
        connect: |uri, lease| Box::pin(async move { a::distributed_lock_mongo::connect(&uri, lease, None).await }),
        ..MONGODB
    },
    Peer {
        id: "distributed-lock-mongo-eager",
        pace: Pace::Eager,
        is_restless: true,
        package: "distributed-lock-mongo",
        waits: "polls every 1 ms",
        connect: |uri, lease| {
            Box::pin(async move { a::distributed_lock_mongo::connect(&uri, lease, Some(EAGER)).await })
        },
        ..MONGODB
    },
    Peer {
        id: "dotnet",
        renews: true,
        package: "mongodb",
        waits: "polls after 10 to 800 ms at random (the default of DistributedLock.MongoDB)",
        connect: |uri, lease| {
            let pauses = (Duration::from_millis(10), Duration::from_millis(800));
            Box::pin(async move { a::dotnet::connect(&uri, lease, pauses).await })
        },
        ..MONGODB
    },
    Peer {
        id: "dotnet-eager",
        renews: true,
        pace: Pace::Eager,
        is_restless: true,
        package: "mongodb",
        waits: "polls every 1 ms",
        connect: |uri, lease| Box::pin(async move { a::dotnet::connect(&uri, lease, (EAGER, EAGER)).await }),
        ..MONGODB
    },
    #[cfg(feature = "etcd")]
    Peer {
        id: "etcd",
        package: "etcd-client",
        waits: "in the server, in turn",
        durability: "log of one node, flushed (its default)",
        engine: Kind::Etcd,
        renews: true,
        connect: |address, lease| Box::pin(async move { a::etcd::connect(&address, lease).await }),
        ..MONGODB
    },
    Peer {
        id: "postgresql",
        package: "tokio-postgres",
        waits: "in the server, in turn; a connection each",
        durability: "none: memory of the server, gone with the session",
        engine: Kind::Postgres,
        death: Death::Connection,
        renews: true,
        most_held: 1_100,
        connect: |address, lease| Box::pin(async move { a::postgres::connect(&address, lease).await }),
        ..MONGODB
    },
    Peer {
        id: "redis",
        package: "rslock",
        waits: "polls after 0 to 200 ms at random (its default)",
        durability: "memory, now and then a snapshot (its default)",
        engine: Kind::Redis,
        connect: |address, lease| Box::pin(async move { a::redis::connect(&address, lease, None).await }),
        ..MONGODB
    },
    Peer {
        id: "redis-eager",
        pace: Pace::Eager,
        is_restless: true,
        package: "rslock",
        waits: "polls after 0 to 1 ms at random",
        durability: "memory, now and then a snapshot (its default)",
        engine: Kind::Redis,
        // Its random pause is whole milliseconds below this bound.
        connect: |address, lease| Box::pin(async move { a::redis::connect(&address, lease, Some(2 * EAGER)).await }),
        ..MONGODB
    },
    Peer {
        id: "zookeeper",
        package: "zookeeper-client",
        waits: "watches the node before its own, in turn",
        durability: "log of one node, flushed (its default)",
        engine: Kind::ZooKeeper,
        renews: true,
        connect: |address, lease| Box::pin(async move { a::zookeeper::connect(&address, lease).await }),
        ..MONGODB
    },
];
