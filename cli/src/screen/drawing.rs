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

use super::{
    pace,
    view::{Part, View},
};
use crate::{
    events::{Seen, lines},
    holder::{is_at_risk, short},
    list::{NAME, WHY, cells, span},
    show::in_full,
    table::{self, Column, Digits, Layout as Columns},
    text::{plain, span_of},
};

/// Number of lines for the events.
const EVENT_LINES: u16 = 8;

const COLUMNS: [Column; 7] = [
    NAME,
    Column::whole("KIND", "KIND"),
    Column::text("HELD BY / WAITING", "HELD BY", 18),
    Column::whole("FOR", "FOR"),
    Column::whole("LEFT", "LEFT"),
    Column::whole("TOKEN", "TOKEN"),
    WHY,
];

/// Priority of the columns if there is no room for all: name, holder, held since, reason, time left of the lease,
/// token, kind.
const ORDER: [usize; 7] = [0, 2, 3, 6, 4, 5, 1];

/// Number of spaces between two columns.
const GAP: usize = 1;

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
        let holders = self.locks.iter().flat_map(|lock| &lock.holders);
        let events = self.events.iter().take(usize::from(log.height));
        let tokens = events.clone().filter_map(Seen::token);
        let digits = Digits::of(holders.map(|holder| holder.token).chain(tokens));
        let (cells, styles): (Vec<_>, Vec<_>) = self.rows[seen]
            .iter()
            .map(|(at, part)| self.row(*at, *part, digits, now))
            .unzip();
        let columns = Columns::new(COLUMNS, &cells, ORDER, GAP, Some(usize::from(body.width)));
        let lengths = columns
            .widths()
            .map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        let rows = cells
            .iter()
            .zip(styles)
            .map(|(cells, style)| Row::new(columns.cells(cells)).style(style));
        let header = Row::new(columns.headings());
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
            None => ("Events", lines(events, usize::from(log.width), digits, now).join("\n")),
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
        if pace::is_stale(age, self.took) {
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

    fn row(&self, at: usize, part: Part, digits: Digits, now: SystemTime) -> ([table::Cell; 7], Style) {
        let lock = &self.locks[at];
        let (name, kind) = (plain(&lock.name), lock.kind.to_string());
        match part {
            Part::Free => (row([name, kind], cells(None, digits, now)), Style::new()),
            Part::Holder(holder) => {
                let holder = &lock.holders[holder];
                let style = if holder.until <= now {
                    Style::new().red()
                } else if is_at_risk(holder, now) {
                    Style::new().yellow()
                } else {
                    Style::new()
                };
                (row([name, kind], cells(Some(holder), digits, now)), style)
            }
            Part::Waiter(waiter) => {
                let (position, waiter) = (waiter + 1, &lock.waiters[waiter]);
                let access = waiter.access.map(|access| format!(" ({access})")).unwrap_or_default();
                let by = short(waiter.owner.label.as_deref(), &waiter.owner.host, waiter.owner.pid);
                let dead = waiter.until <= now;
                let cells = [
                    format!("  {position}. {by}{access}").into(),
                    span(waiter.since, now),
                    if dead { "over" } else { "" }.into(),
                    "".into(),
                    waiter.owner.reason.as_deref().map(plain).unwrap_or_default().into(),
                ];
                let style = if dead { Style::new().red() } else { Style::new().dim() };
                (row([name, "  waits".to_owned()], cells), style)
            }
        }
    }
}

fn row([name, kind]: [String; 2], [by, since, left, token, why]: [table::Cell; 5]) -> [table::Cell; 7] {
    [name.into(), kind.into(), by, since, left, token, why]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer};
    use serde_json::json;
    use watchlock::{LockClient, operate::LockEvent};

    use super::*;
    use crate::{clock::Offset, events::Seen, locks::Locks, made_up::some, text::width};

    fn shown(buffer: &Buffer) -> String {
        let row = |y: u16| {
            let (mut line, mut x) = (String::new(), 0);
            while x < buffer.area.width {
                let symbol = buffer[(x, y)].symbol();
                line += symbol;
                // A wide one takes the next cells too.
                x += u16::try_from(width(symbol)).unwrap().max(1);
            }
            format!("{}\n", line.trim_end())
        };
        (0..buffer.area.height).map(row).collect()
    }

    /// A view of no locks yet.
    fn empty() -> View {
        let offset = Offset {
            millis: 0,
            within: Duration::ZERO,
        };
        let locks = Locks::Named(LockClient::in_memory());
        View::new("app.locks".to_owned(), &locks, true, offset)
    }

    #[test]
    fn tokens_of_events_are_shown_by_the_digits_in_which_they_differ() {
        let mut view = empty();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        for token in [1_000_000_129_000_i64, 2_000_000_129_000] {
            let event = json!({ "event": "released", "token": token });
            let event: LockEvent = serde_json::from_value(event).unwrap();
            view.remember(Seen::new(now, "x".to_owned(), event));
        }
        let Ok(mut terminal) = Terminal::new(TestBackend::new(44, 18));
        let Ok(_) = terminal.draw(|frame| view.draw(frame, now));
        let shown = shown(terminal.backend().buffer());
        for token in ["token 1000000129000", "token 2000000129000"] {
            assert!(shown.contains(token), "{shown}");
        }
    }

    #[test]
    fn at_80_columns_holder_and_reason_can_be_read() {
        let (locks, now) = some();
        let mut view = empty();
        for lock in locks.iter().filter(|lock| !lock.holders.is_empty()) {
            let event = |name: &str| json!({ "event": name, "token": lock.holders[0].token, "holder": lock.holders[0], "waiting": 1 });
            for name in ["granted", "released"] {
                let event: LockEvent = serde_json::from_value(event(name)).unwrap();
                view.remember(Seen::new(now, lock.name.clone(), event));
            }
        }
        view.listed(Ok(locks), Duration::ZERO);
        let Ok(mut terminal) = Terminal::new(TestBackend::new(80, 18));
        let Ok(_) = terminal.draw(|frame| view.draw(frame, now));
        let shown = shown(terminal.backend().buffer());
        // Without the head and the keys.
        let lines: Vec<&str> = shown.lines().skip(1).take(15).collect();
        let table = lines.join("\n") + "\n";
        let expected = "\
NAME            KIND      HELD BY                FOR LEFT TOKEN   WHY
invoice-42      mutex     billing@web-1:4711     30m 21s  …312000 monthly run
invoice-42        waits     1. reports@batch-17… 4d               the accounts …
nightly-reports semaphore reports@batch-17.eu.e… 4d  21s  …007000 the accounts …
請求書-42       mutex     web-2:4711             4m  21s  …250000 夜間バッチ処…
free            election  -                      -   -    -       -


Events──────────────────────────────────────────────────────────────────────────
12:30:00  請求書-42  released, token …250000
12:25:45  請求書-42  granted to web-2:4711, 1 waiting: 夜間バッチ処理の実行 🔒🔒
12:30:00  nightly-reports  released, token …007000
2025-12-28 09:00  nightly-reports  granted to reports@batch-17.eu.example.net:4…
12:30:00  invoice-42  released, token …312000
11:59:59  invoice-42  granted to billing@web-1:4711, 1 waiting: monthly run
";
        assert_eq!(table, expected);
    }
}
