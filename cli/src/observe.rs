//! `watchlock observe`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::SystemTime,
};

use serde::Serialize;
use watchlock::{Leader, Leaders};

use crate::{
    arguments::Observe,
    connection::Connection,
    exit::{self, Failure, Outcome, UNAVAILABLE},
    holder::short,
    json,
    text::{plain, time},
    watch::reader_gone,
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
    if arguments.once {
        let code = match present {
            Some(_) => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        };
        return exit::after(print(&arguments, present.as_ref()), code);
    }
    tokio::select! {
        outcome = changes(election.observe(), &arguments) => outcome,
        // The reader has read enough, as `head` does.
        Ok(()) = reader_gone() => Ok(ExitCode::SUCCESS),
    }
}

async fn changes(mut leaders: Leaders, arguments: &Observe) -> Outcome {
    while let Some(leader) = leaders.next().await {
        print(arguments, leader?.as_ref())?;
    }
    Err(Failure::new(UNAVAILABLE, "the event stream has ended"))
}

fn print(arguments: &Observe, leader: Option<&Leader>) -> io::Result<()> {
    let at = time(SystemTime::now());
    if arguments.output.json {
        let election = &arguments.name[..];
        return json::print_line(&Change { at, election, leader });
    }
    let name = plain(&arguments.name);
    let mut out = io::stdout().lock();
    match leader {
        None => writeln!(out, "{at}  {name}  nobody leads")?,
        Some(leader) => {
            let by = short(leader.label.as_deref(), &leader.host, leader.pid);
            let value = match &leader.value[..] {
                "" => String::new(),
                value => format!(": {}", plain(value)),
            };
            writeln!(out, "{at}  {name}  led by {by}, token {}{value}", leader.token)?;
        }
    }
    out.flush()
}
