//! The results of a run: a value that is written as JSON, and everything else is drawn from it.

mod ahead;
pub(crate) mod table;

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    client::Result,
    machine::{Machine, Sources},
    statistics::{median, quantile, sorted},
    workloads::{Better, Round},
};

/// Everything about one run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Results {
    /// `quick`, `full` or `thousand`.
    pub(crate) form: String,
    pub(crate) rounds: u32,
    /// Number of nodes of a server; 0 in reports that are older than this field, and then it was one.
    #[serde(default)]
    pub(crate) nodes: usize,
    pub(crate) begun: String,
    pub(crate) minutes: f64,
    pub(crate) machine: Machine,
    #[serde(default)]
    pub(crate) sources: Sources,
    /// Versions of the servers.
    pub(crate) engines: BTreeMap<String, String>,
    pub(crate) peers: Vec<Facts>,
    /// The engines that were not there, and how to install them.
    pub(crate) missing: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// What a peer is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) package: String,
    pub(crate) engine: String,
    pub(crate) waits: String,
    pub(crate) durability: String,
    pub(crate) ours: bool,
    /// Whether it is no lock, only the commands that a lock needs.
    #[serde(default)]
    pub(crate) floor: bool,
}

/// One peer in one case of one workload.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) case: String,
    pub(crate) peer: String,
    /// In the order in which they are shown.
    pub(crate) measures: Vec<Measure>,
    /// Number of latencies.
    #[serde(default)]
    pub(crate) samples: usize,
    /// Why there are fewer numbers than there should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remark: Option<String>,
}

/// One number, of all rounds together and of each.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Measure {
    pub(crate) name: String,
    pub(crate) better: Better,
    pub(crate) value: f64,
    pub(crate) rounds: Vec<f64>,
}

impl Results {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
    }

    /// Returns the servers' size in words.
    pub(crate) fn size(&self) -> String {
        match self.nodes {
            0 | 1 => String::from("one node"),
            nodes => format!("{nodes} nodes"),
        }
    }

    /// Returns the workloads in the order of the run, each with its cases.
    pub(crate) fn cases(&self) -> Vec<(&str, Vec<&str>)> {
        let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            let (workload, case) = (row.workload.as_str(), row.case.as_str());
            match found.iter_mut().find(|(known, _)| *known == workload) {
                None => found.push((workload, vec![case])),
                Some((_, cases)) if !cases.contains(&case) => cases.push(case),
                Some(_) => {}
            }
        }
        found
    }

    pub(crate) fn of<'a>(&'a self, workload: &'a str, case: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows
            .iter()
            .filter(move |row| row.workload == workload && row.case == case)
    }

    pub(crate) fn facts(&self, peer: &str) -> Option<&Facts> {
        self.peers.iter().find(|facts| facts.id == peer)
    }
}

impl Row {
    /// Sums up the rounds of one peer.
    pub(crate) fn new(workload: &str, case: &str, peer: &str, rounds: Vec<Round>, remark: Option<String>) -> Self {
        let mut row = Self {
            workload: workload.to_owned(),
            case: case.to_owned(),
            peer: peer.to_owned(),
            remark,
            ..Self::default()
        };
        let all = sorted(
            rounds
                .iter()
                .flat_map(|round| round.latencies.iter().copied())
                .collect(),
        );
        row.samples = all.len();
        if !all.is_empty() {
            let each: Vec<Vec<f64>> = rounds.iter().map(|round| sorted(round.latencies.clone())).collect();
            for (name, part) in [("p50, ms", 0.5), ("p90, ms", 0.9), ("p99, ms", 0.99), ("max, ms", 1.0)] {
                let each = each.iter().filter(|round| !round.is_empty());
                row.measures.push(Measure {
                    name: name.to_owned(),
                    better: Better::Less,
                    value: rounded(quantile(&all, part)),
                    rounds: each.map(|round| rounded(quantile(round, part))).collect(),
                });
            }
        }
        // JSON has no words for what is no number.
        for number in rounds
            .iter()
            .flat_map(|round| &round.numbers)
            .filter(|number| number.value.is_finite())
        {
            match row.measures.iter_mut().find(|measure| measure.name == number.name) {
                Some(measure) => measure.rounds.push(rounded(number.value)),
                None => row.measures.push(Measure {
                    name: number.name.to_owned(),
                    better: number.better,
                    value: f64::NAN,
                    rounds: vec![rounded(number.value)],
                }),
            }
        }
        for measure in row.measures.iter_mut().filter(|measure| measure.value.is_nan()) {
            measure.value = median(&measure.rounds);
        }
        row
    }

    /// Returns the number that says most about the case: where tasks contend, the grants, as the median wait of a peer
    /// without a queue is that of the few tasks that get the lock again and again.
    pub(crate) fn headline(&self) -> Option<&Measure> {
        self.measure("grants/s").or_else(|| self.measures.first())
    }

    pub(crate) fn measure(&self, name: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.name == name)
    }
}

/// Keeps a thousandth, which is finer than anything that is measured, and keeps the file small.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
