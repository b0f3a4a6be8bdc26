//! Signals as they come in.

use std::{fs, io, thread};

use rustix::process::Signal;
use signal_hook::{
    consts::SIGCHLD,
    iterator::{Handle, SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause, Origin},
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

/// Takes signals from their default effect, until the end of the program.
#[derive(Debug)]
pub(crate) struct Signals {
    received: mpsc::UnboundedReceiver<Received>,
    handle: Handle,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Received {
    /// A child has ended, or more than one.
    Child,
    Signal {
        signal: Signal,
        /// Sent by another process, and not by the terminal to all in its foreground.
        to_us_alone: bool,
    },
}

impl Signals {
    /// Those that the program was told to ignore when it was started stay ignored, as `nohup` and shells mean it.
    pub(crate) fn listen(to: &[Signal]) -> io::Result<Self> {
        let ignored = ignored();
        let numbers = to.iter().map(|signal| signal.as_raw());
        let heard = numbers.filter(|number| ignored & (1 << (number - 1)) == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(heard.chain([SIGCHLD]))?;
        let handle = signals.handle();
        let (to, received) = mpsc::unbounded_channel();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in signals.forever() {
                if let Some(signal) = read(&origin)
                    && to.send(signal).is_err()
                {
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

    /// Waits for a signal that asks the program to end. Cancel safe.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            if let Received::Signal { signal, .. } = self.next().await
                && ENDING.contains(&signal)
            {
                return signal;
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
    }
}

fn read(origin: &Origin) -> Option<Received> {
    if origin.signal == SIGCHLD {
        return Some(Received::Child);
    }
    Some(Received::Signal {
        signal: Signal::from_named_raw(origin.signal)?,
        to_us_alone: matches!(origin.cause, Cause::Sent(_)),
    })
}

/// The signals that are ignored, a bit for each; none where `/proc` does not tell.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
