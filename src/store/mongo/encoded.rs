//! Updates that are encoded once, and sent again with other ids.
//!
//! The pipeline of an operation is a tree of some hundred values, and to build and encode it is most of an operation's
//! work for the client. The operations of a client are much alike: those of one shape differ only in the numbers at the
//! end of their ids. So an operation that comes again is encoded twice with other numbers; where the two differ, an
//! operation's own numbers go in.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use mongodb::{
    bson::{Document, RawDocumentBuf},
    error::Error,
};

use crate::protocol::Operation;

/// Maximum number of shapes that are remembered: a client uses few at a time. A shape that does not come again, such as
/// that of a reason that names an invoice, is never encoded.
const SHAPES_MOST: usize = 16;

/// Number of bytes of the filter and the limit that most commands are completed with.
const COMPLETED: usize = 128;

/// What stands for the digits of an operation's ids, one letter for each id. No id contains them.
const MARKS: [[u8; 3]; 2] = [*b"\x01\x02\x03", *b"\x04\x05\x06"];

/// The shapes of the operations that were sent last, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct Shapes(Mutex<VecDeque<Shape>>);

#[derive(Debug)]
struct Shape {
    /// The operation of the shape that came last.
    operation: Operation,
    /// `None` before it comes again.
    encoded: Option<Encoded>,
}

#[derive(Debug)]
struct Encoded {
    bytes: Vec<u8>,
    /// Each place of an id's number: which id, and where.
    places: Vec<(usize, usize)>,
}

impl Shapes {
    /// Returns the encoding of `build(operation)`.
    pub(super) fn encode(
        &self,
        operation: &Operation,
        build: impl Fn(&Operation) -> Document,
    ) -> Result<Vec<u8>, Error> {
        let anew = || encode(&build(operation));
        if !operation.is_simple() {
            return anew();
        }
        let mut shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shapes.iter_mut().position(|shape| shape.is_of(operation));
        let Some(mut shape) = known.and_then(|known| shapes.remove(known)) else {
            if shapes.len() == SHAPES_MOST {
                shapes.pop_front();
            }
            shapes.push_back(Shape {
                operation: operation.clone(),
                encoded: None,
            });
            drop(shapes);
            return anew();
        };
        if shape.encoded.is_none() {
            shape.encoded = Encoded::new(operation, &build);
        }
        let filled_in = shape.encoded.as_ref().map(|encoded| encoded.filled_in(operation));
        shapes.push_back(shape);
        drop(shapes);
        debug_assert!(filled_in.is_none() || filled_in == anew().ok(), "{operation:?}");
        filled_in.map_or_else(anew, Ok)
    }
}

impl Shape {
    /// Whether an operation differs from the last one of the shape in nothing but the numbers of its ids, and takes
    /// these over: two operations with the same ids can be compared as they are.
    fn is_of(&mut self, operation: &Operation) -> bool {
        for (last, id) in ids_mut(&mut self.operation).into_iter().zip(ids(operation)) {
            match (last, id) {
                (Some(last), Some(id)) if shape(last) == shape(id) => id.clone_into(last),
                (None, None) => {}
                _ => return false,
            }
        }
        self.operation == *operation
    }
}

impl Encoded {
    /// Encodes an operation; `None` if the encoding has a number otherwise than as it is. That nothing else in it depends
    /// on one is seen in debug builds, where every use is compared with an encoding that is made anew.
    fn new(operation: &Operation, build: impl Fn(&Operation) -> Document) -> Option<Self> {
        let [bytes, other] = MARKS.map(|marks| encode(&build(&marked(operation, marks))).ok());
        let (bytes, other) = (bytes?, other?);
        let mut places = Vec::new();
        let mut at = 0;
        while at < bytes.len().max(other.len()) {
            if bytes.get(at) == other.get(at) {
                at += 1;
                continue;
            }
            let mark = *bytes.get(at)?;
            let which = MARKS[0].iter().position(|each| *each == mark)?;
            let end = at + number(ids(operation)[which]?).len();
            if bytes.get(at..end)?.iter().any(|byte| *byte != mark) {
                return None;
            }
            places.push((which, at));
            at = end;
        }
        Some(Self { bytes, places })
    }

    fn filled_in(&self, operation: &Operation) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes.len() + COMPLETED);
        bytes.extend_from_slice(&self.bytes);
        for (which, at) in &self.places {
            let number = ids(operation)[*which].map_or("", |id| number(id));
            bytes[*at..*at + number.len()].copy_from_slice(number.as_bytes());
        }
        bytes
    }
}

/// Returns the ids of a simple operation: its own, that of the entry that leaves, and that of the one it requests.
fn ids(
    Operation {
        id, leave, requests, ..
    }: &Operation,
) -> [Option<&String>; 3] {
    let requested = requests.iter().find_map(|it| it.entries.first());
    [Some(id), leave.first(), requested.map(|entry| &entry.id)]
}

/// Returns the same ids, to be changed.
fn ids_mut(
    Operation {
        id, leave, requests, ..
    }: &mut Operation,
) -> [Option<&mut String>; 3] {
    let requested = requests.iter_mut().find_map(|it| it.entries.first_mut());
    let requested = requested.map(|entry| &mut entry.id);
    [Some(id), leave.first_mut(), requested]
}

/// Returns the number of digits at the end of an id, and what comes before them.
fn shape(id: &str) -> (usize, &str) {
    let digits = number(id).len();
    (digits, &id[..id.len() - digits])
}

/// Returns the operation with marks in place of the numbers in its ids.
fn marked(operation: &Operation, marks: [u8; 3]) -> Operation {
    let mut marked = operation.clone();
    for (id, mark) in ids_mut(&mut marked).into_iter().zip(marks) {
        let Some(id) = id else { continue };
        let digits = number(id).len();
        id.truncate(id.len() - digits);
        id.extend(std::iter::repeat_n(char::from(mark), digits));
    }
    marked
}

/// Returns the digits at the end of an id, after the id of its session, which may end in digits too.
fn number(id: &str) -> &str {
    let last = id.rsplit(['-', '.']).next().filter(|last| last.len() < id.len());
    let is_number = |last: &&str| last.bytes().all(|byte| byte.is_ascii_digit());
    last.filter(is_number).unwrap_or_default()
}

pub(super) fn encode(document: &Document) -> Result<Vec<u8>, Error> {
    let encoded = RawDocumentBuf::try_from(document).map_err(Error::custom)?;
    Ok(encoded.into_bytes())
}

/// Returns a command with its filter and its limit in milliseconds. In BSON a document is its length, its fields and a
/// zero, and a field is its type, its name and its value.
pub(super) fn completed(mut command: Vec<u8>, query: &Document, limit: i32) -> Result<RawDocumentBuf, Error> {
    command.pop();
    command.extend_from_slice(b"\x03query\0");
    query.to_writer(&mut command).map_err(Error::custom)?;
    command.extend(b"\x10maxTimeMS\0".iter().chain(&limit.to_le_bytes()).chain(b"\0"));
    let length = i32::try_from(command.len()).map_err(Error::custom)?;
    command.splice(..4, length.to_le_bytes());
    RawDocumentBuf::from_bytes(command).map_err(Error::custom)
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::protocol::{CapacityIs, Expects, Kind, Owner, Request, Requests, fixtures};

    fn release(number: u32) -> Operation {
        Operation {
            leave: vec![format!("0123456789a1-{number}")],
            expects: Expects::Alone,
            ..Operation::blank(format!("0123456789a1.{}", number + 1), 1_000)
        }
    }

    fn request(number: u32, reason: &str) -> Operation {
        let entry = Request {
            reserve: 64,
            owner: Owner {
                reason: Some(reason.to_owned()),
                ..Owner::default()
            },
            ..fixtures::request(&format!("0123456789a1-{number}"))
        };
        Operation {
            requests: Some(Requests {
                kind: Kind::Mutex,
                capacity: 1,
                by: CapacityIs::Demanded,
                entries: vec![entry],
                adopts: None,
            }),
            ..Operation::blank(format!("0123456789a1.{}", number + 1), 1_000)
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

    fn is_encoded(shapes: &Shapes, operation: &Operation) -> bool {
        let mut shapes = shapes.0.lock().unwrap();
        let known = shapes
            .iter_mut()
            .find_map(|shape| shape.is_of(operation).then_some(shape));
        known.is_some_and(|shape| shape.encoded.is_some())
    }

    #[test]
    fn what_comes_again_with_other_numbers_is_filled_in() {
        let shapes = Shapes::default();
        // Those with a further digit are of another shape.
        for number in 8..120 {
            for operation in [
                release(number),
                request(number, "0123456789a1-31 0123456789a1.32 \u{1}\u{1}\u{4}"),
            ] {
                let bytes = shapes.encode(&operation, build).unwrap();
                assert_eq!(bytes, encode(&build(&operation)).unwrap(), "{operation:?}");
            }
        }
        assert!(is_encoded(&shapes, &release(119)) && is_encoded(&shapes, &release(50)));
        assert!(!is_encoded(&shapes, &request(119, "another")));
        let places = Encoded::new(&release(119), build).unwrap().places;
        assert_eq!(places.len(), 3, "the operation's number, and twice that of the entry");
    }

    #[test]
    fn what_differs_in_more_than_the_numbers_is_of_another_shape() {
        let different: [fn(&mut Operation); 7] = [
            |operation| operation.keep += 1,
            |operation| operation.id = "1123456789a1.32".to_owned(),
            |operation| operation.expects = Expects::Alone,
            |operation| operation.history = 1,
            |operation| operation.leave.push("0123456789a1-7".to_owned()),
            |operation| operation.requests.as_mut().unwrap().capacity = 2,
            |operation| operation.requests.as_mut().unwrap().entries[0].owner.pid += 1,
        ];
        let shapes = Shapes::default();
        for _ in 0..2 {
            shapes.encode(&request(31, "a"), build).unwrap();
        }
        for change in different {
            let mut other = request(32, "a");
            assert!(is_encoded(&shapes, &other));
            change(&mut other);
            assert!(!is_encoded(&shapes, &other), "{other:?}");
        }
    }

    #[test]
    fn few_shapes_are_remembered_and_those_in_use_longest() {
        let shapes = Shapes::default();
        for number in 100..400 {
            shapes.encode(&release(number), build).unwrap();
            shapes
                .encode(&request(number, &format!("invoice {number}")), build)
                .unwrap();
        }
        assert_eq!(shapes.0.lock().unwrap().len(), SHAPES_MOST);
        assert!(is_encoded(&shapes, &release(400)));
    }

    /// Where a number does not stand as it is, nothing is remembered.
    #[test]
    fn an_encoding_without_its_ids_is_made_each_time() {
        let cut = |operation: &Operation| doc! { "id": &operation.id[..operation.id.len() - 1] };
        assert!(Encoded::new(&release(211), cut).is_none());
        let shapes = Shapes::default();
        for number in [211, 212, 213] {
            let bytes = shapes.encode(&release(number), cut).unwrap();
            assert_eq!(bytes, encode(&cut(&release(number))).unwrap());
        }
    }
}
