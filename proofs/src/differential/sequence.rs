//! One sequence of steps on its way, and the document that it must have.

use crate::Random;
use mongodb::bson::{Bson, Document, doc};
use watchlock_core::protocol::{
    CapacityIs, Change, Entry, Evict, Expects, Operation, Request, ServerTime, Showing, State, pipeline, state,
};

use super::{
    setup::Setup,
    steps::{self, Move},
};

/// One sequence, with a document of its own.
#[derive(Debug)]
pub struct Sequence {
    pub seed: u64,
    random: Random,
    pub id: Bson,
    pub now: ServerTime,
    /// The lock by the specification.
    pub expected: Option<State>,
    /// The user's part of the document; `None` if the document is the lock's alone.
    pub users: Option<Document>,
    pub seen: Seen,
}

/// Numbers of steps that are rare, and easily lost among the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Changes that took permits, and those of a holder with more permits that did not: under an earlier token, or
    /// as the lock was released.
    pub downgraded: u32,
    pub not_downgraded: u32,
    /// Changes that gave a holder a longer lease, and those that gave the hold to another entry.
    pub lengthened: u32,
    pub renamed: u32,
    /// Releases that kept the lock.
    pub kept: u32,
    /// Entries that left, except for the hold that the server ends.
    pub spared: u32,
    /// Breaks that evicted somebody, and those that found nobody.
    pub broken: u32,
    pub not_broken: u32,
    /// Settings of the number of permits that granted, and those that refused a waiter.
    pub set_granted: u32,
    pub set_refused: u32,
    /// Requests with another number of permits than the lock in use has, which goes by its own.
    pub met_other_number: u32,
    /// Entries that upgrade a holder and came before others in the queue, and those of no holder, which did not.
    pub upgraded: u32,
    pub not_upgraded: u32,
    /// Entries that found no room beside one that upgrades a holder and was in the full queue already.
    pub found_no_room: u32,
}

impl Seen {
    fn note(&mut self, operation: &Operation, before: &State, after: &State) {
        let released = |state: &State| state.holders.iter().filter(|holder| holder.is_kept()).count();
        self.kept += u32::from(released(after) > released(before));
        let mut stay = after.holders.iter().filter(|holder| operation.spares(holder));
        self.spared += u32::from(stay.any(|holder| !holder.is_kept() && operation.leave.contains(&holder.id)));
        let is_written = after.version > before.version;
        self.broken += u32::from(operation.breaks() && is_written);
        self.not_broken += u32::from(operation.breaks() && !is_written);
        if let Some(requests) = operation.requests.as_ref().filter(|_| is_written) {
            let is_new = |holder: &Entry| before.holders.iter().all(|it| it.token != holder.token);
            let is_gone = |waiter: &Entry| !after.has_any(std::slice::from_ref(&waiter.id));
            let sets = requests.by == CapacityIs::Set;
            self.set_granted += u32::from(sets && after.holders.iter().any(is_new));
            let mut live = before.queue.iter().filter(|waiter| waiter.until > after.at);
            self.set_refused += u32::from(sets && live.any(is_gone));
            let differs = requests.capacity != before.capacity && after.capacity == before.capacity;
            self.met_other_number += u32::from(requests.by == CapacityIs::Offered && differs);
        }
        for entry in operation.requests.iter().flat_map(|requests| &requests.entries) {
            let is_there = after.has_any(std::slice::from_ref(&entry.id));
            let overtakes = is_there && !before.has_any(std::slice::from_ref(&entry.id)) && !before.queue.is_empty();
            self.upgraded += u32::from(is_written && entry.upgrades.is_some() && overtakes && entry.wait);
            self.not_upgraded += u32::from(is_written && entry.upgrades.is_some() && !is_there && entry.wait);
        }
        let entries = || operation.requests.iter().flat_map(|requests| &requests.entries);
        let waits_in = |state: &State, id: &String| state.queue.iter().any(|waiter| waiter.id == *id);
        let stays = |entry: &Request| {
            let is_upgrade = entry
                .upgrades
                .as_ref()
                .is_some_and(|reader| after.holders.iter().any(|holder| holder.id == *reader));
            is_upgrade && waits_in(before, &entry.id) && waits_in(after, &entry.id)
        };
        let mut requests = operation.requests.iter();
        let is_alike = requests.any(|it| !before.refuses((it.kind, it.capacity), it.by, 0));
        if is_alike && before.queue.len() >= operation.room && entries().any(stays) {
            let is_kept_out = |entry: &&Request| {
                let is_there = [before, after].map(|state| state.has_any(std::slice::from_ref(&entry.id)));
                entry.wait && entry.upgrades.is_none() && is_there == [false; 2]
            };
            self.found_no_room += u32::try_from(entries().filter(is_kept_out).count()).unwrap_or(0);
        }
        let Some(Change {
            id,
            permits,
            token,
            becomes,
            ..
        }) = &operation.change
        else {
            return;
        };
        let holder_of = |state: &State| state.holders.iter().find(|holder| holder.token == *token).cloned();
        if let (Some(before), Some(after)) = (holder_of(before), holder_of(after)) {
            self.lengthened += u32::from(after.lease > before.lease);
            self.renamed += u32::from(after.id != before.id && after.id == *becomes);
        }
        let permits_of = |state: &State| {
            let mut holders = state.holders.iter();
            holders.find(|holder| holder.id == *id).map(|holder| holder.permits)
        };
        // Afterwards there is none whose lease was over.
        if let (Some(before), Some(after)) = (permits_of(before), permits_of(after))
            && before > *permits
        {
            self.downgraded += u32::from(after < before);
            self.not_downgraded += u32::from(after == before);
        }
    }
}

/// An update's filter and pipeline, and whether it may create the document.
type Update = (Document, Vec<Document>, bool);

impl Sequence {
    pub fn new(seed: u64, setup: &Setup) -> Self {
        let mut random = Random::new(seed);
        // Two names of a kind would collide, so the hostile ones get the seed as well.
        let name = format!("{seed}{}", random.pick(&setup.strings));
        let id = Bson::from(name.chars().take(512).collect::<String>());
        let users = (!setup.at.is_root()).then(|| users(&id, &mut random, setup));
        let now = ServerTime(1_700_000_000_000 + i64::try_from(random.below(1_000)).unwrap());
        Self {
            seed,
            random,
            id,
            now,
            expected: None,
            users,
            seen: Seen::default(),
        }
    }

    pub fn name(&self) -> &str {
        self.id.as_str().unwrap_or_default()
    }

    /// Takes a step by the specification, and returns it as an update for the server.
    pub fn step(&mut self, number: usize, setup: &Setup) -> Option<(Move, Document)> {
        self.now = self.now.plus_millis(i64::try_from(self.random.below(16)).unwrap() - 1);
        let step = steps::draw(&mut self.random, number, setup, self.expected.as_ref());
        let (query, update, upsert) = match &step {
            Move::Run(operation) if is_empty(operation) => return None,
            Move::Run(operation) => self.run(operation, setup),
            Move::Renew { operation, ids, shows } => self.renew(operation, (&**ids, shows.as_ref()), setup),
            Move::Guard { operation, id, token } => self.guard(operation, (id.as_str(), *token), setup),
        };
        Some((step, doc! { "q": query, "u": update, "upsert": upsert }))
    }

    fn run(&mut self, operation: &Operation, setup: &Setup) -> Update {
        let date = Bson::from(self.now);
        let free = self.expected.as_ref().is_none_or(|state| state.is_free(self.now));
        let after = state::apply(self.expected.as_ref(), operation, self.now);
        if let (Some(before), Some(after)) = (&self.expected, &after) {
            self.seen.note(operation, before, after);
        }
        self.expected = after;
        match &operation.requests {
            // As a claim, with its own filter and pipeline.
            Some(_) if !setup.at.is_root() && free && is_claim(operation) => (
                doc! { "$and": [{ "_id": &self.id }, pipeline::free(&setup.at, &date)] },
                // By itself, or by a statement for several documents.
                match self.now.0 % 2 {
                    0 => pipeline::claim(&setup.at, operation, false, &date),
                    _ => pipeline::claim_together(&setup.at, &[(&self.id, operation)], false, &date),
                },
                false,
            ),
            _ => (
                pipeline::selection(&setup.at, self.id.clone(), operation),
                pipeline::operation(&setup.at, operation, &date),
                operation.creates() && setup.at.is_root(),
            ),
        }
    }

    fn renew(&mut self, operation: &str, shown: (&[String], Option<&Showing>), setup: &Setup) -> Update {
        if let Some(state) = &mut self.expected {
            state::renew_and_show(state, operation, shown, 500, self.now);
        }
        (
            doc! { "_id": &self.id, setup.at.key("holders.id"): { "$in": shown.0 } },
            pipeline::renewal(&setup.at, operation, shown, 500, &Bson::from(self.now)),
            false,
        )
    }

    fn guard(&mut self, operation: &str, (id, token): (&str, i64), setup: &Setup) -> Update {
        let date = Bson::from(self.now);
        if let Some(state) = &mut self.expected {
            state::guard(state, operation, (id, token), 500, self.now);
        }
        (
            pipeline::holding(&setup.at, &self.id, (id, token), &date),
            pipeline::guard(&setup.at, operation, id, 500, &date),
            false,
        )
    }

    /// Returns the document that the server must have.
    pub fn document(&self, setup: &Setup) -> Option<Document> {
        let name = self.name();
        let Some(users) = &self.users else {
            return self.expected.as_ref().map(|state| state.to_document(name));
        };
        let mut document = users.clone();
        if let Some(state) = &self.expected {
            let mut lock = state.to_document(name);
            lock.remove("_id");
            let (parents, last) = setup.at.path().rsplit_once('.').unwrap_or(("", setup.at.path()));
            let mut parent = &mut document;
            for segment in parents.split_terminator('.') {
                if !parent.contains_key(segment) {
                    parent.insert(segment, Document::new());
                }
                parent = parent.get_document_mut(segment).unwrap();
            }
            // Other fields of the user's stay there, before it.
            match parent.get_document_mut(last) {
                Ok(present) => present.extend(lock),
                Err(_) => drop(parent.insert(last, lock)),
            }
        }
        Some(document)
    }
}

/// Draws a user's document, in which the path to the lock may be there, or a part of it.
fn users(id: &Bson, random: &mut Random, setup: &Setup) -> Document {
    let text = random.pick(&setup.strings).clone();
    let mut document = doc! { "_id": id, "text": text, "list": [1, { "holders": 2 }] };
    match random.below(3) {
        0 => {}
        1 => drop(document.insert("a", doc! { "holders": 3, "text": random.pick(&setup.strings) })),
        _ => drop(document.insert("a", doc! { "b": { "c": 4 }, "token": "x" })),
    }
    document
}

fn is_empty(operation: &Operation) -> bool {
    operation.leave.is_empty()
        && operation.requests.is_none()
        && operation.change.is_none()
        && operation.evict == Evict::Nobody
}

fn is_claim(operation: &Operation) -> bool {
    let entries = operation.requests.as_ref().map(|requests| &requests.entries[..]);
    let adopts = operation.requests.iter().any(|requests| requests.adopts.is_some());
    operation.expects == Expects::Nothing
        && operation.leave.is_empty()
        && !adopts
        && matches!(entries, Some([entry]) if entry.fresh && entry.upgrades.is_none())
}
