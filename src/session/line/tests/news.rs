//! Events, and what they are taken for when they come late or name entries that no task wants.

use super::*;
use crate::waitlist::Effect;

fn signalled(bench: &mut Bench, entry: &str, signal: wake::Signal) -> Vec<Effect> {
    let (at, mut effects) = (bench.server_now(), Vec::new());
    bench.feed(|line, context, _| line.waitlist.signalled(entry, signal, at, context, &mut effects));
    effects
}

/// A waiter behind another client, whose entry the document shows; and the lock's token then.
fn queued() -> (Bench, String, i64) {
    let mut bench = Bench::new();
    bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
    let (_, _outcome) = bench.join(true);
    bench.settle();
    let entry = bench.line.waitlist.head().unwrap().entry.clone();
    let token = bench.document.as_ref().unwrap().token;
    (bench, entry, token)
}

#[tokio::test(start_paused = true)]
async fn an_event_of_a_grant_before_the_waiter_got_in_line_grants_nothing() {
    for (later, granted) in [(0, false), (1, true)] {
        let (mut bench, entry, token) = queued();
        let effects = signalled(&mut bench, &entry, wake::Signal::Granted { token: token + later });
        assert_eq!(matches!(effects[..], [Effect::Granted { .. }]), granted);
        assert_eq!(effects.is_empty(), !granted);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_of_an_eviction_before_the_waiter_got_in_line_is_not_about_it() {
    for (later, put_out) in [(0, false), (1, true)] {
        let (mut bench, entry, token) = queued();
        signalled(&mut bench, &entry, wake::Signal::Evicted { token: token + later });
        assert_eq!(bench.line.waitlist.head().unwrap().entry != entry, put_out);
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_no_task_wants_is_taken_out_and_one_that_is_known_or_leaves_is_not() {
    // Unknown: its task has gone.
    let mut bench = Bench::new();
    bench.foreign(&foreign("me.9", &[], Some("me-9")), false);
    let granted = wake::Signal::Granted { token: 1 };
    signalled(&mut bench, "me-9", granted);
    let leave = bench.next().unwrap();
    assert_eq!(leave.leave, ["me-9"]);
    // It leaves with the operation that is on its way.
    signalled(&mut bench, "me-9", granted);
    let answer = bench.apply(&leave);
    bench.answered(&leave, &answer);
    assert!(bench.next().is_none(), "it would leave twice");

    // A hold.
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    signalled(&mut bench, &hold.id, wake::Signal::Granted { token: i64::MAX });
    assert!(bench.next().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_event_grants_a_lease_that_nobody_renews_in_full_only_if_the_claim_lease_is_as_long() {
    for (claim, renewed) in [(5, true), (10, false)] {
        let mut bench = Bench::new();
        bench.config.claim_lease = Duration::from_secs(claim);
        bench.foreign(&foreign("a.1", &[], Some("a-1")), false);
        let mut terms = Terms::default();
        terms.set_fixed(Duration::from_secs(10));
        let (_, _outcome) = bench.join_for(AcquireOptions {
            terms,
            wait: true,
            ..try_told()
        });
        bench.settle();
        let (entry, token) = (bench.line.waitlist.head().unwrap().entry.clone(), i64::MAX);
        let effects = signalled(&mut bench, &entry, wake::Signal::Granted { token });
        let [Effect::Granted { grant, .. }] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(grant.renew_at.is_some(), renewed, "the rest of the lease is asked for");
    }
}

/// As after a break: no grant has come since, so the token is still that of the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_that_an_answer_of_the_same_token_does_not_show_is_lost() {
    let mut bench = Bench::new();
    let (_, mut outcome) = bench.join(true);
    bench.settle();
    let hold = held(&mut outcome);
    let (_, _waits) = bench.join(true);
    // The short form finds that the lock is not free.
    let short = bench.next().unwrap();
    let answer = bench.apply(&short);
    bench.answered(&short, &answer);
    let request = bench.next().unwrap();
    let mut answer = bench.apply(&request);
    let state = answer.state.as_mut().unwrap();
    assert_eq!(state.token, hold.token.as_i64());
    state.holders.clear();
    bench.answered(&request, &answer);
    assert!(hold.lost_reason().is_some());
}
