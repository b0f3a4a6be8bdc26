//! `watchlock renew`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use serde::Serialize;
use watchlock::{FencingToken, HolderInfo, LockInfo};

use crate::{
    arguments::Renew,
    connection::Connection,
    exit::{Failure, Outcome},
    json,
    messages::say_not_held,
    text::time,
};

#[derive(Debug, Serialize)]
struct Renewed<'a> {
    name: &'a str,
    renewed: Option<&'a HolderInfo>,
    lock: Option<&'a LockInfo>,
}

pub(crate) async fn renew(connection: &Connection, arguments: Renew) -> Outcome {
    let Renew { output, token, name } = arguments;
    let token = FencingToken::try_from(token).map_err(Failure::usage)?;
    let locks = connection.prompt().await?.locks().await?;
    let after = locks.renew_holder(&name, token).await?;
    let held = after.iter().flat_map(|lock| &lock.holders);
    let renewed = { held }.find(|holder| holder.token == token);
    if output.json {
        json::print(&Renewed {
            name: &name,
            renewed,
            lock: after.as_ref(),
        })?;
    }
    let Some(holder) = renewed else {
        say_not_held(&name, token);
        return Ok(ExitCode::FAILURE);
    };
    if !output.json {
        writeln!(io::stdout().lock(), "{}", time(holder.until))?;
    }
    Ok(ExitCode::SUCCESS)
}
