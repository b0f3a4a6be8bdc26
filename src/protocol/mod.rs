//! The lock protocol, without I/O and without a clock.
//!
//! # The algorithm
//!
//! A lock is one document that holds its own holders and its own queue:
//!
//! ```text
//! { _id: <name>, protocol, kind, capacity,
//!   token:    <the last fencing token issued>,
//!   holders:  [{ id, permits, lease, claim, since, until, owner, token }],
//!   queue:    [{ id, permits, lease, claim, since, until, owner }],   // first come, first served; head first
//!   wake:     <a string, new in every write: see `wake`>,
//!   version:  <counts the writes>,
//!   at:       <when it was written last>,
//!   purge_at: <when the TTL index may remove the document>,
//!   broken:   <the largest token that an operator put out, if ever one did>,
//!   adopted:  <the tokens that the last adoption put out, if ever there was one>,
//!   evicted:  <the token of the last holder that an operator put out by itself, if ever one did> }
//! ```
//!
//! A mutex is capacity 1; a semaphore is capacity n; a readers-writer lock is a large capacity of which a reader takes
//! one and a writer all, exactly as `tokio::sync` builds its own on one semaphore.
//!
//! Every [`Operation`] is one atomic write, decided on the server's clock, and ends with the same step, *advance*:
//! entries whose `until` has passed fall out, and as long as the head of the queue fits the free capacity it becomes a
//! holder with the next token. A release therefore *hands over inside the same write*; the change event of that write
//! is the grant. Nobody contends and nothing is retried: one write and one event per hand-over, however many wait. The
//! queue is served strictly in order, so a large request is not starved by small ones behind it.
//!
//! The algorithm exists twice. [`state`] is the specification: pure functions of state, operation and time, which also
//! run the in-memory store. [`pipeline`] is the same as an aggregation pipeline for the server. A differential test
//! runs random sequences through both and compares the documents.
//!
//! # What each transition guarantees
//!
//! - *Exclusion*: only *advance* adds a holder, and only while the permits fit the capacity.
//! - *Rising tokens*: only *advance* issues a token: the last one plus one, or the server's clock in microseconds where that
//!   is larger. So tokens rise also where the counter was lost or set back with its document: deleted, purged, or
//!   overwritten with an earlier copy.
//! - *Idempotence*: a request names its entry. Asking again after a lost answer finds the entry and adds nothing.
//! - *No revival*: a renewal touches only holders whose `until` lies ahead; a lost lock stays lost.
//! - *Adoption*: a request under a stable owner id puts out what earlier incarnations of that owner have in the document,
//!   in the same write, and takes the place of those that held: at the head of the queue, with a token of its own. Which
//!   of two incarnations is the earlier is decided by the server's clock when each began.
//! - *No ghost*: an entry lives until `until` and not longer unless its session says so again.
//! - *A bounded document*: the queue has room for so many entries. A request that finds it full is not in it afterwards,
//!   and its session knocks again from time to time.
//!
//! # Versions of the protocol
//!
//! `protocol` is the number of the protocol that a client must speak to act on the document. A document without it is of
//! the first. Versions of the library with different protocols share a collection by these rules:
//!
//! 1. A client acts on documents up to its own number. On any other it does nothing: each pipeline and each filter of an
//!    update compares the number in the same atomic write, before it looks at anything else. The caller gets an error
//!    with both numbers; a claim passes over such a document; a holder whose document was taken to a later protocol
//!    has lost its lock.
//! 2. A later client keeps the number of a document as long as anybody holds the lock or waits for it, and writes it as
//!    that number says. It may write its own number where the lock is idle, as it may change kind and capacity
//!    there, or where it creates the document. So no holder and no waiter of an earlier version is cut off.
//! 3. Nobody lowers a number. After a downgrade the documents are removed, which is safe while they are idle; the TTL
//!    index does so in time.
//! 4. A change gets another number if an earlier client that goes on as before would break a promise: another meaning of
//!    a field, another order of the queue, another bound of its length. A field that earlier clients may pass over needs
//!    none: they keep the fields of the document and of its entries that they don't know.

pub(crate) mod ahead;
pub(crate) mod document;
pub(crate) mod location;
pub(crate) mod pipeline;
pub(crate) mod state;
pub(crate) mod wake;

pub(crate) use ahead::Ahead;
pub(crate) use location::Location;
pub use state::Kind;
pub(crate) use state::{
    ASK_TOGETHER, Evict, Expects, Holder, Identity, Operation, Owner, Proclaim, QUEUE_MOST, Request, Requests,
    ServerTime, State, Use, Waiter, clock_token,
};

#[cfg(test)]
mod differential;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod random;
