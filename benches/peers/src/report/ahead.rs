//! The numbers in which others are ahead, and why: after the properties that the peers declare and after what the same
//! run has measured, never after a verdict on a single number.

use std::fmt::Write;

use super::{Facts, Measure, Results, Row, table::shown};
use crate::{
    peers::{FLOOR, Kept, LEAST, OURS, RING},
    statistics::{differ, median},
    workloads::Better,
};

/// Least number of samples for the slowest hundredth to be compared. With fewer, less than five of them lie beyond it, and
/// a run of the same case names another.
const SAMPLES_FOR_P99: usize = 500;

/// A number in which at least one peer is better than ours, by more than the noise.
#[derive(Debug)]
struct Lead<'a> {
    workload: &'a str,
    case: &'a str,
    ours: &'a Measure,
    /// The number that the commands of MongoDB alone have.
    floor: Option<f64>,
    leaders: Vec<Leader<'a>>,
}

#[derive(Debug)]
struct Leader<'a> {
    peer: &'a str,
    value: f64,
    /// The reasons that apply; none if nothing that is known explains the number.
    why: Vec<String>,
}

/// Returns the section of the report.
pub(super) fn section(results: &Results) -> String {
    let leads = leads(results);
    let mut text = String::from("\n## Where others are ahead\n\n");
    if leads.is_empty() {
        let _ = writeln!(
            text,
            "Nowhere: in no case is a peer better than `{OURS}` by more than the noise."
        );
        return text;
    }
    let _ = writeln!(
        text,
        "Computed: a number of a peer is here if it is better than that of `{OURS}` by more than the rounds of either \
         differ, and than 5 %; the slowest hundredth only with {SAMPLES_FOR_P99} samples of each. The floor is what `{FLOOR}` takes in the same run: the commands of MongoDB with no lock around \
         them. In the contention it is what these would take if everybody was served in turn.{}{} The reasons are computed \
         too, from the properties of a peer and from numbers of this run: *in memory only*, a grant that a crash of the server \
         loses; *polls*, with what its idle waiters cost the server.",
        results.facts(RING).map_or_else(String::new, |_| format!(
            " `{RING}` is no lock either: as many clients hand a turn round, each with a change stream."
        )),
        results.facts(LEAST).map_or_else(String::new, |_| format!(
            " `{LEAST}` is no library: it sends the least commands of a lock with leases, a queue, fencing tokens and \
             clean-up, in pipelines written by hand."
        ))
    );
    for (title, explained) in [("Not explained", false), ("Explained", true)] {
        let lines: Vec<String> = leads.iter().filter_map(|lead| line(lead, explained)).collect();
        if lines.is_empty() {
            let _ = writeln!(text, "\n### {title}\n\nNothing.");
            continue;
        }
        let _ = writeln!(
            text,
            "\n### {title}\n\n| workload | case | number | ours | floor | ahead | why |\n|---|---|---|---:|---:|---|---|\n{}",
            lines.join("\n")
        );
    }
    text
}

/// Returns the line with the leaders that are explained, or with those that are not.
fn line(lead: &Lead<'_>, explained: bool) -> Option<String> {
    let chosen = lead.leaders.iter().filter(|leader| leader.why.is_empty() != explained);
    let chosen: Vec<&Leader<'_>> = chosen.collect();
    if chosen.is_empty() {
        return None;
    }
    let ahead: Vec<String> = chosen
        .iter()
        .map(|leader| {
            format!(
                "{} {}{}",
                leader.peer,
                shown(leader.value),
                times(leader.value, lead.ours.value)
            )
        })
        .collect();
    // Peers with the same reasons share a sentence.
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for leader in chosen {
        let why = if explained {
            leader.why.join("; ")
        } else {
            String::from("not explained")
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, peers)) => peers.push(leader.peer),
            None => reasons.push((why, vec![leader.peer])),
        }
    }
    let why = match reasons.as_slice() {
        [(why, _)] => why.clone(),
        several => {
            let each: Vec<String> = several
                .iter()
                .map(|(why, peers)| format!("{}: {why}", peers.join(", ")))
                .collect();
            each.join(". ")
        }
    };
    Some(format!(
        "| {} | {} | {} | {} | {} | {} | {why} |",
        lead.workload,
        lead.case,
        lead.ours.name,
        shown(lead.ours.value),
        lead.floor.map_or_else(|| String::from("-"), shown),
        ahead.join(", "),
    ))
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

fn leads(results: &Results) -> Vec<Lead<'_>> {
    let mut leads = Vec::new();
    for (workload, cases) in results.cases() {
        for case in cases {
            let Some(ours) = results.of(workload, case).find(|row| row.peer == OURS) else {
                continue;
            };
            for measure in ours.measures.iter().filter(|measure| counts(measure, ours)) {
                let floor = floor(results, ours, measure);
                let leaders = results.of(workload, case).filter_map(|row| {
                    let facts = results.facts(&row.peer).filter(|facts| !facts.ours && !facts.floor)?;
                    let theirs = row.measure(&measure.name).filter(|measure| counts(measure, row))?;
                    is_ahead(theirs, measure).then(|| Leader {
                        peer: &row.peer,
                        value: theirs.value,
                        why: why(results, facts, row, theirs, ours, floor),
                    })
                });
                let leaders: Vec<Leader<'_>> = leaders.collect();
                if !leaders.is_empty() {
                    leads.push(Lead {
                        workload,
                        case,
                        ours: measure,
                        floor,
                        leaders,
                    });
                }
            }
        }
    }
    leads
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

/// Returns the number that MongoDB's commands alone have in this case.
fn floor(results: &Results, ours: &Row, measure: &Measure) -> Option<f64> {
    let (workload, case, name) = (ours.workload.as_str(), ours.case.as_str(), measure.name.as_str());
    if let Some(row) = results.of(workload, case).find(|row| row.peer == FLOOR) {
        return Some(row.measure(name)?.value);
    }
    let hop = |name: &str| {
        let mut rows = results.rows.iter().filter(|row| row.workload == "hand-over");
        Some(rows.find(|row| row.peer == FLOOR)?.measure(name)?.value)
    };
    match workload {
        // One write and one event, however many wait.
        "hand-over" => hop(name),
        "contention" => {
            let (waiters, _, hold) = super::charts::crowd_of(case)?;
            let turn = hop("p50, ms")? + f64::from(hold);
            match name {
                "p50, ms" | "p99, ms" | "longest wait, ms" => Some(turn * f64::from(waiters)),
                "grants/s" => Some(1e3 / turn),
                _ => None,
            }
        }
        "idle cost" => {
            let unit = name.strip_prefix("foreign write, ")?;
            Some(ours.measure(&format!("the same alone, {unit}"))?.value)
        }
        _ => None,
    }
}

/// Returns whether a number is one of speed, which a grant in memory or another log improves.
fn is_speed(name: &str) -> bool {
    ["p50", "p99", "longest wait", "foreign write"]
        .iter()
        .any(|part| name.starts_with(part))
        || name.ends_with("s/s")
}

/// Returns the reasons why a peer is ahead in a number.
fn why(results: &Results, facts: &Facts, row: &Row, theirs: &Measure, ours: &Row, floor: Option<f64>) -> Vec<String> {
    let mut why = Vec::new();
    let Some(traits) = facts.traits else {
        return why;
    };
    let (workload, name) = (row.workload.as_str(), theirs.name.as_str());
    let among_many = matches!(workload, "hand-over" | "contention");
    let with_grants = among_many || matches!(workload, "uncontended" | "distinct names" | "held locks");
    let speed = is_speed(name) && !name.starts_with("commands");
    if traits.kept == Kept::Memory && with_grants && speed {
        why.push(String::from("in memory only"));
    }
    if !traits.release_awaited && matches!(workload, "uncontended" | "distinct names") {
        why.push(String::from("release not awaited"));
    }
    if traits.kept != Kept::Majority && (speed || workload == "allocations") {
        let below = floor.filter(|floor| is_better(theirs.better, theirs.value, *floor));
        why.extend(below.map(|floor| format!("`{FLOOR}` has {}", shown(floor))));
    }
    if traits.kept != Kept::Majority && among_many && speed {
        why.extend(a_turn_without_a_lock(results, row, theirs));
    }
    why.extend(the_least_of_a_lock(results, row, theirs));
    if traits.ends_with_connection && matches!(workload, "crash" | "lost signal") {
        why.push(String::from("its lock ends with the connection, and has no lease"));
    }
    if workload == "crash" {
        why.extend(within_an_acquire(results, theirs, ours));
    }
    if traits.one_lease && workload == "held locks" && !name.ends_with("es/s") {
        why.push(String::from("one sign of life keeps all locks of a client"));
    }
    if traits.waits_in_server && workload == "idle cost" && !name.starts_with("foreign") {
        why.push(String::from("its waiters ask once, and the server tells them"));
    }
    if !traits.queue && workload == "contention" {
        why.extend(price_of_no_queue(row, ours));
    }
    if !traits.queue && among_many {
        why.extend(price_of_polling(results, row));
    }
    let of_tasks = matches!(name, "Jain's index" | "overtaken by, mean");
    // A client whose tasks share a turn makes each of them wait for the turns of all others again.
    let of_the_last = workload == "contention" && matches!(name, "p99, ms" | "longest wait, ms");
    if of_tasks || of_the_last {
        why.extend(turns_of_clients(row, ours));
    }
    if let Some(unit) = name.strip_prefix("foreign write, ") {
        why.extend(price_of_streams(results, unit, row, ours));
    }
    if why.is_empty() {
        why.extend(another_of_ours(results, row, theirs));
    }
    why
}

/// Returns the number of raw clients of MongoDB that hand a turn round, if the peer's is better than that too.
fn a_turn_without_a_lock(results: &Results, row: &Row, theirs: &Measure) -> Option<String> {
    let mut rows = results.of(&row.workload, &row.case);
    let raw = rows.find(|row| row.peer == RING)?.measure(&theirs.name)?.value;
    let reason = format!("`{RING}` has {}", shown(raw));
    is_better(theirs.better, theirs.value, raw).then_some(reason)
}

/// Returns the number of the least commands of a lock on MongoDB, if the peer's is better than that.
fn the_least_of_a_lock(results: &Results, row: &Row, theirs: &Measure) -> Option<String> {
    let mut rows = results.of(&row.workload, &row.case);
    let least = rows.find(|row| row.peer == LEAST)?.measure(&theirs.name)?.value;
    let reason = format!("`{LEAST}` has {}", shown(least));
    is_better(theirs.better, theirs.value, least).then_some(reason)
}

/// Returns the number in which a peer without a queue pays for letting newcomers in first, if there is one.
fn price_of_no_queue(row: &Row, ours: &Row) -> Option<String> {
    for name in ["longest wait, ms", "p99, ms", "overtaken by, mean", "Jain's index"] {
        if let (Some(theirs), Some(ours)) = (row.measure(name), ours.measure(name))
            && is_ahead(ours, theirs)
        {
            return Some(format!(
                "no queue ({name}: {} against {})",
                shown(theirs.value),
                shown(ours.value)
            ));
        }
    }
    None
}

/// Returns the time of an acquire, if the take-overs lie no further apart: a lease begins some time between the call of
/// the holder's acquire and its answer, and nobody outside the server knows when.
fn within_an_acquire(results: &Results, theirs: &Measure, ours: &Row) -> Option<String> {
    let mut rows = results.rows.iter().filter(|row| row.workload == "uncontended");
    let acquire = rows.find(|row| row.peer == OURS)?.measure("p99, ms")?.value;
    let apart = (ours.measure(&theirs.name)?.value - theirs.value).abs();
    (apart <= acquire).then(|| {
        format!(
            "{} ms apart, and an acquire, in which the lease begins, takes up to {}",
            shown(apart),
            shown(acquire)
        )
    })
}

/// Returns how evenly clients are served, if ours serves them more evenly: a client that has two tasks is one client.
fn turns_of_clients(row: &Row, ours: &Row) -> Option<String> {
    let name = "Jain's index of clients";
    let (theirs, ours) = (row.measure(name)?, ours.measure(name)?);
    // Near 1, what is missing to it tells one index from another.
    let missing = |measure: &Measure| measure.rounds.iter().map(|index| 1.0 - index).collect::<Vec<_>>();
    let (theirs_missing, ours_missing) = (missing(theirs), missing(ours));
    let is_more_even = median(&ours_missing) < median(&theirs_missing) && differ(&ours_missing, &theirs_missing);
    is_more_even.then(|| {
        format!(
            "turns of tasks, ours of clients ({name}: {} against {})",
            shown(theirs.value),
            shown(ours.value)
        )
    })
}

/// Returns what our open change streams cost a write of somebody else, if waiters of the peer cost it nothing.
fn price_of_streams(results: &Results, unit: &str, row: &Row, ours: &Row) -> Option<String> {
    if !results.facts(&ours.peer)?.traits?.streams {
        return None;
    }
    let [beside, alone] = ["foreign write", "the same alone"].map(|which| format!("{which}, {unit}"));
    let (theirs, theirs_alone) = (row.measure(&beside)?, row.measure(&alone)?);
    if is_ahead(theirs_alone, theirs) {
        return None;
    }
    let (ours, ours_alone) = (ours.measure(&beside)?.value, ours.measure(&alone)?.value);
    Some(format!(
        "its waiters cost this write nothing, and our open change streams {} of it",
        shown((ours - ours_alone).max(0.0))
    ))
}

/// Returns what the polls of a peer cost while its waiters wait, if that is more than ours do.
fn price_of_polling(results: &Results, row: &Row) -> Option<String> {
    let name = "server, ms of CPU/s";
    let cost = |peer: &str| {
        let mut rows = results.rows.iter().filter(|row| row.workload == "idle cost");
        rows.find(|row| row.peer == peer)?.measure(name)
    };
    let (theirs, ours) = (cost(&row.peer)?, cost(OURS)?);
    is_ahead(ours, theirs).then(|| {
        format!(
            "polls (server, ms of CPU/s: {} against {})",
            shown(theirs.value),
            shown(ours.value)
        )
    })
}

/// Returns another setting of ours that is as durable as the usual one and not behind in this number.
fn another_of_ours(results: &Results, row: &Row, theirs: &Measure) -> Option<String> {
    results.of(&row.workload, &row.case).find_map(|other| {
        let facts = results.facts(&other.peer)?;
        let durable = facts.traits.is_some_and(|traits| traits.kept == Kept::Majority);
        let measure = other.measure(&theirs.name)?;
        let fits = facts.ours && durable && other.peer != OURS && !is_ahead(theirs, measure);
        fits.then(|| format!("`{}` has {}", other.peer, shown(measure.value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{peers::Traits, workloads::Round};

    const PLAIN: Traits = Traits {
        kept: Kept::Majority,
        queue: true,
        waits_in_server: false,
        release_awaited: true,
        ends_with_connection: false,
        one_lease: false,
        streams: false,
    };

    fn facts(id: &str, traits: Option<Traits>) -> Facts {
        Facts {
            id: id.to_owned(),
            package: String::new(),
            engine: String::new(),
            waits: String::new(),
            durability: String::new(),
            ours: id.starts_with(OURS),
            floor: id == FLOOR,
            traits,
        }
    }

    fn row(workload: &str, case: &str, peer: &str, latencies: [f64; 2]) -> Row {
        let rounds = latencies.map(|latency| Round {
            latencies: vec![latency],
            ..Round::default()
        });
        Row::new(workload, case, peer, rounds.into(), None)
    }

    fn number(name: &str, better: Better, value: f64) -> Measure {
        Measure {
            name: name.to_owned(),
            better,
            value,
            rounds: vec![value],
        }
    }

    /// Ours has 2.0 to 2.1, and a floor of 1.5.
    fn run(workload: &str, theirs: [f64; 2], traits: Option<Traits>) -> Results {
        let case = "10 waiters, 8 clients, hold 0 ms";
        Results {
            peers: vec![
                facts(OURS, Some(PLAIN)),
                facts("other", traits),
                facts(FLOOR, Some(PLAIN)),
            ],
            rows: vec![
                row(workload, case, OURS, [2.0, 2.1]),
                row(workload, case, "other", theirs),
                row(workload, case, FLOOR, [1.5, 1.5]),
            ],
            ..Results::default()
        }
    }

    /// Returns the reasons for the median.
    fn reasons(results: &Results) -> Vec<String> {
        let lead = leads(results).into_iter().find(|lead| lead.ours.name == "p50, ms");
        let mut leaders = lead.expect("somebody is ahead").leaders;
        assert_eq!(leaders.len(), 1, "{leaders:?}");
        leaders.remove(0).why
    }

    #[test]
    fn a_peer_that_is_ahead_is_named_and_the_floor_is_no_peer() {
        let text = section(&run("uncontended", [1.0, 1.1], None));
        let line = "| uncontended | 10 waiters, 8 clients, hold 0 ms | p50, ms | 2.10 | 1.50 | other 1.10 (1.9 times) | \
                    not explained |";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("max"), "{text}");
        assert!(text.contains("### Explained\n\nNothing."), "{text}");
    }

    #[test]
    fn a_peer_that_is_behind_or_within_the_noise_is_not() {
        for theirs in [[3.0, 3.1], [1.9, 2.3], [1.0, 2.1]] {
            let text = section(&run("uncontended", theirs, Some(PLAIN)));
            assert!(text.contains("Nowhere"), "{text}");
        }
    }

    #[test]
    fn memory_and_a_release_that_nobody_waits_for_are_reasons() {
        let memory = Traits {
            kept: Kept::Memory,
            ..PLAIN
        };
        assert_eq!(
            reasons(&run("uncontended", [1.0, 1.1], Some(memory))),
            ["in memory only", "`mongodb-raw` has 1.50"]
        );
        let unawaited = Traits {
            release_awaited: false,
            ..PLAIN
        };
        assert_eq!(
            reasons(&run("uncontended", [1.0, 1.1], Some(unawaited))),
            ["release not awaited"]
        );
        assert!(reasons(&run("uncontended", [1.0, 1.1], Some(PLAIN))).is_empty());
    }

    #[test]
    fn another_log_is_a_reason_only_below_the_floor() {
        let own_log = Traits {
            kept: Kept::OwnLog,
            ..PLAIN
        };
        assert_eq!(
            reasons(&run("uncontended", [1.0, 1.1], Some(own_log))),
            ["`mongodb-raw` has 1.50"]
        );
        assert!(reasons(&run("uncontended", [1.7, 1.7], Some(own_log))).is_empty());
        // A library for MongoDB below the floor has found something that the floor does not know.
        assert!(reasons(&run("uncontended", [1.0, 1.1], Some(PLAIN))).is_empty());
    }

    #[test]
    fn a_turn_without_a_lock_is_a_reason_for_another_log_that_is_faster() {
        let own_log = Traits {
            kept: Kept::OwnLog,
            ..PLAIN
        };
        let with_ring = |traits, ring: f64| {
            let mut results = run("contention", [1.7, 1.7], Some(traits));
            let case = results.rows[0].case.clone();
            results.peers.push(Facts {
                floor: true,
                ..facts(RING, Some(PLAIN))
            });
            results.rows.push(row("contention", &case, RING, [ring; 2]));
            reasons(&results)
        };
        let reason = "`mongodb-ring` has 1.90";
        assert_eq!(with_ring(own_log, 1.9), [reason]);
        assert!(with_ring(own_log, 1.6).is_empty());
        assert!(with_ring(PLAIN, 1.9).is_empty());
    }

    #[test]
    fn doing_less_than_any_lock_with_a_queue_is_a_reason() {
        let with_least = |least: f64| {
            let mut results = run("uncontended", [1.0, 1.1], Some(PLAIN));
            let case = results.rows[0].case.clone();
            results.peers.push(Facts {
                floor: true,
                ..facts(LEAST, Some(PLAIN))
            });
            results.rows.push(row("uncontended", &case, LEAST, [least; 2]));
            reasons(&results)
        };
        let reason = "`mongodb-least` has 1.30";
        assert_eq!(with_least(1.3), [reason]);
        assert!(with_least(1.1).is_empty());
    }

    #[test]
    fn a_missing_queue_is_a_reason_only_with_its_price() {
        let unfair = Traits { queue: false, ..PLAIN };
        let with_waits = |theirs: f64| {
            let mut results = run("contention", [1.0, 1.1], Some(unfair));
            for (row, wait) in results.rows.iter_mut().zip([10.0, theirs]) {
                row.measures.push(number("longest wait, ms", Better::Less, wait));
            }
            results
        };
        assert_eq!(
            reasons(&with_waits(900.0)),
            ["no queue (longest wait, ms: 900 against 10.0)"]
        );
        assert!(reasons(&with_waits(10.0)).is_empty());
    }

    #[test]
    fn polling_is_a_reason_with_the_load_that_it_was_measured_with() {
        let polls = Traits { queue: false, ..PLAIN };
        let mut results = run("hand-over", [1.0, 1.1], Some(polls));
        for (peer, cost) in [(OURS, 2.0), ("other", 800.0)] {
            let mut idle = row("idle cost", "50 waiters", peer, [1.0, 1.0]);
            idle.measures = vec![number("server, ms of CPU/s", Better::Less, cost)];
            results.rows.push(idle);
        }
        assert_eq!(reasons(&results), ["polls (server, ms of CPU/s: 800 against 2.00)"]);
    }

    #[test]
    fn serving_clients_in_turn_is_a_reason_if_they_are_served_more_evenly() {
        let with_clients = |theirs: f64| {
            let mut results = run("contention", [2.0, 2.1], Some(PLAIN));
            for (row, clients) in results.rows.iter_mut().zip([1.0, theirs]) {
                let tasks = if row.peer == OURS { 0.9 } else { 1.0 };
                row.measures.push(number("Jain's index", Better::More, tasks));
                row.measures
                    .push(number("Jain's index of clients", Better::More, clients));
            }
            results
        };
        let why = |results: &Results| leads(results).remove(0).leaders.remove(0).why;
        assert_eq!(
            why(&with_clients(0.88)),
            ["turns of tasks, ours of clients (Jain's index of clients: 0.880 against 1.00)"]
        );
        // Near 1, a hundredth is much.
        assert_eq!(why(&with_clients(0.987)).len(), 1);
        assert!(why(&with_clients(1.0)).is_empty());
    }

    #[test]
    fn the_slowest_hundredth_of_few_samples_is_not_compared() {
        let with_samples = |samples: usize| {
            let mut results = run("hand-over", [1.0, 1.1], Some(PLAIN));
            results.rows.iter_mut().for_each(|row| row.samples = samples);
            results
        };
        let compared = |results: &Results| -> Vec<String> {
            let leads = leads(results).into_iter();
            leads.map(|lead| lead.ours.name.clone()).collect()
        };
        assert_eq!(compared(&with_samples(SAMPLES_FOR_P99)), ["p50, ms", "p99, ms"]);
        assert_eq!(compared(&with_samples(SAMPLES_FOR_P99 - 1)), ["p50, ms"]);
    }

    #[test]
    fn open_change_streams_are_a_reason_if_the_waiters_of_others_cost_nothing() {
        let with_writes = |theirs: f64| {
            let mut results = run("idle cost", [2.0, 2.1], Some(PLAIN));
            results.peers[0] = facts(OURS, Some(Traits { streams: true, ..PLAIN }));
            results.rows.retain(|row| row.peer != FLOOR);
            for (row, [beside, alone]) in results.rows.iter_mut().zip([[1_700.0, 800.0], [theirs, 820.0]]) {
                row.measures
                    .push(number("foreign write, us of CPU", Better::Less, beside));
                row.measures
                    .push(number("the same alone, us of CPU", Better::Less, alone));
            }
            results
        };
        let why = |results: &Results| leads(results).remove(0).leaders.remove(0).why;
        assert_eq!(
            why(&with_writes(830.0)),
            ["its waiters cost this write nothing, and our open change streams 900 of it"]
        );
        assert!(why(&with_writes(1_200.0)).is_empty());
    }

    #[test]
    fn another_setting_of_ours_that_is_not_behind_is_a_reason() {
        let mut results = run("contention", [1.0, 1.1], Some(PLAIN));
        results.peers.push(facts("watchlock-in-turn", Some(PLAIN)));
        let case = results.rows[0].case.clone();
        results
            .rows
            .push(row("contention", &case, "watchlock-in-turn", [1.0, 1.0]));
        assert_eq!(reasons(&results), ["`watchlock-in-turn` has 1.00"]);
    }

    #[test]
    fn the_floor_of_a_case_without_one_is_a_hop_for_each_turn() {
        let mut results = run("contention", [1.0, 1.1], Some(PLAIN));
        results.rows.retain(|row| row.peer != FLOOR);
        results
            .rows
            .push(row("hand-over", "1 waiter, 2 clients, hold 10 ms", FLOOR, [1.5, 1.5]));
        let lead = leads(&results).into_iter().find(|lead| lead.ours.name == "p50, ms");
        assert_eq!(lead.expect("somebody is ahead").floor, Some(15.0));
    }

    #[test]
    fn a_take_over_is_no_more_exact_than_the_beginning_of_the_lease() {
        let with_acquire = |acquire: f64| {
            let mut results = run("crash", [-3.0, -3.1], Some(PLAIN));
            results
                .rows
                .push(row("uncontended", "a known name", OURS, [acquire; 2]));
            results
        };
        assert_eq!(
            reasons(&with_acquire(6.0)),
            ["5.10 ms apart, and an acquire, in which the lease begins, takes up to 6.00"]
        );
        assert!(reasons(&with_acquire(4.0)).is_empty());
    }
}
