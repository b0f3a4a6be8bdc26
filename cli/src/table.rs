//! Tables for people, which shrink to the width of a terminal.
//!
//! Where there is little room, times and tokens become shorter first. Then columns of little importance go, and texts
//! are cut. A number is never cut: a part of it would be another number.

use std::fmt::Write as _;

use watchlock::FencingToken;

use crate::text::{cut, width, width_up_to};

/// Maximum width to which a cell is padded: one absurdly long cell would otherwise multiply the output by its length.
const PADDED_MOST: usize = 256;

/// Least width of a text that is cut because it would not fit otherwise.
const PART_LEAST: usize = 9;

/// Least number of digits of a token that is shown in part.
const DIGITS_LEAST: usize = 6;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    /// Its heading where there is little room.
    brief: &'static str,
    /// For texts that can be cut: the width that can be read without effort.
    readable: Option<usize>,
}

impl Column {
    /// A column of texts that can be cut, but not below this width as long as other columns can go instead.
    pub(crate) const fn text(heading: &'static str, brief: &'static str, readable: usize) -> Self {
        Self {
            heading,
            brief,
            readable: Some(readable),
        }
    }

    /// A column of cells that are shown whole or not at all.
    pub(crate) const fn whole(heading: &'static str, brief: &'static str) -> Self {
        Self {
            heading,
            brief,
            readable: None,
        }
    }
}

/// A cell, and its form where there is little room.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    whole: String,
    brief: Option<String>,
}

impl Cell {
    pub(crate) fn of(whole: String, brief: String) -> Self {
        let brief = Some(brief);
        Self { whole, brief }
    }

    /// Returns the text, without its brief form.
    #[cfg(test)]
    pub(crate) fn whole(&self) -> &str {
        &self.whole
    }

    fn shown(&self, is_brief: bool) -> &str {
        match &self.brief {
            Some(brief) if is_brief => brief,
            _ => &self.whole,
        }
    }
}

impl From<String> for Cell {
    fn from(whole: String) -> Self {
        Self { whole, brief: None }
    }
}

impl From<&str> for Cell {
    fn from(whole: &str) -> Self {
        whole.to_owned().into()
    }
}

/// The columns of a table as they are shown: their widths, zero for those that are left out.
#[derive(Clone, Debug)]
pub(crate) struct Layout<const N: usize> {
    columns: [Column; N],
    widths: [usize; N],
    is_brief: bool,
}

impl<const N: usize> Layout<N> {
    /// Lays out rows within a width, if there is a limit, with a gap between any two columns. The first in `order` is
    /// the last to shrink.
    pub(crate) fn new(
        columns: [Column; N],
        rows: &[[Cell; N]],
        order: [usize; N],
        gap: usize,
        within: Option<usize>,
    ) -> Self {
        let natural = |is_brief| natural(&columns, rows, is_brief, within.unwrap_or(usize::MAX));
        let whole = natural(false);
        let laid_out = |widths, is_brief| Self {
            columns,
            widths,
            is_brief,
        };
        let Some(within) = within else {
            return laid_out(whole, false);
        };
        let readable = columns.map(|column| column.readable);
        // Long texts are cut before times are short, but leave room for twice what can be read without effort.
        let with_ease: usize = whole
            .iter()
            .zip(readable)
            .map(|(natural, readable)| readable.map_or(*natural, |readable| (2 * readable).min(*natural)) + gap)
            .sum();
        let is_brief = with_ease > within + gap;
        let natural = if is_brief { natural(true) } else { whole };
        laid_out(fit(natural, readable, order, gap, within), is_brief)
    }

    /// Returns the shown columns of the headings, each cut to its width.
    pub(crate) fn headings(&self) -> impl Iterator<Item = String> {
        let headings = self.columns.iter().zip(self.widths);
        let shown = headings.filter(|(_, width)| *width > 0);
        shown.map(|(column, width)| cut(column.title(self.is_brief), width))
    }

    /// Returns the shown cells of a row, each cut to its width.
    pub(crate) fn cells(&self, row: &[Cell; N]) -> impl Iterator<Item = String> {
        let cells = row.iter().zip(self.widths).filter(|(_, width)| *width > 0);
        cells.map(|(cell, width)| cut(cell.shown(self.is_brief), width))
    }

    /// Returns the widths of the shown columns.
    pub(crate) fn widths(&self) -> impl Iterator<Item = usize> {
        self.widths.into_iter().filter(|width| *width > 0)
    }

    fn line(&self, cells: impl Iterator<Item = String>, gap: usize) -> String {
        let mut line = String::new();
        for (cell, wanted) in cells.zip(self.widths()) {
            let padding = wanted.min(PADDED_MOST).saturating_sub(width(&cell)) + gap;
            // Writing to a String can't fail.
            let _ = write!(line, "{cell}{:padding$}", "");
        }
        format!("{}\n", line.trim_end_matches(' '))
    }
}

impl Column {
    fn title(&self, is_brief: bool) -> &'static str {
        if is_brief { self.brief } else { self.heading }
    }
}

/// Returns the width of the widest cell of each column, counted until it is more than `most`.
fn natural<const N: usize>(columns: &[Column; N], rows: &[[Cell; N]], is_brief: bool, most: usize) -> [usize; N] {
    let mut widths = columns.map(|column| width(column.title(is_brief)));
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width_up_to(cell.shown(is_brief), most));
        }
    }
    widths
}

/// Returns the widths of columns within a total width.
///
/// They enter in their order, texts as wide as can be read, as long as there is room for them; the remaining room then
/// makes the texts wider, up to their contents.
fn fit<const N: usize>(
    natural: [usize; N],
    readable: [Option<usize>; N],
    order: [usize; N],
    gap: usize,
    within: usize,
) -> [usize; N] {
    let mut widths = [0; N];
    let mut left = within + gap;
    for (place, column) in order.into_iter().enumerate() {
        let room = left.saturating_sub(gap);
        let wanted = natural[column].min(readable[column].unwrap_or(usize::MAX));
        let can_be_cut = readable[column].is_some() && room >= PART_LEAST;
        widths[column] = match wanted {
            wanted if wanted <= room => wanted,
            _ if can_be_cut || place == 0 => room,
            _ => continue,
        };
        left -= widths[column] + gap;
    }
    for column in order {
        if widths[column] > 0 {
            let more = natural[column].saturating_sub(widths[column]).min(left);
            widths[column] += more;
            left -= more;
        }
    }
    widths
}

/// Formats rows below headings, no wider than a given width.
pub(crate) fn table<const N: usize>(
    columns: [Column; N],
    rows: &[[Cell; N]],
    order: [usize; N],
    within: Option<usize>,
) -> String {
    /// Number of spaces between two columns.
    const GAP: usize = 2;
    let layout = Layout::new(columns, rows, order, GAP, within);
    let mut text = layout.line(layout.headings(), GAP);
    for row in rows {
        text += &layout.line(layout.cells(row), GAP);
    }
    text
}

/// The number of last digits by which the tokens of a table differ from each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits(usize);

impl Digits {
    pub(crate) fn of(tokens: impl Iterator<Item = FencingToken>) -> Self {
        let mut tokens: Vec<i64> = tokens.map(FencingToken::as_i64).collect();
        tokens.sort_unstable();
        tokens.dedup();
        let differ = |digits: &usize| {
            let power = u32::try_from(*digits)
                .ok()
                .and_then(|digits| 10_i64.checked_pow(digits));
            let Some(power) = power else { return true };
            let mut ends: Vec<i64> = tokens.iter().map(|token| token % power).collect();
            ends.sort_unstable();
            ends.dedup();
            ends.len() == tokens.len()
        };
        Self((DIGITS_LEAST..=20).find(differ).unwrap_or(20))
    }

    /// Returns the last digits of a token.
    pub(crate) fn brief(self, token: FencingToken) -> String {
        let whole = token.to_string();
        match whole.len().checked_sub(self.0) {
            Some(hidden @ 2..) => format!("…{}", &whole[hidden..]),
            _ => whole,
        }
    }

    /// Returns the cell of a token: in brief, its last digits.
    pub(crate) fn cell(self, token: FencingToken) -> Cell {
        Cell::of(token.to_string(), self.brief(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells<const N: usize>(cells: [&str; N]) -> [Cell; N] {
        cells.map(Cell::from)
    }

    #[test]
    fn columns_are_aligned_by_what_a_terminal_shows() {
        let columns = [Column::text("A", "A", 9), Column::whole("B", "B")];
        let rows = [cells(["ä", "x y"]), cells(["bcd", ""])];
        assert_eq!(table(columns, &rows, [0, 1], None), "A    B\nä    x y\nbcd\n");
        // Two columns for each; and one for a letter with an accent of its own.
        let rows = [
            cells(["日本", "x"]),
            cells(["👩\u{200d}💻", "x"]),
            cells(["e\u{301}", "x"]),
        ];
        assert_eq!(
            table(columns, &rows, [0, 1], None),
            "A     B\n日本  x\n👩\u{200d}💻    x\ne\u{301}     x\n"
        );
        assert_eq!(table(columns, &rows[..1], [0, 1], Some(3)), "A\n日…\n");
    }

    #[test]
    fn the_first_column_is_the_last_to_shrink() {
        let natural = [20, 9, 30, 6];
        let readable = [Some(20), None, Some(12), None];
        let order = [0, 2, 3, 1];
        let fitted = [200, 60, 40, 31, 12].map(|width| fit(natural, readable, order, 1, width));
        assert_eq!(fitted[0], natural);
        assert_eq!(fitted[1], [20, 9, 22, 6]);
        assert_eq!(fitted[2], [20, 0, 12, 6]);
        // A text takes the rest, a number is whole or absent.
        assert_eq!(fitted[3], [20, 0, 10, 0]);
        assert_eq!(fitted[4], [12, 0, 0, 0]);
    }

    #[test]
    fn tokens_are_shown_by_the_digits_in_which_they_differ() {
        let tokens = |numbers: &[i64]| -> Vec<FencingToken> {
            numbers
                .iter()
                .map(|number| FencingToken::try_from(*number).unwrap())
                .collect()
        };
        let shown = |numbers: &[i64]| -> Vec<String> {
            let tokens = tokens(numbers);
            let digits = Digits::of(tokens.iter().copied());
            tokens
                .iter()
                .map(|token| digits.cell(*token).shown(true).to_owned())
                .collect()
        };
        assert_eq!(shown(&[1_795_323_704_129_000]), ["…129000"]);
        let three = [1_795_323_704_129_000, 1_795_323_711_519_000, 1_795_323_704_129_000];
        assert_eq!(shown(&three), ["…129000", "…519000", "…129000"]);
        assert_eq!(
            shown(&[1_000_000_129_000, 2_000_000_129_000]),
            ["1000000129000", "2000000129000"]
        );
        assert_eq!(shown(&[7, 12_345]), ["7", "12345"]);
        assert_eq!(shown(&[1, i64::from(u32::MAX), 1 << 52]), ["1", "…967295", "…370496"]);
    }
}
