//! `watchlock renew` and `watchlock release`: what the later steps do with a lock that `acquire` took.

use std::process::ExitCode;

use watchlock::{
    Detached, FencingToken,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::Step,
    connection::Connection,
    exit::Outcome,
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
    // A client that has it renews it itself.
    let code = told(&step, renewed, holding(present.as_ref(), step.token));
    let answer = json::change(&step.name, "renewed", renewed, after.as_ref());
    let until = || renewed.map(|holder| time(holder.until) + "\n").unwrap_or_default();
    step.output.answer(&answer, until, code)
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
    let code = told(&step, released, None);
    let answer = json::change(&step.name, "released", released, lock.as_ref());
    step.output.answer(&answer, String::new, code)
}

fn holding(lock: Option<&LockInfo>, token: FencingToken) -> Option<&HolderInfo> {
    lock.into_iter().flat_map(live).find(|holder| holder.token == token)
}

/// Returns the code of a step that has changed this hold; or says that there is none, or whose it is.
fn told(step: &Step, changed: Option<&HolderInfo>, present: Option<&HolderInfo>) -> ExitCode {
    let (name, token) = (plain(&step.name), step.token);
    let problem = match (changed, present.map(who)) {
        (Some(_), _) => return ExitCode::SUCCESS,
        (None, None) => format!("`{name}` is not held under the token {token} (any more)"),
        (None, Some(who)) => format!("`{name}` is held under the token {token} by {who}, which renews it itself"),
    };
    say(&problem);
    ExitCode::FAILURE
}
