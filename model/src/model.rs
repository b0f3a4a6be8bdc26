//! The protocol, checked exhaustively: every state that a few clients, a server and a network can reach.
//!
//! Nothing of the protocol is written a second time. The server runs the real transitions,
//! [`state::apply`](crate::protocol::state::apply) and [`state::renew`](crate::protocol::state::renew). The clients are
//! real [waitlists](crate::waitlist) that calculate with the real clock and deadlines. The model adds a server with a
//! log, a network, and the few things that the session does around a waitlist: it keeps the deadlines of holds and
//! fires timers (`client`). [stateright](https://docs.rs/stateright) explores all states breadth first, so it shows a
//! breach by one of the shortest ways to it.
//!
//! # What can happen
//!
//! Clients acquire by waiting or by a try, renew, change what they hold, release, hand a hold on from task to task,
//! share one among readers, ask again and repeat failed operations, at any time. In each run a bounded number of
//! *faults* happen, of any kind and at any time:
//!
//! - a command is delayed and applied late: before its client gives it up and repeats it, after that, or never;
//! - an answer is delayed: it arrives late or never, although its command was applied;
//! - events arrive late, and any of them never;
//! - a process freezes for any time and continues; a process crashes, forgets everything, and starts again;
//! - an acquire is given up (a timeout, a dropped future);
//! - an operator breaks the lock;
//! - another primary is elected: every write that no client has seen in an answer or event may be undone, and the
//!   server's clock is set ahead or back by the skew margin;
//! - another program reads the lock's document, and at any later time saves it as it was.
//!
//! Time advances in ticks for as long as the checker likes, and a lease is only a few ticks: everything can run out
//! between any two steps. The number of states is finite all the same: states that differ only by the time of day, by
//! the numbers of tokens and ids, or by which client is which count as one (`fingerprint`). The bounds are the number
//! of clients, locks and tasks, the acquires of each client, and the number of faults in a run.
//!
//! # What must hold
//!
//! In each state: *a counter beyond all tokens* (nobody holds under a token that the document's counter has not passed,
//! so that the next grant has a larger one), *exclusion* (no more permits are held by clients that believe in their
//! hold, by their own clocks, than there are), *no ghost* (a client that has left and was answered has nothing in the
//! document, not even until a lease runs out; unless a process died), *who is refused met somebody* (a refused try had
//! a holder or a waiter in its way at some time since it came), *a loss is told in time* (a client that reads its locks
//! in place of a stream finds out about a loss within the pause between two readings), *who comes lines up* (a client
//! whose queue position is not at the server asks for it at once, unless it pauses after a failure or found the queue
//! full), and *everybody gets its turn*: from each state on, if nothing goes wrong any more and all holders let go, every
//! waiter is granted and the lock is free in the end. This is played out from each state, with events, by polling alone,
//! and by polling where neither a command that is on its way nor the first one that each client then sends is ever
//! answered; it is played out because the checker's own `eventually` passes over cycles. At each write: *capacity*, *rising tokens*, *first come, first served*, *one entry
//! for an id*, *no revival*, *a bounded queue*, *who leaves is gone*, *what is kept stays* (until its time is over,
//! unless an operator breaks the lock), and *no lock opens early* (a hold whose time was over at its client has the lock
//! until the server says so): the two are one property, `what is kept stays`.
//!
//! A holder that an old, saved document does not show is evicted as by an operator, but not notified. Exclusion is no
//! longer promised to it, but its token still goes to nobody else.
//!
//! # What is assumed
//!
//! The monotonic clocks of all machines run equally fast. A write that was answered under a majority, or reported by an
//! event, is never undone. A command is applied at most once: those that the driver repeats are retryable writes. The
//! clocks of primaries differ by at most the skew margin. When a document is set back, the server's clock has advanced
//! since the last grant.
//!
//! # What is not modelled
//!
//! The times at which timers fire: the model lets them fire at any time, and has one sweep instead of three. Other foreign writes and deletes, adoption by a later client with the
//! same owner id, re-entrant holds, shared renewals of many locks in one command (each document is its own atomic
//! write), the read by which a holder in doubt checks its document (it only ends holds), failures of the readings that
//! take the place of a stream (each is repeated), the pipelines (`differential`
//! binds them to the transitions), and the locks in documents of others, whose differences are covered there too. One
//! prompt command and its answer are one step: anything between them comes as one of the faults. An operation may be part
//! of a command for several locks that ended before it came to this one, or was refused there: the document is read,
//! whether the operation was applied or not, and each lock of the command goes its own way.

mod breach;
mod client;
mod fingerprint;
mod happening;
mod playing_out;
mod rules;
mod steps;
mod system;
#[cfg(test)]
mod tests;
mod verdict;

use stateright::{Model, Property};
use watchlock_core::{
    config, hold_options,
    protocol::{self, Kind},
    waitlist,
};

use breach::Breach;
use rules::Rules;
use steps::Action;
use system::{Fault, Setup, System};
use verdict::{
    ends_well, is_counted, is_exclusive, is_lined_up, is_refused_by_somebody, is_told_in_time, is_without_ghosts,
};

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
            Property::always("a counter beyond all tokens", is_counted),
            Property::always("first come, first served", |_, state| none(state, Breach::Overtaken)),
            Property::always("one entry for an id", |_, state| none(state, Breach::Twice)),
            Property::always("no revival", |_, state| none(state, Breach::Revived)),
            Property::always("a bounded queue", |_, state| none(state, Breach::Crowded)),
            Property::always("who leaves is gone", |_, state| none(state, Breach::Stayed)),
            Property::always("what is kept stays", |_, state| none(state, Breach::Opened)),
            Property::always("who is refused met somebody", |_, state| is_refused_by_somebody(state)),
            Property::always("who comes lines up", |_, state| is_lined_up(state)),
            Property::always("a loss is told in time", is_told_in_time),
            Property::always("no ghost", |_, state| is_without_ghosts(state)),
            Property::always("everybody gets its turn", ends_well),
        ]
    }
}
