//! The report of `watchlock verify`: for a terminal, as JSON, and as a page of Markdown to keep and to send in.

use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    exit::INCONCLUSIVE,
    text::{self, plain},
};

/// A check of a section. The names are part of the `--json` interface.
#[derive(Debug, Serialize)]
pub(crate) struct Placed {
    pub(crate) section: &'static str,
    #[serde(flatten)]
    pub(crate) check: Check,
}

/// One check, and its result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// Numbers and reasons, in a line.
    pub(crate) found: String,
    /// What shows that a promise was broken, in as many lines as that takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// A fact about the server, without a promise.
    Noted,
    Kept,
    Broken,
    /// It could not be run: that says nothing of the promise.
    Skipped,
    /// It took too long, as the server did: that says nothing either.
    Inconclusive,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Noted => "",
            Self::Kept => "kept",
            Self::Broken => "BROKEN",
            Self::Skipped => "skipped",
            Self::Inconclusive => "inconclusive",
        }
    }
}

impl Check {
    fn new(name: impl Into<String>, verdict: Verdict, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict,
            found: found.into(),
            evidence: None,
        }
    }

    pub(crate) fn noted(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Noted, found)
    }

    pub(crate) fn kept(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Kept, found)
    }

    pub(crate) fn broken(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(name, Verdict::Broken, found)
    }

    pub(crate) fn skipped(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::Skipped, why)
    }

    pub(crate) fn inconclusive(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::Inconclusive, why)
    }

    pub(crate) fn of(self, section: &'static str) -> Placed {
        Placed { section, check: self }
    }

    pub(crate) fn with(self, evidence: impl Into<String>) -> Self {
        Self {
            evidence: Some(evidence.into()),
            ..self
        }
    }
}

/// The number of the page's form, for `.ci/servers`.
const FORMAT: u32 = 1;

/// Everything that a run has found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Whether all promises that were checked are kept.
    pub(crate) kept: bool,
    pub(crate) watchlock: &'static str,
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) checks: Vec<Placed>,
}

impl Report {
    pub(crate) fn new(seed: u64, seconds: f64, checks: Vec<Placed>) -> Self {
        Self {
            kept: !checks
                .iter()
                .any(|placed| matches!(placed.check.verdict, Verdict::Broken | Verdict::Inconclusive)),
            watchlock: env!("CARGO_PKG_VERSION"),
            seed,
            seconds,
            checks,
        }
    }

    /// Returns the code with which the run ends.
    pub(crate) fn code(&self) -> ExitCode {
        match (self.kept, self.count(Verdict::Broken)) {
            (true, _) => ExitCode::SUCCESS,
            (false, 0) => INCONCLUSIVE.into(),
            (false, _) => ExitCode::FAILURE,
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks
            .iter()
            .filter(|placed| placed.check.verdict == verdict)
            .count()
    }

    /// Says the outcome in a line.
    fn summary(&self) -> String {
        let [kept, broken] = [Verdict::Kept, Verdict::Broken].map(|it| self.count(it));
        let others = [
            (Verdict::Skipped, "not checked"),
            (Verdict::Inconclusive, "inconclusive"),
        ];
        let others = others.map(|(verdict, word)| (self.count(verdict), word));
        let others = others.into_iter().filter(|(count, _)| *count > 0);
        let skipped: String = others.map(|(count, word)| format!(", {count} {word}")).collect();
        let of = kept + broken;
        match broken {
            0 => format!("{of} promises of {of} kept{skipped}, in {:.0} s", self.seconds),
            _ => format!(
                "{broken} promises of {of} BROKEN{skipped}, in {:.0} s; seed {}",
                self.seconds, self.seed
            ),
        }
    }

    /// Writes it for a terminal.
    pub(crate) fn text(&self) -> String {
        let checks = || self.checks.iter().map(|placed| &placed.check);
        let width = checks().map(|check| check.name.len()).max().unwrap_or(0);
        let word_width = checks().map(|check| check.verdict.word().len()).max().unwrap_or(0);
        let (mut text, mut present) = (String::new(), "");
        for Placed { section, check } in &self.checks {
            if std::mem::replace(&mut present, section) != *section {
                let _ = writeln!(text, "{section}");
            }
            let (name, word, found) = (plain(&check.name), check.verdict.word(), plain(&check.found));
            let _ = writeln!(text, "  {name:width$}  {word:word_width$}  {found}");
            for line in check.evidence.iter().flat_map(|evidence| evidence.lines()) {
                let _ = writeln!(text, "    | {}", plain(line));
            }
        }
        let _ = writeln!(text, "{}", self.summary());
        text
    }

    /// Writes it as a page of Markdown, as of this time. A program reads its head, and the tables of the sections.
    pub(crate) fn page(&self, now: SystemTime) -> String {
        let mut page = "# watchlock verify\n\n".to_owned();
        let day = text::time(now);
        let day = day.split('T').next().unwrap_or_default();
        let _ = writeln!(
            page,
            "- format: {FORMAT}\n- watchlock: {}\n- day: {day}",
            self.watchlock
        );
        let _ = writeln!(page, "- seed: {}\n- seconds: {:.0}", self.seed, self.seconds);
        for (name, verdict) in [
            ("kept", Verdict::Kept),
            ("broken", Verdict::Broken),
            ("inconclusive", Verdict::Inconclusive),
            ("not checked", Verdict::Skipped),
        ] {
            let _ = writeln!(page, "- {name}: {}", self.count(verdict));
        }
        let mut present = "";
        for Placed { section, check } in &self.checks {
            if std::mem::replace(&mut present, section) != *section {
                let _ = writeln!(page, "\n## {section}\n\n| check | verdict | found |\n|---|---|---|");
            }
            let (name, found) = (cell(&check.name), cell(&check.found));
            let _ = writeln!(page, "| {name} | {} | {found} |", check.verdict.word());
        }
        for Placed { section, check } in &self.checks {
            if let Some(evidence) = &check.evidence {
                let _ = writeln!(page, "\n## Evidence: {section}, {}\n", cell(&check.name));
                for line in evidence.lines() {
                    let _ = writeln!(page, "    {}", plain(line));
                }
            }
        }
        page
    }
}

/// Returns a latency in milliseconds, with a digit for those that have few.
pub(super) fn millis(latency: Duration) -> String {
    format!("{:.1} ms", latency.as_secs_f64() * 1_000.0)
}

/// Makes a text a cell of a table: what comes from a server must not end it.
fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_is_never_counted_as_kept() {
        let with = |last: Check| {
            let checks = [
                Check::noted("version", "MongoDB 6.0.5").of("server"),
                Check::kept("mutex", "10 holds").of("exclusion"),
                Check::skipped("TTL", "no | time").of("fences"),
                last.of("wake-ups"),
            ];
            Report::new(1, 2.0, checks.into())
        };
        let report = with(Check::noted("mode", "polling"));
        assert!(report.kept && report.text().contains("1 promises of 1 kept, 1 not checked, in 2 s"));
        let page = report.page(SystemTime::UNIX_EPOCH);
        for part in [
            "| TTL | skipped | no \\| time |",
            "- day: 1970-01-01\n- seed: 1\n- seconds: 2\n- kept: 1\n- broken: 0\n",
        ] {
            assert!(page.contains(part), "{page}");
        }
        let slow = with(Check::inconclusive("expiry", "late"));
        assert!(!slow.kept && slow.code() == ExitCode::from(INCONCLUSIVE));
        assert!(
            slow.text()
                .contains("1 promises of 1 kept, 1 not checked, 1 inconclusive")
        );
        let broken = with(Check::broken("expiry", "late").with("a\nb"));
        assert!(!broken.kept && broken.code() == ExitCode::FAILURE);
        assert!(broken.text().contains("1 promises of 2 BROKEN") && broken.text().contains("    | b"));
    }
}
