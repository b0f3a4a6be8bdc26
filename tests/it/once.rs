//! Jobs that are done once in a period.

use std::time::SystemTime;

use watchlock::locks::{OnceOutcome, Turn};

use crate::setup::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn millis(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

async fn ours(locks: &LockClient, period: Duration) -> Option<watchlock::Held<watchlock::locks::Once>> {
    match locks.once("job", period).begin().await.unwrap() {
        Turn::Ours(job) => Some(job),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_start_a_job_one_does_it_and_the_others_learn_by_whom() {
    for (a, b) in places("once").await {
        // Neither a day's end comes in the middle of it, nor a week's.
        let begin = |locks: &LockClient| locks.once("job", DAY).since_success().reason("report");
        let jobs: Vec<_> = (0..8).map(|number| begin([&a, &b][number % 2])).collect();
        let mut turns = join_all(jobs.iter().map(|job| job.begin())).await;
        let ours = turns.iter().position(|turn| matches!(turn, Ok(Turn::Ours(_)))).unwrap();
        let Turn::Ours(job) = turns.swap_remove(ours).unwrap() else {
            unreachable!("as it was found");
        };
        for turn in turns {
            assert!(matches!(turn, Ok(Turn::Busy(_))), "{turn:?}");
        }
        let Turn::Busy(contention) = begin(&b).begin().await.unwrap() else {
            panic!("somebody is at it");
        };
        assert_eq!(contention.holders[0].token, job.token());
        let token = job.token();
        assert_eq!(job.done().await.unwrap(), Released::Kept);
        // Tasks that ask at the same moment learn it too.
        let turns = join_all([&a, &a, &a, &b].map(async |locks| begin(locks).begin().await)).await;
        for turn in turns {
            assert!(matches!(turn, Ok(Turn::RanAlready(_))), "{turn:?}");
        }
        for locks in [&a, &b] {
            let ran = match begin(locks).run(|_| async { Err::<(), _>("it is not begun") }).await {
                Ok(OnceOutcome::RanAlready(ran)) => ran,
                other => panic!("{other:?}"),
            };
            assert_eq!((ran.by.token, ran.by.owner.reason.as_deref()), (token, Some("report")));
            assert_eq!(ran.until.duration_since(ran.at).unwrap(), DAY);
            assert!(ran.by.since <= ran.at && ran.at <= ran.as_of && ran.as_of < ran.until);
            let text = ran.to_string();
            assert!(text.starts_with("done ") && text.contains("s ago by process"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_counts_for_the_window_in_which_it_began() {
    const PERIOD: Duration = Duration::from_secs(2);
    let places = places("window").await;
    let everywhere = places.iter().map(async |(a, b)| {
        let offsets = [Duration::ZERO, SECOND / 2].map(async |offset| {
            let name = format!("job {offset:?}");
            let once = |locks: &LockClient| locks.once(&name, PERIOD).offset(offset);
            let mut last = None;
            for _ in 0..3 {
                // The next window begins, and one of the two has it.
                let mut begun = None;
                eventually(PATIENCE, "the next window", async || {
                    for locks in [a, b] {
                        if let Turn::Ours(job) = once(locks).begin().await.unwrap() {
                            begun = Some(job);
                        }
                    }
                    begun.is_some()
                })
                .await;
                let began = info(b, &name).await.unwrap().holders[0].since;
                if begun.unwrap().done().await.unwrap() == Released::Released {
                    // It began just before the end.
                    continue;
                }
                let until = info(b, &name).await.unwrap().holders[0].until;
                let into = (millis(until) - offset.as_millis()) % PERIOD.as_millis();
                assert_eq!(into, 0, "{until:?} is no end of a window");
                assert!(began < until && until <= began + PERIOD);
                assert!(last.is_none_or(|last| began >= last), "twice in a window");
                last = Some(until);
            }
        });
        join_all(offsets).await;
    });
    join_all(everywhere).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_outlasts_its_window_leaves_the_next_one_open() {
    for (a, b) in places("outlasts").await {
        let job = ours(&a, SECOND).await.unwrap();
        pause(SECOND + SECOND / 10).await;
        assert!(ours(&b, SECOND).await.is_none(), "one is at it");
        assert_eq!(job.done().await.unwrap(), Released::Released);
        assert!(ours(&b, SECOND).await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_leaves_the_period_open_unless_failures_count() {
    for (a, b) in places("failed").await {
        let once = |locks: &LockClient| locks.once("job", DAY).since_success();
        let failed = once(&a).run(|_| async { Err::<(), _>("no disk") }).await.unwrap();
        assert!(matches!(failed, OnceOutcome::Failed("no disk")), "{failed:?}");
        // A dropped run has not succeeded either.
        drop(once(&b).begin().await.unwrap());
        eventually(PATIENCE, "it is open", async || is_vacant(&a, "job").await).await;
        let counting = once(&b).failures_count();
        let failed = counting.run(|_| async { Err::<(), _>("no disk") }).await.unwrap();
        assert!(matches!(failed, OnceOutcome::Failed("no disk")), "{failed:?}");
        let again = once(&a).run(|_| async { Ok::<_, ()>(()) }).await.unwrap();
        assert!(matches!(again, OnceOutcome::RanAlready(_)), "{again:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_loses_its_lock_is_ended_and_the_period_is_open() {
    for (a, b) in places("lost").await {
        let (begun, at_it) = tokio::sync::oneshot::channel();
        let job = a.once("job", DAY).since_success();
        let running = spawn(async move {
            let work = |_| async {
                let _ = begun.send(());
                std::future::pending::<Result<(), ()>>().await
            };
            job.run(work).await
        });
        at_it.await.unwrap();
        b.break_lock("job").await.unwrap();
        let ended = within(PATIENCE, "the end", running).await.unwrap();
        assert!(matches!(ended, Err(AcquireError::Lost(_))), "{ended:?}");
        assert!(ours(&b, DAY).await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_period_out_of_bounds_is_refused_before_anything_is_sent() {
    let locks = Ground::replica_set("once").await.locks().await;
    let cases = [
        (locks.once("job", SECOND / 2), ["period of 500ms", "1s"]),
        (locks.once("job", Duration::MAX), ["period of 184", "31622400s"]),
        (
            locks.once("job", DAY).offset(DAY),
            ["offset of 86400s", "period, 86400s"],
        ),
        (
            locks.once("job", DAY).lease(SECOND),
            ["lease of 1s", "margin of the client, 2s"],
        ),
    ];
    for (once, words) in cases {
        let error = once.begin().await.unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, AcquireError::Invalid(_)), "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    assert!(info(&locks, "job").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_client_was_shut_down_is_not_recorded() {
    for (a, b) in places("once_shut").await {
        let job = ours(&a, DAY).await.unwrap();
        a.shutdown().await;
        assert_eq!(job.done().await.unwrap(), Released::WasLost);
        assert!(ours(&b, DAY).await.is_some());
    }
}

/// Tasks of one client share a question and its answer, whatever they find. On one thread, so that all of them have
/// come before the first is answered.
#[tokio::test]
async fn tasks_that_find_the_job_done_or_in_progress_learn_it_by_two_commands() {
    for ground in Ground::both("shared").await {
        let (driver, sent) = ground.noting_driver().await;
        let locks = ground.locks_over(&driver).await;
        let once = locks.once("job", DAY).since_success();
        let job = begun(once.clone()).await;
        let ask = async |tasks: usize| {
            let before = sent.count("findAndModify");
            let turns = join_all((0..tasks).map(|_| once.begin())).await;
            let commands = sent.count("findAndModify") - before;
            assert!(commands <= 2, "{commands} commands for {tasks} tasks");
            turns
        };
        let token = job.token();
        for turn in ask(10).await {
            let Ok(Turn::Busy(contention)) = turn else {
                panic!("{turn:?}");
            };
            assert_eq!(contention.holders[0].token, token);
        }
        job.done().await.unwrap();
        for tasks in [10, 50] {
            for turn in ask(tasks).await {
                assert_is!(turn, Ok(Turn::RanAlready(ran)) if ran.by.token == token);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_memory_no_task_that_finds_the_job_done_waits() {
    let locks = LockClient::in_memory();
    let once = locks.once("job", DAY).since_success();
    let done = once.run(|_| async { Ok::<_, ()>(()) }).await.unwrap();
    assert!(matches!(done, OnceOutcome::Done { .. }), "{done:?}");
    let begun = tokio::time::Instant::now();
    for turn in join_all((0..50).map(|_| once.begin())).await {
        assert!(matches!(turn, Ok(Turn::RanAlready(_))), "{turn:?}");
    }
    assert!(begun.elapsed() < SECOND / 10, "{:?}", begun.elapsed());
}

/// What the task that waits was told when it got in line is no answer to whoever asks later.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_task_that_waits_for_the_lock_the_report_is_of_now() {
    for (a, b) in places("beside").await {
        ours(&a, DAY).await.unwrap().done().await.unwrap();
        let waiting = in_line(&b, "job", 1, a.mutex("job").acquire()).await;
        for _ in 0..3 {
            let earlier = info(&b, "job").await.unwrap().as_of;
            pause(SECOND / 100).await;
            match a.once("job", DAY).begin().await.unwrap() {
                Turn::RanAlready(ran) => assert!(ran.as_of > earlier, "{:?} was before {earlier:?}", ran.as_of),
                turn => panic!("{turn:?}"),
            }
        }
        waiting.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_bounds_the_whole_call_for_each_task() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let (cluster, _turn) = faulty().await;
    let proxy = cluster.proxy(0).unwrap();
    let ground = Ground::on(cluster, "once_late").through(proxy.uri());
    let locks = ground.locks().await;
    let once = locks.once("job", DAY).since_success().timeout(TIMEOUT);
    let done = once.run(|_| async { Ok::<_, ()>(()) }).await.unwrap();
    assert!(matches!(done, OnceOutcome::Done { .. }), "{done:?}");
    proxy.black_hole();
    let begun = std::time::Instant::now();
    let asked = join_all((0..10).map(async |_| (once.begin().await, begun.elapsed()))).await;
    proxy.heal();
    for (turn, took) in asked {
        assert!(turn.is_err(), "{turn:?}");
        assert!(took >= TIMEOUT && took < TIMEOUT + SECOND, "{took:?}");
    }
}

/// Code under the job may have the lock of its name too, and keep it for longer than the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_lock_was_re_entered_is_recorded_with_the_last_handle() {
    for (a, b) in places("reentered_job").await {
        let job = ours(&a, DAY).await.unwrap();
        let within_it = a.mutex("job").acquire().reentrant().await.unwrap();
        assert_eq!(within_it.token(), job.token());
        assert_eq!(job.done().await.unwrap(), Released::StillHeld);
        assert!(matches!(b.once("job", DAY).begin().await.unwrap(), Turn::Busy(_)));
        assert_eq!(within_it.release().await.unwrap(), Released::Kept);
        assert!(matches!(b.once("job", DAY).begin().await.unwrap(), Turn::RanAlready(_)));
    }
}
