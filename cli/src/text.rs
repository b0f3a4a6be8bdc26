//! Text for people: tables, times, and text written by others.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

/// The last millisecond of the year 9999; RFC 3339 has no form for later times.
const LAST: u64 = 253_402_300_799_999;

/// Formats a time as RFC 3339 in UTC. A time without such a form becomes the nearest one with it.
pub(crate) fn time(time: SystemTime) -> String {
    let millis = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(LAST));
    let shown = SystemTime::UNIX_EPOCH + Duration::from_millis(millis.min(LAST));
    humantime::format_rfc3339_millis(shown).to_string()
}

/// Formats the time from `from` to `to`, with the two largest units: `350ms`, `12s`, `3m 5s`, `2h 10m`, `4days 3h`.
pub(crate) fn span(from: SystemTime, to: SystemTime) -> String {
    span_of(to.duration_since(from).unwrap_or_default())
}

pub(crate) fn span_of(duration: Duration) -> String {
    let rounded = if duration < Duration::from_secs(1) {
        Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(0))
    } else {
        Duration::from_secs(duration.as_secs())
    };
    let whole = humantime::format_duration(rounded).to_string();
    let mut words = whole.split(' ');
    match (words.next(), words.next()) {
        (Some(first), Some(second)) => format!("{first} {second}"),
        _ => whole,
    }
}

/// Returns whether a terminal obeys the character instead of showing it: it controls the terminal, or it changes the
/// order in which others are shown, so that one text looks like another.
pub(crate) fn is_obeyed(character: char) -> bool {
    let reorders = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{feff}'].contains(&character)
        || ('\u{202a}'..='\u{202e}').contains(&character)
        || ('\u{2066}'..='\u{2069}').contains(&character);
    character.is_control() || reorders
}

/// Escapes text written by others so that it can be shown on a terminal: every character that the terminal would obey
/// is escaped.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_obeyed(character) {
            // Writing to a String can't fail.
            let _ = write!(shown, "{}", character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns the widths of columns within a total width, with a gap between any two; zero for those that are left out.
///
/// The first in `order` is the last to shrink. The others enter with their minimum width, in that order, as long as
/// there is room for them; the remaining room then makes them wider, up to their contents.
pub(crate) fn fit<const N: usize>(natural: [usize; N], order: [usize; N], gap: usize, width: usize) -> [usize; N] {
    /// Minimum useful width of a cell.
    const LEAST: usize = 9;
    let mut widths = [0; N];
    let Some((first, others)) = order.split_first() else {
        return widths;
    };
    widths[*first] = natural[*first].min(width);
    let mut left = width - widths[*first];
    for column in others {
        let least = natural[*column].clamp(1, LEAST);
        if left < least + gap {
            break;
        }
        widths[*column] = least;
        left -= least + gap;
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

/// Returns as much of a text as fits; a mark shows that it was cut off.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut shown: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        shown.push('…');
    }
    shown
}

/// Returns the width of the widest cell of each column.
pub(crate) fn natural<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> [usize; N] {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Maximum width to which a cell is padded: one absurdly long cell would otherwise multiply the output by its length.
const PADDED_MOST: usize = 256;

/// Formats lines of cells below headings, each column as wide as its widest cell; with a given width, no wider than
/// that, with the columns that come first in `order`.
pub(crate) fn table<const N: usize>(
    headings: [&str; N],
    rows: &[[String; N]],
    order: [usize; N],
    within: Option<usize>,
) -> String {
    let natural = natural(headings, rows);
    let widths = within.map_or(natural, |width| fit(natural, order, 2, width));
    let mut text = String::new();
    for row in std::iter::once(&headings.map(str::to_owned)).chain(rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row).filter(|(width, _)| **width > 0) {
            let cell = cut(cell, *width);
            let padded = PADDED_MOST.min(*width);
            let _ = write!(line, "{cell:padded$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_ages_have_a_form() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(time(epoch + Duration::from_millis(1_500)), "1970-01-01T00:00:01.500Z");
        assert_eq!(time(epoch - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            time(epoch + Duration::from_millis(u64::MAX / 2)),
            "9999-12-31T23:59:59.999Z"
        );
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [0, 350, 1_999, 185_000, 7_800_000].map(|millis| span_of(Duration::from_millis(millis)));
        assert_eq!(spans, ["0s", "350ms", "1s", "3m 5s", "2h 10m"]);
    }

    #[test]
    fn what_others_wrote_does_no_harm() {
        assert_eq!(plain("é `\"x\"` \u{1b}[2J\n"), "é `\"x\"` \\u{1b}[2J\\n");
        assert_eq!(
            plain("\u{9b}31m \u{202e}abc שלום 👩\u{200d}💻"),
            "\\u{9b}31m \\u{202e}abc שלום 👩\u{200d}💻"
        );
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["ä".to_owned(), "x y".to_owned()], ["bcd".to_owned(), String::new()]];
        assert_eq!(table(["A", "B"], &rows, [0, 1], None), "A    B\nä    x y\nbcd\n");
    }

    #[test]
    fn the_first_column_is_the_last_to_shrink() {
        let natural = [20, 9, 30, 6];
        let order = [0, 2, 3, 1];
        let fitted = [200, 60, 40, 30, 12].map(|width| fit(natural, order, 1, width));
        assert_eq!(fitted[0], natural);
        assert_eq!(fitted[1], [20, 9, 22, 6]);
        assert_eq!(fitted[2], [20, 0, 12, 6]);
        assert_eq!(fitted[3], [20, 0, 9, 0]);
        assert_eq!(fitted[4], [12, 0, 0, 0]);
        assert_eq!((cut("abcdef", 4), cut("abc", 3)), ("abc…".to_owned(), "abc".to_owned()));
    }
}
