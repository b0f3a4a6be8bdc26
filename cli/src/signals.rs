//! Incoming signals.

use std::{fs, io, thread};

use nix::sys::signal::SigSet;
use rustix::process::{self, Signal};
use signal_hook::{
    consts::{SIGCHLD, SIGCONT, SIGTSTP},
    iterator::{Handle, Signals as Iterator},
    low_level::emulate_default_handler,
};
use tokio::{sync::mpsc, task::AbortHandle};

use crate::{
    exit::{self, Failure},
    messages,
};

/// Signals that are passed on to a command.
pub(crate) const PASSED_ON: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// Signals that ask a program to end.
pub(crate) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Signals that stop a program and let it go on.
pub(crate) const JOB_CONTROL: [Signal; 2] = [Signal::TSTP, Signal::CONT];

/// Limits the signals that have arrived and are not processed yet. Only a flood exceeds it, and the dropped ones say
/// nothing new.
const WAITING: usize = 256;

/// Signals taken from their default effect, until the end of the program.
#[derive(Debug)]
pub(crate) struct Signals {
    received: mpsc::Receiver<Received>,
    handle: Handle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// One or more children have ended, stopped or continued.
    Child,
    /// We are asked to stop, as by ^Z.
    Stop,
    /// We have been continued.
    Continue,
    Signal(Signal),
}

/// Lets all signals but one reach this program, regardless of the mask of its parent. Call it before any thread is
/// started, as threads inherit the mask of the thread that starts them.
///
/// A parent that blocks SIGCHLD would make us miss the command's end. SIGTTOU stays blocked: it stops a background
/// program that hands the terminal to another, which is what we do when the command ends.
pub(crate) fn unblock() {
    let mut mask = SigSet::empty();
    mask.add(nix::sys::signal::Signal::SIGTTOU);
    // It only fails for invalid arguments.
    let _ = mask.thread_set_mask();
}

/// Unblocks every signal for the program that this one becomes.
pub(crate) fn unblock_all() {
    let _ = SigSet::empty().thread_set_mask();
}

impl Signals {
    /// Listens to signals. Signals that the program was started to ignore stay ignored, as `nohup` and shells intend.
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

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Received {
        match self.received.recv().await {
            Some(received) => received,
            // The thread ends with this value and not before.
            None => std::future::pending().await,
        }
    }

    /// Waits for a signal that asks the program to end. Stops when asked to. Cancel safe.
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

/// From now on, a signal that asks the program to end does so at once, for a command that leaves nothing behind. The
/// program dies by that signal, so that a script ends with it; the first process of a container can't, as the kernel
/// spares it the default effect of signals, so it exits with the code for it.
///
/// A task of its own waits for the signal, as the command may block its thread: at a question, or at a full pipe.
pub(crate) fn end_at_once() -> Result<AbortHandle, Failure> {
    let mut signals =
        Signals::listen(&ENDING).map_err(|error| Failure::internal(format!("signals can't be received: {error}")))?;
    let ending = tokio::spawn(async move {
        let signal = signals.ending().await;
        messages::settle();
        if !process::getpid().is_init() {
            // It only fails for an unknown signal.
            let _ = emulate_default_handler(signal.as_raw());
        }
        std::process::exit(exit::code_of(signal).into());
    });
    Ok(ending.abort_handle())
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Stops this program, as it would stop if it did not listen; returns when it is continued. Does nothing if there is no
/// shell that could continue it.
pub(crate) fn stop() {
    if crate::job::is_controlled() {
        // It only fails for an invalid signal number.
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

/// Returns the ignored signals, one bit each; none if `/proc` has no information.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
