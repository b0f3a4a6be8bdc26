//! The explored models, and the seeded faults that must be found.
//!
//! A daily run leaves out the last steps of models where those take long. With `WATCHLOCK_PROOFS=whole`, as `.ci/run`
//! has it, all are explored as far as their setup says. For a longer look, `WATCHLOCK_MODEL_FAULTS` sets how many
//! faults a run may have, and `WATCHLOCK_MODEL_STEPS` how many steps (0: any number). Each test prints the states that
//! it explores: `cargo test --package watchlock-model -- --nocapture`.

use std::{collections::BTreeSet, time::Instant};

use stateright::{Checker, HasDiscoveries, Model};

use super::{Fault, Kind, Rules, Setup, rules::LEASE, system::ALL_FAULTS};
use crate::{
    protocol::{Operation, ServerTime, State, state},
    waitlist::handing_on::RANGE,
};

/// Three clients that each want a mutex once.
fn mutex() -> Setup {
    Setup {
        rules: Rules::REAL,
        kind: Kind::Mutex,
        capacity: 1,
        sets: 0,
        permits: vec![1; 3],
        locks: 1,
        acquires: 1,
        tasks: 1,
        tries: false,
        renewals: false,
        changes: false,
        purge: false,
        faults: 1,
        sorts: ALL_FAULTS,
        liveness: true,
        steps: 0,
    }
}

fn search(name: &str, setup: Setup) -> (usize, BTreeSet<&'static str>) {
    let started = Instant::now();
    let steps = setup.steps;
    let checker = setup
        .checker()
        // Breadth first to the letter where steps are counted.
        .threads(if steps == 0 { 2 } else { 1 })
        .target_max_depth(steps)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!(
        "{name}: {states} states, up to {depth} steps deep, in {:?}",
        started.elapsed()
    );
    let discoveries = checker.discoveries();
    for (property, path) in &discoveries {
        println!("not so: {property}");
        for (state, action) in path.clone().into_vec() {
            println!("{state:?}");
            if let Some(action) = action {
                println!("--> {action:?}");
            }
        }
    }
    (states, discoveries.into_keys().collect())
}

/// What a daily run explores of a model whose last steps take long.
struct Daily {
    steps: usize,
    least: usize,
}

/// So many steps, and in them so many states at least.
fn daily(steps: usize, least: usize) -> Daily {
    Daily { steps, least }
}

impl Daily {
    fn check(self, name: &str, setup: Setup, least_of_all: usize) {
        if std::env::var("WATCHLOCK_PROOFS").is_ok_and(|what| what == "whole") {
            check(name, setup, least_of_all);
        } else {
            let steps = self.steps;
            check(name, Setup { steps, ..setup }, self.least);
        }
    }
}

/// Goes through all states; `least`, so that a model that explores nothing fails.
fn check(name: &str, mut setup: Setup, least: usize) {
    if let Ok(faults) = std::env::var("WATCHLOCK_MODEL_FAULTS") {
        setup.faults = faults.parse().expect("a small number");
    }
    if let Ok(steps) = std::env::var("WATCHLOCK_MODEL_STEPS") {
        setup.steps = steps.parse().expect("a number of steps");
    }
    let (states, broken) = search(name, setup);
    assert!(broken.is_empty(), "{name}: {broken:?}");
    assert!(states >= least, "{name}: only {states} states");
}

#[test]
fn a_mutex_with_any_fault() {
    daily(14, 140_000).check("mutex, three clients", mutex(), 150_000);
}

#[test]
fn a_mutex_with_any_two_faults() {
    let two = Setup {
        permits: vec![1; 2],
        faults: 2,
        steps: 11,
        ..mutex()
    };
    daily(10, 60_000).check("mutex, two clients, two faults", two, 100_000);
}

#[test]
fn a_mutex_of_many_tasks() {
    let tasks = Setup {
        permits: vec![1; 2],
        acquires: 2,
        tasks: 2,
        tries: true,
        steps: 10,
        ..mutex()
    };
    daily(9, 60_000).check("mutex, two clients of two tasks, tries", tasks, 100_000);
}

/// Some of the permits are free for tries that come while a request is on its way, and a client that wants both may
/// wait before them or after them.
#[test]
fn a_semaphore_of_many_tasks_that_try() {
    let tries = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        permits: vec![1, 2],
        acquires: 3,
        tasks: 3,
        tries: true,
        steps: 8,
        ..mutex()
    };
    daily(7, 40_000).check("semaphore, two clients of three tasks, tries", tries, 150_000);
}

/// The number of permits is raised, or lowered while more are held, or both.
#[test]
fn a_semaphore_whose_permits_are_set() {
    for (capacity, sets) in [(1, 2), (2, 1)] {
        let set = Setup {
            kind: Kind::Semaphore,
            capacity,
            sets,
            acquires: 2,
            tasks: 2,
            faults: 2,
            sorts: &[Fault::Set, Fault::Gap, Fault::Crash],
            steps: 10,
            ..mutex()
        };
        daily(9, 10_000).check("semaphore, permits set", set, 50_000);
    }
}

/// A client of an earlier version would grant by the number that it came with.
#[test]
fn a_release_that_grants_by_the_capacity_of_its_client_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut before = before.cloned();
        let in_force = before.as_ref().map(|state| state.capacity);
        if let Some(state) = before.as_mut().filter(|_| operation.requests.is_none()) {
            state.capacity = 2;
        }
        let mut after = state::apply(before.as_ref(), operation, now)?;
        if operation.requests.is_none() {
            after.capacity = in_force?;
        }
        Some(after)
    }
    let setup = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        sets: 1,
        permits: vec![1; 3],
        ..faulty(with_apply(apply), 1, &[Fault::Set])
    };
    find("the capacity of the client", "capacity", setup);
}

#[test]
fn a_client_whose_own_number_replaces_the_set_one_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut open = before.cloned();
        if let Some(state) = &mut open {
            state.is_set = false;
        }
        let mut after = state::apply(open.as_ref(), operation, now)?;
        // It is as if it had been set still: only the number is another.
        after.is_set |= before.is_some_and(|before| before.is_set);
        Some(after)
    }
    let setup = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        sets: 1,
        ..faulty(with_apply(apply), 1, &[Fault::Set])
    };
    find("the own number of a client", "capacity", setup);
}

#[test]
fn a_try_that_is_refused_for_a_request_on_its_way_is_found() {
    let rules = Rules {
        tries_await_answers: false,
        ..Rules::REAL
    };
    let setup = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        acquires: 2,
        tasks: 2,
        tries: true,
        ..faulty(rules, 1, &[Fault::Delay])
    };
    find("a try that awaits no answer", "who is refused met somebody", setup);
}

/// Two clients, each of which may pass the lock along four tasks of its own.
fn handed_on() -> Setup {
    Setup {
        permits: vec![1; 2],
        acquires: 4,
        tasks: 3,
        steps: 9,
        ..mutex()
    }
}

/// It takes four tasks and six steps until the third has the hold of the second.
#[test]
fn a_mutex_that_is_handed_on_inside_a_process() {
    daily(8, 20_000).check("mutex, two clients of three tasks", handed_on(), 60_000);
}

#[test]
fn a_hand_on_that_begins_a_lease_of_its_own_is_found() {
    let rules = Rules {
        hands_on_what_is_left: false,
        ..Rules::REAL
    };
    let setup = Setup {
        steps: 0,
        ..handed_on()
    };
    let setup = Setup {
        rules,
        faults: 0,
        liveness: false,
        ..setup
    };
    find("a lease that begins with the hand-on", "exclusion", setup);
}

#[test]
fn a_range_of_tokens_that_no_write_reserves_is_found() {
    let rules = Rules {
        tokens_not_reserved: 9,
        ..Rules::REAL
    };
    let setup = Setup {
        rules,
        faults: 0,
        liveness: false,
        ..handed_on()
    };
    find("a range that is not written", "a counter beyond all tokens", setup);
}

/// Two clients, each of which keeps a released lock for which nobody waits.
fn idle() -> Setup {
    Setup {
        rules: Rules {
            stays_idle: true,
            ..Rules::REAL
        },
        permits: vec![1; 2],
        acquires: 2,
        tries: true,
        steps: 9,
        ..mutex()
    }
}

#[test]
fn a_mutex_that_stays_with_its_client() {
    let with_faults = Setup { steps: 11, ..idle() };
    daily(10, 30_000).check("mutex, two clients, idle", with_faults, 60_000);
    let renewed = Setup {
        tries: false,
        renewals: true,
        faults: 0,
        steps: 0,
        ..idle()
    };
    check("mutex, two clients, idle and renewed, no faults", renewed, 5_000);
}

#[test]
fn an_idle_hold_that_begins_a_lease_of_its_own_is_found() {
    let setup = Setup {
        rules: Rules {
            hands_on_what_is_left: false,
            ..idle().rules
        },
        faults: 0,
        liveness: false,
        steps: 0,
        ..idle()
    };
    find("a lease that begins as an idle lock is taken", "exclusion", setup);
}

#[test]
fn an_idle_lock_that_is_not_given_back_to_whoever_waits_is_found() {
    let setup = Setup {
        rules: Rules {
            heeds_notices: false,
            ..idle().rules
        },
        faults: 0,
        ..idle()
    };
    find("an idle lock that nobody gives back", "everybody gets its turn", setup);
}

/// Readers of one process that share a hold, and a writer of another.
fn shared() -> Setup {
    const ALL: i64 = 1 << 20;
    Setup {
        kind: Kind::RwLock,
        capacity: ALL,
        permits: vec![1, ALL],
        acquires: 3,
        tasks: 3,
        steps: 8,
        ..mutex()
    }
}

/// The third shares the hold of the second.
#[test]
fn a_read_hold_that_is_shared_inside_a_process() {
    daily(7, 15_000).check("three readers of a client and a writer", shared(), 20_000);
}

/// Without faults and, in `.ci/run`, to the end: the writer gets in after the readers that shared.
#[test]
fn a_read_hold_that_is_shared_to_the_end() {
    let setup = Setup {
        faults: 0,
        steps: 0,
        ..shared()
    };
    daily(14, 80_000).check("three readers of a client and a writer, no faults", setup, 100_000);
}

/// Two clients whose readers share: one has tokens of a range while the other is granted larger ones.
#[test]
fn read_holds_that_two_processes_share_each_for_itself() {
    let setup = Setup {
        permits: vec![1; 2],
        ..shared()
    };
    daily(7, 10_000).check("two clients of three readers", setup, 20_000);
}

#[test]
fn a_shared_hold_that_the_first_reader_releases_is_found() {
    let setup = Setup {
        rules: Rules {
            last_reader_releases: false,
            ..Rules::REAL
        },
        faults: 0,
        liveness: false,
        steps: 0,
        ..shared()
    };
    find("a release by the first reader", "exclusion", setup);
}

#[test]
fn a_range_of_readers_that_no_write_reserves_is_found() {
    // The answer shows the range, and the document does not have it.
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut unreserved = operation.clone();
        for entry in unreserved
            .requests
            .iter_mut()
            .flat_map(|requests| &mut requests.entries)
        {
            entry.reserve = 0;
        }
        state::apply(before, &unreserved, now)
    }
    let setup = Setup {
        rules: Rules {
            tokens_not_reserved: RANGE - 1,
            ..with_apply(apply)
        },
        permits: vec![1; 2],
        faults: 0,
        liveness: false,
        ..shared()
    };
    find(
        "a range of readers that is not written",
        "a counter beyond all tokens",
        setup,
    );
}

/// The two locks don't affect each other, and the tests above explore each alone to the end. The next step has three
/// times as many states as all before it.
#[test]
fn two_mutexes() {
    let two = Setup {
        locks: 2,
        steps: 7,
        ..mutex()
    };
    daily(6, 5_000).check("two mutexes, three clients", two, 35_000);
}

/// A change lets in who waits, where the time of another holder is over.
#[test]
fn a_semaphore_whose_holders_change() {
    let changed = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        changes: true,
        steps: 12,
        ..mutex()
    };
    daily(10, 60_000).check("semaphore, three clients, changed", changed, 200_000);
}

#[test]
fn a_mutex_that_is_renewed() {
    let renewed = Setup {
        permits: vec![1; 2],
        renewals: true,
        ..mutex()
    };
    check("mutex, two clients, renewed", renewed, 15_000);
}

/// Two clients that have no stream for losses, and read the locks that they hold after each pause of so many ticks.
fn read(every: i64) -> Setup {
    Setup {
        rules: Rules {
            reads_losses_every: every,
            ..Rules::REAL
        },
        permits: vec![1; 2],
        acquires: 2,
        renewals: true,
        sorts: &[
            Fault::Break,
            Fault::Freeze,
            Fault::FailOver,
            Fault::Delay,
            Fault::LateAnswer,
        ],
        steps: 11,
        ..mutex()
    }
}

/// For less than was left of the lease, and for so long that most holds end at their deadline.
#[test]
fn a_mutex_whose_holders_read_it_in_place_of_a_stream() {
    for every in [1, 2, LEASE] {
        let name = format!("mutex, two clients, read every {every}");
        daily(9, 10_000).check(&name, read(every), 20_000);
    }
}

#[test]
fn a_reading_that_leaves_out_a_hold_is_found() {
    let rules = Rules {
        compares_all: false,
        ..read(1).rules
    };
    let setup = Setup {
        sorts: &[Fault::Break],
        liveness: false,
        ..Setup { rules, ..read(1) }
    };
    find("a reading that leaves out a hold", "a loss is told in time", setup);
}

/// For less than was left of the lease, and for more.
#[test]
fn a_mutex_that_is_kept_after_a_release() {
    for keeps in [1, LEASE] {
        let kept = Setup {
            rules: Rules { keeps, ..Rules::REAL },
            permits: vec![1; 2],
            acquires: 2,
            tries: true,
            steps: 11,
            ..mutex()
        };
        let name = format!("mutex, two clients, kept for {keeps}");
        daily(10, 30_000).check(&name, kept, 40_000);
    }
    let to_the_end = Setup {
        rules: Rules {
            keeps: 2,
            ..Rules::REAL
        },
        permits: vec![1; 2],
        renewals: true,
        ..mutex()
    };
    check("mutex, two clients, renewed and kept", to_the_end, 15_000);
}

#[test]
fn a_mutex_whose_document_is_purged() {
    let purged = Setup {
        permits: vec![1; 2],
        acquires: 2,
        purge: true,
        liveness: false,
        faults: 1,
        sorts: &[Fault::FailOver, Fault::Delay, Fault::Crash],
        steps: 14,
        ..mutex()
    };
    daily(12, 35_000).check("mutex, two clients, purged", purged, 70_000);
}

#[test]
fn a_semaphore_of_two() {
    let semaphore = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        permits: vec![1, 2, 1],
        steps: 9,
        ..mutex()
    };
    daily(8, 18_000).check("semaphore, three clients", semaphore, 38_000);
}

/// Only the beginning: except for the name of the kind, it is the same as two clients with one permit and one with two.
#[test]
fn readers_and_a_writer() {
    const ALL: i64 = 1 << 20;
    let readers = Setup {
        kind: Kind::RwLock,
        capacity: ALL,
        permits: vec![1, 1, ALL],
        steps: 8,
        ..mutex()
    };
    check("two readers and a writer", readers, 15_000);
}

/// Of five permits an upgradeable reader takes three, and two more to become a writer.
fn upgradeable() -> Setup {
    Setup {
        kind: Kind::RwLock,
        capacity: 5,
        permits: vec![3, 1, 5],
        acquires: 2,
        steps: 8,
        ..mutex()
    }
}

#[test]
fn an_upgradeable_reader_beside_a_reader_and_a_writer() {
    daily(7, 20_000).check("upgradeable reader, reader, writer", upgradeable(), 100_000);
}

/// The second waits for the first to be a reader again, and for its end.
#[test]
fn two_upgradeable_readers_and_a_reader() {
    let two = Setup {
        permits: vec![3, 3, 1],
        tasks: 2,
        ..upgradeable()
    };
    daily(7, 20_000).check("two upgradeable readers, reader", two, 200_000);
}

/// Readers that share a hold count as one, and there is a permit for each all the same.
fn upgradeable_of_tasks() -> Setup {
    Setup {
        capacity: 9,
        permits: vec![5, 1],
        acquires: 3,
        tasks: 3,
        ..upgradeable()
    }
}

/// A task of its client waits behind the upgrade, or has waited before.
#[test]
fn an_upgrade_before_another_task_of_its_client() {
    let name = "upgradeable reader of three tasks, reader";
    daily(7, 30_000).check(name, upgradeable_of_tasks(), 120_000);
}

/// It is refused for the readers beside it, and not for those that wait.
#[test]
fn a_try_of_an_upgrade() {
    let tries = Setup {
        tries: true,
        ..upgradeable()
    };
    daily(7, 20_000).check("upgradeable reader that tries, reader, writer", tries, 100_000);
}

/// The writer waits for the reader, which waits behind it.
#[test]
fn an_upgrade_at_the_end_of_the_queue_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut operation = operation.clone();
        let requests = operation.requests.iter_mut();
        for entry in requests.flat_map(|requests| &mut requests.entries) {
            entry.upgrades = None;
        }
        state::apply(before, &operation, now)
    }
    let setup = Setup {
        rules: with_apply(apply),
        sorts: &[],
        ..upgradeable()
    };
    find("an upgrade at the end of the queue", "everybody gets its turn", setup);
}

#[test]
fn a_task_behind_an_upgrade_that_is_not_asked_for_is_found() {
    let setup = Setup {
        rules: Rules {
            asks_beside_upgrades: false,
            ..Rules::REAL
        },
        faults: 0,
        ..upgradeable_of_tasks()
    };
    find("a task behind an upgrade that asks alone", "who comes lines up", setup);
}

#[test]
fn a_try_of_an_upgrade_that_is_refused_for_a_waiter_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut operation = operation.clone();
        let entries = operation.requests.iter_mut().flat_map(|requests| &mut requests.entries);
        for entry in entries.filter(|entry| !entry.wait) {
            entry.upgrades = None;
        }
        state::apply(before, &operation, now)
    }
    let setup = Setup {
        rules: with_apply(apply),
        sorts: &[],
        tries: true,
        ..upgradeable()
    };
    find(
        "a try of an upgrade behind a waiter",
        "who is refused met somebody",
        setup,
    );
}

/// The third finds no room and asks for it, while any client may die or fall silent.
#[test]
fn a_mutex_whose_queue_is_full() {
    let full = Setup {
        rules: Rules { room: 1, ..Rules::REAL },
        sorts: &[Fault::Delay, Fault::LateAnswer, Fault::Crash, Fault::Cancel],
        ..mutex()
    };
    daily(14, 60_000).check("mutex, three clients, room for one", full, 100_000);
}

#[test]
fn a_mutex_whose_old_document_is_saved() {
    let restored = Setup {
        permits: vec![1; 2],
        acquires: 2,
        renewals: true,
        sorts: &[Fault::Restore],
        ..mutex()
    };
    daily(17, 110_000).check("mutex, two clients, an old document saved", restored, 300_000);
}

#[test]
fn a_mutex_whose_old_document_is_saved_while_more_goes_wrong() {
    let restored = Setup {
        rules: Rules { room: 1, ..Rules::REAL },
        faults: 2,
        steps: 9,
        sorts: &[
            Fault::Restore,
            Fault::Delay,
            Fault::LateAnswer,
            Fault::LateEvent,
            Fault::Crash,
            Fault::FailOver,
        ],
        ..mutex()
    };
    daily(8, 40_000).check(
        "mutex, three clients, an old document saved, another fault",
        restored,
        90_000,
    );
}

/// Searches a model with a fault in it: it must be found, and by that property.
fn find(name: &str, property: &str, setup: Setup) {
    let (_, broken) = search(name, setup);
    assert!(broken.contains(property), "{name}: {broken:?}");
}

/// Two clients, with a rule broken.
fn faulty(rules: Rules, faults: u8, sorts: &'static [Fault]) -> Setup {
    Setup {
        rules,
        permits: vec![1; 2],
        faults,
        sorts,
        liveness: false,
        ..mutex()
    }
}

fn with_apply(apply: super::rules::Apply) -> Rules {
    Rules { apply, ..Rules::REAL }
}

/// A name, the rule that is broken by so many clients, the fault that shows it, and the property.
type Broken = (&'static str, fn(&mut Rules), usize, &'static [Fault], &'static str);

#[test]
fn a_client_that_breaks_a_rule_is_found() {
    let broken: [Broken; 7] = [
        (
            "a cancel that does not leave",
            |rules| rules.leaves_when_giving_up = false,
            2,
            &[Fault::Cancel],
            "no ghost",
        ),
        (
            "a lease counted from the answer",
            |rules| rules.counts_from_sending = false,
            2,
            &[Fault::LateAnswer],
            "exclusion",
        ),
        (
            "no skew margin",
            |rules| rules.margin = false,
            2,
            &[Fault::FailOver],
            "exclusion",
        ),
        (
            "a grant believed after its claim",
            |rules| rules.refuses_late_news = false,
            3,
            &[Fault::LateEvent],
            "exclusion",
        ),
        (
            "a holder that trusts its timer",
            |rules| rules.looks_at_the_clock = false,
            2,
            &[Fault::Freeze],
            "exclusion",
        ),
        (
            "a grant without a majority",
            |rules| rules.waits_for_majority = false,
            2,
            &[Fault::FailOver],
            "exclusion",
        ),
        (
            "an eviction of another grant",
            |rules| rules.tells_grants_apart = false,
            2,
            &[Fault::Break],
            "no ghost",
        ),
    ];
    for (name, breaks, clients, sorts, property) in broken {
        let mut rules = Rules::REAL;
        breaks(&mut rules);
        let setup = Setup {
            permits: vec![1; clients],
            ..faulty(rules, 1, sorts)
        };
        find(name, property, setup);
    }
}

#[test]
fn a_release_that_asks_nobody_s_id_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut operation = operation.clone();
        if let (false, Some(holder)) = (
            operation.leave.is_empty(),
            before.and_then(|state| state.holders.first()),
        ) {
            operation.leave = vec![holder.id.clone()];
        }
        state::apply(before, &operation, now)
    }
    // The first holder's release is on its way until its lease has run out.
    let setup = Setup {
        permits: vec![1; 3],
        ..faulty(with_apply(apply), 1, &[Fault::Delay])
    };
    find("a release without its id", "exclusion", setup);
}

#[test]
fn a_change_that_revives_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut before = before.cloned();
        let holders = before.iter_mut().flat_map(|state| &mut state.holders);
        for holder in holders {
            let mut change = operation.change.iter();
            if change.any(|change| holder.is_grant(&change.id, change.token)) {
                holder.until = now.plus_millis(holder.lease);
            }
        }
        state::apply(before.as_ref(), operation, now)
    }
    let setup = Setup {
        changes: true,
        ..faulty(with_apply(apply), 1, &[Fault::Delay])
    };
    find("a change that revives", "no revival", setup);
}

#[test]
fn a_renewal_that_revives_is_found() {
    fn renew(state: &mut State, operation: &str, ids: &[String], keep: i64, now: ServerTime) -> bool {
        let dead = state
            .holders
            .iter()
            .any(|holder| holder.until <= now && ids.contains(&holder.id));
        for holder in state.holders.iter_mut().filter(|holder| ids.contains(&holder.id)) {
            holder.until = holder.until.max(now.plus_millis(1));
        }
        state::renew(state, operation, ids, keep, now) || dead
    }
    let setup = Setup {
        renewals: true,
        ..faulty(Rules { renew, ..Rules::REAL }, 1, &[Fault::Delay])
    };
    find("a renewal that revives", "no revival", setup);
}

#[test]
fn a_late_leave_that_opens_a_kept_lock_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut before = before.cloned();
        let holders = before.iter_mut().flat_map(|state| &mut state.holders);
        for holder in holders.filter(|holder| operation.kept.is_empty() && operation.leave.contains(&holder.id)) {
            holder.released = None;
        }
        state::apply(before.as_ref(), operation, now)
    }
    let rules = Rules {
        keeps: LEASE,
        ..with_apply(apply)
    };
    // The event of the grant by a third client, which an answer has told before.
    let setup = Setup {
        permits: vec![1; 3],
        ..faulty(rules, 1, &[Fault::LateEvent])
    };
    find("a late leave that opens", "what is kept stays", setup);
}

/// Its client has a margin that the server has not.
#[test]
fn a_hold_that_opens_the_lock_as_its_own_time_ends_is_found() {
    let rules = Rules {
        leaves_ends_to_the_server: false,
        ..Rules::REAL
    };
    let setup = Setup {
        rules,
        permits: vec![1; 2],
        faults: 0,
        liveness: false,
        ..mutex()
    };
    find("a holder that leaves at its own deadline", "what is kept stays", setup);
}

#[test]
fn a_renewal_of_a_kept_lock_is_found() {
    fn renew(state: &mut State, operation: &str, ids: &[String], keep: i64, now: ServerTime) -> bool {
        let released: Vec<_> = state.holders.iter_mut().map(|holder| holder.released.take()).collect();
        let renewed = state::renew(state, operation, ids, keep, now);
        for (holder, released) in state.holders.iter_mut().zip(released) {
            holder.released = released;
        }
        renewed
    }
    let rules = Rules {
        renew,
        keeps: 1,
        ..Rules::REAL
    };
    let setup = Setup {
        renewals: true,
        ..faulty(rules, 1, &[Fault::Delay])
    };
    find("a renewal of a kept lock", "what is kept stays", setup);
}

#[test]
fn an_entry_that_stays_in_the_queue_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut operation = operation.clone();
        let waits = |id: &String| before.is_some_and(|state| state.queue.iter().any(|waiter| waiter.id == *id));
        operation.leave.retain(|id| !waits(id));
        state::apply(before, &operation, now)
    }
    let setup = faulty(with_apply(apply), 1, &[Fault::Cancel]);
    find("a queue entry kept after a cancel", "who leaves is gone", setup);
}

#[test]
fn a_counter_that_goes_with_the_document_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let after = state::apply(before, operation, now);
        after.filter(|state| !state.holders.is_empty() || !state.queue.is_empty())
    }
    let setup = faulty(with_apply(apply), 0, &[]);
    find("a document deleted on release", "rising tokens", setup);
}

#[test]
fn a_capacity_that_is_off_by_one_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut before = before.cloned();
        if let Some(state) = &mut before {
            state.capacity += 1;
        }
        let mut operation = operation.clone();
        if let Some(requests) = &mut operation.requests {
            requests.capacity += 1;
        }
        let mut after = state::apply(before.as_ref(), &operation, now)?;
        after.capacity -= 1;
        Some(after)
    }
    find("a capacity off by one", "capacity", faulty(with_apply(apply), 0, &[]));
}

#[test]
fn a_queue_that_lets_in_whoever_fits_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut before = before.cloned();
        if let Some(state) = &mut before {
            state.queue.sort_by_key(|waiter| waiter.permits);
        }
        state::apply(before.as_ref(), operation, now)
    }
    let setup = Setup {
        kind: Kind::Semaphore,
        capacity: 2,
        permits: vec![2, 2, 1],
        ..faulty(with_apply(apply), 0, &[])
    };
    find("small requests first", "first come, first served", setup);
}

#[test]
fn a_first_request_that_adds_to_its_repetition_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut after = state::apply(before, operation, now)?;
        let known = before.iter().flat_map(|state| &state.queue);
        let again = known.filter(|waiter| {
            let mut entries = operation.requests.iter().flat_map(|requests| &requests.entries);
            entries.any(|entry| entry.fresh && entry.id == waiter.id)
        });
        after.queue.extend(again.cloned());
        Some(after)
    }
    let setup = faulty(with_apply(apply), 1, &[Fault::Delay]);
    find("a first request that adds", "one entry for an id", setup);
}

#[test]
fn a_counter_that_does_not_heed_the_clock_is_found() {
    // As tokens were issued before: the last one plus one.
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let mut after = state::apply(before, operation, now)?;
        let known = |token: i64| before.is_some_and(|state| state.holders.iter().any(|holder| holder.token == token));
        let mut last = before.map_or(0, |state| state.token);
        for holder in &mut after.holders {
            if !known(holder.token) {
                last += 1;
                after.wake = after.wake.replace(&holder.token.to_string(), &last.to_string());
                holder.token = last;
            }
        }
        after.token = last;
        Some(after)
    }
    let setup = Setup {
        permits: vec![1; 3],
        ..faulty(with_apply(apply), 1, &[Fault::Restore])
    };
    find("a counter that does not heed the clock", "rising tokens", setup);
}

#[test]
fn a_queue_without_a_bound_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        let unbounded = Operation {
            room: usize::MAX,
            ..operation.clone()
        };
        state::apply(before, &unbounded, now)
    }
    let rules = Rules {
        room: 1,
        ..with_apply(apply)
    };
    let setup = Setup {
        permits: vec![1; 3],
        ..faulty(rules, 0, &[])
    };
    find("a queue without a bound", "a bounded queue", setup);
}

/// Three clients and room for one in the queue, by whose rules somebody never has its turn.
fn starved(rules: Rules, sorts: &'static [Fault]) -> Setup {
    Setup {
        rules: Rules { room: 1, ..rules },
        faults: 1,
        sorts,
        ..mutex()
    }
}

#[test]
fn a_client_that_does_not_ask_for_room_is_found() {
    let rules = Rules {
        asks_for_room: false,
        ..Rules::REAL
    };
    find(
        "a client that does not ask for room",
        "everybody gets its turn",
        starved(rules, &[]),
    );
}

#[test]
fn a_queue_that_is_full_of_the_dead_is_found() {
    fn apply(before: Option<&State>, operation: &Operation, now: ServerTime) -> Option<State> {
        match before {
            Some(before) if operation.requests.is_some() && before.queue.len() >= operation.room => {
                Some(before.clone())
            }
            _ => state::apply(before, operation, now),
        }
    }
    // The restored document has a queue of entries that are over.
    find(
        "a queue that is full of the dead",
        "everybody gets its turn",
        starved(with_apply(apply), &[Fault::Restore]),
    );
}

#[test]
fn a_client_that_waits_for_an_answer_for_ever_is_found() {
    let rules = Rules {
        gives_up_commands: false,
        ..Rules::REAL
    };
    let setup = Setup {
        liveness: true,
        ..faulty(rules, 1, &[Fault::LateAnswer])
    };
    find("a client that waits for ever", "everybody gets its turn", setup);
}
