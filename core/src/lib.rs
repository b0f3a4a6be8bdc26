//! The protocol of `watchlock` and its waiting client, as values and functions: no I/O, no task, no server.
//!
//! - [`protocol`]: the transitions of a lock's document, as functions and as the pipelines that a server runs.
//! - [`waitlist`]: the queue of one process before one lock, with the [clock](waitlist::clock) and the
//!   [deadlines](waitlist::deadline) by which it believes in a hold.
//! - [`config`], [`hold_options`]: settings and the terms of an acquire; [`input`]: the rules for what users pass in.
//!
//! These are internals of the crate `watchlock`, without any promise of stability. Whatever drives them is above: the
//! library with real servers, the model checker with every order of what may happen, the differential test and the
//! fuzzing. Of the driver they need only its values of BSON and the name of a read preference, and of tokio its clock.

// Whoever reads these pages reads the code beside them: what needs a word has one, and some links lead into the code.
// Types in the public face of `watchlock` turn the lint on again.
#![allow(missing_docs, rustdoc::private_intra_doc_links)]

pub mod backoff;
pub mod config;
pub mod grant_path;
pub mod hold_options;
pub mod input;
pub mod lost_reason;
pub mod name;
pub mod protocol;
pub mod truncated_debug;
pub mod waitlist;
pub mod wake_source;
