//! `watchlock renew` and `watchlock release`: what the later steps do with a lock that `acquire` took.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use watchlock::{
    Detached, FencingToken,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::Step,
    connection::Connection,
    exit::{self, Outcome},
    holder::who,
    json,
    messages::say,
    show::live,
    text::{plain, time},
};

pub(crate) async fn renew(connection: &Connection, step: Step) -> Outcome {
    let locks = connection.prompt().await?.locks().await?;
    let after = locks.renew_detached(&Detached::new(&step.name, step.token)).await?;
    let held = after.iter().flat_map(|lock| &lock.holders);
    let renewed = { held }.find(|holder| holder.token == step.token);
    let present = match renewed {
        Some(_) => None,
        None => locks.inspect(&step.name).await?,
    };
    if !step.output.json
        && let Some(holder) = renewed
    {
        writeln!(io::stdout().lock(), "{}", time(holder.until))?;
    }
    // A client that has it renews it itself.
    told(
        &step,
        "renewed",
        renewed,
        after.as_ref(),
        holding(present.as_ref(), step.token),
    )
}

pub(crate) async fn release(connection: &Connection, step: Step) -> Outcome {
    let locks = connection.prompt().await?.locks().await?;
    let before = locks.inspect(&step.name).await?;
    let holder = holding(before.as_ref(), step.token);
    // An eviction, so that a process that holds the lock all the same learns of it.
    let after = match holder {
        Some(_) => locks.break_holder(&step.name, step.token).await?,
        None => None,
    };
    let released = after.as_ref().and(holder);
    let lock = match after {
        None => locks.inspect(&step.name).await?,
        after => after,
    };
    told(&step, "released", released, lock.as_ref(), None)
}

fn holding(lock: Option<&LockInfo>, token: FencingToken) -> Option<&HolderInfo> {
    lock.into_iter().flat_map(live).find(|holder| holder.token == token)
}

/// Reports the holder whose hold was changed; or that there is none, unless a program has it.
fn told(
    Step { output, token, name }: &Step,
    what: &str,
    changed: Option<&HolderInfo>,
    lock: Option<&LockInfo>,
    by_itself: Option<&HolderInfo>,
) -> Outcome {
    let shown = plain(name);
    match (changed, by_itself) {
        (Some(_), _) => {}
        (None, None) => say(&format!("`{shown}` is not held under the token {token} (any more)")),
        (None, Some(holder)) => {
            let who = who(holder);
            say(&format!(
                "`{shown}` is held under the token {token} by {who}, which renews it itself"
            ));
        }
    }
    let code = if changed.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let written = match output.json {
        true => json::print_change(name, what, changed, lock),
        false => Ok(()),
    };
    exit::after(written, code)
}
