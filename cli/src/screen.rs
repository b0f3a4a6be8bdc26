//! The full-screen view of `watchlock watch`.
//!
//! Events of the change stream trigger a new list of the locks, at a limited rate; so does a slow tick, as waiters that
//! join a queue cause no event. Pending events and keys are processed before anything is drawn.

mod drawing;
mod pace;
mod view;

use std::{
    io,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use ratatui::DefaultTerminal;
use rustix::process::Signal;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use watchlock::{errors::OperateError, operate::LockInfo};

use self::{
    pace::Pace,
    view::{Asked, Deed, View},
};
use crate::{
    clock::Offset,
    connection::Place,
    events::{Events, Seen},
    exit::{Failure, Outcome},
    keyboard::{Key, Keyboard},
    locks::Locks,
    signals::{self, Received, Signals},
    text::plain,
};

/// Interval at which the ages are updated.
const TICK: Duration = Duration::from_secs(1);

/// Whether the view stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Stay,
    Leave,
}

/// The view on a terminal, and the locks that it shows.
struct Screen<'a> {
    terminal: DefaultTerminal,
    view: View,
    locks: &'a Locks,
    /// The one lock that it shows, if it does not show all.
    name: Option<String>,
    pace: Pace,
    listings: mpsc::Sender<Result<Vec<LockInfo>, OperateError>>,
    answers: mpsc::Sender<String>,
}

pub(crate) async fn show(
    place: &Place,
    title: String,
    locks: &Locks,
    name: Option<String>,
    events: Events,
    ending: Option<AbortHandle>,
) -> Outcome {
    let offset = Offset::measure(place).await?;
    // Signals that end a program would leave the terminal as it is; ^C comes as a key.
    let signals = Signals::listen(&[
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::TSTP,
        Signal::WINCH,
    ])?;
    if let Some(ending) = ending {
        ending.abort();
    }
    let title = match &name {
        None => title,
        Some(name) => format!("{title}: {}", plain(name)),
    };
    let (listings, listed) = mpsc::channel(1);
    let (answers, answered) = mpsc::channel(1);
    let mut screen = Screen {
        // It also restores the terminal on a panic.
        terminal: ratatui::try_init()?,
        view: View::new(title, locks, name.is_some(), offset),
        locks,
        name,
        pace: Pace::new(Instant::now()),
        listings,
        answers,
    };
    let shown = screen.live(events, signals, listed, answered).await;
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

impl Screen<'_> {
    async fn live(
        &mut self,
        mut events: Events,
        mut signals: Signals,
        mut listed: mpsc::Receiver<Result<Vec<LockInfo>, OperateError>>,
        mut answered: mpsc::Receiver<String>,
    ) -> Result<(), Failure> {
        let mut keyboard = Keyboard::new(io::stdin())?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.pace.is_listing_due(Instant::now()) {
                self.pace.listing(Instant::now());
                self.list();
            }
            if self.pace.is_drawing_due(Instant::now()) {
                let view = &mut self.view;
                self.terminal.draw(|frame| view.draw(frame, SystemTime::now()))?;
                self.pace.drawn(Instant::now());
            }
            let next = tokio::select! {
                event = events.next() => match event {
                    Some(Ok((name, event))) => {
                        self.view.remember(Seen::new(self.view.offset.now(), name, event));
                        self.pace.note_news();
                        Next::Stay
                    }
                    Some(Err(error)) => return Err(error.into()),
                    None => Next::Leave,
                },
                Some(listed) = listed.recv() => {
                    let took = self.pace.listed(Instant::now());
                    self.view.mode = self.locks.wake_mode().to_string();
                    self.view.listed(listed, took);
                    Next::Stay
                }
                Some(answer) = answered.recv() => {
                    self.view.answer = Some(answer);
                    self.pace.note_news();
                    Next::Stay
                }
                key = keyboard.next() => match key {
                    Ok(key) => self.obey(key)?,
                    // If the keyboard can't be read, it is gone, and the view with it.
                    Err(_) => Next::Leave,
                },
                received = signals.next() => self.heed(received)?,
                _ = tick.tick() => {
                    self.pace.note_news();
                    Next::Stay
                }
                () = self.pace.rest() => Next::Stay,
            };
            if next == Next::Leave {
                return Ok(());
            }
        }
    }

    /// Begins to list the locks.
    fn list(&self) {
        let (listings, looking) = (self.listings.clone(), look(self.locks.clone(), self.name.clone()));
        tokio::spawn(async move {
            // Nobody waits for it after the view is left.
            let _ = listings.send(looking.await).await;
        });
    }

    fn obey(&mut self, key: Key) -> io::Result<Next> {
        match self.view.obey(key) {
            Some(Deed::Quit) => return Ok(Next::Leave),
            Some(Deed::Suspend) => self.suspend()?,
            Some(Deed::Evict(asked)) => {
                let (answers, locks) = (self.answers.clone(), self.locks.clone());
                tokio::spawn(async move {
                    // Nobody waits for it after the view is left.
                    let _ = answers.send(evict(&locks, &asked).await).await;
                });
            }
            None => {}
        }
        self.pace.note_answer(Instant::now());
        Ok(Next::Stay)
    }

    fn heed(&mut self, received: Received) -> io::Result<Next> {
        match received {
            Received::Signal(Signal::WINCH) => self.pace.note_answer(Instant::now()),
            Received::Signal(_) => return Ok(Next::Leave),
            Received::Stop => {
                self.suspend()?;
                self.pace.note_answer(Instant::now());
            }
            Received::Child | Received::Continue => {}
        }
        Ok(Next::Stay)
    }

    /// Gives the terminal back while this program is stopped.
    fn suspend(&mut self) -> io::Result<()> {
        ratatui::restore();
        // The terminal does so by itself only when it is dropped.
        self.terminal.show_cursor()?;
        signals::stop();
        // A new terminal knows nothing about the screen, which is empty when it is entered, and so draws everything.
        self.terminal = ratatui::try_init()?;
        Ok(())
    }
}

/// Evicts by token, so that a new holder of the lock is not evicted.
async fn evict(locks: &Locks, asked: &Asked) -> String {
    let name = plain(&asked.name);
    match locks.break_holder(&asked.name, asked.token).await {
        Ok(Some(_)) => format!("`{name}` is broken, token {}", asked.token),
        Ok(None) => format!("`{name}` is not held under this token any more; nothing was broken"),
        Err(error) => Failure::from(error).message().to_owned(),
    }
}

async fn look(locks: Locks, name: Option<String>) -> Result<Vec<LockInfo>, OperateError> {
    match (name, &locks) {
        (Some(name), _) => Ok(locks.inspect(&name).await?.into_iter().collect()),
        (None, Locks::Named(_)) => locks.list().await,
        // A free lock stays in its document, so there are as many as there are documents.
        (None, Locks::Documents(_) | Locks::Elements(..)) => locks.list().held(true).await,
    }
}

/// Draws the locks on terminals of all sizes, without and with a selection.
#[cfg(test)]
pub(crate) fn try_to_draw(found: Vec<LockInfo>, now: SystemTime) {
    use ratatui::{Terminal, backend::TestBackend};
    let offset = Offset {
        millis: 0,
        within: Duration::ZERO,
    };
    let locks = Locks::Named(watchlock::LockClient::in_memory());
    let mut view = View::new("app.locks".to_owned(), &locks, true, offset);
    view.listed(Ok(found), Duration::ZERO);
    for (columns, lines) in [(1, 1), (30, 10), (80, 24), (500, 100)] {
        for key in [Key::Down, Key::Char('b'), Key::Escape] {
            let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, lines));
            let Ok(_) = terminal.draw(|frame| view.draw(frame, now));
            view.obey(key);
        }
    }
}
