//! The full-screen view of `watchlock watch`.
//!
//! Events of the change stream trigger a new list of the locks, at a limited rate; so does a slow tick, as waiters that
//! join a queue cause no event. Pending events and keys are processed before anything is drawn, and only the visible
//! rows are made: drawing ten thousand locks costs as much as drawing those that fit.
//!
//! Users look for the name of a lock, so on a narrow terminal everything else gives way first.

use std::{
    collections::{HashMap, VecDeque},
    io,
    ops::Range,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use ratatui::{
    DefaultTerminal, Frame,
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
use watchlock::{FencingToken, HolderInfo, LockInfo, OperateError};

use crate::{
    break_lock::question,
    clock::Offset,
    connection::Place,
    events::{Events, line},
    exit::{Failure, Outcome},
    keyboard::{Key, Keyboard},
    list::{left, short, who, why},
    locks::Locks,
    show::in_full,
    signals::{self, Received, Signals},
    text::{cut, fit, natural, plain, span, span_of},
};

/// Interval at which the ages are updated.
const TICK: Duration = Duration::from_secs(1);

/// Shortest time between two listings, however many events there are.
const PAUSE: Duration = Duration::from_millis(200);

/// Shortest time between two drawings because of events; a key is answered at once.
const FRAME: Duration = Duration::from_millis(50);

/// Multiple of a listing's duration to wait before the next one, so that slow listings do not take a whole core.
const REST: u32 = 4;

/// Number of events that are remembered.
const REMEMBERED: usize = 100;

/// Number of lines for the events.
const EVENT_LINES: u16 = 8;

/// Age at which a listing is marked as stale, as one arrives about once a second.
const STALE: Duration = Duration::from_secs(4);

/// Priority of the columns if there is no room for all: name, holder, time left of the lease, held since, reason,
/// token, kind.
const ORDER: [usize; 7] = [0, 2, 4, 3, 6, 5, 1];

/// The state of the view.
#[derive(Debug)]
struct View {
    title: String,
    mode: String,
    locks: Vec<LockInfo>,
    /// The parts of the locks to show, row by row.
    rows: Vec<(usize, Part)>,
    /// Number of held locks, and of waiters.
    held: usize,
    waiting: usize,
    offset: Offset,
    /// Whether free locks are listed at all.
    lists_free: bool,
    /// Whether free locks are shown as well.
    all: bool,
    /// The selected row.
    selected: Option<usize>,
    /// The first visible row.
    top: usize,
    events: VecDeque<String>,
    /// The reason why the locks could not be listed, if they could not.
    trouble: Option<String>,
    /// Time of the last listing, and its duration.
    listed_at: Instant,
    took: Duration,
    /// The longest remaining lease seen for each grant: approximately the lease.
    leases: HashMap<FencingToken, Duration>,
    /// Only locks with this text in their name or holder are shown.
    filter: String,
    /// Whether the keyboard edits the filter.
    filtering: bool,
    sort: Sort,
    /// The question that waits for the keyboard.
    asked: Option<Asked>,
    /// The result of the last question.
    answer: Option<String>,
}

/// The holder to evict, if that is confirmed.
#[derive(Clone, Debug)]
struct Asked {
    name: String,
    token: FencingToken,
    question: String,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Name,
    /// By the longest hold.
    Oldest,
    /// By the most waiters.
    Awaited,
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Name => Self::Oldest,
            Self::Oldest => Self::Awaited,
            Self::Awaited => Self::Name,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Oldest => "oldest",
            Self::Awaited => "awaited",
        }
    }
}

/// The part of its lock that a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Free,
    Holder(usize),
    Waiter(usize),
}

/// A request of a key that the view can't fulfil by itself.
#[derive(Debug)]
enum Deed {
    Quit,
    Suspend,
    Evict(Asked),
}

pub(crate) async fn show(place: &Place, title: String, locks: &Locks, name: Option<String>, events: Events) -> Outcome {
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
    let mut view = View {
        title: match &name {
            None => title,
            Some(name) => format!("{title}: {}", plain(name)),
        },
        lists_free: matches!(locks, Locks::Named(_)),
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
        listed_at: Instant::now(),
        took: Duration::ZERO,
        leases: HashMap::new(),
        filter: String::new(),
        filtering: false,
        sort: Sort::Name,
        asked: None,
        answer: None,
    };
    // It also restores the terminal on a panic.
    let mut terminal = ratatui::try_init()?;
    let shown = live(&mut terminal, &mut view, locks, name, events, signals).await;
    ratatui::restore();
    shown?;
    Ok(ExitCode::SUCCESS)
}

async fn live(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    locks: &Locks,
    name: Option<String>,
    mut events: Events,
    mut signals: Signals,
) -> Result<(), Failure> {
    let mut keyboard = Keyboard::new(io::stdin())?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (found, mut listings) = mpsc::channel(1);
    let (broke, mut answers) = mpsc::channel(1);
    // One listing at a time; `next` is the earliest start of the next one.
    let (mut listing, mut due, mut next) = (false, true, Instant::now());
    let mut began = Instant::now();
    // Whether there is something to draw, and from when on that may happen.
    let (mut changed, mut frame) = (true, Instant::now());
    loop {
        if due && !listing && Instant::now() >= next {
            began = Instant::now();
            (listing, due, next) = (true, false, began + PAUSE);
            let (found, looking) = (found.clone(), look(locks.clone(), name.clone()));
            tokio::spawn(async move {
                // Nobody waits for it after the view is left.
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
                view.listed(listed, began.elapsed());
            }
            Some(answer) = answers.recv() => {
                view.answer = Some(answer);
                (due, changed) = (true, true);
            }
            key = keyboard.next() => {
                // If the keyboard can't be read, it is gone, and the view with it.
                let Ok(key) = key else { return Ok(()) };
                match view.obey(key) {
                    Some(Deed::Quit) => return Ok(()),
                    Some(Deed::Suspend) => suspend(terminal)?,
                    Some(Deed::Evict(asked)) => {
                        let (broke, locks) = (broke.clone(), locks.clone());
                        tokio::spawn(async move {
                            // Nobody waits for it after the view is left.
                            let _ = broke.send(evict(&locks, &asked).await).await;
                        });
                    }
                    None => {}
                }
                (changed, frame) = (true, Instant::now());
            },
            received = signals.next() => match received {
                Received::Signal(Signal::WINCH) => (changed, frame) = (true, Instant::now()),
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
    // The terminal does so by itself only when it is dropped.
    terminal.show_cursor()?;
    signals::stop();
    // A new terminal knows nothing about the screen, which is empty when it is entered, and so draws everything.
    *terminal = ratatui::try_init()?;
    Ok(())
}

/// Evicts by token, so that a new holder of the lock is not evicted.
async fn evict(locks: &Locks, asked: &Asked) -> String {
    let name = plain(&asked.name);
    match locks.break_holder(&asked.name, asked.token).await {
        Ok(Some(_)) => format!("`{name}` is broken, token {}", asked.token),
        Ok(None) => format!("`{name}` has changed hands in the meantime; nothing was broken"),
        Err(error) => Failure::from(error).message().to_owned(),
    }
}

async fn look(locks: Locks, name: Option<String>) -> Result<Vec<LockInfo>, OperateError> {
    match (name, &locks) {
        (Some(name), _) => Ok(locks.inspect(&name).await?.into_iter().collect()),
        (None, Locks::Named(_)) => locks.list().await,
        // A free lock stays in its document, so there are as many as there are documents.
        (None, Locks::Documents(_)) => locks.list().held(true).await,
    }
}

impl View {
    fn remember(&mut self, event: String) {
        self.events.truncate(REMEMBERED - 1);
        self.events.push_front(event);
    }

    fn listed(&mut self, listed: Result<Vec<LockInfo>, OperateError>, took: Duration) {
        match listed {
            Ok(locks) => {
                self.held = locks.iter().filter(|lock| !lock.holders.is_empty()).count();
                self.waiting = locks.iter().map(|lock| lock.waiters.len()).sum();
                self.locks = locks;
                self.trouble = None;
                (self.listed_at, self.took) = (Instant::now(), took);
                self.note_leases();
                self.arrange();
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    fn note_leases(&mut self) {
        let now = self.offset.now();
        let mut leases = HashMap::new();
        for holder in self.locks.iter().flat_map(|lock| &lock.holders) {
            let left = holder.until.duration_since(now).unwrap_or_default();
            let known = self.leases.get(&holder.token).copied().unwrap_or_default();
            leases.insert(holder.token, left.max(known));
        }
        self.leases = leases;
    }

    /// Returns whether renewals seem to fail: they normally come with four fifths of the lease left.
    fn is_at_risk(&self, holder: &HolderInfo, now: SystemTime) -> bool {
        let left = holder.until.duration_since(now).unwrap_or_default();
        // Nobody renews a lock that is kept taken.
        let held = holder.released.is_none();
        held && self.leases.get(&holder.token).is_some_and(|lease| left < *lease / 2)
    }

    fn obey(&mut self, key: Key) -> Option<Deed> {
        match key {
            Key::Control('c' | 'd') => return Some(Deed::Quit),
            Key::Control('z') => return Some(Deed::Suspend),
            _ => self.answer = None,
        }
        if let Some(asked) = self.asked.take() {
            if matches!(key, Key::Char('y' | 'Y')) {
                return Some(Deed::Evict(asked));
            }
            self.answer = Some("nothing was broken".to_owned());
            return None;
        }
        if self.filtering {
            match key {
                Key::Char(character) => self.filter.push(character),
                Key::Backspace => drop(self.filter.pop()),
                Key::Escape => {
                    self.filter.clear();
                    self.filtering = false;
                }
                Key::Enter => self.filtering = false,
                _ => {}
            }
            self.arrange();
            return None;
        }
        match key {
            Key::Char('q') => return Some(Deed::Quit),
            Key::Escape if self.selected.is_none() => return Some(Deed::Quit),
            Key::Escape => self.selected = None,
            Key::Char('f') if self.lists_free => {
                self.all = !self.all;
                self.arrange();
            }
            Key::Char('/') => self.filtering = true,
            Key::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            Key::Char('b') => self.ask(),
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::PageUp => self.step(-10),
            Key::PageDown => self.step(10),
            Key::Home => self.selected = Some(0),
            Key::End => self.selected = Some(usize::MAX),
            _ => {}
        }
        self.keep_in_bounds();
        None
    }

    fn step(&mut self, by: isize) {
        self.selected = Some(match self.selected {
            None => 0,
            Some(row) => row.saturating_add_signed(by),
        });
    }

    /// Asks whether to break the selected lock, or to evict the selected one of its holders.
    fn ask(&mut self) {
        let Some((at, part)) = self.selected.and_then(|row| self.rows.get(row)).copied() else {
            self.answer = Some("select a lock first, with up and down".to_owned());
            return;
        };
        let lock = &self.locks[at];
        let holder = match part {
            Part::Holder(holder) => lock.holders.get(holder),
            // For a waiter: the holder that it waits for, if there is only one.
            Part::Waiter(_) => lock.holders.first().filter(|_| lock.holders.len() == 1),
            Part::Free => None,
        };
        let Some(holder) = holder else {
            self.answer = Some("select one of its holders".to_owned());
            return;
        };
        let one_of_many = (lock.holders.len() > 1).then_some(holder.token);
        self.asked = Some(Asked {
            name: lock.name.clone(),
            token: holder.token,
            question: format!("`{}`: {}", plain(&lock.name), question(lock, one_of_many)),
        });
    }

    /// Makes a row for each holder, and one for each waiter below them.
    fn arrange(&mut self) {
        self.rows.clear();
        let mut shown: Vec<_> = (0..self.locks.len())
            .filter(|at| self.passes(&self.locks[*at]))
            .collect();
        // They are listed by name.
        match self.sort {
            Sort::Name => {}
            Sort::Oldest => shown.sort_by_key(|at| {
                let since = self.locks[*at].holders.iter().map(|holder| holder.since).min();
                (since.is_none(), since)
            }),
            Sort::Awaited => shown.sort_by_key(|at| std::cmp::Reverse(self.locks[*at].waiters.len())),
        }
        for at in shown {
            let lock = &self.locks[at];
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

    fn passes(&self, lock: &LockInfo) -> bool {
        self.filter.is_empty()
            || lock.name.contains(&self.filter)
            || lock.holders.iter().any(|holder| who(holder).contains(&self.filter))
    }

    fn keep_in_bounds(&mut self) {
        let last = self.rows.len().checked_sub(1);
        self.selected = self.selected.and_then(|row| Some(row.min(last?)));
    }

    /// Returns the visible rows, if this many fit; scrolls the selected one into view.
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
        let headings = ["NAME", "KIND", "HELD BY / WAITING", "FOR", "LEFT", "TOKEN", "WHY"];
        // Without the headings.
        let seen = self.seen(usize::from(body.height.saturating_sub(1)));
        let selected = self.selected.map(|row| row.saturating_sub(seen.start));
        let (cells, styles): (Vec<_>, Vec<_>) = self.rows[seen]
            .iter()
            .map(|(at, part)| self.row(*at, *part, now))
            .unzip();
        let widths = fit(natural(headings, &cells), ORDER, 1, usize::from(body.width));
        let columns = || widths.iter().enumerate().filter(|(_, width)| **width > 0);
        let lengths: Vec<_> = columns()
            .map(|(_, width)| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)))
            .collect();
        let rows = cells.iter().zip(styles).map(|(cells, style)| {
            Row::new(columns().map(|(column, width)| Cell::from(cut(&cells[column], *width)))).style(style)
        });
        let header = Row::new(columns().map(|(column, width)| cut(headings[column], *width)));
        let table = Table::new(rows, lengths)
            .header(header.style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, body, &mut TableState::new().with_selected(selected));
        let details = self
            .selected
            .and_then(|row| self.rows.get(row))
            .map(|(at, _)| &self.locks[*at]);
        let (title, text) = match details {
            Some(lock) => ("Selected lock", in_full(lock, now)),
            None => ("Events", self.events.iter().map(|event| format!("{event}\n")).collect()),
        };
        let block = Block::new().borders(Borders::TOP).title(title);
        frame.render_widget(Paragraph::new(text).block(block), log);
        frame.render_widget(self.foot(), foot);
    }

    fn foot(&self) -> Line<'_> {
        if let Some(asked) = &self.asked {
            return Line::raw(&asked.question[..]).bold();
        }
        if self.filtering {
            return Line::raw(format!("filter: {}_   enter keep   esc clear", plain(&self.filter))).bold();
        }
        if let Some(answer) = &self.answer {
            return Line::raw(&answer[..]).bold();
        }
        let free = match (self.lists_free, self.all) {
            (false, _) => "",
            (true, true) => "f held only",
            (true, false) => "f show free",
        };
        let sort = self.sort.as_str();
        Line::raw(format!(
            "q quit  up/down details  b break  / filter  s sort: {sort}  {free}"
        ))
        .dim()
    }

    fn head(&self) -> Line<'_> {
        let (held, waiting) = (self.held, self.waiting);
        let mut spans = vec![
            Span::styled("watchlock ", Modifier::BOLD),
            Span::raw(&self.title[..]),
            Span::raw(format!("   {} locks, {held} held, {waiting} waiting", self.locks.len())),
        ];
        let age = self.listed_at.elapsed();
        let red = Style::new().red().bold();
        // The trouble comes first, as the end is cut off if there is no room.
        if age > STALE.max(self.took * 2 * REST) {
            let age = span_of(age);
            spans.insert(0, Span::styled(format!("{age} old, no answer  "), red));
        }
        if !self.filter.is_empty() {
            spans.push(Span::raw(format!("   filter: {}", plain(&self.filter))));
        }
        spans.push(match &self.trouble {
            Some(trouble) => Span::styled(format!("   {trouble}"), red),
            None => Span::raw(format!("   {}", self.mode)).dim(),
        });
        Line::from(spans)
    }

    fn row(&self, at: usize, part: Part, now: SystemTime) -> ([String; 7], Style) {
        let lock = &self.locks[at];
        let (name, kind) = (plain(&lock.name), lock.kind.to_string());
        match part {
            Part::Free => (row([name, kind], ["-"; 5].map(str::to_owned)), Style::new()),
            Part::Holder(holder) => {
                let holder = &lock.holders[holder];
                let cells = [
                    who(holder),
                    span(holder.since, now),
                    left(holder, now),
                    holder.token.to_string(),
                    why(holder),
                ];
                let style = if holder.until <= now {
                    Style::new().red()
                } else if self.is_at_risk(holder, now) {
                    Style::new().yellow()
                } else {
                    Style::new()
                };
                (row([name, kind], cells), style)
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
                let style = if dead { Style::new().red() } else { Style::new().dim() };
                (row([name, "  waits".to_owned()], cells), style)
            }
        }
    }
}

fn row([name, kind]: [String; 2], [by, since, left, token, why]: [String; 5]) -> [String; 7] {
    [name, kind, by, since, left, token, why]
}
