//! A waiting client as the fuzzing drives it: the core's waitlist, or the library's line around it.

use tokio::time::Instant;
use watchlock_core::{
    protocol::{Ahead, Exchange, Operation, ServerTime, State, Use, document::Malformed, wake},
    waitlist::{
        self, Context, Effect, Key, Need, Patience, PositionLook, Setback, Waiting, Waitlist,
        letting_go::{Heir, LeftAs, LetGo, Release},
    },
};

/// A task that gets in line.
#[derive(Debug)]
pub struct Joining {
    /// Its name in the client.
    pub key: Key,
    /// Its entry in the document.
    pub entry: String,
    /// The kind and capacity that it wants.
    pub used: Use,
    /// Number of permits.
    pub permits: i64,
    /// Whether it waits for its turn; otherwise it is a try.
    pub waits: bool,
    /// Whether a hold of the same client will do.
    pub reenters: bool,
    /// Whether a failed try reports the holders.
    pub reports_contention: bool,
}

/// A hold of a task.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its entry in the document.
    pub entry: String,
    /// Its fencing token.
    pub token: i64,
    /// The token of its entry in the document.
    pub granted_as: i64,
    /// The kind and capacity of the lock.
    pub used: Use,
    /// The time up to which the client believes in it.
    pub deadline: Instant,
}

/// The hold of a claim, which took a document without entries.
#[derive(Debug)]
pub struct Claimed {
    /// The hold, of one permit.
    pub held: Held,
    /// The exchange that brought it.
    pub exchange: Exchange,
}

/// News of a hold.
#[derive(Debug)]
pub enum News {
    /// A task has it.
    Granted(Held),
    /// It is over.
    Lost {
        /// Its entry in the document.
        entry: String,
    },
}

/// A waiting client before one lock.
pub trait WaitingClient {
    /// A failure of an operation or of a look.
    type Failure: Clone;

    /// Creates a client; `alone_at`: when the lock was last seen free.
    fn new(alone_at: Option<Instant>) -> Self;

    /// Returns a failure of every kind.
    fn failures() -> Vec<Self::Failure>;

    /// Returns the failure for a document that is no lock.
    fn unreadable(malformed: Malformed) -> Self::Failure;

    /// Adds a task.
    fn join(&mut self, task: Joining, context: &Context<'_>, news: &mut Vec<News>);

    /// Takes out a task that gives up.
    fn cancel(&mut self, key: Key, context: &Context<'_>);

    /// Lets go of a hold, which leaves with the next operation. `too_long`: its time is over.
    fn let_go(&mut self, held: &Held, too_long: bool, is_awaited: bool, context: &Context<'_>, news: &mut Vec<News>);

    /// Adds the hold of a claim.
    fn claimed(&mut self, claimed: &Claimed, context: &Context<'_>);

    /// Returns the next operation, if one is to be sent.
    fn next(&mut self, context: &Context<'_>) -> Option<Operation>;

    /// Notes the answer to the operation on its way.
    fn answered(
        &mut self,
        operation: &Operation,
        state: Option<&State>,
        exchange: &Exchange,
        context: &Context<'_>,
        news: &mut Vec<News>,
    );

    /// Notes that the operation on its way has failed.
    fn failed(&mut self, operation: &Operation, failure: &Self::Failure, context: &Context<'_>, news: &mut Vec<News>);

    /// Notes a word of an event about an entry of this client.
    fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        context: &Context<'_>,
        news: &mut Vec<News>,
    );

    /// Notes a read of the document, which was sent then.
    fn verified(
        &mut self,
        read: Option<&Result<State, Malformed>>,
        sent: Option<Instant>,
        held: &[String],
        context: &Context<'_>,
        news: &mut Vec<News>,
    );

    /// Notes that anything known of the document may be wrong.
    fn doubt(&mut self, context: &Context<'_>);

    /// Returns the next look at the queue position, if one is to be sent.
    fn next_look(&mut self, context: &Context<'_>) -> Option<PositionLook>;

    /// Whether a look that has waited for its turn is still wanted.
    fn admit(&mut self, look: &PositionLook, context: &Context<'_>) -> bool;

    /// Notes what a look shows, if it shows anything.
    fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>, context: &Context<'_>);

    /// Notes that a look has failed.
    fn look_failed(&mut self, look: &PositionLook, failure: &Self::Failure, context: &Context<'_>);

    /// Returns when the client has something to send.
    fn due_at(&self) -> Option<Instant>;

    /// Returns what the client needs besides answers.
    fn need(&self) -> Need;

    /// Whether only an event or the time brings it on.
    fn waits_for_event(&self) -> bool;
}

impl WaitingClient for Waitlist {
    type Failure = Setback;

    fn new(alone_at: Option<Instant>) -> Self {
        Self::new(alone_at)
    }

    fn failures() -> Vec<Setback> {
        vec![
            Setback::Unanswered,
            Setback::Raced,
            Setback::Refused,
            Setback::NoServer,
            Setback::Overdue,
            Setback::Interrupted,
        ]
    }

    fn unreadable(_: Malformed) -> Setback {
        Setback::Unreadable
    }

    fn join(&mut self, task: Joining, context: &Context<'_>, _: &mut Vec<News>) {
        let patience = if task.waits { Patience::Wait } else { Patience::Try };
        let used = (task.used, task.permits);
        let waiting = Waiting::new(task.key, task.entry, used, patience, context.now);
        self.join(waiting.reentering(task.reenters));
    }

    fn cancel(&mut self, key: Key, context: &Context<'_>) {
        self.cancel(key, context);
    }

    fn let_go(&mut self, held: &Held, too_long: bool, is_awaited: bool, context: &Context<'_>, news: &mut Vec<News>) {
        let release = Release {
            entry: &held.entry,
            used: held.used,
            heir: Heir::Nobody,
            left_as: if too_long { LeftAs::HeldTooLong } else { LeftAs::Free },
            is_awaited,
        };
        let mut effects = Vec::new();
        let let_go = self.let_go(release, context, &mut effects);
        assert!(matches!(let_go, LetGo::Leaves { .. }), "{let_go:?}");
        note(effects, news);
    }

    fn claimed(&mut self, claimed: &Claimed, context: &Context<'_>) {
        let Held { entry, used, token, .. } = claimed.held.clone();
        let held = waitlist::Held::new((used, 1), token, context.config.lease);
        self.hold(entry, held);
        self.claimed(&claimed.exchange, context);
    }

    fn next(&mut self, context: &Context<'_>) -> Option<Operation> {
        self.next(context)
    }

    fn answered(
        &mut self,
        operation: &Operation,
        state: Option<&State>,
        exchange: &Exchange,
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        let mut effects = Vec::new();
        self.answered(operation, state, exchange, context, &mut effects);
        note(effects, news);
    }

    fn failed(&mut self, operation: &Operation, failure: &Setback, context: &Context<'_>, news: &mut Vec<News>) {
        let mut effects = Vec::new();
        self.failed(operation, *failure, context, &mut effects);
        note(effects, news);
    }

    fn signalled(
        &mut self,
        id: &str,
        signal: wake::Signal,
        at: ServerTime,
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        let mut effects = Vec::new();
        self.signalled(id, signal, at, context, &mut effects);
        note(effects, news);
    }

    fn verified(
        &mut self,
        read: Option<&Result<State, Malformed>>,
        sent: Option<Instant>,
        held: &[String],
        context: &Context<'_>,
        news: &mut Vec<News>,
    ) {
        let mut effects = Vec::new();
        self.verified(read, sent, held, context, &mut effects);
        note(effects, news);
    }

    fn doubt(&mut self, context: &Context<'_>) {
        self.doubt(context);
    }

    fn next_look(&mut self, context: &Context<'_>) -> Option<PositionLook> {
        self.next_look(context)
    }

    fn admit(&mut self, look: &PositionLook, context: &Context<'_>) -> bool {
        self.admit(look, context)
    }

    fn looked(&mut self, look: &PositionLook, ahead: Option<Ahead>, context: &Context<'_>) {
        self.looked(look, ahead, context);
    }

    fn look_failed(&mut self, look: &PositionLook, failure: &Setback, context: &Context<'_>) {
        self.look_failed(look, *failure, context);
    }

    fn due_at(&self) -> Option<Instant> {
        self.due_at()
    }

    fn need(&self) -> Need {
        self.need()
    }

    fn waits_for_event(&self) -> bool {
        self.waits_for_event()
    }
}

fn note(effects: Vec<Effect>, news: &mut Vec<News>) {
    news.extend(effects.into_iter().filter_map(|effect| match effect {
        Effect::Granted { entry, grant, .. } => Some(News::Granted(Held {
            entry,
            token: grant.token,
            granted_as: grant.granted_as,
            used: grant.used,
            deadline: grant.deadline.instant(),
        })),
        Effect::Lost { entry, .. } => Some(News::Lost { entry }),
        _ => None,
    }));
}
