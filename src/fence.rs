//! Writes that a receiver refuses when they come from a holder of the past.
//!
//! The document of the user remembers the largest fencing token that it was written under. A write selects the document
//! only where that is not larger than its own, and records its own in the same step; so whoever comes late finds nothing
//! to write to. As a write that selects nothing does not say why, the helpers look: first for a document that the user's
//! filter selects and the fence refuses, then for one that the user's filter selects at all. Where that finds one which
//! the fence lets through, somebody wrote in between, and the write is done again. So what is returned was true at one
//! moment between call and return, whatever others do meanwhile.

use std::fmt;

use futures::future::BoxFuture;
use mongodb::{
    ClientSession, Collection,
    bson::{Bson, Document, doc},
    error::{Error, ErrorKind, WriteFailure},
    options::{CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, UpdateModifications, WriteConcern},
    results::{DeleteResult, InsertOneResult, UpdateResult},
};

use crate::{
    error::{FenceError, Fenced, InvalidInput},
    handle::LockView,
    token::FencingToken,
};

/// Where the token is, unless another place is chosen.
const FIELD: &str = "fence";

/// In bytes, and in sub-documents: more than anybody needs, and less than what a server takes.
const FIELD_MOST: usize = 255;
const DEPTH_MOST: usize = 16;

/// The server's code for a duplicate key.
const DUPLICATE_KEY: i32 = 11_000;

impl LockView {
    /// To write to documents of your own so that a holder of the past is refused.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(client: mongodb::Client, locks: watchlock::LockClient) -> Result<(), Box<dyn std::error::Error>> {
    /// use mongodb::bson::{Document, doc};
    /// use watchlock::FenceError;
    ///
    /// let invoices = client.database("app").collection::<Document>("invoices");
    /// let handle = locks.mutex("invoice-42").acquire().await?;
    /// let update = doc! { "$set": { "state": "billed" } };
    /// match handle.fence().update_one(&invoices, doc! { "_id": 42 }, update).await {
    ///     Ok(result) if result.matched_count == 0 => println!("there is no such invoice"),
    ///     Ok(_) => println!("written"),
    ///     Err(FenceError::Fenced(late)) => println!("too late: {late}"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        Fence::new(self.token())
    }
}

/// Keeps writes of earlier holders of a lock away from a document: it remembers, in a field of its own, the largest
/// fencing token that it was written under, and a write under a smaller one is refused.
///
/// Made by [`LockView::fence`], so by each handle, view and leadership. It knows just the token, not the lock: whoever
/// got the token in a message makes the same fence with [`Fence::new`].
///
/// # Guarantees
///
/// - Once a write under a token was acknowledged, no write under a smaller token of the same lock gets through to that
///   document: the comparison, the write and the record of the token are one step of the server. Each is
///   majority-committed, whatever the collection's own write concern is, as an unacknowledged fence could be rolled back.
/// - Writes under the same token are accepted, as many as there are.
/// - Nothing of the document is touched but what the update says, and the one field. A document without the field
///   accepts any token.
///
/// # What it can't do
///
/// - It keeps an earlier holder away from the documents that a later one has written to, and from no others. A holder
///   that only reads before it acts elsewhere should write first: an update without operators just records the token.
/// - A deleted document remembers nothing, so an upsert or an insert that comes late makes it anew. Where that matters,
///   mark documents as deleted by an update.
/// - Writes that do not go through a fence are not refused, and do not erase the token unless they replace the document.
/// - Tokens are comparable within one lock. Where several locks guard one document, each needs a
///   [`field`](Self::field) of its own. And of two holders at a time, as a semaphore and readers have, the earlier has the
///   smaller token though it is not of the past: fences are for mutexes, writers and leaders.
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
}

impl Fence {
    /// A fence for a token that came in a message; its field is `fence`.
    pub fn new(token: impl Into<i64>) -> Self {
        Self {
            token: FencingToken::new(token.into()),
            field: FIELD.to_owned(),
        }
    }

    /// Keeps the token in another field, which may be in a sub-document: `"a.b"`. Sub-documents that are missing are
    /// made with the first write.
    ///
    /// All who write to the document under the same lock must name the same field.
    ///
    /// # Errors
    ///
    /// A path has 1 to 255 bytes and at most 16 names; a name is not empty, has no NUL and does not begin with `$`;
    /// `_id` can't be written to.
    pub fn field(self, field: impl Into<String>) -> Result<Self, InvalidInput> {
        let field = field.into();
        let names = || field.split('.');
        let problem = if field.len() > FIELD_MOST {
            format!("has {} bytes; it must have 1 to {FIELD_MOST}", field.len())
        } else if names().any(str::is_empty) {
            "has an empty name in it".to_owned()
        } else if names().count() > DEPTH_MOST {
            format!("has {} names; it must have at most {DEPTH_MOST}", names().count())
        } else if field.contains('\0') || names().any(|name| name.starts_with('$')) {
            "has a name in it that begins with `$` or contains NUL".to_owned()
        } else if names().next() == Some("_id") {
            "is in `_id`, which can't be written to".to_owned()
        } else {
            return Ok(Self { field, ..self });
        };
        // Not all of what may be megabytes.
        let shown: String = field.chars().take(FIELD_MOST).collect();
        Err(InvalidInput::new(format!(
            "the field `{}` of a fence {problem}",
            shown.escape_debug()
        )))
    }

    /// The token that writes are under.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// `filter`, and that the document was not written under a larger token.
    ///
    /// It also selects no document in which the token has no place: where the field is no number, or its sub-document is
    /// something else.
    pub fn filter(&self, filter: Document) -> Document {
        doc! { "$and": [filter, self.lets_through()] }
    }

    /// `update`, and that the token is recorded. An update without operators just records it.
    ///
    /// Use it together with the [`filter`](Self::filter).
    ///
    /// # Errors
    ///
    /// When it is no update but a replacement, or has to do with the fence's field.
    pub fn update(&self, update: impl Into<UpdateModifications>) -> Result<UpdateModifications, InvalidInput> {
        match update.into() {
            UpdateModifications::Document(update) => self.update_by_operators(update).map(Into::into),
            UpdateModifications::Pipeline(update) => self.update_by_pipeline(update).map(Into::into),
            _ => Err(InvalidInput::new("the update is neither a document nor a pipeline")),
        }
    }

    /// `document` with the token in it, to be inserted, or to replace another together with the
    /// [`filter`](Self::filter).
    ///
    /// A token that is in it already, as in a type that was read from the collection, makes no difference.
    ///
    /// # Errors
    ///
    /// When something else than a number is in the place of the token.
    pub fn document(&self, mut document: Document) -> Result<Document, InvalidInput> {
        let mut names = self.field.split('.').peekable();
        let mut place = &mut document;
        let occupied = |found: &Bson| InvalidInput::new(self.occupied(&describe(found)));
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                match place.get(name) {
                    None | Some(Bson::Null) => {}
                    Some(found) if number(found).is_some() => {}
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
    /// `update` is a document of operators or a pipeline, as with the driver's method. A result whose `matched_count` is
    /// 0 and that has no `upserted_id` says that there is no document for `filter`. Let `filter` name one document, by
    /// its `_id` best: of several, one that the fence lets through is written, and a condition that the later holder
    /// has changed makes it "no document" instead of "refused".
    ///
    /// # Errors
    ///
    /// [`FenceError::Fenced`] when the document was written under a larger token, with both. [`FenceError::Invalid`] when
    /// the update has to do with the fence's field; nothing was sent then. [`FenceError::Occupied`] when something else
    /// than a token is there. Otherwise [`FenceError::Server`].
    ///
    /// # Cancel safety
    ///
    /// The write goes on in the background when the future is dropped, unless it is part of a session.
    pub fn update_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> FencedUpdate<'static> {
        FencedUpdate {
            write: Write::new(self, collection, filter),
            change: self.update(update).map(Change::Update),
            upsert: false,
            array_filters: None,
            session: None,
        }
    }

    /// Replaces one document, if it was not written under a larger token; the token is put in. As
    /// [`update_one`](Self::update_one) otherwise.
    pub fn replace_one<T: Send + Sync>(
        &self,
        collection: &Collection<T>,
        filter: Document,
        replacement: Document,
    ) -> FencedUpdate<'static> {
        let named = replacement.keys().find(|key| key.starts_with('$'));
        let change = match named {
            Some(operator) => Err(InvalidInput::new(format!(
                "the replacement has the operator `{}`; update_one takes an update",
                operator.escape_debug()
            ))),
            None => self.document(replacement).map(Change::Replace),
        };
        FencedUpdate {
            write: Write::new(self, collection, filter),
            change,
            upsert: false,
            array_filters: None,
            session: None,
        }
    }

    /// Inserts a document with the token in it.
    ///
    /// # Errors
    ///
    /// [`FenceError::Fenced`] when there is a document with this `_id` that was written under a larger token; otherwise
    /// as [`update_one`](Self::update_one), with the server's duplicate key error in [`FenceError::Server`] among them.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn insert_one<T: Send + Sync>(&self, collection: &Collection<T>, document: Document) -> FencedInsert<'static> {
        let filter = match document.get("_id") {
            Some(id) => doc! { "_id": { "$eq": id } },
            // An id that nobody has yet.
            None => doc! { "_id": { "$in": [] } },
        };
        FencedInsert {
            write: Write::new(self, collection, filter),
            document: self.document(document),
            session: None,
        }
    }

    /// Deletes one document, if it was not written under a larger token. What is deleted remembers no token: see
    /// [what a fence can't do](Self#what-it-cant-do).
    ///
    /// # Errors
    ///
    /// As [`update_one`](Self::update_one). A result whose `deleted_count` is 0 says that there is no document for
    /// `filter`.
    ///
    /// # Cancel safety
    ///
    /// As [`update_one`](Self::update_one).
    pub fn delete_one<T: Send + Sync>(&self, collection: &Collection<T>, filter: Document) -> FencedDelete<'static> {
        FencedDelete {
            write: Write::new(self, collection, filter),
            session: None,
        }
    }

    /// The sub-documents that the field is in, outermost first.
    fn parents(&self) -> impl Iterator<Item = &str> {
        self.field.match_indices('.').map(|(at, _)| &self.field[..at])
    }

    /// Selects the documents that may be written under this token. It must be exact, as its negation tells why others
    /// were not.
    fn lets_through(&self) -> Document {
        // What is in an array would be compared element by element, and written to in each.
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
        for (operator, arguments) in &update {
            if !operator.starts_with('$') {
                return Err(InvalidInput::new(format!(
                    "the update has `{}`, which is no operator; replace_one takes a whole document",
                    operator.escape_debug()
                )));
            }
            for (path, argument) in arguments.as_document().into_iter().flatten() {
                self.check_path(path)?;
                if let ("$rename", Bson::String(to)) = (operator.as_str(), argument) {
                    self.check_path(to)?;
                }
            }
        }
        if !update.contains_key("$max") {
            update.insert("$max", Document::new());
        }
        // The filter sees to it that the token is the larger; this, that it can't be made smaller even without.
        match update.get_mut("$max") {
            Some(Bson::Document(most)) => most.insert(&self.field, self.token),
            _ => return Err(InvalidInput::new("the update has a `$max` that is no document")),
        };
        Ok(update)
    }

    fn update_by_pipeline(&self, mut update: Vec<Document>) -> Result<Vec<Document>, InvalidInput> {
        for (stage, arguments) in update.iter().flatten() {
            match (stage.as_str(), arguments) {
                ("$set" | "$addFields" | "$project", Bson::Document(fields)) => {
                    fields.keys().try_for_each(|path| self.check_path(path))?;
                }
                ("$unset", Bson::String(path)) => self.check_path(path)?,
                ("$unset", Bson::Array(paths)) => {
                    paths
                        .iter()
                        .filter_map(Bson::as_str)
                        .try_for_each(|path| self.check_path(path))?;
                }
                _ => {}
            }
        }
        // Not a plain `$set` of the path, which would write over what is in its way, and into each element of an array.
        let mut value = Bson::from(self.token);
        let parents: Vec<&str> = self.parents().collect();
        let mut names = self.field.rsplit('.');
        for parent in parents.iter().rev() {
            let name = names.next().unwrap_or_default();
            value = Bson::from(doc! { "$mergeObjects": [format!("${parent}"), { name: value }] });
        }
        update.push(doc! { "$set": { names.next().unwrap_or_default(): value } });
        Ok(update)
    }

    /// That what is at `path` is no part of the fence's field, and the other way round.
    fn check_path(&self, path: &str) -> Result<(), InvalidInput> {
        // `a.$[].b` and its like may be anything.
        let same = |(name, other): (&str, &str)| name == other || name.starts_with('$');
        if !path.split('.').zip(self.field.split('.')).all(same) {
            return Ok(());
        }
        Err(InvalidInput::new(format!(
            "the update has to do with `{}`, and the fence keeps its token in `{}`",
            path.escape_debug(),
            self.field.escape_debug()
        )))
    }

    fn occupied(&self, found: &str) -> String {
        format!(
            "the field `{}` of the document can't have a fencing token, as there is something else: {found}",
            self.field.escape_debug()
        )
    }

    /// Why the fence refuses a document.
    fn refusal(&self, document: &Document) -> FenceError {
        let mut names = self.field.split('.');
        let mut found = names.next().and_then(|name| document.get(name));
        for name in names {
            match found {
                Some(Bson::Document(inner)) => found = inner.get(name),
                _ => break,
            }
        }
        match found.and_then(number) {
            Some(stored) if stored > self.token.as_i64() => FenceError::Fenced(Fenced {
                stored: FencingToken::new(stored),
                ours: self.token,
            }),
            _ => FenceError::Occupied {
                field: self.field.clone(),
                found: found.map_or_else(|| "nothing".to_owned(), describe),
            },
        }
    }
}

/// A whole number, however it is stored.
fn number(value: &Bson) -> Option<i64> {
    match *value {
        Bson::Int32(number) => Some(number.into()),
        Bson::Int64(number) => Some(number),
        // Beyond 2^53 a token is no double, and no token is.
        Bson::Double(number) if number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 => Some(number as i64),
        _ => None,
    }
}

/// What a value is; not the value itself, which is the user's data.
fn describe(value: &Bson) -> String {
    format!("{:?}", value.element_type())
}

/// What all writes have in common.
#[derive(Clone)]
struct Write {
    fence: Fence,
    collection: Collection<Document>,
    filter: Document,
}

impl Write {
    fn new<T: Send + Sync>(fence: &Fence, collection: &Collection<T>, filter: Document) -> Self {
        // The majority's view can lag behind what was acknowledged, so it is the primary's that says why. In a
        // transaction the driver leaves all of this to the transaction.
        let options = CollectionOptions::builder()
            .write_concern(WriteConcern::majority())
            .read_concern(ReadConcern::local())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let namespace = collection.namespace();
        let database = collection.client().database(&namespace.db);
        Self {
            fence: fence.clone(),
            collection: database.collection_with_options(&namespace.coll, options),
            filter,
        }
    }

    fn fenced(&self) -> Document {
        self.fence.filter(self.filter.clone())
    }

    /// That no document of these is refused by the fence.
    async fn check(&self, of: &Document, session: &mut Option<&mut ClientSession>) -> Result<(), FenceError> {
        let refused = doc! { "$and": [of, { "$nor": [self.fence.lets_through()] }] };
        let root = self.fence.field.split('.').next().unwrap_or_default();
        match self.find(refused, root, session).await? {
            Some(document) => Err(self.fence.refusal(&document)),
            None => Ok(()),
        }
    }

    /// Whether there is any document for the user's own filter.
    async fn has_any(&self, session: &mut Option<&mut ClientSession>) -> Result<bool, FenceError> {
        Ok(self.find(self.filter.clone(), "_id", session).await?.is_some())
    }

    async fn find(
        &self,
        filter: Document,
        field: &str,
        session: &mut Option<&mut ClientSession>,
    ) -> Result<Option<Document>, FenceError> {
        let find = self.collection.find_one(filter).projection(doc! { field: 1 });
        match session {
            Some(session) => find.session(&mut **session).await,
            None => find.await,
        }
        .map_err(FenceError::Server)
    }
}

impl fmt::Debug for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the collection: the driver's client shows the user's connection options.
        f.debug_struct("Write")
            .field("fence", &self.fence)
            .field("collection", &self.collection.namespace().to_string())
            .field("filter", &self.filter)
            .finish()
    }
}

#[derive(Clone, Debug)]
enum Change {
    Update(UpdateModifications),
    Replace(Document),
}

/// An update or a replacement under a fence, to be awaited. Made by [`Fence::update_one`] and [`Fence::replace_one`].
#[must_use = "nothing is written unless it is awaited"]
pub struct FencedUpdate<'a> {
    write: Write,
    change: Result<Change, InvalidInput>,
    upsert: bool,
    array_filters: Option<Vec<Document>>,
    session: Option<&'a mut ClientSession>,
}

impl FencedUpdate<'_> {
    /// Inserts the document where there is none. The filter must name its `_id` then: a filter that several documents
    /// could meet would make a second one where the fence refuses the first.
    pub fn upsert(mut self, upsert: bool) -> Self {
        self.upsert = upsert;
        self
    }

    /// Which elements of arrays the update's `$[name]` stand for, as with the driver's method. A pipeline or a
    /// replacement has none.
    pub fn array_filters(mut self, filters: impl IntoIterator<Item = Document>) -> Self {
        self.array_filters = Some(filters.into_iter().collect());
        self
    }

    /// Writes as part of a session of the driver's, and of the transaction that is going on in it.
    ///
    /// The transaction's own write concern is in effect then.
    pub fn session(self, session: &mut ClientSession) -> FencedUpdate<'_> {
        FencedUpdate {
            session: Some(session),
            write: self.write,
            change: self.change,
            upsert: self.upsert,
            array_filters: self.array_filters,
        }
    }
}

impl fmt::Debug for FencedUpdate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedUpdate")
            .field("write", &self.write)
            .field("change", &self.change)
            .field("upsert", &self.upsert)
            .finish_non_exhaustive()
    }
}

impl<'a> IntoFuture for FencedUpdate<'a> {
    type Output = Result<UpdateResult, FenceError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            write,
            change,
            upsert,
            array_filters,
            session,
        } = self;
        match session {
            Some(session) => Box::pin(update(write, change, upsert, array_filters, Some(session))),
            None => Box::pin(in_background(update(write, change, upsert, array_filters, None))),
        }
    }
}

async fn update(
    write: Write,
    change: Result<Change, InvalidInput>,
    upsert: bool,
    array_filters: Option<Vec<Document>>,
    mut session: Option<&mut ClientSession>,
) -> Result<UpdateResult, FenceError> {
    let change = change?;
    if let (Change::Replace(_), Some(_)) = (&change, &array_filters) {
        return Err(InvalidInput::new("a replacement has no use for array filters").into());
    }
    let id = if upsert { Some(named_id(&write.filter)?) } else { None };
    if let (Some(id), Some(_)) = (&id, &session) {
        // A refusal would be a duplicate key, and that is the end of a transaction, in which nothing can be looked up
        // any more. But what a transaction saw once, it sees to its end.
        write.check(id, &mut session).await?;
    }
    loop {
        let done = match &change {
            Change::Update(update) => {
                let update = write.collection.update_one(write.fenced(), update.clone());
                let update = update.upsert(id.is_some());
                let update = match &array_filters {
                    Some(filters) => update.array_filters(filters.clone()),
                    None => update,
                };
                match &mut session {
                    Some(session) => update.session(&mut **session).await,
                    None => update.await,
                }
            }
            Change::Replace(replacement) => {
                let replace = write.collection.replace_one(write.fenced(), replacement);
                let replace = replace.upsert(id.is_some());
                match &mut session {
                    Some(session) => replace.session(&mut **session).await,
                    None => replace.await,
                }
            }
        };
        match (done, &id) {
            (Ok(result), _) if result.matched_count == 0 && result.upserted_id.is_none() => {
                write.check(&write.filter, &mut session).await?;
                if !write.has_any(&mut session).await? {
                    return Ok(result);
                }
            }
            (Err(error), Some(id)) if is_duplicate(&error) => {
                // In a transaction nothing can be looked up after an error; then this one tells more.
                match write.check(id, &mut session).await {
                    Ok(()) => {}
                    Err(FenceError::Server(_)) => return Err(FenceError::Server(error)),
                    Err(refused) => return Err(refused),
                }
                // The document does not meet the rest of the filter, or it is another unique index.
                let fits = doc! { "$and": [&write.filter, write.fence.lets_through()] };
                if write.find(fits, "_id", &mut session).await?.is_none() {
                    return Err(FenceError::Server(error));
                }
            }
            (done, _) => return done.map_err(FenceError::Server),
        }
    }
}

/// An insertion under a fence, to be awaited. Made by [`Fence::insert_one`].
#[must_use = "nothing is written unless it is awaited"]
pub struct FencedInsert<'a> {
    write: Write,
    document: Result<Document, InvalidInput>,
    session: Option<&'a mut ClientSession>,
}

impl FencedInsert<'_> {
    /// Writes as part of a session of the driver's, and of the transaction that is going on in it.
    ///
    /// The transaction's own write concern is in effect then.
    pub fn session(self, session: &mut ClientSession) -> FencedInsert<'_> {
        FencedInsert {
            session: Some(session),
            write: self.write,
            document: self.document,
        }
    }
}

impl fmt::Debug for FencedInsert<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedInsert")
            .field("write", &self.write)
            .field("document", &self.document)
            .finish_non_exhaustive()
    }
}

impl<'a> IntoFuture for FencedInsert<'a> {
    type Output = Result<InsertOneResult, FenceError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            write,
            document,
            session,
        } = self;
        match session {
            Some(session) => Box::pin(insert(write, document, Some(session))),
            None => Box::pin(in_background(insert(write, document, None))),
        }
    }
}

async fn insert(
    write: Write,
    document: Result<Document, InvalidInput>,
    mut session: Option<&mut ClientSession>,
) -> Result<InsertOneResult, FenceError> {
    let document = document?;
    if session.is_some() {
        // As with an upsert.
        write.check(&write.filter, &mut session).await?;
    }
    let insert = write.collection.insert_one(document);
    let inserted = match &mut session {
        Some(session) => insert.session(&mut **session).await,
        None => insert.await,
    };
    match inserted {
        Err(error) if is_duplicate(&error) => match write.check(&write.filter, &mut session).await {
            Ok(()) | Err(FenceError::Server(_)) => Err(FenceError::Server(error)),
            Err(refused) => Err(refused),
        },
        inserted => inserted.map_err(FenceError::Server),
    }
}

/// A deletion under a fence, to be awaited. Made by [`Fence::delete_one`].
#[must_use = "nothing is written unless it is awaited"]
pub struct FencedDelete<'a> {
    write: Write,
    session: Option<&'a mut ClientSession>,
}

impl FencedDelete<'_> {
    /// Writes as part of a session of the driver's, and of the transaction that is going on in it.
    ///
    /// The transaction's own write concern is in effect then.
    pub fn session(self, session: &mut ClientSession) -> FencedDelete<'_> {
        FencedDelete {
            session: Some(session),
            write: self.write,
        }
    }
}

impl fmt::Debug for FencedDelete<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedDelete")
            .field("write", &self.write)
            .finish_non_exhaustive()
    }
}

impl<'a> IntoFuture for FencedDelete<'a> {
    type Output = Result<DeleteResult, FenceError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { write, session } = self;
        match session {
            Some(session) => Box::pin(delete(write, Some(session))),
            None => Box::pin(in_background(delete(write, None))),
        }
    }
}

async fn delete(write: Write, mut session: Option<&mut ClientSession>) -> Result<DeleteResult, FenceError> {
    loop {
        let delete = write.collection.delete_one(write.fenced());
        let deleted = match &mut session {
            Some(session) => delete.session(&mut **session).await,
            None => delete.await,
        };
        let deleted = deleted.map_err(FenceError::Server)?;
        if deleted.deleted_count > 0 {
            return Ok(deleted);
        }
        write.check(&write.filter, &mut session).await?;
        if !write.has_any(&mut session).await? {
            return Ok(deleted);
        }
    }
}

/// Run to its end by itself, as a driver future that is dropped half-way stalls the pool.
async fn in_background<T: Send + 'static>(
    write: impl Future<Output = Result<T, FenceError>> + Send + 'static,
) -> Result<T, FenceError> {
    let written = tokio::spawn(write).await;
    written.unwrap_or_else(|stopped| Err(FenceError::Server(Error::custom(stopped.to_string()))))
}

fn is_duplicate(error: &Error) -> bool {
    let code = match &*error.kind {
        ErrorKind::Command(command) => command.code,
        ErrorKind::Write(WriteFailure::WriteError(write)) => write.code,
        _ => return false,
    };
    code == DUPLICATE_KEY
}

/// The document that an upsert's filter names by its `_id`.
fn named_id(filter: &Document) -> Result<Document, InvalidInput> {
    let id = match filter.get("_id") {
        Some(Bson::Document(operators)) if operators.keys().any(|key| key.starts_with('$')) => {
            operators.get("$eq").filter(|_| operators.len() == 1)
        }
        Some(Bson::RegularExpression(_)) | None => None,
        Some(id) => Some(id),
    };
    match id {
        Some(id) => Ok(doc! { "_id": { "$eq": id } }),
        None => Err(InvalidInput::new(
            "the filter of an upsert under a fence names no `_id`: where the fence refuses a document, a second one would \
             be made",
        )),
    }
}
