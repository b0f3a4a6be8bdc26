//! The checked code: the transitions, and the rules by which a client believes; the real ones, or ones with a fault.

use std::{sync::LazyLock, time::Duration};

use crate::{
    config::Config,
    protocol::{Operation, QUEUE_MOST, ServerTime, State, state},
};

/// In ticks, each a millisecond of the server's clock. Small, so that everything can run out within a few steps; in the
/// proportions that the settings of a client are held to.
pub(super) const LEASE: i64 = 4;
pub(super) const CLAIM: i64 = 3;
pub(super) const SKEW: i64 = 1;

/// The server's clock at the beginning: any time after 1970 will do.
pub(super) const EPOCH: i64 = 1_000;

/// Minimum time for which a document outlives its last write.
pub(super) const KEEP: i64 = LEASE + 3;

pub(super) type Apply = fn(Option<&State>, &Operation, ServerTime) -> Option<State>;
pub(super) type Renew = fn(&mut State, &str, &[String], i64, ServerTime) -> bool;

/// The seam through which faults are seeded: changes to the real waitlist, and to its inputs. It exists in this model
/// only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) apply: Apply,
    pub(super) renew: Renew,
    /// A client takes the skew margin off the end of every lease.
    pub(super) margin: bool,
    /// How many entries the queue has room for.
    pub(super) room: usize,
    /// Leases are counted from before the request was sent, and not from its answer.
    pub(super) counts_from_sending: bool,
    /// A grant whose claim has run out is not believed.
    pub(super) refuses_late_news: bool,
    /// Each look at a hold compares the clock, and does not wait for a timer to end the hold.
    pub(super) looks_at_the_clock: bool,
    /// A grant in an answer or an event is committed by a majority.
    pub(super) waits_for_majority: bool,
    /// A waiter that gives up removes its entry.
    pub(super) leaves_when_giving_up: bool,
    /// A try that finds others in line waits for the server's answer.
    pub(super) tries_await_answers: bool,
    /// An eviction ends the hold of the grant that was broken, and no later one of the same entry.
    pub(super) tells_grants_apart: bool,
    /// The task behind an upgrade is asked for beside it.
    pub(super) asks_beside_upgrades: bool,
    /// A client that found the queue full asks again.
    pub(super) asks_for_room: bool,
    /// For how many ticks after a release a lock is kept; 0: not at all.
    pub(super) keeps: i64,
    /// A hold that is handed on inside a process ends when it would have ended, and not a lease later.
    pub(super) hands_on_what_is_left: bool,
    /// A hold that readers of one process share is released by the last of them, and not by the first.
    pub(super) last_reader_releases: bool,
    /// How many tokens a client takes for its own that no write has reserved.
    pub(super) tokens_not_reserved: i64,
    /// A lock stays with its client after a release, for the next task.
    pub(super) stays_idle: bool,
    /// A client that learns that others wait gives its idle lock back.
    pub(super) heeds_notices: bool,
    /// A command that is not answered is given up, and its client goes on beside it.
    pub(super) gives_up_commands: bool,
    /// The entry of a hold whose time is over at its client stays until the server ends it.
    pub(super) leaves_ends_to_the_server: bool,
    /// Pause, in ticks, between the readings by which a client finds out about losses; 0: it has a stream.
    pub(super) reads_losses_every: i64,
    /// Such a client compares all its holds with what it read.
    pub(super) compares_all: bool,
}

impl Rules {
    pub(super) const REAL: Self = Self {
        apply: state::apply,
        renew: state::renew,
        margin: true,
        room: QUEUE_MOST,
        counts_from_sending: true,
        refuses_late_news: true,
        looks_at_the_clock: true,
        waits_for_majority: true,
        leaves_when_giving_up: true,
        tries_await_answers: true,
        tells_grants_apart: true,
        asks_beside_upgrades: true,
        asks_for_room: true,
        keeps: 0,
        hands_on_what_is_left: true,
        last_reader_releases: true,
        tokens_not_reserved: 0,
        stays_idle: false,
        heeds_notices: true,
        gives_up_commands: true,
        leaves_ends_to_the_server: true,
        reads_losses_every: 0,
        compares_all: true,
    };

    /// The settings of every client.
    pub(super) fn config(&self) -> &'static Config {
        static WITH_MARGIN: LazyLock<Config> = LazyLock::new(|| config(SKEW));
        static WITHOUT: LazyLock<Config> = LazyLock::new(|| config(0));
        static KEEPING: LazyLock<Config> = LazyLock::new(|| {
            let mut config = config(SKEW);
            // Longer than any run: the checker decides when that time is over.
            config.keep_idle = Duration::from_secs(3_600);
            config
        });
        match self.margin {
            true if self.stays_idle => &KEEPING,
            true => &WITH_MARGIN,
            false => &WITHOUT,
        }
    }

    /// The margin that a client takes off the end of a lease, in ticks.
    pub(super) fn skew(&self) -> i64 {
        if self.margin { SKEW } else { 0 }
    }
}

/// Settings of a few milliseconds, which no user may choose.
fn config(skew: i64) -> Config {
    let ticks = |ticks: i64| Duration::from_millis(u64::try_from(ticks).unwrap_or(0));
    let mut config = Config::default();
    // The checker decides when a hold is renewed.
    config.renewal_interval = Some(config.renewal_interval());
    (config.lease, config.claim_lease) = (ticks(LEASE), Some(ticks(CLAIM)));
    config.retention = ticks(KEEP - LEASE);
    config.skew_margin = Some(ticks(skew));
    // The pace of a queue only makes a waiter ask, which it may at any time.
    config.near = u64::MAX;
    config
}
