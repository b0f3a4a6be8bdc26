//! Upgrades, which go before all other tasks in line, and the task behind them, whose entry is the client's queue
//! position.

use super::{Effect, Hold, Key, Refusal, Step, Waitlist};

impl<H: Hold> Step<'_, H> {
    /// Takes out the upgrades whose reader is over, as nothing makes them a writer: the reader's end is the answer to
    /// their tasks.
    pub(super) fn end_upgrades(&mut self) {
        let upgrades = self
            .waiting
            .iter()
            .map_while(|it| Some((it.key, it.wants.upgrades.as_ref()?)));
        let stranded = upgrades.filter(|(_, reader)| !self.holds.contains_key(*reader));
        let stranded: Vec<Key> = stranded.map(|(key, _)| key).collect();
        for key in stranded {
            let to = self.cancel(key);
            let why = Refusal::Failed;
            self.effects.extend(to.map(|to| Effect::Refused { to, why }));
        }
    }
}

impl<H: Hold> Waitlist<H> {
    /// Returns the position of the first task in line that is not an upgrade: its entry is the client's queue position.
    pub(super) fn place(&self) -> usize {
        self.waiting.iter().take_while(|waiting| waiting.upgrades()).count()
    }

    /// Whether the task behind an upgrade that is in the server's queue is not there itself, so that the clients that come
    /// now would be served before it. Where it found the queue full, it goes with the next question of the upgrade.
    pub(super) fn is_out_of_line(&self) -> bool {
        let (Some(head), Some(behind)) = (self.waiting.front(), self.waiting.get(self.place())) else {
            return false;
        };
        // A task that wants another kind of lock is asked for as the head.
        let is_like = (head.wants.used, head.wants.by) == (behind.wants.used, behind.wants.by);
        head.is_queued() && !behind.is_queued() && is_like && !self.is_full
    }
}

/// With the specification in place of a server.
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        protocol::{Entry, Exchange, Operation, State, Use, fixtures::lock, state::apply, wake::Signal},
        waitlist::{
            AcquireOptions, Context, Patience, Setback,
            fixtures::{self, MUTEX, NOW, PlainHold, READER, in_context, task, waiter},
            timing::ASK_EVERY,
        },
    };

    const UPGRADEABLE: (Use, i64) = (READER.0, 501);
    const UPGRADE: (Use, i64) = (READER.0, 499);

    fn wants(used: (Use, i64)) -> AcquireOptions {
        task(0, used).wants
    }

    fn upgrade() -> AcquireOptions {
        AcquireOptions {
            upgrades: Some("me-0".to_owned()),
            ..wants(UPGRADE)
        }
    }

    /// A client with an upgradeable reader beside another's reader, and the server.
    struct Scene<'a> {
        list: Waitlist<PlainHold>,
        state: State,
        context: &'a Context<'a>,
        joined: u64,
    }

    impl<'a> Scene<'a> {
        fn new(context: &'a Context<'a>) -> Self {
            let mut list = fixtures::waitlist([]);
            let later = context.now + Duration::from_secs(60);
            list.holds
                .insert("me-0".to_owned(), fixtures::held(UPGRADEABLE, (later, later)));
            let holder = |id: &str, permits, token| Entry {
                id: id.to_owned(),
                permits,
                token,
                ..fixtures::holder(60_000)
            };
            let holders = [holder("me-0", 501, 1), holder("other-0", 1, 2)];
            Self {
                list,
                state: lock(READER.0, holders, []),
                context,
                joined: 0,
            }
        }

        /// Has a task join; returns its entry.
        fn join(&mut self, wants: AcquireOptions) -> String {
            self.joined += 1;
            self.list.step(self.context).join(self.joined, self.joined, wants);
            let position = self.list.position(self.joined).expect("it waits");
            self.list.waiting[position].entry.clone()
        }

        fn next(&mut self, passed: Duration) -> Option<Operation> {
            let now = self.context.now + passed;
            self.list.step(&Context { now, ..*self.context }).next_operation()
        }

        /// Sends all that is due so long after the beginning; returns the entries that each operation asks for.
        fn send(&mut self, passed: Duration) -> Vec<Vec<String>> {
            let mut asked = Vec::new();
            while let Some(operation) = self.next(passed) {
                let at = NOW.plus_millis(passed.as_millis().try_into().unwrap());
                let now = self.context.now + passed;
                self.state = apply(Some(&self.state), &operation, at).expect("there is a document");
                let answer = Exchange::new(now, now, Some(at));
                let context = Context { now, ..*self.context };
                self.list
                    .step(&context)
                    .answered(&operation, Some(&self.state), &answer);
                let requests = operation.requests.into_iter().flat_map(|requests| requests.entries);
                asked.push(requests.map(|entry| entry.id).collect());
                assert!(asked.len() < 9, "it asks without end: {asked:?}");
            }
            asked
        }

        fn queue(&self) -> Vec<&str> {
            self.state.queue.iter().map(|waiter| waiter.id.as_str()).collect()
        }

        fn due_in(&self) -> Duration {
            self.list.due_at().expect("it waits") - self.context.now
        }
    }

    const AT_ONCE: Duration = Duration::ZERO;
    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_task_behind_a_waiting_upgrade_is_asked_for_at_once_and_only_once() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            let first = scene.join(upgrade());
            assert_eq!(scene.send(AT_ONCE), [[first.clone()]]);
            let second = scene.join(wants(READER));
            assert_eq!(scene.due_in(), AT_ONCE);
            assert_eq!(scene.send(AT_ONCE), [[first.clone(), second.clone()]]);
            assert_eq!(scene.queue(), [&first, &second]);
            // It is the queue position of the client, which has one.
            scene.join(wants(READER));
            assert_eq!(scene.send(AT_ONCE), [[""; 0]; 0]);
            assert!(scene.due_in() > SECOND);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgrade_that_comes_before_a_queued_head_asks_once() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            let second = scene.join(wants((READER.0, 1_000)));
            assert_eq!(scene.send(AT_ONCE), [[second.clone()]]);
            let first = scene.join(upgrade());
            assert_eq!(scene.send(AT_ONCE), [[first.clone(), second.clone()]]);
            assert_eq!(scene.queue(), [first, second]);
        });
    }

    /// The others come after the first, and go before all that wait when they ask.
    #[tokio::test(start_paused = true)]
    async fn a_task_behind_many_upgrades_is_asked_for_beside_the_first() {
        in_context(|context| {
            for upgrades in [2, 3, 100] {
                let mut scene = Scene::new(context);
                let first = scene.join(upgrade());
                for _ in 1..upgrades {
                    scene.join(upgrade());
                }
                let last = scene.join(wants(READER));
                assert_eq!(scene.send(AT_ONCE), [[first, last]]);
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_upgrade_ends_with_its_reader() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            let first = scene.join(upgrade());
            scene.send(AT_ONCE);
            assert_eq!(scene.queue(), [first]);
            let mut step = scene.list.step(context);
            step.signalled("me-0", Signal::Evicted { token: 1 }, NOW);
            step.settle();
            let refused = |effect: &Effect<PlainHold>| matches!(effect, Effect::Refused { to: 1, .. });
            assert!(scene.list.effects().iter().any(refused), "{:?}", scene.list);
            scene.send(AT_ONCE);
            assert_eq!((scene.queue(), scene.list.due_at()), (Vec::new(), None));
        });
    }

    /// Another program has put an earlier copy of the document in its place.
    #[tokio::test(start_paused = true)]
    async fn an_upgrade_that_gets_no_place_asks_less_and_less_often() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            scene.state = lock(READER.0, [], []);
            scene.join(upgrade());
            let mut passed = AT_ONCE;
            let pauses = [50, 100, 200, 400, 800, 1_000, 1_000].map(|pause| {
                assert_eq!(scene.send(passed).len(), 1);
                passed += Duration::from_millis(pause);
                scene.due_in()
            });
            assert_eq!(pauses.last(), Some(&passed), "{pauses:?}");
        });
    }

    /// All in the full queue wait for its reader.
    #[tokio::test(start_paused = true)]
    async fn an_upgrade_looks_for_no_room() {
        in_context(|context| {
            let context = &Context { room: 0, ..*context };
            let mut scene = Scene::new(context);
            let first = scene.join(upgrade());
            // As if another, which was asked for before it, had found it full and had gone.
            (scene.list.is_full, scene.list.ask_at) = (true, Some(context.now + SECOND));
            assert_eq!(scene.send(AT_ONCE), [[first.clone()]]);
            assert_eq!(scene.queue(), [&first]);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_finds_the_queue_full_behind_an_upgrade_asks_again_after_a_while() {
        in_context(|context| {
            let context = &Context { room: 1, ..*context };
            let mut scene = Scene::new(context);
            scene.state.queue.push(waiter("other-1", 60_000));
            let first = scene.join(upgrade());
            let second = scene.join(wants(READER));
            assert_eq!(scene.send(AT_ONCE), [[first.clone(), second.clone()]]);
            assert_eq!(scene.queue(), [&first, "other-1"]);
            assert_eq!(scene.due_in(), ASK_EVERY);
            assert_eq!(scene.send(ASK_EVERY), [[first, second]]);
        });
    }

    /// It is shorter than that of the upgrade, which asks for both.
    #[tokio::test(start_paused = true)]
    async fn the_entry_behind_an_upgrade_outlasts_its_own_lease() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            let first = scene.join(upgrade());
            let mut short = wants(READER);
            short.terms.length = Some(2 * SECOND);
            let second = scene.join(short);
            for seconds in 0..3 {
                assert_eq!(scene.send(seconds * SECOND), [[first.clone(), second.clone()]]);
                assert_eq!(scene.queue(), [&first, &second]);
                assert_eq!(scene.due_in(), (seconds + 1) * SECOND);
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_behind_an_upgrade_that_is_not_asked_for_with_it_or_is_a_try_is_no_reason_to_ask_again() {
        in_context(|context| {
            let patience = Patience::Try;
            let tries = AcquireOptions {
                patience,
                ..wants(READER)
            };
            for (second, asked) in [(wants(MUTEX), 0), (tries, 1)] {
                let mut scene = Scene::new(context);
                scene.join(upgrade());
                assert_eq!(scene.send(AT_ONCE).len(), 1);
                scene.join(second);
                assert_eq!(scene.send(AT_ONCE).len(), asked);
                assert!(scene.due_in() > SECOND);
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_behind_an_upgrade_whose_request_fails_asks_after_the_pause_of_any_other() {
        in_context(|context| {
            let mut scene = Scene::new(context);
            let first = scene.join(upgrade());
            scene.send(AT_ONCE);
            let second = scene.join(wants(READER));
            let operation = scene.next(AT_ONCE).expect("it asks");
            assert_eq!(scene.send(AT_ONCE), [[""; 0]; 0], "it is on its way");
            scene.list.step(context).failed(&operation, Setback::Interrupted);
            assert_eq!(scene.send(AT_ONCE), [[""; 0]; 0]);
            let pause = scene.due_in();
            assert!(pause <= SECOND, "{pause:?}");
            assert_eq!(scene.send(pause), [[first, second]]);
        });
    }
}
