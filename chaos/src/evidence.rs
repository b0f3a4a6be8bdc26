//! The outcome, for the page of evidence: `.ci/evidence` adds it to `docs/evidence.jsonl`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{journal::Note, summary::Summary};

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
    violations: usize,
}

impl<'a> Evidence<'a> {
    pub(crate) fn of(summary: &Summary<'a>) -> Self {
        let history = summary.history;
        let mut faults = BTreeMap::new();
        for entry in &history.journal {
            if let Note::Began { kind, .. } = &entry.note {
                *faults.entry(kind.as_str()).or_default() += 1;
            }
        }
        let granted = history.operations.iter().filter(|operation| operation.grant.is_some());
        Self {
            seconds: summary.seconds(),
            clients: summary.clients(),
            acquires: history.operations.len(),
            granted: granted.count(),
            versions: history.versions.len(),
            waits: summary.judged.waits_in_fair_weather,
            faults,
            violations: summary.violations.len(),
        }
    }
}
