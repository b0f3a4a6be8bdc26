//! The screen of a terminal: it obeys what the full-screen view of `watchlock watch` sends, and no more.

/// The look of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// One of the sixteen colours.
    pub(super) colour: Option<u8>,
    pub(super) bold: bool,
    pub(super) dim: bool,
    pub(super) reversed: bool,
}

pub(super) type Cell = (char, Look);

/// The screen, with the cursor and the unread rest of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    rows: Vec<Vec<Cell>>,
    row: usize,
    column: usize,
    look: Look,
    rest: String,
    /// A sequence that this screen does not know: the picture could be wrong.
    pub(super) unknown: Option<String>,
}

impl Screen {
    pub(super) fn new(columns: usize, rows: usize) -> Self {
        Self {
            rows: vec![vec![(' ', Look::default()); columns]; rows],
            row: 0,
            column: 0,
            look: Look::default(),
            rest: String::new(),
            unknown: None,
        }
    }

    pub(super) fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Whether there is any text on it.
    pub(super) fn is_blank(&self) -> bool {
        self.rows.iter().flatten().all(|(character, _)| *character == ' ')
    }

    /// Takes in output, which may end within a sequence.
    pub(super) fn feed(&mut self, output: &str) {
        let text = std::mem::take(&mut self.rest) + output;
        let mut rest = &text[..];
        while let Some(character) = rest.chars().next() {
            if character == '\u{1b}' {
                let Some(length) = sequence(rest) else {
                    self.rest = rest.to_owned();
                    return;
                };
                self.obey(&rest[..length]);
                rest = &rest[length..];
                continue;
            }
            match character {
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                _ => {
                    let cell = self.rows.get_mut(self.row).and_then(|row| row.get_mut(self.column));
                    if let Some(cell) = cell {
                        *cell = (character, self.look);
                    }
                    self.column += 1;
                }
            }
            rest = &rest[character.len_utf8()..];
        }
    }

    fn obey(&mut self, sequence: &str) {
        let words = sequence.trim_start_matches("\u{1b}[");
        let (words, command) = words.split_at(words.len() - 1);
        let numbers: Vec<usize> = words.split(';').map(|word| word.parse().unwrap_or(0)).collect();
        let number = |index: usize| numbers.get(index).copied().unwrap_or(0);
        match command {
            "H" => (self.row, self.column) = (number(0).max(1) - 1, number(1).max(1) - 1),
            "J" if number(0) == 2 => self.rows.iter_mut().for_each(|row| row.fill((' ', Look::default()))),
            "m" => self.dress(&numbers),
            // The cursor, the other screen, and the keyboard show nothing.
            "h" | "l" => {}
            _ => self.unknown = Some(sequence.escape_debug().to_string()),
        }
    }

    fn dress(&mut self, numbers: &[usize]) {
        let mut numbers = numbers.iter().copied();
        while let Some(number) = numbers.next() {
            let colour = |number: usize| u8::try_from(number).ok();
            match number {
                0 => self.look = Look::default(),
                1 => self.look.bold = true,
                2 => self.look.dim = true,
                7 => self.look.reversed = true,
                22 => (self.look.bold, self.look.dim) = (false, false),
                27 => self.look.reversed = false,
                30..=37 => self.look.colour = colour(number - 30),
                90..=97 => self.look.colour = colour(number - 82),
                38 if numbers.next() == Some(5) => self.look.colour = numbers.next().and_then(colour),
                39 => self.look.colour = None,
                // The background, which the view leaves as it is, and the colour of underlines.
                49 | 59 => {}
                _ => self.unknown = Some(format!("look {number}")),
            }
        }
    }
}

/// Returns the length of the sequence at the beginning; `None` if it is not complete.
fn sequence(text: &str) -> Option<usize> {
    let body = text.strip_prefix("\u{1b}[")?;
    let end = body.find(|c: char| ('@'..='~').contains(&c))?;
    Some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(screen: &Screen, row: usize) -> String {
        screen.rows()[row].iter().map(|(character, _)| *character).collect()
    }

    #[test]
    fn output_lands_where_it_is_sent_however_it_is_cut() {
        let output = "\u{1b}[?1049h\u{1b}[2J\u{1b}[2;3H\u{1b}[38;5;2;1mäb\u{1b}[0mc\r\nd";
        let cuts = output.char_indices().map(|(at, _)| at);
        for cut in cuts {
            let mut screen = Screen::new(6, 3);
            screen.feed(&output[..cut]);
            screen.feed(&output[cut..]);
            let lines = [0, 1, 2].map(|row| line(&screen, row));
            assert_eq!(lines, ["      ", "  äbc ", "d     "], "{cut}");
            let green = Look {
                colour: Some(2),
                bold: true,
                ..Look::default()
            };
            assert_eq!(
                screen.rows()[1][2..5].iter().map(|(_, look)| *look).collect::<Vec<_>>(),
                [green, green, Look::default()]
            );
            assert_eq!(screen.unknown, None);
        }
    }

    #[test]
    fn a_sequence_that_is_not_known_is_reported() {
        let mut screen = Screen::new(6, 3);
        screen.feed("a\u{1b}[3Lb");
        assert!(screen.unknown.is_some());
    }
}
