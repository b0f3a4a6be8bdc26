//! Letting go of a hold: the next task of this process gets it without the server, it stays with the client, or its
//! entry leaves the document.

use super::{Context, Effect, Inheritance, Key, Leaving, Waitlist};
use crate::protocol::{Kept, KeptUntil, Use};

/// A hold that a task lets go of: by release, by drop, or because it was lost.
#[derive(Debug)]
pub struct Release<'a> {
    pub entry: &'a str,
    pub used: Use,
    pub heir: Heir,
    pub left_as: LeftAs,
    /// Whether a task waits for the answer to it.
    pub is_awaited: bool,
}

/// The heir of a hold inside the process.
#[derive(Clone, Copy, Debug)]
pub enum Heir {
    /// None: the lock goes through the server.
    Nobody,
    /// The next task in line, with what is left of the lease.
    NextTask(Inheritance),
    /// The next task in line; the client itself, as an option, where no task waits.
    TaskOrClient(Inheritance),
}

/// The state in which an entry leaves the lock when it leaves the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum LeftAs {
    /// Free for whoever is next.
    #[default]
    Free,
    /// Taken for a while.
    Kept(Kept),
    /// Free, as its holder has held it for as long as it may.
    HeldTooLong,
}

impl LeftAs {
    pub(super) fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Kept(kept) => Some(kept),
            Self::Free | Self::HeldTooLong => None,
        }
    }

    /// Whether the server ends it: the time of the hold is over here, and nobody has released it.
    fn expires(&self) -> bool {
        self.kept().is_some_and(|kept| kept.until == KeptUntil::Expiry)
    }
}

/// The whereabouts of a hold that a task has let go of.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum LetGo {
    /// Other readers of this process have it still.
    Shared,
    /// The next task in line has it: an effect says which.
    HandedOn,
    /// It stays with the client, with what is left of its lease; if `doubted`, its document has to be read before a
    /// task gets it.
    StaysIdle { inherited: Inheritance, doubted: bool },
    /// Its entry stays until the server ends it.
    Expires,
    /// Its entry leaves with the next operation. `release` names the release in the effect that answers it, if it is
    /// awaited.
    Leaves { release: Option<Key> },
}

impl Waitlist {
    /// Lets go of a hold. The next task in line gets it where it can be handed on without the server. A hold that
    /// readers share stays until the last of them lets go. The entry of a hold whose time is over stays in any case.
    pub fn let_go(&mut self, release: Release<'_>, context: &Context<'_>, effects: &mut Vec<Effect>) -> LetGo {
        let Release { entry, heir, .. } = release;
        if self.part(entry) {
            return LetGo::Shared;
        }
        if release.left_as.expires() {
            self.expire(release, context);
            return LetGo::Expires;
        }
        if let Heir::NextTask(inherited) | Heir::TaskOrClient(inherited) = heir
            && self.hand_on(entry, inherited, context, effects)
        {
            return LetGo::HandedOn;
        }
        if let Heir::TaskOrClient(inherited) = heir
            && let Some(doubted) = self.keep_idle(entry, inherited, context)
        {
            return LetGo::StaysIdle { inherited, doubted };
        }
        let release = self.leave(release, context);
        LetGo::Leaves { release }
    }

    /// Whether there is a hold that no task has, and it is let go of now: a task waits, or it has to be given back. If
    /// not, plans when it is looked at again.
    pub fn must_let_go_of_idle(&mut self, context: &Context<'_>) -> bool {
        let Some(entry) = self.idle_entry() else {
            return false;
        };
        let gives_back = self.must_give_back(&entry, context);
        !self.is_empty() || gives_back
    }

    /// Whether an entry leaves that may be a holder, and that no answer has shown to have left.
    pub fn lets_go(&self) -> bool {
        let mut leaving = self.leaving.iter().chain(self.under_way.iter().flatten());
        leaving.any(|leaving| leaving.may_hold && !leaving.is_sweep() && leaving.left_as != LeftAs::HeldTooLong)
    }

    /// Has the entry of a hold leave with the next operation. Returns the name of its release, if it is awaited.
    fn leave(&mut self, release: Release<'_>, context: &Context<'_>) -> Option<Key> {
        let Release {
            entry,
            used,
            left_as,
            is_awaited,
            ..
        } = release;
        let release = is_awaited.then(|| context.ids.number());
        let held = self.holds.remove(entry);
        // An unknown entry may be anywhere.
        let uncertain = held.as_ref().is_none_or(|held| held.uncertain);
        let lease = held.map_or(context.config.lease, |held| held.lease);
        let leaving = Leaving::new(entry.to_owned(), context).used_as(used).holding();
        let leaving = leaving.of_lease(lease, context).left_as(left_as);
        self.leaving.push(leaving.swept_if(uncertain).answering(release));
        release
    }
}
