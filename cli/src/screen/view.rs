//! The state of the full-screen view: the locks that were listed, the rows made of them, and what the keyboard asks
//! for.

use std::{
    collections::VecDeque,
    ops::Range,
    time::{Duration, Instant},
};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use watchlock::{FencingToken, errors::OperateError, operate::LockInfo};

use crate::{break_lock::question, clock::Offset, events::Seen, holder::who, locks::Locks, text::plain};

/// Number of events that are remembered.
const REMEMBERED: usize = 100;

/// Age at which a listing is marked as stale, as one arrives about once a second; or this many times its duration.
const STALE: Duration = Duration::from_secs(4);
const STALE_TIMES: u32 = 8;

/// The state of the view.
#[derive(Debug)]
pub(super) struct View {
    pub(super) title: String,
    pub(super) mode: String,
    pub(super) locks: Vec<LockInfo>,
    /// The parts of the locks to show, row by row.
    pub(super) rows: Vec<(usize, Part)>,
    /// Number of held locks, and of waiters.
    pub(super) held: usize,
    pub(super) waiting: usize,
    pub(super) offset: Offset,
    /// Whether free locks are listed at all.
    pub(super) lists_free: bool,
    /// Whether free locks are shown as well.
    pub(super) all: bool,
    /// The selected row.
    pub(super) selected: Option<usize>,
    /// The first visible row.
    top: usize,
    pub(super) events: VecDeque<Seen>,
    /// The reason why the locks could not be listed, if they could not.
    pub(super) trouble: Option<String>,
    /// Time of the last listing, and its duration.
    pub(super) listed_at: Instant,
    pub(super) took: Duration,
    /// Only locks with this text in their name or holder are shown.
    pub(super) filter: String,
    /// Whether the keyboard edits the filter.
    pub(super) filtering: bool,
    pub(super) sort: Sort,
    /// The question that waits for the keyboard.
    pub(super) asked: Option<Asked>,
    /// The result of the last question.
    pub(super) answer: Option<String>,
}

/// The holder to evict, if that is confirmed.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) token: FencingToken,
    pub(super) question: String,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
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

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Oldest => "oldest",
            Self::Awaited => "awaited",
        }
    }
}

/// The part of its lock that a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Free,
    Holder(usize),
    Waiter(usize),
}

/// A request of a key that the view can't fulfil by itself.
#[derive(Debug)]
pub(super) enum Deed {
    Quit,
    Suspend,
    Evict(Asked),
}

impl View {
    /// Returns the view of these locks: with those that are free too, or first without them.
    pub(super) fn new(title: String, locks: &Locks, all: bool, offset: Offset) -> Self {
        Self {
            title,
            mode: locks.wake_mode().to_string(),
            locks: Vec::new(),
            rows: Vec::new(),
            held: 0,
            waiting: 0,
            offset,
            lists_free: matches!(locks, Locks::Named(_)),
            all,
            selected: None,
            top: 0,
            events: VecDeque::new(),
            trouble: None,
            listed_at: Instant::now(),
            took: Duration::ZERO,
            filter: String::new(),
            filtering: false,
            sort: Sort::Name,
            asked: None,
            answer: None,
        }
    }

    pub(super) fn remember(&mut self, event: Seen) {
        self.events.truncate(REMEMBERED - 1);
        self.events.push_front(event);
    }

    pub(super) fn listed(&mut self, listed: Result<Vec<LockInfo>, OperateError>, took: Duration) {
        match listed {
            Ok(locks) => {
                self.held = locks.iter().filter(|lock| !lock.holders.is_empty()).count();
                self.waiting = locks.iter().map(|lock| lock.waiters.len()).sum();
                self.locks = locks;
                self.trouble = None;
                (self.listed_at, self.took) = (Instant::now(), took);
                self.arrange();
            }
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    pub(super) fn obey(&mut self, key: KeyEvent) -> Option<Deed> {
        let key = match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c' | 'd'), true) => return Some(Deed::Quit),
            (KeyCode::Char('z'), true) => return Some(Deed::Suspend),
            (_, true) => return None,
            (key, false) => key,
        };
        self.answer = None;
        if let Some(asked) = self.asked.take() {
            if matches!(key, KeyCode::Char('y' | 'Y')) {
                return Some(Deed::Evict(asked));
            }
            self.answer = Some("nothing was broken".to_owned());
            return None;
        }
        if self.filtering {
            match key {
                KeyCode::Char(character) => self.filter.push(character),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Esc => {
                    self.filter.clear();
                    self.filtering = false;
                }
                KeyCode::Enter => self.filtering = false,
                _ => {}
            }
            self.arrange();
            return None;
        }
        match key {
            KeyCode::Char('q') => return Some(Deed::Quit),
            KeyCode::Esc if self.selected.is_none() => return Some(Deed::Quit),
            KeyCode::Esc => self.selected = None,
            KeyCode::Char('f') if self.lists_free => {
                self.all = !self.all;
                self.arrange();
            }
            KeyCode::Char('/') => self.filtering = true,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.arrange();
            }
            KeyCode::Char('b') => self.ask(),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-10),
            KeyCode::PageDown => self.step(10),
            KeyCode::Home => self.selected = Some(0),
            KeyCode::End => self.selected = Some(usize::MAX),
            _ => {}
        }
        self.keep_in_bounds();
        None
    }

    /// Returns the age of the locks, if the server seems not to answer.
    pub(super) fn stale(&self) -> Option<Duration> {
        Some(self.listed_at.elapsed()).filter(|age| *age > STALE.max(self.took * STALE_TIMES))
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
    pub(super) fn seen(&mut self, fit: usize) -> Range<usize> {
        let last_top = self.rows.len().saturating_sub(fit);
        self.top = self.top.min(last_top);
        if let Some(row) = self.selected {
            self.top = self.top.min(row).max((row + 1).saturating_sub(fit));
        }
        self.top..(self.top + fit).min(self.rows.len())
    }
}
