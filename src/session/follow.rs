//! Following one name or all: what the documents show over time, for observers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{
    Session,
    stream::{Opening, SILENT},
};
use crate::{
    error::ServerError,
    protocol::State,
    store::{Exchange, NamedSighting, ResumeAt, Selection, Sighting, StoreError, Stream},
};

/// States that an observer may lag behind before the follower waits for it.
const BEHIND: usize = 64;

/// How long before the stream is tried again where it could not be opened; polled meanwhile.
const POLLED: Duration = Duration::from_secs(5);

/// A document's name, and its state whenever it changed, holders whose lease is over left out; `None`: there is no
/// document.
pub(crate) type Sight = Result<(String, Option<State>), ServerError>;

/// What is followed.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// One name, whether there is a document or not.
    One(String),
    /// All names of which there are documents.
    All,
}

impl Scope {
    fn name(&self) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::All => None,
        }
    }
}

/// Follows names until the receiver is dropped or the client shuts down. The present states come first.
///
/// The latest state always comes, and the stream is taken up where it broke; states that last for less than a hop may be
/// skipped. An error that the server would repeat ends the sequence.
pub(crate) fn follow(session: &Arc<Session>, scope: Scope) -> mpsc::Receiver<Sight> {
    let (to, sights) = mpsc::channel(BEHIND);
    let follower = Follower {
        session: session.clone(),
        scope,
        to,
        opening: Opening::new(),
        last: HashMap::new(),
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
    scope: Scope,
    to: mpsc::Sender<Sight>,
    opening: Opening<Stream<NamedSighting>>,
    /// What was told last, by name. Where all are followed, names without a document are left out.
    last: HashMap<String, Option<State>>,
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
                Err(_) => tokio::time::sleep(self.session.config.poll_interval.1).await,
            }
        }
    }

    async fn open(&mut self, resume: Option<ResumeAt>) -> Option<Stream<NamedSighting>> {
        if !self.session.config.wake_source.may_stream() {
            return None;
        }
        let (session, scope) = (self.session.clone(), self.scope.clone());
        let attempt = async move {
            match session.store.follow(scope.name(), resume.as_ref()).await {
                // Its history is lost: from now on, then.
                Err(error) if error.is_final() && resume.is_some() => session.store.follow(scope.name(), None).await,
                opened => opened,
            }
        };
        let opened = self.opening.attempt(attempt).await?.ok()?;
        self.opening = Opening::new();
        Some(opened)
    }

    /// Tells what the stream tells; returns where to take it up when it ends.
    async fn pump(&mut self, mut stream: Stream<NamedSighting>) -> Result<Option<ResumeAt>, StoreError> {
        // Read after the stream was opened, so that nothing falls between.
        self.look().await?;
        loop {
            let expiry = self.expiry();
            let batch = tokio::select! {
                batch = tokio::time::timeout(SILENT, stream.next()) => batch,
                () = until(expiry) => {
                    self.look_at(self.due()).await?;
                    continue;
                }
            };
            match batch {
                Ok(Ok(sightings)) => {
                    for (name, sighting) in sightings {
                        self.sighted(name, sighting).await?;
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

    async fn sighted(&mut self, name: Option<String>, sighting: Sighting) -> Result<(), StoreError> {
        match (name, sighting) {
            (Some(name), Sighting::State(state)) => self.tell(name, Some(*state)).await,
            (Some(name), Sighting::Gone) => self.tell(name, None).await,
            (Some(name), Sighting::Unclear) => self.look_at(vec![name]).await?,
            (None, _) => self.look().await?,
        }
        Ok(())
    }

    /// Reads all that is followed.
    async fn look(&mut self) -> Result<(), StoreError> {
        if let Scope::One(name) = &self.scope {
            return self.look_at(vec![name.clone()]).await;
        }
        let session = self.session.clone();
        let sent = Instant::now();
        let listing = tokio::spawn(async move { session.store.list(&Selection::default()).await });
        let (listed, now) = listing
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)))?;
        let received = Instant::now();
        self.session.table().clock.note(&Exchange { sent, received, now });
        let listed: HashMap<String, State> = listed.into_iter().collect();
        let gone = self.last.keys().filter(|name| !listed.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.tell(name, None).await;
        }
        for (name, state) in listed {
            self.tell(name, Some(state)).await;
        }
        Ok(())
    }

    async fn look_at(&mut self, names: Vec<String>) -> Result<(), StoreError> {
        let (session, read) = (self.session.clone(), names.clone());
        let reading = tokio::spawn(async move { session.store.read(&read).await });
        let (mut documents, exchange) = reading
            .await
            .unwrap_or_else(|stopped| Err(StoreError::stopped(stopped)))?;
        self.session.table().clock.note(&exchange);
        for name in names {
            // What stands there and is no lock holds nothing.
            let state = documents.remove(&name).and_then(Result::ok);
            self.tell(name, state).await;
        }
        Ok(())
    }

    /// Tells a state, unless it is older than what was told last, or the same for an observer.
    async fn tell(&mut self, name: String, state: Option<State>) {
        let state = state.map(|state| self.without_expired(state));
        let last = self.last.get(&name);
        if let (Some(Some(last)), Some(state)) = (last, &state)
            && state.is_before(last)
        {
            return;
        }
        if last == Some(&state) {
            return;
        }
        let sight = (name.clone(), state.clone());
        if state.is_none() && matches!(self.scope, Scope::All) {
            self.last.remove(&name);
        } else {
            self.last.insert(name, state);
        }
        // The follower ends with its receiver.
        let _ = self.to.send(Ok(sight)).await;
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
        let states = self.last.values().flatten();
        let until = states
            .flat_map(|state| &state.holders)
            .map(|holder| holder.until)
            .min()?;
        self.session.table().clock.after(until)
    }

    /// The names of which the lease of a holder is over.
    fn due(&self) -> Vec<String> {
        let now = Instant::now();
        let table = self.session.table();
        let over = |until| table.clock.after(until).is_some_and(|over| over <= now);
        let states = self.last.iter().filter(|(_, state)| {
            let mut holders = state.iter().flat_map(|state| &state.holders);
            holders.any(|holder| over(holder.until))
        });
        states.map(|(name, _)| name.clone()).collect()
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
