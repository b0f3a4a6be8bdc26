//! Updates that are encoded once, and sent again with other ids.
//!
//! The pipeline of an operation is a tree of some hundred values. To build and to encode it is most of an operation's
//! work for the client. But the operations of a client are much alike: those of one shape differ only in the numbers at
//! the end of their ids. So the second operation of a shape is encoded three times more, each time with another number
//! in one of its ids; the bytes that change are the places of that number. From then on an operation of this shape is a
//! copy of these bytes with its own numbers in these places.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
};

use mongodb::bson::{Document, RawDocumentBuf};

use crate::protocol::{Operation, Request};

/// Maximum number of encoded updates: a client uses few shapes at a time, for instance one for each reason.
const READY_MOST: usize = 16;

/// Maximum number of remembered shapes that were met once. A shape that does not come again, such as that of a reason
/// that names an invoice, is not worth its encodings.
const MET_MOST: usize = 64;

/// The encoded updates of a store.
#[derive(Debug, Default)]
pub(super) struct Prepared(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    ready: VecDeque<Arc<Encoded>>,
    met: VecDeque<u64>,
}

/// The update of an operation, and the places in it that other operations of the same shape fill in.
#[derive(Debug)]
pub(super) struct Encoded {
    shape: u64,
    operation: Operation,
    bytes: Vec<u8>,
    places: Vec<(Id, usize)>,
}

/// An id of an operation whose number varies within a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Operation,
    Leaving,
    Requested,
}

impl Prepared {
    /// Returns the encoding of `build(operation)` with an operation of the same shape in it, if that is prepared.
    pub(super) fn encoded(
        &self,
        operation: &Operation,
        build: impl Fn(&Operation) -> Document,
    ) -> Option<Arc<Encoded>> {
        if !operation.is_simple() {
            return None;
        }
        let shape = shape(operation);
        let ready = {
            let mut shelf = self.shelf();
            let ready = shelf.find(shape);
            if ready.is_none() && !shelf.meets_again(shape) {
                return None;
            }
            ready
        };
        let ready = match ready {
            // Another shape with the same hash is not prepared.
            Some(ready) if !ready.is_of_shape_of(operation) => return None,
            Some(ready) => ready,
            None => {
                let encoded = Arc::new(Encoded::new(shape, operation, &build)?);
                self.shelf().put(encoded.clone());
                encoded
            }
        };
        debug_assert_eq!(
            ready.filled_in(operation),
            encode(&build(operation)).unwrap_or_default(),
            "prepared as {:?}, used for {operation:?}",
            ready.operation
        );
        Some(ready)
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// Whether this shape was met before.
    fn meets_again(&mut self, shape: u64) -> bool {
        if let Some(position) = self.met.iter().position(|met| *met == shape) {
            self.met.remove(position);
            return true;
        }
        if self.met.len() == MET_MOST {
            self.met.pop_front();
        }
        self.met.push_back(shape);
        false
    }

    /// Returns the update of a shape, as the last one to be forgotten.
    fn find(&mut self, shape: u64) -> Option<Arc<Encoded>> {
        let position = self.ready.iter().position(|encoded| encoded.shape == shape)?;
        let encoded = self.ready.remove(position)?;
        self.ready.push_back(encoded.clone());
        Some(encoded)
    }

    fn put(&mut self, encoded: Arc<Encoded>) {
        // Another task may have been faster.
        if self.find(encoded.shape).is_some() {
            return;
        }
        if self.ready.len() == READY_MOST {
            self.ready.pop_front();
        }
        self.ready.push_back(encoded);
    }
}

impl Encoded {
    /// Encodes an operation; `None` if the encoding depends on an id otherwise than by containing it.
    fn new(shape: u64, operation: &Operation, build: impl Fn(&Operation) -> Document) -> Option<Self> {
        let bytes = encode(&build(operation))?;
        let mut places = Vec::new();
        for id in [Id::Operation, Id::Leaving, Id::Requested] {
            let Some(number) = id.of(operation).map(number) else {
                continue;
            };
            let mut other = operation.clone();
            id.vary(&mut other);
            let varied = encode(&build(&other))?;
            if varied.len() != bytes.len() {
                return None;
            }
            let differs = |at: &usize| bytes[*at] != varied[*at];
            let mut at = 0;
            while let Some(place) = (at..bytes.len()).find(differs) {
                at = place + number.len();
                if bytes.get(place..at) != Some(number.as_bytes()) || !(place..at).all(|at| differs(&at)) {
                    return None;
                }
                places.push((id, place));
            }
        }
        Some(Self {
            shape,
            operation: operation.clone(),
            bytes,
            places,
        })
    }

    /// Returns the encoding, whose [places](Self::fill_in) are still to be filled in.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts the numbers of an operation of this shape into a copy of the encoding.
    pub(super) fn fill_in(&self, copy: &mut [u8], operation: &Operation) {
        for (id, place) in &self.places {
            let number = id.of(operation).map_or("", number).as_bytes();
            if let Some(place) = copy.get_mut(*place..place + number.len()) {
                place.copy_from_slice(number);
            }
        }
    }

    fn filled_in(&self, operation: &Operation) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        self.fill_in(&mut bytes, operation);
        bytes
    }

    fn is_of_shape_of(&self, other: &Operation) -> bool {
        let Operation {
            id,
            leave,
            kept,
            leave_capacity,
            evict,
            proclaim,
            downgrade,
            requests,
            expects,
            room,
            keep,
            record,
        } = &self.operation;
        let (entries, others) = (requests.as_ref(), other.requests.as_ref());
        let uses = entries.map(|requests| (requests.kind, requests.capacity, &requests.adopts));
        let other_uses = others.map(|requests| (requests.kind, requests.capacity, &requests.adopts));
        let entries = entries.map_or(&[][..], |requests| &requests.entries);
        let others = others.map_or(&[][..], |requests| &requests.entries);
        is_alike(id, &other.id)
            && leave.len() == other.leave.len()
            && leave.iter().zip(&other.leave).all(|(one, other)| is_alike(one, other))
            && (kept, leave_capacity, evict, proclaim)
                == (&other.kept, &other.leave_capacity, &other.evict, &other.proclaim)
            && (downgrade, expects, room, keep) == (&other.downgrade, &other.expects, &other.room, &other.keep)
            && (record, uses) == (&other.record, other_uses)
            && entries.len() == others.len()
            && entries
                .iter()
                .zip(others)
                .all(|(one, other)| is_request_alike(one, other))
    }
}

impl Id {
    fn of(self, operation: &Operation) -> Option<&str> {
        match self {
            Self::Operation => Some(&operation.id),
            Self::Leaving => operation.leave.first().map(String::as_str),
            Self::Requested => {
                let requests = operation.requests.as_ref()?;
                requests.entries.first().map(|entry| entry.id.as_str())
            }
        }
    }

    /// Gives the id another number of the same length, which differs in each digit.
    fn vary(self, operation: &mut Operation) {
        let id = match self {
            Self::Operation => Some(&mut operation.id),
            Self::Leaving => operation.leave.first_mut(),
            Self::Requested => {
                let requests = operation.requests.as_mut();
                requests.and_then(|requests| requests.entries.first_mut().map(|entry| &mut entry.id))
            }
        };
        let Some(id) = id else { return };
        let from = id.len() - number(id).len();
        let other = id.char_indices().map(|(at, letter)| match letter {
            '9' if at >= from => '0',
            digit if at >= from => char::from_u32(u32::from(digit) + 1).unwrap_or(digit),
            letter => letter,
        });
        *id = other.collect();
    }
}

/// Returns the hash of what operations of one shape have in common.
fn shape(operation: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    for id in [Id::Operation, Id::Leaving, Id::Requested] {
        id.of(operation)
            .map(|id| (id.len(), without_number(id)))
            .hash(&mut hasher);
    }
    (
        operation.leave_capacity,
        operation.room,
        operation.keep,
        operation.record.most,
    )
        .hash(&mut hasher);
    std::mem::discriminant(&operation.expects).hash(&mut hasher);
    if let Some(requests) = &operation.requests {
        (requests.kind, requests.capacity).hash(&mut hasher);
        for entry in &requests.entries {
            let Request {
                permits, lease, claim, ..
            } = entry;
            (permits, lease, claim, entry.wait, entry.fresh, entry.reserve).hash(&mut hasher);
            (&entry.owner.label, &entry.owner.reason, &entry.owner.value).hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn is_request_alike(one: &Request, other: &Request) -> bool {
    let Request {
        id,
        permits,
        lease,
        claim,
        wait,
        fresh,
        reserve,
        owner,
    } = one;
    is_alike(id, &other.id)
        && (permits, lease, claim) == (&other.permits, &other.lease, &other.claim)
        && (wait, fresh, reserve, owner) == (&other.wait, &other.fresh, &other.reserve, &other.owner)
}

/// Whether two ids differ at most in the digits of their numbers.
fn is_alike(one: &str, other: &str) -> bool {
    one.len() == other.len() && without_number(one) == without_number(other)
}

/// Returns the digits at the end of an id.
fn number(id: &str) -> &str {
    &id[without_number(id).len()..]
}

fn without_number(id: &str) -> &str {
    // The number follows on the session's id, which may end in digits too.
    let end = id.rfind(['-', '.']).map_or(id.len(), |separator| separator + 1);
    match id[end..].bytes().all(|byte| byte.is_ascii_digit()) {
        true => &id[..end],
        false => id,
    }
}

fn encode(document: &Document) -> Option<Vec<u8>> {
    RawDocumentBuf::try_from(document).ok().map(RawDocumentBuf::into_bytes)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::protocol::{Evict, Expects, Kind, Owner, Record, Requests};

    fn release(number: u32) -> Operation {
        Operation {
            id: format!("0123456789a1.{}", number + 1),
            leave: vec![format!("0123456789a1-{number}")],
            kept: Vec::new(),
            leave_capacity: Some(1),
            evict: Evict::Nobody,
            proclaim: None,
            downgrade: None,
            requests: None,
            expects: Expects::Alone,
            room: 256,
            keep: 1_000,
            record: Record::default(),
        }
    }

    fn request(number: u32, reason: &str) -> Operation {
        let owner = Owner {
            host: "machine".to_owned(),
            pid: 17,
            label: None,
            reason: Some(reason.to_owned()),
            value: None,
            proclaimed: 0,
            identity: None,
        };
        let entry = Request {
            id: format!("0123456789a1-{number}"),
            permits: 1,
            lease: 30_000,
            claim: 5_000,
            wait: true,
            fresh: true,
            reserve: 64,
            owner,
        };
        Operation {
            leave: Vec::new(),
            requests: Some(Requests {
                kind: Kind::Mutex,
                capacity: 1,
                entries: vec![entry],
                adopts: None,
            }),
            ..release(number)
        }
    }

    /// Like a pipeline: ids stand in several places, and alone.
    fn build(operation: &Operation) -> Document {
        let requested = || operation.requests.iter().flat_map(|requests| &requests.entries);
        let entries: Vec<&str> = requested().map(|entry| entry.id.as_str()).collect();
        let reasons: Vec<_> = requested().map(|entry| entry.owner.reason.clone()).collect();
        doc! {
            "wake": format!("{}:h;{};", operation.id, entries.join(";")), "leave": &operation.leave,
            "again": [&operation.leave, &entries], "reasons": reasons, "keep": operation.keep,
        }
    }

    #[test]
    fn the_second_of_a_shape_is_encoded_and_all_others_are_filled_in() {
        let prepared = Prepared::default();
        assert!(prepared.encoded(&release(11), build).is_none());
        // 10 of them have two digits in their ids, and the operation whose number has three is of another shape.
        for number in 12..22 {
            let operation = release(number);
            let encoded = prepared.encoded(&operation, build).expect("a shape met before");
            assert_eq!(Some(encoded.filled_in(&operation)), encode(&build(&operation)));
        }
        assert_eq!(prepared.shelf().ready.len(), 1);
        assert!(prepared.encoded(&release(99), build).is_none());
    }

    /// A user's text may look like the id of an entry: it is no place of the id, as it does not change with it.
    #[test]
    fn a_reason_that_looks_like_an_id_stays_as_it_is() {
        let prepared = Prepared::default();
        let reason = "0123456789a1-31 0123456789a1.32";
        for number in 31..40 {
            let operation = request(number, reason);
            if let Some(encoded) = prepared.encoded(&operation, build) {
                assert_eq!(Some(encoded.filled_in(&operation)), encode(&build(&operation)));
            }
        }
        assert_eq!(prepared.shelf().ready.len(), 1);
        // Each reason is a shape of its own.
        assert!(prepared.encoded(&request(40, "other"), build).is_none());
    }

    #[test]
    fn what_differs_in_more_than_ids_is_of_another_shape() {
        let ready = Encoded::new(0, &request(31, "a"), build).unwrap();
        assert!(ready.is_of_shape_of(&request(32, "a")));
        let different: [fn(&mut Operation); 8] = [
            |operation| operation.keep += 1,
            |operation| operation.id = "1123456789a1.32".to_owned(),
            |operation| operation.expects = Expects::Nothing,
            |operation| operation.record.most = 1,
            |operation| operation.leave.push("0123456789a1-7".to_owned()),
            |operation| operation.requests.as_mut().unwrap().capacity = 2,
            |operation| operation.requests.as_mut().unwrap().entries[0].wait = false,
            |operation| operation.requests.as_mut().unwrap().entries[0].owner.pid += 1,
        ];
        for change in different {
            let mut other = request(32, "a");
            change(&mut other);
            assert!(!ready.is_of_shape_of(&other), "{other:?}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let prepared = Prepared::default();
        for number in 0..3 * MET_MOST {
            let reason = format!("reason {number}");
            for entry in 31..33 {
                prepared.encoded(&request(entry, &reason), build);
            }
            prepared.encoded(&request(31, &format!("once {number}")), build);
        }
        let shelf = prepared.shelf();
        assert_eq!((shelf.ready.len(), shelf.met.len()), (READY_MOST, MET_MOST));
    }

    #[test]
    fn what_is_used_again_and_again_is_not_forgotten() {
        let prepared = Prepared::default();
        for number in 0..3 * MET_MOST {
            for entry in 31..33 {
                prepared.encoded(&request(entry, &format!("reason {number}")), build);
            }
            let known = prepared.encoded(&request(31, "frequent"), build).is_some();
            assert!(known || number < 2, "{number}");
        }
    }

    /// Where an id is not just text with its number in it, nothing is prepared.
    #[test]
    fn an_encoding_that_changes_elsewhere_is_not_used() {
        let counted = |operation: &Operation| doc! { "id": &operation.id, "half": operation.id.ends_with('2') };
        assert!(Encoded::new(0, &release(11), counted).is_none());
        let as_number = |operation: &Operation| doc! { "number": number(&operation.id).parse::<i32>().unwrap() };
        assert!(Encoded::new(0, &release(7), as_number).is_none());
    }
}
