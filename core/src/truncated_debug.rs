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
        beginning(f, BRIEF_MOST, format_args!("{:?}", self.0))
    }
}

/// A text of any size, of which `Display` shows the beginning.
#[derive(Debug)]
pub struct Shown<T> {
    text: T,
    most: usize,
}

/// Shows a name, a cause or the like in a message.
pub fn shown<T: fmt::Display>(text: T) -> Shown<T> {
    shown_up_to(SHOWN_MOST, text)
}

/// Shows up to `most` bytes of a text.
pub fn shown_up_to<T: fmt::Display>(most: usize, text: T) -> Shown<T> {
    Shown { text, most }
}

impl<T: fmt::Display> fmt::Display for Shown<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        beginning(f, self.most, format_args!("{}", self.text))
    }
}

/// Shows the beginning of a text in one line: control characters, and whatever else can't be seen, as escapes.
pub fn shown_in_a_line(text: &str) -> Shown<impl fmt::Display> {
    shown(InALine(text))
}

/// A text in one line.
#[derive(Debug)]
pub struct InALine<'a>(pub &'a str);

impl fmt::Display for InALine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.split_inclusive(['"', '\'']).try_for_each(|part| {
            let text = part.trim_end_matches(['"', '\'']);
            write!(f, "{}{}", text.escape_debug(), &part[text.len()..])
        })
    }
}

fn beginning(f: &mut fmt::Formatter<'_>, most: usize, text: fmt::Arguments<'_>) -> fmt::Result {
    let mut beginning = Beginning { of: f, left: most };
    let written = beginning.write_fmt(text);
    match (written, beginning.left) {
        // It stopped when there was no room for more.
        (Err(_), 0) => f.write_str("…"),
        (written, _) => written,
    }
}

struct Beginning<'a, 'f> {
    of: &'a mut fmt::Formatter<'f>,
    left: usize,
}

impl Write for Beginning<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() <= self.left {
            self.left -= text.len();
            return self.of.write_str(text);
        }
        let ends = (0..=self.left).rev();
        let end = ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.left = 0;
        self.of.write_str(&text[..end])?;
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
        assert_eq!(shown_up_to(3, "ääb").to_string(), "ä…");
        assert_eq!(shown_in_a_line("a\n\"'Mu\u{308}").to_string(), "a\\n\"'Mu\u{308}");
        let exact = "x".repeat(BRIEF_MOST - 2);
        assert_eq!(format!("{:?}", Brief(&exact)).len(), BRIEF_MOST);
    }
}
