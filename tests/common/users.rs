//! Users with few privileges, on a replica set that requires authentication.

use mongodb::{Database, bson::doc};
use tokio::sync::OnceCell;
use watchlock_testkit::Cluster;

use super::{COLLECTION, Ground};

/// The password of all users here. It must appear in no output.
pub(crate) const PASSWORD: &str = "aSecretOfThisTest";

/// The least role, as `docs/privileges.md` has it, but for `createIndex`: without that, free locks stay.
pub(crate) const LEAST: [&str; 4] = ["find", "insert", "update", "changeStream"];

/// A replica set that asks who one is.
pub(crate) async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(async || Cluster::builder().replica_set(1).auth(true).start().await.unwrap())
        .await
}

/// A user who may do nothing but `actions`, and on the locks' collection alone.
pub(crate) async fn user(prefix: &str, actions: &[&str]) -> (Ground, Database) {
    user_of(prefix, &[(COLLECTION, actions)]).await
}

/// A user who may do nothing but these actions on these collections.
pub(crate) async fn user_of(prefix: &str, permitted: &[(&str, &[&str])]) -> (Ground, Database) {
    let cluster = cluster().await;
    let ground = Ground::on(cluster, prefix);
    let database = cluster.client().await.unwrap().database(&ground.database);
    let privileges = permitted.iter().map(|(collection, actions)| {
        doc! { "resource": { "db": &ground.database, "collection": collection }, "actions": *actions }
    });
    let role = doc! { "createRole": "locker", "privileges": privileges.collect::<Vec<_>>(), "roles": [] };
    database.run_command(role).await.unwrap();
    let user = doc! { "createUser": "locker", "pwd": PASSWORD, "roles": ["locker"] };
    database.run_command(user).await.unwrap();
    let uri = format!(
        "mongodb://locker:{PASSWORD}@{}/?replicaSet=watchlock&authSource={}",
        cluster.addr(0),
        ground.database
    );
    (ground.through(uri), database)
}
