//! `watchlock break`.

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use watchlock::{
    FencingToken,
    operate::{HolderInfo, LockInfo},
};

use crate::{
    arguments::{Break, Output},
    connection::Connection,
    exit::{Failure, Outcome},
    json,
    messages::say,
    show::{live, no_trace},
    terminal,
    text::plain,
};

/// The reason why the next holder may not be alone at first.
const GRACE: &str = "The command of an evicted `watchlock run` may go on for its --grace (5s by default).";

pub(crate) async fn break_lock(connection: &Connection, arguments: Break) -> Outcome {
    let Break {
        output,
        kept,
        yes,
        holder,
        name,
    } = arguments;
    if !yes && !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is not a terminal: pass --yes to break the lock",
        ));
    }
    let (_, locks, name) = kept.find(&name, connection.prompt()).await?;
    let Some(before) = locks.inspect(&name).await? else {
        return not_broken(&name, None, &no_trace(&name), output);
    };
    let nobody = format!("nobody holds `{}`", plain(&name));
    if !before.is_held() {
        return not_broken(&name, Some(&before), &nobody, output);
    }
    if holder.is_some_and(|token| !tokens(&before).contains(&token)) {
        let told = format!("nobody holds `{}` under this token", plain(&name));
        return not_broken(&name, Some(&before), &told, output);
    }
    if !yes {
        if !terminal::confirms(&format!("{before}\n{GRACE}\n{}", question(&before, holder)))? {
            return not_broken(&name, Some(&before), "nothing was broken", output);
        }
        // It may have changed hands while the user thought about it.
        let now = locks.inspect(&name).await?;
        // With one holder's token this is certain: no other holder has the same.
        if holder.is_none() && now.as_ref().map(tokens) != Some(tokens(&before)) {
            let told = format!(
                "`{}` has changed hands in the meantime; nothing was broken",
                plain(&name)
            );
            return not_broken(&name, now.as_ref(), &told, output);
        }
    }
    let after = match holder {
        None => match locks.break_lock(&name).await? {
            // Its time ran out in the meantime. A hold that was broken is not in it any more.
            Some(after) if tokens(&after).iter().any(|token| tokens(&before).contains(token)) => {
                return not_broken(&name, Some(&after), &nobody, output);
            }
            after => after,
        },
        Some(token) => match locks.break_holder(&name, token).await? {
            None => {
                let told = format!("`{}` is not held under this token any more", plain(&name));
                return not_broken(&name, locks.inspect(&name).await?.as_ref(), &told, output);
            }
            after => after,
        },
    };
    broken(&name, &before, after.as_ref(), output)
}

/// Reports whom it evicted: the holders of before that are gone.
fn broken(name: &str, before: &LockInfo, after: Option<&LockInfo>, output: Output) -> Outcome {
    let remaining = after.map(tokens).unwrap_or_default();
    let broken: Vec<&HolderInfo> = live(before)
        .filter(|holder| !remaining.contains(&holder.token))
        .collect();
    let lines = || {
        let evicted = broken.iter().map(|holder| format!("evicted: {holder}\n"));
        let now = after.map(|after| format!("now: {after}\n"));
        evicted.chain(now).collect()
    };
    output.answer(&json::change(name, "broken", &broken, after), lines, ExitCode::SUCCESS)
}

fn not_broken(name: &str, lock: Option<&LockInfo>, why: &str, output: Output) -> Outcome {
    say(why);
    let nobody: [HolderInfo; 0] = [];
    output.answer(
        &json::change(name, "broken", nobody, lock),
        String::new,
        ExitCode::FAILURE,
    )
}

fn tokens(lock: &LockInfo) -> Vec<FencingToken> {
    live(lock).map(|holder| holder.token).collect()
}

/// Returns the question before a lock is broken, or one of its holders is evicted.
pub(crate) fn question(lock: &LockInfo, token: Option<FencingToken>) -> String {
    match token {
        None => "Break this lock? [y/N] ".to_owned(),
        Some(token) => {
            let holder = lock.holders.iter().find(|holder| holder.token == token);
            let holder = holder.map(ToString::to_string).unwrap_or_default();
            format!("Evict this holder? {holder} [y/N] ")
        }
    }
}
