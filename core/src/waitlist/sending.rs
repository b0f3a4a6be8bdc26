//! The choice of the next operation.

use std::time::Duration;

use tokio::time::Instant;

use super::{Hold, Leaving, LeftAs, Stage, Step, Waiting, Waitlist, timing, unsigned};
use crate::{
    config::{Config, millis},
    protocol::{AT_ONCE, CapacityIs, Evict, Expects, Kept, Kind, Operation, Request, Requests, Use},
};

impl<H: Hold> Step<'_, H> {
    /// Returns the next operation, if there is cause for one. It is on its way from now on, until it is answered or
    /// has failed.
    pub fn next_operation(&mut self) -> Option<Operation> {
        let (context, now) = (self.context, self.context.now);
        self.forget_expired(now);
        if self.under_way.is_some() || self.retry_at.is_some_and(|retry| now < retry) {
            return None;
        }
        let mut leaves = std::mem::take(&mut self.leaving);
        self.leaving = leaves.extract_if(.., |leaving| leaving.not_before > now).collect();
        self.may_have_tries = self.may_have_tries && self.waiting.iter().any(|waiting| !waiting.waits());
        let asks = self.asks_at().is_some_and(|at| at <= now);
        if leaves.is_empty() && !asks {
            return None;
        }
        let used = leaves.first().and_then(|leaving| leaving.used);
        let used = used.filter(|used| leaves.iter().all(|leaving| leaving.used == Some(*used)));
        // On a mismatch nothing would leave. The number of permits can have been set since an entry came: a request that
        // offers its own goes by it, and one that demands it goes alone.
        let matches = |head: &Waiting<H::Task>| match head.wants.by {
            CapacityIs::Offered => {
                let kind = |used: Use| used.0 == head.wants.used.0;
                leaves.iter().all(|leaving| leaving.used.is_some_and(kind))
            }
            _ => used == Some(head.wants.used) && head.wants.used.0 != Kind::Semaphore,
        };
        let together = leaves.is_empty() || self.waiting.front().is_some_and(matches);
        let expects = self.expects(&leaves, now, context.config);
        // The next task in line joins the queue together with the release of a hold, so that handing the lock from task
        // to task costs one command. While the head is queued already, the client has two queue positions. That harms
        // no one as long as no other client waits; beside others a client has one position for all its waiting tasks.
        let from_here = leaves.iter().any(|leaving| leaving.may_hold);
        let follows = self.others_wait == Some(false) && from_here;
        let requests = if together {
            // Where nobody is expected, there is nobody to adopt from.
            let reserve = self.reserve(from_here);
            self.requests(follows, expects == Expects::Nothing, reserve)
        } else {
            None
        };
        let kept: Vec<Kept> = leaves
            .iter()
            .filter_map(|leaving| leaving.left_as.kept().cloned())
            .collect();
        let held_too_long = leaves.iter().filter(|leaving| leaving.left_as == LeftAs::HeldTooLong);
        let entries = requests.iter().flat_map(|requests| &requests.entries);
        let longest = entries.map(|entry| entry.lease);
        let longest = longest.chain(kept.iter().map(|kept| kept.until.most())).max();
        let operation = Operation {
            id: context.ids.operation(),
            leave: leaves.iter().map(|leaving| leaving.entry.clone()).collect(),
            kept,
            evict: Evict::Nobody,
            change: None,
            requests,
            expects,
            room: context.room,
            keep: context
                .config
                .keep_millis_for(Duration::from_millis(unsigned(longest.unwrap_or(0)))),
            history: context.config.history,
            held_too_long: held_too_long.map(|leaving| leaving.entry.clone()).collect(),
        };
        self.under_way = Some(leaves);
        self.overtaken = false;
        if self.may_have_tries {
            self.waiting.iter_mut().for_each(|waiting| waiting.covered = true);
        }
        Some(operation)
    }

    /// Returns requests for the head, for the next in line if it `may_follow`, and tries for those that fit beside
    /// them: not for readers that are to share the head's hold.
    ///
    /// A grant to the head takes `reserve` more tokens than its own. A first request puts out earlier incarnations of
    /// its owner; a queued task has done so already.
    fn requests(&mut self, may_follow: bool, adopting: bool, reserve: i64) -> Option<Requests> {
        let context = self.context;
        let head = self.waiting.front()?;
        let (used, by, head_queued) = (head.wants.used, head.wants.by, head.is_queued());
        // An upgrade comes before the task that has the client's queue position, and takes nothing from it. Further
        // upgrades go before that task whenever they ask, so they wait here for the first.
        let place = self.place();
        // Each acquire is checked before it joins: a head that wants more than there is would never be asked for.
        debug_assert!(head.wants.permits <= used.1, "{}", head.entry);
        // Where that was in vain (a slow answer, a waiter of another client), they don't ask one by one.
        let alone = reserve > 0 && self.shares() && !self.asked_alone;
        self.asked_alone = alone;
        // Each of the tries needs its answer, and a waiter beside the head may get in sooner.
        let together = |waiting: &Waiting<H::Task>| match waiting.waits() {
            _ if alone => 1,
            true => AT_ONCE,
            false => context.room,
        };
        let mut entries = Vec::new();
        let mut adopts = None;
        let mut permits = 0;
        let line = self.waiting.iter_mut().enumerate();
        for (position, waiting) in line.filter(|(position, _)| *position == 0 || *position >= place) {
            if (waiting.wants.used, waiting.wants.by) != (used, by) || entries.len() >= together(waiting) {
                break;
            }
            permits += waiting.wants.permits;
            let is_first = position == 0 || position == place;
            if !is_first && waiting.is_queued() {
                continue;
            }
            let follows = position == 1 && may_follow && head_queued && waiting.waits();
            if !is_first && !follows && permits > used.1 {
                break;
            }
            let stays = waiting.waits() && (is_first || follows);
            entries.push(Request {
                reserve: if position == 0 { reserve } else { 0 },
                ..request(waiting, stays)
            });
            if adopting && !waiting.is_queued() {
                adopts = waiting.wants.owner.identity.clone();
            }
            if waiting.stage == Stage::New {
                waiting.stage = Stage::Asked;
            }
        }
        Some(Requests {
            kind: used.0,
            capacity: used.1,
            by,
            entries,
            adopts,
        })
    }
}

impl<H: Hold> Waitlist<H> {
    /// Returns the assumptions of the next operation about the document.
    ///
    /// A wrong one costs another round trip. Before an acquire that is acceptable. A release that hands over must not
    /// be late, so it assumes an empty queue only while hardly anybody can have joined it.
    fn expects(&self, leaves: &[Leaving<H::Release>], now: Instant, config: &Config) -> Expects {
        let alone_for = |limit| {
            self.alone_at
                .is_some_and(|at| now.saturating_duration_since(at) <= limit)
        };
        match (leaves, self.waiting.len()) {
            ([], 1) => {
                let head = &self.waiting[0];
                let alone = head.wants.used.1 == 1 && head.stage == Stage::New && alone_for(config.recent());
                if alone { Expects::Alone } else { Expects::Nothing }
            }
            // One that was not done with others goes by itself, so that its answer says why.
            ([leaving], 0) if self.races == 0 && leaving.is_plain_release() => match leaving.used {
                Some((_, 1)) if alone_for(timing::SHORT_HOLD) => Expects::Alone,
                Some((kind, 1)) if kind != Kind::Semaphore => Expects::OnlyHolder,
                Some(_) => Expects::Holding,
                None => Expects::Nothing,
            },
            _ => Expects::Nothing,
        }
    }
}

fn request<T>(waiting: &Waiting<T>, wait: bool) -> Request {
    Request {
        id: waiting.entry.clone(),
        permits: waiting.wants.permits,
        lease: millis(waiting.lease.length),
        claim: millis(waiting.lease.claim),
        wait,
        fresh: waiting.stage == Stage::New,
        reserve: 0,
        upgrades: waiting.wants.upgrades.clone(),
        owner: waiting.wants.owner.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waitlist::{
        Context,
        fixtures::{PERMIT, PlainHold, READER, in_context, task, waitlist},
    };

    /// The entries that the next operation asks for.
    fn asked(waitlist: &mut Waitlist<PlainHold>, context: &Context<'_>) -> Vec<String> {
        let requests = waitlist
            .step(context)
            .next_operation()
            .and_then(|operation| operation.requests);
        let entries = requests.into_iter().flat_map(|requests| requests.entries);
        entries.map(|entry| entry.id).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_tasks_are_asked_for_together_as_fit() {
        in_context(|context| {
            let mut five = waitlist((1..=5).map(|key| task(key, PERMIT)));
            assert_eq!(asked(&mut five, context), ["me-1", "me-2", "me-3", "me-4"]);
            // One that stands in the server's queue by itself is not asked for again.
            let mut second = waitlist((1..=3).map(|key| task(key, PERMIT)));
            second.waiting[1].stage = Stage::Queued;
            assert_eq!(asked(&mut second, context), ["me-1", "me-3"]);
        });
    }

    /// A reader asks alone where others would share its hold; where holds are not shared, there is no reason to.
    #[tokio::test(start_paused = true)]
    async fn a_reader_asks_alone_only_if_its_hold_would_be_shared() {
        in_context(|context| {
            let readers = || waitlist((1..=3).map(|key| task(key, READER)));
            assert_eq!(asked(&mut readers(), context), ["me-1"]);
            let mut config = context.config.clone();
            config.hands_on = false;
            let config = &config;
            let context = Context { config, ..*context };
            assert_eq!(asked(&mut readers(), &context), ["me-1", "me-2", "me-3"]);
        });
    }
}
