//! The full-screen view of `watchlock watch`.
//!
//! Events of the change stream have the locks listed again, at most so often; so does a slow tick, as those who get in
//! line make no event. Events and keys that are there are taken in before anything is drawn, and only the rows that are
//! seen are made: ten thousand locks cost as much to draw as those that fit.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Modifier, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState},
};
use rustix::process::Signal;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use watchlock::{LockClient, LockInfo, OperateError};

use crate::{
    clock::Offset,
    connection::Place,
    exit::{Failure, Outcome},
    list::{left, short, who, why},
    signals::{self, Received, Signals},
    text::{plain, span},
    watch::{Events, line},
};

/// How often the ages are brought up to date.
const TICK: Duration = Duration::from_secs(1);

/// The shortest time between two listings, however many events there are.
const PAUSE: Duration = Duration::from_millis(200);

/// The shortest time between two drawings for what happens; a key is answered at once.
const FRAME: Duration = Duration::from_millis(50);

/// A listing that took long is not repeated before so many times as long, so that it does not take all of a core.
const REST: u32 = 4;

/// How many events are remembered.
const REMEMBERED: usize = 100;

/// How many lines the events get.
const EVENT_LINES: u16 = 8;

/// How often the thread that reads the keyboard looks whether it is still wanted.
const KEYBOARD: Duration = Duration::from_millis(100);

/// What is seen.
#[derive(Debug)]
struct View {
    title: String,
    mode: String,
    locks: Vec<LockInfo>,
    /// What there is to be shown of the locks, row for row.
    rows: Vec<(usize, Part)>,
    /// How many of the locks are held, and how many wait.
    held: usize,
    waiting: usize,
    offset: Offset,
    /// Free locks are shown as well.
    all: bool,
    /// The selected row.
    selected: Option<usize>,
    /// The first row that is seen.
    top: usize,
    events: VecDeque<String>,
    /// Why the locks could not be listed, if they could not.
    trouble: Option<String>,
}

/// What a row shows of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Free,
    Holder(usize),
    Waiter(usize),
}

/// What is asked for at the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Suspend,
    Redraw,
    ToggleFree,
    Move(i16),
    First,
    Last,
}

pub(crate) async fn show(place: &Place, locks: &LockClient, name: Option<String>, events: Events) -> Outcome {
    let offset = Offset::measure(place).await?;
    // Those that end a program would leave the terminal as it is; ^C comes as a key.
    let signals = Signals::listen(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::TSTP])?;
    let mut view = View {
        title: match &name {
            None => format!("{}.{}", place.database.name(), place.collection),
            Some(name) => format!("{}.{}: {}", place.database.name(), place.collection, plain(name)),
        },
        mode: locks.wake_mode().to_string(),
        locks: Vec::new(),
        rows: Vec::new(),
        held: 0,
        waiting: 0,
        offset,
        all: name.is_some(),
        selected: None,
        top: 0,
        events: VecDeque::new(),
        trouble: None,
    };
    // It has a panic restore the terminal, too.
    let mut terminal = ratatui::try_init()?;
    let shown = live(&mut terminal, &mut view, locks, name, events, signals).await;
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

async fn live(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    locks: &LockClient,
    name: Option<String>,
    mut events: Events,
    mut signals: Signals,
) -> Result<(), Failure> {
    let mut keyboard = keyboard()?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (found, mut listings) = mpsc::channel(1);
    // One listing at a time; `next` is when the one after it may begin.
    let (mut listing, mut due, mut next) = (false, true, Instant::now());
    let mut began = Instant::now();
    // Whether there is something to be drawn, and from when on that may be done.
    let (mut changed, mut frame) = (true, Instant::now());
    loop {
        if due && !listing && Instant::now() >= next {
            began = Instant::now();
            (listing, due, next) = (true, false, began + PAUSE);
            let (found, looking) = (found.clone(), look(locks.clone(), name.clone()));
            tokio::spawn(async move {
                // Nobody waits for it any more when the view is left.
                let _ = found.send(looking.await).await;
            });
        }
        if changed && Instant::now() >= frame {
            terminal.draw(|frame| view.draw(frame, SystemTime::now()))?;
            (changed, frame) = (false, Instant::now() + FRAME);
        }
        tokio::select! {
            event = events.next() => match event {
                Some(Ok((name, event))) => {
                    view.remember(line(SystemTime::now(), &name, &event));
                    (due, changed) = (true, true);
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            Some(listed) = listings.recv() => {
                (listing, changed) = (false, true);
                next = next.max(Instant::now() + began.elapsed() * REST);
                view.mode = locks.wake_mode().to_string();
                view.listed(listed);
            }
            wish = keyboard.recv() => match wish {
                Some(Wish::Quit) | None => return Ok(()),
                Some(wish) => {
                    if wish == Wish::Suspend {
                        suspend(terminal)?;
                    }
                    view.obey(wish);
                    (changed, frame) = (true, Instant::now());
                }
            },
            received = signals.next() => match received {
                Received::Signal(_) => return Ok(()),
                Received::Stop => {
                    suspend(terminal)?;
                    (changed, frame) = (true, Instant::now());
                }
                Received::Child | Received::Continue => {}
            },
            _ = tick.tick() => (due, changed) = (true, true),
            () = sleep_until(frame), if changed => {}
            () = sleep_until(next), if due && !listing => {}
        }
    }
}

/// Gives the terminal back while this program is stopped.
fn suspend(terminal: &mut DefaultTerminal) -> io::Result<()> {
    ratatui::restore();
    signals::stop();
    // A new one knows of nothing on the screen, which is empty when it is entered, and so draws it all.
    *terminal = ratatui::try_init()?;
    Ok(())
}

async fn look(locks: LockClient, name: Option<String>) -> Result<Vec<LockInfo>, OperateError> {
    match name {
        Some(name) => Ok(locks.inspect(&name).await?.into_iter().collect()),
        None => locks.list().await,
    }
}

/// Reads the keyboard in a thread of its own, as it can't be waited for otherwise. The thread ends with the receiver.
fn keyboard() -> io::Result<mpsc::UnboundedReceiver<Wish>> {
    let (wishes, receiver) = mpsc::unbounded_channel();
    thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
        while !wishes.is_closed() {
            let wish = match event::poll(KEYBOARD) {
                Ok(false) => continue,
                Ok(true) => event::read().map(|event| wish(&event)),
                Err(error) => Err(error),
            };
            // A keyboard that can't be read is gone, and the view with it.
            let Ok(wish) = wish else { return };
            if let Some(wish) = wish
                && wishes.send(wish).is_err()
            {
                return;
            }
        }
    })?;
    Ok(receiver)
}

fn wish(event: &Event) -> Option<Wish> {
    match event {
        Event::Resize(..) => Some(Wish::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => wish_by_key(*key),
        _ => None,
    }
}

fn wish_by_key(key: KeyEvent) -> Option<Wish> {
    Some(match key.code {
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('z') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Suspend,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Char('f') => Wish::ToggleFree,
        KeyCode::Up | KeyCode::Char('k') => Wish::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Wish::Move(1),
        KeyCode::PageUp => Wish::Move(-10),
        KeyCode::PageDown => Wish::Move(10),
        KeyCode::Home => Wish::First,
        KeyCode::End => Wish::Last,
        _ => return None,
    })
}

impl View {
    fn remember(&mut self, event: String) {
        self.events.truncate(REMEMBERED - 1);
        self.events.push_front(event);
    }

    fn listed(&mut self, listed: Result<Vec<LockInfo>, OperateError>) {
        match listed {
            Ok(locks) => {
                self.held = locks.iter().filter(|lock| !lock.holders.is_empty()).count();
                self.waiting = locks.iter().map(|lock| lock.waiters.len()).sum();
                self.locks = locks;
                self.trouble = None;
                self.arrange();
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn obey(&mut self, wish: Wish) {
        match wish {
            Wish::Quit | Wish::Suspend | Wish::Redraw => {}
            Wish::ToggleFree => {
                self.all = !self.all;
                self.arrange();
            }
            Wish::Move(by) => {
                let by_rows = usize::from(by.unsigned_abs());
                self.selected = Some(match self.selected {
                    None => 0,
                    Some(row) if by < 0 => row.saturating_sub(by_rows),
                    Some(row) => row.saturating_add(by_rows),
                });
            }
            Wish::First => self.selected = Some(0),
            Wish::Last => self.selected = Some(usize::MAX),
        }
        self.keep_in_bounds();
    }

    /// A row for each holder, and one for each waiter below them.
    fn arrange(&mut self) {
        self.rows.clear();
        for (at, lock) in self.locks.iter().enumerate() {
            if lock.holders.is_empty() && (self.all || !lock.waiters.is_empty()) {
                self.rows.push((at, Part::Free));
            }
            self.rows
                .extend((0..lock.holders.len()).map(|holder| (at, Part::Holder(holder))));
            self.rows
                .extend((0..lock.waiters.len()).map(|waiter| (at, Part::Waiter(waiter))));
        }
        self.keep_in_bounds();
    }

    fn keep_in_bounds(&mut self) {
        let last = self.rows.len().checked_sub(1);
        self.selected = self.selected.and_then(|row| Some(row.min(last?)));
    }

    /// The rows that are seen, when so many fit; brings the selected one among them.
    fn seen(&mut self, fit: usize) -> Range<usize> {
        let last_top = self.rows.len().saturating_sub(fit);
        self.top = self.top.min(last_top);
        if let Some(row) = self.selected {
            self.top = self.top.min(row).max((row + 1).saturating_sub(fit));
        }
        self.top..(self.top + fit).min(self.rows.len())
    }

    fn draw(&mut self, frame: &mut Frame<'_>, here: SystemTime) {
        let [head, body, log, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(EVENT_LINES),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        let now = self.offset.at(here);
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(9),
            Constraint::Fill(3),
            Constraint::Length(9),
            Constraint::Length(9),
            Constraint::Length(16),
            Constraint::Fill(3),
        ];
        let headings = Row::new(["NAME", "KIND", "HELD BY / WAITING", "FOR", "LEFT", "TOKEN", "WHY"]);
        // But for the headings.
        let seen = self.seen(usize::from(body.height.saturating_sub(1)));
        let selected = self.selected.map(|row| row.saturating_sub(seen.start));
        let rows: Vec<_> = self.rows[seen]
            .iter()
            .map(|(at, part)| self.row(*at, *part, now))
            .collect();
        let table = Table::new(rows, widths)
            .header(headings.style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, body, &mut TableState::new().with_selected(selected));
        let events = self.events.iter().map(|event| Line::raw(&event[..]));
        let block = Block::new().borders(Borders::TOP).title("What happens");
        frame.render_widget(Paragraph::new(events.collect::<Vec<_>>()).block(block), log);
        let keys = if self.all {
            "f only held and awaited"
        } else {
            "f free ones too"
        };
        frame.render_widget(Line::raw(format!("q quit   {keys}   up/down scroll")).dim(), foot);
    }

    fn head(&self) -> Line<'_> {
        let (held, waiting) = (self.held, self.waiting);
        let mut spans = vec![
            Span::styled("watchlock ", Modifier::BOLD),
            Span::raw(&self.title[..]),
            Span::raw(format!("   {} locks, {held} held, {waiting} waiting", self.locks.len())),
        ];
        spans.push(match &self.trouble {
            Some(trouble) => Span::styled(format!("   {trouble}"), Style::new().red().bold()),
            None => Span::raw(format!("   {}", self.mode)).dim(),
        });
        Line::from(spans)
    }

    fn row(&self, at: usize, part: Part, now: SystemTime) -> Row<'static> {
        let lock = &self.locks[at];
        let (name, kind) = (plain(&lock.name), lock.kind.to_string());
        match part {
            Part::Free => row([name, kind], ["-"; 5].map(str::to_owned)),
            Part::Holder(holder) => {
                let holder = &lock.holders[holder];
                let cells = [
                    who(holder),
                    span(holder.since, now),
                    left(holder, now),
                    holder.token.to_string(),
                    why(holder),
                ];
                let row = row([name, kind], cells);
                if holder.until <= now { row.red() } else { row }
            }
            Part::Waiter(waiter) => {
                let (position, waiter) = (waiter + 1, &lock.waiters[waiter]);
                let access = waiter.access.map(|access| format!(" ({access})")).unwrap_or_default();
                let by = short(waiter.label.as_deref(), &waiter.host, waiter.pid);
                let dead = waiter.until <= now;
                let cells = [
                    format!("  {position}. {by}{access}"),
                    span(waiter.since, now),
                    if dead { "over".to_owned() } else { String::new() },
                    String::new(),
                    waiter.reason.as_deref().map(plain).unwrap_or_default(),
                ];
                let row = row([name, "  waits".to_owned()], cells);
                if dead { row.red() } else { row.dim() }
            }
        }
    }
}

fn row(lock: [String; 2], rest: [String; 5]) -> Row<'static> {
    Row::new(lock.into_iter().chain(rest).map(Cell::from).collect::<Vec<_>>())
}
