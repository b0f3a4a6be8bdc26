//! The outcome of a run: numbers, which `.ci/evidence` adds to `docs/evidence.jsonl`, and what the judge found.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    path::Path,
};

use serde::Serialize;

use crate::{
    clock::{Moment, SECOND},
    history::{History, Operation},
    journal::Note,
    judge::{Judged, Violation, growth::Verdict},
    locks::is_own,
    record::Upon,
};

/// The file of the numbers in the folder of a run.
pub(crate) const FILE: &str = "evidence.json";

/// Maximum number of violations that are printed.
const TOLD: usize = 20;

/// The numbers of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Evidence {
    seconds: u64,
    clients: usize,
    acquires: usize,
    granted: usize,
    /// Versions of the locks' documents in the servers' log, which is the second witness.
    versions: usize,
    /// Waits that the judge expected to be unharmed, as no fault was near.
    waits: usize,
    /// Faults that began, by their kinds.
    faults: BTreeMap<String, usize>,
    /// Change streams that were killed.
    streams_killed: usize,
    /// Names that one client has for itself, most of which it uses once.
    names: usize,
    /// What grew in a soak.
    grew: Vec<String>,
    violations: usize,
    /// What came up how often besides; for people.
    counts: BTreeMap<String, usize>,
}

impl Evidence {
    pub(crate) fn of(history: &History, violations: &[Violation], judged: Judged, growth: &[Verdict]) -> Self {
        let names = history.operations.iter().map(|operation| operation.name.as_str());
        let names: BTreeSet<&str> = names.filter(|name| is_own(name)).collect();
        let grew = growth.iter().filter(|verdict| !verdict.is_flat());
        let granted = history.operations.iter().filter(|operation| operation.grant.is_some());
        let moments = history.journal.iter().map(|entry| entry.at);
        let lasted = moments.clone().max().zip(moments.min());
        let mut evidence = Self {
            seconds: lasted.map_or(0, |(last, first): (Moment, Moment)| (last - first) / SECOND),
            clients: 0,
            acquires: history.operations.len(),
            granted: granted.count(),
            versions: history.versions.len(),
            waits: judged.waits_in_fair_weather,
            faults: BTreeMap::new(),
            streams_killed: 0,
            names: names.len(),
            grew: grew.map(|verdict| verdict.what.clone()).collect(),
            violations: violations.len(),
            counts: [
                ("waits, judged or not".to_owned(), judged.waits),
                ("pairs of tasks that waited for each other".to_owned(), judged.circles),
                ("pairs that were judged".to_owned(), judged.circles_in_fair_weather),
            ]
            .into(),
        };
        evidence.count_notes(history);
        for operation in &history.operations {
            evidence.count_operation(operation);
        }
        evidence
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    fn count_notes(&mut self, history: &History) {
        let mut kinds = HashMap::new();
        for entry in &history.journal {
            match &entry.note {
                Note::Started { .. } => self.clients += 1,
                Note::Began { fault, kind, .. } => {
                    kinds.insert(*fault, kind);
                    *self.faults.entry(kind.clone()).or_default() += 1;
                }
                Note::Missed { fault, .. } => {
                    let kind = kinds.get(fault).map_or("unknown", |kind| kind.as_str());
                    self.count(format!("fault missed: {kind}"));
                }
                Note::CursorsKilled { streams } => self.streams_killed += streams,
                Note::Abandoned { streams } => {
                    self.counts.insert("streams left to the servers".to_owned(), *streams);
                }
                _ => {}
            }
        }
    }

    fn count_operation(&mut self, operation: &Operation) {
        if let Some((_, how)) = operation.ended {
            self.count(format!("ended: {how:?}"));
        }
        if let Some(error) = &operation.error {
            let short: String = error.chars().take(150).collect();
            self.count(format!("error: {short}"));
        }
        let Some(grant) = &operation.grant else { return };
        if let Some((_, reason)) = &grant.lost {
            self.count(format!("lost: {reason}"));
        }
        if grant.let_go.as_ref().is_some_and(|let_go| let_go.is_left()) {
            self.count("detached");
        }
        match &operation.upon {
            Some(Upon::Detached(_)) => self.count("taken up"),
            Some(Upon::Reader(_)) => self.count("readers upgraded"),
            Some(Upon::Multi(first)) if *first == operation.reason() => self.count("multi-locks"),
            _ => {}
        }
    }
}

/// All of the outcome, for people.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) evidence: &'a Evidence,
    pub(crate) violations: &'a [Violation],
    pub(crate) growth: &'a [Verdict],
    pub(crate) folder: &'a Path,
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = serde_json::to_string_pretty(self.evidence).map_err(|_| fmt::Error)?;
        writeln!(f, "{numbers}")?;
        self.growth.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))?;
        for Violation { promise, text, .. } in self.violations.iter().take(TOLD) {
            writeln!(f, "- {promise}\n  {text}")?;
        }
        if self.violations.len() > TOLD {
            writeln!(f, "- and {} more", self.violations.len() - TOLD)?;
        }
        write!(
            f,
            "violations: {}. All of it is in {}",
            self.violations.len(),
            self.folder.display()
        )
    }
}
