//! The descendants of this process, from the `/proc` of Linux: elsewhere none are found.

use std::{collections::HashMap, fs};

use rustix::process::Pid;

/// Returns every living descendant, including those that left the process group or lost their parent: an orphan becomes
/// a child of this process, which has asked for that.
pub(crate) fn living() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may be gone by now.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if let Some(parent) = living_parent(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![rustix::process::getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        // Removed, so that even inconsistent numbers can't loop.
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child);
            found.extend(Pid::from_raw(child));
        }
    }
    found
}

/// Returns the parent of a process.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    Pid::from_raw(state_and_parent(&stat(pid)?)?.1)
}

/// Returns whether the process may do anything before it is continued. One that is gone does not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let stat = stat(pid).unwrap_or_default();
    state_and_parent(&stat).is_some_and(|(state, _)| !["T", "t", "Z", "X", "x"].contains(&state))
}

/// Returns whether the process waits in the kernel, where no signal but SIGKILL reaches it.
pub(crate) fn is_stuck(pid: Pid) -> bool {
    let stat = stat(pid).unwrap_or_default();
    state_and_parent(&stat).is_some_and(|(state, _)| state == "D")
}

/// Returns whether the process is stopped, as by ^Z.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let stat = stat(pid).unwrap_or_default();
    state_and_parent(&stat).is_some_and(|(state, _)| state == "T")
}

/// Returns a readable name of the process: `4711 (sleep)`.
pub(crate) fn named(pid: Pid) -> String {
    let number = pid.as_raw_nonzero();
    match std::fs::read_to_string(format!("/proc/{number}/comm")) {
        Ok(name) => format!("{number} ({})", name.trim_end()),
        Err(_) => number.to_string(),
    }
}

fn stat(pid: Pid) -> Option<String> {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()
}

/// Returns the parent, unless the process has ended and only waits to be reaped.
fn living_parent(stat: &str) -> Option<i32> {
    let (state, parent) = state_and_parent(stat)?;
    (!["Z", "X", "x"].contains(&state)).then_some(parent)
}

/// Parses `pid (name) state parent …`, where the name may contain anything.
fn state_and_parent(stat: &str) -> Option<(&str, i32)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(living_parent("7 (sh) S 3 7 7 0"), Some(3));
        assert_eq!(living_parent("7 (a ) Z 1 (b) R 12 7"), Some(12));
        assert_eq!(living_parent("7 (sh) Z 3 7"), None);
        assert_eq!(living_parent("7 (sh)"), None);
    }

    #[test]
    fn finds_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(living().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!living().contains(&pid));
    }
}
