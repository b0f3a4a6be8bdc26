//! The keyboard of the full-screen view.
//!
//! The shell reads the same keyboard, and what somebody types behind the key that leaves the view is meant for the shell.
//! So nobody reads ahead: a key is read when it is asked for, byte for byte up to its end. As the keyboard can't be waited
//! for otherwise, there is a thread, but it only looks whether there is something to be read. If it read, it would take from
//! the shell what is typed while the view is being left or gives the terminal back.

use std::{
    io::{self, ErrorKind},
    os::fd::AsFd,
    str,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

/// How long the rest of a key is waited for. An escape that nothing follows for so long is the key of that name.
const REST: Duration = Duration::from_millis(50);

const ESCAPE: u8 = 0x1b;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// With the letter in lower case.
    Control(char),
    Enter,
    Backspace,
    Escape,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Other,
}

/// A terminal in raw mode, or what takes its place in a test.
#[derive(Debug)]
pub(crate) struct Keyboard<T> {
    input: Arc<T>,
    /// Has the thread look once.
    ask: Sender<()>,
    asked: bool,
    /// Where the thread tells that there is something.
    told: mpsc::Receiver<()>,
    /// What was read of a key whose end was not, and since when.
    begun: Vec<u8>,
    since: Instant,
}

impl<T: AsFd + Send + Sync + 'static> Keyboard<T> {
    pub(crate) fn new(input: T) -> io::Result<Self> {
        let input = Arc::new(input);
        let (ask, questions) = channel();
        let (tell, told) = mpsc::channel(1);
        let looked_at = input.clone();
        // It ends when it is not asked any more, or with the program.
        thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            while questions.recv().is_ok() {
                // An error is found out by whoever reads.
                while poll(&mut [PollFd::new(&looked_at, PollFlags::IN)], None) == Err(Errno::INTR) {}
                if tell.blocking_send(()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            input,
            ask,
            asked: false,
            told,
            begun: Vec::new(),
            since: Instant::now(),
        })
    }

    /// The next key. Fails when the keyboard has gone. Cancel safe.
    pub(crate) async fn next(&mut self) -> io::Result<Key> {
        loop {
            if let Some(key) = self.read()? {
                return Ok(key);
            }
            if !self.asked {
                self.ask.send(()).map_err(io::Error::other)?;
                self.asked = true;
            }
            tokio::select! {
                told = self.told.recv() => {
                    told.ok_or(ErrorKind::BrokenPipe)?;
                    self.asked = false;
                }
                () = sleep_until(self.since + REST), if !self.begun.is_empty() => {
                    if let Some(key) = self.take(false) {
                        return Ok(key);
                    }
                }
            }
        }
    }

    /// Reads no further than to the end of a key, and does not wait for it.
    fn read(&mut self) -> io::Result<Option<Key>> {
        loop {
            if let Some(key) = self.take(true) {
                return Ok(Some(key));
            }
            // A read that never waits would need a setting that the shell's reads would have, too.
            if !has_input(&self.input)? {
                return Ok(None);
            }
            let mut byte = [0];
            match read(&self.input, &mut byte) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => self.begun.extend(byte),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.since = Instant::now();
        }
    }

    /// The key whose bytes are there, if more of them may come or not.
    fn take(&mut self, more: bool) -> Option<Key> {
        let (key, length) = key(&self.begun, more)?;
        self.begun.drain(..length);
        Some(key)
    }
}

/// Whether a read would not wait; it may tell of the end or of an error.
fn has_input(input: impl AsFd) -> io::Result<bool> {
    match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&Timespec::default())) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The first key, and how many bytes it has; `None` while it may be the beginning of several.
fn key(bytes: &[u8], more: bool) -> Option<(Key, usize)> {
    let key = match bytes {
        [] => return None,
        [ESCAPE, rest @ ..] => match sequence(rest) {
            Sequence::Key(key, length) => return Some((key, 1 + length)),
            Sequence::Begun if more => return None,
            Sequence::Begun | Sequence::None => Key::Escape,
        },
        [b'\r' | b'\n', ..] => Key::Enter,
        [0x08 | 0x7f, ..] => Key::Backspace,
        [letter @ 0x01..=0x1a, ..] => Key::Control(char::from(letter - 1 + b'a')),
        [0x00..=0x1f, ..] => Key::Other,
        _ => return character(bytes, more),
    };
    Some((key, 1))
}

/// What follows an escape.
enum Sequence {
    Key(Key, usize),
    Begun,
    /// It is a key of its own.
    None,
}

fn sequence(rest: &[u8]) -> Sequence {
    match rest {
        // The function keys of the console of Linux.
        [b'[', b'[', _, ..] => Sequence::Key(Key::Other, 3),
        [] | [b'['] | [b'[', b'['] | [b'O'] => Sequence::Begun,
        [b'O', end, ..] => Sequence::Key(named(&[], *end), 2),
        [b'[', words @ ..] => match words.iter().position(|byte| !(0x20..=0x3f).contains(byte)) {
            None => Sequence::Begun,
            Some(at) if (0x40..=0x7e).contains(&words[at]) => Sequence::Key(named(&words[..at], words[at]), 2 + at),
            Some(_) => Sequence::None,
        },
        _ => Sequence::None,
    }
}

/// With or without a modifier, which is the second word.
fn named(words: &[u8], end: u8) -> Key {
    match (end, words.split(|byte| *byte == b';').next().unwrap_or_default()) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => Key::Other,
    }
}

fn character(bytes: &[u8], more: bool) -> Option<(Key, usize)> {
    let (valid, is_begun) = match str::from_utf8(bytes) {
        Ok(text) => (text, false),
        Err(error) => {
            let valid = str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            (valid, error.error_len().is_none())
        }
    };
    match valid.chars().next() {
        Some(character) => Some((Key::Char(character), character.len_utf8())),
        None if is_begun && more => None,
        None => Some((Key::Other, 1)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _, pipe},
        time::Duration,
    };

    use super::*;

    fn keys(mut bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some((key, length)) = key(bytes, false) {
            keys.push(key);
            bytes = &bytes[length..];
        }
        keys
    }

    #[test]
    fn keys_are_known_by_their_bytes() {
        use Key::*;
        for (bytes, expected) in [
            ("q", &[Char('q')][..]),
            ("é🔒", &[Char('é'), Char('🔒')]),
            ("\u{3}\u{1a}", &[Control('c'), Control('z')]),
            ("\r\n", &[Enter, Enter]),
            ("\u{7f}\u{8}", &[Backspace, Backspace]),
            ("\t\0", &[Control('i'), Other]),
            ("\u{1b}", &[Escape]),
            ("\u{1b}q", &[Escape, Char('q')]),
            ("\u{1b}[A\u{1b}OB", &[Up, Down]),
            ("\u{1b}[1;5A\u{1b}[6;2~", &[Up, PageDown]),
            ("\u{1b}\u{1b}[5~", &[Escape, PageUp]),
            ("\u{1b}[H\u{1b}OH\u{1b}[1~\u{1b}[7~", &[Home; 4]),
            ("\u{1b}[F\u{1b}OF\u{1b}[4~\u{1b}[8~", &[End; 4]),
            (
                "\u{1b}[[Aj\u{1b}OPj\u{1b}[15~",
                &[Other, Char('j'), Other, Char('j'), Other],
            ),
            ("\u{1b}[", &[Escape, Char('[')]),
            ("\u{1b}[1\u{3}", &[Escape, Char('['), Char('1'), Control('c')]),
        ] {
            assert_eq!(keys(bytes.as_bytes()), expected, "{bytes:?}");
        }
        assert_eq!(keys(b"\xffa\xc3"), [Other, Char('a'), Other]);
    }

    #[test]
    fn no_beginning_of_a_key_is_another_key() {
        for bytes in ["é", "🔒", "\u{1b}[A", "\u{1b}OF", "\u{1b}[15;5~", "\u{1b}[[A"] {
            let bytes = bytes.as_bytes();
            for length in 0..bytes.len() {
                assert_eq!(key(&bytes[..length], true), None, "{:?}", &bytes[..length]);
            }
            assert!(key(bytes, true).is_some_and(|(_, length)| length == bytes.len()));
        }
    }

    #[tokio::test]
    async fn what_follows_a_key_is_left_to_others() {
        let (reader, mut writer) = pipe().unwrap();
        let mut theirs = reader.try_clone().unwrap();
        let mut keyboard = Keyboard::new(reader).unwrap();
        writer.write_all(b"\x1b[Aqexit\n").unwrap();
        assert_eq!(keyboard.next().await.unwrap(), Key::Up);
        assert_eq!(keyboard.next().await.unwrap(), Key::Char('q'));
        let mut rest = [0; 5];
        theirs.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"exit\n");
        // Nobody takes what comes when no key is asked for.
        writer.write_all(b"more\n").unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        theirs.read_exact(&mut rest).unwrap();
        assert_eq!(&rest, b"more\n");
        // It goes on with what comes then, and in pieces.
        writer.write_all(b"\xc3").unwrap();
        assert!(tokio::time::timeout(Duration::ZERO, keyboard.next()).await.is_err());
        writer.write_all(b"\xa9\x1b").unwrap();
        assert_eq!(keyboard.next().await.unwrap(), Key::Char('é'));
        assert_eq!(keyboard.next().await.unwrap(), Key::Escape);
        drop(writer);
        assert!(keyboard.next().await.is_err());
    }
}
