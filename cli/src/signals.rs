//! Signals as they come in.

use std::{fs, io, thread};

use nix::sys::signal::SigSet;
use rustix::process::Signal;
use signal_hook::{
    consts::{SIGCHLD, SIGCONT, SIGTSTP},
    iterator::{Handle, Signals as Iterator},
};
use tokio::sync::mpsc;

/// What is passed on to a command.
pub(crate) const PASSED_ON: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// What asks a program to end.
pub(crate) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// What stops a program and lets it go on.
pub(crate) const JOB_CONTROL: [Signal; 2] = [Signal::TSTP, Signal::CONT];

/// Signals that have come in and were not looked at yet. More of them only come from somebody who floods us, and those
/// that are dropped then say nothing new.
const WAITING: usize = 256;

/// Takes signals from their default effect, until the end of the program.
#[derive(Debug)]
pub(crate) struct Signals {
    received: mpsc::Receiver<Received>,
    handle: Handle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// A child has ended, stopped or gone on, or more than one.
    Child,
    /// We are asked to stop, as by ^Z.
    Stop,
    /// We have been continued.
    Continue,
    Signal(Signal),
}

/// Sets which signals reach this program, whatever its parent left: all but one. Call it before any thread is started, as
/// threads have the mask of the thread that starts them.
///
/// A parent that blocks SIGCHLD, and starts us so, would have us miss the command's end. What stays blocked is SIGTTOU: it
/// stops a program in the background that hands the terminal to another, which is what we do when the command ends.
pub(crate) fn unblock() {
    let mut mask = SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTTOU);
    // It only fails for arguments that make no sense.
    let _ = mask.thread_set_mask();
}

/// Sets that every signal reaches what this program becomes.
pub(crate) fn unblock_all() {
    let _ = SigSet::empty().thread_set_mask();
}

impl Signals {
    /// Those that the program was told to ignore when it was started stay ignored, as `nohup` and shells mean it.
    pub(crate) fn listen<'a>(to: impl IntoIterator<Item = &'a Signal>) -> io::Result<Self> {
        let ignored = ignored();
        let numbers = to.into_iter().map(|signal| signal.as_raw());
        let heard = numbers.filter(|number| ignored & (1 << (number - 1)) == 0);
        let mut signals = Iterator::new(heard.chain([SIGCHLD]))?;
        let handle = signals.handle();
        let (to, received) = mpsc::channel(WAITING);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                let Some(received) = read(number) else { continue };
                if let Err(mpsc::error::TrySendError::Closed(_)) = to.try_send(received) {
                    return;
                }
            }
        })?;
        Ok(Self { received, handle })
    }

    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Received {
        match self.received.recv().await {
            Some(received) => received,
            // The thread ends with this value and not before.
            None => std::future::pending().await,
        }
    }

    /// Waits for a signal that asks the program to end. Stops when it is asked to. Cancel safe.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Received::Signal(signal) if ENDING.contains(&signal) => return signal,
                Received::Stop => stop(),
                _ => {}
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Stops this program, as it would stop if it did not listen; returns when it is continued. Nothing happens where there is
/// no shell that could continue it.
pub(crate) fn stop() {
    if crate::job::is_controlled() {
        // It only fails for a number that is no signal's.
        let _ = signal_hook::low_level::raise(Signal::STOP.as_raw());
    }
}

fn read(number: i32) -> Option<Received> {
    Some(match number {
        SIGCHLD => Received::Child,
        SIGTSTP => Received::Stop,
        SIGCONT => Received::Continue,
        other => Received::Signal(Signal::from_named_raw(other)?),
    })
}

/// The signals that are ignored, a bit for each; none where `/proc` does not tell.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
