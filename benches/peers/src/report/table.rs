//! The report as Markdown.

use std::fmt::Write;

use super::{Results, Row, ahead};
use crate::{
    peers::OURS,
    plan::OF_A_THOUSAND,
    statistics::{shown, sorted},
};

/// What each workload measures, in one sentence.
pub(crate) const WORKLOADS: [(&str, &str); 10] = [
    (
        "allocations",
        "One client acquires and releases a lock that nobody else wants: the memory that this process asks for in each such \
         cycle, with what the drivers do in the background meanwhile.",
    ),
    (
        "uncontended",
        "One client acquires and releases a lock that nobody else wants: the time of both together.",
    ),
    (
        "hand-over",
        "From the call of a release until the acquire of the next holder has returned. Whoever has released joins the line \
         again as soon as somebody else has got the lock, and each holds for 10 ms or longer, so every sample is a hand-over \
         to somebody who waited.",
    ),
    (
        "contention",
        "As before, but whoever has released wants the lock again at once. The quantiles are those of the wait of an acquire \
         that was granted; Jain's index of the grants of each task is 1 if all got the same share, and that of clients if all clients did, of which some have one task more than others; *overtaken by* counts the \
         waiters that a grant passed by; the longest wait includes those who had got nothing when the round ended.",
    ),
    (
        "distinct names",
        "Tasks acquire and release, each a name of its own: the time of both together, and how many a second.",
    ),
    (
        "idle cost",
        "Waiters wait for a lock that is held for long: commands, bytes and processor time of the server, without what it takes \
         while nobody waits; and the processor time and latency of a write of somebody else to another place meanwhile. The former has no \
         number where the waiting alone takes so much that the writes are lost in it.",
    ),
    (
        "held locks",
        "One client holds many locks at once: commands, bytes and processor time of the server and \
         of this process meanwhile, for a third of the lease, and how fast it gets them and gives them back (64 at once).",
    ),
    (
        "crash",
        "The process that holds ten locks is killed (SIGKILL) as soon as everybody waits, with a lease of 5 s, while another \
         client waits for each. The quantiles are those of the time beyond the lease, which counts from when the holder said \
         that it held; where a lock ends with its connection they count from the kill.",
    ),
    (
        "lost signal",
        "Twenty locks are taken away from their holder, with a lease of 5 s, one after the other: another program deletes \
         the document, or ends the session. The time until the library says so. A signal that comes before anything was taken \
         away is false; one that does not come within 10 s is missed.",
    ),
    (
        "ghosts",
        "An acquire of a free lock is dropped after a random part of 2 ms. A second later another client tries for a second \
         to get the lock: a lock that it does not get has a ghost for a holder.",
    ),
];

/// Returns the whole report: the result, then each number, then the reasons and the conditions.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = String::from("# watchlock beside its peers\n");
    let machine = &results.machine;
    if machine.was_busy() {
        let _ = writeln!(
            text,
            "\n**Others took {:.1} processors when the run began: do not quote these numbers.**",
            machine.load_before
        );
    }
    text.push_str(&in_short(results));
    for (workload, cases) in results.cases() {
        let sentence = WORKLOADS
            .iter()
            .find(|(name, _)| *name == workload)
            .map_or("", |(_, sentence)| sentence);
        let _ = write!(text, "\n## {}\n\n{sentence}\n", capitalised(workload));
        for case in cases {
            let _ = write!(text, "\n### {}\n\n", capitalised(case));
            let rows: Vec<&Row> = results.of(workload, case).collect();
            text.push_str(&table(results, &rows));
        }
    }
    text.push_str(&ahead::section(results));
    text.push_str(&conditions(results));
    text
}

/// Returns one number of each case, side by side.
fn in_short(results: &Results) -> String {
    let peers = || results.peers.iter().filter(|facts| !facts.ours && !facts.floor);
    let mut servers: Vec<&str> = Vec::new();
    for facts in peers() {
        if !servers.contains(&facts.engine.as_str()) {
            servers.push(&facts.engine);
        }
    }
    let mut text = format!(
        "\n## In short\n\nOne number of each case; a range is that of all libraries and settings for a server. Loopback and \
         one machine: orders and ratios carry over, milliseconds do not.\n\n\
         | workload | case | number | {OURS} | {} |\n|---|---|---|---:|{}\n",
        servers.join(" | "),
        "---:|".repeat(servers.len())
    );
    for (workload, cases) in results.cases() {
        for case in cases {
            let ours = results.of(workload, case).find(|row| row.peer == OURS);
            let Some(ours) = ours.and_then(Row::headline) else {
                continue;
            };
            let _ = write!(
                text,
                "| {workload} | {case} | {} | **{}** |",
                ours.name,
                shown(ours.value)
            );
            for server in &servers {
                let of_server = peers().filter(|facts| facts.engine == *server);
                let rows = of_server.filter_map(|facts| results.of(workload, case).find(|row| row.peer == facts.id));
                let values = rows.filter_map(|row| Some(row.measure(&ours.name)?.value));
                let _ = write!(text, " {} |", range(&sorted(values.collect())));
            }
            text.push('\n');
        }
    }
    text
}

fn range(sorted: &[f64]) -> String {
    match sorted {
        [] => String::from("-"),
        [only] => shown(*only),
        [first, .., last] => format!("{} to {}", shown(*first), shown(*last)),
    }
}

/// Returns what was measured, and on what.
fn conditions(results: &Results) -> String {
    let machine = &results.machine;
    // The reports of several nodes and of a thousand waiters have folders of their own.
    let (arguments, folder) = match results.nodes {
        0 | 1 if results.form == OF_A_THOUSAND => (" -- --thousand".to_owned(), "../"),
        0 | 1 => (String::new(), ""),
        nodes => (format!(" -- --nodes {nodes}"), "../"),
    };
    let mut text = String::from("\n## How it was measured\n\n");
    let _ = writeln!(
        text,
        "Written by `cargo run --release --manifest-path benches/peers/Cargo.toml{arguments}`, form *{}*, {} round{} of each \
         peer in turn, begun {} and done in {:.0} minutes. The numbers behind it are in [results.json](results.json); \
         [benches/peers]({folder}peers/README.md) says how they are measured.\n",
        results.form,
        results.rounds,
        if results.rounds == 1 { "" } else { "s at most" },
        results.begun,
        results.minutes
    );
    let _ = writeln!(
        text,
        "Measured: {}. Machine: {} cores of {}, {} GiB, Linux {}.",
        results.sources, machine.cores, machine.processor, machine.memory_gib, machine.kernel
    );
    let _ = writeln!(text, "\nServers: {} each.", results.size());
    text.push_str(
        "\nWhat the numbers are not: everything is on loopback, and clients and servers share the cores above. So there is \
         no network, and a peer that burns processor time slows itself down. Orders \
         and ratios carry over, milliseconds do not. All clients are in one process with connections of their own.\n\n\
         | peer | of | server | how it waits | a grant is as durable as |\n|---|---|---|---|---|\n",
    );
    for facts in &results.peers {
        let version = results.engines.get(&facts.engine).map_or("", String::as_str);
        let _ = writeln!(
            text,
            "| {} | {} | {} {version} | {} | {} |",
            facts.id, facts.package, facts.engine, facts.waits, facts.durability
        );
    }
    for missing in &results.missing {
        let _ = writeln!(text, "\nNot measured: {missing}.");
    }
    text
}

fn table(results: &Results, rows: &[&Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for measure in rows.iter().flat_map(|row| &row.measures) {
        if !names.contains(&measure.name.as_str()) {
            names.push(&measure.name);
        }
    }
    let samples = rows.iter().any(|row| row.samples > 0);
    let mut text = format!(
        "| peer | {} |{}\n",
        names.join(" | "),
        if samples { " samples |" } else { "" }
    );
    let _ = writeln!(text, "|---|{}", "---:|".repeat(names.len() + usize::from(samples)));
    for row in rows {
        let ours = results.facts(&row.peer).is_some_and(|facts| facts.ours);
        let floor = results.facts(&row.peer).is_some_and(|facts| facts.floor);
        let peer = match (ours, floor) {
            (true, _) => format!("**{}**", row.peer),
            (_, true) => format!("*{}* (no lock)", row.peer),
            _ => row.peer.clone(),
        };
        let _ = write!(text, "| {peer} |");
        for name in &names {
            let value = row
                .measure(name)
                .map_or_else(|| String::from("-"), |measure| shown(measure.value));
            let _ = write!(text, " {value} |");
        }
        if samples {
            let _ = write!(text, " {} |", row.samples);
        }
        text.push('\n');
    }
    for (row, remark) in rows.iter().filter_map(|row| Some((row, row.remark.as_ref()?))) {
        let _ = write!(text, "\n{}: {remark}\n", row.peer);
    }
    text
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::Facts, workloads::Round};

    fn results(ours: [f64; 2], theirs: [f64; 2]) -> Results {
        let row = |peer: &str, rounds: [f64; 2]| {
            let rounds = rounds.map(|latency| Round {
                latencies: vec![latency],
                ..Round::default()
            });
            Row::new("hand-over", "1 waiter", peer, rounds.into(), None)
        };
        let facts = |id: &str, ours| Facts {
            id: id.to_owned(),
            ours,
            ..Facts::default()
        };
        Results {
            peers: vec![facts(OURS, true), facts("other", false)],
            rows: vec![row(OURS, ours), row("other", theirs)],
            ..Results::default()
        }
    }

    #[test]
    fn the_report_has_each_row_and_its_remark() {
        let mut results = results([2.0, 2.1], [1.0, 1.1]);
        let reason = String::from("it has no lease");
        results
            .rows
            .push(Row::new("hand-over", "1 waiter", "third", Vec::new(), Some(reason)));
        let text = markdown(&results);
        for part in [
            "| hand-over | 1 waiter | p50, ms | **2.10** | 1.10 |",
            "## Hand-over",
            "### 1 waiter",
            "| **watchlock** | 2.10 |",
            "| third | - |",
            "third: it has no lease",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
