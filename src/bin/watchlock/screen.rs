//! The full-screen view of `watchlock watch`.
//!
//! Events of the change stream have the locks listed again, at most so often; so does a slow tick, as those who get in
//! line make no event.

use std::{collections::VecDeque, io, process::ExitCode, thread, time::Duration, time::SystemTime};

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
    list::{short, who, why},
    signals::{Received, Signals},
    text::{plain, span},
    watch::{Events, line},
};

/// How often the ages are brought up to date.
const TICK: Duration = Duration::from_secs(1);

/// The shortest time between two listings, however many events there are.
const PAUSE: Duration = Duration::from_millis(200);

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
    offset: Offset,
    /// Free locks are shown as well.
    all: bool,
    selected: TableState,
    events: VecDeque<String>,
    /// Why the locks could not be listed, if they could not.
    trouble: Option<String>,
}

/// What is asked for at the keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Redraw,
    ToggleFree,
    Move(i16),
    First,
    Last,
}

pub(crate) async fn show(place: &Place, locks: &LockClient, name: Option<String>, events: Events) -> Outcome {
    let offset = Offset::measure(place).await?;
    // Those that end a program would leave the terminal as it is; ^C comes as a key.
    let signals = Signals::listen(&[Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT])?;
    let mut view = View {
        title: match &name {
            None => format!("{}.{}", place.database.name(), place.collection),
            Some(name) => format!("{}.{}: {}", place.database.name(), place.collection, plain(name)),
        },
        mode: locks.wake_mode().to_string(),
        locks: Vec::new(),
        offset,
        all: name.is_some(),
        selected: TableState::new(),
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
    loop {
        if due && !listing && Instant::now() >= next {
            (listing, due, next) = (true, false, Instant::now() + PAUSE);
            let (found, looking) = (found.clone(), look(locks.clone(), name.clone()));
            tokio::spawn(async move {
                // Nobody waits for it any more when the view is left.
                let _ = found.send(looking.await).await;
            });
        }
        terminal.draw(|frame| view.draw(frame, SystemTime::now()))?;
        tokio::select! {
            event = events.next() => match event {
                Some(Ok((name, event))) => {
                    view.remember(line(SystemTime::now(), &name, &event));
                    due = true;
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            Some(listed) = listings.recv() => {
                listing = false;
                view.mode = locks.wake_mode().to_string();
                view.listed(listed);
            }
            wish = keyboard.recv() => match wish {
                Some(Wish::Quit) | None => return Ok(()),
                Some(wish) => view.obey(wish),
            },
            received = signals.next() => if let Received::Signal { .. } = received {
                return Ok(());
            },
            _ = tick.tick() => due = true,
            () = sleep_until(next), if due && !listing => {}
        }
    }
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
                self.locks = locks;
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn obey(&mut self, wish: Wish) {
        match wish {
            Wish::Quit | Wish::Redraw => {}
            Wish::ToggleFree => self.all = !self.all,
            Wish::Move(by) if by < 0 => self.selected.scroll_up_by(by.unsigned_abs()),
            Wish::Move(by) => self.selected.scroll_down_by(by.unsigned_abs()),
            Wish::First => self.selected.select_first(),
            Wish::Last => self.selected.select_last(),
        }
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
        let table = Table::new(self.rows(now), widths)
            .header(headings.style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, body, &mut self.selected);
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
        let held = self.locks.iter().filter(|lock| !lock.holders.is_empty()).count();
        let waiting: usize = self.locks.iter().map(|lock| lock.waiters.len()).sum();
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

    /// A row for each holder, and one for each waiter below them.
    fn rows(&self, now: SystemTime) -> Vec<Row<'static>> {
        let mut rows = Vec::new();
        for lock in &self.locks {
            let (name, kind) = (plain(&lock.name), lock.kind.to_string());
            if lock.holders.is_empty() && (self.all || !lock.waiters.is_empty()) {
                let free = ["-"; 5].map(str::to_owned);
                rows.push(row([name.clone(), kind.clone()], free));
            }
            for holder in &lock.holders {
                let cells = [
                    who(holder),
                    span(holder.since, now),
                    span(now, holder.until),
                    holder.token.to_string(),
                    why(holder),
                ];
                let over = holder.until <= now;
                let row = row([name.clone(), kind.clone()], cells);
                rows.push(if over { row.red() } else { row });
            }
            for (position, waiter) in lock.waiters.iter().enumerate() {
                let access = waiter.access.map(|access| format!(" ({access})")).unwrap_or_default();
                let by = short(waiter.label.as_deref(), &waiter.host, waiter.pid);
                let cells = [
                    format!("  {}. {by}{access}", position + 1),
                    span(waiter.since, now),
                    String::new(),
                    String::new(),
                    waiter.reason.as_deref().map(plain).unwrap_or_default(),
                ];
                rows.push(row([name.clone(), "  waits".to_owned()], cells).dim());
            }
        }
        rows
    }
}

fn row(lock: [String; 2], rest: [String; 5]) -> Row<'static> {
    Row::new(lock.into_iter().chain(rest).map(Cell::from).collect::<Vec<_>>())
}
