//! The run of an operation: one at a time for each name, and beside the unanswered ones that were given up.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{Session, asking::Limit, in_flight::Slot};
use crate::{
    error::ServerError,
    protocol::Operation,
    store::{Answer, Asked, Store},
    telemetry,
    waitlist::{TimedOut, answers::asked_for},
};

impl Session {
    /// Runs an operation on one name, and then those that its line wants next.
    pub(super) async fn run(self: Arc<Self>, name: String, (operation, timed_out): (Operation, TimedOut)) {
        self.prepare().await;
        let turn = self.asking.in_flight.turn(Asked { name, operation }, timed_out).await;
        // Without a turn of its own it has gone along in another's command.
        if let Some((slot, all)) = turn {
            let limit = self.asking.limit(timed_out, &self.config);
            // Apart, as most tasks of a crowd only wait.
            Box::pin(self.send(slot, all, limit)).await;
        }
    }

    /// Runs operations in one command.
    async fn send(self: Arc<Self>, slot: Slot, all: Vec<Asked>, limit: Limit) {
        let (asking, store) = (self.asking.clone(), self.store.clone());
        let sent = Instant::now();
        let mut command = pin!(run(&store, &all, limit.within));
        match asking.answer(command.as_mut(), Some(slot), limit).await {
            Ok(answers) => {
                self.suspicion.note(sent, answers.as_ref());
                for (asked, answer) in all.iter().zip(each(answers, all.len())) {
                    self.ended(asked, answer, limit.within);
                }
            }
            Err(adrift) => {
                for asked in &all {
                    self.give_up_on(asked, limit);
                }
                if let (Some(session), late) = adrift.outlast(self, command).await {
                    for (asked, answer) in all.iter().zip(each(late, all.len())) {
                        session.came_late(&asked.name, &asked.operation, &answer);
                    }
                }
            }
        }
    }

    /// Counts an operation as failed, and lets the line go on beside it.
    fn give_up_on(self: &Arc<Self>, asked: &Asked, limit: Limit) {
        let error = ServerError::unanswered(limit.patience());
        telemetry::operation_failed(telemetry::purpose(&asked.operation), Some(&asked.name), &error);
        self.ended(asked, Err(error), limit.within);
    }

    /// Notes the end of an operation, and runs what its line wants next.
    fn ended(
        self: &Arc<Self>,
        Asked { name, operation }: &Asked,
        answer: Result<Answer, ServerError>,
        within: Duration,
    ) {
        if let Some(next) = self.settle(name, operation, answer, within) {
            self.spawn(self.clone().run(name.clone(), next));
        }
    }

    /// Feeds the answer to an operation to its line, or its failure; the server was to try it `within` that time.
    /// Returns what the line wants next.
    fn settle(
        self: &Arc<Self>,
        name: &str,
        operation: &Operation,
        answer: Result<Answer, ServerError>,
        within: Duration,
    ) -> Option<(Operation, TimedOut)> {
        // Before the answer is acted on: its times are reckoned by this clock.
        if let Ok(answer) = &answer {
            self.note(&answer.exchange);
            self.report_recovery();
        }
        let answer = answer.map(Arc::new);
        let (next, effects) = {
            let mut table = self.table();
            let table = &mut *table;
            let context = self.context(table.streaming, &table.clock);
            let line = table.lines.by_name.get_mut(name)?;
            match &answer {
                Ok(answer) => {
                    table
                        .fleet
                        .note_write(answer.logged_by, 1, answer.exchange.received, &table.clock);
                    line.answered(operation, answer, &context);
                    if let Some(free) = line.first_seen(operation) {
                        table.lines.unknown.met(free);
                    }
                }
                Err(error) => {
                    line.failed(operation, error, &context);
                    line.note_limit(operation, error, within);
                }
            }
            line.waitlist.step(&context).attend_to_idle();
            let next = line.next(&context).map(|next| (next, line.waitlist.timed_out()));
            (next, self.after(table, name))
        };
        self.carry_out(name, effects, Some(&answer));
        next
    }

    /// Notes the end of an operation that was given up.
    fn came_late(self: &Arc<Self>, name: &str, operation: &Operation, answer: &Result<Answer, ServerError>) {
        match answer {
            Ok(answer) => {
                self.note(&answer.exchange);
                let Some(state) = &answer.state else { return };
                if asked_for(operation, state).next().is_some() {
                    self.feed(name, |lines, context| {
                        lines.line(name).waitlist.step(context).applied_late(operation, state);
                    });
                }
            }
            Err(error) => self.feed(name, |lines, _| {
                if let Some(line) = lines.by_name.get_mut(name) {
                    line.failed_late(error);
                }
            }),
        }
    }

    /// Runs a command in a task of its own, and waits up to `patience` for its answer. After that the command counts
    /// as failed with an unknown outcome, and runs on by itself.
    pub(crate) async fn in_time<T: Send + 'static>(
        self: &Arc<Self>,
        patience: Duration,
        command: impl Future<Output = Result<T, ServerError>> + Send + 'static,
    ) -> Result<T, ServerError> {
        self.ensure_usable()?;
        match timeout(patience, self.spawn_for(command)).await {
            Ok(answer) => answer.and_then(|answer| answer),
            Err(_) => Err(ServerError::unanswered(patience)),
        }
    }
}

/// Runs one operation, or several that share a command.
async fn run(store: &Store, all: &[Asked], within: Duration) -> Result<Vec<Result<Answer, ServerError>>, ServerError> {
    match all {
        [Asked { name, operation }] => Ok(vec![Ok(store.run(name, operation, within).await?)]),
        _ => store.run_together(all, within).await,
    }
}

/// Returns the answer to each of so many operations.
fn each(
    answers: Result<Vec<Result<Answer, ServerError>>, ServerError>,
    count: usize,
) -> Vec<Result<Answer, ServerError>> {
    answers.unwrap_or_else(|error| {
        // One document can hold up all of a command, and a reading can be refused after the write: their own commands
        // show which and why.
        let is_anyones = count > 1 && (error.ran_out_of_time() || error.is_final());
        let error = if is_anyones { ServerError::unsaid() } else { error };
        vec![Err(error); count]
    })
}
