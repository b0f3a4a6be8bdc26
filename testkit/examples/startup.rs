//! Measures how long clusters take to start: `cargo run -p watchlock-testkit --example startup`.

use std::time::Instant;

use watchlock_testkit::{Cluster, Error, binary};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let start = Instant::now();
    let mongod = binary::mongod()?;
    println!("{}: found in {:.2?}", mongod.display(), start.elapsed());

    for _ in 0..3 {
        let start = Instant::now();
        let standalone = Cluster::standalone().await?;
        println!("standalone: {:.2?}", start.elapsed());
        drop(standalone);

        for nodes in [1, 3] {
            let start = Instant::now();
            let cluster = Cluster::replica_set(nodes).await?;
            let started = start.elapsed();
            let start = Instant::now();
            drop(cluster);
            println!(
                "replica set of {nodes}: {started:.2?}, dropped in {:.2?}",
                start.elapsed()
            );
        }
    }
    Ok(())
}
