//! A hand-over as a sequence: two clients and the server, with the moments at which the clients sent and received.
//!
//! The times between clients and server are those of the driver's command events, so the picture says nothing about the
//! server that was not seen from a client.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mongodb::{
    Client,
    event::{EventHandler, command::CommandEvent},
    options::ClientOptions,
};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use watchlock::LockClient;
use watchlock_testkit::Cluster;

use super::{canvas::Canvas, load, millis, store};
use crate::{
    Result,
    clock::{Moment, now},
};

const RECORD: &str = "hand-over.json";

/// Number of hand-overs, of which the picture shows the one of median duration; odd, so that there is one.
const ROUNDS: usize = 21;

/// Number of hand-overs before them, which open the connections.
const WARM_UP: usize = 3;

/// The time for which both clients are at rest before the release: longer than opening a stream takes.
const REST: Duration = Duration::from_millis(500);

/// Maximum time for anything that the scene waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The clients, by their places in the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Holder,
    Waiter,
}

/// An event at a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Called(String),
    Returned(String),
    Sent {
        command: String,
        request: i32,
    },
    /// `events`: the number of documents in the answer of a change stream.
    Answered {
        command: String,
        request: i32,
        events: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    at: Moment,
    side: Side,
    what: What,
}

/// The record of the scene.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// From the call of `release` to the return of `acquire` in the other client, in nanoseconds, sorted.
    durations: Vec<u64>,
    /// Whether the clients were built with optimisation, without which they take a good part of the time.
    optimised: bool,
    /// The hand-over of median duration.
    seen: Vec<Seen>,
}

/// The events of the present round.
#[derive(Clone, Debug, Default)]
struct Witness(Arc<Mutex<Vec<Seen>>>);

impl Witness {
    fn note(&self, side: Side, what: What) {
        let at = now();
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(Seen { at, side, what });
    }

    fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets everything but the last read of the waiter's stream, which may still be on its way.
    fn forget(&self) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listens = seen.iter().rposition(|seen| {
            let asks = matches!(&seen.what, What::Sent { command, .. } if command == "getMore");
            seen.side == Side::Waiter && asks
        });
        *seen = listens.map(|at| seen[at].clone()).into_iter().collect();
    }

    /// Waits until something was seen.
    async fn until(&self, what: &str, is_seen: impl Fn(&[Seen]) -> bool) -> Result<()> {
        let begun = Instant::now();
        while !is_seen(&self.seen()) {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{what} was not seen within {PATIENCE:?}").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Makes a client whose commands are noted.
    async fn client(&self, uri: &str, side: Side) -> Result<LockClient> {
        let witness = self.clone();
        let mut options = ClientOptions::parse(uri).await?;
        options.command_event_handler = Some(EventHandler::callback(move |event| match event {
            CommandEvent::Started(started) => {
                let (command, request) = (started.command_name, started.request_id);
                witness.note(side, What::Sent { command, request });
            }
            CommandEvent::Succeeded(succeeded) => {
                let batch = succeeded
                    .reply
                    .get_document("cursor")
                    .and_then(|cursor| cursor.get_array("nextBatch"));
                let what = What::Answered {
                    command: succeeded.command_name,
                    request: succeeded.request_id,
                    events: batch.map_or(0, Vec::len),
                };
                witness.note(side, what);
            }
            _ => {}
        }));
        let database = Client::with_options(options)?.database("pictures");
        Ok(LockClient::builder(database).build().await?)
    }
}

/// Hands a lock over again and again, and stores the hand-over of median duration.
pub(super) async fn record(folder: &Path) -> Result<()> {
    let cluster = Cluster::replica_set(3).await?;
    let witness = Witness::default();
    let holder = witness.client(&cluster.uri(), Side::Holder).await?;
    let waiter = witness.client(&cluster.uri(), Side::Waiter).await?;
    let observer = LockClient::builder(cluster.client().await?.database("pictures"))
        .build()
        .await?;
    // While the waiting client holds a lock for long, its stream stays open, as in a service with several locks.
    let other = waiter.mutex("another").acquire().await?;
    let mut rounds = Vec::new();
    for round in 0..WARM_UP + ROUNDS {
        let seen = hand_over(&witness, &holder, &waiter, &observer).await?;
        if round >= WARM_UP {
            rounds.push((duration(&seen).ok_or("a hand-over without an end")?, seen));
        }
    }
    other.release().await?;
    for client in [holder, waiter, observer] {
        client.shutdown().await;
    }
    rounds.sort_by_key(|(duration, _)| *duration);
    let record = Record {
        durations: rounds.iter().map(|(duration, _)| *duration).collect(),
        optimised: !cfg!(debug_assertions),
        seen: rounds.swap_remove(ROUNDS / 2).1,
    };
    store(folder, RECORD, &record)
}

async fn hand_over(
    witness: &Witness,
    holder: &LockClient,
    waiter: &LockClient,
    observer: &LockClient,
) -> Result<Vec<Seen>> {
    const NAME: &str = "invoice-42";
    witness.forget();
    let called = |side, what: &str| witness.note(side, What::Called(what.to_owned()));
    let returned = |side, what: &str| witness.note(side, What::Returned(what.to_owned()));
    called(Side::Holder, "acquire()");
    let held = holder.mutex(NAME).acquire().await?;
    returned(Side::Holder, "acquire()");

    let mutex = waiter.mutex(NAME);
    let waiting = tokio::spawn({
        let witness = witness.clone();
        async move {
            witness.note(Side::Waiter, What::Called("acquire()".to_owned()));
            let handle = mutex.acquire().await;
            witness.note(Side::Waiter, What::Returned("acquire()".to_owned()));
            handle
        }
    });
    let begun = Instant::now();
    while observer.inspect(NAME).await?.is_none_or(|lock| lock.waiters.is_empty()) {
        if begun.elapsed() > PATIENCE {
            return Err("the waiter did not get into the queue".into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    sleep(REST).await;

    called(Side::Holder, "release()");
    held.release().await?;
    returned(Side::Holder, "release()");
    let next = waiting.await??;
    // Its first renewal makes a full lease of the short one that it was given.
    witness
        .until("the first renewal", |seen| renewal(seen).is_some_and(|(_, end)| end))
        .await?;
    let seen = witness.seen();
    next.release().await?;
    Ok(seen)
}

/// Returns the position of the waiter's first command after its grant, and whether that was answered.
fn renewal(seen: &[Seen]) -> Option<(usize, bool)> {
    let is_granted = |seen: &Seen| seen.side == Side::Waiter && matches!(seen.what, What::Returned(_));
    let granted = seen.iter().position(is_granted)?;
    let renewal = seen[granted..].iter().position(|seen| {
        let is_renewal = matches!(&seen.what, What::Sent { command, .. } if command != "getMore");
        seen.side == Side::Waiter && is_renewal
    })?;
    let What::Sent { request: sent, .. } = seen[granted + renewal].what else {
        return None;
    };
    let answers = |seen: &Seen| matches!(seen.what, What::Answered { request, .. } if request == sent);
    Some((granted + renewal, seen.iter().any(answers)))
}

fn find(seen: &[Seen], of: Side, what: &What) -> Option<usize> {
    seen.iter().position(|seen| seen.side == of && seen.what == *what)
}

/// Returns the duration of the hand-over.
fn duration(seen: &[Seen]) -> Option<u64> {
    let release = find(seen, Side::Holder, &What::Called("release()".to_owned()))?;
    let granted = find(seen, Side::Waiter, &What::Returned("acquire()".to_owned()))?;
    seen[granted].at.checked_sub(seen[release].at)
}

const WIDTH: u32 = 860;
const HOLDER: f64 = 190.0;
const SERVER: f64 = 475.0;
const WAITER: f64 = 760.0;
const TOP: f64 = 108.0;
const ROW: f64 = 27.0;

/// Draws the stored hand-over.
pub(super) fn draw(folder: &Path) -> Result<String> {
    Ok(picture(&load(folder, RECORD)?).ok_or("the record has no whole hand-over")?)
}

fn picture(record: &Record) -> Option<String> {
    let mut drawing = Drawing::new(record)?;
    drawing.heading()?;
    drawing.lifelines();
    drawing.pause();
    for (index, text) in drawing.shown.clone() {
        drawing.event(&record.seen[index], drawing.row(index), text);
    }
    drawing.span();
    let bottom = drawing.bottom();
    Some(drawing.canvas.finish(bottom + 16.0))
}

/// The picture in the making. The moments are positions in what was seen.
struct Drawing<'a> {
    canvas: Canvas,
    record: &'a Record,
    /// The holder has the lock.
    held: usize,
    /// The waiter asks for it.
    waits: usize,
    /// The holder calls `release`.
    release: usize,
    /// The waiter has the lock.
    granted: usize,
    /// The events to show, with their texts.
    shown: Vec<(usize, &'static str)>,
    /// The lowest event.
    last: usize,
}

impl<'a> Drawing<'a> {
    /// Begins the picture; `None` if the record lacks a part of the hand-over.
    fn new(record: &'a Record) -> Option<Self> {
        let seen = &record.seen;
        let shown = shown(seen)?;
        Some(Self {
            canvas: Canvas::new(
                WIDTH,
                "A hand-over as a sequence: the holder's release is the write that grants the lock to the waiter",
            ),
            record,
            held: find(seen, Side::Holder, &What::Returned("acquire()".to_owned()))?,
            waits: find(seen, Side::Waiter, &What::Called("acquire()".to_owned()))?,
            release: find(seen, Side::Holder, &What::Called("release()".to_owned()))?,
            granted: find(seen, Side::Waiter, &What::Returned("acquire()".to_owned()))?,
            last: shown.last()?.0,
            shown,
        })
    }

    /// Returns the height at which an event is drawn.
    fn row(&self, index: usize) -> f64 {
        let before = self.shown.iter().filter(|(shown, _)| *shown < index).count();
        // The pause before the release.
        let pause = if index >= self.release { ROW } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "there are some twenty rows")]
        let rows = before as f64;
        TOP + 12.0 + ROW * rows + pause
    }

    fn bottom(&self) -> f64 {
        self.row(self.last) + 26.0
    }

    /// Writes the title and the duration; `None` if there is none.
    fn heading(&mut self) -> Option<()> {
        let Record {
            durations,
            optimised,
            seen,
        } = self.record;
        self.canvas
            .text("ink head", 20.0, 28.0, "A hand-over, as it was seen by the two clients");
        let of_all = format!(
            "{} ms from release() to the return of acquire(): the median of {} on a replica set of three on one \
             machine ({} to {} ms){}",
            millis(duration(seen)?),
            durations.len(),
            millis(*durations.first()?),
            millis(*durations.last()?),
            if *optimised { "" } else { ", not optimised" }
        );
        self.canvas.text("soft", 20.0, 48.0, &of_all);
        Some(())
    }

    /// Draws the clients and the server, and when which client had the lock or waited for it.
    fn lifelines(&mut self) {
        let bottom = self.bottom();
        for (x, name) in [(HOLDER, "holder"), (SERVER, "MongoDB"), (WAITER, "waiter")] {
            self.canvas.line("rule", (x, TOP - 14.0), (x, bottom));
            self.canvas.centred("ink bold", x, TOP - 22.0, name);
        }
        self.canvas.text("soft end", 84.0, TOP - 22.0, "ms");
        let granted = self.row(self.granted);
        for (class, x, from, to) in [
            ("first", HOLDER, self.row(self.held), self.row(self.release)),
            ("waits", WAITER, self.row(self.waits), granted),
            ("second", WAITER, granted, bottom),
        ] {
            self.canvas.rect(class, x - 5.0, from, 10.0, to - from);
        }
    }

    /// Draws the pause before the release.
    fn pause(&mut self) {
        let y = self.row(self.release) - ROW + 4.0;
        self.canvas.text("soft end", 84.0, y, "…");
        self.canvas.centred(
            "soft",
            f64::midpoint(SERVER, WAITER),
            y,
            "the stream waits for the next event",
        );
    }

    /// Draws an event at its client, or an arrow between its client and the server.
    fn event(&mut self, seen: &Seen, y: f64, text: &str) {
        let canvas = &mut self.canvas;
        let zero = self.record.seen[self.release].at;
        canvas.text("soft end", 84.0, y + 4.0, &offset(seen.at, zero));
        let (client, towards) = match seen.side {
            Side::Holder => (HOLDER, 1.0),
            Side::Waiter => (WAITER, -1.0),
        };
        let (near, far) = (client + 6.0 * towards, SERVER - 2.0 * towards);
        let (from, to) = match seen.what {
            What::Called(_) | What::Returned(_) => {
                canvas.dot("ink", client, y, 4.0);
                let class = match seen.side {
                    Side::Holder => "ink bold",
                    Side::Waiter => "ink bold end",
                };
                return canvas.text(class, client + 12.0 * towards, y + 4.0, text);
            }
            What::Sent { .. } => (near, far),
            What::Answered { .. } => (far, near),
        };
        canvas.arrow(from, to, y);
        canvas.centred("soft", f64::midpoint(client, SERVER), y - 5.0, text);
    }

    /// Draws the duration of the hand-over.
    fn span(&mut self) {
        let (from, to) = (self.row(self.release), self.row(self.granted));
        let x = 100.0;
        self.canvas.line("alarm", (x, from), (x, to));
        self.canvas.line("alarm", (x - 4.0, from), (x + 4.0, from));
        self.canvas.line("alarm", (x - 4.0, to), (x + 4.0, to));
    }
}

/// Writes a moment as milliseconds after the release, or before it.
#[expect(clippy::cast_precision_loss, reason = "microseconds are enough")]
fn offset(at: Moment, zero: Moment) -> String {
    let offset = (i128::from(at) - i128::from(zero)) as f64 / 1e6;
    if offset < -100.0 {
        format!("{offset:+.0}")
    } else {
        format!("{offset:+.2}")
    }
}

/// Returns the events to show, with their texts: those of the acquires, the hand-over and the first renewal. Left out
/// are all reads of the stream but the one that brought the grant.
fn shown(seen: &[Seen]) -> Option<Vec<(usize, &'static str)>> {
    let release = find(seen, Side::Holder, &What::Called("release()".to_owned()))?;
    let granted = find(seen, Side::Waiter, &What::Returned("acquire()".to_owned()))?;
    let (renewal, _) = renewal(seen)?;
    let request_at = |index: usize| match seen.get(index)?.what {
        What::Sent { request, .. } | What::Answered { request, .. } => Some(request),
        _ => None,
    };
    // The first command of a side after a call.
    let command_after = |index: usize| {
        let side = seen[index].side;
        (index..seen.len()).find(|index| {
            let sent = matches!(&seen[*index].what, What::Sent { command, .. } if command != "getMore");
            seen[*index].side == side && sent
        })
    };
    let answer_to = |index: usize| {
        let (side, request) = (seen[index].side, request_at(index)?);
        let answers = |seen: &Seen| matches!(seen.what, What::Answered { request: of, .. } if of == request);
        seen.iter().position(|seen| seen.side == side && answers(seen))
    };
    let held = find(seen, Side::Holder, &What::Called("acquire()".to_owned()))?;
    let waits = find(seen, Side::Waiter, &What::Called("acquire()".to_owned()))?;
    let mut shown = Vec::new();
    for (index, seen) in seen.iter().enumerate() {
        let text = match (&seen.what, seen.side) {
            (What::Called(what), _) if what == "release()" => "release()",
            (What::Called(_), _) => "acquire()",
            (What::Returned(what), _) if what == "release()" => "released",
            (What::Returned(_), _) => "has the lock",
            _ => continue,
        };
        shown.push((index, text));
    }
    let exchanges = [
        (command_after(held)?, "acquire", "granted, under a token"),
        (command_after(waits)?, "acquire", "queued behind the holder"),
        (
            command_after(release)?,
            "release; the same write grants to the next",
            "released",
        ),
        (renewal, "first renewal", "full lease"),
    ];
    for (sent, asks, says) in exchanges {
        shown.extend([(sent, asks), (answer_to(sent)?, says)]);
    }
    let brought = (0..granted).rev().find(|index| {
        let news = matches!(seen[*index].what, What::Answered { events: 1.., .. });
        seen[*index].side == Side::Waiter && news
    })?;
    let asked = request_at(brought)?;
    let listens = seen.iter().position(|seen| {
        let asks = matches!(seen.what, What::Sent { request, .. } if request == asked);
        seen.side == Side::Waiter && asks
    })?;
    shown.push((brought, "change event: the grant"));
    // Where it was sent long before, the reader sees that the stream was open.
    shown.push((listens, "reads its change stream"));
    shown.sort_by_key(|(index, _)| *index);
    shown.dedup_by_key(|(index, _)| *index);
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> Vec<Seen> {
        use Side::{Holder, Waiter};
        let called = |what: &str| What::Called(what.to_owned());
        let returned = |what: &str| What::Returned(what.to_owned());
        let sent = |command: &str, request| What::Sent {
            command: command.to_owned(),
            request,
        };
        let answered = |command: &str, request, events| What::Answered {
            command: command.to_owned(),
            request,
            events,
        };
        let seen = [
            (0, Waiter, sent("getMore", 7)),
            (10, Holder, called("acquire()")),
            (11, Holder, sent("findAndModify", 1)),
            (12, Holder, answered("findAndModify", 1, 0)),
            (13, Holder, returned("acquire()")),
            (20, Waiter, called("acquire()")),
            (21, Waiter, sent("findAndModify", 2)),
            (23, Waiter, answered("findAndModify", 2, 0)),
            // A read that brings nothing is not shown.
            (30, Waiter, answered("getMore", 7, 0)),
            (31, Waiter, sent("getMore", 8)),
            (500, Holder, called("release()")),
            (501, Holder, sent("findAndModify", 3)),
            (503, Waiter, answered("getMore", 8, 1)),
            (504, Waiter, returned("acquire()")),
            (505, Holder, answered("findAndModify", 3, 0)),
            (506, Holder, returned("release()")),
            (600, Waiter, sent("update", 4)),
            (603, Waiter, answered("update", 4, 0)),
        ];
        let seen = seen.map(|(at, side, what)| Seen {
            at: at * 1_000_000,
            side,
            what,
        });
        seen.to_vec()
    }

    #[test]
    fn the_picture_has_the_grant_by_the_event_and_the_time_it_took() {
        let seen = scene();
        assert_eq!(duration(&seen), Some(4_000_000));
        let shown = shown(&seen).unwrap();
        let texts: Vec<_> = shown.iter().map(|(index, text)| (*index, *text)).collect();
        assert!(texts.contains(&(12, "change event: the grant")), "{texts:?}");
        assert!(texts.contains(&(9, "reads its change stream")), "{texts:?}");
        assert!(!texts.iter().any(|(index, _)| [0, 8].contains(index)), "{texts:?}");
        let record = Record {
            durations: vec![3_000_000, 4_000_000, 5_500_000],
            optimised: false,
            seen,
        };
        let drawn = picture(&record).unwrap();
        assert!(
            drawn.contains("4.0 ms from release()") && drawn.contains("(3.0 to 5.5 ms), not optimised"),
            "{drawn}"
        );
        assert!(drawn.contains(">+4.00</text>"), "{drawn}");
    }

    #[test]
    fn a_hand_over_that_no_event_brought_is_not_drawn() {
        let mut seen = scene();
        seen.retain(|seen| !matches!(seen.what, What::Answered { events: 1.., .. }));
        let record = Record {
            durations: vec![1],
            optimised: true,
            seen,
        };
        assert_eq!(picture(&record), None);
    }
}
