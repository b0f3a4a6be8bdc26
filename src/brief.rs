//! `Debug` output for values of any size.

use std::fmt::{self, Write};

/// Limits the bytes of a value that are shown: more than the longest name of a lock.
const BRIEF_MOST: usize = 2_048;

/// A value that may be megabytes, of which `Debug` formats and shows only the beginning.
pub(crate) struct Brief<T>(pub(crate) T);

impl<T: fmt::Debug> fmt::Debug for Brief<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut beginning = Beginning {
            of: f,
            left: BRIEF_MOST,
        };
        let shown = write!(beginning, "{:?}", self.0);
        match (shown, beginning.left) {
            // It stopped when there was no room for more.
            (Err(_), 0) => f.write_str("…"),
            (shown, _) => shown,
        }
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

#[cfg(not(modelled))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_shown_and_of_what_is_long_the_beginning() {
        assert_eq!(format!("{:?}", Brief("a\"b")), r#""a\"b""#);
        let long = "ä".repeat(1 << 20);
        let shown = format!("{:?}", Brief(&long));
        assert!(
            shown.starts_with("\"ää") && shown.ends_with("ä…") && shown.len() < BRIEF_MOST + 8,
            "{}",
            shown.len()
        );
        let exact = "x".repeat(BRIEF_MOST - 2);
        assert_eq!(format!("{:?}", Brief(&exact)).len(), BRIEF_MOST);
    }
}
