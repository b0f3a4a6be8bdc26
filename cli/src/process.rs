//! The command that runs under a lock: starting, signalling, ending and reaping it.
//!
//! The command is in watchlock's own process group, as under `env`, `nice` or `flock`: so a terminal interrupts both, a
//! shell stops and continues both, and both may read from the terminal.
//!
//! A command must not go on when watchlock is killed, as nobody renews the lock then. Linux kills a child together with
//! the thread that started it if the child has asked for it, and only the child itself can ask. So there is a step in
//! between: watchlock starts itself as a step, which asks and then becomes the command.

use std::{
    ffi::OsString,
    io::{self, ErrorKind},
    os::unix::process::CommandExt as _,
    process::Command,
    thread,
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{self, Pid, Signal, WaitOptions, WaitStatus},
};
use tokio::time::{Instant, interval, sleep};

use crate::{
    exit::{Failure, INTERNAL, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED},
    messages::say,
    processes::{Descendant, descendants, is_controlled, is_in_foreground},
    signals::{self, ENDING, KEYBOARD, PASSED_ON, Signals},
};

/// First argument of the step, by which watchlock recognizes it.
pub(crate) const STEP: &str = "__become";

/// Interval at which a command that is being ended or stopped is checked for remaining processes.
const LOOK: Duration = Duration::from_millis(20);

/// Limit for killing processes that can't be killed: another user's, or stuck in the kernel. Nobody waits longer.
const STUBBORN: Duration = Duration::from_secs(2);

/// Time for a command to stop by itself, as an editor does that resets the terminal first.
const STOPS_ITSELF: Duration = Duration::from_millis(100);

/// Limit for waiting until everything has stopped. A process stuck in the kernel stops when it leaves the kernel.
const STOPS: Duration = Duration::from_secs(1);

/// A started command.
#[derive(Debug)]
pub(crate) struct Running {
    pid: Pid,
    /// The exit code as a shell reports it, once the command has ended.
    ended: Option<u8>,
}

impl Running {
    /// Starts the command. Call it on the main thread: the command is killed when the thread that started it ends.
    pub(crate) fn start(
        command: &[OsString],
        environment: &[(&str, &str)],
        without: Option<&str>,
    ) -> Result<Self, Failure> {
        // Descendants that lose their parent become our children, so that they are found. If that is refused, they are
        // not: nothing else depends on it.
        #[cfg(target_os = "linux")]
        let _ = process::set_child_subreaper(Some(process::getpid()));
        let us = process::getpid().as_raw_nonzero().to_string();
        let mut step = Command::new(this_program());
        step.args([STEP, &us]).args(command).envs(environment.iter().copied());
        if let Some(variable) = without {
            step.env_remove(variable);
        }
        // This handle is not waited for: `reap` does that, for orphans too.
        let child = step
            .spawn()
            .map_err(|error| Failure::internal(format!("no process can be started: {error}")))?;
        Ok(Self {
            pid: Pid::from_child(&child),
            ended: None,
        })
    }

    /// Reaps all children that have ended; returns the exit code of the command, if it is one of them.
    pub(crate) fn reap(&mut self) -> Option<u8> {
        loop {
            match process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => self.ended = code(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return self.ended,
            }
        }
    }

    /// Passes on a signal that was sent to us: a request to end to all of the command's processes in our group, any
    /// other to the command alone.
    pub(crate) fn pass_on(&self, signal: Signal) {
        if !ENDING.contains(&signal) {
            // It may have ended by now.
            let _ = process::kill_process(self.pid, signal);
        } else if !(KEYBOARD.contains(&signal) && is_in_foreground()) {
            for process in descendants().iter().filter(|process| process.is_in_our_group()) {
                process.signal(signal);
                // A stopped process would not notice.
                process.signal(Signal::CONT);
            }
        }
    }

    /// Stops the command's processes, and then this program, as nobody renews the lock of a stopped program. Returns
    /// when this program has been continued, which the shell does with all of them. Does nothing if there is no shell
    /// that could do so.
    pub(crate) async fn stop(&self) {
        if !is_controlled() {
            return;
        }
        // The terminal has asked the command to stop.
        sleep(STOPS_ITSELF).await;
        let start = Instant::now();
        // Those that ignore it, or have left our group, stop too.
        while start.elapsed() < STOPS {
            let running: Vec<Descendant> = descendants().into_iter().filter(|it| !it.is_stopped).collect();
            if running.is_empty() {
                break;
            }
            running.iter().for_each(|process| process.signal(Signal::STOP));
            sleep(LOOK).await;
        }
        signals::stop();
    }

    /// Lets all processes go on that are stopped.
    pub(crate) fn go_on(&self) {
        descendants().iter().for_each(|process| process.signal(Signal::CONT));
    }

    /// Ends the command and its descendants, because its lock is lost: by SIGTERM, and after `grace` by SIGKILL,
    /// repeatedly, as a killed process can have started others at that moment. A stopped process is killed at once: it
    /// would go on otherwise. Returns the processes that can't be killed.
    pub(crate) async fn terminate(&mut self, signals: &mut Signals, grace: Duration) -> Vec<Descendant> {
        let (start, mut look, mut is_asked) = (Instant::now(), interval(LOOK), false);
        loop {
            let (ended, left, passed) = (self.reap(), descendants(), start.elapsed());
            if left.is_empty() && ended.is_some() || passed >= grace.saturating_add(STUBBORN) {
                return left;
            }
            for process in &left {
                if passed >= grace || process.is_stopped {
                    process.signal(Signal::KILL);
                } else if !is_asked {
                    process.signal(Signal::TERM);
                }
            }
            is_asked = true;
            tokio::select! {
                _ = look.tick() => {}
                signal = signals.next() => if PASSED_ON.contains(&signal) && passed < grace {
                    self.pass_on(signal);
                }
            }
        }
    }
}

impl Drop for Running {
    /// After a panic the lock is given back, and nothing may go on without it.
    fn drop(&mut self) {
        if thread::panicking() {
            descendants().iter().for_each(|process| process.signal(Signal::KILL));
        }
    }
}

/// Runs the step: becomes the command, or reports why it can't.
pub(crate) fn step(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let starter = arguments.next().and_then(|word| word.to_str()?.parse().ok());
    let (Some(starter), Some(command)) = (starter.and_then(Pid::from_raw), arguments.next()) else {
        say("this is an internal step of `watchlock run`, not to be called directly");
        return INTERNAL;
    };
    if let Err(error) = die_with(starter) {
        say(&format!("the command can't be bound to watchlock: {error}"));
        return INTERNAL;
    }
    let error = Command::new(&command).args(arguments).exec();
    let command = command.display();
    match error.kind() {
        ErrorKind::NotFound => {
            say(&format!("{command}: not found"));
            NOT_FOUND
        }
        _ => {
            say(&format!("{command}: {error}"));
            NOT_EXECUTABLE
        }
    }
}

/// Lets the kernel kill this process when `starter` ends.
#[cfg(target_os = "linux")]
fn die_with(starter: Pid) -> io::Result<()> {
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before we asked.
    if process::getppid() != Some(starter) {
        return Err(io::Error::other("it has ended"));
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: Pid) -> io::Result<()> {
    Ok(())
}

/// Returns the path of the running program itself, even if another version has been installed since.
fn this_program() -> OsString {
    if cfg!(target_os = "linux") {
        return OsString::from("/proc/self/exe");
    }
    std::env::current_exe().map_or_else(|_| OsString::from("watchlock"), OsString::from)
}

fn code(status: WaitStatus) -> Option<u8> {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let signalled = status
        .terminating_signal()
        .map(|signal| SIGNALLED.saturating_add(small(signal)));
    status.exit_status().map(small).or(signalled)
}
