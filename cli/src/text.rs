//! Text for people: times, durations, and text written by others.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthStr as _;

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

/// Formats the time from `from` to `to`, as [`span_of`] does.
pub(crate) fn span(from: SystemTime, to: SystemTime) -> String {
    span_of(to.duration_since(from).unwrap_or_default())
}

/// Formats a duration that was measured, with the two largest units: `350ms`, `12s`, `3m 5s`, `2h 10m`, `4d 3h`.
pub(crate) fn span_of(duration: Duration) -> String {
    let duration = in_whole_seconds(duration);
    let units = units(duration);
    // After four days, five minutes more make no difference.
    let largest = units.iter().position(|(count, _)| *count > 0).unwrap_or(SECONDS);
    shown(&units[largest..units.len().min(largest + 2)])
}

/// Formats a duration that somebody has set, exactly: `1h 30m`, `1s 500ms`.
pub(crate) fn exact(duration: Duration) -> String {
    shown(&units(duration))
}

/// The place of the seconds among the units.
const SECONDS: usize = 3;

/// Returns a duration in units, the largest first.
fn units(duration: Duration) -> [(u64, &'static str); 7] {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    [
        (seconds / 86_400, "d"),
        (seconds / 3_600 % 24, "h"),
        (seconds / 60 % 60, "m"),
        (seconds % 60, "s"),
        ((nanos / 1_000_000).into(), "ms"),
        ((nanos / 1_000 % 1_000).into(), "us"),
        ((nanos % 1_000).into(), "ns"),
    ]
}

fn shown(units: &[(u64, &str)]) -> String {
    let counted = units.iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = counted.map(|(count, unit)| format!("{count}{unit}")).collect();
    if words.is_empty() {
        return "0s".to_owned();
    }
    words.join(" ")
}

/// Leaves out what nobody reads: parts of seconds, or of milliseconds if it is less than a second.
fn in_whole_seconds(duration: Duration) -> Duration {
    match duration.as_secs() {
        0 => Duration::from_millis(duration.subsec_millis().into()),
        seconds => Duration::from_secs(seconds),
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

/// Returns the number of columns that a terminal takes to show a text: two for a letter of Chinese or an emoji, none for
/// an accent of its own.
pub(crate) fn width(text: &str) -> usize {
    width_up_to(text, usize::MAX)
}

/// Counts the columns of a text only until they are more than `most`: a text of others may be of any length.
pub(crate) fn width_up_to(text: &str, most: usize) -> usize {
    let mut columns = 0;
    for grapheme in text.graphemes(true) {
        columns += grapheme.width();
        if columns > most {
            break;
        }
    }
    columns
}

/// Returns as much of a text as fits into this many columns; a mark shows that it was cut off.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let (mut taken, mut end) = (0, 0);
    for (at, grapheme) in text.grapheme_indices(true) {
        taken += grapheme.width();
        if taken > columns {
            let mark = if columns > 0 { "…" } else { "" };
            return format!("{}{mark}", &text[..end]);
        }
        // The mark takes a column.
        if taken < columns {
            end = at + grapheme.len();
        }
    }
    text.to_owned()
}

/// Width of a line where the terminal is no wider, as it is by default.
const WIDTH: usize = 79;

/// Breaks a text into lines that begin at a column, between its words: a command is copied, so its words stay whole.
pub(crate) fn wrapped(text: &str, column: usize) -> String {
    let (mut lines, mut taken) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if taken > 0 && column + taken + 1 + length > WIDTH {
            // Writing to a String can't fail.
            let _ = write!(lines, "\n{:column$}", "");
            taken = 0;
        } else if taken > 0 {
            lines.push(' ');
            taken += 1;
        }
        lines += word;
        taken += length;
    }
    lines
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
    fn a_duration_has_one_form_and_is_shorter_if_it_was_measured() {
        const DAY: u64 = 86_400_000;
        let all = [
            (0, "0s", "0s"),
            (350, "350ms", "350ms"),
            (1_999, "1s 999ms", "1s"),
            (185_000, "3m 5s", "3m 5s"),
            (7_800_000, "2h 10m", "2h 10m"),
            (5_420_500, "1h 30m 20s 500ms", "1h 30m"),
            (4 * DAY + 300_000, "4d 5m", "4d"),
            (400 * DAY + 3_600_000, "400d 1h", "400d 1h"),
        ];
        for (millis, set, measured) in all {
            let duration = Duration::from_millis(millis);
            assert_eq!(exact(duration), set);
            assert_eq!(span_of(duration), measured);
            // It is what can be typed.
            assert_eq!(humantime::parse_duration(&exact(duration)).unwrap(), duration);
        }
        assert_eq!(exact(Duration::from_nanos(1_002)), "1us 2ns");
    }

    #[test]
    fn wide_characters_are_counted_as_the_columns_that_they_take() {
        let family = "👨\u{200d}👩\u{200d}👧";
        for (text, columns) in [("é", 1), ("e\u{301}", 1), ("日本", 4), ("🔒", 2), (family, 2), ("", 0)] {
            assert_eq!(width(text), columns, "{text}");
        }
        for (text, columns, shown) in [
            ("abcdef", 4, "abc…"),
            ("abc", 3, "abc"),
            ("日本語", 6, "日本語"),
            ("日本語", 5, "日本…"),
            ("日本語", 4, "日…"),
            ("日本語", 1, "…"),
            ("日本語", 0, ""),
            ("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…"),
            (&format!("a{family}b"), 3, "a…"),
            (&format!("a{family}bc"), 4, &format!("a{family}…")),
        ] {
            assert_eq!(cut(text, columns), shown, "{text}, {columns}");
        }
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
    fn lines_are_broken_between_words() {
        let lines = |text: &str| -> Vec<usize> { wrapped(text, 20).lines().map(|line| line.chars().count()).collect() };
        assert_eq!(lines("word ".repeat(24).trim_end()), [59, 79]);
        let command = "x".repeat(100);
        assert_eq!(
            wrapped(&format!("run {command} now"), 2),
            format!("run\n  {command}\n  now")
        );
    }
}
