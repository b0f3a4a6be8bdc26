//! The command that runs under a lock: how it is started, signalled, ended and looked after.
//!
//! The command has a process group of its own, so that all of it can be signalled at once, and so that no shell continues it
//! behind our back (see `job`). Where watchlock stands in the foreground of a terminal, that group gets the terminal: at
//! once, or in a pipeline when the command asks for it, as a neighbour may need the terminal too.
//!
//! A command must not go on when watchlock is killed, as nobody renews the lock then. Linux kills a child together with
//! the thread that started it, if the child has asked for it, and only the child itself can ask. So there is a step in
//! between: watchlock starts itself as a step, which asks and then becomes the command.

use std::{
    ffi::OsString,
    io::{self, ErrorKind},
    os::unix::process::CommandExt as _,
    process::Command,
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
    signals::{self, ENDING, Received, Signals},
};

/// The first argument by which watchlock knows that it is the step.
pub(crate) const STEP: &str = "__become";

/// The argument by which the step knows that it is to have the terminal.
const IN_FOREGROUND: &str = "foreground";

/// How often it is looked whether anything is left of a command that is being terminated.
const LOOK: Duration = Duration::from_millis(20);

/// How long it is tried to kill what can't be killed: somebody else's, or stuck in the kernel. Nobody waits for longer.
const STUBBORN: Duration = Duration::from_secs(2);

/// How long a command has to stop by itself, as an editor does that sets the terminal right first.
const STOPS_ITSELF: Duration = Duration::from_millis(100);

/// How long is waited until everything has stopped. A process that is stuck in the kernel stops when it comes out of it.
const STOPS: Duration = Duration::from_secs(1);

/// How often it is looked whether everything has stopped.
const LOOK_FOR_STOP: Duration = Duration::from_millis(5);

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Running {
    /// Of the command, and of its process group.
    pid: Pid,
    state: State,
    terminal: Option<Terminal>,
    /// How the terminal was set before the command had it.
    settings: Option<Termios>,
    /// The command is to have the terminal when we are in the foreground.
    wants_terminal: bool,
    /// The command was given the terminal, and the shell has not taken it meanwhile.
    has_terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    Stopped { by: i32, told: bool },
    Ended(Ended),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(u8),
    Signal(u8),
}

impl Ended {
    /// As a shell tells it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNALLED.saturating_add(signal),
        }
    }
}

impl Running {
    /// Starts the command. Call it on the main thread: the command is killed when the thread ends that started it.
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
        // Not waited for through this handle: `reap` does that, for orphans too.
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

    /// Looks after all children that have ended, and at the command's stops; tells how the command ended, if it has.
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

    /// The signal that has stopped the command, told once for each stop.
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
        // Errors: it may have ended meanwhile.
        if ENDING.contains(&signal) {
            let _ = process::kill_process_group(self.pid, signal);
            // A stopped process would not notice.
            let _ = process::kill_process_group(self.pid, Signal::CONT);
        } else {
            let _ = process::kill_process(self.pid, signal);
        }
    }

    /// Stops the command and what it started; returns when all of it has stopped, or the command has ended.
    pub(crate) async fn stop(&mut self) {
        let start = Instant::now();
        // As the terminal asks for it, so that the command can leave the screen as it should be.
        let _ = process::kill_process_group(self.pid, Signal::TSTP);
        while start.elapsed() < STOPS_ITSELF && self.reap().is_none() && !self.is_stopped() {
            sleep(LOOK_FOR_STOP).await;
        }
        // And nobody is asked: what ignores the other, or has left the group, stops too.
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
            // It stops when it comes out of the kernel, before it does anything else.
            State::Runs => {
                self.state = State::Stopped {
                    by: Signal::STOP.as_raw(),
                    told: true,
                }
            }
            State::Ended(_) => {}
        }
    }

    /// Whether the terminal seems to have stopped the command while it waits in the kernel for a process of its own that is
    /// stopped, and so can't stop itself, which nobody tells us: between `vfork` and the start of a program the parent waits
    /// for its child, come what may. That is the case when it is so for two looks in a row.
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
        // Whoever needed it once will need it again.
        self.wants_terminal |= given;
        given
    }

    /// Hands the terminal to the command that runs, if it is to have it and we have it: no signal tells that a job that runs
    /// has come to the foreground.
    pub(crate) fn notice_foreground(&mut self) {
        if self.wants_terminal && self.state == State::Runs {
            self.give_terminal();
        }
    }

    /// The shell has had the terminal since, and may have given it to another.
    pub(crate) fn forget_terminal(&mut self) {
        self.has_terminal = false;
    }

    /// Takes the terminal back when the command has ended, and sets it right where the command had no time to; `true` if
    /// the command had it.
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

    /// Begins to end the command and what it started, because its lock is lost. A stopped command is killed at once, as it
    /// would go on otherwise.
    pub(crate) fn begin_to_terminate(&mut self) {
        // What it does now, and not when it was looked at last: it may have stopped since.
        self.reap();
        if self.is_stopped() {
            self.signal_all(Signal::KILL);
        } else {
            self.signal_all(Signal::TERM);
            // What it started may be stopped, and would not notice.
            self.signal_all(Signal::CONT);
        }
    }

    /// Goes on until the command and all its descendants that can be found have ended: what is left after `grace` is ended
    /// by SIGKILL, again and again, as what is killed can have started others in that moment. Returns what can't be killed.
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
                received = signals.next() => if let Received::Signal(signal) = received
                    && ended.is_none() && passed < grace
                {
                    self.pass_on(signal);
                },
            }
        }
    }

    /// Signals the command and what it started.
    fn signal_all(&self, signal: Signal) {
        // Errors: gone, or somebody else's.
        let _ = process::kill_process_group(self.pid, signal);
        for pid in descendants::living() {
            if job::group_of(pid) != Some(self.pid) {
                let _ = process::kill_process(pid, signal);
            }
        }
    }

    /// What lives of the command and of what it started.
    fn left(&self) -> Vec<Pid> {
        let mut left = descendants::living();
        // Where descendants can't be found, its group can; and one that is not ours to signal is there as well.
        let group = process::test_kill_process_group(self.pid);
        if left.is_empty() && !cfg!(target_os = "linux") && group != Err(Errno::SRCH) {
            left.push(self.pid);
        }
        left
    }
}

/// The step: becomes the command, or tells why it can't.
pub(crate) fn step(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    let starter = arguments.next().and_then(|word| word.to_str()?.parse().ok());
    let place = arguments.next();
    let (Some(starter), Some(command)) = (starter.and_then(Pid::from_raw), arguments.next()) else {
        say("this is an inner step of `watchlock run`, and not to be called");
        return INTERNAL;
    };
    if let Err(error) = die_with(starter) {
        say(&format!("the command can't be bound to watchlock: {error}"));
        return INTERNAL;
    }
    if place.is_some_and(|place| place == IN_FOREGROUND) {
        // Before it is the command, as programs look at their start whether they are in the foreground.
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
    // Where it is refused, they are not found: nothing else depends on it.
    #[cfg(target_os = "linux")]
    let _ = process::set_child_subreaper(Some(process::getpid()));
}

/// The very program that runs, even if another version has been installed meanwhile.
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
