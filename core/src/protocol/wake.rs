//! The `wake` field: the entries that a write concerns, in one root scalar that a change stream can filter by.
//!
//! `<operation>:<left>;` and then one word for each entry that the write granted, evicted or adopted:
//!
//! ```text
//! 9f2c41d07a35.17:h;4be09a21cc7f-3+1764000000000001;77aa01e4d2b8-9!1764000000000000;
//! ```
//!
//! - `left` has one letter for each entry that asked to leave: `h` it held, `q` it waited, `0` it was not there.
//! - `<id>*;` waits, and is to ask: the lock is kept, and that may end at another time than the waiter knows; or the
//!   permits that it waits for are more than there are by now, and it is in the queue no more. Earlier clients pass over the word, and ask when they would have asked.
//! - `<id>?;` holds, and others wait for the lock, or its permits were set: the holder hands on the lock within its
//!   process no more, nor shares it with more readers.
//! - `<id>+<token>;` was granted, on its claim lease, and `<id>?;` follows if others wait behind it; `<id>!<token>;` was evicted by an operator, and `<id>~;` adopted
//!   by a later incarnation of its owner. The token names the grant, as the entry may have been granted anew by the
//!   time that the event arrives. Entries whose lease ran out are not named: their holders knew it before the server.
//!
//! A session matches `;<session>-`, so it receives only the writes that concern one of its own entries. Entries that
//! the operation requests are not among the words: their session reads the grant in the answer. An array would be
//! easier to read, but a change stream reports arrays as element diffs, which `$match` can't look into.

use std::fmt::Write as _;

/// The place of an entry that asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    Holder,
    /// It held, and the lock is kept. The letter is the same: the document shows the difference.
    Kept,
    Waiter,
    Nowhere,
}

impl Left {
    pub(crate) const HOLDER: &'static str = "h";
    pub(crate) const WAITER: &'static str = "q";
    pub(crate) const NOWHERE: &'static str = "0";
}

/// The news of a write for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Granted {
        token: i64,
    },
    Evicted {
        token: i64,
    },
    Adopted,
    /// The lock ahead of it is kept until another time than before; or it waits no more, as it wants too many permits.
    Ask,
    /// Another session waits for the lock that this session holds.
    AskedFor,
}

/// The words of one write.
///
/// Their order is part of the protocol, as both implementations must write the same document: grants, then the entries
/// that an operator evicted, then those that a later incarnation adopted, then the waiter that is to ask, then the
/// holders that are asked for.
#[derive(Debug, Default)]
pub(crate) struct Announcement {
    left: String,
    /// By the kinds of news, in that order.
    words: [String; 5],
}

impl Announcement {
    pub(crate) fn left(&mut self, left: Left) {
        self.left.push_str(match left {
            Left::Holder | Left::Kept => Left::HOLDER,
            Left::Waiter => Left::WAITER,
            Left::Nowhere => Left::NOWHERE,
        });
    }

    /// Adds the news for an entry.
    pub(crate) fn announce(&mut self, id: &str, news: Signal) {
        let (kind, mark, token) = match news {
            Signal::Granted { token } => (0, '+', Some(token)),
            Signal::Evicted { token } => (1, '!', Some(token)),
            Signal::Adopted => (2, '~', None),
            Signal::Ask => (3, '*', None),
            Signal::AskedFor => (4, '?', None),
        };
        let token = token.map_or_else(String::new, |token| token.to_string());
        // Writing to a String can't fail.
        let _ = write!(self.words[kind], "{id}{mark}{token};");
    }

    /// Adds the news of a grant to an entry that did not ask, and whether others wait behind it.
    pub(crate) fn granted(&mut self, id: &str, token: i64, others_wait: bool) {
        self.announce(id, Signal::Granted { token });
        if others_wait {
            let _ = write!(self.words[0], "{id}?;");
        }
    }

    pub(crate) fn into_wake(self, operation: &str) -> String {
        format!("{operation}:{};{}", self.left, self.words.concat())
    }
}

/// Returns the `wake` of a write in which no entry comes or leaves: a renewal, or a change by the holder to its
/// document.
pub fn of_change(operation: &str) -> String {
    format!("{operation}:;")
}

/// Returns the `wake` of a write in which the only entry, a holder, leaves.
pub fn of_release(operation: &str) -> String {
    format!("{operation}:{};", Left::HOLDER)
}

/// The pattern of a write in which an entry left or was evicted, and none was granted.
pub const FREEING: &str = "^[^+]*[hq!][^+]*$";

/// Returns whether this is the `wake` of such a write.
pub fn is_freeing(wake: &str) -> bool {
    !wake.contains('+') && wake.contains(['h', 'q', '!'])
}

/// Returns the pattern by which a session's change stream selects its writes.
pub fn pattern(session: &str) -> String {
    format!(";{session}-")
}

/// Returns the places of the entries that asked to leave, if `wake` is of this operation's write. `None` means that the
/// operation wrote nothing, so that none of them was there.
pub fn left<'a>(wake: &'a str, operation: &str) -> Option<impl Iterator<Item = Left> + use<'a>> {
    let letters = wake.strip_prefix(operation)?.strip_prefix(':')?.split(';').next()?;
    Some(letters.chars().map(|letter| match letter {
        'h' => Left::Holder,
        'q' => Left::Waiter,
        _ => Left::Nowhere,
    }))
}

/// Returns the news for entries of `session`. Unreadable words are skipped: they are not ours.
pub fn signals<'a>(wake: &'a str, session: &'a str) -> impl Iterator<Item = (&'a str, Signal)> {
    wake.split(';').skip(1).filter_map(move |word| {
        let sequence = word.strip_prefix(session)?.strip_prefix('-')?;
        let digits = sequence
            .find(|c: char| !c.is_ascii_digit())
            .filter(|digits| *digits > 0)?;
        let id = &word[..word.len() - sequence.len() + digits];
        let (mark, token) = sequence[digits..].split_at_checked(1)?;
        let signal = match (mark, token.parse()) {
            ("+", Ok(token)) => Signal::Granted { token },
            ("!", Ok(token)) => Signal::Evicted { token },
            ("~", _) if token.is_empty() => Signal::Adopted,
            ("*", _) if token.is_empty() => Signal::Ask,
            ("?", _) if token.is_empty() => Signal::AskedFor,
            _ => return None,
        };
        Some((id, signal))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_what_it_cannot_read() {
        for wake in [
            "",
            ";",
            "x",
            "x:;aa-",
            "x:;aa-+1@2;",
            "x:;aa-+1;aa-!1;aa-~;aa-*;aa-?;",
            "x:;aa-1+;aa-1+x@y;aa-1=;aa-1?7;aa-1!;aa-1!x;aa-1~7;aa-1*7;aa-1é;",
            "x:;aa-1+99999999999999999999;",
        ] {
            assert_eq!(signals(wake, "aa").count(), 0, "{wake}");
        }
    }

    #[test]
    fn a_write_frees_a_lock_that_an_entry_left_and_nobody_was_granted() {
        for wake in ["cc.5:h;", "cc.5:q;", "cc.5:0h;", "cc.5:;aa-1!7;", "cc.5:h;bb-1*;"] {
            assert!(is_freeing(wake), "{wake}");
        }
        for wake in [
            "cc.5:;",
            "cc.5:0;",
            "cc.5:;aa-1~;",
            "cc.5:h;bb-1+7;",
            "cc.5:;aa-1!7;bb-1+8;",
        ] {
            assert!(!is_freeing(wake), "{wake}");
        }
    }
}
