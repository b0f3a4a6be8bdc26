//! `watchlock ls`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::SystemTime,
};

use watchlock::operate::{HolderInfo, Listing, LockInfo, UnreadableInfo};

use crate::{
    arguments::List,
    connection::{Connection, Place},
    exit::{self, Outcome},
    holder::{is_at_risk, who, why},
    json,
    messages::say,
    table::{Cell, Column, Digits, table},
    terminal,
    text::{self, plain},
};

const COLUMNS: [Column; 8] = [
    NAME,
    Column::whole("KIND", "KIND"),
    HELD_BY,
    Column::whole("FOR", "FOR"),
    Column::whole("LEFT", "LEFT"),
    Column::whole("TOKEN", "TOKEN"),
    Column::whole("WAITING", "WAIT"),
    WHY,
];

/// Priority of the columns if there is no room for all: name, holder, held since, reason, time left of the lease,
/// number of waiters, token, kind.
const ORDER: [usize; 8] = [0, 2, 3, 7, 4, 6, 5, 1];

/// Users look for the name of a lock, so everything else gives way first.
pub(crate) const NAME: Column = Column::text("NAME", "NAME", 32);
const HELD_BY: Column = Column::text("HELD BY", "HELD BY", 18);
pub(crate) const WHY: Column = Column::text("WHY", "WHY", 14);

/// Limits the documents that are not locks and are named one by one: this many show that something is wrong.
const UNREADABLE_SHOWN: usize = 10;

/// The deadlocks that can be found. A lock is held by the task that acquired it, and each `watchlock run` is a task of
/// its own: one inside another waits for a lock, but holds none.
pub(crate) const SEEN: &str = "among tasks of one process each; a `watchlock run` inside another is not seen";

pub(crate) async fn list(connection: &Connection, arguments: List) -> Outcome {
    arguments.kept.check().await?;
    let is_selective = arguments.held
        || arguments.free
        || arguments.kind.is_some()
        || arguments.owner.is_some()
        || arguments.prefix.is_some()
        || arguments.older_than.is_some();
    let place = connection.prompt().await?;
    if arguments.deadlocks {
        return deadlocks(&place, &arguments).await;
    }
    let locks = arguments.kept.locks(&place).await?;
    let mut list = locks.list();
    if let Some(kind) = arguments.kind {
        list = list.kind(kind);
    }
    if arguments.held || arguments.free {
        list = list.held(arguments.held);
    }
    if let Some(owner) = arguments.owner {
        list = list.owner(owner);
    }
    if let Some(prefix) = arguments.prefix {
        list = list.prefix(prefix);
    }
    if let Some(age) = arguments.older_than {
        list = list.older_than(age);
    }
    let Listing {
        locks: found,
        unreadable,
        ..
    } = list.with_unreadable().await?;
    for UnreadableInfo { name, problem, .. } in unreadable.iter().take(UNREADABLE_SHOWN) {
        say(&format!("`{}` is not a lock: {}", plain(name), plain(problem)));
    }
    if let more @ 1.. = unreadable.len().saturating_sub(UNREADABLE_SHOWN) {
        say(&format!("and {more} more that are not locks"));
    }
    if arguments.output.json {
        return exit::after(json::print(&found), ExitCode::SUCCESS);
    }
    if found.is_empty() {
        let place = arguments.kept.place(&place);
        say(&if is_selective {
            format!("none of the locks in {place} is as requested")
        } else {
            format!("no locks in {place}")
        });
        return Ok(ExitCode::SUCCESS);
    }
    exit::after(print(&found), ExitCode::SUCCESS)
}

async fn deadlocks(place: &Place, arguments: &List) -> Outcome {
    let found = place.locks().await?.deadlocks().await?;
    if arguments.output.json {
        return exit::after(json::print(&found), ExitCode::SUCCESS);
    }
    if found.is_empty() {
        say(&format!("no deadlocks in {}, {SEEN}", arguments.kept.place(place)));
    }
    let lines: String = found
        .iter()
        .map(|deadlock| plain(&deadlock.to_string()) + "\n")
        .collect();
    exit::after(io::stdout().lock().write_all(lines.as_bytes()), ExitCode::SUCCESS)
}

fn print(found: &[LockInfo]) -> io::Result<()> {
    // The reader of a pipe gets all of it.
    let lines = formatted(found, terminal::columns(io::stdout()));
    io::stdout().lock().write_all(lines.as_bytes())
}

fn formatted(found: &[LockInfo], within: Option<usize>) -> String {
    let tokens = found.iter().flat_map(|lock| &lock.holders);
    let digits = Digits::of(tokens.map(|holder| holder.token));
    let rows: Vec<_> = found.iter().flat_map(|lock| rows(lock, digits)).collect();
    table(COLUMNS, &rows, ORDER, within)
}

/// Returns one row for each holder, so that a search through the output finds complete lines; one for a free lock.
fn rows(lock: &LockInfo, digits: Digits) -> Vec<[Cell; 8]> {
    let now = lock.as_of;
    let row = |holder: Option<&HolderInfo>| {
        let [by, held, left, token, why] = cells(holder, digits, now);
        let (name, kind) = (text::plain(&lock.name), lock.kind.to_string());
        let waiting = waiting(lock, now);
        [name.into(), kind.into(), by, held, left, token, waiting.into(), why]
    };
    match &lock.holders[..] {
        [] => vec![row(None)],
        holders => holders.iter().map(|holder| row(Some(holder))).collect(),
    }
}

/// Returns the cells of a holder, or of nobody: who it is, since when, the time left of the lease, token and reason.
pub(crate) fn cells(holder: Option<&HolderInfo>, digits: Digits, now: SystemTime) -> [Cell; 5] {
    let Some(holder) = holder else {
        return ["-"; 5].map(Cell::from);
    };
    [
        who(holder).into(),
        span(holder.since, now),
        left(holder, now),
        digits.cell(holder.token),
        why(holder).into(),
    ]
}

/// Returns how much of the lease is left, and whether nobody seems to renew it; nothing for a dead holder.
fn left(holder: &HolderInfo, now: SystemTime) -> Cell {
    if holder.until <= now {
        return "over".into();
    }
    if is_at_risk(holder, now) {
        let (whole, brief) = (text::span(now, holder.until), text::brief_span(now, holder.until));
        return Cell::of(format!("{whole}, not renewed"), format!("{brief}, silent"));
    }
    span(now, holder.until)
}

/// Returns the cell of the time from `from` to `to`.
pub(crate) fn span(from: SystemTime, to: SystemTime) -> Cell {
    Cell::of(text::span(from, to), text::brief_span(from, to))
}

/// Returns how many wait, and how many of them have been silent for too long.
fn waiting(lock: &LockInfo, now: SystemTime) -> String {
    let all = lock.waiters.len();
    match lock.waiters.iter().filter(|waiter| waiter.until <= now).count() {
        0 => all.to_string(),
        dead => format!("{all} ({dead} dead)"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::{live, made_up::some, screen, show};

    /// Random locks, the same for each seed.
    struct Random(watchlock_proofs::Random);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0.below(bound)
        }

        fn text(&mut self) -> String {
            const PIECES: [&str; 8] = ["a", "é", "🔒", "\u{1b}[2J", "\n", "\u{202e}", "\0", "👩\u{200d}💻"];
            // Longer than any width that the standard library formats, but seldom, as that takes time.
            let lengths = [0, 1, 9, 80, 300];
            let length = match self.below(100) {
                0 => 66_000,
                drawn => lengths[usize::try_from(drawn % 5).unwrap()],
            };
            let piece = PIECES[usize::try_from(self.below(8)).unwrap()];
            piece.repeat(length)
        }

        fn number(&mut self) -> i64 {
            [0, 1, 4_711, i64::MAX][usize::try_from(self.below(4)).unwrap()]
        }

        fn time(&mut self) -> &'static str {
            let times = [
                "1970-01-01T00:00:00.000Z",
                "2026-01-01T00:00:00.000Z",
                "9999-12-31T23:59:59.999Z",
            ];
            times[usize::try_from(self.below(3)).unwrap()]
        }

        fn entry(&mut self) -> Value {
            let access = [Value::Null, json!("read"), json!("write")];
            let access = &access[usize::try_from(self.below(3)).unwrap()];
            let permits = self.number();
            json!({
                "token": self.number(), "access": access, "permits": access.is_null().then_some(permits),
                "since": self.time(), "until": self.time(), "released": Value::Null, "idle": self.below(2) == 0,
                "host": self.text(), "pid": self.below(u64::from(u32::MAX)), "label": self.text(),
                "reason": self.text(), "value": self.text(), "owner_id": self.text(),
            })
        }

        fn lock(&mut self) -> LockInfo {
            let kinds = ["mutex", "semaphore", "rwlock", "election", "latch", "barrier"];
            let kind = kinds[usize::try_from(self.below(6)).unwrap()];
            let holders: Vec<_> = (0..self.below(3)).map(|_| self.entry()).collect();
            let waiters: Vec<_> = (0..self.below(3)).map(|_| self.entry()).collect();
            let lock = json!({
                "name": self.text(), "kind": kind, "capacity": self.number(), "token": self.number(),
                "holders": holders, "waiters": waiters, "as_of": "2026-01-01T00:00:00.000Z",
            });
            serde_json::from_value(lock).unwrap()
        }
    }

    #[test]
    fn at_80_columns_holder_and_reason_can_be_read() {
        let (locks, _) = some();
        let shown = "\
NAME             HELD BY                FOR  LEFT  TOKEN    WAIT  WHY
invoice-42       billing@web-1:4711     30m  21s   …312000  1     monthly run
nightly-reports  reports@batch-17.eu.…  4d   21s   …007000  0     the accounts …
請求書-42        web-2:4711             4m   21s   …250000  0     夜間バッチ処…
free             -                      -    -     -        0     -
";
        assert_eq!(formatted(&locks, Some(80)), shown);
    }

    const WHOLE: &str = "\
NAME             KIND       HELD BY                               FOR     LEFT  TOKEN             WAITING  WHY
invoice-42       mutex      billing@web-1:4711                    30m     21s   1767268799312000  1        monthly run
nightly-reports  semaphore  reports@batch-17.eu.example.net:4711  4d 3h   21s   1766912400007000  0        \
the accounts of the whole of last year
請求書-42        mutex      web-2:4711                            4m 14s  21s   1767270345250000  0        \
夜間バッチ処理の実行 🔒🔒
free             election   -                                     -       -     -                 0        -
";

    #[test]
    fn where_there_is_room_everything_is_whole() {
        let (locks, _) = some();
        for within in [None, Some(200)] {
            assert_eq!(formatted(&locks, within), WHOLE);
        }
    }

    /// Whatever a document has: it is printed in lines, none of which the terminal obeys, and not many times its
    /// length.
    #[test]
    fn whatever_a_document_has_can_be_printed() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        for seed in 0..12 {
            let mut random = Random(watchlock_proofs::Random::new(seed));
            let locks = [random.lock(), random.lock()];
            let digits = Digits::of(std::iter::empty());
            let rows: Vec<_> = locks.iter().flat_map(|lock| rows(lock, digits)).collect();
            let length: usize = rows.iter().flatten().map(|cell| cell.whole().len()).sum();
            let whole = formatted(&locks, None);
            assert!(whole.len() <= length + (rows.len() + 1) * 8 * 300, "{seed}");
            for width in [1, 30, 80, 300, 100_000] {
                let table = formatted(&locks, Some(width));
                assert!(table.lines().all(|line| text::width(line) <= width), "{seed}: {width}");
            }
            for lock in &locks {
                let shown = show::in_full(lock, now);
                assert!(
                    !shown.chars().any(|each| each != '\n' && text::is_obeyed(each)),
                    "{seed}"
                );
                for width in [1, 80, usize::MAX] {
                    let line = live::line(lock, Some(0), width);
                    assert!(text::width(&line) <= width, "{seed}: {width}");
                    assert!(!line.chars().any(text::is_obeyed), "{seed}: {width}");
                }
            }
            screen::try_to_draw(locks.into(), now);
        }
    }
}
