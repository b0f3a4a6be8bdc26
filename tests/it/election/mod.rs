//! Elections, wherever the locks live.

mod proclaim;

use std::{ops::ControlFlow, task::Poll};

use watchlock::errors::CandidacyError;

use crate::setup::*;

#[tokio::test(flavor = "multi_thread")]
async fn leaders_follow_each_other_and_are_observed() {
    for (a, b) in places("election").await {
        let (here, there) = (a.election("x"), b.election("x"));
        let mut leaders = there.observe();
        let mut next = async || {
            within(PATIENCE, "the next leader", leaders.next())
                .await
                .unwrap()
                .unwrap()
        };
        assert_eq!(next().await, None);
        let first = here.campaign("first").reason("to test").await.unwrap();
        let leader = next().await.unwrap();
        assert_eq!(
            (leader.value.as_str(), leader.token, leader.pid),
            ("first", first.token(), std::process::id())
        );
        assert_eq!(there.leader().await.unwrap(), Some(leader));

        first.proclaim("still $first").await.unwrap();
        assert_eq!(next().await.unwrap().value, "still $first");
        let second = in_line(&a, "x", 1, there.campaign("second")).await;
        assert_eq!(first.release().await.unwrap(), Released::Released);
        let second = within(PATIENCE, "the second leader", second).await.unwrap().unwrap();
        let leader = next().await.unwrap();
        assert_eq!((leader.value.as_str(), leader.token), ("second", second.token()));

        a.break_lock("x").await.unwrap();
        // What it had asked while it was granted can come after the break: its client takes that out again.
        while let Some(leader) = next().await {
            assert!(leader.value == "second" && leader.token > second.token(), "{leader:?}");
        }
        within(2 * SOON, "the loss", second.lost()).await;
        second.proclaim("too late").await.unwrap_err();
        // What it had asked while it was granted can come after the break; its client takes that out again.
        eventually(PATIENCE, "nobody leads", async || {
            here.leader().await.unwrap().is_none()
        })
        .await;
        let error = here.campaign("x".repeat(1025)).await.unwrap_err().to_string();
        assert_says(&error, &["1025", "1024"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_that_waits_is_seen_with_its_value() {
    for (a, b) in places("candidates").await {
        let leading = a.election("x").campaign("first").await.unwrap();
        let waiting = in_line(&a, "x", 1, b.election("x").campaign("second")).await;
        let lock = info(&a, "x").await.unwrap();
        assert_eq!(lock.waiters[0].owner.value.as_deref(), Some("second"));
        leading.release().await.unwrap();
        let leading = granted(waiting).await;
        let lock = info(&a, "x").await.unwrap();
        assert_eq!(
            (lock.holders[0].owner.value.as_deref(), &lock.waiters[..]),
            (Some("second"), &[][..])
        );
        leading.release().await.unwrap();
        // Other waiters have none.
        let held = a.mutex("y").acquire().await.unwrap();
        let waiting = in_line(&a, "y", 1, b.mutex("y").acquire()).await;
        assert_eq!(info(&a, "y").await.unwrap().waiters[0].owner.value, None);
        held.release().await.unwrap();
        granted(waiting).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_runs_an_election_leads_again_after_a_loss() {
    for (a, b) in places("terms").await {
        let election = a.election("x");
        let (terms, mut told) = tokio::sync::mpsc::unbounded_channel();
        let running = spawn(async move {
            let mut count = 0;
            let lead = |leading: watchlock::View<watchlock::election::Election>| {
                count += 1;
                let (term, terms) = (count, terms.clone());
                async move {
                    terms.send(leading.token()).unwrap();
                    match term {
                        1 => std::future::pending().await,
                        2 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break("done"),
                    }
                }
            };
            election.run("me", lead).await
        });
        let first = told.recv().await.unwrap();
        b.break_lock("x").await.unwrap();
        let second = within(PATIENCE, "a second term", told.recv()).await.unwrap();
        let third = within(PATIENCE, "a third term", told.recv()).await.unwrap();
        assert!(first < second && second < third);
        assert_eq!(within(PATIENCE, "the end", running).await.unwrap().unwrap(), "done");
        assert!(is_vacant(&a, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_tell_of_terms() {
    for (a, b) in places("callbacks").await {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let tell_lost = tell.clone();
        let candidacy = a.election("x").stand(
            "me",
            move |leading| tell.send(format!("elected {}", leading.name())).unwrap(),
            move |reason| tell_lost.send(reason.to_string()).unwrap(),
        );
        let mut next = async || within(PATIENCE, "a callback", told.recv()).await.unwrap();
        assert_eq!(next().await, "elected x");
        b.break_lock("x").await.unwrap();
        assert_eq!(next().await, "`x` is lost: the lock was broken by an operator");
        assert_eq!(next().await, "elected x");
        candidacy.withdraw().await.unwrap();
        assert_eq!(next().await, "`x` is no longer held: the lock was released");
        assert!(is_vacant(&b, "x").await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_candidacy_tells_when_it_ends_by_itself() {
    for (a, b) in places("ended").await {
        // A panic in a callback: nobody leads, and it is not told as a withdrawal.
        let candidacy = a.election("x").stand("me", |_| panic!("no leader"), |_| {});
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert!(ended.to_string().contains("no leader"), "{ended}");
        eventually(PATIENCE, "it has resigned", async || is_vacant(&b, "x").await).await;
        assert_is!(candidacy.withdraw().await, Err(CandidacyError::Panicked { .. }));

        // The name is a mutex for a while: told, or waited out.
        let other = b.mutex("x").acquire().await.unwrap();
        let candidacy = a.election("x").stand("me", |_| {}, |_| {});
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert_is!(ended, CandidacyError::Campaign(AcquireError::KindMismatch(_)));
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let patient = a.election("x").wait_out_other_uses(true);
        let candidacy = patient.stand("me", move |_| tell.send(()).unwrap(), |_| {});
        let mut ended = Box::pin(candidacy.ended());
        assert!(matches!(futures::poll!(&mut ended), Poll::Pending));
        other.release().await.unwrap();
        within(PATIENCE, "the election", told.recv()).await.unwrap();
        assert!(futures::poll!(&mut ended).is_pending());
        drop(ended);
        candidacy.withdraw().await.unwrap();

        // The client ends.
        let candidacy = a.election("x").stand("me", |_| {}, |_| {});
        a.shutdown().await;
        let ended = within(PATIENCE, "the end", candidacy.ended()).await;
        assert_is!(ended, CandidacyError::Campaign(AcquireError::Closed));
    }
}
