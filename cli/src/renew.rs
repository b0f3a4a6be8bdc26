//! `watchlock renew`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use serde::Serialize;
use watchlock::{
    FencingToken,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::Renew,
    connection::Connection,
    exit::{self, Failure, Outcome},
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
    let code = if renewed.is_some() {
        ExitCode::SUCCESS
    } else {
        say_not_held(&name, token);
        ExitCode::FAILURE
    };
    let written = match renewed {
        _ if output.json => json::print(&Renewed {
            name: &name,
            renewed,
            lock: after.as_ref(),
        }),
        Some(holder) => writeln!(io::stdout().lock(), "{}", time(holder.until)),
        None => Ok(()),
    };
    exit::after(written, code)
}
