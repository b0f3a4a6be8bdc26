//! Incoming signals.

use std::{fs, future::poll_fn, io, task::Poll};

use nix::sys::signal::SigSet;
use rustix::process::{self, Signal};
use signal_hook::low_level::emulate_default_handler;
use tokio::{
    signal::unix::{self, SignalKind},
    task::AbortHandle,
};

use crate::{
    exit::{self, Failure},
    job::is_controlled,
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

/// Signals that tell of a command and its job: a child has ended or stopped; we are asked to stop, as by ^Z; we have been
/// continued.
pub(crate) const JOB_CONTROL: [Signal; 3] = [Signal::CHILD, Signal::TSTP, Signal::CONT];

/// Signals taken from their default effect, until the end of the program.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

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

/// Unblocks every signal, for the program that this one becomes, or for a view that has no business in the background.
pub(crate) fn unblock_all() {
    let _ = SigSet::empty().thread_set_mask();
}

impl Signals {
    /// Listens to signals. Signals that the program was started to ignore stay ignored, as `nohup` and shells intend, but
    /// for those of children: the kernel would reap a child itself, and its end be unknown.
    pub(crate) fn listen<'a>(to: impl IntoIterator<Item = &'a Signal>) -> Result<Self, Failure> {
        let ignored = ignored();
        let heard = to
            .into_iter()
            .filter(|signal| **signal == Signal::CHILD || ignored & (1 << (signal.as_raw() - 1)) == 0);
        let streams = heard.map(|signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)));
        let streams = streams.collect::<io::Result<_>>();
        streams
            .map(Self)
            .map_err(|error| Failure::internal(format!("signals can't be received: {error}")))
    }

    /// Waits for the next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for a signal that asks the program to end. Stops when asked to. Cancel safe.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                signal if ENDING.contains(&signal) => return signal,
                Signal::TSTP => stop(),
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
    let mut signals = Signals::listen(&ENDING)?;
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

/// Stops this program, as it would stop if it did not listen; returns when it is continued. Does nothing if there is no
/// shell that could continue it.
pub(crate) fn stop() {
    if is_controlled() {
        // It only fails for an invalid signal number.
        let _ = process::kill_process(process::getpid(), Signal::STOP);
    }
}

/// Returns the ignored signals, one bit each; none if `/proc` has no information.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
