//! The numbers and their bounds, and the table and file that show them.

use std::{
    fmt::{self, Write as _},
    fs, io,
    path::{Path, PathBuf},
};

/// A number of the scoreboard and its bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    name: &'static str,
    bound: Bound,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_kept(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "<= {most:>6.2}"),
            Self::AtLeast(least) => write!(f, ">= {least:>6.2}"),
        }
    }
}

const fn key(name: &'static str, at_most: f64) -> Key {
    let bound = Bound::AtMost(at_most);
    Key { name, bound }
}

const fn at_least(name: &'static str, least: f64) -> Key {
    let bound = Bound::AtLeast(least);
    Key { name, bound }
}

pub(crate) const HANDOFF_RS1: Key = key("handoff_ratio_rs1", 1.2);
pub(crate) const HANDOFF_RS3: Key = key("handoff_ratio_rs3", 1.0);
pub(crate) const UNCONTENDED_RS1: Key = key("uncontended_ratio_rs1", 1.05);
pub(crate) const UNCONTENDED_STANDALONE: Key = key("uncontended_ratio_standalone", 1.15);
pub(crate) const ALLOCATIONS: Key = key("allocations_ratio", 1.4);
pub(crate) const UNCONTENDED_RS3: Key = key("uncontended_ratio_rs3", 1.0);
pub(crate) const COMMANDS_32: Key = key("commands_per_handoff_32", 2.3);
pub(crate) const GETMORES_32: Key = key("getmores_per_handoff_32", 2.5);
pub(crate) const CONTENDED: Key = at_least("contended_rate_ratio", 1.0);
pub(crate) const CPU_32: Key = key("handoff_cpu_32_ratio", 1.4);
pub(crate) const COMMANDS_LOCAL: Key = key("commands_per_handoff_local", 0.05);
pub(crate) const LOCAL_HANDOFF: Key = key("local_handoff_us", 20.0);
pub(crate) const SHARED_READ: Key = key("shared_read_commands", 0.05);
pub(crate) const FOREIGN_WAIT: Key = key("foreign_wait_ratio", 2.0);
pub(crate) const IDLE_TAKE: Key = key("idle_take_ratio", 0.1);
pub(crate) const IDLE_TAKE_COMMANDS: Key = key("idle_take_commands", 0.05);
pub(crate) const IDLE_WAIT: Key = key("idle_foreign_wait_ratio", 1.5);
pub(crate) const STREAMS_200: Key = key("streams_200_waiting", 6.0);
pub(crate) const HANDOFF_200: Key = key("handoff_200_clients_ratio", 3.0);
pub(crate) const IDLE_CLIENT: Key = key("idle_commands_per_client", 1.0);
pub(crate) const TAX_64: Key = key("stream_tax_64", 1.5);
pub(crate) const IDLE: Key = key("idle_commands_per_s_50x5", 3.0);
pub(crate) const RENEW_10K: Key = key("renew_commands_10k", 20.0);
pub(crate) const LOST_RS1: Key = key("lost_ratio_rs1", 1.3);
pub(crate) const LOST_BY_DELETE_RS1: Key = key("lost_by_delete_ratio_rs1", 1.3);
pub(crate) const RW_LOCK_RS1: Key = key("rwlock_handoff_ratio_rs1", 1.4);
pub(crate) const SEMAPHORE_RS1: Key = key("semaphore_handoff_ratio_rs1", 1.4);
pub(crate) const ELECTION_RS1: Key = key("election_failover_ratio_rs1", 1.4);
pub(crate) const CLAIM_RS1: Key = key("claim_ratio_rs1", 1.2);
pub(crate) const CLAIM_DONE: Key = key("claim_done_ratio", 1.15);
pub(crate) const CLAIM_MANY: Key = at_least("claim_many_ratio", 3.0);
pub(crate) const EXPIRY: Key = key("expiry_wake_ms", 25.0);
pub(crate) const POLLING: Key = key("polling_handoff_ms", 25.0);
pub(crate) const POLLING_RATE: Key = at_least("polling_contended_rate", 500.0);
pub(crate) const DISTINCT: Key = at_least("distinct_rate_ratio", 3.0);
pub(crate) const DISTINCT_CPU: Key = key("distinct_cpu_ratio", 0.4);
pub(crate) const OWN_COMMANDS: Key = key("own_command_p99_ratio", 0.5);
pub(crate) const FLEET_TAX_64: Key = key("fleet_tax_64", 1.3);
pub(crate) const FLEET_RATE_128: Key = at_least("fleet_rate_128", 0.9);
pub(crate) const FLEET_LOST: Key = key("fleet_lost_ms", 300.0);
pub(crate) const QUIET_LOST: Key = key("quiet_lost_ratio", 1.3);
pub(crate) const STREAMS_64: Key = key("streams_64_observers", 1.0);
pub(crate) const FRESH_RS1: Key = key("fresh_ratio_rs1", 1.15);

/// The measurements, in their order.
#[derive(Debug, Default)]
pub(crate) struct Board {
    entries: Vec<Entry>,
    remarks: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    value: f64,
    /// The figures behind the value.
    basis: String,
}

impl Board {
    pub(crate) fn enter(&mut self, key: Key, value: f64, basis: String) {
        self.entries.push(Entry { key, value, basis });
    }

    /// Shows a figure without a bound.
    pub(crate) fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    /// Writes the numbers to the target directory, wherever that is, as one flat JSON object.
    pub(crate) fn save(&self) -> io::Result<PathBuf> {
        // Cargo gives benches a folder in the target directory, not the target directory itself.
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = temporary.parent().unwrap_or(temporary).join("scoreboard.json");
        fs::write(&path, self.json())?;
        Ok(path)
    }

    fn json(&self) -> String {
        // Neither the names nor finite numbers need escaping.
        let lines = self
            .entries
            .iter()
            .map(|entry| format!("  \"{}\": {:.4}", entry.key.name, entry.value));
        format!("{{\n{}\n}}\n", lines.collect::<Vec<_>>().join(",\n"))
    }
}

impl fmt::Display for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<28} {:>8} {:>9}  {:<5} from", "key", "value", "bound", "")?;
        for Entry { key, value, basis } in &self.entries {
            let verdict = if key.bound.is_kept(*value) { "ok" } else { "OVER" };
            writeln!(f, "{:<28} {value:>8.3} {}  {verdict:<5} {basis}", key.name, key.bound)?;
        }
        self.remarks.iter().try_for_each(|remark| {
            f.write_char('\n')?;
            f.write_str(remark)
        })
    }
}
