//! The outcome, for the page of evidence: `.ci/evidence` adds it to `docs/evidence.jsonl`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{journal::Note, locks::is_own, summary::Summary};

/// The file in the folder of a run.
pub(crate) const FILE: &str = "evidence.json";

/// The numbers of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Evidence<'a> {
    seconds: u64,
    clients: usize,
    acquires: usize,
    granted: usize,
    /// Versions of the locks' documents in the servers' log, which is the second witness.
    versions: usize,
    /// Waits that the judge expected to be unharmed, as no fault was near.
    waits: usize,
    /// Faults that began, by their kinds.
    faults: BTreeMap<&'a str, usize>,
    /// Change streams that were killed.
    streams_killed: usize,
    /// Names that one client has for itself, most of which it uses once.
    names: usize,
    /// What grew in a soak.
    grew: Vec<String>,
    violations: usize,
}

impl<'a> Evidence<'a> {
    pub(crate) fn of(summary: &Summary<'a>) -> Self {
        let history = summary.history;
        let (mut faults, mut streams_killed) = (BTreeMap::new(), 0);
        for entry in &history.journal {
            match &entry.note {
                Note::Began { kind, .. } => *faults.entry(kind.as_str()).or_default() += 1,
                Note::CursorsKilled { streams } => streams_killed += streams,
                _ => {}
            }
        }
        let names = history.operations.iter().map(|operation| operation.name.as_str());
        let names: BTreeSet<&str> = names.filter(|name| is_own(name)).collect();
        let grew = summary.growth.iter().filter(|verdict| !verdict.is_flat());
        let granted = history.operations.iter().filter(|operation| operation.grant.is_some());
        Self {
            seconds: summary.seconds(),
            clients: summary.clients(),
            acquires: history.operations.len(),
            granted: granted.count(),
            versions: history.versions.len(),
            waits: summary.judged.waits_in_fair_weather,
            faults,
            streams_killed,
            names: names.len(),
            grew: grew.map(|verdict| verdict.what.clone()).collect(),
            violations: summary.violations.len(),
        }
    }
}
