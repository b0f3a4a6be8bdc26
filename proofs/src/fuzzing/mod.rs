//! Checks of everything that comes from a server, on arbitrary bytes: for the fuzz targets in `fuzz/`, and for the
//! tests.
//!
//! Every check takes bytes as a fuzzer produces them, and panics if the decoder does or breaks a promise: an accepted
//! value is the same after being written and read again; shown text has no control characters; and every grant comes
//! from a document that shows it. What only the library decodes is made here from the same bytes, and checked there.

mod choices;
mod corruption;
pub mod seeds;
mod waiting;

use mongodb::bson::{Bson, Document};
use watchlock_core::{
    protocol::{Location, State, wake},
    waitlist::fixtures::PlainHold,
};

use choices::Choices;
pub use waiting::{Course, Fuzzed};

/// Checks the document of a lock: the bytes as BSON, and a valid document corrupted as the bytes choose. Returns what
/// was accepted.
pub fn lock(data: &[u8]) -> Vec<State> {
    let mut choices = Choices::new(data);
    let mut corrupt = corruption::sample(&mut choices);
    corruption::corrupt(&mut corrupt, &mut choices);
    documents(data, corrupt).iter().filter_map(read_lock).collect()
}

/// Checks the words of a `wake`.
pub fn words(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    read_words(&text);
    let mut choices = Choices::new(data);
    read_words(&corruption::words(&mut choices));
}

/// Checks a waiting client's handling of answers and events: the bytes choose its tasks' actions, and the server's
/// words. Returns what it has been through.
pub fn waitlist(data: &[u8]) -> Course {
    waitlist_of::<PlainHold>(data)
}

/// The same with other holds, such as the library's.
pub fn waitlist_of<H: Fuzzed>(data: &[u8]) -> Course {
    waiting::drive::<H>(&mut Choices::new(data))
}

/// Returns events of a change stream: the bytes as BSON, and an event whose parts are corrupted as the bytes choose.
pub fn events(data: &[u8]) -> Vec<Document> {
    documents(data, corruption::event(&mut Choices::new(data)))
}

/// Returns values for `_id`: those of the bytes as BSON, and one as the bytes choose.
pub fn ids(data: &[u8]) -> Vec<Bson> {
    let read = Document::from_reader(data).unwrap_or_default();
    let drawn = corruption::value(&mut Choices::new(data), 3);
    read.into_iter().map(|(_, value)| value).chain([drawn]).collect()
}

/// Returns answers to commands that failed: the bytes as BSON, and one as the bytes choose.
pub fn failures(data: &[u8]) -> Vec<Document> {
    documents(data, corruption::failure(&mut Choices::new(data)))
}

/// Returns the bytes as a document, if they are one, and another.
fn documents(data: &[u8], drawn: Document) -> Vec<Document> {
    Document::from_reader(data).into_iter().chain([drawn]).collect()
}

/// Checks that a decoded lock is the same after being written and read again, wherever it is in a document.
fn read_lock(document: &Document) -> Option<State> {
    let at = Location::under("a.b");
    let mut whole = Document::new();
    assert!(at.set_lock(&mut whole, document.clone()));
    let inside = at.lock(&whole).map(State::from_document);
    let read = State::from_document(document);
    // If a field of the lock appears twice the last one counts, so the two are the same document.
    assert_eq!(inside.as_ref(), Some(&read));
    assert_eq!(
        at.take_lock(&mut whole).as_ref().map(State::from_document).as_ref(),
        Some(&read)
    );
    let state = match read {
        Ok(state) => state,
        Err(malformed) => {
            let shown = malformed.to_string();
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            return None;
        }
    };
    assert_eq!(State::from_document(&state.fields()).as_ref(), Ok(&state));
    let mut bytes = Vec::new();
    if state.fields().to_writer(&mut bytes).is_ok() {
        let again = Document::from_reader(bytes.as_slice()).map(|again| State::from_document(&again));
        assert!(again.is_ok_and(|again| again == Ok(state.clone())));
    }
    Some(state)
}

fn read_words(text: &str) {
    for session in ["aa", "é", ""] {
        for (id, _) in wake::signals(text, session) {
            let sequence = id.strip_prefix(session).and_then(|rest| rest.strip_prefix('-'));
            let is_number =
                |sequence: &str| !sequence.is_empty() && sequence.bytes().all(|digit| digit.is_ascii_digit());
            assert!(sequence.is_some_and(is_number), "{id:?} of {session:?} in {text:?}");
        }
    }
    let operation = text.split(':').next().unwrap_or_default();
    if let Some(left) = wake::left(text, operation) {
        assert!(left.count() <= text.len());
    }
    wake::is_freeing(text);
}
