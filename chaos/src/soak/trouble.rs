//! The troubles of a normal hour: clients that come and go, clients that die, streams that break.

use std::{sync::Arc, thread, time::Duration};

use mongodb::Client;
use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use watchlock::LostReason;

use super::{
    DATABASE, Tally,
    mixture::{LONG, about},
    service::{PATIENCE, Service},
};
use crate::{Result, client::Held, random::Random, streams};

/// Seconds between two troubles of a kind, on average.
const KILLS: u64 = 20;
const VISITS: u64 = 12;
const DEATHS: u64 = 30;

/// The application name of the clients that die.
const DOOMED: &str = "doomed";

/// Number of looks for a stream that may just be opened.
const LOOKS: u32 = 100;

/// A kind of trouble.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// The cursors of all change streams are killed: they are opened again.
    KilledCursors,
    /// A client is made, uses a lock, and is shut down and dropped.
    Visit,
    /// A client ends without a word while it holds a lock. The lock must be available when its lease is over.
    Death,
}

pub(super) const ALL: [Trouble; 3] = [Trouble::KilledCursors, Trouble::Visit, Trouble::Death];

impl Trouble {
    pub(super) async fn go_on(
        self,
        uri: String,
        tally: Arc<Tally>,
        mut random: Random,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<()> {
        let operator = Client::with_uri_str(&uri).await?;
        loop {
            let pause = match self {
                Self::KilledCursors => about(KILLS, &mut random),
                Self::Visit => about(VISITS, &mut random),
                Self::Death => about(DEATHS, &mut random),
            };
            tokio::select! {
                _ = stopping.wait_for(|stop| *stop) => break,
                () = sleep(pause) => {}
            }
            match self {
                Self::KilledCursors => {
                    let _calm = tally.calm.lock().await;
                    for stream in streams::find(&operator, 0, DATABASE).await? {
                        // It may be gone by now.
                        if streams::kill(&operator, DATABASE, &stream).await.is_ok() {
                            tally.kills.add(1);
                        }
                    }
                }
                Self::Visit => {
                    visit(&uri, &tally).await?;
                    tally.visits.add(1);
                }
                Self::Death => {
                    let (uri, tally) = (uri.clone(), tally.clone());
                    spawn_blocking(move || die(&uri, &tally)).await??;
                }
            }
        }
        operator.shutdown().await;
        Ok(())
    }
}

async fn visit(uri: &str, tally: &Arc<Tally>) -> Result<()> {
    let service = Service::start(uri, "visitor".to_owned(), tally).await?;
    if let Some(held) = take(&service).await {
        service.hold(&held.parts()[0], Duration::from_millis(300)).await;
        service.let_go(held, true).await;
    }
    service.end().await;
    Ok(())
}

/// Runs a client in a runtime of its own, with which everything ends that it does.
fn die(uri: &str, tally: &Arc<Tally>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (service, taken) = runtime.block_on(async {
        let service = Service::start(uri, DOOMED.to_owned(), tally).await?;
        let taken = take(&service).await;
        // Beyond the first lease of a waiter, which is short.
        sleep(Duration::from_millis(600)).await;
        // Its stream stays open at the server, where nobody can know later whose it was.
        let _calm = tally.calm.lock().await;
        for _ in 0..LOOKS {
            let mut streams = streams::find(&service.client, 0, DATABASE).await?;
            streams.retain(|stream| stream.of == DOOMED);
            if let Some(stream) = streams.first() {
                tally.abandoned().push(stream.id);
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        tally.deaths.add(1);
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((service, taken))
    })?;
    runtime.shutdown_background();
    if let Some(held) = taken {
        let view = held.parts().remove(0);
        let reason = loop {
            if let Some(reason) = view.lost_reason() {
                break reason;
            }
            thread::sleep(Duration::from_millis(50));
        };
        if reason != LostReason::Expired {
            tally.complain(format!("a client that died lost its lock because {reason}"));
        }
    }
    drop(service);
    Ok(())
}

async fn take(service: &Service) -> Option<Held> {
    let acquire = service.locks.mutex(LONG).acquire().timeout(PATIENCE);
    let acquire = Box::pin(async move { Ok(Some(Held::Lock(acquire.await?.into()))) });
    service.wait(acquire, None).await
}
