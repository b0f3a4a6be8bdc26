//! The time while the command runs: signals are passed on, and the command is ended if its lock is lost.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};
use watchlock::LostReason;

use crate::{
    arguments::Care,
    held::Held,
    messages::{fail, say},
    process::Running,
    processes::Descendant,
    signals::{PASSED_ON, STOPPING, Signals},
    text::{exact, plain},
};

/// The end of an attended command.
#[derive(Debug)]
pub(crate) struct End {
    /// Its exit code; `None` for a command that could not be ended.
    pub(crate) ended: Option<u8>,
    pub(crate) lost: Option<LostReason>,
}

/// Returns when the command has ended, or when its lock is lost and it can't be ended. If it lasts longer than
/// `warn_after`, a message says so. If somebody waits for the lock, it gets a signal, where one was asked for.
pub(crate) async fn attend(
    running: &mut Running,
    handle: &Held,
    signals: &mut Signals,
    care: &Care,
    warn_after: Option<Duration>,
) -> End {
    let (mut grace, mut notice) = (care.grace, care.wanted);
    // A limit beyond the clock's range is no limit.
    let mut limit = warn_after.and_then(|most| Some((most, Instant::now().checked_add(most)?)));
    loop {
        if let Some(code) = running.reap() {
            let (ended, lost) = (Some(code), handle.lost_reason());
            return End { ended, lost };
        }
        // The loss comes first, so that a watchlock that was frozen passes nothing on before it checks the lock.
        if let Some(reason) = handle.lost_reason() {
            return end(running, handle, signals, reason, grace).await;
        }
        tokio::select! {
            biased;
            reason = handle.lost() => return end(running, handle, signals, reason, grace).await,
            signal = signals.next() => if STOPPING.contains(&signal) {
                running.stop().await;
                signals.forget_stops();
                if handle.lost_reason().is_some() {
                    // The shell has continued it together with us, and others have the lock by now.
                    grace = Duration::ZERO;
                } else {
                    running.go_on();
                }
            } else if PASSED_ON.contains(&signal) {
                running.pass_on(signal);
            },
            most = passed(limit) => {
                limit = None;
                let (name, most) = (plain(&handle.name()), exact(most));
                say(&format!("`{name}` has been held for {most}; the command is still running"));
            }
            signal = wanted(handle, notice) => {
                notice = None;
                running.pass_on(signal);
            }
        }
    }
}

/// Waits until somebody waits for the lock, and returns the signal for that; forever if there is none.
async fn wanted(handle: &Held, signal: Option<Signal>) -> Signal {
    match signal {
        Some(signal) => {
            handle.wanted().await;
            signal
        }
        None => std::future::pending().await,
    }
}

/// Waits until a limit has passed, and returns its length; forever if there is none.
async fn passed(limit: Option<(Duration, Instant)>) -> Duration {
    match limit {
        Some((most, at)) => {
            sleep_until(at).await;
            most
        }
        None => std::future::pending().await,
    }
}

/// Ends the command, as its lock is lost.
async fn end(running: &mut Running, handle: &Held, signals: &mut Signals, reason: LostReason, grace: Duration) -> End {
    let name = plain(&handle.name());
    fail(&format!("`{name}` is lost: {reason}; the command is terminated"));
    let left = running.terminate(signals, grace).await;
    if !left.is_empty() {
        fail(&format!(
            "these processes could not be ended and go on without the lock: {}",
            names(&left)
        ));
    }
    End {
        ended: running.reap(),
        lost: Some(reason),
    }
}

/// Returns some of the processes by name.
fn names(processes: &[Descendant]) -> String {
    const SHOWN: usize = 10;
    let mut names: Vec<String> = processes.iter().take(SHOWN).map(|it| it.name.clone()).collect();
    if let more @ 1.. = processes.len().saturating_sub(SHOWN) {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}
