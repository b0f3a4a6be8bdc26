//! Semaphores whose number of permits was set, to another than that of their client.

use super::*;

/// A client whose number is not the one that was set.
fn bench(set: i64) -> Bench {
    let mut bench = Bench::new();
    let sets = Requests {
        kind: Kind::Semaphore,
        capacity: set,
        by: CapacityIs::Set,
        entries: Vec::new(),
        adopts: None,
    };
    let operation = Operation {
        requests: Some(sets),
        ..foreign("set", &[], None)
    };
    bench.foreign(&operation, false);
    bench
}

fn permit(bench: &mut Bench, own: i64) -> Receiver {
    let offers = AcquireOptions {
        used: (Kind::Semaphore, own),
        by: CapacityIs::Offered,
        patience: Patience::Wait,
        ..tries()
    };
    bench.join_for(offers).1
}

#[tokio::test(start_paused = true)]
async fn an_acquire_and_a_release_cost_a_command_each() {
    for (set, own) in [(3, 1), (1, 3), (3, 3), (1, 1)] {
        let mut bench = bench(set);
        for round in 1..4 {
            let mut outcome = permit(&mut bench, own);
            bench.settle();
            let _left = bench.let_go(&held(&mut outcome));
            bench.settle();
            assert_eq!(
                bench.operations,
                2 * round,
                "{set} were set, and its own number is {own}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_asks_together_with_the_release_before_it() {
    let mut bench = bench(1);
    let mut first = permit(&mut bench, 3);
    bench.settle();
    let mut second = permit(&mut bench, 3);
    let _left = bench.let_go(&held(&mut first));
    let operation = bench.next().expect("a release");
    assert!(
        !operation.leave.is_empty() && operation.requests.is_some(),
        "{operation:?}"
    );
    bench.answer(&operation);
    assert_eq!(held(&mut second).used, (Kind::Semaphore, 1));
}
