//! Writes that a receiver refuses when they come from an earlier holder.
//!
//! [`View::fence`] makes a [`Fence`], whose writes are those of the driver; the guide has
//! [a page on them](crate::guide::fencing).

// The user's document remembers the largest fencing token that it was written under. A write selects the document only
// if that token is not larger than its own, and records its own in the same step; so a late write finds nothing to
// write to. As a write that selects nothing does not say why, the helpers check: first for a document that the user's
// filter selects and the fence refuses, then for one that the user's filter selects at all. If they find a document
// that the fence lets through, somebody wrote in between, and the write is repeated. So the result was true at one
// moment between call and return, even if others write in the meantime.

mod locked;
mod upsert;
mod write;

use std::sync::Arc;

use mongodb::{
    Collection,
    bson::{Bson, Document, doc},
    options::UpdateModifications,
    results::{DeleteResult, InsertOneResult, UpdateResult},
};

use crate::{
    documents,
    error::{FenceError, InvalidInput},
    handle::{View, target::IsOne},
    input::{check_document, check_path},
    protocol::document::whole,
    store::LockLayout,
    token::FencingToken,
    truncated_debug::shown_in_a_line,
    world::World,
};
pub use write::FencedWrite;
use write::Update;

/// Default field of the token.
const FIELD: &str = "fence";

impl<T: IsOne, W: World> View<T, W> {
    /// Returns a fence for writes to your own documents, which refuses earlier holders.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: mongodb::Client, locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use watchlock::errors::FenceError;
    ///
    /// let invoices = client.database("app").collection::<Document>("invoices");
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// let update = doc! { "$set": { "state": "billed" } };
    /// match handle.fence().update_one(&invoices, doc! { "_id": 42 }, update).await {
    ///     Ok(result) if result.matched_count == 0 => println!("there is no such invoice"),
    ///     Ok(_) => println!("written"),
    ///     Err(FenceError::Fenced { stored, .. }) => println!("too late: token {stored} has written"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        Fence {
            locked: self.seen.locked.clone(),
            ..Fence::new(self.token())
        }
    }
}

/// A fence keeps writes of earlier holders of a lock away from a document: the document remembers, in a field of its
/// own, the largest fencing token that it was written under, and a write under a smaller one is refused.
///
/// Made by [`View::fence`]. It has only the token, not the lock: a receiver of the token in a message makes the same
/// fence with [`Fence::new`].
///
/// # Guarantees
///
/// - Once a write under a token was acknowledged, no write under a smaller token of the same lock gets through to that
///   document: the comparison, the write and the record of the token are one step on the server. Each is
///   majority-committed, regardless of the collection's own write concern.
/// - Writes under the same token are accepted, however many there are.
/// - Only the changes of the update and the one field touch the document. A document without the field accepts any
///   token.
///
/// # What it can't do
///
/// - It keeps an earlier holder away only from the documents that a later one has written to. A holder that only reads
///   before it acts elsewhere should write first: an update without operators just records the token.
/// - A deleted document remembers nothing, so a late upsert or insert recreates it: mark documents as deleted instead.
/// - Writes that do not go through a fence are not refused, and erase the token if they replace the document.
/// - Tokens are comparable within one lock. If several locks guard one document, each needs its own
///   [`field`](Self::field). Semaphores and readers have simultaneous holders: use fences for mutexes, writers and
///   leaders.
///
/// # Examples
///
/// The parts, for operations that have no helper here:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// use mongodb::{bson::doc, options::UpdateModifications};
///
/// let handle = locks.mutex("invoice-42").acquire().await?;
/// let fence = handle.fence().field("meta.fence")?;
/// let filter = fence.filter(doc! { "_id": 42 });
/// let update = fence.update(doc! { "$set": { "state": "billed" } })?;
/// // collection.find_one_and_update(filter, update).await? ...
/// # let UpdateModifications::Document(update) = update else { panic!() };
/// assert_eq!(update.get_document("$max")?, &doc! { "meta.fence": handle.token() });
/// # assert!(filter.contains_key("$and"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    token: FencingToken,
    field: String,
    /// For the handle of a document: the place of such locks.
    locked: Option<Arc<LockLayout>>,
}

impl Fence {
    /// Returns a fence for a token that came in a message; its field is `fence`.
    pub fn new(token: impl Into<i64>) -> Self {
        Self {
            token: FencingToken::new(token.into()),
            field: FIELD.to_owned(),
            locked: None,
        }
    }

    /// Keeps the token in another field, which may be in a sub-document: `"a.b"`. Missing sub-documents are created
    /// with the first write. All programs that write to the document under the same lock must name the same field. A
    /// path that is out of bounds (1 to 255 bytes, at most 16 names), or leads to an array index or `_id`, is refused.
    pub fn field(self, field: impl Into<String>) -> Result<Self, InvalidInput> {
        let field = field.into();
        check_path(&field, "of a fence")?;
        Ok(Self { field, ..self })
    }

    /// Returns the token of the writes.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// Returns `filter` with the condition that the document was not written under a larger token.
    ///
    /// It also selects no document that has no place for the token: where the field is not a number, or its
    /// sub-document is something else.
    pub fn filter(&self, filter: Document) -> Document {
        doc! { "$and": [filter, self.lets_through()] }
    }

    /// Returns `update` with the recording of the token. An update without operators just records it.
    ///
    /// Use it together with the [`filter`](Self::filter). A replacement is refused, and what touches the fence's field
    /// or can't be written as BSON.
    pub fn update(&self, update: impl Into<UpdateModifications>) -> Result<UpdateModifications, InvalidInput> {
        let update = update.into();
        documents::check_encodable(&update)?;
        for (by, paths) in documents::written(&update) {
            if !by.starts_with('$') {
                return Err(InvalidInput::new(format!(
                    "the update has `{}`, which is not an operator; replace_one takes a whole document",
                    shown_in_a_line(by)
                )));
            }
            let mut paths = paths.into_iter().flatten();
            paths.try_for_each(|path| self.check_apart_from(path))?;
        }
        match update {
            UpdateModifications::Document(update) => self.update_by_operators(update).map(Into::into),
            UpdateModifications::Pipeline(update) => Ok(self.update_by_pipeline(update).into()),
            _ => Err(InvalidInput::new("the update is neither a document nor a pipeline")),
        }
    }

    /// Returns `document` with the token in it, to be inserted, or to replace another together with the
    /// [`filter`](Self::filter).
    ///
    /// A token that is already in it, as in a type that was read from the collection, makes no difference. A document
    /// with something other than a number in its place is refused, and one that can't be stored.
    pub fn document(&self, mut document: Document) -> Result<Document, InvalidInput> {
        check_document("the document", &document)?;
        let mut names = self.field.split('.').peekable();
        let mut place = &mut document;
        let occupied = |found: &Bson| InvalidInput::new(self.occupied(Some(found)).to_string());
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                match place.get(name) {
                    None | Some(Bson::Null) => {}
                    Some(found) if whole(found).is_some() => {}
                    Some(found) => return Err(occupied(found)),
                }
                place.insert(name, self.token);
                break;
            }
            if !place.contains_key(name) {
                place.insert(name, Document::new());
            }
            place = match place.get_mut(name) {
                Some(Bson::Document(inner)) => inner,
                Some(found) => return Err(occupied(found)),
                None => break,
            };
        }
        Ok(document)
    }

    /// Updates one document, if it was not written under a larger token. Set options on the returned action, and await
    /// it.
    ///
    /// If the fence was made from the handle of a document, an update in that document's collection leaves the lock's
    /// field alone, as with [`Held::update`](crate::Held::update).
    ///
    /// `update` is a document of operators or a pipeline, as with the driver's method. A result with a `matched_count`
    /// of 0 and no `upserted_id` means that there is no document for `filter`. Let `filter` name one document,
    /// preferably by its `_id`: of several, one that the fence lets through is written, and none if the later holder
    /// has changed a field that the filter names.
    ///
    /// # Errors
    ///
    /// [`FenceError::Fenced`] if the document was written under a larger token, with both tokens.
    /// [`FenceError::Invalid`] if the update touches the fence's field or the lock, or the filter of an upsert is
    /// unsuitable; nothing was sent then. [`FenceError::Occupied`] if the place of the token holds something else.
    /// Otherwise [`FenceError::Server`], also for a duplicate key in a unique index other than that of `_id`, and for a
    /// document that others change between each try and the check, for a second or two.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the command in flight may still be carried out, unless it is part of a session; no
    /// other is sent.
    pub fn update_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FencedWrite<'static, UpdateResult> {
        let update = update.into();
        let checked = match self.locked_in(collection) {
            Some(place) => locked::check_field_apart(&self.field, place)
                .and_then(|()| locked::check_update_of_locked(&update, place)),
            None => Ok(()),
        };
        let change = checked.and_then(|()| self.update(update));
        FencedWrite::new(self, collection, filter, Update::new(change, false))
    }

    /// Replaces one document, if it was not written under a larger token; the token is added. Otherwise like
    /// [`update_one`](Self::update_one).
    ///
    /// If the fence was made from the handle of a document, a replacement in that document's collection keeps the lock
    /// as it is stored. Through any other fence, it deletes everything that it does not have, including a lock.
    pub fn replace_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        replacement: Document,
    ) -> FencedWrite<'static, UpdateResult> {
        let named = replacement.keys().find(|key| key.starts_with('$'));
        let change = match named {
            Some(operator) => Err(InvalidInput::new(format!(
                "the replacement has the operator `{}`; update_one takes an update",
                shown_in_a_line(operator)
            ))),
            None => self.document(replacement).and_then(|replacement| {
                let Some(place) = self.locked_in(collection) else {
                    return Ok(replacement.into());
                };
                locked::check_field_apart(&self.field, place)?;
                Ok(locked::replace(replacement, place)?.into())
            }),
        };
        FencedWrite::new(self, collection, filter, Update::new(change, true))
    }

    /// Inserts a document with the token in it. All else is as for [`update_one`](Self::update_one):
    /// [`FenceError::Fenced`] if there is a document with this `_id` that was written under a larger token.
    pub fn insert_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        document: Document,
    ) -> FencedWrite<'static, InsertOneResult> {
        let filter = match document.get("_id") {
            Some(id) => doc! { "_id": { "$eq": id } },
            // An id that nobody has yet.
            None => doc! { "_id": { "$in": [] } },
        };
        FencedWrite::new(self, collection, filter, self.document(document))
    }

    /// Deletes one document, if it was not written under a larger token. A deleted document remembers no token: see
    /// [the limits of a fence](Self#what-it-cant-do). All else is as for [`update_one`](Self::update_one); a
    /// `deleted_count` of 0 means that there is no document for `filter`.
    pub fn delete_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
    ) -> FencedWrite<'static, DeleteResult> {
        FencedWrite::new(self, collection, filter, ())
    }

    /// Returns the locks in the documents of the collection, if the fence comes from one of them.
    fn locked_in<T: Send + Sync>(&self, collection: &Collection<T>) -> Option<&LockLayout> {
        self.locked
            .as_deref()
            .filter(|place| place.is_for(&collection.namespace()))
    }

    /// Returns the sub-documents that contain the field, outermost first.
    fn parents(&self) -> impl Iterator<Item = &str> {
        self.field.match_indices('.').map(|(at, _)| &self.field[..at])
    }

    /// Returns a filter for the documents that may be written under this token. It must be exact, as its negation
    /// explains why others were not written.
    fn lets_through(&self) -> Document {
        // The server would compare an array element by element, and write to each element.
        let no_array = |path: &str| doc! { path: { "$not": { "$type": "array" } } };
        let mut conditions = Vec::new();
        for parent in self.parents() {
            conditions.push(no_array(parent));
            let missing = doc! { parent: { "$exists": false } };
            conditions.push(doc! { "$or": [missing, { parent: { "$type": "object" } }] });
        }
        conditions.push(no_array(&self.field));
        let none = doc! { &self.field: Bson::Null };
        conditions.push(doc! { "$or": [none, { &self.field: { "$lte": self.token } }] });
        doc! { "$and": conditions }
    }

    fn update_by_operators(&self, mut update: Document) -> Result<Document, InvalidInput> {
        if !update.contains_key("$max") {
            update.insert("$max", Document::new());
        }
        // The filter ensures that the token is the larger one; this ensures that it can't be made smaller even without
        // the filter.
        match update.get_mut("$max") {
            Some(Bson::Document(most)) => most.insert(&self.field, self.token),
            _ => return Err(InvalidInput::new("the update has a `$max` that is not a document")),
        };
        Ok(update)
    }

    fn update_by_pipeline(&self, mut update: Vec<Document>) -> Vec<Document> {
        // A plain `$set` of the path would overwrite anything in its way, and write into each element of an array.
        let mut value = Bson::from(self.token);
        let parents: Vec<&str> = self.parents().collect();
        let mut names = self.field.rsplit('.');
        for parent in parents.iter().rev() {
            let name = names.next().unwrap_or_default();
            value = Bson::from(doc! { "$mergeObjects": [format!("${parent}"), { name: value }] });
        }
        update.push(doc! { "$set": { names.next().unwrap_or_default(): value } });
        update
    }

    /// Checks that neither `path` nor the fence's field contains the other.
    fn check_apart_from(&self, path: &str) -> Result<(), InvalidInput> {
        // `a.$[].b` and the like may mean anything.
        let same = |(name, other): (&str, &str)| name == other || name.starts_with('$');
        if !path.split('.').zip(self.field.split('.')).all(same) {
            return Ok(());
        }
        Err(InvalidInput::new(format!(
            "the update touches `{}`, but the fence keeps its token in `{}`",
            shown_in_a_line(path),
            shown_in_a_line(&self.field)
        )))
    }

    /// Returns the error of a document with this in the place of the token. It has the type of the value, and not the
    /// value itself, which is the user's data.
    fn occupied(&self, found: Option<&Bson>) -> FenceError {
        FenceError::Occupied {
            field: self.field.clone(),
            found: found.map_or_else(|| "nothing".to_owned(), |found| format!("{:?}", found.element_type())),
        }
    }

    /// Returns why the fence refuses a document.
    fn refusal(&self, document: &Document) -> FenceError {
        let mut names = self.field.split('.');
        let mut found = names.next().and_then(|name| document.get(name));
        for name in names {
            match found {
                Some(Bson::Document(inner)) => found = inner.get(name),
                _ => break,
            }
        }
        match found.and_then(whole) {
            Some(stored) if stored > self.token.as_i64() => FenceError::Fenced {
                stored: FencingToken::new(stored),
                ours: self.token,
            },
            _ => self.occupied(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_place_of_the_token_is_told_by_its_type_and_not_shown() {
        let fence = Fence::new(7).field("a.b").unwrap();
        let refused = fence.document(doc! { "a": "garden" }).unwrap_err();
        let told = "the field `a.b` of the document can't hold a fencing token, as it holds something else: String";
        assert_eq!(refused.to_string(), told);
        let refused = fence.refusal(&doc! { "a": { "b": ["garden"] } });
        let FenceError::Occupied { field, found } = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!((field.as_str(), found.as_str()), ("a.b", "Array"));
    }
}
