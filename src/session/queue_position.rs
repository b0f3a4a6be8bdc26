//! Looks at queue positions: small readings, sent as [operations](super::in_flight) are.

use std::{pin::pin, sync::Arc};

use tokio::time::sleep;

use super::{Session, line::PositionLook};
use crate::{
    error::ServerError,
    protocol::{Ahead, Exchange},
};

impl Session {
    /// Looks at the queue position of an entry. If there is no answer in time, the entry asks, and the error of that
    /// shows why.
    pub(super) async fn look_at_position(self: Arc<Self>, name: String, look: PositionLook) {
        let slot = self.in_flight.slots.slot(0).await;
        if !self.admits(&name, &look) {
            // It had to wait, and another operation's answer has come meanwhile, or is about to.
            return;
        }
        let limit = self.in_flight.limit_of_look(&self.config);
        let store = self.store.clone();
        let mut looking = pin!(store.ahead(&name, &look.entry, limit.within));
        let in_flight = self.in_flight.clone();
        let mut is_overdue = false;
        let answered = {
            let mut answering = pin!(in_flight.answer(looking.as_mut(), slot, limit));
            tokio::select! {
                biased;
                // The entry asks then, also where the look may not be given up yet.
                () = sleep(limit.patience()) => {
                    is_overdue = true;
                    self.looked(&name, &look, Err(ServerError::unanswered(limit.patience())));
                    answering.await
                }
                answered = answering.as_mut() => answered,
            }
        };
        match answered {
            // By its late answer the entry has asked.
            Ok(seen) if is_overdue => {
                if let Ok((_, exchange)) = &seen {
                    self.note(exchange);
                }
            }
            Ok(seen) => self.looked(&name, &look, seen),
            Err(adrift) => {
                if let (Some(session), Ok((_, exchange))) = adrift.outlast(self, looking).await {
                    session.note(&exchange);
                }
            }
        }
    }

    /// Whether a look is still of use.
    fn admits(&self, name: &str, look: &PositionLook) -> bool {
        let mut table = self.table();
        let table = &mut *table;
        let context = self.context(table.streaming, &table.clock);
        let line = table.lines.by_name.get_mut(name);
        line.is_some_and(|line| line.waitlist.step(&context).admit(look))
    }

    fn looked(self: &Arc<Self>, name: &str, look: &PositionLook, seen: Result<(Option<Ahead>, Exchange), ServerError>) {
        if let Ok((_, exchange)) = &seen {
            self.note(exchange);
        }
        self.update(name, None, |lines, context| {
            let Some(line) = lines.by_name.get_mut(name) else {
                return;
            };
            let mut step = line.waitlist.step(context);
            match &seen {
                Ok((ahead, _)) => step.looked(look, *ahead),
                Err(_) => step.look_failed(look),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use tokio::{
        task::JoinHandle,
        time::{Instant, sleep_until},
    };

    use super::*;
    use crate::{
        client::LockClient,
        config::Settings,
        error::AcquireError,
        handle::Held,
        locks::Mutex,
        protocol::ServerTime,
        store::{MemoryStore, Store},
        tests::simulated::Link,
        wake_mode::{PollingReason, WakeMode, WakeSource},
    };

    type Waiting = JoinHandle<Result<Held<Mutex>, AcquireError>>;

    struct Bench {
        link: Arc<Link>,
        session: Arc<Session>,
        locks: LockClient,
        held: Held<Mutex>,
        waiting: Waiting,
    }

    /// A client that polls and does one thing at a time, and waits for a lock that another has had for a while.
    async fn waiting() -> Bench {
        let memory = Arc::new(MemoryStore::begun(ServerTime(1_700_000_000_000)));
        let client = |id: &str| {
            let link = Link::new(memory.clone(), 1);
            link.calm();
            let settings = Settings {
                wake_source: WakeSource::Polling,
                max_operations: Some(1),
                ..Settings::default()
            };
            let (config, store) = (settings.validate().unwrap(), Store::Simulated(link.clone()));
            let mode = WakeMode::Polling(PollingReason::Configured);
            let session = Session::of(id.to_owned(), config, store, None, mode);
            (link, session)
        };
        let (_, other) = client("fedcba9876543210");
        let held = LockClient::new(other).mutex("x").acquire().await.unwrap();
        let (link, session) = client("0123456789abcdef");
        let locks = LockClient::new(session.clone());
        let waiting = tokio::spawn(locks.mutex("x").acquire());
        sleep(Duration::from_secs(3)).await;
        assert!(link.reads() > 20, "{}", link.reads());
        Bench {
            link,
            session,
            locks,
            held,
            waiting,
        }
    }

    impl Bench {
        /// Waits until one more look has been sent.
        async fn looks(&self) {
            let reads = self.link.reads();
            while self.link.reads() == reads {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// It makes room for other operations soon, and for the request in its place when it is overdue.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_holds_up_nothing_else() {
        let bench = waiting().await;
        bench.link.kill_idle(1);
        bench.looks().await;
        let sent = Instant::now();
        bench.locks.mutex("y").acquire().await.unwrap().release().await.unwrap();
        assert!(sent.elapsed() < Duration::from_millis(100), "{:?}", sent.elapsed());
        sleep(Duration::from_millis(260)).await;
        // It has a connection still.
        assert!(!bench.session.in_flight.is_quiet());
        bench.held.release().await.unwrap();
        let released = Instant::now();
        bench.waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(
            released.elapsed() < Duration::from_millis(100),
            "{:?}",
            released.elapsed()
        );
        while !bench.session.is_unused() {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(!bench.session.in_flight.is_quiet());
        sleep(Duration::from_secs(1_000)).await;
        assert!(bench.session.in_flight.is_quiet());
    }

    /// Where many commands have hung and nothing is answered, one more is given up only after a while.
    #[tokio::test(start_paused = true)]
    async fn the_entry_of_a_look_that_hangs_asks_also_where_the_look_is_not_given_up_yet() {
        let bench = waiting().await;
        let in_flight = &bench.session.in_flight;
        let limit = in_flight.limit(0, &bench.session.config);
        let hang = async |_| {
            let mut hung = pin!(std::future::pending::<Result<(), ServerError>>());
            in_flight.answer(hung.as_mut(), None, limit).await.unwrap_err()
        };
        let _adrift = join_all((0..24).map(hang)).await;
        bench.link.kill_idle(1);
        bench.looks().await;
        sleep(limit.patience() + Duration::from_millis(5)).await;
        bench.held.release().await.unwrap();
        let released = Instant::now();
        bench.waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(
            released.elapsed() < Duration::from_millis(100),
            "{:?}",
            released.elapsed()
        );
    }

    /// It has waited for a slot, and meanwhile the entry has cause to ask.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_of_no_use_any_more_is_not_sent() {
        let bench = waiting().await;
        bench.looks().await;
        let line = |session: &Arc<Session>| session.table().lines.by_name["x"].waitlist.due_at();
        // The answer comes.
        sleep(Duration::from_millis(15)).await;
        let (reads, due_at) = (bench.link.reads(), line(&bench.session).unwrap());
        sleep_until(due_at - Duration::from_millis(5)).await;
        bench.link.block("y", true);
        let _blocked = tokio::spawn(bench.locks.mutex("y").acquire());
        sleep_until(due_at + Duration::from_millis(5)).await;
        assert_eq!(bench.link.reads(), reads, "it waits for a slot");
        bench.session.update("x", None, |lines, context| {
            lines.line("x").waitlist.step(context).doubt()
        });
        assert_eq!(line(&bench.session), None, "it asks");
        while line(&bench.session).is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(bench.link.reads(), reads);
        bench.link.block("y", false);
        bench.looks().await;
    }
}
