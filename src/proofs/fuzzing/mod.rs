//! Checks of everything that comes from the server, on arbitrary bytes: for the fuzz targets in `fuzz/`, and for the
//! tests.
//!
//! Every function takes bytes as a fuzzer produces them, and panics if the decoder does or breaks a promise: an
//! accepted value is the same after being written and read again; shown text has no control characters; and every grant
//! comes from a document that shows it.
//!
//! This is not part of the public API: it exists under `cfg(fuzzing)` and in tests.

mod choices;
pub(crate) mod corruption;
pub(crate) mod decoding;
mod line;
#[cfg(test)]
mod tests;

use mongodb::bson::Document;

pub(crate) use choices::Choices;

use crate::{
    contention::{Contention, LastReport},
    inspect::LockInfo,
    protocol::{Location, ServerTime, State, wake},
};

/// Checks the document of a lock: the bytes as BSON, and a valid document corrupted as the bytes choose.
pub fn lock(data: &[u8]) {
    if let Ok(document) = Document::from_reader(data) {
        read_lock(&document);
    }
    let mut choices = Choices::new(data);
    let mut document = corruption::sample(&mut choices);
    corruption::corrupt(&mut document, &mut choices);
    read_lock(&document);
}

/// Checks an event of a change stream: the bytes as BSON, and an event whose parts are corrupted as the bytes choose.
pub fn event(data: &[u8]) {
    if let Ok(event) = Document::from_reader(data) {
        decoding::read_event(&event);
        decoding::read_event_of_elements(&event);
    }
    let mut choices = Choices::new(data);
    let event = corruption::event(&mut choices);
    decoding::read_event(&event);
    decoding::read_event_of_elements(&event);
}

/// Checks the words of a `wake`.
pub fn words(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    read_words(&text);
    let mut choices = Choices::new(data);
    read_words(&corruption::words(&mut choices));
}

/// Checks an `_id` of a document, and its name.
pub fn name(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    decoding::read_name(&text);
    decoding::read_code(&text);
    if let Ok(document) = Document::from_reader(data) {
        document.values().for_each(decoding::read_id);
    }
    let mut choices = Choices::new(data);
    decoding::read_id(&corruption::value(&mut choices, 3));
}

/// Checks an error from the server.
pub fn failure(data: &[u8]) {
    if let Ok(answer) = Document::from_reader(data) {
        decoding::read_failure(&answer);
    }
    let mut choices = Choices::new(data);
    decoding::read_failure(&corruption::failure(&mut choices));
}

/// Checks a client's handling of answers and events: the bytes choose its tasks' actions, and the server's words.
pub fn line(data: &[u8]) {
    line::drive(&mut Choices::new(data));
}

/// Checks that a decoded lock is the same after being written and read again, wherever it is in a document, and that it
/// can be shown.
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
            harmless(&malformed.to_string());
            return None;
        }
    };
    assert_eq!(State::from_document(&state.fields()).as_ref(), Ok(&state));
    let mut bytes = Vec::new();
    if state.fields().to_writer(&mut bytes).is_ok() {
        let again = Document::from_reader(bytes.as_slice()).map(|again| State::from_document(&again));
        assert!(again.is_ok_and(|again| again == Ok(state.clone())));
    }
    show(&state);
    Some(state)
}

fn show(state: &State) {
    let info = LockInfo::after_write("a name", state);
    harmless(&info.to_string());
    info.is_held();
    for waiter in &info.waiters {
        harmless(&waiter.to_string());
    }
    for as_of in [ServerTime(0), state.at, ServerTime(i64::MIN), ServerTime(i64::MAX)] {
        let sighting = LastReport {
            state,
            as_of,
            age: as_of.since(state.at),
        };
        harmless(&Contention::new(&sighting, 2, |id| id.len() > 3).to_string());
        state.is_free(as_of);
    }
}

/// Checks that text from others is safe to show on a terminal, which obeys control characters.
fn harmless(shown: &str) {
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
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
        assert!(left.len() <= text.len());
    }
    wake::is_freeing(text);
}
