//! Conversion between the state of a lock and its BSON document.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{Awaited, Ended, Entry, Evict, Expects, Identity, Operation, Owner, ServerTime, Shown, State, ended, kind};

/// Maximum permits of a lock, so that the sum of any number of them fits an `i64`.
const PERMITS_MOST: i64 = u32::MAX as i64;

/// Maximum of every number in a lock: far more than the clock's microseconds, and a sum with it still fits an `i64`.
pub(super) const NUMBER_MOST: i64 = i64::MAX / 2;

/// Bound of the doubles that are read as whole numbers: below it a number that was set by hand in a shell is exact.
pub(super) const DOUBLE_MOST: f64 = 9e15;

/// Maximum size of the `_id` of a document of the user's own, in bytes of BSON. A renewal names up to a thousand
/// documents in one command, which has at most 16 MB; and each event of a change stream has the `_id` three times.
pub const ID_MOST: usize = 8_192;

/// Returns the size of an `_id` as BSON in bytes, without its field name. For numbers it is an upper limit.
pub fn size_of_id(id: &Bson) -> usize {
    match id {
        // The text has a length in front and a NUL at the end.
        Bson::String(text) => text.len() + 5,
        Bson::Int32(_) | Bson::Int64(_) | Bson::ObjectId(_) => 12,
        other => {
            let mut bytes = Vec::new();
            // Writing to memory fails only for values that are no BSON; no server has one as an id.
            let _ = doc! { "": other }.to_writer(&mut bytes);
            // Minus the document's length, the type, the empty name, and the end.
            bytes.len().saturating_sub(7)
        }
    }
}

/// The protocol that this client speaks: the largest number of a document that it acts on. [`super`] has the rules.
///
/// The second is that of semaphores whose number of permits was set: it changes while they are in use, and stays while
/// they are free. All other documents are of the first.
pub(crate) const PROTOCOL: i64 = 2;

/// Returns the protocol of a document, by whether its capacity was set.
pub(super) fn protocol(is_set: bool) -> i64 {
    if is_set { PROTOCOL } else { 1 }
}

/// A document under a lock's name that can't be read as a lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is not the document of a lock.
    #[error("field `{field}` {problem}")]
    Field { field: String, problem: &'static str },
    /// It is the document of a lock, of a later protocol.
    #[error("it uses protocol {found}; this version of watchlock supports up to protocol {PROTOCOL}")]
    Newer { found: i64 },
}

impl Malformed {
    /// A value that is no sub-document is at the path of the lock, or on the way to it.
    pub fn occupied(path: String) -> Self {
        Self::Field {
            field: path,
            problem: "is not a sub-document",
        }
    }

    /// Returns whether it is the end of an operation: it is for a request in full, and for an operator, who would take
    /// another answer for that of a lock; and one of a later protocol for every change. A request that expects a free
    /// lock is followed by one in full, and what only removes entries has none in such a document.
    pub fn ends(&self, operation: &Operation) -> bool {
        let changes = operation.change.is_some() || operation.evict != Evict::Nobody;
        let requests = operation.requests.is_some() && operation.expects == Expects::Nothing;
        operation.breaks() || requests || (changes && self.is_newer())
    }

    /// Returns whether a later version of this library can read it.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

impl From<ServerTime> for Bson {
    fn from(time: ServerTime) -> Self {
        Self::DateTime(DateTime::from_millis(time.0))
    }
}

impl Owner {
    pub fn to_document(&self) -> Document {
        let mut owner = doc! { "host": &self.host, "pid": self.pid };
        for (field, value) in [("label", &self.label), ("reason", &self.reason), ("value", &self.value)] {
            if let Some(value) = value {
                owner.insert(field, value);
            }
        }
        if self.proclaimed != 0 {
            owner.insert("proclaimed", self.proclaimed);
        }
        if let Some(Identity { id, born }) = &self.identity {
            owner.insert("id", id);
            owner.insert("born", *born);
        }
        owner
    }

    /// Reads an owner, and leaves missing fields empty: no decision depends on what is read here.
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
            proclaimed: number("proclaimed"),
        }
    }
}

impl Entry {
    fn to_document(&self) -> Document {
        let mut entry = doc! {
            "id": &self.id, "permits": self.permits, "lease": self.lease, "claim": self.claim,
            "since": self.since, "until": self.until, "owner": self.owner.to_document(),
        };
        if let Some(released) = self.released {
            entry.insert("released", released);
        }
        if let Some(shown) = &self.shown {
            let awaits = shown.awaits.as_ref().map(Awaited::to_document);
            entry.extend(doc! { "idle": shown.is_idle, "shown": shown.as_of, "awaits": awaits });
        }
        entry
    }
}

impl Awaited {
    pub(super) fn to_document(&self) -> Document {
        doc! { "lock": &self.lock, "wait": self.wait }
    }

    fn from_document(document: &Document) -> Option<Self> {
        Some(Self {
            lock: document.get_str("lock").ok()?.to_owned(),
            wait: document.get("wait").and_then(whole)?,
        })
    }
}

impl Ended {
    fn to_document(&self) -> Document {
        doc! {
            "token": self.token, "permits": self.permits, "since": self.since, "owner": self.owner.to_document(),
            "ended": self.ended, "how": self.how.as_str(),
        }
    }

    /// Reads an end; `None` if this version does not know it. No decision depends on it.
    fn from_document(document: &Document) -> Option<Self> {
        let fields = Fields {
            document,
            path: "ends.",
        };
        Some(Self {
            token: fields.whole("token").ok()?,
            permits: fields.permits("permits").ok()?,
            since: fields.time("since").ok()?,
            owner: Owner::from_document(document.get_document("owner").ok()),
            ended: fields.time("ended").ok()?,
            how: ended::read(fields.text("how").ok()?)?,
        })
    }
}

impl State {
    /// Returns whether a document has any field of a lock, or the number of a later protocol, whose fields are not known.
    pub fn is_in(document: &Document) -> bool {
        const FIELDS: [&str; 9] = [
            "kind", "capacity", "token", "holders", "queue", "wake", "version", "at", "purge_at",
        ];
        let is_newer = || Fields { document, path: "" }.protocol().is_err();
        FIELDS.iter().any(|field| document.contains_key(field)) || is_newer()
    }

    /// Reads the lock's fields of a document, and ignores other fields.
    pub fn from_document(document: &Document) -> Result<Self, Malformed> {
        let fields = Fields { document, path: "" };
        fields.protocol()?;
        let kind = kind::read(fields.text("kind")?).ok_or_else(|| fields.malformed("kind", "is not a kind of lock"))?;
        let holders = fields.entries("holders", "holders.")?.map(|fields| {
            let entry = fields?;
            let holder = entry.document;
            Ok(Entry {
                token: entry.whole("token")?,
                // To the server a `null` is as good as nothing.
                released: match holder.get("released") {
                    None | Some(Bson::Null) => None,
                    Some(_) => Some(entry.time("released")?),
                },
                // No decision depends on it. Earlier versions show it without a number.
                shown: holder.get_bool("idle").ok().map(|is_idle| Shown {
                    is_idle,
                    awaits: holder.get_document("awaits").ok().and_then(Awaited::from_document),
                    as_of: holder.get("shown").and_then(whole).unwrap_or_default(),
                }),
                ..entry.entry()?
            })
        });
        let holders = holders.collect::<Result<_, _>>()?;
        let queue = fields.entries("queue", "queue.")?.map(|fields| fields?.entry());
        let queue = queue.collect::<Result<_, _>>()?;
        Ok(Self {
            kind,
            capacity: fields.permits("capacity")?,
            is_set: fields.document.get("protocol").and_then(whole) == Some(PROTOCOL),
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
            evicted: document.get("evicted").and_then(whole),
            ends: document
                .get_array("ends")
                .map(|ends| {
                    ends.iter()
                        .filter_map(Bson::as_document)
                        .filter_map(Ended::from_document)
                        .collect()
                })
                .unwrap_or_default(),
        })
    }

    /// Returns the document of the lock `name`, field for field as the pipelines write it.
    pub fn to_document(&self, name: &str) -> Document {
        let mut document = doc! { "_id": name };
        document.extend(self.fields());
        document
    }

    /// Returns the lock's fields, as the pipelines write them.
    pub fn fields(&self) -> Document {
        let mut holders: Vec<Document> = self.holders.iter().map(Entry::to_document).collect();
        for (document, holder) in holders.iter_mut().zip(&self.holders) {
            document.insert("token", holder.token);
        }
        let queue: Vec<Document> = self.queue.iter().map(Entry::to_document).collect();
        let mut document = doc! {
            "protocol": protocol(self.is_set), "kind": self.kind.as_str(), "capacity": self.capacity, "token": self.token,
            "holders": holders, "queue": queue, "wake": &self.wake,
            "version": self.version, "at": self.at, "purge_at": self.purge_at,
        };
        if let Some(broken) = self.broken {
            document.insert("broken", broken);
        }
        if !self.adopted.is_empty() {
            document.insert("adopted", &self.adopted);
        }
        if let Some(evicted) = self.evicted {
            document.insert("evicted", evicted);
        }
        if !self.ends.is_empty() {
            let ends = self.ends.iter().map(Ended::to_document);
            document.insert("ends", ends.collect::<Vec<_>>());
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
        Malformed::Field {
            field: format!("{}{field}", self.path),
            problem,
        }
    }

    /// Checks the number of the protocol, before anything else is read: a later protocol may have other fields.
    fn protocol(&self) -> Result<(), Malformed> {
        // The first builds wrote none.
        let Some(value) = self.document.get("protocol") else {
            return Ok(());
        };
        match whole(value) {
            Some(1..=PROTOCOL) => Ok(()),
            Some(found) if found > PROTOCOL => Err(Malformed::Newer { found }),
            _ => Err(self.malformed("protocol", "is not a protocol number")),
        }
    }

    /// Reads an entry as it is in the queue.
    fn entry(&self) -> Result<Entry, Malformed> {
        Ok(Entry {
            id: self.text("id")?.to_owned(),
            permits: self.permits("permits")?,
            lease: self.whole("lease")?,
            claim: self.whole("claim")?,
            since: self.time("since")?,
            until: self.time("until")?,
            owner: Owner::from_document(self.document.get_document("owner").ok()),
            token: 0,
            released: None,
            shown: None,
        })
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

    /// Reads a number of permits: at least one, as a holder with fewer would keep nobody out.
    fn permits(&self, field: &str) -> Result<i64, Malformed> {
        let permits = self.whole(field)?;
        if (1..=PERMITS_MOST).contains(&permits) {
            Ok(permits)
        } else {
            Err(self.malformed(field, "is not a number of permits"))
        }
    }

    fn time(&self, field: &str) -> Result<ServerTime, Malformed> {
        ServerTime::in_field(self.document, field).ok_or_else(|| self.malformed(field, "is not a date"))
    }

    fn entries(
        &self,
        list: &'a str,
        path: &'static str,
    ) -> Result<impl Iterator<Item = Result<Fields<'a>, Malformed>>, Malformed> {
        let entries = self.document.get_array(list);
        let entries = entries.map_err(|_| self.malformed(list, "is not an array"))?;
        Ok(entries.iter().map(move |entry| match entry.as_document() {
            Some(document) => Ok(Fields { document, path }),
            None => Err(self.malformed(list, "has an entry that is not a document")),
        }))
    }
}

/// Reads a whole number of any numeric type.
pub fn whole(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(value) => Some(i64::from(*value)),
        Bson::Int64(value) => Some(*value),
        #[allow(
            clippy::cast_possible_truncation,
            reason = "whole, and within what a double holds exactly"
        )]
        Bson::Double(value) if value.fract() == 0.0 && value.abs() < DOUBLE_MOST => Some(*value as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::{super::fixtures, *};

    fn state() -> State {
        fixtures::lock(
            fixtures::PERMITS,
            [fixtures::kept("a-1", 12)],
            [fixtures::waiter("b-1")],
        )
    }

    #[test]
    fn a_later_protocol_is_told_by_both_numbers_and_read_no_further() {
        let mut document = state().to_document("x");
        document.remove("protocol");
        assert_eq!(State::from_document(&document), Ok(state()));
        for found in [Bson::from(3), Bson::from(3_i64), Bson::from(3.0)] {
            let error = State::from_document(&doc! { "protocol": found, "holders": "elsewhere" }).unwrap_err();
            assert!(error.is_newer());
            assert!(
                error.to_string().contains("protocol 3") && error.to_string().contains("up to protocol 2"),
                "{error}"
            );
        }
        for nonsense in [Bson::Null, Bson::from(0), Bson::from(1.5), Bson::from("1")] {
            document.insert("protocol", nonsense);
            let error = State::from_document(&document).unwrap_err();
            assert!(!error.is_newer() && error.to_string().contains("`protocol`"), "{error}");
        }
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
            ("holders", "released"),
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

    #[test]
    fn a_number_of_any_type_is_read_if_it_is_whole_and_exact() {
        for number in [Bson::Int32(-7), Bson::Int64(-7), Bson::Double(-7.0)] {
            assert_eq!(whole(&number), Some(-7), "{number:?}");
        }
        assert_eq!(whole(&Bson::Double(DOUBLE_MOST - 1.0)), Some(8_999_999_999_999_999));
        for other in [
            Bson::Double(7.5),
            Bson::Double(DOUBLE_MOST),
            Bson::Double(-DOUBLE_MOST),
            Bson::Double(f64::INFINITY),
            Bson::Double(f64::NAN),
            Bson::String("7".into()),
            Bson::Null,
        ] {
            assert_eq!(whole(&other), None, "{other:?}");
        }
    }

    #[test]
    fn the_size_of_an_id_is_never_less_than_that_of_its_value() {
        for (id, size) in [
            (Bson::String("abc".into()), 4 + 3 + 1),
            (Bson::ObjectId(ObjectId::from_bytes([7; 12])), 12),
            (Bson::Int32(7), 12),
            (Bson::Int64(7), 12),
            (Bson::Boolean(true), 1),
            (Bson::from(doc! { "a": 7 }), 4 + (1 + 2 + 4) + 1),
        ] {
            assert_eq!(size_of_id(&id), size, "{id:?}");
        }
    }
}
