//! Output of values of any size.

use std::fmt::{self, Write};

/// Limits the bytes of a value that are shown: more than the longest name of a lock.
const BRIEF_MOST: usize = 2_048;

/// Limits the bytes of a name or a cause in a message, which is to fit into a line of a log.
const SHOWN_MOST: usize = 200;

/// Limits the bytes of an error's message, of which the longest names the holders of a lock.
pub const MESSAGE_MOST: usize = 900;

/// A value that may be megabytes, of which `Debug` formats and shows only the beginning.
pub struct Brief<T>(pub T);

impl<T: fmt::Debug> fmt::Debug for Brief<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_up_to(BRIEF_MOST, format_args!("{:?}", self.0)))
    }
}

/// Returns a name, a cause or the like as a message has it.
pub fn shown(text: impl fmt::Display) -> String {
    shown_up_to(SHOWN_MOST, text)
}

/// Returns the beginning of a text, up to `most` bytes.
pub fn shown_up_to(most: usize, text: impl fmt::Display) -> String {
    let mut beginning = Beginning {
        text: String::new(),
        most,
    };
    // It fails when there is no room for more.
    if write!(beginning, "{text}").is_err() {
        beginning.text.push('…');
    }
    beginning.text
}

/// Returns the beginning of a text in one line, as a message has it.
pub fn shown_in_a_line(text: &str) -> String {
    // Escapes are no shorter than what they stand for.
    let mut ends = text.char_indices().map(|(at, _)| at);
    let end = ends.find(|at| *at > SHOWN_MOST).unwrap_or(text.len());
    shown(in_a_line(&text[..end]))
}

/// Returns a text in one line: control characters, and whatever else can't be seen, as escapes.
pub fn in_a_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.split_inclusive(['"', '\'']) {
        let text = part.trim_end_matches(['"', '\'']);
        line.extend(text.escape_debug());
        line.push_str(&part[text.len()..]);
    }
    line
}

struct Beginning {
    text: String,
    most: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = self.most - self.text.len();
        if text.len() <= left {
            self.text.push_str(text);
            return Ok(());
        }
        let end = (0..=left).rev().find(|end| text.is_char_boundary(*end));
        self.text.push_str(&text[..end.unwrap_or(0)]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_shown_and_of_what_is_long_the_beginning() {
        assert_eq!(format!("{:?}", Brief("a\"b")), r#""a\"b""#);
        let long = "ä".repeat(1 << 20);
        let brief = format!("{:?}", Brief(&long));
        assert!(
            brief.starts_with("\"ää") && brief.ends_with("ä…") && brief.len() < BRIEF_MOST + 8,
            "{}",
            brief.len()
        );
        assert_eq!(shown_up_to(3, "ääb"), "ä…");
        assert_eq!(shown_in_a_line("a\n\"'Mu\u{308}"), "a\\n\"'Mu\u{308}");
        let exact = "x".repeat(BRIEF_MOST - 2);
        assert_eq!(format!("{:?}", Brief(&exact)).len(), BRIEF_MOST);
    }
}
