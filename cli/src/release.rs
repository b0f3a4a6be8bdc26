//! `watchlock release`.

use std::process::ExitCode;

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

pub(crate) async fn release(connection: &Connection, arguments: Release) -> Outcome {
    let Release { output, token, name } = arguments;
    let token = FencingToken::try_from(token).map_err(Failure::usage)?;
    let locks = connection.prompt().await?.locks().await?;
    let before = locks.inspect(&name).await?;
    let held = before.iter().flat_map(live);
    let Some(holder) = { held }.find(|holder| holder.token == token) else {
        return told(&name, token, None, before.as_ref(), output);
    };
    // An eviction, so that a process that holds the lock all the same learns of it.
    let Some(after) = locks.break_holder(&name, token).await? else {
        return told(&name, token, None, locks.inspect(&name).await?.as_ref(), output);
    };
    told(&name, token, Some(holder), Some(&after), output)
}

fn told(
    name: &str,
    token: FencingToken,
    released: Option<&HolderInfo>,
    lock: Option<&LockInfo>,
    output: Output,
) -> Outcome {
    let code = if released.is_some() {
        ExitCode::SUCCESS
    } else {
        say_not_held(name, token);
        ExitCode::FAILURE
    };
    let written = match output.json {
        true => json::print_change(name, "released", released, lock),
        false => Ok(()),
    };
    exit::after(written, code)
}
