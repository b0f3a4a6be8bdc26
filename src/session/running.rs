//! The run of an operation: one at a time for each name, and beside the unanswered ones that were given up.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{Session, asking::Limit, lanes::Urgency};
use crate::{
    protocol::Operation,
    store::{Answer, StoreError},
    telemetry,
    waitlist::{TimedOut, answers::asked_for},
};

impl Session {
    /// Runs operations on one name for as long as its line wants any.
    pub(super) async fn run(self: Arc<Self>, name: String, first: (Operation, TimedOut)) {
        self.prepare().await;
        let mut next = Some(first);
        while let Some((operation, timed_out)) = next {
            let limit = self.asking.limit(timed_out, &self.config);
            let urgency = if operation.leave.is_empty() {
                Urgency::Usual
            } else {
                Urgency::Leaving
            };
            let slot = self.asking.enter(urgency, timed_out).await;
            let store = self.store.clone();
            let sent = Instant::now();
            let mut asking = pin!(store.run(&name, &operation, limit.within));
            match self.asking.answer(asking.as_mut(), slot, limit).await {
                Ok(answer) => {
                    self.suspicion.note(sent, answer.as_ref());
                    next = self.settle(&name, &operation, answer, limit.within);
                }
                Err(adrift) => {
                    self.give_up_on(&name, &operation, limit);
                    if let (Some(session), late) = adrift.outlast(self, asking).await {
                        session.came_late(&name, &operation, &late);
                    }
                    return;
                }
            }
        }
    }

    /// Counts an operation as failed, and lets the line go on beside it.
    pub(super) fn give_up_on(self: &Arc<Self>, name: &str, operation: &Operation, limit: Limit) {
        let error = StoreError::unanswered(limit.patience());
        telemetry::operation_failed(telemetry::purpose(operation), Some(name), &error);
        if let Some(next) = self.settle(name, operation, Err(error), limit.within) {
            self.spawn(self.clone().run(name.to_owned(), next));
        }
    }

    /// Feeds the answer to an operation to its line, or its failure; the server was to try it `within` that time.
    /// Returns what the line wants next.
    pub(super) fn settle(
        self: &Arc<Self>,
        name: &str,
        operation: &Operation,
        answer: Result<Answer, StoreError>,
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
                        .note_write(answer.logged_by, answer.exchange.received, &table.clock);
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
    pub(super) fn came_late(self: &Arc<Self>, name: &str, operation: &Operation, answer: &Result<Answer, StoreError>) {
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
        command: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ensure_alive()?;
        match timeout(patience, self.spawn_for(command)).await {
            Ok(answer) => answer.and_then(|answer| answer),
            Err(_) => Err(StoreError::unanswered(patience)),
        }
    }
}
