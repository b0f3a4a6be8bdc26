//! A scan of everything that a claim wants, none of which is free: when the next lease ends, and documents that can
//! never be claimed.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    super::{Session, hedged_read::Cost},
    filter::{Filter, Scanned, Scanning},
    skip_list::Why,
};
use crate::{
    error::{AcquireError, ServerError},
    store::{Outlook, name},
    truncated_debug::shown,
};

impl Session {
    pub(super) async fn scan(
        self: &Arc<Self>,
        filter: &Arc<Filter>,
        mut scanning: Scanning<'_>,
    ) -> Result<Outlook, ServerError> {
        let skipped = self.claims.skip_list().ids(Instant::now());
        let reading = self.read(Cost::Unknown, || {
            let (store, filter, skipped) = (self.store.clone(), filter.clone(), skipped.clone());
            async move { store.outlook(&filter.wanted, &skipped).await }
        });
        match reading.await {
            Ok(outlook) => {
                self.note(&outlook.exchange);
                scanning.ended = Scanned::Answered {
                    found_unfit: outlook.unfit.is_some(),
                    free_at: self.free_at(&outlook),
                };
                Ok(outlook)
            }
            Err(error) => {
                if error.found_no_server() {
                    scanning.ended = Scanned::FoundNoServer;
                }
                Err(error)
            }
        }
    }

    /// Returns when to try again without an event: at the first end of a lease, or after a while.
    fn free_at(&self, outlook: &Outlook) -> Instant {
        let routine = Instant::now() + self.config.lease / 2;
        let soonest = Instant::now() + self.config.poll_interval.0;
        let over = outlook.free_at.and_then(|free_at| self.table().clock.after(free_at));
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }

    /// Fails if all matching documents are unclaimable; where that is known already, and others were told, only if the
    /// claim `fails_again`.
    pub(super) async fn some_are_claimable(
        self: &Arc<Self>,
        outlook: &Outlook,
        fails_again: bool,
    ) -> Result<(), AcquireError> {
        let Some(id) = &outlook.unfit else {
            return Ok(());
        };
        let known = self.claims.skip_list().why(&name::of_id(id), Instant::now());
        let news = known.is_none();
        let why = match known {
            Some(why) => why,
            None => {
                let reading = self.read(Cost::Unknown, || {
                    let (store, unfit) = (self.store.clone(), id.clone());
                    async move { store.why_unfit(&unfit).await }
                });
                let why = match reading.await {
                    Ok(Some(why)) => why,
                    Err(error) if error.is_final() => error,
                    // It is fit by now; or that is not known, and the next scan asks again.
                    Ok(None) | Err(_) => return Ok(()),
                };
                let why: Why = Arc::new(why);
                // The server would not choose it, so it can be claimed as soon as it is mended.
                self.note_unclaimable(id.clone(), why.clone(), false);
                why
            }
        };
        if outlook.others || !(news || fails_again) {
            return Ok(());
        }
        let name = shown(name::of_id(id)).to_string();
        Err(AcquireError::Unclaimable { name, cause: why })
    }
}
