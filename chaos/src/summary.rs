//! The outcome, for people.

use std::{collections::BTreeMap, fmt, path::Path};

use crate::{
    clock::{MILLI, SECOND},
    history::{Grant, History, Operation},
    journal::Note,
    judge::{Judged, Violation, growth::Verdict},
    record::{End, Upon},
};

/// The summary of a run.
#[derive(Debug)]
pub(crate) struct Summary<'a> {
    pub(crate) history: &'a History,
    pub(crate) violations: &'a [Violation],
    pub(crate) judged: Judged,
    pub(crate) growth: Vec<Verdict>,
    pub(crate) folder: &'a Path,
}

/// The faults of one kind.
#[derive(Debug, Default)]
struct Inflicted {
    /// Number of those that began, whether they were missed or not.
    begun: usize,
    missed: usize,
}

/// Maximum number of violations that are printed.
const TOLD: usize = 20;

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_operations(f)?;
        self.write_faults(f)?;
        self.write_judgement(f)?;
        self.growth.iter().try_for_each(|verdict| writeln!(f, "  {verdict}"))?;
        self.write_violations(f)?;
        write!(f, "All of it is in {}", self.folder.display())
    }
}

/// The sections.
impl Summary<'_> {
    fn write_operations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations = &self.history.operations;
        let granted = operations.iter().filter(|operation| operation.grant.is_some());
        writeln!(f, "operations")?;
        writeln!(f, "  {:>7} acquires, of {} clients", operations.len(), self.clients())?;
        writeln!(f, "  {:>7} granted", granted.count())?;
        for (how, text) in [
            (End::TimedOut, "timed out"),
            (End::NotFree, "tries of what was not free"),
            (End::Cancelled, "cancelled"),
            (End::Deadlock, "told of a deadlock"),
            (End::Failed, "failed"),
        ] {
            let ended = |operation: &&Operation| operation.ended.is_some_and(|(_, end)| end == how);
            writeln!(f, "  {:>7} {text}", operations.iter().filter(ended).count())?;
        }
        let errors = operations.iter().filter_map(|operation| operation.error.as_deref());
        for (error, count) in counted(errors) {
            let short: String = error.chars().take(150).collect();
            writeln!(f, "          {count}: {short}")?;
        }
        self.write_kinds(f)?;
        self.write_losses(f)?;
        self.write_longest_wait(f)
    }

    /// Counts the grants that are more than that of a lock by itself.
    fn write_kinds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let granted = |is_such: fn(&Operation) -> bool| {
            let granted = self
                .history
                .operations
                .iter()
                .filter(|operation| operation.grant.is_some());
            granted.filter(|operation| is_such(operation)).count()
        };
        let left = granted(
            |operation| matches!(&operation.grant, Some(Grant { let_go: Some(let_go), .. }) if let_go.is_left()),
        );
        let multi = granted(|operation| operation.upon == Some(Upon::Multi(operation.reason())));
        writeln!(f, "  {left:>7} detached")?;
        writeln!(f, "  {:>7} taken up", granted(Operation::takes_up))?;
        writeln!(f, "  {multi:>7} multi-locks granted")?;
        writeln!(
            f,
            "  {:>7} readers upgraded",
            granted(|operation| matches!(operation.upon, Some(Upon::Reader(_))))
        )
    }

    fn write_losses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grants = self
            .history
            .operations
            .iter()
            .filter_map(|operation| operation.grant.as_ref());
        let losses = grants.filter_map(|grant| grant.lost.as_ref());
        let reasons = counted(losses.map(|(_, reason)| reason.as_str()));
        let lost: usize = reasons.values().sum();
        let reasons: Vec<String> = reasons
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        writeln!(f, "  {lost:>7} lost: {}", reasons.join(", "))
    }

    fn write_longest_wait(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = |operation: &Operation| {
            let grant = operation.grant.as_ref();
            grant.map_or(0, |grant| grant.from - operation.requested)
        };
        let Some(longest) = self.history.operations.iter().max_by_key(|operation| wait(operation)) else {
            return Ok(());
        };
        writeln!(
            f,
            "  {:>7} ms was the longest wait: {} for {}",
            wait(longest) / MILLI,
            longest.reason(),
            longest.name
        )
    }

    fn write_faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "faults")?;
        for (kind, Inflicted { begun, missed }) in self.faults() {
            let missed = if missed > 0 {
                format!(" ({missed} missed)")
            } else {
                String::new()
            };
            writeln!(f, "  {begun:>7} {kind}{missed}")?;
        }
        Ok(())
    }

    fn write_judgement(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = self.history.versions.len();
        let Judged {
            waits,
            waits_in_fair_weather,
            circles,
            circles_in_fair_weather,
        } = self.judged;
        writeln!(f, "judged")?;
        writeln!(f, "  {versions:>7} versions of lock documents in the servers' log")?;
        writeln!(
            f,
            "  {waits_in_fair_weather:>7} of {waits} waits for locks of one's own and for releases, to be unharmed"
        )?;
        writeln!(
            f,
            "  {circles_in_fair_weather:>7} of {circles} pairs of tasks that waited for each other, to be told"
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
        Ok(())
    }

    fn write_violations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violations")?;
        writeln!(f, "  {:>7}", self.violations.len())?;
        for Violation { promise, text, .. } in self.violations.iter().take(TOLD) {
            writeln!(f, "  - {promise}\n    {text}")?;
        }
        if self.violations.len() > TOLD {
            writeln!(f, "  - and {} more", self.violations.len() - TOLD)?;
        }
        Ok(())
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

    /// Counts the faults by their kinds.
    fn faults(&self) -> BTreeMap<&str, Inflicted> {
        let mut faults: BTreeMap<&str, Inflicted> = BTreeMap::new();
        let mut kinds = BTreeMap::new();
        for entry in &self.history.journal {
            match &entry.note {
                Note::Began { fault, kind, .. } => {
                    kinds.insert(*fault, kind.as_str());
                    faults.entry(kind).or_default().begun += 1;
                }
                Note::Missed { fault, .. } => {
                    if let Some(kind) = kinds.get(fault) {
                        faults.entry(kind).or_default().missed += 1;
                    }
                }
                _ => {}
            }
        }
        faults
    }
}

/// Returns how often each text comes up.
fn counted<'a>(texts: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts
}
