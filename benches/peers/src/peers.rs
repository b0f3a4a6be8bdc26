//! The table of peers: each a library with one setting.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use watchlock::WakeSource;

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

/// One library with one setting.
pub(crate) struct Peer {
    pub(crate) id: &'static str,
    /// The crate by which it is used, whose version the lock file knows.
    pub(crate) package: &'static str,
    pub(crate) waits: &'static str,
    pub(crate) durability: &'static str,
    pub(crate) engine: Kind,
    pub(crate) death: Death,
    pub(crate) ours: bool,
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
    ours: false,
    cancellable: true,
    connect: |_, _| Box::pin(async { Err("a peer without a client".into()) }),
};

/// The one of ours that the others are compared with.
pub(crate) const OURS: &str = "watchlock";

/// All peers, ours first.
pub(crate) const PEERS: &[Peer] = &[
    Peer {
        id: OURS,
        package: "watchlock",
        waits: "change stream",
        durability: "majority, journalled (set by the library)",
        ours: true,
        connect: |uri, lease| {
            Box::pin(async move { a::watchlock::connect(&uri, lease, WakeSource::ChangeStream).await })
        },
        ..MONGODB
    },
    Peer {
        id: "watchlock-polling",
        package: "watchlock",
        waits: "polls; the next in line after 1 to 10 ms, others less often",
        durability: "majority, journalled (set by the library)",
        ours: true,
        connect: |uri, lease| Box::pin(async move { a::watchlock::connect(&uri, lease, WakeSource::Polling).await }),
        ..MONGODB
    },
    Peer {
        id: "watchlock-memory",
        package: "watchlock",
        waits: "in the same process",
        durability: "none: memory",
        engine: Kind::Memory,
        death: Death::Together,
        ours: true,
        connect: |_, lease| Box::pin(async move { a::watchlock::in_memory(lease).await }),
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
        connect: |uri, lease| Box::pin(async move { a::distributed_lock_mongo::connect(&uri, lease, None).await }),
        ..MONGODB
    },
    Peer {
        id: "distributed-lock-mongo-eager",
        package: "distributed-lock-mongo",
        waits: "polls every 1 ms",
        connect: |uri, lease| {
            Box::pin(async move { a::distributed_lock_mongo::connect(&uri, lease, Some(EAGER)).await })
        },
        ..MONGODB
    },
    Peer {
        id: "dotnet",
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
        connect: |address, lease| Box::pin(async move { a::zookeeper::connect(&address, lease).await }),
        ..MONGODB
    },
];
