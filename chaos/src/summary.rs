//! The outcome, for people.

use std::{collections::BTreeMap, fmt, path::Path};

use crate::{
    clock::{MILLI, SECOND},
    history::History,
    journal::Note,
    judge::{Judged, Violation, Waits},
    record::End,
};

/// The summary of a run.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    pub(crate) history: &'a History,
    pub(crate) violations: &'a [Violation],
    pub(crate) judged: Judged,
    /// The longest waits under each single kind of fault.
    pub(crate) waits: BTreeMap<&'a str, Waits>,
    pub(crate) folder: &'a Path,
}

/// Maximum number of violations that are printed.
const TOLD: usize = 20;

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = &self.history.operations;
        let grants: Vec<_> = operations
            .iter()
            .filter_map(|operation| operation.grant.as_ref())
            .collect();
        let ended = |how| {
            operations
                .iter()
                .filter(move |operation| matches!(operation.ended, Some((_, end)) if end == how))
        };
        let lost = grants.iter().filter_map(|grant| grant.lost.as_ref());
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        lost.for_each(|(_, reason)| *reasons.entry(reason).or_default() += 1);
        let reasons: Vec<String> = reasons
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();

        writeln!(f, "operations")?;
        writeln!(f, "  {:>7} acquires, of {} clients", operations.len(), self.clients())?;
        writeln!(f, "  {:>7} granted", grants.len())?;
        for (how, what) in [
            (End::TimedOut, "timed out"),
            (End::NotFree, "tries of what was not free"),
            (End::Cancelled, "cancelled"),
            (End::Failed, "failed"),
        ] {
            writeln!(f, "  {:>7} {what}", ended(how).count())?;
        }
        let mut failures: BTreeMap<&str, usize> = BTreeMap::new();
        for error in operations.iter().filter_map(|operation| operation.error.as_deref()) {
            *failures.entry(error).or_default() += 1;
        }
        for (error, count) in failures {
            let short: String = error.chars().take(150).collect();
            writeln!(f, "          {count}: {short}")?;
        }
        let lost: usize = grants.iter().filter(|grant| grant.lost.is_some()).count();
        writeln!(f, "  {lost:>7} lost: {}", reasons.join(", "))?;
        let wait = |operation: &&crate::history::Operation| {
            operation
                .grant
                .as_ref()
                .map_or(0, |grant| grant.from - operation.requested)
        };
        if let Some(longest) = operations.iter().max_by_key(wait) {
            let seconds = wait(&longest) / MILLI;
            writeln!(
                f,
                "  {seconds:>7} ms was the longest wait: {} for {}",
                longest.reason(),
                longest.name
            )?;
        }

        writeln!(f, "faults")?;
        let mut faults: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for entry in &self.history.journal {
            match &entry.note {
                Note::Began { fault, kind, .. } => {
                    kinds.insert(*fault, kind.as_str());
                    faults.entry(kind).or_default().0 += 1;
                }
                Note::Missed { fault, .. } => {
                    if let Some(kind) = kinds.get(fault) {
                        faults.entry(kind).or_default().1 += 1;
                    }
                }
                _ => {}
            }
        }
        for (kind, (begun, missed)) in faults {
            let missed = if missed > 0 {
                format!(" ({missed} missed)")
            } else {
                String::new()
            };
            writeln!(f, "  {begun:>7} {kind}{missed}")?;
        }

        writeln!(
            f,
            "the longest waits beside one kind of fault: for a lock of one's own, for a release"
        )?;
        for (kind, waits) in &self.waits {
            writeln!(
                f,
                "  {:>7} ms of {:>6}, {:>7} ms of {:>6}  {kind}",
                waits.longest_acquire / MILLI,
                waits.acquires,
                waits.longest_release / MILLI,
                waits.releases
            )?;
        }

        writeln!(f, "judged")?;
        let versions = self.history.versions.len();
        writeln!(f, "  {versions:>7} versions of lock documents in the servers' log")?;
        let Judged {
            operations,
            parts,
            waits,
            waits_in_fair_weather,
        } = self.judged;
        writeln!(
            f,
            "  {operations:>7} operations by the linearizability tester, in {parts} parts"
        )?;
        writeln!(
            f,
            "  {waits_in_fair_weather:>7} of {waits} waits for locks of one's own and for releases, to be unharmed"
        )?;
        writeln!(f, "  {:>7} s", self.seconds())?;

        let abandoned = self.history.journal.iter().find_map(|entry| match entry.note {
            Note::Abandoned { streams } => Some(streams),
            _ => None,
        });
        if let Some(streams @ 1..) = abandoned {
            writeln!(
                f,
                "  {streams:>7} change streams of the killed, the cut off and the stepped down are left to the servers"
            )?;
        }
        writeln!(f, "violations")?;
        writeln!(f, "  {:>7}", self.violations.len())?;
        for Violation { promise, text, .. } in self.violations.iter().take(TOLD) {
            writeln!(f, "  - {promise}\n    {text}")?;
        }
        if self.violations.len() > TOLD {
            writeln!(f, "  - and {} more", self.violations.len() - TOLD)?;
        }
        write!(f, "All of it is in {}", self.folder.display())
    }
}

impl Summary<'_> {
    pub(crate) fn clients(&self) -> usize {
        let started = self
            .history
            .journal
            .iter()
            .filter(|entry| matches!(entry.note, Note::Started { .. }));
        started.count()
    }

    pub(crate) fn seconds(&self) -> u64 {
        let moments = self.history.journal.iter().map(|entry| entry.at);
        let (first, last) = (moments.clone().min(), moments.max());
        last.zip(first).map_or(0, |(last, first)| (last - first) / SECOND)
    }
}
