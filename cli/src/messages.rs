//! Messages for the user, on standard error.
//!
//! A paused terminal (^S) or a full pipe blocks its writer. So a separate thread writes the messages, and nobody waits
//! for it: a command whose lock is lost must end whether or not somebody reads.

use std::{
    io::{self, Write as _},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::text::plain;

/// Limits the messages that wait for standard error, and the others are lost: a run says a handful.
const WAITING: usize = 64;

/// Limits how long the end of the program waits for the messages to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Interval at which the end of the program checks whether the queue has room again.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug)]
enum Message {
    Line(String),
    /// One line that stays on the screen until the next message takes its place; empty for none.
    Live(String),
    /// Answered once everything before it has been written.
    Settle(SyncSender<()>),
}

/// `None`: no thread can be started.
static WRITER: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

/// Whether only failures are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on, prints only messages about the program's failure.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a message about the progress, unless that is not wanted.
pub(crate) fn say(message: &str) {
    if !is_quiet() {
        fail(message);
    }
}

/// Writes a line to standard error, as soon as it accepts one. Standard output is for the results, and for the command
/// that is run.
pub(crate) fn fail(message: &str) {
    let line = format!("watchlock: {}\n", plain(message));
    let Some(writer) = writer() else {
        // Nobody may be there to read it.
        let _ = io::stderr().write_all(line.as_bytes());
        return;
    };
    let _ = writer.try_send(Message::Line(line));
}

/// Shows a line at the terminal in place of the last live line; an empty text removes that line. A line that finds the
/// queue full is left out, as the next one says more.
pub(crate) fn show(line: &str) {
    if !is_quiet()
        && let Some(writer) = writer()
    {
        let _ = writer.try_send(Message::Live(plain(line)));
    }
}

/// Waits until the messages have been written, but not for long.
pub(crate) fn settle() {
    settle_within(LAST_WORDS);
}

/// Waits until the messages have been written, but not for longer than this.
pub(crate) fn settle_within(limit: Duration) {
    let Some(Some(writer)) = WRITER.get() else { return };
    let end = Instant::now() + limit;
    let (settled, written) = sync_channel(1);
    let mut request = Message::Settle(settled);
    loop {
        match writer.try_send(request) {
            Ok(()) => break,
            Err(TrySendError::Full(again)) if Instant::now() < end => request = again,
            Err(_) => return,
        }
        thread::sleep(LOOK);
    }
    // An error means that they are not written. A reader that does not read does not miss them.
    let _ = written.recv_timeout(end.saturating_duration_since(Instant::now()));
}

fn writer() -> Option<&'static SyncSender<Message>> {
    WRITER
        .get_or_init(|| {
            let (sender, messages) = sync_channel(WAITING);
            let started = thread::Builder::new()
                .name("messages".to_owned())
                .spawn(move || write(&messages));
            started.ok().map(|_| sender)
        })
        .as_ref()
}

fn write(messages: &Receiver<Message>) {
    /// To the start of the line, and with nothing on it.
    const CLEARED: &str = "\r\u{1b}[2K";
    let mut is_shown = false;
    for message in messages {
        // Errors: nobody may be there to read it.
        match message {
            Message::Line(line) => {
                let before = if std::mem::take(&mut is_shown) { CLEARED } else { "" };
                let _ = io::stderr().write_all(format!("{before}{line}").as_bytes());
            }
            Message::Live(line) => {
                if is_shown || !line.is_empty() {
                    let _ = io::stderr().write_all(format!("{CLEARED}{line}").as_bytes());
                }
                is_shown = !line.is_empty();
            }
            Message::Settle(settled) => {
                let _ = settled.try_send(());
            }
        }
    }
}
