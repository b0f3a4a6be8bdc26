//! The time while the command runs: signals are passed on, stops of the job are followed, and the command is ended if
//! its lock is lost.
//!
//! Nobody renews the lock while watchlock is stopped, so the order is: the command stops first and then watchlock;
//! watchlock is continued first, checks the lock, and then continues the command, or kills it while it is stopped.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use watchlock::LostReason;

use crate::{
    arguments::Care,
    descendants,
    held::Held,
    job,
    messages::{fail, say},
    process::{Ended, Running},
    signals::{self, Signals},
    text::{exact, plain},
};

/// Interval for checking the command without a signal: none announces that the job has come to the foreground, or that
/// the command has stopped in the kernel.
const TICK: Duration = Duration::from_secs(1);

/// Limit for checking the lock before a stopped command goes on. If the server does not answer, the lease decides:
/// nobody else gets the lock before its end.
const LOOK_AT_LOCK: Duration = Duration::from_secs(2);

/// Limit for waiting for our own stop request to the whole job: it comes to us as well.
const ECHO: Duration = Duration::from_secs(1);

/// The end of an attended command.
#[derive(Debug)]
pub(crate) struct End {
    /// `None` for a command that could not be ended.
    pub(crate) ended: Option<Ended>,
    pub(crate) lost: Option<LostReason>,
    /// The keyboard's signal that ended only the command, as it had the terminal.
    pub(crate) by_keyboard: Option<Signal>,
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
    let (grace, mut notice) = (care.grace, care.wanted);
    // A limit beyond the clock's range is no limit.
    let mut limit = warn_after.and_then(|most| Instant::now().checked_add(most));
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seemed_stopped = false;
    loop {
        if let Some(ended) = running.reap() {
            return ended_by_itself(running, handle, ended);
        }
        // The loss comes first, so that a watchlock that was frozen passes nothing on before it checks the lock.
        if let Some(reason) = handle.lost_reason() {
            return end(running, handle, signals, reason, grace).await;
        }
        if let Some(signal) = running.new_stop() {
            follow(running, handle, signals, signal).await;
            continue;
        }
        tokio::select! {
            biased;
            reason = handle.lost() => return end(running, handle, signals, reason, grace).await,
            signal = signals.next() => match signal {
                Signal::CHILD => {}
                // The kernel ignores a stop of a job that nobody can continue, and so do we.
                Signal::TSTP => if job::is_controlled() {
                    suspend(running, handle).await;
                },
                Signal::CONT => if running.is_stopped() {
                    resume(running, handle).await;
                },
                signal => running.pass_on(signal),
            },
            () = sleep_until(limit.unwrap_or_else(Instant::now)), if limit.is_some() => {
                limit = None;
                let (name, most) = (plain(&handle.name()), exact(warn_after.unwrap_or_default()));
                say(&format!("`{name}` has been held for {most}; the command is still running"));
            }
            () = handle.wanted(), if notice.is_some() => {
                notice.take().into_iter().for_each(|signal| running.pass_on(signal));
            }
            _ = tick.tick() => {
                running.notice_foreground();
                let seems_stopped = running.seems_stopped();
                if seems_stopped && seemed_stopped {
                    follow(running, handle, signals, Signal::TSTP).await;
                }
                seemed_stopped = seems_stopped && !seemed_stopped;
            }
        }
    }
}

fn ended_by_itself(running: &mut Running, handle: &Held, ended: Ended) -> End {
    let by_keyboard = [Signal::INT, Signal::QUIT].into_iter().find(|signal| {
        let number = u8::try_from(signal.as_raw()).unwrap_or(0);
        ended == Ended::Signal(number)
    });
    let had_terminal = running.take_terminal(false);
    End {
        ended: Some(ended),
        lost: handle.lost_reason(),
        by_keyboard: by_keyboard.filter(|_| had_terminal),
    }
}

/// Ends the command, as its lock is lost. Messages follow only once that has begun.
async fn end(running: &mut Running, handle: &Held, signals: &mut Signals, reason: LostReason, grace: Duration) -> End {
    running.begin_to_terminate();
    let name = plain(&handle.name());
    fail(&format!("`{name}` is lost: {reason}; the command is terminated"));
    let left = running.terminate(signals, grace).await;
    let ended = running.reap();
    running.take_terminal(true);
    if !left.is_empty() {
        fail(&format!(
            "these processes could not be ended and go on without the lock: {}",
            names(&left)
        ));
    }
    End {
        ended,
        lost: Some(reason),
        by_keyboard: None,
    }
}

/// Returns some of the processes by name.
fn names(pids: &[Pid]) -> String {
    const SHOWN: usize = 10;
    let mut names: Vec<_> = pids.iter().take(SHOWN).map(|pid| descendants::named(*pid)).collect();
    if pids.len() > SHOWN {
        names.push(format!("and {} more", pids.len() - SHOWN));
    }
    names.join(", ")
}

/// Follows a stop of the command: by the keyboard, by its reading from a terminal that it does not have, or by anybody
/// else.
async fn follow(running: &mut Running, handle: &Held, signals: &mut Signals, signal: Signal) {
    let by_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU].contains(&signal);
    if by_terminal && signal != Signal::TSTP && running.give_terminal() {
        // We are in the foreground, and the command asked for the terminal.
        running.go_on();
    } else if job::is_controlled() {
        if by_terminal {
            // The keyboard would have stopped the neighbours too, had the command been in their group.
            job::signal_our_group(Signal::TSTP);
            // It must not stop us once more when we are continued.
            let _ = timeout(ECHO, echo(running, signals)).await;
        }
        suspend(running, handle).await;
    } else if signal == Signal::TSTP {
        // Nobody could continue it, and the kernel would not have stopped it in our group.
        running.go_on();
    } else {
        let name = plain(&handle.name());
        say(&format!(
            "the command is stopped ({}); it keeps `{name}` until it continues or ends",
            signal_name(signal)
        ));
    }
}

/// Waits for a request to stop.
async fn echo(running: &Running, signals: &mut Signals) {
    loop {
        match signals.next().await {
            Signal::TSTP => return,
            Signal::CHILD | Signal::CONT => {}
            signal => running.pass_on(signal),
        }
    }
}

fn signal_name(signal: Signal) -> String {
    nix::sys::signal::Signal::try_from(signal.as_raw()).map_or_else(
        |_| format!("signal {}", signal.as_raw()),
        |name| name.as_str().to_owned(),
    )
}

/// Stops the command and then this program. Returns when it has been continued, and the command after it if the lock is
/// still held.
async fn suspend(running: &mut Running, handle: &Held) {
    running.stop().await;
    if running.reap().is_some() {
        return;
    }
    running.forget_terminal();
    signals::stop();
    resume(running, handle).await;
}

/// Lets the command go on if its lock is still held.
async fn resume(running: &mut Running, handle: &Held) {
    // An answer without our hold makes the handle lost; so does the end of the lease.
    let _ = timeout(LOOK_AT_LOCK, handle.look()).await;
    if handle.lost_reason().is_none() {
        running.go_on();
    }
}
