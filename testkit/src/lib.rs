//! Real `mongod` servers for watchlock's own tests, examples and benchmarks.
//!
//! A [`Cluster`] is a standalone server or a replica set on free loopback ports, with its data in a throw-away folder.
//! It can be killed, frozen, restarted and stepped down node by node, made to fail commands through a [`FailPoint`],
//! have its [`clock`]s set, and be reached through a [`Proxy`] that delays, swallows or cuts the traffic, or through a
//! [`Liar`] that changes it. Nothing of it outlives the process that started it, however that process ends.
//!
//! [`binary::mongod`] finds the server itself, and installs one where there is none.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use watchlock_testkit::Cluster;
//!
//! let cluster = Cluster::replica_set(3).await?;
//! let client = cluster.client().await?;
//! let primary = cluster.primary().await?;
//! cluster.kill(primary);
//! # drop(client);
//! # Ok(())
//! # }
//! ```

pub mod binary;
pub mod clock;
pub mod liar;
pub mod shared;
pub mod signal;
pub mod stage;

mod certificates;
mod cluster;
mod error;
mod failpoint;
mod flow;
mod folder;
mod node;
mod origin;
mod proxy;

pub use cluster::{Cluster, ClusterBuilder};
pub use error::Error;
pub use failpoint::FailPoint;
pub use flow::Flow;
pub use liar::Liar;
pub use proxy::{Proxy, Trouble};
