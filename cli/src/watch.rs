//! `watchlock watch`.

use std::{
    convert::Infallible,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    thread,
    time::{Duration, SystemTime},
};

use futures::StreamExt as _;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};
use tokio::{
    sync::oneshot,
    task::AbortHandle,
    time::{sleep, timeout},
};

use crate::{
    arguments::Watch,
    clock::Offset,
    connection::{Connection, Place},
    events::{Events, Seen},
    exit::{Failure, Outcome, UNAVAILABLE},
    json,
    messages::say,
    screen, terminal,
    text::exact,
};

/// Interval at which the server is asked whether it is there, and the time that it has to answer.
const LOOK: Duration = Duration::from_secs(5);

/// Prints or shows the events. `ending` ends the program at a signal; the view has to restore the terminal first, and
/// takes its place.
pub(crate) async fn watch(connection: &Connection, arguments: Watch, ending: Option<AbortHandle>) -> Outcome {
    let kept = &arguments.kept;
    let (place, locks, name) = match &arguments.name {
        Some(name) => {
            let (place, locks, name) = kept.find(name, connection.prompt()).await?;
            (place, locks, Some(name))
        }
        None => {
            kept.check().await?;
            let place = connection.prompt().await?;
            let locks = kept.locks(&place).await?;
            (place, locks, None)
        }
    };
    let events = locks.events(name.as_deref());
    let can_be_drawn = terminal::can_draw(io::stdout()) && io::stdin().is_terminal();
    if can_be_drawn && !arguments.plain && !arguments.output.json {
        let title = arguments.kept.place(&place);
        return screen::show(&place, title, &locks, name, events, ending).await;
    }
    let offset = match arguments.output.json {
        // With the times as they were seen here.
        true => None,
        false => Some(Offset::measure(&place).await?),
    };
    let gone = reader_gone();
    tokio::select! {
        outcome = lines(events, offset) => outcome,
        // The reader has read enough, as `head` does.
        Ok(()) = gone => Ok(ExitCode::SUCCESS),
        never = tell_outages(&place) => match never {},
    }
}

/// Says when the server stops answering, and when it answers again: no event does.
///
/// A try without an answer runs on by itself, with a connection of its own, until the driver's monitor finds the server
/// silent (after some 20 s): two or three of them, and never more than the driver's pool has room for.
pub(crate) async fn tell_outages(place: &Place) -> Infallible {
    let mut is_out = false;
    loop {
        sleep(LOOK).await;
        let answer = timeout(LOOK, Offset::measure(place)).await;
        let trouble = match answer {
            Ok(answer) => answer.err().map(|failure| failure.message().to_owned()),
            Err(_) => Some(format!("the server did not answer within {}", exact(LOOK))),
        };
        match trouble {
            Some(trouble) if !is_out => say(&format!("{trouble}; changes are reported when it answers again")),
            None if is_out => say("the server answers again"),
            _ => continue,
        }
        is_out = !is_out;
    }
}

/// Resolves when nobody reads standard output any more: without events nothing is written that would fail.
pub(crate) fn reader_gone() -> oneshot::Receiver<()> {
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

/// Prints the events as lines, with times by the server's clock; without its offset, as JSON.
async fn lines(mut events: Events, offset: Option<Offset>) -> Outcome {
    while let Some(event) = events.next().await {
        let (name, event) = event?;
        let Some(offset) = offset else {
            json::print_line(&json::Event::new(SystemTime::now(), &name, &event))?;
            continue;
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{}", Seen::new(offset.now(), name, event).line())?;
        out.flush()?;
    }
    Err(Failure::new(UNAVAILABLE, "the event stream has ended"))
}
