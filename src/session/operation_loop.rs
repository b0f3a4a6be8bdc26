//! The run of an operation: one at a time for each name, and beside the unanswered ones that were given up.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{Session, Table, in_flight::Limit, slots::Slot};
use crate::{
    error::ServerError,
    protocol::Operation,
    store::{Answer, Asked, Store},
    telemetry,
    waitlist::answers::asked_for,
};

impl Session {
    /// Runs an operation on one name. Its end runs the next one that the line wants.
    pub(super) async fn run(self: Arc<Self>, name: String, (operation, overdue): (Operation, u32)) {
        self.prepare().await;
        let turn = self
            .in_flight
            .slots
            .turn(Some(Asked { name, operation }), overdue)
            .await;
        // Without a turn of its own it has gone along in another's command.
        if let Some((slot, all)) = turn {
            let limit = self.in_flight.limit(overdue, &self.config);
            // Apart, as most tasks of a crowd only wait.
            Box::pin(self.send(slot, all, limit)).await;
        }
    }

    /// Runs operations in one command.
    async fn send(self: Arc<Self>, slot: Slot, all: Vec<Asked>, limit: Limit) {
        let (in_flight, store) = (self.in_flight.clone(), self.store.clone());
        let sent = Instant::now();
        let mut command = pin!(run(&store, &all, limit.within));
        let adrift = match in_flight.answer(command.as_mut(), Some(slot), limit).await {
            Ok(answers) => {
                self.failover_detector.note(sent, answers.as_ref());
                return self.ended(&all, answers, limit.within);
            }
            Err(adrift) => adrift,
        };
        let error = ServerError::unanswered(limit.patience());
        for Asked { name, operation } in &all {
            telemetry::operation_failed(telemetry::purpose(operation), Some(name), &error);
        }
        self.ended(&all, Err(error), limit.within);
        if let (Some(session), late) = adrift.outlast(self, command).await {
            for (asked, answer) in all.iter().zip(each(late, all.len())) {
                session.came_late(&asked.name, &asked.operation, &answer);
            }
        }
    }

    /// Feeds the answers to operations to their lines, or their failure; the server was to try them `within` that time.
    fn ended(
        self: &Arc<Self>,
        all: &[Asked],
        answers: Result<Vec<Result<Answer, ServerError>>, ServerError>,
        within: Duration,
    ) {
        for (Asked { name, operation }, answer) in all.iter().zip(each(answers, all.len())) {
            // Before the answer is acted on: its times are reckoned by this clock.
            if let Ok(answer) = &answer {
                self.note(&answer.exchange);
                self.report_recovery();
                let Table { fleet, clock, .. } = &mut *self.table();
                // All of them are in the log just before that time.
                fleet.note_log(answer.logged_by, all.len() as u64, answer.exchange.received, clock);
            }
            let answer = answer.map(Arc::new);
            let mut holders = None;
            self.update(name, Some(&answer), |lines, context| {
                let Some(line) = lines.by_name.get_mut(name) else {
                    return;
                };
                match &answer {
                    Ok(answer) => {
                        line.answered(operation, answer, context);
                        holders = line.many_holders(answer);
                        if let Some(free) = line.first_seen(operation) {
                            lines.unknown.met(free);
                        }
                    }
                    Err(error) => {
                        line.failed(operation, error, context);
                        line.note_limit(operation, error, within);
                    }
                }
            });
            if let Some(holders) = holders {
                telemetry::many_holders(name, holders);
            }
        }
    }

    /// Notes the end of an operation that was given up.
    fn came_late(self: &Arc<Self>, name: &str, operation: &Operation, answer: &Result<Answer, ServerError>) {
        match answer {
            Ok(answer) => {
                self.note(&answer.exchange);
                let Some(state) = &answer.state else { return };
                if asked_for(operation, state).next().is_some() {
                    self.update(name, None, |lines, context| {
                        lines.line(name).waitlist.step(context).applied_late(operation, state);
                    });
                }
            }
            Err(error) => self.update(name, None, |lines, _| {
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
