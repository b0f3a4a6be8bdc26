//! The command that runs under a lock: starting, signalling, ending and reaping it.
//!
//! The command has its own process group, so that all of it can be signalled at once, and so that no shell continues it
//! behind our back (see `job`). If watchlock is in the foreground of a terminal, that group gets the terminal: at once,
//! or in a pipeline when the command asks for it, as a neighbour may need the terminal too.
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
    termios::Termios,
};
use tokio::time::{Instant, interval, sleep};

use crate::{
    descendants,
    exit::{Failure, INTERNAL, NOT_EXECUTABLE, NOT_FOUND, SIGNALLED},
    job::{self, Terminal, is_in_pipeline},
    messages::say,
    signals::{self, ENDING, PASSED_ON, Signals},
};

/// First argument of the step, by which watchlock recognizes it.
pub(crate) const STEP: &str = "__become";

/// Argument that gives the step the terminal.
const IN_FOREGROUND: &str = "foreground";

/// Interval at which a command that is being terminated is checked for remaining processes.
const LOOK: Duration = Duration::from_millis(20);

/// Limit for killing processes that can't be killed: another user's, or stuck in the kernel. Nobody waits longer.
const STUBBORN: Duration = Duration::from_secs(2);

/// Time for a command to stop by itself, as an editor does that resets the terminal first.
const STOPS_ITSELF: Duration = Duration::from_millis(100);

/// Limit for waiting until everything has stopped. A process stuck in the kernel stops when it leaves the kernel.
const STOPS: Duration = Duration::from_secs(1);

/// Interval at which the processes are checked for having stopped.
const LOOK_FOR_STOP: Duration = Duration::from_millis(5);

/// A started command.
#[derive(Debug)]
pub(crate) struct Running {
    /// Process id of the command, and its process group.
    pid: Pid,
    state: State,
    terminal: Option<Terminal>,
    /// Settings of the terminal before the command had it.
    settings: Option<Termios>,
    /// Whether the command should have the terminal when we are in the foreground.
    wants_terminal: bool,
    /// Whether the command was given the terminal, and the shell has not taken it since.
    has_terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Stopped { by: i32, told: bool },
    Ended(Ended),
}

/// The way in which the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(u8),
    Signal(u8),
}

impl Ended {
    /// Returns the exit code as a shell reports it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNALLED.saturating_add(signal),
        }
    }
}

impl Running {
    /// Starts the command. Call it on the main thread: the command is killed when the thread that started it ends.
    pub(crate) fn start(
        command: &[OsString],
        environment: &[(&str, &str)],
        without: Option<&str>,
    ) -> Result<Self, Failure> {
        adopt_orphans();
        let terminal = Terminal::open();
        let in_foreground = terminal.as_ref().is_some_and(Terminal::is_ours);
        let wants_terminal = !is_in_pipeline();
        let has_terminal = wants_terminal && in_foreground;
        let us = process::getpid().as_raw_nonzero().to_string();
        let mut step = Command::new(this_program());
        step.args([STEP, &us, if has_terminal { IN_FOREGROUND } else { "" }]);
        step.args(command).envs(environment.iter().copied()).process_group(0);
        if let Some(variable) = without {
            step.env_remove(variable);
        }
        // This handle is not waited for: `reap` does that, for orphans too.
        let child = step
            .spawn()
            .map_err(|error| Failure::internal(format!("no process can be started: {error}")))?;
        Ok(Self {
            pid: Pid::from_child(&child),
            state: State::Runs,
            settings: terminal.as_ref().and_then(Terminal::settings),
            terminal,
            wants_terminal,
            has_terminal,
        })
    }

    /// Reaps all children that have ended, and checks the command for stops; returns how the command ended, if it has.
    pub(crate) fn reap(&mut self) -> Option<Ended> {
        loop {
            match process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
                Ok(Some((pid, status))) if pid == self.pid => self.note(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        match self.state {
            State::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    fn note(&mut self, status: WaitStatus) {
        if let Some(ended) = ended_by(status) {
            self.state = State::Ended(ended);
        } else if let Some(by) = status.stopping_signal() {
            self.state = State::Stopped { by, told: false };
        } else if status.continued() && matches!(self.state, State::Stopped { .. }) {
            self.state = State::Runs;
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped { .. })
    }

    /// Returns the signal that has stopped the command, once for each stop.
    pub(crate) fn new_stop(&mut self) -> Option<Signal> {
        match &mut self.state {
            State::Stopped { by, told } if !*told => {
                *told = true;
                Signal::from_named_raw(*by)
            }
            _ => None,
        }
    }

    /// Passes on a signal that was sent to us.
    pub(crate) fn pass_on(&self, signal: Signal) {
        // Errors are ignored: it may have ended by now.
        if ENDING.contains(&signal) {
            let _ = process::kill_process_group(self.pid, signal);
            // A stopped process would not notice.
            let _ = process::kill_process_group(self.pid, Signal::CONT);
        } else {
            let _ = process::kill_process(self.pid, signal);
        }
    }

    /// Stops the command and its descendants; returns when all have stopped, or the command has ended.
    pub(crate) async fn stop(&mut self) {
        let start = Instant::now();
        // In the way of a terminal, so that the command can clean up the screen.
        let _ = process::kill_process_group(self.pid, Signal::TSTP);
        while start.elapsed() < STOPS_ITSELF && self.reap().is_none() && !self.is_stopped() {
            sleep(LOOK_FOR_STOP).await;
        }
        // Then forcibly: processes that ignore the first signal, or have left the group, stop too.
        loop {
            self.signal_all(Signal::STOP);
            if self.reap().is_some() || start.elapsed() > STOPS {
                break;
            }
            if self.is_stopped() && !descendants::living().into_iter().any(descendants::is_running) {
                break;
            }
            sleep(LOOK_FOR_STOP).await;
        }
        match &mut self.state {
            State::Stopped { told, .. } => *told = true,
            // It stops when it leaves the kernel, before it does anything else.
            State::Runs => {
                self.state = State::Stopped {
                    by: Signal::STOP.as_raw(),
                    told: true,
                }
            }
            State::Ended(_) => {}
        }
    }

    /// Returns whether the terminal seems to have stopped the command while it waits in the kernel for its own stopped
    /// process, and so can't stop itself, which nobody reports: between `vfork` and the start of a program the parent
    /// waits for its child unconditionally. That is the case if two checks in a row agree.
    pub(crate) fn seems_stopped(&self) -> bool {
        self.has_terminal
            && self.state == State::Runs
            && descendants::is_stuck(self.pid)
            && descendants::living()
                .into_iter()
                .any(|pid| job::group_of(pid) == Some(self.pid) && descendants::is_stopped(pid))
    }

    /// Lets the command go on, with the terminal if it had it and we have it now.
    pub(crate) fn go_on(&mut self) {
        if let State::Stopped { by, .. } = self.state {
            let asked = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&by);
            if asked || self.wants_terminal {
                self.give_terminal();
            }
            self.state = State::Runs;
        }
        self.signal_all(Signal::CONT);
    }

    /// Hands the terminal to the command if it is ours to give.
    pub(crate) fn give_terminal(&mut self) -> bool {
        let given = match (&self.terminal, job::our_group()) {
            (Some(terminal), Some(us)) => terminal.hand(us, self.pid),
            _ => false,
        };
        self.has_terminal |= given;
        // A command that needed it once will need it again.
        self.wants_terminal |= given;
        given
    }

    /// Hands the terminal to the running command, if the command should have it and we have it: no signal announces
    /// that a running job has come to the foreground.
    pub(crate) fn notice_foreground(&mut self) {
        if self.wants_terminal && self.state == State::Runs {
            self.give_terminal();
        }
    }

    /// Forgets that the command had the terminal: the shell has had it since, and may have given it to another.
    pub(crate) fn forget_terminal(&mut self) {
        self.has_terminal = false;
    }

    /// Takes the terminal back when the command has ended, and resets it if the command had no time to; returns `true`
    /// if the command had it.
    pub(crate) fn take_terminal(&mut self, set_right: bool) -> bool {
        let had_terminal = std::mem::take(&mut self.has_terminal);
        let (Some(terminal), Some(us), true) = (&self.terminal, job::our_group(), had_terminal) else {
            return false;
        };
        let taken = terminal.take_back(self.pid, us);
        if let (true, true, Some(settings)) = (taken, set_right, &self.settings) {
            terminal.restore(settings);
        }
        taken
    }

    /// Begins to end the command and its descendants, because its lock is lost. A stopped command is killed at once, as
    /// it would go on otherwise.
    pub(crate) fn begin_to_terminate(&mut self) {
        // Its state may have changed since the last check: it may have stopped.
        self.reap();
        if self.is_stopped() {
            self.signal_all(Signal::KILL);
        } else {
            self.signal_all(Signal::TERM);
            // Its descendants may be stopped, and would not notice.
            self.signal_all(Signal::CONT);
        }
    }

    /// Continues until the command and all its descendants that can be found have ended: after `grace` it sends SIGKILL
    /// to the remaining ones, repeatedly, as a killed process can have started others at that moment. Returns the
    /// processes that can't be killed.
    pub(crate) async fn terminate(&mut self, signals: &mut Signals, grace: Duration) -> Vec<Pid> {
        let grace = if self.is_stopped() { Duration::ZERO } else { grace };
        let start = Instant::now();
        let mut look = interval(LOOK);
        loop {
            let ended = self.reap();
            let passed = start.elapsed();
            let left = self.left();
            if left.is_empty() && ended.is_some() {
                return left;
            }
            if passed >= grace.saturating_add(STUBBORN) {
                return left;
            }
            if passed >= grace {
                self.signal_all(Signal::KILL);
            }
            tokio::select! {
                _ = look.tick() => {}
                signal = signals.next() => if PASSED_ON.contains(&signal) && ended.is_none() && passed < grace {
                    self.pass_on(signal);
                },
            }
        }
    }

    /// Signals the command and its descendants.
    fn signal_all(&self, signal: Signal) {
        // Errors are ignored: the process is gone, or another user's.
        let _ = process::kill_process_group(self.pid, signal);
        for pid in descendants::living() {
            if job::group_of(pid) != Some(self.pid) {
                let _ = process::kill_process(pid, signal);
            }
        }
    }

    /// Returns the living processes among the command and its descendants.
    fn left(&self) -> Vec<Pid> {
        let mut left = descendants::living();
        // If descendants can't be found, the group can; and a group that we may not signal exists as well.
        let group = process::test_kill_process_group(self.pid);
        if left.is_empty() && !cfg!(target_os = "linux") && group != Err(Errno::SRCH) {
            left.push(self.pid);
        }
        left
    }
}

impl Drop for Running {
    /// After a panic the lock is given back, and nothing may go on without it.
    fn drop(&mut self) {
        let begun = Instant::now();
        while thread::panicking() && begun.elapsed() < STUBBORN && (self.reap().is_none() || !self.left().is_empty()) {
            self.signal_all(Signal::KILL);
            thread::sleep(LOOK);
        }
    }
}

/// Runs the step: becomes the command, or reports why it can't.
pub(crate) fn step(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let starter = arguments.next().and_then(|word| word.to_str()?.parse().ok());
    let place = arguments.next();
    let (Some(starter), Some(command)) = (starter.and_then(Pid::from_raw), arguments.next()) else {
        say("this is an internal step of `watchlock run`, not to be called directly");
        return INTERNAL;
    };
    if let Err(error) = die_with(starter) {
        say(&format!("the command can't be bound to watchlock: {error}"));
        return INTERNAL;
    }
    if place.is_some_and(|place| place == IN_FOREGROUND) {
        // Before it becomes the command, as programs check at their start whether they are in the foreground.
        signals::unblock();
        let groups = (job::group_of(starter), job::our_group());
        if let (Some(terminal), (Some(theirs), Some(ours))) = (Terminal::open(), groups) {
            terminal.hand(theirs, ours);
        }
    }
    signals::unblock_all();
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

/// Makes descendants that lose their parent our children, so that they are found.
fn adopt_orphans() {
    // If it is refused, they are not found: nothing else depends on it.
    #[cfg(target_os = "linux")]
    let _ = process::set_child_subreaper(Some(process::getpid()));
}

/// Returns the path of the running program itself, even if another version has been installed since.
fn this_program() -> OsString {
    if cfg!(target_os = "linux") {
        return OsString::from("/proc/self/exe");
    }
    std::env::current_exe().map_or_else(|_| OsString::from("watchlock"), OsString::from)
}

fn ended_by(status: WaitStatus) -> Option<Ended> {
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    let code = status.exit_status().map(|code| Ended::Code(small(code)));
    code.or_else(|| status.terminating_signal().map(|signal| Ended::Signal(small(signal))))
}

#[cfg(test)]
mod tests {
    use std::{env, panic::catch_unwind};

    use super::*;

    /// In a process of its own, as all of its children are killed.
    #[test]
    fn a_command_does_not_outlive_a_panic() {
        const ALONE: &str = "WATCHLOCK_TEST_ALONE";
        const PLAYED: &str = "the command is gone";
        if env::var_os(ALONE).is_none() {
            let mut alone = Command::new(env::current_exe().unwrap());
            alone.args([
                "--exact",
                "process::tests::a_command_does_not_outlive_a_panic",
                "--nocapture",
            ]);
            let ended = alone.env(ALONE, "").output().unwrap();
            // A name that no test has is a success too.
            let played = String::from_utf8_lossy(&ended.stdout).contains(PLAYED);
            assert!(ended.status.success() && played, "{ended:?}");
            return;
        }
        let script = "trap '' TERM; setsid sleep 300 & wait";
        let started = Command::new("sh").args(["-c", script]).process_group(0).spawn();
        let pid = Pid::from_child(&started.unwrap());
        let panicked = catch_unwind(|| {
            let _running = Running {
                pid,
                state: State::Runs,
                terminal: None,
                settings: None,
                wants_terminal: false,
                has_terminal: false,
            };
            adopt_orphans();
            while descendants::living().len() < 2 {
                thread::sleep(LOOK_FOR_STOP);
            }
            panic!("of this test");
        });
        assert!(panicked.is_err());
        assert!(descendants::living().is_empty());
        println!("{PLAYED}");
    }
}
