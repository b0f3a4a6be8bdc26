//! The processes of this machine: the descendants of this one, and the shell that controls it.

use std::{fs::File, iter::successors};

use nix::unistd::{self, getpgid, getsid, tcgetpgrp};
use rustix::process::{self, Signal};
use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};

/// A living process.
#[derive(Clone, Debug)]
pub(crate) struct Descendant {
    pid: process::Pid,
    /// A readable name of it: `4711 (sleep)`.
    pub(crate) name: String,
    pub(crate) is_stopped: bool,
}

impl Descendant {
    /// Returns whether a terminal and a shell take it for a part of this program's job.
    pub(crate) fn is_in_our_group(&self) -> bool {
        group(self.pid) == Some(unistd::getpgrp())
    }

    /// Sends it a signal. Errors are ignored: the process is gone, or another user's.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = process::kill_process(self.pid, signal);
    }
}

/// Returns every living descendant of this process. On Linux that includes those which have lost their parent: they
/// become children of this process (see `process`).
pub(crate) fn descendants() -> Vec<Descendant> {
    let (system, us) = (look(), Pid::from_u32(std::process::id()));
    let living = system.processes().values().filter(|process| {
        let is_dead = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
        !is_dead && ancestors(&system, process).any(|ancestor| ancestor.pid() == us)
    });
    let described = living.filter_map(|process| {
        Some(Descendant {
            pid: process::Pid::from_raw(i32::try_from(process.pid().as_u32()).ok()?)?,
            name: format!("{} ({})", process.pid(), process.name().display()),
            is_stopped: process.status() == ProcessStatus::Stop,
        })
    });
    described.collect()
}

/// Returns whether there is a shell that can continue our process group when it is stopped: a process of another group
/// in our session that is the parent of one of ours, where the session has a terminal. Without one, the kernel does not
/// let a terminal stop a group; and without a terminal, a process of another group is a supervisor like `timeout`, which
/// continues nobody.
pub(crate) fn is_controlled() -> bool {
    let (system, us) = (look(), Pid::from_u32(std::process::id()));
    let Some(ours) = system.process(us) else { return false };
    let session = |process: &&Process| getsid(Some(number(process))) == getsid(None);
    let mut others = ancestors(&system, ours).take_while(session);
    // In a script, the shell that runs it is in our group, and the one that could continue it is further up.
    terminal().is_some() && others.any(|ancestor| getpgid(Some(number(ancestor))) != Ok(unistd::getpgrp()))
}

/// Returns whether the keyboard of our terminal signals us: then it signals the command as well, which is in our group.
pub(crate) fn is_in_foreground() -> bool {
    terminal().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(unistd::getpgrp()))
}

fn terminal() -> Option<File> {
    File::open("/dev/tty").ok()
}

fn look() -> System {
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::All,
        true,
        ProcessRefreshKind::nothing().without_tasks(),
    );
    system
}

/// Returns the parent of a process, its parent, and so on. Numbers that are inconsistent can't make it endless.
fn ancestors<'a>(system: &'a System, process: &'a Process) -> impl Iterator<Item = &'a Process> {
    let parent = |child: &&'a Process| child.parent().and_then(|parent| system.process(parent));
    successors(parent(&process), parent).take(system.processes().len())
}

fn number(process: &Process) -> unistd::Pid {
    unistd::Pid::from_raw(i32::try_from(process.pid().as_u32()).unwrap_or_default())
}

fn group(pid: process::Pid) -> Option<unistd::Pid> {
    getpgid(Some(unistd::Pid::from_raw(pid.as_raw_nonzero().get()))).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn finds_its_children() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let name = format!("{} (sleep)", child.id());
        let is_found = || descendants().iter().any(|found| found.name == name);
        // It has another name until it has become that program.
        while !is_found() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_found());
    }
}
