//! Freezing, thawing and killing a process by its id.
//!
//! For tests that start a process of their own, such as the holder of a lock, and want it to stall or to die.

use std::{
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Stops the process with `SIGSTOP`. It keeps its memory, its sockets and its locks, and does nothing until [`thaw`].
///
/// Returns once all its threads have stopped, if `/proc` shows them (on Linux).
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn freeze(pid: u32) -> io::Result<()> {
    send(Signal::STOP, pid)?;
    // The signal is only queued when `kill` returns; a thread may run on for a moment.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !stopped(pid) {
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("process {pid} did not stop within 5 s"),
            ));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Lets a frozen process run on, with `SIGCONT`.
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn thaw(pid: u32) -> io::Result<()> {
    send(Signal::CONT, pid)
}

/// Kills the process with `SIGKILL`, frozen or not. Its parent has still to wait for it.
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn kill(pid: u32) -> io::Result<()> {
    send(Signal::KILL, pid)
}

/// Asks the process to end, with `SIGTERM`.
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn terminate(pid: u32) -> io::Result<()> {
    send(Signal::TERM, pid)
}

fn send(signal: Signal, pid: u32) -> io::Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| io::Error::other(format!("{pid} is no process")))?;
    Ok(kill_process(process, signal)?)
}

/// Whether every thread of the process is stopped (or gone); also `true` where there is no `/proc` to ask.
fn stopped(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task")) else {
        return true;
    };
    tasks.flatten().all(|task| {
        // "pid (name) state ...": the name may hold anything, so the state is what follows the last parenthesis.
        fs::read_to_string(task.path().join("stat")).map_or(true, |stat| {
            stat.rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
        })
    })
}
