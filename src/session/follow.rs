//! Following one name: what its document shows over time, for observers.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::Session;
use crate::{
    error::ServerError,
    protocol::State,
    store::{AWAIT_TIME, ResumeAt, Sighting, StoreError, Stream},
};

/// States that an observer may lag behind before the follower waits for it.
const BEHIND: usize = 64;

/// How long opening the stream may take; beyond it the observer polls meanwhile.
const OPENING: Duration = Duration::from_secs(2);

/// As with the session's own stream, one that gives no sign of life for this long after it should have is re-opened.
const OVERDUE: Duration = Duration::from_millis(500);

/// How long before the stream is tried again where it could not be opened; polled meanwhile.
const POLLED: Duration = Duration::from_secs(5);

/// The document's state whenever it changed, holders whose lease is over left out; `None`: there is no document.
pub(crate) type Sight = Result<Option<State>, ServerError>;

/// Follows a name until the receiver is dropped or the client shuts down. The present state comes first.
///
/// The latest state always comes, and the stream is taken up where it broke; states that last for less than a hop may be
/// skipped. An error that the server would repeat ends the sequence.
pub(crate) fn follow(session: &Arc<Session>, name: String) -> mpsc::Receiver<Sight> {
    let (to, sights) = mpsc::channel(BEHIND);
    let follower = Follower {
        session: session.clone(),
        name,
        to,
        last: None,
    };
    session.spawn(async move {
        let ended = follower.session.ended.clone();
        let gone = follower.to.clone();
        tokio::select! {
            () = follower.run() => {}
            () = ended.cancelled() => {}
            () = gone.closed() => {}
        }
    });
    sights
}

struct Follower {
    session: Arc<Session>,
    name: String,
    to: mpsc::Sender<Sight>,
    /// What was told last.
    last: Option<Option<State>>,
}

impl Follower {
    async fn run(mut self) {
        let mut resume: Option<ResumeAt> = None;
        loop {
            let followed = match self.open(resume.take()).await {
                Some(stream) => self.pump(stream).await,
                None => self.poll().await,
            };
            match followed {
                Ok(at) => resume = at,
                Err(error) if error.is_final() => {
                    // Whoever observes may be gone by now.
                    let _ = self.to.send(Err(error.into())).await;
                    return;
                }
                Err(error) => {
                    tracing::debug!(name = %self.name, %error, source = %error.source, "a name could not be read");
                    tokio::time::sleep(self.session.config.poll_interval.1).await;
                }
            }
        }
    }

    async fn open(&self, resume: Option<ResumeAt>) -> Option<Stream<Sighting>> {
        if !self.session.config.wake_source.may_stream() {
            return None;
        }
        let (session, name) = (self.session.clone(), self.name.clone());
        let opening = tokio::spawn(async move {
            match session.store.follow(&name, resume.as_ref()).await {
                // Its history is lost: from now on, then.
                Err(error) if error.is_final() && resume.is_some() => session.store.follow(&name, None).await,
                opened => opened,
            }
        });
        tokio::time::timeout(OPENING, opening).await.ok()?.ok()?.ok()
    }

    /// Tells what the stream tells; returns where to take it up when it ends.
    async fn pump(&mut self, mut stream: Stream<Sighting>) -> Result<Option<ResumeAt>, StoreError> {
        // Read after the stream was opened, so that nothing falls between.
        self.look().await?;
        loop {
            let expiry = self.expiry();
            let batch = tokio::select! {
                batch = tokio::time::timeout(AWAIT_TIME + OVERDUE, stream.next()) => batch,
                () = until(expiry) => {
                    self.look().await?;
                    continue;
                }
            };
            match batch {
                Ok(Ok(sightings)) => {
                    for sighting in sightings {
                        self.sighted(sighting).await?;
                    }
                }
                Ok(Err(error)) if error.is_final() => return Ok(None),
                Ok(Err(_)) => return Ok(stream.resume_at()),
                // In memory nothing is overdue.
                Err(_) if matches!(stream, Stream::Memory(_)) => {}
                Err(_) => return Ok(stream.resume_at()),
            }
        }
    }

    async fn poll(&mut self) -> Result<Option<ResumeAt>, StoreError> {
        let again = Instant::now() + POLLED;
        while Instant::now() < again {
            self.look().await?;
            let pause = Instant::now() + self.session.config.poll_interval.1;
            sleep_until(self.expiry().map_or(pause, |expiry| expiry.min(pause))).await;
        }
        Ok(None)
    }

    async fn sighted(&mut self, sighting: Sighting) -> Result<(), StoreError> {
        match sighting {
            Sighting::State(state) => self.tell(Some(*state)).await,
            Sighting::Gone => self.tell(None).await,
            Sighting::Unclear => self.look().await?,
        }
        Ok(())
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let (session, names) = (self.session.clone(), [self.name.clone()]);
        let reading = tokio::spawn(async move { session.store.read(&names).await });
        let (mut documents, exchange) = reading
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)))?;
        self.session.table().clock.note(&exchange);
        // What stands there and is no lock holds nothing.
        self.tell(documents.remove(&self.name).and_then(Result::ok)).await;
        Ok(())
    }

    /// Tells a state, unless it is older than what was told last, or the same for an observer.
    async fn tell(&mut self, state: Option<State>) {
        let state = state.map(|state| self.without_expired(state));
        if let (Some(Some(last)), Some(state)) = (&self.last, &state)
            && state.is_before(last)
        {
            return;
        }
        if self.last.as_ref() != Some(&state) {
            // The follower ends with its receiver.
            let _ = self.to.send(Ok(state.clone())).await;
            self.last = Some(state);
        }
    }

    fn without_expired(&self, mut state: State) -> State {
        let now = Instant::now();
        let table = self.session.table();
        state
            .holders
            .retain(|holder| table.clock.after(holder.until).is_none_or(|over| over > now));
        state
    }

    /// When the next lease of a holder is over, which no event tells.
    fn expiry(&self) -> Option<Instant> {
        let state = self.last.as_ref()?.as_ref()?;
        let until = state.holders.iter().map(|holder| holder.until).min()?;
        self.session.table().clock.after(until)
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
