//! The dashboard and the alert rules of the guide, and its table of the metrics, compared with the metrics of the code.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use serde_json::Value;

use super::{
    meters::{ALL, LOCK_LABEL, Meter, MeterKind},
    millis,
};

/// The labels that Prometheus adds to everything that it scrapes.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// The names under which Prometheus has a histogram.
const OF_HISTOGRAMS: [&str; 3] = ["_bucket", "_sum", "_count"];

fn read(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A query, with the texts that show its labels.
#[derive(Debug)]
struct Query {
    expression: String,
    legends: Vec<String>,
}

/// Returns all queries of the dashboard's panels.
fn dashboard() -> Vec<Query> {
    let board: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array();
        assert_eq!(targets.is_none(), panel["type"] == "row", "{panel}");
        for target in targets.into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            found.push(Query {
                expression: text(&target["expr"]),
                legends: vec![text(&target["legendFormat"])],
            });
        }
    }
    found
}

/// Returns the queries of the dashboard's variables: `label_values(metric, label)`.
fn variables() -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let queries = variables.filter_map(|variable| variable["query"]["query"].as_str());
    let split = |query: &str| {
        let inner = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (metric, label) = inner.rsplit_once(", ").unwrap();
        (metric.to_owned(), label.to_owned())
    };
    queries.map(split).collect()
}

/// Returns the queries of the alert rules. Each stands on one line, and its texts follow.
fn alerts() -> Vec<Query> {
    let mut found: Vec<Query> = Vec::new();
    for line in read("alerts.yml").lines() {
        let line = line.trim_start();
        if let Some(expression) = line.strip_prefix("expr: ") {
            found.push(Query {
                expression: expression.to_owned(),
                legends: Vec::new(),
            });
        } else if line.starts_with("summary: ") || line.starts_with("description: ") {
            found.last_mut().unwrap().legends.push(line.replace("$labels.", ""));
        }
    }
    found
}

/// A metric in a query, with the conditions on its labels.
#[derive(Debug)]
struct Usage<'a> {
    meter: &'static Meter,
    suffix: &'a str,
    /// Label and value.
    conditions: Vec<(&'a str, &'a str)>,
    /// Whether it is turned into a rate.
    rated: bool,
}

impl Usage<'_> {
    fn has(&self, label: &str) -> bool {
        self.meter.labels.contains(&label)
            || OF_PROMETHEUS.contains(&label)
            || (label == LOCK_LABEL && self.meter.per_lock)
            || (label == "le" && self.suffix == "_bucket")
    }
}

/// Finds the metrics of a query; panics at a name that is not that of a metric.
fn uses(expression: &str) -> Vec<Usage<'_>> {
    let starts = expression.match_indices("watchlock_").map(|(start, _)| start);
    let found = starts.map(|start| {
        let rest = &expression[start..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        let is_it = |meter: &&&Meter| match meter.kind {
            MeterKind::Histogram => name
                .strip_prefix(meter.name)
                .is_some_and(|suffix| OF_HISTOGRAMS.contains(&suffix)),
            MeterKind::Counter | MeterKind::Gauge => meter.name == name,
        };
        let meter = ALL.iter().find(is_it);
        let meter = *meter.unwrap_or_else(|| panic!("{name} is not a metric, in {expression}"));
        let conditions = rest
            .strip_prefix('{')
            .map_or("", |rest| rest.split_once('}').unwrap().0);
        let conditions = conditions.split(',').filter(|condition| !condition.is_empty());
        let conditions = conditions.map(|condition| {
            let (label, rest) = condition.split_at(condition.find(['=', '!']).unwrap());
            (label, rest.trim_start_matches(['=', '!', '~']).trim_matches('"'))
        });
        let before = &expression[..start];
        Usage {
            meter,
            suffix: &name[meter.name.len()..],
            conditions: conditions.collect(),
            rated: before.ends_with("rate(") || before.ends_with("increase("),
        }
    });
    found.collect()
}

/// Returns the labels by which a query groups: for each `by`, its own.
fn groups(expression: &str) -> Vec<BTreeSet<&str>> {
    let groups = expression.split("by (").skip(1);
    groups
        .map(|rest| rest.split_once(')').unwrap().0.split(", ").collect())
        .collect()
}

/// Returns the labels in `{{label}}`.
fn shown(text: &str) -> BTreeSet<&str> {
    let shown = text.split("{{").skip(1);
    shown.map(|rest| rest.split_once("}}").unwrap().0.trim()).collect()
}

/// Checks a query: its metrics, their labels and the values of these, its groups, and the labels in its texts.
fn check(query: &Query, documented: &str) {
    let Query { expression, legends } = query;
    let used = uses(expression);
    assert!(!used.is_empty(), "{expression} has no metric");
    for used in &used {
        let gauge = used.meter.kind == MeterKind::Gauge;
        assert!(
            !(gauge && used.rated),
            "{} is a gauge, in {expression}",
            used.meter.name
        );
        for (label, value) in &used.conditions {
            assert!(
                used.has(label),
                "{} has no label {label}, in {expression}",
                used.meter.name
            );
            let values = value
                .split('|')
                .filter(|value| !value.is_empty() && !value.starts_with('$'));
            for value in values {
                let known = documented.contains(&format!("`{value}`"));
                assert!(known, "{label} is never {value}, in {expression}");
            }
        }
    }
    let groups = groups(expression);
    for label in groups.iter().flatten() {
        let all_have_it = used.iter().all(|used| used.has(label));
        assert!(all_have_it, "{label} is not a label of all metrics in {expression}");
    }
    for label in legends.iter().flat_map(|legend| shown(legend)) {
        let all_keep_it = !groups.is_empty() && groups.iter().all(|group| group.contains(label));
        assert!(all_keep_it, "{label} is shown and not kept in {expression}");
    }
}

#[test]
fn the_dashboard_shows_every_metric_by_its_name_and_labels() {
    let documented = read("observability.md");
    let queries = dashboard();
    for query in &queries {
        check(query, &documented);
        for used in uses(&query.expression) {
            let gauge = used.meter.kind == MeterKind::Gauge;
            assert_eq!(used.rated, !gauge, "a counter only rises, in {}", query.expression);
        }
    }
    let used = queries.iter().flat_map(|query| uses(&query.expression));
    let used: BTreeSet<_> = used.map(|used| used.meter.name).collect();
    let all: BTreeSet<_> = ALL.iter().map(|meter| meter.name).collect();
    assert_eq!(used, all, "the dashboard shows all of them");
    let variables = variables();
    assert_eq!(variables.len(), 3);
    for (metric, label) in variables {
        assert!(uses(&metric)[0].has(&label), "{metric} has no label {label}");
    }
}

#[test]
fn the_alerts_name_metrics_and_labels_of_the_code() {
    let documented = read("observability.md");
    let queries = alerts();
    let text = read("alerts.yml");
    assert_eq!(queries.len(), text.matches("- alert: ").count());
    assert!(!queries.is_empty());
    for query in &queries {
        assert_eq!(query.legends.len(), 2, "{query:?}");
        check(query, &documented);
    }
    // The events that an alert refers to.
    let events = text.split("watchlock.").skip(1);
    for event in events.map(|rest| {
        rest.split(|c: char| !c.is_ascii_lowercase() && c != '_')
            .next()
            .unwrap()
    }) {
        assert!(documented.contains(&format!("| `watchlock.{event}` |")), "{event}");
    }
}

#[test]
fn the_guide_has_the_type_and_the_labels_of_every_metric() {
    let documented = read("observability.md");
    let rows = documented.lines().filter(|line| line.starts_with("| `watchlock_"));
    let rows: BTreeSet<_> = rows.collect();
    assert_eq!(rows.len(), ALL.len());
    for meter in ALL {
        let (kind, unit) = match meter.kind {
            MeterKind::Counter => ("counter", ""),
            MeterKind::Gauge => ("gauge", ""),
            MeterKind::Histogram => ("histogram", "seconds"),
        };
        let mut labels: Vec<_> = meter.labels.iter().map(|label| format!("`{label}`")).collect();
        if meter.per_lock {
            labels.push(format!("(`{LOCK_LABEL}`)"));
        }
        let cells = [&format!("`{}`", meter.name), kind, unit, &labels.join(", ")];
        let row = rows.iter().find(|row| row.starts_with(&format!("| {} |", cells[0])));
        let row = row.unwrap_or_else(|| panic!("{} is not documented", meter.name));
        let found: Vec<_> = row.split('|').map(str::trim).skip(1).take(4).collect();
        assert_eq!(found, cells);
        assert_eq!(
            meter.name.ends_with("_total"),
            meter.kind == MeterKind::Counter,
            "as Prometheus has it"
        );
    }
}

#[test]
fn queries_are_read() {
    let query = "histogram_quantile(0.9, sum by (le, lock) (rate(watchlock_wait_seconds_bucket{kind=\"mutex\",lock!=\"\"}[5m])))";
    let used = uses(query);
    assert_eq!(used.len(), 1);
    assert_eq!(
        (used[0].meter.name, used[0].suffix),
        ("watchlock_wait_seconds", "_bucket")
    );
    assert_eq!(used[0].conditions, [("kind", "mutex"), ("lock", "")]);
    assert!(used[0].rated && used[0].has("le") && !used[0].has("how"));
    assert_eq!(groups(query), [BTreeSet::from(["le", "lock"])]);
    assert_eq!(shown("a {{b}} {{ c }}"), BTreeSet::from(["b", "c"]));
}

#[test]
fn milliseconds_are_rounded() {
    for (nanos, shown) in [(28_965_968_163, "28966.0"), (1_424_900, "1.4"), (0, "0.0")] {
        assert_eq!(format!("{:?}", millis(Duration::from_nanos(nanos))), shown);
    }
    assert_eq!(
        format!("{:?}", millis(Duration::from_millis(34_559_999_989))),
        "34559999989.0"
    );
}
