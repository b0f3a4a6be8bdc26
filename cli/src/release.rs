//! `watchlock release`.

use std::process::ExitCode;

use serde::Serialize;
use watchlock::{
    FencingToken,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::{Output, Release},
    connection::Connection,
    exit::{self, Failure, Outcome},
    json,
    messages::say_not_held,
    show::live,
};

#[derive(Debug, Serialize)]
struct Given<'a> {
    name: &'a str,
    released: Option<&'a HolderInfo>,
    lock: Option<&'a LockInfo>,
}

pub(crate) async fn release(connection: &Connection, arguments: Release) -> Outcome {
    let Release { output, token, name } = arguments;
    let token = FencingToken::try_from(token).map_err(Failure::usage)?;
    let locks = connection.prompt().await?.locks().await?;
    let before = locks.inspect(&name).await?;
    let held = before.iter().flat_map(live);
    let Some(holder) = { held }.find(|holder| holder.token == token) else {
        return not_held(&name, before.as_ref(), token, output);
    };
    // An eviction, so that a process that holds the lock all the same learns of it.
    let Some(after) = locks.break_holder(&name, token).await? else {
        return not_held(&name, locks.inspect(&name).await?.as_ref(), token, output);
    };
    let given = Given {
        name: &name,
        released: Some(holder),
        lock: Some(&after),
    };
    told(&given, output, ExitCode::SUCCESS)
}

fn not_held(name: &str, lock: Option<&LockInfo>, token: FencingToken, output: Output) -> Outcome {
    say_not_held(name, token);
    let given = Given {
        name,
        released: None,
        lock,
    };
    told(&given, output, ExitCode::FAILURE)
}

fn told(given: &Given<'_>, output: Output, code: ExitCode) -> Outcome {
    let written = if output.json { json::print(given) } else { Ok(()) };
    exit::after(written, code)
}
