//! Holds that tasks of the same client enter again.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hold_is_entered_again_only_where_that_is_asked_for() {
    let (mut bench, outer) = Bench::holding();
    let operations = bench.operations;
    let (_, mut inner) = bench.join_for(reentrant());
    let inner = held(&mut inner);
    assert!(Arc::ptr_eq(&inner, &outer));
    assert_eq!(bench.operations, operations, "nothing is sent for it");
    let (_, mut other) = bench.join(true);
    // Behind one that waits, too.
    let (_, mut third) = bench.join_for(reentrant());
    bench.settle();
    other.try_recv().unwrap_err();
    assert!(Arc::ptr_eq(&held(&mut third), &outer));
    assert_eq!([outer.exit(), inner.exit()], [Remains::Held, Remains::Held]);
    assert_eq!(outer.lost_reason(), None);
    assert_eq!(outer.exit(), Remains::Nothing);
    assert_eq!(outer.exit(), Remains::Lost(LostReason::Released));

    // Its last handle has gone, and the line has not heard of that.
    let (_, mut late) = bench.join_for(reentrant());
    late.try_recv().unwrap_err();
    drop(bench.let_go(&outer));
    bench.settle();
    let other = held(&mut other);
    assert!(
        Arc::ptr_eq(&held(&mut late), &other),
        "it enters the next hold of this client"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_lost_is_never_entered_again() {
    let (mut bench, outer) = Bench::holding();
    tokio::time::advance(bench.config.lease).await;
    let (_, mut late) = bench.join_for(reentrant());
    assert_eq!(outer.lost_reason(), Some(LostReason::Expired));
    bench.settle();
    let anew = held(&mut late);
    assert!(anew.token > outer.token);
}

#[tokio::test(start_paused = true)]
async fn only_the_same_share_is_entered() {
    let reader = AcquireOptions {
        used: (Kind::RwLock, 10),
        ..reentrant()
    };
    let writer = AcquireOptions {
        permits: 10,
        ..reader.clone()
    };
    let mut bench = Bench::new();
    let (_, mut reading) = bench.join_for(reader.clone());
    bench.settle();
    let reading = held(&mut reading);
    let (_, mut writing) = bench.join_for(writer);
    bench.settle();
    writing.try_recv().unwrap_err();
    let (_, mut again) = bench.join_for(reader);
    assert!(Arc::ptr_eq(&held(&mut again), &reading), "although a writer waits");
}
