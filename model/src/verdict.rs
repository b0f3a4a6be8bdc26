//! The properties that must hold of each state.

use std::sync::LazyLock;

use super::{
    client::Client,
    system::{Setup, System},
};
use crate::protocol::Entry;

/// Clients never believe in more permits than there are, nor do two of them believe in one token: not even if somebody
/// else has taken the lock away from one of them.
pub(super) fn is_exclusive(setup: &Setup, state: &System) -> bool {
    (0..setup.locks).all(|lock| {
        let believed = state.believed(setup, lock);
        let permits: i64 = believed.iter().map(|hold| hold.permits).sum();
        let struck = state.struck(setup, lock);
        let mut tokens: Vec<i64> = believed.iter().chain(&struck).map(|hold| hold.token).collect();
        tokens.sort_unstable();
        permits <= setup.capacity.max(setup.sets) && tokens.windows(2).all(|pair| pair[0] < pair[1])
    })
}

/// Nobody has a token that the counter has not passed, so the next grant has a larger token than all that were handed
/// on.
pub(super) fn is_counted(setup: &Setup, state: &System) -> bool {
    (0..setup.locks).all(|lock| {
        let counted = state.documents()[lock].token;
        state.valid(setup, lock).iter().all(|hold| hold.token <= counted)
    })
}

/// A client that has left and was answered has nothing in the document, not even until a lease runs out. A lock that it
/// keeps taken belongs to nobody. A hold whose time was over at the client is the server's to end, and one whose time is
/// over at the server counts as gone.
pub(super) fn is_without_ghosts(state: &System) -> bool {
    let empty = |client: &Client, lock: usize| {
        let slot = state.documents().get(lock).and_then(|slot| slot.state.as_deref());
        slot.is_none_or(|document| {
            let ends_by_itself = |holder: &&Entry| holder.is_kept() || client.lines[lock].has_ended(holder);
            let holders = document.holders.iter().filter(|holder| holder.is_live(state.now()));
            let holders = holders.filter(|holder| !ends_by_itself(holder));
            let holders = holders.map(|holder| &holder.id);
            let mut ids = holders.chain(document.queue.iter().map(|waiter| &waiter.id));
            !ids.any(|id| client.made(id))
        })
    };
    let mut clients = state.clients.iter();
    state.abandoned
        || clients.all(|client| {
            let mut lines = client.lines.iter().enumerate();
            lines.all(|(lock, line)| {
                !line.is_unused() || state.has_on_its_way(client.number, lock) || empty(client, lock)
            })
        })
}

/// A try is refused by a holder or a waiter that was in its way at some time since it came.
pub(super) fn is_refused_by_somebody(state: &System) -> bool {
    let mut lines = state.clients.iter().flat_map(|client| &client.lines);
    lines.all(|line| !line.refused_in_vain)
}

/// The entry that is the queue position of a client is in the server's queue, or is asked for without a pause: its tasks
/// come in the order in which they began to wait among those of other clients.
pub(super) fn is_lined_up(state: &System) -> bool {
    let mut lines = state.clients.iter().flat_map(|client| &client.lines);
    lines.all(|line| line.wants_to_send(state.time) || line.waitlist.is_lined_up())
}

/// A client that finds out about losses by readings does so one pause later at most, unless it stands still; and it believes
/// in no hold beyond its deadline, however late the reading.
pub(super) fn is_told_in_time(setup: &Setup, state: &System) -> bool {
    let late = |since: i64| state.time - since > setup.rules.reads_losses_every;
    let awake = state.clients.iter().filter(|client| !client.frozen);
    !awake
        .flat_map(|client| &client.lines)
        .any(|line| line.gone_since.is_some_and(late))
}

/// One state in so many is played out to its end every day, as each play-out goes through many states that are played
/// out themselves. `WATCHLOCK_MODEL_PLAYED=1` has each of them played out.
fn played() -> i64 {
    static PLAYED: LazyLock<i64> = LazyLock::new(|| {
        let played = std::env::var("WATCHLOCK_MODEL_PLAYED");
        played.map_or(6, |played| played.parse().expect("a number, 1 or more"))
    });
    *PLAYED
}

/// When nothing goes wrong any more, each waiter gets its turn, and in the end all is quiet and free.
pub(super) fn ends_well(setup: &Setup, state: &System) -> bool {
    !setup.liveness
        || state.lot() % played() != 0
        || [(true, true), (false, true), (false, false)]
            .into_iter()
            .all(|(events, answers)| {
                if !events && answers && !state.awaits_answers() {
                    // Not much else than without.
                    return true;
                }
                let mut end = state.play_out(setup, events, answers);
                if !end.is_quiet() || end.breach.is_some() || !is_without_ghosts(&end) {
                    return false;
                }
                // An entry whose client died is over after a lease.
                end.time += super::rules::LEASE + super::rules::SKEW;
                let now = end.now();
                end.documents()
                    .iter()
                    .filter_map(|slot| slot.state.as_deref())
                    .all(|document| {
                        document.holders.iter().all(|holder| holder.until <= now)
                            && document.queue.iter().all(|waiter| waiter.until <= now)
                    })
            })
}
