//! The machine of a run, the sources that were measured, and the versions in the build.

use std::{collections::BTreeMap, fmt, fs, path::Path, process::Command, thread, time::Duration};

use serde::{Deserialize, Serialize};

/// Part of the processors that others may take before a run is marked as disturbed.
const QUIET: f64 = 0.25;

/// Time for which that is observed. The kernel's load average would not do: it still counts the build of this program.
const OBSERVED: Duration = Duration::from_secs(3);

/// What the numbers depend on beside the programs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    /// Number of processors that others took just before the run.
    pub(crate) load_before: f64,
}

impl Machine {
    pub(crate) async fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, label: &str| {
            let line = text.lines().find(|line| line.starts_with(label)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, rest)| rest).trim().to_owned()
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or_default();
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let before = times(&read("/proc/stat"));
        tokio::time::sleep(OBSERVED).await;
        let part = part_in_use(before, times(&read("/proc/stat")));
        #[expect(clippy::cast_precision_loss, reason = "a number of cores")]
        let load_before = part * cores as f64;
        Self {
            processor: after(&read("/proc/cpuinfo"), "model name"),
            cores,
            memory_gib: kib >> 20,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before,
        }
    }

    /// Returns whether other programs were at work when the run began.
    pub(crate) fn was_busy(&self) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "a number of cores")]
        let cores = self.cores as f64;
        self.load_before > QUIET * cores
    }
}

/// Returns how long all processors together have been idle, and how long there were any, in ticks since the machine
/// began: the line `cpu` of `/proc/stat`.
fn times(stat: &str) -> (u64, u64) {
    let line = stat.lines().next().unwrap_or_default();
    // The times of guests, which follow these eight, are in the first two already.
    let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    (ticks.iter().skip(3).take(2).sum(), ticks.iter().sum())
}

/// Returns the part of the processors that was in use between two looks.
fn part_in_use((idle_before, all_before): (u64, u64), (idle, all): (u64, u64)) -> f64 {
    let (idle, all) = (idle.saturating_sub(idle_before), all.saturating_sub(all_before));
    #[expect(clippy::cast_precision_loss, reason = "ticks of some seconds")]
    let part = all.saturating_sub(idle) as f64 / all.max(1) as f64;
    part
}

/// The parts of the repository that decide what is measured. The report itself is not among them.
const MEASURED: [&str; 6] = [
    "src",
    "testkit",
    "Cargo.toml",
    "benches/peers/src",
    "benches/peers/Cargo.toml",
    "benches/peers/Cargo.lock",
];

/// The sources of a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Sources {
    /// The commit that was checked out when the run began; empty in reports that are older than this field, and outside
    /// a repository.
    pub(crate) commit: String,
    /// Whether the library or the harness had changes that were not committed.
    pub(crate) changed: bool,
    pub(crate) compiler: String,
}

impl Sources {
    pub(crate) fn these() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let git = |arguments: &[&str]| {
            let output = Command::new("git").arg("-C").arg(&root).args(arguments).output();
            let output = output.ok().filter(|output| output.status.success());
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let status: Vec<&str> = ["status", "--porcelain", "--"].into_iter().chain(MEASURED).collect();
        Self {
            commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
            changed: git(&status).is_some_and(|changes| !changes.is_empty()),
            compiler: env!("PEERS_COMPILER").to_owned(),
        }
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.commit.get(..12) {
            Some(commit) => write!(f, "commit {commit}")?,
            None => f.write_str("an unknown commit")?,
        }
        if self.changed {
            f.write_str(" with changes")?;
        }
        if self.compiler.is_empty() {
            return Ok(());
        }
        write!(f, ", {}", self.compiler)
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
