//! The lock protocol, without I/O and without a clock.
//!
//! # The algorithm
//!
//! A lock is one document that holds its own holders and its own queue:
//!
//! ```text
//! { _id: <name>, protocol, kind, capacity,
//!   token:    <the last fencing token issued>,
//!   holders:  [{ id, permits, lease, claim, since, until, owner, token,
//!                released: <when its holder released it, if the lock is kept beyond that>,
//!                idle: <whether no task of its client has it>,
//!                awaits: { lock, wait } of a task of its client that has it and has waited for long,
//!                shown: <the number of the renewal that says so> }],
//!   queue:    [{ id, permits, lease, claim, since, until, owner }],   // first come, first served; head first
//!   wake:     <a string, new in every write: see `wake`>,
//!   version:  <the number of writes>,
//!   at:       <the time of the last write>,
//!   purge_at: <the time from which the TTL index may remove the document; set for longer than asked: see `state`>,
//!   broken:   <the largest token that an operator evicted by breaking the lock, if ever one did>,
//!   adopted:  <the tokens that the last adoption removed, if ever there was one>,
//!   evicted:  <the token of the last holder that an operator evicted by itself, if ever one did>,
//!   ends:     [{ token, permits, since, owner, ended, how }],         // the last holds that ended; newest first
//!   attempts: <how often claims with a limit have claimed the document, if ever one did> }
//! ```
//!
//! In a document of the user's own, the lock is a sub-document. The locks of an array's elements are several of these,
//! side by side in one map; see `pipeline::sharing`.
//!
//! While an entry holds all permits, its process may hand the hold on from task to task without a write, and readers of
//! one process may share an entry: see `waitlist::handing_on`. Its `token` is then that of the first task, and the
//! others have theirs from a range that the grant took out of the document's counter for all of them.
//!
//! A mutex has capacity 1 and a semaphore capacity n, which can be set at any time; a readers-writer lock has a large
//! capacity, of which a reader takes one permit and a writer all, exactly as `tokio::sync` builds its own on one
//! semaphore. An upgradeable reader takes more than half, and becomes a writer by a second entry with the others.
//!
//! # The phases
//!
//! Every [`Operation`] is one atomic write, decided on the server's clock. It takes the document through these phases:
//!
//! 1. *leave*: the entries that are asked to leave are removed, and all whose `until` has passed. A holder that leaves
//!    and whose lock is kept taken stays, with another `until`; one whose time was over at its client stays as it is,
//!    and only a later grant of its entry leaves.
//! 2. *adopt*: the entries of earlier incarnations of the owner that requests are removed.
//! 3. *change*: a holder is renewed with fewer permits, a longer lease, another value unless it has a later one, or under
//!    another entry: as the reader that a writer becomes, without a handle, or by another client.
//! 4. *evict*: the holders that an operator evicts are removed.
//! 5. *enqueue*: the requested entries are appended to the queue, unless they are in the document already, or need more
//!    permits than there are; on a kind mismatch the operation is a no-op. If adopt removed a holder, they go to the
//!    head of the queue instead. An entry by which a holder becomes a writer goes before all others. Or the capacity is set: waiters for more than that are removed, and told to ask.
//! 6. *advance*: as long as the head of the queue fits the free capacity, it becomes a holder with the next token. Then
//!    the queue is cut to its room, though never shorter than it was, and the requests that are not to wait leave it.
//!    A grant to an entry that this very operation requests can take a range of tokens out of the counter.
//! 7. *record*: the holds that the operation ended are put in front of `ends`, if the client keeps a history. Nothing
//!    reads them but people; clients that keep none leave them as they are.
//! 8. *stamp*: `wake`, the version and the times are set. `wake` names the holders that a request has lined up behind,
//!    and one that was granted while others wait: they then hand on and share no more, and are told. A try or a repeated
//!    request that changed nothing is a no-op.
//!
//! Leave comes before advance, so a release *hands over inside the same write*, and the change event of that write is
//! the grant. Nobody contends and nothing is retried: one write and one event per hand-over, however many wait. Advance
//! serves the queue strictly in order, so small requests do not starve a large one in front of them.
//!
//! The phases exist twice, as functions of the same names in the same order; the helpers of a phase that both need have
//! the same names too. [`state`] is the specification: pure functions of state, operation and time, on which the
//! in-memory store runs too. [`pipeline`] is the same as an aggregation pipeline for the server, with short forms for
//! the frequent operations, which leave out the phases that have nothing to do. A differential test runs random
//! sequences through both and compares the documents.
//!
//! A renewal is no operation: it extends the leases of holders, and has nothing of the phases but the stamp.
//!
//! # The guarantees of the phases
//!
//! - *Exclusion*: only advance adds a holder, and only while the permits fit the capacity.
//! - *Rising tokens*: only advance issues a token: the last one plus one, or the server's clock in microseconds where
//!   that is larger. A range of tokens is the holder's alone, as the write of its grant takes it out of the counter. So
//!   tokens rise even if the counter was lost or set back with its document: deleted, purged, or overwritten with an
//!   earlier copy.
//! - *Idempotence*: a request names its entry. If its answer is lost and it is sent again, enqueue finds the entry and
//!   adds nothing.
//! - *No revival*: a renewal extends only holders whose `until` lies ahead; a lost lock stays lost.
//! - *A lock that is kept taken*: a holder that was released and is kept (leave) goes when its `until` has passed, or
//!   by evict. No renewal extends it, no late leave removes it, and a later incarnation of its owner does not adopt it.
//! - *Adoption*: a request under a stable owner id removes the entries that earlier incarnations of that owner have in
//!   the document, in the same write (adopt). It takes the place of those that held: at the head of the queue
//!   (enqueue), with a token of its own (advance). The server's clock when each incarnation began decides which is the
//!   earlier.
//! - *No ghost*: an entry lives until `until`, and longer only if its session says so again; leave removes the others.
//! - *No early end*: a hold ends by a release, by an eviction or an adoption, or when its `until` has passed. Its holder
//!   stops earlier by the margins, and leaves the entry to the server. An entry whose `until` has passed is nobody's
//!   hold, whether or not a write has removed it: an operator evicts none, and a release finds none.
//! - *A bounded document*: advance cuts the queue to a fixed length. A request that finds the queue full is not in it
//!   afterwards, and its session asks again from time to time. A request that adopts a hold and needs more permits
//!   than that is in it all the same, in the place of a holder: the document has no more entries than before.
//!
//! # Versions of the protocol
//!
//! `protocol` is the number of the protocol that a client must speak to act on the document. A document without a
//! number is of the first. Versions of the library with different protocols share a collection by these rules:
//!
//! 1. A client acts on documents up to its own number. On any other it does nothing: each pipeline and each filter of
//!    an update compares the number in the same atomic write, before it looks at anything else. The caller gets an
//!    error with both numbers; a claim passes over such a document; a holder whose document was taken to a later
//!    protocol has lost its lock.
//! 2. A later client keeps the number of a document as long as anybody holds the lock or waits for it, and writes the
//!    document as that number says. It may write its own number where the lock is free, as it may change kind and
//!    capacity there, or where it creates the document. So no holder and no waiter of an earlier version is cut off.
//!    The one exception is an operator who sets the permits of a semaphore in use, which is of the second protocol from
//!    then on. All other documents are of the first.
//! 3. Nobody lowers a number. After a downgrade the documents are removed, which is safe while their locks are free;
//!    the TTL index does so in time.
//! 4. A change needs a new number if an earlier client that does not know of it would break a promise: another meaning
//!    of a field, another order of the queue, another bound of its length. A field that earlier clients may ignore
//!    needs none: they keep the fields of the document and of its entries that they don't know.

pub mod document;
pub mod ended;
mod entry;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
pub mod kind;
pub mod location;
mod operation;
pub mod pipeline;
mod server_time;
pub mod state;
pub mod wake;

pub(crate) use ended::HISTORY_MOST;
pub use ended::{Ended, HoldEnd};
pub use entry::{Awaited, DETACHED, Entry, Identity, Owner, Showing, Shown};
pub use kind::{Kind, Use};
pub use location::Location;
pub(crate) use operation::NOTIFIES_UP_TO;
pub use operation::{
    AT_ONCE, CapacityIs, Change, Evict, Expects, Kept, KeptUntil, Operation, QUEUE_MOST, Request, Requests,
};
pub use server_time::{Exchange, LogTime, ServerTime};
pub use state::{State, is_issued_after};
