//! Checks of what the library decodes and shows, for the fuzz targets in `fuzz/` and the tests here, both with the input
//! of `watchlock-proofs`. Each panics if the decoder does or breaks a promise.

use std::sync::Arc;

use mongodb::{
    bson::{Bson, Deserializer, Document},
    error::{CommandError, Error, ErrorKind},
};
use serde::Deserialize as _;

use crate::{
    contention::Contention,
    error::ServerError,
    input::check_id,
    inspect::LockInfo,
    protocol::{ServerTime, State, wake},
    store::{Event, Failure, LockLayout, Observed, element::ElementKey, lock_layout::Paths, mongo},
};

/// Reads an event as one of a collection of locks, and as one of documents with locks in them.
pub fn read_event(event: &Document) {
    read_event_of_elements(event);
    for layout in [Arc::default(), in_documents()] {
        if let Event::Addressed { name, wake, .. } = mongo::read_event(&layout, event) {
            assert_eq!(event.get_str("wake").ok(), Some(&wake[..]));
            wake::signals(&wake, "me").for_each(drop);
            layout.id_of(&name);
        }
    }
}

/// Returns the layout of locks in documents of the user's own.
fn in_documents() -> Arc<LockLayout> {
    LockLayout::in_documents(None, "a.b", None, &Paths::default()).unwrap_or_default()
}

/// Checks that an event, read as one of the locks of elements, concerns only locks in its own document.
fn read_event_of_elements(event: &Document) {
    let Ok(layout) = LockLayout::in_documents(None, "locks.lines", Some(("lines", "lock")), &Paths::default()) else {
        return;
    };
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let whole = id.and_then(|id| layout.document(id));
    let observed = mongo::read_observed(&layout, &Observed::All, event);
    for event in mongo::read_elements(&layout, &wake::pattern("me"), event)
        .into_iter()
        .chain(observed)
    {
        match event {
            Event::Addressed { name, wake, .. } => {
                assert!(wake.contains(";me-") && whole.as_deref().is_some_and(|whole| name.starts_with(whole)));
                drop(layout.member(&name).id);
            }
            Event::Foreign { name, .. } | Event::Written(name) => {
                assert!(whole.as_deref().is_some_and(|whole| name.starts_with(whole)));
                drop(layout.member(&name).id);
            }
            Event::Document { document, .. } => assert_eq!(Some(document), whole),
            _ => {}
        }
    }
}

/// Checks that any text is the name of some `_id`, and that a collection of locks has it as its name; and that a text
/// which is the code of an element's key is that of no other.
pub fn read_name(text: &str) {
    if let Some(key) = ElementKey::from_code(text) {
        assert_eq!(key.code(), text);
    }
    assert_eq!(LockLayout::default().id_of(text), Bson::from(text));
    read_id(&in_documents().id_of(text));
}

/// Checks that the name of an accepted id leads to the same document, and that this document has the same name.
pub fn read_id(id: &Bson) {
    if check_id(id).is_err() {
        return;
    }
    let layout = in_documents();
    let Some(named) = layout.document(id) else {
        panic!("every document of the user's has a name: {id}");
    };
    let found = layout.id_of(&named);
    assert_eq!(layout.document(&found).as_ref(), Some(&named), "{id}");
    if let Some(text) = id.as_str() {
        assert_eq!(
            (found.as_str(), LockLayout::default().document(id).as_deref()),
            (Some(text), Some(text))
        );
    }
}

/// Checks that a command's error answer is classified by its code, and that it can be shown.
pub fn read_failure(answer: &Document) {
    let failed = answer.get_array("writeErrors").is_ok_and(|errors| !errors.is_empty())
        || answer.get_document("writeConcernError").is_ok();
    assert_eq!(mongo::refusals(answer).is_empty(), !failed, "{answer}");
    let Ok(command) = CommandError::deserialize(Deserializer::new(Bson::Document(answer.clone()))) else {
        return;
    };
    let code = command.code;
    let error = ServerError::from(Error::from(ErrorKind::Command(command)));
    assert_eq!(error.code(), Some(code));
    assert_eq!(error.is_final(), error.kind == Failure::Refused);
    assert!(code != 11000 || error.kind != Failure::Unavailable);
    let _ = (error.to_string(), error.cause(), Arc::strong_count(&error.source));
}

/// Checks that a lock, and what an acquire tells of it, is safe to show on a terminal, which obeys control characters.
pub fn show(state: &State) {
    let info = LockInfo::after_write("a name", state);
    harmless(&info.to_string());
    info.is_held();
    for waiter in &info.waiters {
        harmless(&waiter.to_string());
    }
    for as_of in [ServerTime(0), state.at, ServerTime(i64::MIN), ServerTime(i64::MAX)] {
        let contention = Contention::new(state, as_of, as_of.since(state.at), 2, |id| id.len() > 3);
        harmless(&contention.to_string());
        state.is_free(as_of);
    }
}

pub(super) fn harmless(shown: &str) {
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

/// Returns an error of the server with this code.
#[cfg(test)]
pub(crate) fn error(code: i32) -> ServerError {
    let answer = mongodb::bson::doc! { "code": code };
    let command = CommandError::deserialize(Deserializer::new(Bson::Document(answer)));
    command.map_or_else(
        |_| ServerError::overdue(),
        |command| Error::from(ErrorKind::Command(command)).into(),
    )
}

/// The checks on the bytes of all seeds: see `proofs/tests/fuzzing.rs`.
#[cfg(test)]
mod tests {
    use watchlock_proofs::fuzzing::{self, seeds::on_all};

    #[test]
    fn locks_of_any_kind_are_shown_without_control_characters() {
        on_all(6_000, 64, |data| fuzzing::lock(data).iter().for_each(super::show));
    }

    #[test]
    fn events_of_any_kind_are_read_or_passed_over() {
        on_all(6_000, 64, |data| {
            fuzzing::events(data).iter().for_each(super::read_event)
        });
    }

    #[test]
    fn ids_of_any_kind_have_a_name() {
        on_all(10_000, 32, |data| {
            super::read_name(&String::from_utf8_lossy(data));
            fuzzing::ids(data).iter().for_each(super::read_id);
        });
    }

    #[test]
    fn errors_of_any_kind_are_sorted() {
        on_all(10_000, 32, |data| {
            fuzzing::failures(data).iter().for_each(super::read_failure)
        });
    }
}
