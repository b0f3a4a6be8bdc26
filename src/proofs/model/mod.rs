//! The protocol, checked exhaustively: every state that a few clients, a server and a network can get into.
//!
//! Nothing of the protocol is written a second time. The server runs the real transitions,
//! [`state::apply`](crate::protocol::state::apply) and [`state::renew`](crate::protocol::state::renew). The clients are real
//! [waitlists](crate::waitlist) that reckon with the real clock and deadlines. The model adds a server with a log, a
//! network, and the little that the session does around a waitlist: it keeps the deadlines of holds and fires timers
//! (`client`). [stateright](https://docs.rs/stateright) explores all states breadth first, so a breach is shown by one of
//! the shortest ways to it.
//!
//! # What can happen
//!
//! Clients acquire by waiting or by a try, renew, release, ask again and repeat what failed, at any time. In each run up
//! to so many *faults* come to pass, of any sort and at any time:
//!
//! - a command stays on its way and is applied late: before its client gives it up and repeats it, after, or never;
//! - an answer stays on its way: it comes late or never, with its command applied;
//! - events come late, and any of them never;
//! - a process stands still for any time and goes on; one crashes, forgets everything, and starts again;
//! - an acquire is given up (a timeout, a dropped future);
//! - an operator breaks the lock;
//! - another primary is elected: every write that nobody was answered or told of may be undone, and the server's clock
//!   is set ahead or back by the skew margin;
//! - somebody else reads the lock's document, and saves it at any later time as it was.
//!
//! Time goes on in ticks for as long as the checker likes, and a lease is only a few of them: everything can run out
//! between any two steps. The states are finitely many all the same, as those that differ by the time of day, by the
//! numbers of tokens and ids, or by which client is which are taken for one (`fingerprint`). The bounds are the number
//! of clients, locks and tasks, how often each client acquires, and the number of faults in a run.
//!
//! # What must hold
//!
//! Of each state: *exclusion* (no more permits with clients that believe to hold them, by their own clocks, than there
//! are), *no ghost* (a client that has left and was answered has nothing in the document, not even until a lease runs
//! out; unless a process died), and *everybody gets its turn*: from each state on, if nothing goes wrong any more and whoever holds
//! lets go, everybody who waits is granted and the lock is idle in the end. That is run to its end from each state, with
//! events, by polling alone, and by polling where no command that is on its way is ever answered, nor the first of each
//! client from there on; as the checker's own `eventually` passes over cycles. Of each write: *capacity*, *rising tokens*,
//! *first come, first served*, *one entry for an id*, *no revival*, *a bounded queue*, *who leaves is gone*.
//!
//! Who held the lock when an old document was saved, and does not in that, is put out as by an operator, but is not told.
//! Exclusion is not promised to it any more; that nobody else gets its token is.
//!
//! # What is taken for granted
//!
//! The monotonic clocks of all machines go equally fast. A write that was answered under a majority, or that an event
//! told of, is never undone. A command is applied once at most: what the driver repeats is a retryable write. The
//! clocks of primaries differ by the skew margin at most. Where a document is set back, the server's clock has gone on since
//! the last grant.
//!
//! # What is not modelled
//!
//! When timers fire: the model lets them fire at any time, and has one sweep instead of three. Looks at a queue position,
//! which only make a waiter ask. Other foreign writes and deletes, adoption by a later client of the same owner id, re-entrant holds, shared renewals of many locks in one command (each document is its own atomic write), the
//! look by which a holder in doubt reads its document (it only ends holds), the pipelines (`differential` holds them to
//! the transitions) and the locks in documents of others, whose differences are there too. One prompt command and its
//! answer are one step: what comes between them comes as one of the faults.

mod breach;
mod client;
mod fingerprint;
mod rules;
mod system;
mod tests;
mod verdict;

use stateright::{Model, Property};

use crate::protocol::Kind;
use breach::Breach;
use rules::Rules;
use system::{Action, Fault, Setup, System};
use verdict::{ends_well, is_exclusive, is_without_ghosts};

impl Model for Setup {
    type State = System;
    type Action = Action;

    fn init_states(&self) -> Vec<System> {
        vec![self.start()]
    }

    fn actions(&self, state: &System, actions: &mut Vec<Action>) {
        self.steps(state, actions);
    }

    fn next_state(&self, state: &System, action: Action) -> Option<System> {
        self.after(state, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn none(state: &System, breach: Breach) -> bool {
            state.breach != Some(breach)
        }
        vec![
            Property::always("exclusion", is_exclusive),
            Property::always("capacity", |_, state| none(state, Breach::Capacity)),
            Property::always("rising tokens", |_, state| none(state, Breach::Token)),
            Property::always("first come, first served", |_, state| none(state, Breach::Overtaken)),
            Property::always("one entry for an id", |_, state| none(state, Breach::Twice)),
            Property::always("no revival", |_, state| none(state, Breach::Revived)),
            Property::always("a bounded queue", |_, state| none(state, Breach::Crowded)),
            Property::always("who leaves is gone", |_, state| none(state, Breach::Stayed)),
            Property::always("no ghost", |_, state| is_without_ghosts(state)),
            Property::always("everybody gets its turn", ends_well),
        ]
    }
}
