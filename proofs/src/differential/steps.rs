//! The drawing of a step. [`Draw::step`] chooses its kind, and [`Draw::shape`] the shape of an operation. Each kind and
//! each shape has a function of its own.

use std::slice;

use crate::Random;
use watchlock_core::protocol::{
    Awaited, CapacityIs, Change, Entry, Evict, Expects, Identity, Kept, KeptUntil, Kind, Operation, Owner, Request,
    Requests, Showing, State,
};

use super::setup::Setup;

/// A step of a sequence.
#[derive(Debug)]
pub enum Move {
    Run(Box<Operation>),
    Renew {
        operation: String,
        ids: Vec<String>,
        shows: Option<Showing>,
    },
    Guard {
        operation: String,
        id: String,
        token: i64,
    },
}

/// Draws a step on a lock in this state.
pub(super) fn draw(random: &mut Random, number: usize, setup: &Setup, state: Option<&State>) -> Move {
    let mut draw = Draw { random, setup, state };
    let operation = format!("{}.{number}", draw.one_of(&["a", "b", "$c"]));
    draw.step(operation)
}

/// The drawing of one step.
struct Draw<'a> {
    random: &'a mut Random,
    setup: &'a Setup,
    /// The lock before the step.
    state: Option<&'a State>,
}

impl<'a> Draw<'a> {
    /// Draws a step of any kind.
    fn step(&mut self, operation: String) -> Move {
        if self.one_in(5) {
            return self.renewal(operation);
        }
        if let Some(holder) = self.last_holder()
            && self.one_in(8)
        {
            return self.guard(operation, holder);
        }
        if let Some(holder) = self.last_holder()
            && self.one_in(9)
        {
            return Move::Run(Box::new(self.keep(operation, holder)));
        }
        if let Some(released) = self.released_holder()
            && self.one_in(3)
        {
            let after_release = match self.random.below(2) {
                0 => self.change_of(released, blank(&operation)),
                _ => self.late_release(operation, released),
            };
            return Move::Run(Box::new(after_release));
        }
        Move::Run(Box::new(self.operation(operation)))
    }

    fn renewal(&mut self, operation: String) -> Move {
        let ids = self.few_ids(3);
        let shows = self.one_in(2).then(|| {
            let idle = self.few_ids(3);
            let awaited = |id: &String| Awaited {
                lock: "$$another".to_owned(),
                wait: i64::try_from(id.len()).unwrap_or_default(),
            };
            // No holder is idle and waits. The specification makes nothing of that.
            let awaits = idle.iter().skip(1).map(|id| (id.clone(), awaited(id))).collect();
            Showing {
                idle: idle.into_iter().collect(),
                awaits,
                // Some of them come late.
                as_of: self.state.map_or(0, |state| state.version % 5),
            }
        });
        Move::Renew { operation, ids, shows }
    }

    /// Draws a guard, mostly of a holder.
    fn guard(&mut self, operation: String, holder: &Entry) -> Move {
        let (held, another) = (holder.id.as_str(), self.any_id());
        Move::Guard {
            operation,
            id: self.one_of(&[held, held, another]).to_owned(),
            token: self.token(holder, 4),
        }
    }

    /// Draws a release that keeps the lock.
    fn keep(&mut self, id: String, holder: &Entry) -> Operation {
        let releases = Operation {
            leave: vec![holder.id.clone()],
            kept: vec![self.kept_until(holder)],
            ..blank(&id)
        };
        self.recording(releases)
    }

    /// Draws a release that comes late, in whatever form.
    fn late_release(&mut self, id: String, released: &Entry) -> Operation {
        let expects = match self.capacity() {
            Some(1) => self.one_of(&[Expects::Nothing, Expects::OnlyHolder, Expects::Alone]),
            _ => self.one_of(&[Expects::Nothing, Expects::Holding]),
        };
        self.recording(Operation {
            leave: vec![released.id.clone()],
            expects,
            ..blank(&id)
        })
    }

    /// Draws an operation in one of the shapes of use.
    fn operation(&mut self, id: String) -> Operation {
        let requests = (!self.one_in(4)).then(|| self.requests());
        let leave = self.few_ids(2);
        let kept = self.kept(&leave);
        let queued = self.state.map_or(0, |state| state.queue.len());
        let room = self.one_of(&[queued.max(1), 4, 4]);
        let operation = self.shape(Operation {
            leave,
            kept,
            requests,
            room,
            ..blank(&id)
        });
        // As in use: what keeps is a release in the general form.
        let keeps = !operation.leave.is_empty() && operation.expects == Expects::Nothing;
        self.recording(Operation {
            kept: if keeps { operation.kept } else { Vec::new() },
            ..operation
        })
    }

    /// Draws the shape of an operation, and leaves out of it whatever does not go with that shape.
    ///
    /// As in use: an operation that leaves and requests is of one kind of lock, and an eviction does nothing else.
    fn shape(&mut self, drawn: Operation) -> Operation {
        let used = self.state.map(|state| (state.kind, state.capacity));
        let requests = drawn.requests.as_ref();
        // Who offers a number goes by that of the lock.
        let is_alike = requests.zip(used).is_some_and(|(requests, used)| match requests.by {
            CapacityIs::Offered => requests.kind == used.0,
            _ => (requests.kind, requests.capacity) == used,
        });
        let is_for_one = requests.is_some_and(is_for_one);
        let leaves_one = drawn.leave.len() == 1;
        let is_for_one_permit = self.capacity() == Some(1);
        match self.random.below(14) {
            0 => self.evict_everybody(drawn),
            2..5 if leaves_one && is_for_one_permit => self.release_briefly(drawn),
            2..4 if leaves_one => release(drawn, Expects::Holding),
            2..5 => release(drawn, Expects::Nothing),
            5..7 if is_for_one => request_alone(drawn),
            11 => self.evict_one(drawn),
            10 | 12 => self.change(drawn),
            1 | 13 if self.has_semaphores() && self.one_in(2) => self.set(drawn),
            // An operation may still concern a lock that is gone by now.
            _ if requests.is_some() && used.is_some() && !is_alike => only_request(drawn),
            _ => drawn,
        }
    }

    /// Draws one of the two short forms of a release of the only permit.
    fn release_briefly(&mut self, drawn: Operation) -> Operation {
        let expects = self.one_of(&[Expects::Alone, Expects::OnlyHolder]);
        release(drawn, expects)
    }

    /// Draws the eviction of a holder, mostly under its present token, or of what is kept up to that token.
    fn evict_one(&mut self, drawn: Operation) -> Operation {
        let token = match self.first_or_second_holder() {
            Some(holder) => self.token(holder, 4),
            None => 7,
        };
        let evict = self.one_of(&[Evict::Holder(token), Evict::Holder(token), Evict::Kept(token)]);
        Operation {
            evict,
            ..without_entries(drawn)
        }
    }

    fn evict_everybody(&mut self, drawn: Operation) -> Operation {
        Operation {
            evict: Evict::Everybody,
            ..without_entries(drawn)
        }
    }

    /// Draws a change, of a holder with permits to give up if there is one.
    fn change(&mut self, drawn: Operation) -> Operation {
        let mut holders = self.state.into_iter().flat_map(|state| &state.holders);
        let of_many = holders.find(|holder| holder.permits > 1);
        match of_many.or_else(|| self.first_or_second_holder()) {
            Some(holder) => self.change_of(holder, drawn),
            // Without a holder there is nothing to change.
            None => drawn,
        }
    }

    /// Draws a change, mostly of this holder, sometimes under the token of an earlier grant, sometimes with fewer permits
    /// or a longer lease already, and sometimes into another entry or with another value.
    fn change_of(&mut self, holder: &Entry, drawn: Operation) -> Operation {
        let another = self.any_id();
        let id = self.mostly(holder, another);
        let becomes = if self.one_in(3) {
            format!("detached-{}", self.state.map_or(0, |state| state.version))
        } else {
            id.clone()
        };
        Operation {
            change: Some(Change {
                id,
                token: self.token(holder, 4),
                permits: self.one_of(&[1, 2, i64::MAX]),
                lease: self.one_of(&[0, 5, 50]),
                owner: self.one_in(2).then(|| self.owner()),
                // Values of one entry meet, with equal numbers too.
                value: self.one_in(2).then(|| (self.string(), 1 + self.number(4))),
                becomes,
            }),
            ..without_entries(drawn)
        }
    }

    fn has_semaphores(&self) -> bool {
        self.setup.uses.iter().any(|(kind, _)| *kind == Kind::Semaphore)
    }

    /// Draws a setting of the number of permits: also below those that are held, or waited for.
    fn set(&mut self, drawn: Operation) -> Operation {
        let requests = Requests {
            kind: Kind::Semaphore,
            capacity: 1 + self.number(5),
            by: CapacityIs::Set,
            entries: Vec::new(),
            adopts: None,
        };
        Operation {
            requests: Some(requests),
            ..without_entries(drawn)
        }
    }

    fn requests(&mut self) -> Requests {
        // In a lock with other uses, entries meet only if some are for the present one.
        let used = self.state.map(|state| (state.kind, state.capacity));
        let used = used.filter(|_| self.one_in(2));
        let (kind, capacity) = used.unwrap_or_else(|| self.one_of(self.setup.uses));
        let by = match kind {
            Kind::Semaphore => self.one_of(&[CapacityIs::Demanded, CapacityIs::Offered]),
            _ => CapacityIs::Demanded,
        };
        let mut ids = self.few_ids(2);
        ids.push(self.any_id().to_owned());
        ids.sort();
        ids.dedup();
        let ids = ids.into_iter().enumerate();
        let entries = ids.map(|(position, id)| self.request(id, capacity, position == 0));
        let mut entries: Vec<Request> = entries.collect();
        let queued = self
            .state
            .and_then(|state| Some((state.queue.first()?, state.holders.first()?)));
        if let Some((head, reader)) = queued.filter(|_| self.one_in(3)) {
            // One that upgrades is mostly in the queue already.
            entries.retain(|entry| entry.id != head.id);
            entries.push(Request {
                upgrades: Some(reader.id.clone()),
                ..self.request(head.id.clone(), capacity, false)
            });
        }
        // As in use: only entries that fit together are asked for together.
        let adopts = self.identity().filter(|_| capacity > 1 || entries.len() == 1);
        Requests {
            kind,
            capacity,
            by,
            entries,
            adopts,
        }
    }

    fn request(&mut self, id: String, capacity: i64, is_first: bool) -> Request {
        let is_known = self.state.is_some_and(|state| state.has_any(slice::from_ref(&id)));
        Request {
            fresh: self.one_in(if is_known { 4 } else { 2 }),
            id,
            permits: self.one_of(&[1, 1, capacity]),
            // As in use: for one entry.
            reserve: if is_first { self.one_of(&[0, 1, 63]) } else { 0 },
            upgrades: self.reader(capacity),
            lease: self.one_of(&[10, 25, 1000]),
            claim: self.one_of(&[1, 5]),
            wait: !self.one_in(3),
            owner: self.owner(),
        }
    }

    fn owner(&mut self) -> Owner {
        Owner {
            host: self.string(),
            pid: 7,
            label: self.one_in(2).then(|| self.string()),
            reason: self.one_in(2).then(|| self.string()),
            value: self.one_in(2).then(|| self.string()),
            proclaimed: 0,
            identity: self.identity(),
        }
    }

    /// Draws the holder that an entry upgrades, sometimes one that is not there; mostly none. With others in the queue
    /// it is often one, as it then overtakes them.
    fn reader(&mut self, capacity: i64) -> Option<String> {
        let queued = self.state.is_some_and(|state| !state.queue.is_empty());
        let times = if queued && capacity > 1 { 2 } else { 16 };
        let another = self.any_id();
        let upgrades = self.one_in(times).then(|| self.first_or_second_holder());
        upgrades.map(|holder| holder.map_or(another.to_owned(), |holder| self.mostly(holder, another)))
    }

    /// Draws an identity, or none. Owners are few, some of them hostile, and so are incarnations: they must meet too.
    fn identity(&mut self) -> Option<Identity> {
        (!self.one_in(3)).then(|| Identity {
            id: self.one_of(&["worker", "$$NOW", "$holders.owner.id"]).to_owned(),
            born: self.number(4),
        })
    }

    /// Draws what an operation records of the holds that end: often nothing, as of a client without a history.
    fn recording(&mut self, operation: Operation) -> Operation {
        let held_too_long = operation.leave.iter().filter(|_| self.one_in(3)).cloned().collect();
        Operation {
            history: self.one_of(&[0, 1, 3]),
            held_too_long,
            ..operation
        }
    }

    /// Draws which of the holders that leave are kept.
    fn kept(&mut self, leave: &[String]) -> Vec<Kept> {
        let holders = self.state.into_iter().flat_map(|state| &state.holders);
        let holders = holders.filter(|holder| leave.contains(&holder.id));
        let kept: Vec<&Entry> = holders.filter(|_| self.one_in(2)).collect();
        kept.into_iter().map(|holder| self.kept_until(holder)).collect()
    }

    /// Draws until when a holder is kept, sometimes under the token of an earlier grant.
    fn kept_until(&mut self, holder: &Entry) -> Kept {
        let millis = self.number(40);
        Kept {
            id: holder.id.clone(),
            token: self.token(holder, 8),
            until: match self.random.below(6) {
                0 | 1 => KeptUntil::AfterGrant(millis),
                2 | 3 => KeptUntil::AfterRelease(millis),
                4 => KeptUntil::Expiry,
                _ => KeptUntil::WindowEnd {
                    length: 1 + millis,
                    offset: self.number(20),
                },
            },
        }
    }

    /// As in use: the number of permits of a semaphore can be set at any time.
    fn capacity(&self) -> Option<i64> {
        let state = self.state.filter(|state| state.kind != Kind::Semaphore);
        state.map(|state| state.capacity)
    }

    fn last_holder(&self) -> Option<&'a Entry> {
        self.state?.holders.last()
    }

    /// Returns the first of the holders whose lock is kept.
    fn released_holder(&self) -> Option<&'a Entry> {
        self.state?.holders.iter().find(|holder| holder.is_kept())
    }

    fn first_or_second_holder(&mut self) -> Option<&'a Entry> {
        let holders = &self.state?.holders;
        holders.get(self.random.below(2) as usize)
    }

    /// Draws the token of a holder, or one time in so many that of an earlier grant.
    fn token(&mut self, holder: &Entry, times: u64) -> i64 {
        holder.token - i64::from(self.one_in(times))
    }

    /// Draws the id of the holder, or one time in four the other id.
    fn mostly(&mut self, holder: &Entry, another: &str) -> String {
        let held = holder.id.as_str();
        self.one_of(&[held, held, held, another]).to_owned()
    }

    fn any_id(&mut self) -> &'a str {
        self.random.pick(&self.setup.ids).as_str()
    }

    fn few_ids(&mut self, most: u64) -> Vec<String> {
        let count = self.random.below(most + 1);
        (0..count).map(|_| self.plain_id_mostly()).collect()
    }

    /// Draws an id, mostly from the plain ones: they must meet.
    fn plain_id_mostly(&mut self) -> String {
        if self.one_in(8) {
            self.any_id().to_owned()
        } else {
            self.random.pick(self.setup.plain_ids()).clone()
        }
    }

    fn string(&mut self) -> String {
        self.random.pick(&self.setup.strings).clone()
    }

    fn number(&mut self, bound: u64) -> i64 {
        i64::try_from(self.random.below(bound)).unwrap()
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> T {
        *self.random.pick(from)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }
}

/// An operation that does nothing yet, on a lock whose queue is soon full.
fn blank(id: &str) -> Operation {
    Operation {
        room: 4,
        ..Operation::blank(id.to_owned(), 500)
    }
}

fn without_entries(drawn: Operation) -> Operation {
    Operation {
        leave: Vec::new(),
        requests: None,
        ..drawn
    }
}

/// A release, in a short form where it expects something.
fn release(drawn: Operation, expects: Expects) -> Operation {
    Operation {
        requests: None,
        expects,
        ..drawn
    }
}

/// A request that expects the lock to be idle, which never adopts.
fn request_alone(drawn: Operation) -> Operation {
    Operation {
        leave: Vec::new(),
        expects: Expects::Alone,
        requests: drawn.requests.map(|requests| Requests {
            adopts: None,
            ..without_upgrades(requests)
        }),
        ..drawn
    }
}

fn without_upgrades(mut requests: Requests) -> Requests {
    requests.entries.iter_mut().for_each(|entry| entry.upgrades = None);
    requests
}

fn only_request(drawn: Operation) -> Operation {
    Operation {
        leave: Vec::new(),
        ..drawn
    }
}

/// Returns whether one fresh entry is requested in a lock of one permit: alone, that has a short form.
fn is_for_one(requests: &Requests) -> bool {
    requests.capacity == 1 && matches!(&requests.entries[..], [entry] if entry.fresh)
}
