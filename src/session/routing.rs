//! The way of events: to the lines of their names, and to the holds that need verifying.

use std::{collections::HashSet, ops::Bound, sync::Arc};

use super::{Session, timer_queue::AT_A_TIME};
use crate::{
    protocol::{ServerTime, wake},
    store::{
        Event, ForeignWrite,
        lock_layout::{element_name, names_in},
    },
};

impl Session {
    /// Routes an event of the change stream. It only routes: tasks do the work.
    pub(super) fn on_event(self: &Arc<Self>, event: &Event) {
        match event {
            Event::Addressed {
                name,
                wake,
                at,
                logged_at,
            } => {
                let mut ours = false;
                for (id, signal) in wake::signals(wake, self.ids.session()) {
                    ours = true;
                    self.update(name, None, |lines, context| {
                        if context.ids.pending_claims.doubt(id, name) {
                            return;
                        }
                        // A grant of an entry that nobody knows any more is taken out again.
                        let known = lines.by_name.contains_key(name);
                        if known || matches!(signal, wake::Signal::Granted { .. }) {
                            lines.line(name).signalled(id, signal, *at, *logged_at, context);
                        }
                    });
                }
                if ours {
                    self.on_time(name, *at);
                } else {
                    // It reached us for its age alone: another program restored an earlier copy of the lock.
                    self.on_doubt(name);
                }
            }
            Event::Foreign { name, after } => {
                if let Some(after) = after {
                    self.on_overwrite(name, after);
                }
                self.on_doubt(name);
            }
            Event::Document { document, but } => {
                let but: HashSet<String> = but.iter().map(|code| element_name(document, code)).collect();
                for name in self.names_in(document) {
                    if !but.contains(&name) {
                        self.on_doubt(&name);
                    }
                }
                self.observers().document(&names_in(document));
            }
            // The watcher notifies the claims once for each batch.
            Event::Freed => {}
            Event::Written(name) => self.observers().written(name),
            Event::Unreadable(unreadable) => self.tell_observers(|register| register.unreadable(unreadable)),
            Event::Everything => {
                self.on_gap();
                self.observers().everything();
            }
        }
    }

    /// Verifies holds that were granted after the time that a write bears. Such a write restored an earlier copy of
    /// the lock, or its event is late.
    pub(super) fn on_time(self: &Arc<Self>, name: &str, at: ServerTime) {
        let mut held = self.table().lines.holds_of(name);
        held.retain(|hold| hold.is_granted_after(at));
        self.verify(held);
    }

    /// Ends the holds that another program's write has removed: those that were in the document before it, and are not
    /// after it. The event alone shows that. All others are read.
    fn on_overwrite(self: &Arc<Self>, name: &str, after: &ForeignWrite) {
        self.update(name, None, |lines, context| {
            if let Some(line) = lines.by_name.get_mut(name) {
                let before = line.waitlist.holds();
                let before = before.filter(|hold| hold.is_logged_before(after.logged_at));
                let before: Vec<String> = before.map(|hold| hold.id.clone()).collect();
                line.waitlist
                    .step(context)
                    .verified(after.document.as_ref(), None, &before);
            }
        });
    }

    /// Notes that the document of `name` may have changed in any way: its waiters ask again, its holds are
    /// verified.
    pub(super) fn on_doubt(self: &Arc<Self>, name: &str) {
        let mut held = Vec::new();
        self.update(name, None, |lines, context| {
            context.ids.pending_claims.note_foreign(Some(name));
            if let Some(line) = lines.by_name.get_mut(name) {
                line.waitlist.step(context).doubt();
                held.extend(line.waitlist.holds().cloned());
            }
        });
        self.verify(held);
    }

    /// Notes that events may have been missed: the same for every name.
    pub(super) fn on_gap(self: &Arc<Self>) {
        self.ids.pending_claims.note_foreign(None);
        let session = self.clone();
        self.spawn(async move { session.for_each_name(|name| session.on_doubt(name)).await });
    }

    /// Returns the names in a document of the user's own that have lines.
    fn names_in(&self, document: &str) -> Vec<String> {
        let first = names_in(document);
        let table = self.table();
        let names = table
            .lines
            .by_name
            .range::<str, _>((Bound::Included(&*first), Bound::Unbounded));
        let names = names.map(|(name, _)| name).take_while(|name| name.starts_with(&first));
        // A document whose `_id` is a text with `/` in it may have a name that begins in the same way.
        names.cloned().collect()
    }

    /// Does this for every name that has a line, in their order: a bounded number at a time, so that nothing else has to
    /// wait for long.
    pub(super) async fn for_each_name(&self, mut act: impl FnMut(&str)) {
        let mut last: Option<String> = None;
        loop {
            let names: Vec<String> = {
                let from = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
                let table = self.table();
                let names = table.lines.by_name.range::<str, _>((from, Bound::Unbounded));
                names.take(AT_A_TIME).map(|(name, _)| name.clone()).collect()
            };
            names.iter().for_each(|name| act(name));
            last = names.into_iter().next_back();
            if last.is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
