//! Incoming signals.

use std::{
    fs,
    future::poll_fn,
    io,
    task::{Context, Poll, Waker},
};

use nix::sys::signal::SigSet;
use rustix::process::{self, Signal};
use signal_hook::low_level::emulate_default_handler;
use tokio::{
    signal::unix::{self, SignalKind},
    task::AbortHandle,
};

use crate::{
    exit::{self, Failure},
    messages,
    processes::is_controlled,
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

/// Those of them that a keyboard sends: ^C and ^\.
pub(crate) const KEYBOARD: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// Signals by which a terminal stops a job: by ^Z, and in the background.
pub(crate) const STOPPING: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// Signals taken from their default effect, until the end of the program.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

/// Lets all signals reach this program, regardless of the mask of its parent. Call it before any thread is started, as
/// threads inherit the mask of the thread that starts them. A parent that blocks SIGCHLD would make us miss the
/// command's end.
pub(crate) fn unblock() {
    // It only fails for invalid arguments.
    let _ = SigSet::empty().thread_set_mask();
}

impl Signals {
    /// Listens to signals. Signals that the program was started to ignore stay ignored, as `nohup` and shells intend.
    pub(crate) fn listen<'a>(to: impl IntoIterator<Item = &'a Signal>) -> Result<Self, Failure> {
        let ignored = ignored();
        let heard = to
            .into_iter()
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0);
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

    /// Forgets the requests to stop that have come while this program was about to.
    pub(crate) fn forget_stops(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for (signal, stream) in &mut self.0 {
            if STOPPING.contains(signal) {
                let _ = stream.poll_recv(&mut context);
            }
        }
    }

    /// Waits for a signal that asks the program to end. Stops when asked to. Cancel safe.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                signal if ENDING.contains(&signal) => return signal,
                signal if STOPPING.contains(&signal) && is_controlled() => stop(),
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

/// Stops this program, as it would stop if it did not listen; returns when it is continued.
pub(crate) fn stop() {
    // It only fails for an invalid signal number.
    let _ = process::kill_process(process::getpid(), Signal::STOP);
}

/// Returns the ignored signals, one bit each; none if `/proc` has no information.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
