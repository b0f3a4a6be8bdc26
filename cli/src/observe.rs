//! `watchlock observe`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::SystemTime,
};

use serde::Serialize;
use watchlock::{
    FencingToken,
    operate::{Events, HolderInfo},
};

use crate::{
    arguments::Observe,
    clock::Offset,
    connection::{Connection, Place},
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
    leader: Option<&'a HolderInfo>,
}

pub(crate) async fn observe(connection: &Connection, arguments: Observe) -> Outcome {
    let place = connection.prompt().await?;
    let locks = place.locks().await?;
    let election = locks.election(&arguments.name);
    // A lock of another kind has no leader, ever; only this says so.
    let present = election.leader().await?;
    let mut printer = Printer::new(&place, &arguments).await?;
    if arguments.once {
        let code = match present {
            Some(_) => ExitCode::SUCCESS,
            None => ExitCode::FAILURE,
        };
        return exit::after(printer.print(present.as_ref()), code);
    }
    tokio::select! {
        outcome = changes(election.observe(), printer) => outcome,
        // The reader has read enough, as `head` does.
        Ok(()) = reader_gone() => Ok(ExitCode::SUCCESS),
        never = tell_outages(&place) => match never {},
    }
}

async fn changes(mut leaders: Events<Option<HolderInfo>>, mut printer: Printer<'_>) -> Outcome {
    while let Some(leader) = leaders.next().await {
        printer.print(leader?.as_ref())?;
    }
    Err(Failure::new(UNAVAILABLE, "the event stream has ended"))
}

/// Prints leaders: as JSON, or as lines with times by the server's clock.
struct Printer<'a> {
    election: &'a str,
    /// For lines.
    offset: Option<Offset>,
    /// The token of the leader that was printed last.
    known: Option<FencingToken>,
}

impl<'a> Printer<'a> {
    async fn new(place: &Place, arguments: &'a Observe) -> Result<Self, Failure> {
        let offset = match arguments.output.json {
            true => None,
            false => Some(Offset::measure(place).await?),
        };
        Ok(Self {
            election: &arguments.name,
            offset,
            known: None,
        })
    }

    fn print(&mut self, leader: Option<&HolderInfo>) -> io::Result<()> {
        let Some(offset) = self.offset else {
            let (at, election) = (time(SystemTime::now()), self.election);
            return json::print_line(&Change { at, election, leader });
        };
        let known = std::mem::replace(&mut self.known, leader.map(|leader| leader.token));
        let at = match leader {
            // It may have been elected long ago. Later it may proclaim another value.
            Some(leader) if known != Some(leader.token) => leader.since,
            _ => offset.now(),
        };
        let (at, name) = (time(at), plain(self.election));
        let mut out = io::stdout().lock();
        match leader {
            None => writeln!(out, "{at}  {name}  nobody leads")?,
            Some(leader) => {
                let by = short(leader.owner.label.as_deref(), &leader.owner.host, leader.owner.pid);
                let value = match leader.owner.value.as_deref() {
                    None | Some("") => String::new(),
                    Some(value) => format!(": {}", plain(value)),
                };
                writeln!(out, "{at}  {name}  led by {by}, token {}{value}", leader.token)?;
            }
        }
        out.flush()
    }
}
