//! The full-screen view of `watchlock watch`.
//!
//! Events of the change stream trigger a new list of the locks, at a limited rate; so does a slow tick, as waiters that
//! join a queue cause no event.

mod drawing;
mod view;

use std::{
    io,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use rustix::process::Signal;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{MissedTickBehavior, interval},
};
use watchlock::{errors::OperateError, operate::LockInfo};

use self::view::{Asked, Deed, View};
use crate::{
    clock::Offset,
    connection::Place,
    events::{Events, Seen},
    exit::{Failure, Outcome},
    locks::Locks,
    signals::{self, ENDING, Signals},
    text::plain,
};

/// Interval at which the view is drawn, however many events there are; a key is answered at once.
const FRAME: Duration = Duration::from_millis(200);

/// Interval at which the locks are listed without an event.
const LISTED: Duration = Duration::from_secs(1);

/// Multiple of a listing's duration to wait before the next one, so that slow listings do not take a whole core.
const REST: u32 = 4;

/// The view on a terminal, and the locks that it shows.
struct Screen<'a> {
    terminal: DefaultTerminal,
    view: View,
    locks: &'a Locks,
    /// The one lock that it shows, if it does not show all.
    name: Option<String>,
    told: mpsc::Sender<Told>,
    /// Whether something has happened since the last listing began, and whether one is under way.
    is_new: bool,
    is_listing: bool,
}

/// The result of a task.
enum Told {
    Listed(Result<Vec<LockInfo>, OperateError>, Duration),
    Broken(String),
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
    let signals = Signals::listen(ENDING.iter().chain(&[Signal::TSTP]))?;
    if let Some(ending) = ending {
        ending.abort();
    }
    let title = match &name {
        None => title,
        Some(name) => format!("{title}: {}", plain(name)),
    };
    // In the background it stops at the first change of the terminal, which others have.
    signals::unblock_all();
    let (told, tasks) = mpsc::channel(1);
    let mut screen = Screen {
        // It also restores the terminal on a panic.
        terminal: ratatui::try_init()?,
        view: View::new(title, locks, name.is_some(), offset),
        locks,
        name,
        told,
        is_new: true,
        is_listing: false,
    };
    let shown = screen.live(events, signals, tasks).await;
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the terminal in a thread of its own, as that can't be awaited.
fn input() -> io::Result<mpsc::Receiver<Event>> {
    let (to, input) = mpsc::channel(1);
    let read = move || {
        while let Ok(event) = event::read() {
            if to.blocking_send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("terminal".to_owned()).spawn(read)?;
    Ok(input)
}

impl Screen<'_> {
    async fn live(
        &mut self,
        mut events: Events,
        mut signals: Signals,
        mut tasks: mpsc::Receiver<Told>,
    ) -> Result<(), Failure> {
        let mut input = input()?;
        let mut tick = interval(FRAME);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => {
                        let (name, event) = event?;
                        self.view.remember(Seen::new(self.view.offset.now(), name, event));
                        self.is_new = true;
                        continue;
                    }
                    None => return Ok(()),
                },
                Some(told) = tasks.recv() => self.note(told),
                event = input.recv() => match event {
                    Some(Event::Key(key)) => match self.view.obey(key) {
                        Some(Deed::Quit) => return Ok(()),
                        Some(Deed::Suspend) => self.suspend()?,
                        Some(Deed::Evict(asked)) => self.evict(asked),
                        None => {}
                    },
                    Some(_) => {}
                    // If the keyboard can't be read, it is gone, and the view with it.
                    None => return Ok(()),
                },
                signal = signals.next() => match signal {
                    Signal::TSTP => self.suspend()?,
                    _ => return Ok(()),
                },
                _ = tick.tick() => self.list(),
            }
            let view = &mut self.view;
            self.terminal.draw(|frame| view.draw(frame, SystemTime::now()))?;
        }
    }

    fn note(&mut self, told: Told) {
        match told {
            Told::Listed(listed, took) => {
                self.is_listing = false;
                self.view.mode = self.locks.wake_mode().to_string();
                self.view.listed(listed, took);
            }
            Told::Broken(answer) => {
                self.view.answer = Some(answer);
                self.is_new = true;
            }
        }
    }

    /// Begins to list the locks, if it is time to.
    fn list(&mut self) {
        let age = self.view.listed_at.elapsed();
        if self.is_listing || !(self.is_new || age >= LISTED) || age < self.view.took * REST {
            return;
        }
        (self.is_listing, self.is_new) = (true, false);
        let (told, locks, name) = (self.told.clone(), self.locks.clone(), self.name.clone());
        tokio::spawn(async move {
            let begun = std::time::Instant::now();
            let listed = look(locks, name).await;
            // Nobody waits for it after the view is left.
            let _ = told.send(Told::Listed(listed, begun.elapsed())).await;
        });
    }

    /// Begins to evict by token, so that a new holder of the lock is not evicted.
    fn evict(&self, Asked { name, token, .. }: Asked) {
        let (told, locks) = (self.told.clone(), self.locks.clone());
        tokio::spawn(async move {
            let shown = plain(&name);
            let answer = match locks.break_holder(&name, token).await {
                Ok(Some(_)) => format!("`{shown}` is broken, token {token}"),
                Ok(None) => format!("`{shown}` is not held under this token any more; nothing was broken"),
                Err(error) => Failure::from(error).message().to_owned(),
            };
            // Nobody waits for it after the view is left.
            let _ = told.send(Told::Broken(answer)).await;
        });
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
    use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyCode};
    let offset = Offset {
        millis: 0,
        within: Duration::ZERO,
    };
    let locks = Locks::Named(watchlock::LockClient::in_memory());
    let mut view = View::new("app.locks".to_owned(), &locks, true, offset);
    view.listed(Ok(found), Duration::ZERO);
    for (columns, lines) in [(1, 1), (30, 10), (80, 24), (500, 100)] {
        for key in [KeyCode::Down, KeyCode::Char('b'), KeyCode::Esc] {
            let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, lines));
            let Ok(_) = terminal.draw(|frame| view.draw(frame, now));
            view.obey(key.into());
        }
    }
}
