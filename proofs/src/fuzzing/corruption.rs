//! Documents of locks, events and answers, and their corruptions by other programs.

use mongodb::bson::{Binary, Bson, DateTime, Decimal128, Document, Timestamp, doc, oid::ObjectId, spec::BinarySubtype};

use watchlock_core::protocol::{Awaited, Ended, Entry, HoldEnd, Identity, Kind, Owner, ServerTime, Shown, State};

use super::Choices;

const NOW: i64 = 1_700_000_000_000;

/// Returns the document of a lock that somebody may hold, and others may wait for.
pub(super) fn sample(choices: &mut Choices<'_>) -> Document {
    let kinds = [
        Kind::Mutex,
        Kind::Semaphore,
        Kind::RwLock,
        Kind::Election,
        Kind::Document,
        Kind::Latch,
        Kind::Barrier,
    ];
    let (holders, waiters) = (choices.below(3), choices.below(3));
    let state = State {
        kind: choices.pick(&kinds),
        capacity: choices.pick(&[1, 3, 1 << 30]),
        is_set: choices.one_in(4),
        token: NOW * 1_000,
        holders: (0..holders).map(|number| holder(number, choices)).collect(),
        queue: (0..waiters).map(|number| waiter(number, choices)).collect(),
        wake: words(choices),
        version: 7,
        at: ServerTime(NOW),
        purge_at: ServerTime(NOW + 60_000),
        broken: choices.one_in(3).then_some(NOW),
        adopted: vec![NOW; choices.below(2)],
        evicted: choices.one_in(3).then_some(NOW),
        ends: ends(choices),
    };
    state.fields()
}

fn ends(choices: &mut Choices<'_>) -> Vec<Ended> {
    let ends = choices.below(3);
    let ended = |number| {
        let Entry {
            token,
            permits,
            since,
            owner,
            ..
        } = holder(number, choices);
        Ended {
            token,
            permits,
            since,
            owner,
            ended: ServerTime(NOW),
            how: choices.pick(&[HoldEnd::Released, HoldEnd::Expired, HoldEnd::HeldTooLong]),
        }
    };
    (0..ends).map(ended).collect()
}

fn holder(number: usize, choices: &mut Choices<'_>) -> Entry {
    Entry {
        token: NOW * 1_000 - i64::from(u8::try_from(number).unwrap_or(0)),
        released: choices.one_in(4).then_some(ServerTime(NOW)),
        shown: choices.one_in(4).then(|| Shown {
            is_idle: choices.one_in(2),
            awaits: choices.one_in(2).then(|| Awaited {
                lock: text(choices),
                wait: choices.number(),
            }),
            as_of: 4,
        }),
        ..waiter(number, choices)
    }
}

fn waiter(number: usize, choices: &mut Choices<'_>) -> Entry {
    let text = |choices: &mut Choices<'_>| choices.one_in(2).then(|| text(choices));
    Entry {
        id: format!("{}-{number}", choices.pick(&["me", "aa", "é"])),
        permits: 1,
        lease: 30_000,
        claim: 5_000,
        since: ServerTime(NOW),
        until: ServerTime(NOW + 30_000),
        owner: Owner {
            host: "host".to_owned(),
            pid: 4711,
            label: text(choices),
            reason: text(choices),
            value: text(choices),
            proclaimed: 0,
            identity: choices.one_in(2).then(|| Identity {
                id: "owner".to_owned(),
                born: choices.number(),
            }),
        },
        token: 0,
        released: None,
        shown: None,
    }
}

/// Corrupts some of a document's fields, or of those of its entries.
pub(super) fn corrupt(document: &mut Document, choices: &mut Choices<'_>) {
    for _ in 0..=choices.below(4) {
        match (choices.below(3), choices.pick(&["holders", "queue"])) {
            (0, _) => corrupt_field(document, choices),
            (1, list) => corrupt_list(document, list, choices),
            (_, list) => {
                let entries = document.get_array_mut(list).ok();
                let entry = entries.and_then(|entries| entries.first_mut());
                let Some(Bson::Document(entry)) = entry else { continue };
                match entry.get_document_mut("owner") {
                    Ok(owner) if choices.one_in(4) => corrupt_field(owner, choices),
                    _ => corrupt_field(entry, choices),
                }
            }
        }
    }
}

fn corrupt_field(document: &mut Document, choices: &mut Choices<'_>) {
    let fields: Vec<String> = document.keys().cloned().collect();
    if fields.is_empty() {
        return;
    }
    let field = choices.pick(&fields);
    match choices.below(6) {
        0 => drop(document.remove(&field)),
        // The value of another field.
        1 => {
            let other = document.get(choices.pick(&fields)).cloned();
            document.insert(field, other.unwrap_or(Bson::Null));
        }
        2 => drop(document.insert(field, choices.number())),
        3 => drop(document.insert(field, DateTime::from_millis(choices.number()))),
        4 => drop(document.insert(field, number_of_another_type(choices))),
        _ => drop(document.insert(field, value(choices, 3))),
    }
}

fn corrupt_list(document: &mut Document, list: &str, choices: &mut Choices<'_>) {
    let Ok(entries) = document.get_array_mut(list) else {
        return;
    };
    match choices.below(4) {
        0 => entries.push(value(choices, 2)),
        1 => entries.insert(0, value(choices, 2)),
        2 => entries.extend(entries.first().cloned()),
        _ => entries.reverse(),
    }
}

fn number_of_another_type(choices: &mut Choices<'_>) -> Bson {
    let doubles = [
        0.0,
        -0.0,
        1.0,
        7.0,
        0.5,
        -1.0,
        9e15,
        1e300,
        f64::NAN,
        f64::INFINITY,
        NOW as f64,
    ];
    match choices.below(4) {
        0 => Bson::Int32(choices.pick(&[0, 1, 7, -1, i32::MIN, i32::MAX])),
        1 => Bson::Boolean(true),
        2 => decimal(choices),
        _ => Bson::Double(choices.pick(&doubles)),
    }
}

fn decimal(choices: &mut Choices<'_>) -> Bson {
    let numbers = [
        "7",
        "7.0",
        "7E+2",
        "-0",
        "NaN",
        "Infinity",
        "1E+6000",
        "1.1",
        "9223372036854775808",
    ];
    let number: Option<Decimal128> = choices.pick(&numbers).parse().ok();
    number.map_or(Bson::Null, Bson::Decimal128)
}

/// Returns any value.
pub(super) fn value(choices: &mut Choices<'_>, depth: usize) -> Bson {
    match choices.below(18) {
        0 => Bson::Null,
        1 => Bson::Undefined,
        2 => Bson::MinKey,
        3 => Bson::MaxKey,
        4 => Bson::String(text(choices)),
        5 => Bson::Int64(choices.number()),
        6 => number_of_another_type(choices),
        7 => Bson::DateTime(DateTime::from_millis(choices.number())),
        8 => Bson::ObjectId(ObjectId::from_bytes([7; 12])),
        9 => Bson::Timestamp(Timestamp {
            time: u32::MAX,
            increment: 1,
        }),
        10 => Bson::Symbol("symbol".to_owned()),
        11 => Bson::JavaScriptCode("1".to_owned()),
        12 => Bson::Binary(Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0, 255],
        }),
        13 if depth > 0 => Bson::Array((0..choices.below(3)).map(|_| value(choices, depth - 1)).collect()),
        14 if depth > 0 => Bson::Document(doc! { text(choices): value(choices, depth - 1) }),
        15 => deep(),
        16 => Bson::String("x".repeat(if choices.one_in(64) { 1 << 20 } else { 1 << 10 })),
        17 => decimal(choices),
        _ => Bson::Document(Document::new()),
    }
}

/// Returns a value of the maximum depth that the server allows.
fn deep() -> Bson {
    (0..90).fold(Bson::Null, |inner, level| match level % 2 {
        0 => Bson::Array(vec![inner]),
        _ => Bson::Document(doc! { "a": inner }),
    })
}

/// Returns text as other programs may write it.
pub(super) fn text(choices: &mut Choices<'_>) -> String {
    let texts = [
        "",
        "x",
        "\0",
        "$$ROOT",
        "a.b",
        "\u{1b}[2J",
        "\u{9b}31m",
        "\u{202e}abc",
        "🔒",
        "…~;|,-+!:",
        "\"",
        "mutex",
        "me-1",
        "9223372036854775808",
    ];
    choices.pick(&texts).to_owned()
}

/// Returns the `wake` of a write, possibly malformed.
pub(super) fn words(choices: &mut Choices<'_>) -> String {
    let parts = [
        ";",
        ":",
        "-",
        "+",
        "!",
        "~",
        "me",
        "aa",
        "me-1",
        "me-2",
        "me-3",
        "me.4",
        "h",
        "q",
        "0",
        "7",
        "é",
        "17",
        "",
        "99999999999999999999",
        "1764000000000001",
        "-9223372036854775808",
    ];
    let mut words = String::new();
    if choices.one_in(2) {
        words.push_str("op.1:h;");
    }
    for _ in 0..choices.below(12) {
        words.push_str(choices.pick(&parts));
    }
    words
}

/// Returns an event of a change stream in any of its forms.
pub(super) fn event(choices: &mut Choices<'_>) -> Document {
    let types = [
        "insert",
        "update",
        "replace",
        "delete",
        "drop",
        "invalidate",
        "",
        "modify",
    ];
    let mut lock = sample(choices);
    if choices.one_in(2) {
        corrupt(&mut lock, choices);
    }
    let mut event = doc! {
        "_id": { "_data": "8263" },
        "operationType": choices.pick(&types),
        "documentKey": { "_id": value(choices, 2) },
        "fullDocument": if choices.one_in(2) { doc! { "a": { "b": lock } } } else { lock },
        "wake": words(choices),
        "at": DateTime::from_millis(choices.number()),
        "whole": choices.one_in(2), "old": choices.one_in(4), "cut": [text(choices)],
    };
    let locks = (0..choices.below(3)).map(|_| {
        let mut lock = doc! { "code": "a=1", "wake": words(choices), "at": DateTime::from_millis(choices.number()) };
        for _ in 0..choices.below(2) {
            corrupt_field(&mut lock, choices);
        }
        lock
    });
    let locks: Vec<Document> = locks.collect();
    event.insert("locks", locks);
    for _ in 0..choices.below(3) {
        corrupt_field(&mut event, choices);
    }
    event
}

/// Returns the answer to a command that failed.
pub(super) fn failure(choices: &mut Choices<'_>) -> Document {
    let codes = [0, 1, 11000, 13, 43, 40573, -1, i32::MAX];
    let mut answer = doc! {
        "ok": 0,
        "code": choices.pick(&codes),
        "codeName": text(choices),
        "errmsg": text(choices),
        "errorLabels": ["RetryableWriteError"],
    };
    // The same failure, as that of a single write or of the write concern.
    let error = answer.clone();
    match choices.below(4) {
        0 => drop(answer.insert("writeErrors", vec![error])),
        1 => drop(answer.insert("writeErrors", vec![value(choices, 2)])),
        2 => drop(answer.insert("writeConcernError", error)),
        _ => {}
    }
    for _ in 0..choices.below(3) {
        corrupt_field(&mut answer, choices);
    }
    answer
}
