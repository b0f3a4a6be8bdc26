//! The outlook of a claim that finds nothing free: when the next lease ends, and documents that can never be claimed.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::{Session, hedged_read::Cost};
use super::passed::{Selection, Why, shown};
use crate::{
    error::AcquireError,
    error::ServerError,
    store::{Outlook, Wanted, name},
};

/// Whether a claim fails where it is known already that all matching documents are unclaimable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// It does.
    Again,
    /// It does not: others were told.
    OnlyNews,
}

impl Session {
    pub(super) async fn look(self: &Arc<Self>, wanted: &Arc<Wanted>, key: &[u8]) -> Result<Outlook, ServerError> {
        let passed = self.claims.passed().ids(Instant::now());
        let reading = self.read(Cost::Unknown, || {
            let (store, wanted, passed) = (self.store.clone(), wanted.clone(), passed.clone());
            async move { store.outlook(&wanted, &passed).await }
        });
        let looking = self.claims.looks.begin(key);
        let outlook = match reading.await {
            Ok(outlook) => outlook,
            Err(error) => {
                if error.found_no_server() {
                    looking.found_no_server();
                }
                return Err(error);
            }
        };
        looking.answered(outlook.unfit.is_some());
        self.note(&outlook.exchange);
        Ok(outlook)
    }

    /// Fails if all matching documents are unclaimable.
    pub(super) async fn some_are_claimable(
        self: &Arc<Self>,
        outlook: Option<&Outlook>,
        telling: Telling,
    ) -> Result<(), AcquireError> {
        let Some((outlook, id)) = outlook.and_then(|outlook| Some((outlook, outlook.unfit.as_ref()?))) else {
            return Ok(());
        };
        let known = self.claims.passed().why(&name::of_id(id), Instant::now());
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
                    // It is fit by now; or that is not known, and the next look asks again.
                    Ok(None) | Err(_) => return Ok(()),
                };
                let why: Why = Arc::new(why);
                self.note_passed(id.clone(), why.clone(), Selection::Unselected);
                why
            }
        };
        if outlook.others || !(news || telling == Telling::Again) {
            return Ok(());
        }
        let name = shown(id);
        Err(AcquireError::Unclaimable { name, cause: why })
    }

    /// Returns when to try again without an event: at the first end of a lease, or after a while.
    pub(super) fn free_at(&self, outlook: &Outlook) -> Instant {
        let routine = Instant::now() + self.config.lease / 2;
        let soonest = Instant::now() + self.config.poll_interval.0;
        let over = outlook.free_at.and_then(|free_at| self.table().clock.after(free_at));
        over.map_or(routine, |over| over.min(routine)).max(soonest)
    }
}
