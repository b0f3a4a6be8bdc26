//! The drawing of the full-screen view. Only the visible rows are made: drawing ten thousand locks costs as much as
//! drawing those that fit.
//!
//! Users look for the name of a lock, so on a narrow terminal everything else gives way first.

use std::time::SystemTime;

use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Modifier, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Block, Borders, Paragraph, Row, Table, TableState},
};

use super::view::{Part, View};
use crate::{
    events::Seen,
    holder::{is_at_risk, short},
    list::{self, COLUMNS, ORDER},
    show::in_full,
    table::{GAP, Layout as Columns},
    text::{cut, plain, span, span_of},
};

/// Number of lines for the events.
const EVENT_LINES: u16 = 8;

impl View {
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, here: SystemTime) {
        let [head, body, log, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(EVENT_LINES),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        let now = self.offset.at(here);
        // Without the headings.
        let seen = self.seen(usize::from(body.height.saturating_sub(1)));
        let selected = self.selected.map(|row| row.saturating_sub(seen.start));
        let (cells, styles): (Vec<_>, Vec<_>) = self.rows[seen]
            .iter()
            .map(|(at, part)| self.row(*at, *part, now))
            .unzip();
        let columns = Columns::new(COLUMNS, &cells, ORDER, Some(usize::from(body.width)));
        let lengths = columns
            .widths()
            .map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        let rows = cells
            .iter()
            .zip(styles)
            .map(|(cells, style)| Row::new(columns.cells(cells)).style(style));
        let header = Row::new(columns.headings());
        let table = Table::new(rows, lengths)
            .column_spacing(GAP)
            .header(header.style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, body, &mut TableState::new().with_selected(selected));
        let details = self
            .selected
            .and_then(|row| self.rows.get(row))
            .map(|(at, _)| &self.locks[*at]);
        let (title, text) = match details {
            Some(lock) => ("Selected lock", in_full(lock, now)),
            None => {
                let events = self.events.iter().take(usize::from(log.height)).map(Seen::line);
                let lines: Vec<String> = events.map(|event| cut(&event, usize::from(log.width))).collect();
                ("Events", lines.join("\n"))
            }
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
        let red = Style::new().red().bold();
        // The trouble comes first, as the end is cut off if there is no room.
        if let Some(age) = self.stale() {
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

    fn row(&self, at: usize, part: Part, now: SystemTime) -> ([String; 8], Style) {
        let lock = &self.locks[at];
        match part {
            Part::Free => (list::row(lock, None, now), Style::new()),
            Part::Holder(holder) => {
                let holder = &lock.holders[holder];
                let style = if holder.until <= now {
                    Style::new().red()
                } else if is_at_risk(holder, now) {
                    Style::new().yellow()
                } else {
                    Style::new()
                };
                (list::row(lock, Some(holder), now), style)
            }
            Part::Waiter(waiter) => {
                let (position, waiter) = (waiter + 1, &lock.waiters[waiter]);
                let access = waiter.access.map(|access| format!(" ({access})")).unwrap_or_default();
                let by = short(waiter.owner.label.as_deref(), &waiter.owner.host, waiter.owner.pid);
                let dead = waiter.until <= now;
                let cells = [
                    plain(&lock.name),
                    "  waits".to_owned(),
                    format!("  {position}. {by}{access}"),
                    span(waiter.since, now),
                    if dead { "over" } else { "" }.to_owned(),
                    String::new(),
                    String::new(),
                    waiter.owner.reason.as_deref().map(plain).unwrap_or_default(),
                ];
                let style = if dead { Style::new().red() } else { Style::new().dim() };
                (cells, style)
            }
        }
    }
}
