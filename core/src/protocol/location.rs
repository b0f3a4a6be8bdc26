//! The place of a lock's fields in its document.

use mongodb::bson::{Bson, Document, doc};

use super::{State, document::Malformed};

/// The root of the document, as in the collection of the locks; or a sub-document in a document of the user's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The path with a dot at its end; empty for the root.
    prefix: String,
}

impl Location {
    /// Returns the location under a path. Under `a.b` the lock is the sub-document `b` of the sub-document `a`.
    pub fn under(path: &str) -> Self {
        Self {
            prefix: format!("{path}."),
        }
    }

    /// Returns the location in the value of an expression's variable: of it, only [`value`](Self::value) is of use.
    pub(crate) fn of_variable(name: &str) -> Self {
        Self {
            prefix: format!("${name}."),
        }
    }

    /// Returns the location under one more name, which must have no dot.
    pub fn inside(&self, name: &str) -> Self {
        Self {
            prefix: format!("{}{name}.", self.prefix),
        }
    }

    pub fn is_root(&self) -> bool {
        self.prefix.is_empty()
    }

    /// Returns the path of the lock's sub-document; empty for the root.
    pub fn path(&self) -> &str {
        self.prefix.strip_suffix('.').unwrap_or_default()
    }

    /// Returns the name of a lock's field in filters and projections: `a.b.holders`.
    pub fn key(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Returns the value of a lock's field in expressions: `$a.b.holders`.
    pub fn value(&self, field: &str) -> String {
        format!("${}{field}", self.prefix)
    }

    /// Returns the segments of the path; none at the root.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.prefix.split_terminator('.')
    }

    /// Returns the lock's sub-document, if there is one.
    pub fn lock<'a>(&self, document: &'a Document) -> Option<&'a Document> {
        let mut segments = self.segments();
        segments.try_fold(document, |document, segment| document.get_document(segment).ok())
    }

    /// Returns the lock's sub-document, if there is one, to be changed.
    pub fn lock_mut<'a>(&self, document: &'a mut Document) -> Option<&'a mut Document> {
        let mut segments = self.segments();
        segments.try_fold(document, |document, segment| document.get_document_mut(segment).ok())
    }

    /// Returns the path of a value that is on the way to the lock, or in its place, and is no sub-document.
    pub fn obstacle(&self, document: &Document) -> Option<String> {
        let mut inner = document;
        for (depth, segment) in self.segments().enumerate() {
            match inner.get(segment) {
                Some(Bson::Document(document)) => inner = document,
                // The server takes these for missing too.
                Some(Bson::Null | Bson::Undefined) | None => return None,
                Some(_) => {
                    let path: Vec<&str> = self.segments().take(depth + 1).collect();
                    return Some(path.join("."));
                }
            }
        }
        None
    }

    /// Reads the lock in the document, if there is one: a sub-document without any field of a lock has none. An error if
    /// there can be none as the document is.
    pub fn state(&self, document: &Document) -> Result<Option<State>, Malformed> {
        if let Some(path) = self.obstacle(document) {
            return Err(Malformed::occupied(path));
        }
        let lock = self.lock(document).filter(|lock| State::is_in(lock));
        lock.map(State::from_document).transpose()
    }

    /// Reads what is in the place of the lock: the document itself at the root. `None` if there is nothing of a lock,
    /// also where another value is on the way to that place, of which a projection shows nothing.
    pub fn found(&self, document: &Document) -> Option<Result<State, Malformed>> {
        if self.is_root() {
            return Some(State::from_document(document));
        }
        match self.obstacle(document) {
            Some(path) if path != self.path() => None,
            _ => self.state(document).transpose(),
        }
    }

    /// Removes the lock's sub-document, so that the rest is the user's.
    pub fn take_lock(&self, document: &mut Document) -> Option<Document> {
        let mut segments: Vec<&str> = self.segments().collect();
        let last = segments.pop()?;
        let parent = segments
            .into_iter()
            .try_fold(document, |document, segment| document.get_document_mut(segment).ok())?;
        match parent.remove(last)? {
            Bson::Document(lock) => Some(lock),
            _ => None,
        }
    }

    /// Sets fields of the lock's sub-document, and creates it if it is missing. Returns `false` if another value is in
    /// its place.
    pub fn set_lock(&self, document: &mut Document, fields: Document) -> bool {
        let mut inner = document;
        for segment in self.segments() {
            let entry = inner.entry(segment.to_owned());
            match entry.or_insert_with(|| Bson::Document(Document::new())) {
                Bson::Document(document) => inner = document,
                _ => return false,
            }
        }
        inner.extend(fields);
        true
    }

    /// Returns an expression for the whole document with these fields set in its lock, and nothing else touched.
    pub(crate) fn merged(&self, fields: impl IntoIterator<Item = Bson>) -> Bson {
        let lock = self.merged_lock(fields);
        self.with_lock(lock)
    }

    /// Returns an expression for the lock's sub-document with these fields set.
    pub(crate) fn merged_lock(&self, fields: impl IntoIterator<Item = Bson>) -> Bson {
        let mut inputs = vec![self.whole(self.segments().count())];
        inputs.extend(fields);
        Bson::from(doc! { "$mergeObjects": inputs })
    }

    /// Returns an expression for the whole document with this value in the place of the lock's sub-document.
    pub(crate) fn with_lock(&self, lock: Bson) -> Bson {
        let mut segments: Vec<&str> = self.segments().collect();
        let mut whole = lock;
        while let Some(segment) = segments.pop() {
            let outer = self.whole(segments.len());
            whole = Bson::from(doc! { "$mergeObjects": [outer, { segment: whole }] });
        }
        whole
    }

    /// Returns the value of the sub-document that the first segments lead to.
    fn whole(&self, depth: usize) -> Bson {
        if depth == 0 {
            return Bson::from("$$ROOT");
        }
        let path: Vec<&str> = self.segments().take(depth).collect();
        Bson::from(format!("${}", path.join(".")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::{MUTEX, holder, lock};

    #[test]
    fn a_lock_is_set_on_its_path_unless_another_value_is_in_the_way() {
        let nested = Location::under("a.b");
        let mut document = doc! { "_id": 1 };
        assert!(nested.set_lock(&mut document, doc! { "token": 2 }));
        assert!(nested.set_lock(&mut document, doc! { "wake": "x" }));
        assert_eq!(document, doc! { "_id": 1, "a": { "b": { "token": 2, "wake": "x" } } });
        nested.lock_mut(&mut document).unwrap().insert("token", 3);
        assert_eq!(nested.lock(&document), Some(&doc! { "token": 3, "wake": "x" }));
        let mut occupied = doc! { "a": 7 };
        assert!(!nested.set_lock(&mut occupied, doc! { "token": 2 }));
        assert_eq!(occupied, doc! { "a": 7 });
        assert_eq!(nested.lock_mut(&mut occupied), None);
    }

    #[test]
    fn a_lock_is_read_where_it_is_and_what_is_in_its_place_is_named() {
        let nested = Location::under("a.b");
        let with = |value: Bson| doc! { "_id": 1, "a": { "b": value } };
        let held = lock(MUTEX, [holder("a-1", 7)], []);
        let locked = with(held.fields().into());
        assert_eq!(nested.state(&locked), Ok(Some(held.clone())));
        assert_eq!(nested.found(&locked), Some(Ok(held.clone())));
        let of_the_user = with(doc! { "size": 7 }.into());
        for free in [doc! { "_id": 1 }, with(Bson::Null), of_the_user] {
            assert_eq!(nested.state(&free), Ok(None), "{free}");
            assert_eq!(nested.found(&free), None, "{free}");
        }
        let half = with(doc! { "token": 2 }.into());
        assert!(matches!(nested.found(&half), Some(Err(_))) && nested.state(&half).is_err());

        let occupied = |path: &str| Malformed::occupied(path.to_owned());
        let in_its_place = with(Bson::from(7));
        assert_eq!(nested.found(&in_its_place), Some(Err(occupied("a.b"))));
        assert_eq!(nested.state(&in_its_place), Err(occupied("a.b")));
        // A projection shows nothing of a value on the way.
        let on_the_way = doc! { "a": 7 };
        assert_eq!(nested.found(&on_the_way), None);
        assert_eq!(nested.state(&on_the_way), Err(occupied("a")));

        // At the root any document is taken for a lock.
        let root = Location::default();
        assert_eq!(root.found(&held.to_document("x")), Some(Ok(held)));
        assert!(matches!(root.found(&doc! { "size": 7 }), Some(Err(_))));
    }
}
