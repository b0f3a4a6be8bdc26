//! The machine of a run, and the versions in its build.

use std::{collections::BTreeMap, fs, thread};

use serde::{Deserialize, Serialize};

/// Part of the processors that others may take before a run is marked as disturbed.
const QUIET: f64 = 0.25;

/// What the numbers depend on beside the programs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// Average number of running processes in the minute before the run.
    pub(crate) load_before: f64,
}

impl Machine {
    pub(crate) fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, label: &str| {
            let line = text.lines().find(|line| line.starts_with(label)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, rest)| rest).trim().to_owned()
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        let load = read("/proc/loadavg");
        Self {
            processor: after(&read("/proc/cpuinfo"), "model name"),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or_default(),
        }
    }

    /// Returns whether other programs were at work when the run began.
    pub(crate) fn was_busy(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "a number of cores")]
        let cores = self.cores as f64;
        self.load_before > QUIET * cores
    }
}

/// Returns the version of each package in this build, after the lock file.
pub(crate) fn packages() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut name = None;
    for line in include_str!("../Cargo.lock").lines() {
        let value = |key: &str| Some(line.strip_prefix(key)?.trim_matches('"').to_owned());
        if let Some(package) = value("name = ") {
            name = Some(package);
        } else if let Some(version) = value("version = ")
            && let Some(package) = name.take()
        {
            // Of a package in several versions the last one counts, which is the newest.
            found.insert(package, version);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_peer_is_in_the_lock_file() {
        let packages = super::packages();
        for peer in crate::peers::PEERS {
            assert!(packages.contains_key(peer.package), "{}", peer.package);
        }
    }
}
