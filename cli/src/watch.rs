//! `watchlock watch`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::Pin,
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use futures::{Stream, StreamExt as _};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::sync::oneshot;
use watchlock::{LockClient, LockEvent, OperateError};

use crate::{
    arguments::Watch,
    connection::Connection,
    exit::{Failure, Outcome, UNAVAILABLE},
    json, screen,
    text::{plain, time},
};

/// Age beyond which a grant counts as present before the watch began.
const JUST_NOW: Duration = Duration::from_secs(2);

/// A stream of events, each with the name of its lock.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<(String, LockEvent), OperateError>>>>;

pub(crate) async fn watch(connection: &Connection, arguments: Watch) -> Outcome {
    let place = connection.prompt().await?;
    let locks = place.locks().await?;
    let events = events(&locks, arguments.name.as_deref());
    if io::stdout().is_terminal() && io::stdin().is_terminal() && !arguments.plain && !arguments.output.json {
        return screen::show(&place, &locks, arguments.name, events).await;
    }
    let gone = reader_gone();
    tokio::select! {
        outcome = lines(events, arguments.output.json) => outcome,
        // The reader has read enough, as `head` does.
        Ok(()) = gone => Ok(ExitCode::SUCCESS),
    }
}

/// Resolves when nobody reads standard output any more: without events nothing is written that would fail.
fn reader_gone() -> oneshot::Receiver<()> {
    let (tell, gone) = oneshot::channel();
    let wait = move || {
        let out = io::stdout();
        loop {
            // Errors are reported without being requested.
            let mut polled = [PollFd::new(&out, PollFlags::empty())];
            match poll(&mut polled, None) {
                Ok(_) if polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => break,
                Ok(_) | Err(Errno::INTR) => {}
                // It can't be determined; then the next event finds out.
                Err(_) => return,
            }
        }
        // Nobody waits for it when the program ends.
        let _ = tell.send(());
    };
    // If no thread can be started, the next event finds out.
    let _ = thread::Builder::new().name("reader".to_owned()).spawn(wait);
    gone
}

fn events(locks: &LockClient, name: Option<&str>) -> Events {
    match name {
        None => Box::pin(locks.watch_all()),
        Some(name) => {
            let name = name.to_owned();
            let events = locks.watch(&name);
            Box::pin(events.map(move |event| Ok((name.clone(), event?))))
        }
    }
}

async fn lines(mut events: Events, json: bool) -> Outcome {
    while let Some(event) = events.next().await {
        let (name, event) = event?;
        let at = SystemTime::now();
        if json {
            if let Some(event) = json::Event::new(at, &name, &event) {
                json::print_line(&event)?;
            }
            continue;
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{}", line(at, &name, &event))?;
        out.flush()?;
    }
    Err(Failure::new(UNAVAILABLE, "there are no more events"))
}

pub(crate) fn line(at: SystemTime, name: &str, event: &LockEvent) -> String {
    let at = match event {
        // A grant from before the watch keeps its time, by the server's clock.
        LockEvent::Granted { holder, .. } if holder.since + JUST_NOW < at => holder.since,
        _ => at,
    };
    let why = match event {
        LockEvent::Granted { holder, .. } => holder.reason.as_deref(),
        _ => None,
    };
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{}  {}  {event}{why}", time(at), plain(name))
}
