//! `watchlock observe`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::SystemTime,
};

use serde::Serialize;
use watchlock::{FencingToken, election::Leader, operate::Events};

use crate::{
    arguments::Observe,
    clock::Offset,
    connection::Connection,
    exit::{self, Failure, Outcome, UNAVAILABLE},
    holder::short,
    json,
    text::{plain, time},
    watch::{reader_gone, tell_outages},
};

#[derive(Debug, Serialize)]
struct Change<'a> {
    at: String,
    election: &'a str,
    leader: Option<&'a Leader>,
}

pub(crate) async fn observe(connection: &Connection, arguments: Observe) -> Outcome {
    let place = connection.prompt().await?;
    let locks = place.locks().await?;
    let election = locks.election(&arguments.name);
    // A lock of another kind has no leader, ever; only this says so.
    let present = election.leader().await?;
    let offset = match arguments.output.json {
        // With the times as they were seen here.
        true => None,
        false => Some(Offset::measure(&place).await?),
    };
    if arguments.once {
        let code = match present {
            Some(_) => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        };
        return exit::after(print(&arguments.name, offset, None, present.as_ref()), code);
    }
    tokio::select! {
        outcome = changes(&arguments.name, offset, election.observe()) => outcome,
        // The reader has read enough, as `head` does.
        Ok(()) = reader_gone() => Ok(ExitCode::SUCCESS),
        never = tell_outages(&place) => match never {},
    }
}

async fn changes(election: &str, offset: Option<Offset>, mut leaders: Events<Option<Leader>>) -> Outcome {
    let mut known = None;
    while let Some(leader) = leaders.next().await {
        let leader = leader?;
        print(election, offset, known, leader.as_ref())?;
        known = leader.map(|leader| leader.token);
    }
    Err(Failure::new(UNAVAILABLE, "the event stream has ended"))
}

/// Prints a leader as a line, with its time by the server's clock; without its offset, as JSON. `known` is the token of
/// the leader that was printed last.
fn print(
    election: &str,
    offset: Option<Offset>,
    known: Option<FencingToken>,
    leader: Option<&Leader>,
) -> io::Result<()> {
    let Some(offset) = offset else {
        let at = time(SystemTime::now());
        return json::print_line(&Change { at, election, leader });
    };
    let at = match leader {
        // It may have been elected long ago. Later it may proclaim another value.
        Some(leader) if known != Some(leader.token) => leader.since,
        _ => offset.now(),
    };
    let told = match leader {
        None => "nobody leads".to_owned(),
        Some(leader) => {
            let by = short(leader.label.as_deref(), &leader.host, leader.pid);
            let value = match &leader.value[..] {
                "" => String::new(),
                value => format!(": {}", plain(value)),
            };
            format!("led by {by}, token {}{value}", leader.token)
        }
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{}  {}  {told}", time(at), plain(election))?;
    out.flush()
}
