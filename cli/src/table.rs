//! Tables for people, which shrink to the width of a terminal.
//!
//! Where there is little room, columns of little importance go, and texts are cut. A number is never cut: a part of it
//! would be another number.

use std::fmt::Write as _;

use crate::text::{cut, width, width_up_to};

/// Maximum width to which a cell is padded: one absurdly long cell would otherwise multiply the output by its length.
const PADDED_MOST: usize = 256;

/// Number of spaces between two columns.
pub(crate) const GAP: u16 = 2;

/// Least width of a text that is cut because it would not fit otherwise.
const PART_LEAST: usize = 9;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    heading: &'static str,
    /// For texts that can be cut: the width that can be read without effort.
    readable: Option<usize>,
}

impl Column {
    /// A column of texts that can be cut, but not below this width as long as other columns can go instead.
    pub(crate) const fn text(heading: &'static str, readable: usize) -> Self {
        let readable = Some(readable);
        Self { heading, readable }
    }

    /// A column of cells that are shown whole or not at all.
    pub(crate) const fn whole(heading: &'static str) -> Self {
        let readable = None;
        Self { heading, readable }
    }
}

/// The columns of a table as they are shown: their widths, zero for those that are left out.
#[derive(Clone, Debug)]
pub(crate) struct Layout<const N: usize> {
    columns: [Column; N],
    widths: [usize; N],
}

impl<const N: usize> Layout<N> {
    /// Lays out rows within a width, if there is a limit. The first in `order` is the last to shrink.
    pub(crate) fn new(columns: [Column; N], rows: &[[String; N]], order: [usize; N], within: Option<usize>) -> Self {
        // Of a text that is too wide in any case, no more is counted.
        let most = within.unwrap_or(usize::MAX);
        let mut natural = columns.map(|column| width(column.heading));
        for row in rows {
            for (widest, cell) in natural.iter_mut().zip(row) {
                *widest = (*widest).max(width_up_to(cell, most));
            }
        }
        let readable = columns.map(|column| column.readable);
        let widths = within.map_or(natural, |within| fit(natural, readable, order, within));
        Self { columns, widths }
    }

    /// Returns the shown columns of the headings, each cut to its width.
    pub(crate) fn headings(&self) -> impl Iterator<Item = String> {
        let headings = self.columns.iter().map(|column| column.heading);
        self.shown(headings)
    }

    /// Returns the shown cells of a row, each cut to its width.
    pub(crate) fn cells(&self, row: &[String; N]) -> impl Iterator<Item = String> {
        self.shown(row.iter().map(String::as_str))
    }

    fn shown<'a>(&self, row: impl Iterator<Item = &'a str>) -> impl Iterator<Item = String> {
        let shown = row.zip(self.widths).filter(|(_, width)| *width > 0);
        shown.map(|(text, width)| cut(text, width))
    }

    /// Returns the widths of the shown columns.
    pub(crate) fn widths(&self) -> impl Iterator<Item = usize> {
        self.widths.into_iter().filter(|width| *width > 0)
    }

    fn line(&self, cells: impl Iterator<Item = String>) -> String {
        let mut line = String::new();
        for (cell, wanted) in cells.zip(self.widths()) {
            let padding = wanted.min(PADDED_MOST).saturating_sub(width(&cell)) + usize::from(GAP);
            // Writing to a String can't fail.
            let _ = write!(line, "{cell}{:padding$}", "");
        }
        format!("{}\n", line.trim_end_matches(' '))
    }
}

/// Returns the widths of columns within a total width.
///
/// They enter in their order, texts as wide as can be read, as long as there is room for them; the remaining room then
/// makes the texts wider, up to their contents.
fn fit<const N: usize>(
    natural: [usize; N],
    readable: [Option<usize>; N],
    order: [usize; N],
    within: usize,
) -> [usize; N] {
    let mut widths = [0; N];
    let gap = usize::from(GAP);
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
    rows: &[[String; N]],
    order: [usize; N],
    within: Option<usize>,
) -> String {
    let layout = Layout::new(columns, rows, order, within);
    let mut text = layout.line(layout.headings());
    for row in rows {
        text += &layout.line(layout.cells(row));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_a_terminal_shows() {
        let columns = [Column::text("A", 9), Column::whole("B")];
        // Two columns for each; and one for a letter with an accent of its own.
        let rows = ["日本", "👩\u{200d}💻", "e\u{301}"].map(|text| [text.to_owned(), "x".to_owned()]);
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
        let fitted = [200, 63, 42, 32, 12].map(|width| fit(natural, readable, order, width));
        assert_eq!(fitted[0], natural);
        assert_eq!(fitted[1], [20, 9, 22, 6]);
        assert_eq!(fitted[2], [20, 0, 12, 6]);
        // A text takes the rest, a number is whole or absent.
        assert_eq!(fitted[3], [20, 0, 10, 0]);
        assert_eq!(fitted[4], [12, 0, 0, 0]);
    }
}
