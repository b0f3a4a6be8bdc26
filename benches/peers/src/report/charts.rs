//! The charts, as SVG.

use std::{fs, ops::Range, path::Path};

use plotters::{
    coord::{ranged1d::KeyPointHint, types::RangedCoordf64},
    prelude::*,
};

use super::{Results, Row};
use crate::client::Result;

/// Size of a chart, in pixels: the width of a page, and room for a legend beside it.
const SIZE: (u32, u32) = (1_000, 520);

/// Height of one bar.
const BAR: u32 = 28;

/// One chart, and the workload whose section shows it.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) file: &'static str,
    pub(crate) workload: &'static str,
    pub(crate) title: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The distribution of one case.
    Ecdf,
    /// The median against the number of waiters, where the clients are as many as possible.
    Waiters,
    /// A bar for each peer.
    Bars(&'static str),
    /// One number against another.
    Against { x: &'static str, y: &'static str },
}

/// All charts of a report.
pub(crate) const CHARTS: [Chart; 5] = [
    Chart {
        file: "hand-over-distribution.svg",
        workload: "hand-over",
        title: "Hand-over: part of the samples that took at most so long",
        kind: Kind::Ecdf,
    },
    Chart {
        file: "hand-over-waiters.svg",
        workload: "hand-over",
        title: "Hand-over against the number of waiters: median",
        kind: Kind::Waiters,
    },
    Chart {
        file: "fairness.svg",
        workload: "contention",
        title: "Throughput against fairness, under contention: filled with a library's default, hollow otherwise",
        kind: Kind::Against {
            x: "Jain's index",
            y: "grants/s",
        },
    },
    Chart {
        file: "cost-of-waiting.svg",
        workload: "idle cost",
        title: "Cost of waiting: processor time of the server, ms in a second",
        kind: Kind::Bars("server, ms of CPU/s"),
    },
    Chart {
        file: "foreign-write.svg",
        workload: "idle cost",
        title: "Cost of a write of somebody else beside the waiters: processor time of the server, us",
        kind: Kind::Bars("foreign write, us of CPU"),
    },
];

/// Returns whether there are numbers for it.
pub(crate) fn is_drawn(results: &Results, chart: &Chart) -> bool {
    !rows(results, chart).is_empty()
}

/// Draws all charts for which there are numbers into the folder.
pub(crate) fn draw(results: &Results, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for chart in &CHARTS {
        let rows = rows(results, chart);
        let path = folder.join(chart.file);
        if rows.is_empty() {
            // One of an earlier run would be taken for one of this.
            let _ = fs::remove_file(path);
            continue;
        }
        let size = match chart.kind {
            Kind::Bars(_) => (SIZE.0, BAR * u32::try_from(rows.len())? + 110),
            _ => SIZE,
        };
        let area = SVGBackend::new(&path, size).into_drawing_area();
        area.fill(&WHITE)?;
        let area = area.titled(&title(results, chart, &rows), ("sans-serif", 17))?;
        match chart.kind {
            Kind::Ecdf => ecdf(&area, &rows)?,
            Kind::Waiters => waiters(&area, &rows)?,
            Kind::Bars(name) => bars(&area, &rows, name)?,
            Kind::Against { x, y } => against(&area, &rows, x, y)?,
        }
        area.present()?;
    }
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn title(results: &Results, chart: &Chart, rows: &[&Row]) -> String {
    let (title, size) = (chart.title, results.size());
    match (chart.kind, rows.first()) {
        (Kind::Waiters, _) | (_, None) => format!("{title} ({size}, loopback)"),
        (_, Some(row)) => format!("{title} ({}; {size}, loopback)", row.case),
    }
}

/// Returns the rows that a chart shows: those of one case, but for the one against the number of waiters.
fn rows<'a>(results: &'a Results, chart: &Chart) -> Vec<&'a Row> {
    let of_workload = || results.rows.iter().filter(|row| row.workload == chart.workload);
    let has_numbers = |row: &&Row| match chart.kind {
        Kind::Ecdf => !row.curve.is_empty(),
        Kind::Waiters => row.measure("p50, ms").is_some(),
        Kind::Bars(name) => row.measure(name).is_some(),
        Kind::Against { x, y } => row.measure(x).is_some() && row.measure(y).is_some(),
    };
    if let Kind::Waiters = chart.kind {
        let mut chosen: Vec<&Row> = Vec::new();
        for row in of_workload().filter(has_numbers) {
            let Some((waiters, clients, _)) = crowd_of(&row.case) else {
                continue;
            };
            let rival = chosen.iter().position(|other| {
                other.peer == row.peer && crowd_of(&other.case).is_some_and(|(others, _, _)| others == waiters)
            });
            match rival {
                None => chosen.push(row),
                Some(place) if crowd_of(&chosen[place].case).is_some_and(|(_, fewer, _)| fewer < clients) => {
                    chosen[place] = row;
                }
                Some(_) => {}
            }
        }
        return chosen;
    }
    // The crowd of ten over eight clients is one that people have; where it was not measured, the last one is shown.
    let cases: Vec<&str> = of_workload().filter(has_numbers).map(|row| row.case.as_str()).collect();
    let usual = cases.iter().find(|case| case.starts_with("10 waiters, 8 clients"));
    let Some(case) = usual.or(cases.last()) else {
        return Vec::new();
    };
    of_workload()
        .filter(has_numbers)
        .filter(|row| row.case == **case)
        .collect()
}

/// Returns the numbers of a case's name, which [`Crowd::case`](crate::workloads::crowd::Crowd::case) wrote.
pub(super) fn crowd_of(case: &str) -> Option<(u32, u32, u32)> {
    let numbers: Vec<u32> = case.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        &[waiters, clients, hold] => Some((waiters, clients, hold)),
        _ => None,
    }
}

/// What is drawn in grey beside the locks.
const NO_LOCKS: [&str; 3] = [crate::peers::FLOOR, crate::peers::RING, crate::peers::LEAST];

/// Returns the colour of a peer, the same in all charts: ours in dark red, others in the order of the table.
fn colour(peer: &str) -> RGBColor {
    const OTHERS: [(u8, u8, u8); 9] = [
        (31, 119, 180),
        (255, 127, 14),
        (44, 160, 44),
        (148, 103, 189),
        (140, 86, 75),
        (227, 119, 194),
        (60, 60, 60),
        (23, 190, 207),
        (154, 160, 20),
    ];
    if peer.starts_with("watchlock") {
        return RGBColor(178, 24, 43);
    }
    if NO_LOCKS.contains(&peer) {
        return RGBColor(165, 165, 165);
    }
    // A library has one colour at all its settings.
    let plain = peer.trim_end_matches("-eager");
    let libraries = crate::peers::PEERS
        .iter()
        .map(|peer| peer.id)
        .filter(|id| !id.starts_with("watchlock") && !NO_LOCKS.contains(id));
    let place = libraries
        .filter(|id| !id.ends_with("-eager"))
        .position(|id| id == plain)
        .unwrap_or_default();
    let (red, green, blue) = OTHERS[place % OTHERS.len()];
    RGBColor(red, green, blue)
}

/// Returns how long the dashes of a peer's line are: none for the first setting of a library.
fn dashes(peer: &str) -> u32 {
    match peer {
        "watchlock-polling" => 14,
        crate::peers::RING => 8,
        crate::peers::LEAST => 3,
        "watchlock-memory" => 6,
        other if other.ends_with("-eager") => 10,
        _ => 0,
    }
}

/// Returns a range on a logarithmic scale, with a little room.
fn around(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| *value > 0.0) {
        (least, most) = (least.min(value), most.max(value));
    }
    if least > most {
        return 0.1..10.0;
    }
    least / 1.3..most * 1.3
}

/// Draws the legend at the right, and returns the rest.
fn with_legend<'a>(area: &Area<'a>, peers: &[&str]) -> Result<Area<'a>> {
    let (rest, legend) = area.split_horizontally(SIZE.0 - 240);
    for (place, peer) in peers.iter().enumerate() {
        let y = 30 + 20 * i32::try_from(place)?;
        line(&legend, vec![(8, y), (38, y)], peer)?;
        legend.draw(&Text::new((*peer).to_owned(), (46, y - 7), ("sans-serif", 14)))?;
    }
    Ok(rest)
}

/// Draws one line of the legend.
fn line(area: &Area<'_>, ends: Vec<(i32, i32)>, peer: &str) -> Result<()> {
    let style = colour(peer).stroke_width(2);
    match dashes(peer) {
        0 => area.draw(&PathElement::new(ends, style))?,
        length => area.draw(&plotters::element::DashedPathElement::new(ends, length, length, style))?,
    }
    Ok(())
}

fn peers_of<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut peers: Vec<&str> = Vec::new();
    for row in rows {
        if !peers.contains(&row.peer.as_str()) {
            peers.push(&row.peer);
        }
    }
    peers
}

fn ecdf(area: &Area<'_>, rows: &[&Row]) -> Result<()> {
    let area = with_legend(area, &peers_of(rows))?;
    let range = around(rows.iter().flat_map(|row| row.curve.iter().copied()));
    let mut chart = ChartBuilder::on(&area);
    let chart = chart.margin(12).x_label_area_size(42).y_label_area_size(52);
    let mut chart = chart.build_cartesian_2d(range.clone().log_scale(), 0.0..1.0)?;
    let mut mesh = chart.configure_mesh();
    mesh.max_light_lines(0);
    mesh.x_desc("ms")
        .y_desc("part of the samples")
        .x_label_formatter(&|value| plain(*value))
        .draw()?;
    for row in rows {
        let last = row.curve.len().saturating_sub(1);
        #[expect(clippy::cast_precision_loss, reason = "two hundred parts")]
        let points = row
            .curve
            .iter()
            .enumerate()
            .map(|(place, value)| (*value, place as f64 / last as f64));
        let points: Vec<(f64, f64)> = points.map(|(value, part)| (value.max(range.start), part)).collect();
        let style = colour(&row.peer).stroke_width(2);
        match dashes(&row.peer) {
            0 => drop(chart.draw_series(LineSeries::new(points, style))?),
            length => drop(chart.draw_series(DashedLineSeries::new(points, length, length, style))?),
        }
    }
    Ok(())
}

fn waiters(area: &Area<'_>, rows: &[&Row]) -> Result<()> {
    let peers = peers_of(rows);
    let area = with_legend(area, &peers)?;
    let point = |row: &Row| Some((f64::from(crowd_of(&row.case)?.0), row.measure("p50, ms")?.value));
    let points: Vec<(f64, f64)> = rows.iter().filter_map(|row| point(row)).collect();
    let (x, y) = (
        around(points.iter().map(|point| point.0)),
        around(points.iter().map(|point| point.1)),
    );
    let mut chart = ChartBuilder::on(&area);
    let chart = chart.margin(12).x_label_area_size(42).y_label_area_size(64);
    let mut chart = chart.build_cartesian_2d(x.log_scale(), y.log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.max_light_lines(0);
    let mesh = mesh.x_desc("waiters").y_desc("ms, median");
    mesh.x_label_formatter(&|value| plain(*value))
        .y_label_formatter(&|value| plain(*value))
        .draw()?;
    for peer in peers {
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.peer == peer)
            .filter_map(|row| point(row))
            .collect();
        let style = colour(peer).stroke_width(2);
        let dots = points.iter().map(|&point| Circle::new(point, 3, colour(peer).filled()));
        chart.draw_series(dots.collect::<Vec<_>>())?;
        match dashes(peer) {
            0 => drop(chart.draw_series(LineSeries::new(points, style))?),
            length => drop(chart.draw_series(DashedLineSeries::new(points, length, length, style))?),
        }
    }
    Ok(())
}

fn against(area: &Area<'_>, rows: &[&Row], x: &str, y: &str) -> Result<()> {
    let point = |row: &Row| Some((row.measure(x)?.value, row.measure(y)?.value));
    let points: Vec<(&str, (f64, f64))> = rows
        .iter()
        .filter_map(|row| Some((row.peer.as_str(), point(row)?)))
        .collect();
    let range = around(points.iter().map(|(_, point)| point.1));
    let area = with_legend(area, &peers_of(rows))?;
    let mut chart = ChartBuilder::on(&area);
    let chart = chart.margin(12).x_label_area_size(42).y_label_area_size(64);
    let mut chart = chart.build_cartesian_2d(0.0..1.05, range.clone().log_scale())?;
    let mut mesh = chart.configure_mesh();
    mesh.max_light_lines(0);
    mesh.x_desc(x)
        .y_desc(y)
        .y_label_formatter(&|value| plain(*value))
        .draw()?;
    for (peer, (x, y)) in points {
        let point = (x, y.max(range.start));
        // Filled at the first setting of a library, hollow at the others.
        match dashes(peer) {
            0 => drop(chart.draw_series([Circle::new(point, 6, colour(peer).filled())])?),
            _ => drop(chart.draw_series([Circle::new(point, 6, colour(peer).stroke_width(2))])?),
        }
    }
    Ok(())
}

fn bars(area: &Area<'_>, rows: &[&Row], name: &str) -> Result<()> {
    let values: Vec<(&str, f64)> = rows
        .iter()
        .filter_map(|row| Some((row.peer.as_str(), row.measure(name)?.value)))
        .collect();
    let most = values.iter().map(|(_, value)| *value).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(area);
    let chart = chart
        .margin(12)
        .margin_right(90)
        .x_label_area_size(34)
        .y_label_area_size(220);
    let places = Names(
        values.iter().map(|(peer, _)| (*peer).to_owned()).collect(),
        RangedCoordf64::from(places(&values)),
    );
    let mut chart = chart.build_cartesian_2d(0.0..most, places)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .max_light_lines(0)
        .label_style(("sans-serif", 14))
        .draw()?;
    for (place, (peer, value)) in values.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "some twenty peers")]
        let middle = -(place as f64);
        let ends = [(0.0, middle - 0.35), (*value, middle + 0.35)];
        let style = match dashes(peer) {
            0 => colour(peer).filled(),
            _ => colour(peer).mix(0.5).filled(),
        };
        chart.draw_series([Rectangle::new(ends, style)])?;
        let label = Text::new(super::table::shown(*value), (*value, middle + 0.25), ("sans-serif", 14));
        chart.draw_series([label])?;
    }
    Ok(())
}

/// Returns the range of places, downwards.
#[expect(clippy::cast_precision_loss, reason = "some twenty peers")]
fn places(values: &[(&str, f64)]) -> Range<f64> {
    0.5 - values.len() as f64..0.5
}

/// An axis of names, from the top downwards.
struct Names(Vec<String>, RangedCoordf64);

impl Ranged for Names {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.1.map(value, limit)
    }

    #[expect(clippy::cast_precision_loss, reason = "some twenty peers")]
    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0.len()).map(|place| -(place as f64)).collect()
    }

    fn range(&self) -> Range<f64> {
        self.1.range()
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Names {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place of this axis"
    )]
    fn format(value: &f64) -> String {
        format!("{}", -value as usize)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place of this axis"
    )]
    fn format_ext(&self, value: &f64) -> String {
        self.0.get(-value as usize).cloned().unwrap_or_default()
    }
}

/// Returns a number of a logarithmic axis without an exponent.
fn plain(value: f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;

    #[test]
    fn no_two_libraries_look_alike() {
        let look = |id: &str| (colour(id), dashes(id));
        for (place, one) in PEERS.iter().enumerate() {
            for other in PEERS.iter().skip(place + 1) {
                assert!(look(one.id) != look(other.id), "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn the_name_of_a_case_says_how_many_wait() {
        assert_eq!(crowd_of("1 waiter, 2 clients, hold 10 ms"), Some((1, 2, 10)));
        assert_eq!(crowd_of("a known name"), None);
    }
}
