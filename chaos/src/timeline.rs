//! A time-line of one lock around a moment, as a picture.

use std::{collections::BTreeMap, fmt::Write};

use crate::{
    clock::{MILLI, Moment, SECOND},
    history::{History, Operation},
    journal::Note,
    judge::{Case, Held, Violation},
};

/// Time before and after the moment that is shown.
const AROUND: Moment = 6 * SECOND;

const LEFT: f64 = 170.0;
const WIDTH: f64 = 1_200.0;
const ROW: f64 = 22.0;
const TOP: f64 = 90.0;

/// Draws what happened to a lock around a violation: a row for each task, a row for each fault.
pub(crate) fn draw(case: &Case<'_>, violation: &Violation) -> String {
    let view = View {
        start: violation.at.saturating_sub(AROUND),
        end: violation.at + AROUND,
    };
    let mut body = String::new();
    let bottom = draw_tasks(&mut body, &view, case, violation.name.as_deref());
    let bottom = draw_faults(&mut body, &view, case.history, bottom + ROW / 2.0);
    let axis = axis(&view, violation.at, bottom);
    let x = view.x(violation.at);
    let (promise, text) = (escape(&violation.promise.to_string()), escape(&violation.text));
    let (width, height) = (LEFT + WIDTH + 20.0, bottom + ROW);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<style>.waits {{ fill: #ccc }} .claimed {{ fill: #bfe3bf }} .valid {{ fill: #3a9d3a }} \
         .fault {{ fill: #f3c9a5 }} .lost {{ fill: #d00 }} .left {{ fill: #06c }} .axis {{ stroke: #ddd }} \
         .here {{ stroke: #d00 }}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{promise}</text>\n<text x=\"8\" y=\"38\">{text}</text>\n\
         {axis}<line class=\"here\" x1=\"{x}\" x2=\"{x}\" y1=\"70\" y2=\"{bottom}\"/>\n{body}</svg>\n"
    )
}

/// Draws a row for each task that asked for the lock, or for any if there is no name. Returns the end of the rows.
fn draw_tasks(body: &mut String, view: &View, case: &Case<'_>, name: Option<&str>) -> f64 {
    let mut rows: BTreeMap<(&str, usize), String> = BTreeMap::new();
    for operation in &case.history.operations {
        if name.is_some_and(|name| name != operation.name) {
            continue;
        }
        let drawn = view.operation(case, operation);
        if !drawn.is_empty() {
            rows.entry((&operation.client, operation.task))
                .or_default()
                .push_str(&drawn);
        }
    }
    let mut y = TOP;
    for ((client, task), row) in rows {
        let label = format!("{client} task {task}");
        let _ = writeln!(
            body,
            "<g transform=\"translate(0 {y})\"><text x=\"8\" y=\"14\">{label}</text>\n{row}</g>"
        );
        y += ROW;
    }
    y
}

/// Draws a row for each fault, from that height on. Returns the end of the rows.
fn draw_faults(body: &mut String, view: &View, history: &History, mut y: f64) -> f64 {
    for (begin, end, text) in faults(history) {
        let mut row = String::new();
        view.bar(&mut row, begin, end.or(Some(begin + 20 * MILLI)), "fault", &text);
        if !row.is_empty() {
            let x = view.x(begin.max(view.start)) + 3.0;
            let text = escape(&text);
            let _ = writeln!(
                body,
                "<g transform=\"translate(0 {y})\">{row}<text x=\"{x}\" y=\"14\">{text}</text></g>"
            );
            y += ROW;
        }
    }
    y
}

/// Draws the seconds before and after the moment.
fn axis(view: &View, moment: Moment, bottom: f64) -> String {
    let mut axis = String::new();
    for second in 0..=(view.end - view.start) / SECOND {
        let at = view.start + second * SECOND;
        let x = view.x(at);
        let offset = (i128::from(at) - i128::from(moment)) / i128::from(SECOND);
        let _ = writeln!(
            axis,
            "<line class=\"axis\" x1=\"{x}\" x2=\"{x}\" y1=\"70\" y2=\"{bottom}\"/>"
        );
        let _ = writeln!(axis, "<text x=\"{x}\" y=\"64\">{offset:+} s</text>");
    }
    axis
}

/// Returns the faults with their beginnings and ends.
pub(crate) fn faults(history: &History) -> Vec<(Moment, Option<Moment>, String)> {
    let journal = &history.journal;
    let begun = journal.iter().filter_map(|entry| match &entry.note {
        Note::Began { fault, text, .. } => Some((entry.at, *fault, text)),
        _ => None,
    });
    begun
        .map(|(begin, fault, text)| {
            let end = journal.iter().find_map(|entry| match &entry.note {
                Note::Over { fault: of } | Note::Missed { fault: of, .. } if *of == fault => Some(entry.at),
                _ => None,
            });
            (begin, end, text.clone())
        })
        .collect()
}

/// The visible part of the time.
struct View {
    start: Moment,
    end: Moment,
}

impl View {
    #[expect(clippy::cast_precision_loss, reason = "a pixel is many nanoseconds")]
    fn x(&self, at: Moment) -> f64 {
        let at = at.clamp(self.start, self.end) - self.start;
        (LEFT + WIDTH * at as f64 / (self.end - self.start) as f64).round()
    }

    /// Draws the wait and the hold of an operation; nothing if neither is visible.
    fn operation(&self, case: &Case<'_>, operation: &Operation) -> String {
        let mut row = String::new();
        let reason = operation.reason();
        let grant = operation.grant.as_ref();
        let over = grant.map(|grant| grant.from).or(operation.ended.map(|(at, _)| at));
        self.bar(&mut row, operation.requested, over, "waits", &format!("{reason} waits"));
        if let Some(grant) = grant {
            self.hold(&mut row, case, Held { operation, grant });
        }
        row
    }

    fn hold(&self, row: &mut String, case: &Case<'_>, held: Held<'_>) {
        let Held { operation, grant } = held;
        let title = format!("{} token {}", operation.reason(), grant.token);
        self.bar(
            row,
            grant.from,
            case.claimed_until(held),
            "claimed",
            &format!("{title}: said to be safe"),
        );
        self.bar(row, grant.from, grant.valid_until, "valid", &format!("{title}: valid"));
        self.text(row, grant.from, &grant.token.to_string());
        if let Some((at, reason)) = &grant.lost {
            self.mark(row, *at, "lost", &format!("{title}: lost, {reason}"));
        }
        if let Some(let_go) = &grant.let_go {
            self.mark(row, let_go.at, "left", &format!("{title}: let go"));
        }
    }

    fn bar(&self, row: &mut String, from: Moment, to: Option<Moment>, class: &str, title: &str) {
        let to = to.unwrap_or(self.end);
        if to < self.start || from > self.end || to < from {
            return;
        }
        let (x, title) = (self.x(from), escape(title));
        let width = (self.x(to) - x).max(1.0);
        let _ = writeln!(
            row,
            "<rect class=\"{class}\" x=\"{x}\" y=\"3\" width=\"{width}\" height=\"16\"><title>{title}</title></rect>"
        );
    }

    fn mark(&self, row: &mut String, at: Moment, class: &str, title: &str) {
        if (self.start..self.end).contains(&at) {
            let (x, title) = (self.x(at), escape(title));
            let _ = writeln!(
                row,
                "<rect class=\"{class}\" x=\"{x}\" y=\"1\" width=\"3\" height=\"20\"><title>{title}</title></rect>"
            );
        }
    }

    fn text(&self, row: &mut String, at: Moment, text: &str) {
        if (self.start..self.end).contains(&at) {
            // The last digits distinguish tokens.
            let short = &text[text.len().saturating_sub(5)..];
            let _ = writeln!(row, "<text x=\"{}\" y=\"15\">{short}</text>", self.x(at) + 2.0);
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
