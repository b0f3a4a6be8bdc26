//! The frozen holder: what becomes of the write that it had decided on before it was frozen, with a fence and without.

use std::{env, fs, io, path::Path, process::Stdio, time::Duration};

use mongodb::{
    Collection,
    bson::{Document, doc},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncWriteExt as _,
    process::Command,
    time::{Instant, sleep},
};
use watchlock::{FenceError, LockClient, LockHandle};
use watchlock_testkit::{Cluster, signal};

use super::canvas::Canvas;
use crate::{
    Result,
    client::connect,
    clock::{MILLI, Moment, SECOND, now},
    record::{self, Log},
};

const RECORD: &str = "frozen.jsonl";

const DATABASE: &str = "pictures";
const LOCK: &str = "report";

/// The lease of both clients; short, so that the picture is.
const LEASE: Duration = Duration::from_secs(2);

/// The time for which the first process stays frozen: longer than its lease.
const FROZEN: Duration = Duration::from_millis(4_500);

/// The time between the notable moments of the scene, so that they don't touch in the picture.
const PACE: Duration = Duration::from_millis(700);

/// Maximum time for anything that the scene waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process that a line is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Process {
    First,
    Second,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    at: Moment,
    process: Process,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Waits,
    Granted {
        token: i64,
    },
    /// It found its handle valid for so many nanoseconds more, and goes on to write.
    Looked {
        safe_for: u64,
    },
    Frozen,
    Thawed,
    /// The write without a fence was answered.
    Plain {
        written: bool,
    },
    /// The same write with a fence.
    Fenced {
        written: bool,
    },
    Lost {
        reason: String,
    },
    /// The end of the scene.
    End,
}

struct Scene {
    log: Log,
    process: Process,
    documents: Collection<Document>,
}

impl Scene {
    async fn new(uri: &str, file: &Path, process: Process) -> Result<(Self, LockClient)> {
        let label = if process == Process::First { "first" } else { "second" };
        let database = connect(uri, DATABASE, label).await?;
        let scene = Self {
            log: Log::open(file)?,
            process,
            documents: database.collection("reports"),
        };
        let locks = LockClient::builder(database).lease(LEASE).label(label).build().await?;
        Ok((scene, locks))
    }

    fn note(&self, what: What) {
        self.note_at(now(), self.process, what);
    }

    fn note_at(&self, at: Moment, process: Process, what: What) {
        self.log.write(&Line { at, process, what });
    }

    /// Writes to both documents, to one of them with a fence.
    async fn write(&self, handle: &LockHandle) -> Result<()> {
        let update = doc! { "$set": { "by": handle.token().as_i64() } };
        let written = self
            .documents
            .update_one(doc! { "_id": "plain" }, update.clone())
            .await?;
        self.note(What::Plain {
            written: written.modified_count == 1,
        });
        let fenced = handle
            .fence()
            .update_one(&self.documents, doc! { "_id": "fenced" }, update);
        let written = match fenced.await {
            Ok(written) => written.modified_count == 1,
            Err(FenceError::Fenced(_)) => false,
            Err(error) => return Err(error.into()),
        };
        self.note(What::Fenced { written });
        Ok(())
    }
}

/// Runs as the first process: takes the lock, finds it valid, and writes when its standard input says so, without
/// another look.
pub(crate) async fn holder(uri: &str, file: &Path) -> Result<()> {
    let (scene, locks) = Scene::new(uri, file, Process::First).await?;
    let handle = locks.mutex(LOCK).acquire().await?;
    scene.note(What::Granted {
        token: handle.token().as_i64(),
    });
    sleep(PACE).await;
    let at = now();
    if let Some(reason) = handle.lost_reason() {
        return Err(format!("lost at once: {reason}").into());
    }
    let safe_for = u64::try_from(handle.safe_for().as_nanos())?;
    scene.note_at(at, Process::First, What::Looked { safe_for });
    // The thread stands still, as in the computation between a check and the write.
    tokio::task::block_in_place(|| io::stdin().read_line(&mut String::new()))?;
    scene.write(&handle).await?;
    let at = now();
    let reason = handle
        .lost_reason()
        .map_or("none".to_owned(), |reason| format!("{reason:?}"));
    scene.note_at(at, Process::First, What::Lost { reason });
    Ok(())
}

pub(super) async fn record(folder: &Path) -> Result<()> {
    let file = folder.join(RECORD);
    if file.exists() {
        fs::remove_file(&file)?;
    }
    let cluster = Cluster::replica_set(1).await?;
    let (scene, locks) = Scene::new(&cluster.uri(), &file, Process::Second).await?;
    let reports = ["plain", "fenced"].map(|id| doc! { "_id": id, "by": 0_i64 });
    scene.documents.insert_many(reports).await?;

    let mut first = Command::new(env::current_exe()?)
        .args(["frozen", "--uri", &cluster.uri(), "--folder"])
        .arg(&file)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pid = first.id().ok_or("the first process is gone")?;
    let mut keyboard = first.stdin.take().ok_or("no standard input")?;
    until(&file, |what| matches!(what, What::Granted { .. })).await?;

    scene.note(What::Waits);
    let mutex = locks.mutex(LOCK);
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    until(&file, |what| matches!(what, What::Looked { .. })).await?;
    let at = now();
    signal::freeze(pid)?;
    scene.note_at(at, Process::First, What::Frozen);
    let frozen = Instant::now();

    let handle = waiting.await??;
    scene.note(What::Granted {
        token: handle.token().as_i64(),
    });
    sleep(PACE).await;
    scene.write(&handle).await?;
    sleep(FROZEN.saturating_sub(frozen.elapsed())).await;
    // It is there when the process wakes up.
    keyboard.write_all(b"go on\n").await?;
    let at = now();
    signal::thaw(pid)?;
    scene.note_at(at, Process::First, What::Thawed);
    let status = first.wait().await?;
    if !status.success() {
        return Err(format!("the first process ended with {status}").into());
    }
    sleep(PACE).await;
    if let Some(reason) = handle.lost_reason() {
        return Err(format!("the second process lost the lock: {reason}").into());
    }
    scene.note(What::End);
    handle.release().await?;
    locks.shutdown().await;
    Ok(())
}

/// Waits until a line is in the record.
async fn until(file: &Path, is_it: impl Fn(&What) -> bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let lines: Vec<Line> = record::read(file)?;
        if lines.iter().any(|line| is_it(&line.what)) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err("the first process did not come to its point".into());
        }
        sleep(Duration::from_millis(2)).await;
    }
}

const WIDTH: u32 = 860;
const LEFT: f64 = 170.0;
const SPAN: f64 = 660.0;
const TOP: f64 = 100.0;
const ROW: f64 = 46.0;
const BAR: f64 = 20.0;

/// Draws the stored scene.
pub(super) fn draw(folder: &Path) -> Result<String> {
    let mut lines: Vec<Line> = record::read(&folder.join(RECORD))?;
    lines.sort_by_key(|line| line.at);
    Ok(picture(&lines).ok_or("the record lacks a part of the scene")?)
}

fn picture(lines: &[Line]) -> Option<String> {
    let at = |process: Process, is_it: &dyn Fn(&What) -> bool| {
        let line = lines.iter().find(|line| line.process == process && is_it(&line.what))?;
        Some((line.at, &line.what))
    };
    let granted = |process| match at(process, &|what| matches!(what, What::Granted { .. }))? {
        (at, What::Granted { token }) => Some((at, *token)),
        _ => None,
    };
    let written = |process| match (
        at(process, &|what| matches!(what, What::Plain { .. }))?,
        at(process, &|what| matches!(what, What::Fenced { .. }))?,
    ) {
        ((plain, What::Plain { written }), (fenced, What::Fenced { written: through })) => {
            Some(((plain, *written), (fenced, *through)))
        }
        _ => None,
    };
    let (first, first_token) = granted(Process::First)?;
    let (second, second_token) = granted(Process::Second)?;
    let (waits, _) = at(Process::Second, &|what| *what == What::Waits)?;
    let (looked, look) = at(Process::First, &|what| matches!(what, What::Looked { .. }))?;
    let What::Looked { safe_for } = look else { return None };
    let (frozen, _) = at(Process::First, &|what| *what == What::Frozen)?;
    let (thawed, _) = at(Process::First, &|what| *what == What::Thawed)?;
    let (lost, loss) = at(Process::First, &|what| matches!(what, What::Lost { .. }))?;
    let What::Lost { reason } = loss else { return None };
    let (end, _) = at(Process::Second, &|what| *what == What::End)?;
    let ((second_plain, second_plain_through), (second_fenced, second_fenced_through)) = written(Process::Second)?;
    let ((first_plain, first_plain_through), (first_fenced, first_fenced_through)) = written(Process::First)?;

    let start = first.saturating_sub(300 * MILLI);
    #[expect(clippy::cast_precision_loss, reason = "a pixel is many nanoseconds")]
    let x = |at: Moment| LEFT + SPAN * at.saturating_sub(start) as f64 / (end - start) as f64;
    let row = |number: u32| TOP + ROW * f64::from(number);
    let mut canvas = Canvas::new(
        WIDTH,
        "A frozen holder: its late write goes through without a fence, and is refused with one",
    );
    canvas.text(
        "ink head",
        20.0,
        28.0,
        "A holder that is frozen between its check and its write",
    );
    canvas.text(
        "soft",
        20.0,
        48.0,
        "A real run: two processes, SIGSTOP and SIGCONT, and a lease of 2 s. Both write to two documents, to one of them \
         with a fence.",
    );
    let bottom = row(4) + 6.0;
    for second in 0..=(end - first) / SECOND {
        let x = x(first + second * SECOND);
        canvas.line("rule", (x, TOP - 14.0), (x, bottom));
        canvas.centred("soft", x, TOP - 20.0, &format!("{second} s"));
    }
    for (number, label) in ["first process", "second process", "without a fence", "with a fence"]
        .into_iter()
        .zip(0..)
        .map(|(label, number)| (number, label))
    {
        canvas.text("ink end", LEFT - 10.0, row(number) + 14.0, label);
    }
    let mut bar = |class: &str, number: u32, from: Moment, to: Moment, text: &str| {
        canvas.rect(class, x(from), row(number), x(to) - x(from), BAR);
        canvas.centred("ink", f64::midpoint(x(from), x(to)), row(number) + 14.0, text);
    };
    let (first_name, second_name) = (short(first_token), short(second_token));
    // The first process's knowledge: after its look it may rely on the lock for this time.
    let safe_until = looked + safe_for;
    bar("first", 0, first, safe_until.min(frozen), "");
    bar("waits", 0, frozen, thawed, "frozen");
    bar("waits", 1, waits, second, "waits");
    bar("second", 1, second, end, &format!("holds, token {second_name}"));
    bar(
        "second",
        2,
        second_plain,
        first_plain,
        &format!("written under {second_name}"),
    );
    if first_plain_through {
        bar("bad", 2, first_plain, end, "");
    } else {
        bar("second", 2, first_plain, end, "");
    }
    bar("second", 3, second_fenced, end, &format!("written under {second_name}"));

    // The moments, numbered, and told below.
    let yes = |through: bool| if through { "goes through" } else { "is refused" };
    let moments = [
        (
            first,
            0,
            format!("The first process gets the lock, under token {first_name}."),
        ),
        (
            looked,
            0,
            format!(
                "It checks its handle: valid for {} s more. It goes on to write.",
                seconds(*safe_for)
            ),
        ),
        (frozen, 0, "It is frozen, before the write.".to_owned()),
        (
            second,
            1,
            format!("Its lease is over, and the second process gets the lock, under token {second_name}."),
        ),
        (
            second_plain,
            2,
            format!(
                "The second process writes: without a fence, it {}.",
                yes(second_plain_through)
            ),
        ),
        (
            second_fenced,
            3,
            format!("With a fence, it {}.", yes(second_fenced_through)),
        ),
        (
            thawed,
            0,
            "The first process goes on where it was, and knows nothing.".to_owned(),
        ),
        (
            first_plain,
            2,
            format!("Its late write without a fence {}.", yes(first_plain_through)),
        ),
        (
            first_fenced,
            3,
            format!(
                "The same write with a fence {}: its token is the smaller one.",
                yes(first_fenced_through)
            ),
        ),
        (
            lost,
            0,
            format!(
                "Its next look at its handle reports the loss: {}.",
                reason.to_lowercase()
            ),
        ),
    ];
    let mut y = bottom + 26.0;
    let mut last = [f64::MIN; 4];
    for (number, (at, of_row, text)) in moments.iter().enumerate() {
        let row_index = usize::try_from(*of_row).ok()?;
        let (true_x, top) = (x(*at), row(*of_row));
        let bad = number == 7 && first_plain_through;
        let good = number == 8 && !first_fenced_through;
        let class = if bad {
            "bad"
        } else if good {
            "good"
        } else {
            "ink"
        };
        canvas.rect(class, true_x - 1.0, top - 3.0, 2.0, BAR + 6.0);
        // Moments close to each other: their numbers stand side by side.
        let label_x = true_x.max(last[row_index] + 15.0);
        last[row_index] = label_x;
        canvas.centred(
            &format!("{class} bold"),
            label_x,
            top + BAR + 15.0,
            &(number + 1).to_string(),
        );
        canvas.text(&format!("{class} bold end"), 40.0, y, &(number + 1).to_string());
        let offset = i128::from(*at) - i128::from(first);
        canvas.text(
            "soft end",
            96.0,
            y,
            &format!("{} s", seconds(u64::try_from(offset).ok()?)),
        );
        canvas.text(class, 106.0, y, text);
        y += 18.0;
    }
    Some(canvas.finish(y))
}

/// The last digits of a token distinguish it.
fn short(token: i64) -> String {
    let text = token.to_string();
    format!("…{}", &text[text.len().saturating_sub(6)..])
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
        let kept = picture(&scene(false)).unwrap();
        assert!(kept.contains("The same write with a fence is refused"), "{kept}");
        let broken = picture(&scene(true)).unwrap();
        assert!(broken.contains("The same write with a fence goes through"), "{broken}");
        assert!(kept.contains("5.010 s") && kept.contains("…000002"), "{kept}");
    }

    #[test]
    fn a_record_that_lacks_a_part_is_not_drawn() {
        let whole = scene(false);
        for missing in 0..whole.len() {
            let mut lines = whole.clone();
            lines.remove(missing);
            assert!(picture(&lines).is_none(), "{:?}", whole[missing]);
        }
    }
}
