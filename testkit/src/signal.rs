//! Freezing, thawing and killing a process by its id.
//!
//! For tests that start a process of their own, such as the holder of a lock, and want it to stall or to die.

use std::{
    fs, io,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Stops the process with `SIGSTOP`. It keeps its memory, its sockets and its locks, and does nothing until [`thaw`].
///
/// Returns once all its threads have stopped, if `/proc` shows them (on Linux).
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn freeze(pid: u32) -> io::Result<()> {
    send("STOP", pid)?;
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
    send("CONT", pid)
}

/// Kills the process with `SIGKILL`, frozen or not. Its parent has still to wait for it.
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn kill(pid: u32) -> io::Result<()> {
    send("KILL", pid)
}

/// Asks the process to end, with `SIGTERM`.
///
/// # Errors
///
/// There is no such process, or it belongs to another user.
pub fn terminate(pid: u32) -> io::Result<()> {
    send("TERM", pid)
}

/// Sends a signal through the shell's own `kill`, which is there even where `/bin/kill` is not.
fn send(signal: &str, pid: u32) -> io::Result<()> {
    let output = Command::new("sh")
        .args(["-c", r#"kill -s "$1" "$2""#, "sh", signal])
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "SIG{signal} could not be sent to process {pid}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
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
