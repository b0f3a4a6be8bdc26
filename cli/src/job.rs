//! Job control: the terminal, its foreground, and the shell that stops and continues jobs.
//!
//! A job is a process group. The terminal sends the signals of its keyboard (^C, ^\, ^Z) to the group in the
//! foreground, and stops every other group that reads from it. The command has its own process group, so that nothing
//! but watchlock continues it: a shell that continues the job continues watchlock, which checks the lock before the
//! command goes on. So watchlock is to the command what the shell is to watchlock: it hands it the terminal, and takes
//! it back.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    os::unix::fs::FileTypeExt as _,
};

use nix::unistd;
use rustix::{
    io::Errno,
    process::{self, Pid, Signal},
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp},
};

use crate::descendants;

/// The terminal that controls this program.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: File,
}

impl Terminal {
    /// Opens the terminal; `None` if there is none, as in a service.
    pub(crate) fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { file })
    }

    /// Returns whether we are in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        our_group().is_some_and(|group| self.is_with(group))
    }

    /// Returns whether the group is in the foreground.
    fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.file) == Ok(group)
    }

    /// Hands the terminal from one group to another; `false` if the first does not have it. SIGTTOU must be blocked.
    pub(crate) fn hand(&self, from: Pid, to: Pid) -> bool {
        self.is_with(from) && tcsetpgrp(&self.file, to).is_ok()
    }

    /// Takes the terminal from a group, even one that no longer exists, for another; `false` if a third one has it.
    pub(crate) fn take_back(&self, from: Pid, to: Pid) -> bool {
        let Ok(present) = tcgetpgrp(&self.file) else {
            return false;
        };
        let gone = process::test_kill_process_group(present) == Err(Errno::SRCH);
        (present == from || gone) && tcsetpgrp(&self.file, to).is_ok()
    }

    pub(crate) fn settings(&self) -> Option<Termios> {
        tcgetattr(&self.file).ok()
    }

    /// Restores the terminal's settings after a program that had no time to do so.
    pub(crate) fn restore(&self, settings: &Termios) {
        // The terminal may be gone.
        let _ = tcsetattr(&self.file, OptionalActions::Now, settings);
    }
}

/// Returns our process group; `None` in a container whose first process belongs to a group outside of it: such groups
/// and sessions have no number in there but 0.
pub(crate) fn our_group() -> Option<Pid> {
    Pid::from_raw(unistd::getpgrp().as_raw())
}

/// Returns the process group of a process, if the process exists and its group has a number.
pub(crate) fn group_of(pid: Pid) -> Option<Pid> {
    unistd::getpgid(Some(as_number(pid)))
        .ok()
        .and_then(|group| Pid::from_raw(group.as_raw()))
}

/// Signals our whole process group, including this program.
pub(crate) fn signal_our_group(signal: Signal) {
    // 0 is the sender's group. It only fails for an invalid signal number.
    let _ = process::kill_current_process_group(signal);
}

/// Returns whether there is a shell that can continue our process group when it is stopped: a process of another group
/// in our session that is the parent of one of ours, where the session has a terminal. Without one, the kernel does not
/// let a terminal stop a group; and without a terminal, a process of another group is a supervisor like `timeout`, which
/// continues nobody.
pub(crate) fn is_controlled() -> bool {
    if Terminal::open().is_none() {
        return false;
    }
    let (group, session) = (unistd::getpgrp(), unistd::getsid(None));
    let mut ancestor = process::getppid();
    // In a script, the shell that runs it is in our group, and the one that could continue it is further up.
    while let Some(pid) = ancestor {
        if unistd::getsid(Some(as_number(pid))) != session {
            return false;
        }
        if unistd::getpgid(Some(as_number(pid))) != Ok(group) {
            return true;
        }
        ancestor = descendants::parent(pid);
    }
    false
}

fn as_number(pid: Pid) -> unistd::Pid {
    unistd::Pid::from_raw(pid.as_raw_nonzero().get())
}

/// Returns whether input or output belongs to a neighbour in a pipeline that may need the terminal itself, such as a
/// pager.
pub(crate) fn is_in_pipeline() -> bool {
    is_pipe(io::stdin().as_fd()) || is_pipe(io::stdout().as_fd())
}

fn is_pipe(descriptor: BorrowedFd<'_>) -> bool {
    let kind = descriptor
        .try_clone_to_owned()
        .and_then(|owned| File::from(owned).metadata());
    kind.is_ok_and(|metadata| metadata.file_type().is_fifo() || metadata.file_type().is_socket())
}
