//! `watchlock release`.

use std::process::ExitCode;

use watchlock::{
    Detached, FencingToken, Released,
    errors::{AcquireError, ReleaseError},
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::{Output, Release},
    connection::Connection,
    exit::{self, Failure, Outcome, UNAVAILABLE},
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
    let released = match locks.attach(&Detached::new(&name, token)).await {
        Ok(Some(handle)) => handle.release().await.map_err(not_released)? != Released::WasLost,
        Ok(None) => false,
        // An eviction, so that the process that has the lock all the same learns of it.
        Err(AcquireError::Held { .. }) => locks.break_holder(&name, token).await?.is_some(),
        Err(error) => return Err(error.into()),
    };
    let after = locks.inspect(&name).await?;
    told(&name, token, Some(holder).filter(|_| released), after.as_ref(), output)
}

fn not_released(error: ReleaseError) -> Failure {
    match error {
        ReleaseError::Server { error, .. } => error.into(),
        error => Failure::new(UNAVAILABLE, error),
    }
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
