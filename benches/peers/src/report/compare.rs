//! Two runs side by side: only what lies further apart than the rounds of either run.

use std::fmt::{self, Write};

use super::{Measure, Results};
use crate::{
    peers::OURS,
    statistics::{differ, median, sorted},
    workloads::Better,
};

/// Name of the median among the measures of a row.
const MEDIAN: &str = "p50, ms";

/// A number that differs by more than the noise.
#[derive(Debug, PartialEq)]
struct Moved {
    place: String,
    name: String,
    before: f64,
    after: f64,
    better: Better,
}

impl Moved {
    fn is_worse(&self) -> bool {
        (self.after > self.before) == (self.better == Better::Less)
    }
}

/// By how much the medians of one workload moved as a whole, in new over old: what all peers have in common is the
/// machine's.
#[derive(Debug, PartialEq)]
struct Drift {
    workload: String,
    /// Of this library at its usual setting, over all cases.
    ours: Ratios,
    /// Of the peers that are not this library.
    others: Ratios,
}

#[derive(Debug, Default, PartialEq)]
struct Ratios(Vec<f64>);

impl Ratios {
    /// Returns the median; of two in the middle their geometric mean, so that it is the inverse if the runs are swapped.
    fn median(&self) -> Option<f64> {
        let all = sorted(self.0.clone());
        let upper = *all.get(all.len() / 2)?;
        let lower = *all.get(all.len().saturating_sub(1) / 2)?;
        Some((lower * upper).sqrt())
    }
}

impl fmt::Display for Ratios {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.median() {
            None => f.write_str("-"),
            Some(median) => write!(f, "{median:.2} ({})", self.0.len()),
        }
    }
}

/// Returns the comparison as text.
pub(crate) fn text(old: &Results, new: &Results) -> String {
    let (moved, compared) = moved(old, new);
    let mut text = String::new();
    for (label, results) in [("old", old), ("new", new)] {
        let Results {
            begun,
            form,
            machine,
            sources,
            ..
        } = results;
        let _ = writeln!(
            text,
            "{label}: {begun}, {form}, {sources}, {} cores of {}",
            machine.cores, machine.processor
        );
    }
    let same = |one: &Results| {
        let machine = &one.machine;
        (machine.processor.clone(), machine.cores, one.form.clone(), one.size())
    };
    if same(old) != same(new) {
        text.push_str("They are from different machines, or of different forms or numbers of nodes: compare the order of the peers, not the numbers.\n");
    }
    for (old, new) in old
        .engines
        .iter()
        .filter_map(|(kind, old)| Some((old, new.engines.get(kind)?)))
    {
        if old != new {
            let _ = writeln!(text, "A server was {old} and is {new}.");
        }
    }
    let _ = writeln!(
        text,
        "\n{} of {compared} numbers moved by more than the noise.",
        moved.len()
    );
    let drifts = drifts(old, new);
    if !drifts.is_empty() {
        text.push_str("\nThe medians (p50) of all cases and peers, new over old:\n");
    }
    for Drift { workload, ours, others } in drifts {
        let _ = writeln!(text, "  {workload}: {OURS} {ours}, others {others}");
    }
    for worse in [true, false] {
        let these: Vec<&Moved> = moved.iter().filter(|moved| moved.is_worse() == worse).collect();
        if !these.is_empty() {
            let _ = writeln!(text, "\n{}:", if worse { "Worse" } else { "Better" });
        }
        for Moved {
            place,
            name,
            before,
            after,
            ..
        } in these
        {
            // A time beyond a lease can be less than nothing, and has no percentage then.
            let by = if before.min(*after) > 0.0 {
                format!(" ({:+.0} %)", (after / before - 1.0) * 100.0)
            } else {
                String::new()
            };
            let _ = writeln!(text, "  {place}: {name} {before} -> {after}{by}");
        }
    }
    text
}

/// Returns what moved, and how many numbers both runs have.
fn moved(old: &Results, new: &Results) -> (Vec<Moved>, usize) {
    let (mut moved, mut compared) = (Vec::new(), 0);
    for before in &old.rows {
        let Some(after) = new
            .of(&before.workload, &before.case)
            .find(|row| row.peer == before.peer)
        else {
            continue;
        };
        // A greatest value is one sample, and none is like the other.
        let measures = before.measures.iter().filter(|measure| measure.name != "max, ms");
        for (one, other) in measures.filter_map(|one| Some((one, after.measure(&one.name)?))) {
            compared += 1;
            if differ(&one.rounds, &other.rounds) {
                let value = |measure: &Measure| median(&measure.rounds);
                moved.push(Moved {
                    place: format!("{}, {}, {}", before.workload, before.case, before.peer),
                    name: one.name.clone(),
                    before: value(one),
                    after: value(other),
                    better: one.better,
                });
            }
        }
    }
    (moved, compared)
}

fn drifts(old: &Results, new: &Results) -> Vec<Drift> {
    let workloads = old.cases().into_iter();
    let drifts = workloads.filter_map(|(workload, cases)| {
        let (mut ours, mut others) = (Ratios::default(), Ratios::default());
        for row in cases.into_iter().flat_map(|case| old.of(workload, case)) {
            let later = new.of(workload, &row.case).find(|later| later.peer == row.peer);
            let Some((before, after)) = row.measure(MEDIAN).zip(later.and_then(|later| later.measure(MEDIAN))) else {
                continue;
            };
            let is_ours = old.facts(&row.peer).is_some_and(|facts| facts.ours);
            let ratios = match row.peer.as_str() {
                OURS => &mut ours,
                _ if is_ours => continue,
                _ => &mut others,
            };
            // A time beyond a lease can be less than nothing, and has no ratio then.
            if before.rounds.iter().chain(&after.rounds).all(|time| *time > 0.0) {
                ratios.0.push(median(&after.rounds) / median(&before.rounds));
            }
        }
        (ours.0.len() + others.0.len() > 0).then(|| Drift {
            workload: workload.to_owned(),
            ours,
            others,
        })
    });
    drifts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{Facts, Row},
        workloads::Round,
    };

    fn run(rounds: [f64; 3]) -> Results {
        let rounds = rounds.map(|latency| Round {
            latencies: vec![latency],
            ..Round::default()
        });
        Results {
            rows: vec![Row::new("hand-over", "one", "peer", rounds.into(), None)],
            ..Results::default()
        }
    }

    #[test]
    fn what_moved_by_more_than_the_noise_is_named() {
        let (moved, compared) = moved(&run([1.0, 1.1, 1.2]), &run([2.0, 2.1, 2.2]));
        // The quantiles of one sample are all the same, and the greatest is left out.
        assert_eq!((moved.len(), compared), (3, 3));
        let first = moved.first().expect("there are three");
        assert_eq!((first.before, first.after, first.is_worse()), (1.1, 2.1, true));
        let text = text(&run([2.0, 2.1, 2.2]), &run([1.0, 1.1, 1.2]));
        assert!(
            text.contains("Better:\n  hand-over, one, peer: p50, ms 2.1 -> 1.1 (-48 %)"),
            "{text}"
        );
        assert!(!text.contains("Worse"), "{text}");
    }

    #[test]
    fn what_all_peers_have_in_common_is_told_apart() {
        let of = |latencies: [[f64; 3]; 5]| {
            let mut all = Results::default();
            let peers = [OURS, "watchlock-polling", "one", "two", "beyond"];
            for (peer, latencies) in peers.into_iter().zip(latencies) {
                let row = run(latencies).rows.remove(0);
                all.rows.push(Row {
                    peer: peer.into(),
                    ..row
                });
                all.peers.push(Facts {
                    id: peer.into(),
                    ours: peer.starts_with(OURS),
                    ..Facts::default()
                });
            }
            all
        };
        let old = of([[1.0; 3], [1.0; 3], [2.0; 3], [4.0; 3], [0.1, -0.1, 0.2]]);
        let mut new = of([[1.1; 3], [9.0; 3], [2.4; 3], [8.0; 3], [0.1; 3]]);
        let there = text(&old, &new);
        // The two others took 1.2 and 2 times as long.
        assert!(
            there.contains("  hand-over: watchlock 1.10 (1), others 1.55 (2)\n"),
            "{there}"
        );
        let back = text(&new, &old);
        assert!(
            back.contains("  hand-over: watchlock 0.91 (1), others 0.65 (2)\n"),
            "{back}"
        );
        new.rows.retain(|row| row.peer != OURS);
        let without = text(&old, &new);
        assert!(
            without.contains("  hand-over: watchlock -, others 1.55 (2)\n"),
            "{without}"
        );
        assert!(drifts(&old, &Results::default()).is_empty());
    }

    #[test]
    fn noise_is_not_news() {
        let (moved, compared) = moved(&run([1.0, 1.5, 2.0]), &run([1.6, 2.1, 2.6]));
        assert_eq!((moved, compared), (Vec::new(), 3));
    }

    #[test]
    fn a_peer_that_is_new_or_gone_is_not_compared() {
        let other = Results {
            rows: vec![Row::new("hand-over", "one", "another", Vec::new(), None)],
            ..Results::default()
        };
        assert_eq!(moved(&run([1.0; 3]), &other), (Vec::new(), 0));
    }
}
