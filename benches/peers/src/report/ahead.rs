//! The numbers in which others are ahead. `docs/measured.md` says why.

use std::fmt::Write;

use super::{Measure, Results, Row};
use crate::{
    peers::{FLOOR, OURS},
    statistics::{differ, median, shown},
    workloads::Better,
};

/// Least number of samples for the slowest hundredth to be compared. With fewer, less than five of them lie beyond it, and
/// a run of the same case names another.
const SAMPLES_FOR_P99: usize = 500;

/// Returns the section of the report.
pub(super) fn section(results: &Results) -> String {
    let mut text = String::from("\n## Where others are ahead\n\n");
    let lines = lines(results);
    if lines.is_empty() {
        let _ = writeln!(
            text,
            "Nowhere: in no case is a peer better than `{OURS}` by more than the noise."
        );
        return text;
    }
    let _ = writeln!(
        text,
        "A number of a peer is here if it is better than that of `{OURS}` by more than the rounds of either differ, and \
         than 5 %; the slowest hundredth only with {SAMPLES_FOR_P99} samples of each. The floor is what `{FLOOR}` takes in \
         the same case: the commands of MongoDB with no lock around them. docs/measured.md says why they are ahead.\n\n\
         | workload | case | number | ours | floor | ahead |\n|---|---|---|---:|---:|---|\n{}",
        lines.join("\n")
    );
    text
}

/// Returns a line for each number in which a peer is ahead.
fn lines(results: &Results) -> Vec<String> {
    let mut lines = Vec::new();
    for (workload, cases) in results.cases() {
        for case in cases {
            let row_of = |peer: &str| results.of(workload, case).find(|row| row.peer == peer);
            let Some(ours) = row_of(OURS) else { continue };
            for measure in ours.measures.iter().filter(|measure| counts(measure, ours)) {
                let name = measure.name.as_str();
                let ahead = results.of(workload, case).filter_map(|row| {
                    results.facts(&row.peer).filter(|facts| !facts.ours && !facts.floor)?;
                    let theirs = row.measure(name).filter(|theirs| counts(theirs, row))?;
                    let ratio = times(theirs.value, measure.value);
                    is_ahead(theirs, measure).then(|| format!("{} {}{ratio}", row.peer, shown(theirs.value)))
                });
                let ahead: Vec<String> = ahead.collect();
                if ahead.is_empty() {
                    continue;
                }
                let floor = row_of(FLOOR).and_then(|row| row.measure(name));
                let floor = floor.map_or_else(|| String::from("-"), |floor| shown(floor.value));
                lines.push(format!(
                    "| {workload} | {case} | {name} | {} | {floor} | {} |",
                    shown(measure.value),
                    ahead.join(", ")
                ));
            }
        }
    }
    lines
}

fn times(theirs: f64, ours: f64) -> String {
    let (less, more) = (theirs.min(ours), theirs.max(ours));
    // Beyond that one of them is next to nothing, and the ratio says no more.
    if less > 0.0 && more / less < 1e3 {
        format!(" ({:.1} times)", more / less)
    } else {
        String::new()
    }
}

/// Returns whether the number says something about the lock: not so one sample, or the server without any lock; and p90
/// says nothing that its neighbours do not.
fn counts(measure: &Measure, row: &Row) -> bool {
    let begins_with = |other: &str| measure.name.starts_with(other);
    let says_nothing = ["max", "p90", "the same alone"].into_iter().any(begins_with);
    !says_nothing && (row.samples >= SAMPLES_FOR_P99 || !begins_with("p99"))
}

fn is_ahead(theirs: &Measure, ours: &Measure) -> bool {
    is_better(theirs.better, median(&theirs.rounds), median(&ours.rounds)) && differ(&theirs.rounds, &ours.rounds)
}

fn is_better(better: Better, one: f64, other: f64) -> bool {
    match better {
        Better::Less => one < other,
        Better::More => one > other,
    }
}
