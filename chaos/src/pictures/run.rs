//! A chaos run as a timeline: who held the locks, which faults there were, and which holds were lost.

use std::{fmt::Write as _, path::Path, time::Duration};

use super::canvas::{Canvas, HOLDERS};
use crate::{
    Result,
    clock::{MILLI, Moment, SECOND},
    director::{self, Play},
    history::History,
    journal::Note,
    locks::{ALL, Kind},
    schedule::Mix,
    timeline,
};

const FOLDER: &str = "run";

/// A seed whose second burst has faults of nodes, of clients and of networks.
const SEED: u64 = 359;

/// The time after which no further burst begins: later than the first one ends, as the picture shows the second. During
/// the first the servers still make collections and indexes.
const LASTS: Duration = Duration::from_secs(40);

/// Maximum time that the picture shows.
const SHOWN: Moment = 28 * SECOND;

/// Runs the chaos, and fails if it found anything: then there is more to do than to draw.
pub(super) async fn record(folder: &Path) -> Result<()> {
    let play = Play {
        seed: SEED,
        mix: Mix::default(),
        lasts: LASTS,
        folder: folder.join(FOLDER),
        ignores_loss: false,
    };
    if director::run(play).await? {
        Ok(())
    } else {
        Err("the run broke a promise".into())
    }
}

const WIDTH: u32 = 860;
const LEFT: f64 = 110.0;
const SPAN: f64 = 730.0;
const TOP: f64 = 104.0;
const ROW: f64 = 30.0;
const FAULT: f64 = 17.0;

/// Draws the stored run.
pub(super) fn draw(folder: &Path) -> Result<String> {
    Ok(picture(&History::read(&folder.join(FOLDER))?).ok_or("the record has no fault")?)
}

fn picture(history: &History) -> Option<String> {
    let faults = timeline::faults(history);
    // The cluster is made whole between two bursts.
    let first_over = history.journal.iter().find(|entry| entry.note == Note::Whole)?.at;
    let second = faults
        .iter()
        .map(|(begin, _, _)| *begin)
        .filter(|begin| *begin > first_over)
        .min();
    let begin = second.or_else(|| faults.iter().map(|(begin, _, _)| *begin).min())?;
    let calm = history.journal.iter().find(|entry| entry.note == Note::Calm);
    let start = begin.saturating_sub(SECOND);
    let end = calm
        .map_or(start + SHOWN, |calm| calm.at + 3 * SECOND)
        .min(start + SHOWN);
    #[expect(clippy::cast_precision_loss, reason = "a pixel is many nanoseconds")]
    let x = |at: Moment| LEFT + SPAN * (at.clamp(start, end) - start) as f64 / (end - start) as f64;
    let mut canvas = Canvas::new(WIDTH, "A chaos run: holders of five locks, the faults, and the losses");
    canvas.text("ink head", 20.0, 28.0, "Some seconds of a chaos run");
    canvas.text(
        "soft",
        20.0,
        48.0,
        "Each row is a lock with one holder at a time, each colour a client process. A red mark is a lock that its holder \
         lost.",
    );
    let mut at = 20.0;
    for (number, class) in HOLDERS.iter().enumerate() {
        canvas.rect(class, at, 60.0, 12.0, 12.0);
        canvas.text("soft", at + 17.0, 70.0, &format!("client {number}"));
        at += 80.0;
    }
    canvas.rect("bad", at, 58.0, 3.0, 16.0);
    canvas.text("soft", at + 10.0, 70.0, "lost");
    canvas.rect("fault", at + 50.0, 60.0, 24.0, 12.0);
    canvas.text("soft", at + 80.0, 70.0, "fault");

    let exclusive = || {
        ALL.into_iter()
            .filter(|lock| !matches!(lock.kind, Kind::Semaphore | Kind::RwLock))
    };
    let lanes = exclusive().count();
    let mut y = TOP;
    let row_of_faults = TOP + ROW * f64::from(u32::try_from(lanes).ok()?) + 12.0;
    let shown: Vec<_> = faults
        .iter()
        .filter(|(begin, over, _)| *begin < end && over.is_none_or(|over| over > start))
        .collect();
    let row_of_slow = row_of_faults + FAULT * f64::from(u32::try_from(shown.len()).ok()?) + 8.0;
    let bottom = row_of_slow + FAULT;
    for second in (0..=(end - start) / SECOND).step_by(2) {
        let x = x(start + second * SECOND);
        canvas.line("rule", (x, TOP - 10.0), (x, bottom));
        canvas.centred("soft", x, TOP - 14.0, &format!("{second} s"));
    }
    for lock in exclusive() {
        canvas.text("ink end", LEFT - 10.0, y + 14.0, lock.name);
        lane(&mut canvas, history, lock.name, (start, end), &x, y);
        y += ROW;
    }
    let mut y = row_of_faults;
    canvas.text("ink end", LEFT - 10.0, y + 12.0, "faults");
    for (begin, over, text) in shown {
        let over = over.unwrap_or(end).max(begin + 20 * MILLI);
        let (from, to) = (x(*begin), x(over));
        canvas.rect("fault", from, y, to - from, FAULT - 3.0);
        // Beside the bar where there is room, or before it.
        #[expect(clippy::cast_precision_loss, reason = "a text of a line")]
        let needs = 6.2 * text.chars().count() as f64;
        if from + needs < LEFT + SPAN {
            canvas.text("ink", from + 4.0, y + 11.0, text);
        } else {
            canvas.text("ink end", from - 4.0, y + 11.0, text);
        }
        y += FAULT;
    }
    // Some holds are lost for no other reason: the machine or the servers had no time for renewals.
    canvas.text("ink end", LEFT - 10.0, row_of_slow + 12.0, "slow answers");
    for entry in &history.journal {
        let Note::Slow { millis } = entry.note else { continue };
        let from = entry.at.saturating_sub(millis * MILLI);
        if from < end && entry.at > start {
            let title = format!("the director's write took {millis} ms");
            let bar = [x(from), row_of_slow, x(entry.at) - x(from), FAULT - 3.0];
            canvas.titled("waits", bar, &title);
        }
    }
    Some(canvas.finish(bottom + 16.0))
}

/// Draws the holds of one lock.
fn lane(
    canvas: &mut Canvas,
    history: &History,
    name: &str,
    (start, end): (Moment, Moment),
    x: &impl Fn(Moment) -> f64,
    y: f64,
) {
    let mut marks = Vec::new();
    for operation in history.operations.iter().filter(|operation| operation.name == name) {
        // The director's own looks have no number.
        let Some(class) = client(&operation.client).and_then(|number| HOLDERS.get(number)) else {
            continue;
        };
        let Some(grant) = &operation.grant else { continue };
        let Some(valid_until) = grant.valid_until.filter(|until| *until > start && grant.from < end) else {
            continue;
        };
        let mut title = format!("{} under token {}", operation.client, grant.token);
        if let Some((at, reason)) = grant.lost.as_ref().filter(|(at, _)| (start..end).contains(at)) {
            let _ = write!(title, ", lost: {}", reason.to_lowercase());
            marks.push((*at, title.clone()));
        }
        let until = grant
            .let_go
            .as_ref()
            .map_or(valid_until, |let_go| let_go.at.max(valid_until));
        canvas.titled(class, [x(grant.from), y, x(until) - x(grant.from), 18.0], &title);
    }
    // Above the bars.
    for (at, title) in marks {
        canvas.titled("bad", [x(at) - 1.0, y - 3.0, 3.0, 24.0], &title);
    }
}

/// Returns the number of a client: the second life of `client-3` is `client-3.2`.
fn client(label: &str) -> Option<usize> {
    label.strip_prefix("client-")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::{Grant, Operation},
        journal::{Entry, Reach},
        locks::Share,
    };

    fn history() -> History {
        let note = |at: u64, note| Entry { at: at * SECOND, note };
        let began = |fault, text: &str| Note::Began {
            fault,
            kind: "client killed".to_owned(),
            text: text.to_owned(),
            takes: Vec::new(),
            reach: Reach::Everything,
        };
        let held = |client: &str, from: u64, until: u64, lost: Option<u64>| Operation {
            client: client.to_owned(),
            number: 1,
            task: 0,
            name: "mutex-0".to_owned(),
            share: Share::whole(Kind::Mutex),
            waits: true,
            limit: None,
            requested: from * SECOND,
            grant: Some(Grant {
                token: i64::try_from(from).unwrap(),
                from: from * SECOND,
                safe_at_first: 0,
                valid_until: Some(until * SECOND),
                promised_until: until * SECOND,
                let_go: None,
                lost: lost.map(|at| (at * SECOND, "Expired".to_owned())),
            }),
            ended: None,
            error: None,
            wrote: None,
        };
        History {
            operations: vec![
                held("client-0.1", 5, 6, None),
                held("client-3.2", 31, 33, Some(34)),
                held("director", 32, 33, None),
            ],
            journal: vec![
                note(10, began(1, "the first")),
                note(15, Note::Over { fault: 1 }),
                note(20, Note::Whole),
                note(30, began(2, "the second")),
                note(36, Note::Over { fault: 2 }),
                note(37, Note::Slow { millis: 700 }),
                note(40, Note::Calm),
            ],
            ..History::default()
        }
    }

    #[test]
    fn the_second_burst_is_shown_with_its_holders_faults_and_losses() {
        let drawn = picture(&history()).unwrap();
        assert!(drawn.contains("the second") && !drawn.contains("the first"), "{drawn}");
        assert!(drawn.contains("the director's write took 700 ms"), "{drawn}");
        assert!(drawn.contains("client-3.2 under token 31, lost: expired"), "{drawn}");
        assert!(
            !drawn.contains("client-0.1 under") && !drawn.contains("director under"),
            "{drawn}"
        );
        assert_eq!(
            drawn.matches(r#"<rect class="fourth""#).count(),
            2,
            "the legend, and the hold: {drawn}"
        );
    }
}
