//! `watchlock watch`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::Pin,
    time::SystemTime,
};

use futures::{Stream, StreamExt as _};
use watchlock::{LockClient, LockEvent, OperateError};

use crate::{
    arguments::Watch,
    connection::Connection,
    exit::{Failure, Outcome, UNAVAILABLE},
    json, screen,
    text::{plain, time},
};

/// Each event with the name of its lock.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<(String, LockEvent), OperateError>>>>;

pub(crate) async fn watch(connection: &Connection, arguments: Watch) -> Outcome {
    let place = connection.prompt().await?;
    let locks = place.locks().await?;
    let events = events(&locks, arguments.name.as_deref());
    if io::stdout().is_terminal() && io::stdin().is_terminal() && !arguments.plain && !arguments.output.json {
        return screen::show(&place, &locks, arguments.name, events).await;
    }
    lines(events, arguments.output.json).await
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
    let why = match event {
        LockEvent::Granted { holder, .. } => holder.reason.as_deref(),
        _ => None,
    };
    let why = why.map(|why| format!(": {}", plain(why))).unwrap_or_default();
    format!("{}  {}  {event}{why}", time(at), plain(name))
}
