//! The end of a command that asks for a lock: everything that it has sent is taken back, however it ends. Where the
//! server does not confirm that, the user is told what may be left, and for how long.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt as _;
use tokio::time::{Instant, timeout};
use watchlock::LockClient;

use crate::{arguments::Run, exit::Failure, messages::fail, text::plain};

/// Limit for taking back what was sent, and the least time that a release gets. A server that does not receive it drops
/// the entry when its lease is over.
///
/// A second request to end does not cut this short: `timeout` sends two within a millisecond, and the release would not
/// be sent then.
pub(crate) const LEAVE: Duration = Duration::from_secs(3);

/// Longest time for which a waiter that has died is granted the lock: the library's claim lease.
const CLAIM: Duration = Duration::from_secs(5);

/// Makes a panic a failure like any other, so that the lock is given back after it. The panic's own message has been
/// printed by then.
pub(crate) async fn caught<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    // Nothing is seen of the work after its panic.
    let worked = AssertUnwindSafe(work).catch_unwind().await;
    worked.unwrap_or_else(|_| Err(Failure::internal("ended by a panic, which is a bug of watchlock")))
}

/// Gives the queue position and everything else of ours back to the others. If the server does not confirm that in
/// time, says so: with the failure, if there is one.
pub(crate) async fn give_back<T>(
    outcome: Result<T, Failure>,
    locks: &LockClient,
    arguments: &Run,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let returned = timeout(LEAVE, locks.shutdown()).await;
    // A shutdown without an answer returns after a lease, too.
    if returned.is_ok() && begun.elapsed() < arguments.renewed.lease {
        return outcome;
    }
    let names: Vec<String> = arguments.names().into_iter().map(plain).collect();
    let left = may_stay(&names.join("`, `"), most_left_by_request(arguments));
    let left = format!("{left}: it did not confirm that this was taken back");
    match outcome {
        Err(failure) if !failure.message().is_empty() => Err(failure.and(&left)),
        outcome => {
            fail(&left);
            outcome
        }
    }
}

/// Says that a hold was not released for certain, and for how long it outlives the last sign of life from this program.
pub(crate) fn hold_may_stay(name: &str, arguments: &Run) -> String {
    may_stay(name, most_left_by_hold(arguments))
}

/// Says the same of a run that counts for its period, whose report may have arrived: then the lock stays taken until
/// the period is over, and not only for a lease.
pub(crate) fn run_may_count(name: &str, arguments: &Run) -> String {
    let left = hold_may_stay(name, arguments);
    format!(
        "either the server has recorded this run of `{name}`, which then is not run again in this period; or {left}, and \
         may then be run again in this period"
    )
}

/// Says that locks may stay taken, and for how long. That counts from the last command that arrives: the network may
/// deliver it when this program has ended.
fn may_stay(names: &str, most: Duration) -> String {
    let most = crate::text::exact(most);
    format!("`{names}` may stay taken for up to {most} once the server has all that was sent")
}

fn most_left_by_hold(arguments: &Run) -> Duration {
    let lease = arguments.fixed.unwrap_or(arguments.renewed.lease);
    lease.max(arguments.at_least_for.unwrap_or_default())
}

/// Returns the same for a request: the lock may come to it at the end of its lease.
fn most_left_by_request(arguments: &Run) -> Duration {
    most_left_by_hold(arguments).saturating_add(CLAIM.min(arguments.renewed.lease))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use watchlock::testing::InMemory;

    use super::*;
    use crate::arguments::{Arguments, Command};

    #[tokio::test]
    async fn a_lock_is_given_back_after_a_panic() {
        let memory = InMemory::new();
        let (ours, others) = (memory.client(), memory.client());
        let worked: Result<(), _> = caught(async {
            let _held = ours.mutex("x").acquire().await;
            panic!("of this test")
        })
        .await;
        let arguments = Arguments::try_parse_from(["watchlock", "run", "x", "true"]).unwrap();
        let Command::Run(run) = arguments.command else {
            panic!("{arguments:?}")
        };
        let failure = give_back(worked, &ours, &run).await.unwrap_err();
        assert!(failure.message().ends_with("a bug of watchlock"), "{failure:?}");
        assert!(others.mutex("x").try_acquire().await.unwrap().is_some());
    }
}
