//! The drawing of the scene: a row for each process and each document, and the moments with what they mean.

use super::{super::canvas::Canvas, Line, Process, What};
use crate::clock::{MILLI, Moment, SECOND};

const WIDTH: u32 = 860;
const LEFT: f64 = 170.0;
const SPAN: f64 = 660.0;
const TOP: f64 = 100.0;
const ROW: f64 = 46.0;
const BAR: f64 = 20.0;

/// The lower end of the rows.
const BOTTOM: f64 = TOP + ROW * 4.0 + 6.0;

/// Draws the scene; `None` if a part of it was not recorded.
pub(super) fn draw(lines: &[Line]) -> Option<String> {
    let parts = Parts::find(lines)?;
    let mut drawing = Drawing::new(&parts);
    drawing.heading();
    drawing.axis();
    drawing.bars();
    let bottom = drawing.events()?;
    Some(drawing.canvas.finish(bottom))
}

/// The parts of the scene, as they were recorded.
struct Parts<'a> {
    first: Grant,
    second: Grant,
    /// The second process begins to wait.
    waits: Moment,
    /// The first process looks at its handle.
    looked: Moment,
    /// The time for which it may rely on the lock from then on.
    safe_for: u64,
    frozen: Moment,
    thawed: Moment,
    /// The first process looks again.
    lost: Moment,
    reason: &'a str,
    first_writes: Writes,
    second_writes: Writes,
    end: Moment,
}

struct Grant {
    at: Moment,
    token: i64,
}

/// The writes of one process.
struct Writes {
    plain: Write,
    fenced: Write,
}

struct Write {
    at: Moment,
    /// Whether it changed the document.
    written: bool,
}

/// Finds a part of the scene among the lines of a process, and reads it.
fn part<'a, T>(lines: &'a [Line], of: Process, read: impl Fn(&'a What) -> Option<T>) -> Option<(Moment, T)> {
    let mut lines = lines.iter().filter(|line| line.process == of);
    lines.find_map(|line| Some((line.at, read(&line.what)?)))
}

impl<'a> Parts<'a> {
    fn find(lines: &'a [Line]) -> Option<Self> {
        let moment = |of, what| part(lines, of, |found| (*found == what).then_some(()));
        let (looked, safe_for) = part(lines, Process::First, |what| match what {
            What::Looked { safe_for } => Some(*safe_for),
            _ => None,
        })?;
        let (lost, reason) = part(lines, Process::First, |what| match what {
            What::Lost { reason } => Some(reason.as_str()),
            _ => None,
        })?;
        Some(Self {
            first: Grant::find(lines, Process::First)?,
            second: Grant::find(lines, Process::Second)?,
            waits: moment(Process::Second, What::Waits)?.0,
            looked,
            safe_for,
            frozen: moment(Process::First, What::Frozen)?.0,
            thawed: moment(Process::First, What::Thawed)?.0,
            lost,
            reason,
            first_writes: Writes::find(lines, Process::First)?,
            second_writes: Writes::find(lines, Process::Second)?,
            end: moment(Process::Second, What::End)?.0,
        })
    }
}

impl Grant {
    fn find(lines: &[Line], of: Process) -> Option<Self> {
        let (at, token) = part(lines, of, |what| match what {
            What::Granted { token } => Some(*token),
            _ => None,
        })?;
        Some(Self { at, token })
    }

    /// Returns the last digits of the token, which distinguish it.
    fn name(&self) -> String {
        let text = self.token.to_string();
        format!("…{}", &text[text.len().saturating_sub(6)..])
    }
}

impl Writes {
    fn find(lines: &[Line], of: Process) -> Option<Self> {
        let plain = part(lines, of, |what| match what {
            What::Plain { written } => Some(*written),
            _ => None,
        });
        let fenced = part(lines, of, |what| match what {
            What::Fenced { written } => Some(*written),
            _ => None,
        });
        let write = |(at, written)| Write { at, written };
        Some(Self {
            plain: write(plain?),
            fenced: write(fenced?),
        })
    }
}

impl Write {
    fn outcome(&self) -> &'static str {
        if self.written { "goes through" } else { "is refused" }
    }
}

/// A row of the picture.
#[derive(Clone, Copy)]
enum Row {
    First,
    Second,
    Plain,
    Fenced,
}

impl Row {
    const ALL: [(Self, &str); 4] = [
        (Self::First, "first process"),
        (Self::Second, "second process"),
        (Self::Plain, "without a fence"),
        (Self::Fenced, "with a fence"),
    ];

    fn top(self) -> f64 {
        TOP + ROW * f64::from(self as u8)
    }
}

/// A moment of the scene: marked in its row with a number, and explained below.
struct Event {
    at: Moment,
    row: Row,
    class: &'static str,
    text: String,
}

impl Parts<'_> {
    /// Returns the events in the order in which they are explained.
    fn events(&self) -> [Event; 10] {
        let ink = |at, row, text| Event {
            at,
            row,
            class: "ink",
            text,
        };
        let (first, second) = (self.first.name(), self.second.name());
        let (early, late) = (&self.second_writes, &self.first_writes);
        [
            ink(
                self.first.at,
                Row::First,
                format!("The first process gets the lock, under token {first}."),
            ),
            ink(
                self.looked,
                Row::First,
                format!(
                    "It checks its handle: valid for {} s more. It goes on to write.",
                    seconds(self.safe_for)
                ),
            ),
            ink(self.frozen, Row::First, "It is frozen, before the write.".to_owned()),
            ink(
                self.second.at,
                Row::Second,
                format!("Its lease is over, and the second process gets the lock, under token {second}."),
            ),
            ink(
                early.plain.at,
                Row::Plain,
                format!(
                    "The second process writes: without a fence, it {}.",
                    early.plain.outcome()
                ),
            ),
            ink(
                early.fenced.at,
                Row::Fenced,
                format!("With a fence, it {}.", early.fenced.outcome()),
            ),
            ink(
                self.thawed,
                Row::First,
                "The first process goes on where it was, and knows nothing.".to_owned(),
            ),
            late.unfenced_event(),
            late.fenced_event(),
            ink(
                self.lost,
                Row::First,
                format!(
                    "Its next look at its handle reports the loss: {}.",
                    self.reason.to_lowercase()
                ),
            ),
        ]
    }
}

/// The writes of the first process, which come too late.
impl Writes {
    fn unfenced_event(&self) -> Event {
        Event {
            at: self.plain.at,
            row: Row::Plain,
            class: if self.plain.written { "bad" } else { "ink" },
            text: format!("Its late write without a fence {}.", self.plain.outcome()),
        }
    }

    fn fenced_event(&self) -> Event {
        Event {
            at: self.fenced.at,
            row: Row::Fenced,
            class: if self.fenced.written { "ink" } else { "good" },
            text: format!(
                "The same write with a fence {}: its token is the smaller one.",
                self.fenced.outcome()
            ),
        }
    }
}

/// The picture in the making.
struct Drawing<'a> {
    canvas: Canvas,
    parts: &'a Parts<'a>,
    /// The moment at the left end.
    start: Moment,
}

impl<'a> Drawing<'a> {
    fn new(parts: &'a Parts<'a>) -> Self {
        Self {
            canvas: Canvas::new(
                WIDTH,
                "A frozen holder: its late write goes through without a fence, and is refused with one",
            ),
            parts,
            start: parts.first.at.saturating_sub(300 * MILLI),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a pixel is many nanoseconds")]
    fn x(&self, at: Moment) -> f64 {
        LEFT + SPAN * at.saturating_sub(self.start) as f64 / (self.parts.end - self.start) as f64
    }

    fn heading(&mut self) {
        self.canvas.text(
            "ink head",
            20.0,
            28.0,
            "A holder that is frozen between its check and its write",
        );
        self.canvas.text(
            "soft",
            20.0,
            48.0,
            "A real run: two processes, SIGSTOP and SIGCONT, and a lease of 2 s. Both write to two documents, to one \
             of them with a fence.",
        );
    }

    /// Draws the seconds, and the names of the rows.
    fn axis(&mut self) {
        let (first, end) = (self.parts.first.at, self.parts.end);
        for second in 0..=(end - first) / SECOND {
            let x = self.x(first + second * SECOND);
            self.canvas.line("rule", (x, TOP - 14.0), (x, BOTTOM));
            self.canvas.centred("soft", x, TOP - 20.0, &format!("{second} s"));
        }
        for (row, label) in Row::ALL {
            self.canvas.text("ink end", LEFT - 10.0, row.top() + 14.0, label);
        }
    }

    /// Draws who holds and who waits, and under which token the documents were written.
    fn bars(&mut self) {
        let parts = self.parts;
        let (frozen, end) = (parts.frozen, parts.end);
        // The first process's knowledge: after its look it may rely on the lock for this time.
        let safe_until = parts.looked + parts.safe_for;
        self.bar("first", Row::First, parts.first.at, safe_until.min(frozen), "");
        self.bar("waits", Row::First, frozen, parts.thawed, "frozen");
        self.bar("waits", Row::Second, parts.waits, parts.second.at, "waits");
        let second = parts.second.name();
        self.bar(
            "second",
            Row::Second,
            parts.second.at,
            end,
            &format!("holds, token {second}"),
        );
        let written = format!("written under {second}");
        let (early, late) = (&parts.second_writes, &parts.first_writes.plain);
        self.bar("second", Row::Plain, early.plain.at, late.at, &written);
        let class = if late.written { "bad" } else { "second" };
        self.bar(class, Row::Plain, late.at, end, "");
        self.bar("second", Row::Fenced, early.fenced.at, end, &written);
    }

    fn bar(&mut self, class: &str, row: Row, from: Moment, to: Moment, text: &str) {
        let (from, to) = (self.x(from), self.x(to));
        self.canvas.rect(class, from, row.top(), to - from, BAR);
        self.canvas
            .centred("ink", f64::midpoint(from, to), row.top() + 14.0, text);
    }

    /// Marks the events and lists them below the rows. Returns the lower end of the list; `None` if something happened
    /// before the first grant.
    fn events(&mut self) -> Option<f64> {
        let mut y = BOTTOM + 26.0;
        let mut last = [f64::MIN; Row::ALL.len()];
        for (event, number) in self.parts.events().iter().zip(1..) {
            let number = number.to_string();
            self.mark(event, &number, &mut last[event.row as usize]);
            let offset = event.at.checked_sub(self.parts.first.at)?;
            let class = event.class;
            self.canvas.text(&format!("{class} bold end"), 40.0, y, &number);
            self.canvas.text("soft end", 96.0, y, &format!("{} s", seconds(offset)));
            self.canvas.text(class, 106.0, y, &event.text);
            y += 18.0;
        }
        Some(y)
    }

    /// Marks an event in its row. `last` is the place of the last number in the row.
    fn mark(&mut self, event: &Event, number: &str, last: &mut f64) {
        let Event { at, row, class, .. } = event;
        let (x, top) = (self.x(*at), row.top());
        self.canvas.rect(class, x - 1.0, top - 3.0, 2.0, BAR + 6.0);
        // Moments close to each other: their numbers stand side by side.
        *last = x.max(*last + 15.0);
        self.canvas
            .centred(&format!("{class} bold"), *last, top + BAR + 15.0, number);
    }
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds are enough")]
fn seconds(nanos: u64) -> String {
    format!("{:.3}", nanos as f64 / SECOND as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(fenced_through: bool) -> Vec<Line> {
        use Process::{First, Second};
        let lines = [
            (0, First, What::Granted { token: 1_000_001 }),
            (1, Second, What::Waits),
            (700, First, What::Looked { safe_for: 900 * MILLI }),
            (710, First, What::Frozen),
            (2_400, Second, What::Granted { token: 1_000_002 }),
            (3_000, Second, What::Plain { written: true }),
            (3_010, Second, What::Fenced { written: true }),
            (5_000, First, What::Thawed),
            (5_005, First, What::Plain { written: true }),
            (
                5_010,
                First,
                What::Fenced {
                    written: fenced_through,
                },
            ),
            (
                5_011,
                First,
                What::Lost {
                    reason: "Expired".to_owned(),
                },
            ),
            (6_000, Second, What::End),
        ];
        let lines = lines.map(|(at, process, what)| Line {
            at: SECOND + at * MILLI,
            process,
            what,
        });
        lines.to_vec()
    }

    #[test]
    fn the_picture_tells_what_was_recorded_and_not_what_should_have_been() {
        let kept = draw(&scene(false)).unwrap();
        assert!(kept.contains("The same write with a fence is refused"), "{kept}");
        let broken = draw(&scene(true)).unwrap();
        assert!(broken.contains("The same write with a fence goes through"), "{broken}");
        assert!(kept.contains("5.010 s") && kept.contains("…000002"), "{kept}");
    }

    #[test]
    fn a_record_that_lacks_a_part_is_not_drawn() {
        let whole = scene(false);
        for missing in 0..whole.len() {
            let mut lines = whole.clone();
            lines.remove(missing);
            assert!(draw(&lines).is_none(), "{:?}", whole[missing]);
        }
    }
}
