//! The state of a lock as a BSON document, and back.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{Holder, Identity, Kind, Owner, ServerTime, State, Waiter};

/// The most permits that a lock can have; of so many any number adds up to one that an `i64` holds.
const PERMITS_MOST: i64 = u32::MAX as i64;

/// No number in a lock is larger: far more than the clock's microseconds, and what is added to it stays an `i64`.
const NUMBER_MOST: i64 = i64::MAX / 2;

/// A document under a lock's name that is not the document of a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` {problem}")]
pub(crate) struct Malformed {
    field: String,
    problem: &'static str,
}

impl Malformed {
    /// Where the lock is to be in a document is something else.
    pub(crate) fn occupied(path: String) -> Self {
        Self {
            field: path,
            problem: "is not a sub-document",
        }
    }
}

impl From<ServerTime> for Bson {
    fn from(time: ServerTime) -> Self {
        Self::DateTime(DateTime::from_millis(time.0))
    }
}

impl Owner {
    pub(crate) fn to_document(&self) -> Document {
        let mut owner = doc! { "host": &self.host, "pid": self.pid };
        for (field, value) in [("label", &self.label), ("reason", &self.reason), ("value", &self.value)] {
            if let Some(value) = value {
                owner.insert(field, value);
            }
        }
        if let Some(Identity { id, born }) = &self.identity {
            owner.insert("id", id);
            owner.insert("born", *born);
        }
        owner
    }

    /// Nothing is decided by what is read of an owner, so whatever is missing in it is just left empty.
    fn from_document(owner: Option<&Document>) -> Self {
        let text = |field| owner.and_then(|owner| owner.get_str(field).ok()).map(str::to_owned);
        let number = |field| {
            owner
                .and_then(|owner| owner.get(field))
                .and_then(whole)
                .unwrap_or_default()
        };
        Self {
            host: text("host").unwrap_or_default(),
            pid: number("pid"),
            identity: text("id").map(|id| Identity {
                id,
                born: number("born"),
            }),
            label: text("label"),
            reason: text("reason"),
            value: text("value"),
        }
    }
}

impl State {
    /// Reads the lock's fields of a document; other fields are passed over.
    pub(crate) fn from_document(document: &Document) -> Result<Self, Malformed> {
        let fields = Fields { document, path: "" };
        let kind = Kind::parse(fields.text("kind")?).ok_or_else(|| fields.malformed("kind", "is no kind of lock"))?;
        let mut holders = Vec::new();
        for holder in fields.list("holders")? {
            let fields = Fields {
                document: holder,
                path: "holders.",
            };
            holders.push(Holder {
                id: fields.text("id")?.to_owned(),
                permits: fields.permits("permits")?,
                lease: fields.whole("lease")?,
                claim: fields.whole("claim")?,
                since: fields.time("since")?,
                until: fields.time("until")?,
                owner: Owner::from_document(holder.get_document("owner").ok()),
                token: fields.whole("token")?,
            });
        }
        let mut queue = Vec::new();
        for waiter in fields.list("queue")? {
            let fields = Fields {
                document: waiter,
                path: "queue.",
            };
            queue.push(Waiter {
                id: fields.text("id")?.to_owned(),
                permits: fields.permits("permits")?,
                lease: fields.whole("lease")?,
                claim: fields.whole("claim")?,
                since: fields.time("since")?,
                until: fields.time("until")?,
                owner: Owner::from_document(waiter.get_document("owner").ok()),
            });
        }
        Ok(Self {
            kind,
            capacity: fields.permits("capacity")?,
            token: fields.whole("token")?,
            holders,
            queue,
            wake: fields.text("wake")?.to_owned(),
            version: fields.whole("version")?,
            at: fields.time("at")?,
            purge_at: fields.time("purge_at")?,
            broken: document.get("broken").and_then(whole),
            adopted: document
                .get_array("adopted")
                .map(|tokens| tokens.iter().filter_map(whole).collect())
                .unwrap_or_default(),
        })
    }

    /// The document of the lock `name`, field for field as the pipelines write it.
    #[cfg(test)]
    pub(crate) fn to_document(&self, name: &str) -> Document {
        let mut document = doc! { "_id": name };
        document.extend(self.fields());
        document
    }

    /// The lock's fields, as the pipelines write them.
    pub(crate) fn fields(&self) -> Document {
        let holders: Vec<Bson> = self
            .holders
            .iter()
            .map(|holder| {
                Bson::from(doc! {
                    "id": &holder.id, "permits": holder.permits, "lease": holder.lease, "claim": holder.claim,
                    "since": holder.since, "until": holder.until, "owner": holder.owner.to_document(),
                    "token": holder.token,
                })
            })
            .collect();
        let queue: Vec<Bson> = self
            .queue
            .iter()
            .map(|waiter| {
                Bson::from(doc! {
                    "id": &waiter.id, "permits": waiter.permits, "lease": waiter.lease, "claim": waiter.claim,
                    "since": waiter.since, "until": waiter.until, "owner": waiter.owner.to_document(),
                })
            })
            .collect();
        let mut document = doc! {
            "kind": self.kind.as_str(), "capacity": self.capacity, "token": self.token,
            "holders": holders, "queue": queue, "wake": &self.wake,
            "version": self.version, "at": self.at, "purge_at": self.purge_at,
        };
        if let Some(broken) = self.broken {
            document.insert("broken", broken);
        }
        if !self.adopted.is_empty() {
            document.insert("adopted", &self.adopted);
        }
        document
    }
}

/// Typed access to the fields of one (sub-)document, with errors that name the path.
struct Fields<'a> {
    document: &'a Document,
    path: &'static str,
}

impl<'a> Fields<'a> {
    fn malformed(&self, field: &str, problem: &'static str) -> Malformed {
        Malformed {
            field: format!("{}{field}", self.path),
            problem,
        }
    }

    fn text(&self, field: &str) -> Result<&'a str, Malformed> {
        self.document
            .get_str(field)
            .map_err(|_| self.malformed(field, "is not a string"))
    }

    fn whole(&self, field: &str) -> Result<i64, Malformed> {
        let value = self.document.get(field).and_then(whole);
        let value = value.ok_or_else(|| self.malformed(field, "is not a whole number"))?;
        if (0..=NUMBER_MOST).contains(&value) {
            Ok(value)
        } else {
            Err(self.malformed(field, "is negative or far too large"))
        }
    }

    /// As many as a holder has at least; with none or fewer it would keep nobody out.
    fn permits(&self, field: &str) -> Result<i64, Malformed> {
        let permits = self.whole(field)?;
        if (1..=PERMITS_MOST).contains(&permits) {
            Ok(permits)
        } else {
            Err(self.malformed(field, "is no number of permits"))
        }
    }

    fn time(&self, field: &str) -> Result<ServerTime, Malformed> {
        let time = self
            .document
            .get_datetime(field)
            .map_err(|_| self.malformed(field, "is not a date"))?;
        Ok(ServerTime(time.timestamp_millis()))
    }

    fn list(&self, field: &str) -> Result<Vec<&'a Document>, Malformed> {
        let list = self
            .document
            .get_array(field)
            .map_err(|_| self.malformed(field, "is not an array"))?;
        let documents = list.iter().map(|entry| entry.as_document());
        documents
            .map(|entry| entry.ok_or_else(|| self.malformed(field, "has an entry that is no document")))
            .collect()
    }
}

fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(value) => Some(i64::from(*value)),
        Bson::Int64(value) => Some(*value),
        // A number that somebody set by hand in a shell.
        #[allow(
            clippy::cast_possible_truncation,
            reason = "whole, and within what a double holds exactly"
        )]
        Bson::Double(value) if value.fract() == 0.0 && value.abs() < 9e15 => Some(*value as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            kind: Kind::Semaphore,
            capacity: 3,
            token: 12,
            holders: vec![Holder {
                id: "a-1".into(),
                permits: 2,
                token: 12,
                since: ServerTime(5),
                until: ServerTime(50),
                lease: 45,
                claim: 9,
                owner: Owner {
                    host: "h".into(),
                    pid: 4,
                    label: None,
                    reason: Some("why".into()),
                    value: Some("v".into()),
                    identity: Some(Identity {
                        id: "worker".into(),
                        born: 3,
                    }),
                },
            }],
            queue: vec![Waiter {
                id: "b-1".into(),
                permits: 3,
                lease: 45,
                claim: 9,
                since: ServerTime(6),
                until: ServerTime(51),
                owner: Owner::default(),
            }],
            wake: "a.1:;".into(),
            version: 40,
            at: ServerTime(7),
            purge_at: ServerTime(1000),
            broken: Some(11),
            adopted: vec![9, 10],
        }
    }

    #[test]
    fn round_trips() {
        assert_eq!(State::from_document(&state().to_document("x")), Ok(state()));
    }

    #[test]
    fn every_missing_or_foreign_field_is_named() {
        let whole = state().to_document("x");
        for field in [
            "kind", "capacity", "token", "holders", "queue", "wake", "version", "purge_at",
        ] {
            let mut document = whole.clone();
            document.remove(field);
            let error = State::from_document(&document).unwrap_err();
            assert!(error.to_string().contains(&format!("`{field}`")), "{error}");
            document.insert(field, Bson::Symbol("no".into()));
            State::from_document(&document).unwrap_err();
        }
        for (field, number) in [
            ("token", -1),
            ("version", i64::MAX),
            ("capacity", 0),
            ("capacity", 1 << 32),
        ] {
            let mut document = whole.clone();
            document.insert(field, number);
            let error = State::from_document(&document).unwrap_err();
            assert!(error.to_string().contains(&format!("`{field}`")), "{error}");
        }
        for (list, field) in [
            ("holders", "until"),
            ("holders", "token"),
            ("queue", "claim"),
            ("queue", "id"),
        ] {
            let mut document = whole.clone();
            let entry = document.get_array_mut(list).unwrap()[0].as_document_mut().unwrap();
            entry.insert(field, Bson::Undefined);
            let error = State::from_document(&document).unwrap_err();
            assert!(error.to_string().contains(&format!("`{list}.{field}`")), "{error}");
        }
    }
}
