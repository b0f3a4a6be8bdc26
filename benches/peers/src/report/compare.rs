//! Two runs side by side: only what lies further apart than the rounds of either run.

use std::fmt::Write;

use super::{Measure, Results};
use crate::{
    statistics::{differ, median},
    workloads::Better,
};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::Row, workloads::Round};

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
