//! `watchlock show`.

use std::{fmt::Write as _, process::ExitCode, time::SystemTime};

use watchlock::operate::{HolderInfo, Kind, LockInfo};

use crate::{
    arguments::Show,
    connection::Connection,
    exit::Outcome,
    holder::is_at_risk,
    messages::say,
    text::{plain, span, time},
};

pub(crate) async fn show(connection: &Connection, arguments: Show) -> Outcome {
    let (_, locks, name) = arguments.kept.find(&arguments.name, connection.prompt()).await?;
    let lock = locks.inspect(&name).await?;
    let code = if lock.is_some() {
        ExitCode::SUCCESS
    } else {
        say(&no_trace(&name));
        ExitCode::FAILURE
    };
    let text = || lock.as_ref().map(|lock| in_full(lock, lock.as_of)).unwrap_or_default();
    arguments.output.answer(&lock, text, code)
}

pub(crate) fn no_trace(name: &str) -> String {
    format!(
        "there is no trace of a lock `{}`: nobody holds it or waits for it",
        plain(name)
    )
}

/// Returns the holders whose time is not over. `inspect` shows the others too, for as long as nobody asks for the lock.
pub(crate) fn live(lock: &LockInfo) -> impl Iterator<Item = &HolderInfo> {
    lock.holders.iter().filter(|holder| holder.until > lock.as_of)
}

/// Describes a lock in full. Writing to a String can't fail.
pub(crate) fn in_full(lock: &LockInfo, now: SystemTime) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "name    {}", plain(&lock.name));
    let _ = match (lock.kind, lock.capacity) {
        (Kind::Semaphore, Some(1)) => writeln!(text, "kind    semaphore of 1 permit"),
        (Kind::Semaphore, Some(permits)) => writeln!(text, "kind    semaphore of {permits} permits"),
        (kind, _) => writeln!(text, "kind    {kind}"),
    };
    let _ = writeln!(text, "token   {}, the last one issued", lock.token);
    if lock.holders.is_empty() {
        let _ = writeln!(text, "holder  nobody");
    }
    for holder in &lock.holders {
        let _ = writeln!(text, "holder  {holder}");
        let (since, until) = (time(holder.since), time(holder.until));
        let _ = writeln!(text, "          since  {since}, {} ago", span(holder.since, now));
        let _ = if let (Some(released), true) = (holder.released, holder.until > now) {
            let (at, ago, left) = (time(released), span(released, now), span(now, holder.until));
            let _ = writeln!(text, "          done   {at}, {ago} ago: released, and kept taken");
            writeln!(text, "          until  {until}, in {left}: then it opens")
        } else if holder.until > now {
            if holder.idle {
                let _ = writeln!(
                    text,
                    "          idle   nobody holds it, as of 5s ago at most; its client gives it back if another waits"
                );
            }
            if holder.detached {
                let _ = writeln!(text, "          detached: no process has it");
            }
            let (left, late) = (span(now, holder.until), is_at_risk(holder, now));
            let told = if late { "not renewed in time" } else { "unless renewed" };
            writeln!(text, "          until  {until}, in {left}, {told}")
        } else {
            let over = span(holder.until, now);
            writeln!(
                text,
                "          until  {until}: the lease expired {over} ago; the next client that asks gets the lock"
            )
        };
        said(&mut text, told(lock.kind, "leads "), holder.owner.value.as_deref());
        said(&mut text, "why   ", holder.owner.reason.as_deref());
    }
    for (position, waiter) in lock.waiters.iter().enumerate() {
        let lead = format!("waiter  {}. {waiter}", position + 1);
        let _ = writeln!(text, "{lead}, for {}", span(waiter.since, now));
        if waiter.until <= now {
            let (until, over) = (time(waiter.until), span(waiter.until, now));
            let _ = writeln!(
                text,
                "          until  {until}: silent for too long, expired {over} ago; it is passed over"
            );
        }
        said(&mut text, told(lock.kind, "value "), waiter.owner.value.as_deref());
        said(&mut text, "why   ", waiter.owner.reason.as_deref());
    }
    for past in &lock.past {
        let _ = writeln!(text, "past    {past}");
        let _ = writeln!(
            text,
            "          since  {}, for {}, until {} ago",
            time(past.since),
            span(past.since, past.ended),
            span(past.ended, now)
        );
        said(&mut text, told(lock.kind, "led   "), past.owner.value.as_deref());
        said(&mut text, "why   ", past.owner.reason.as_deref());
    }
    text
}

/// Returns the heading of a holder's value; `leader` is that of a value that a leader proclaims.
fn told(kind: Kind, leader: &'static str) -> &'static str {
    match kind {
        Kind::Latch => "party ",
        Kind::Barrier => "told  ",
        _ => leader,
    }
}

fn said(text: &mut String, what: &str, said: Option<&str>) {
    if let Some(said) = said {
        let _ = writeln!(text, "          {what} {}", plain(said));
    }
}
