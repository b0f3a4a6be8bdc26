//! What a task does with a hold: it looks at it again and again, and lets go of it or leaves it behind.

use std::{fs, path::Path, time::Duration};

use futures::future::select_all;
use mongodb::bson::{Document, doc};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use watchlock::{
    Detached, LostReason, Released, View, documents,
    election::Election,
    errors::HoldError,
    locks::{MultiLock, UpgradeableRead},
};

use super::{Actor, nanos};
use crate::{
    clock::{Moment, now},
    locks::Share,
    random::Random,
    record::{DETACHED, What},
};

/// Pause between two looks. The `safe_for` of a look covers the time until the next.
const LOOK: Duration = Duration::from_millis(25);

/// A handle, of any kind.
#[derive(Debug)]
pub(crate) enum Held {
    Lock(watchlock::Held),
    Upgradeable(watchlock::Held<UpgradeableRead>),
    Leader(watchlock::Held<Election>),
    Document(Box<watchlock::Held<documents::Document<Document>>>),
    Several(watchlock::Held<MultiLock>),
}

impl Held {
    /// Returns its parts, which are one but for a multi-lock's.
    pub(crate) fn parts(&self) -> Vec<View> {
        match self {
            Self::Lock(handle) => vec![handle.view()],
            Self::Upgradeable(handle) => vec![handle.view().into()],
            Self::Leader(leadership) => vec![leadership.view().into()],
            Self::Document(handle) => vec![handle.view().into()],
            Self::Several(handle) => handle.parts().collect(),
        }
    }

    pub(crate) async fn release(self) -> Result<Released, HoldError> {
        match self {
            Self::Lock(handle) => handle.release().await,
            Self::Upgradeable(handle) => handle.release().await,
            Self::Leader(leadership) => leadership.release().await,
            Self::Document(handle) => handle.release().await,
            Self::Several(handle) => handle.release().await,
        }
    }
}

/// The state of one part of a hold.
pub(super) struct Look {
    /// Before it was asked.
    pub(super) at: Moment,
    pub(super) safe_for: u64,
    pub(super) lost: Option<LostReason>,
}

pub(super) fn look(parts: &[View]) -> Vec<Look> {
    let look = |view: &View| Look {
        at: now(),
        safe_for: nanos(view.safe_for()),
        lost: view.lost_reason(),
    };
    parts.iter().map(look).collect()
}

/// A hold that was detached, in a file for the client that takes it up.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Left {
    /// That of its entry, which stays the same.
    pub(super) reason: String,
    pub(super) name: String,
    pub(super) share: Share,
    pub(super) hold: Detached,
}

impl Left {
    /// Returns one of those in the folder. Its file stays there, so that several clients may try to take it up.
    pub(super) fn any(folder: &Path, random: &mut Random) -> Option<Self> {
        let mut files: Vec<_> = fs::read_dir(folder).ok()?.flatten().collect();
        if files.is_empty() {
            return None;
        }
        let file = files.swap_remove(random.index(files.len()));
        // It may be gone, or about to be written.
        serde_json::from_slice(&fs::read(file.path()).ok()?).ok()
    }

    fn write(&self, folder: &Path) {
        let text = serde_json::to_vec(self).expect("it is plain");
        fs::write(folder.join(&self.reason), text).expect("the folder of the run can be written");
    }

    /// Takes it out of the folder.
    pub(super) fn remove(&self, folder: &Path) {
        // Another client may have been faster.
        let _ = fs::remove_file(folder.join(&self.reason));
    }
}

impl Actor {
    /// Looks at a hold again and again, and once more at the end. Every fourth holder goes as soon as it is wanted.
    /// Returns whether it is still held. The operations of its parts follow `op`.
    pub(super) async fn hold(&self, op: u64, held: &Held, time: Duration) -> bool {
        let parts = held.parts();
        let mut end = Instant::now() + time;
        let yields = op.is_multiple_of(4);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let told = {
                let lost = select_all(parts.iter().map(|part| Box::pin(part.lost())));
                let wanted = select_all(parts.iter().map(|part| Box::pin(part.wanted())));
                tokio::select! {
                    biased;
                    (lost, ..) = lost, if !self.ignores_loss => Some(lost),
                    _ = wanted, if yields && !left.is_zero() => {
                        end = Instant::now();
                        None
                    }
                    () = sleep(left.min(LOOK)) => None,
                }
            };
            let left = left.min(end.saturating_duration_since(Instant::now()));
            let looks = look(&parts);
            let is_lost = !self.ignores_loss && looks.iter().any(|look| look.lost.is_some());
            if told.is_some() && !is_lost {
                let text = format!("lost() said {told:?} and lost_reason() says nothing");
                self.log(op, now(), What::Complaint { text });
            }
            for (op, Look { at, safe_for, lost }) in (op..).zip(looks) {
                let what = match lost {
                    Some(reason) if is_lost => What::Lost {
                        reason: format!("{reason:?}"),
                    },
                    // The other parts go with that which is lost.
                    None if is_lost => What::LettingGo { released: false },
                    _ => What::Look { safe_for },
                };
                self.log(op, at, what);
            }
            if is_lost {
                return false;
            }
            if left.is_zero() {
                return true;
            }
        }
    }

    /// Releases a hold, or drops it.
    pub(super) async fn let_go(&self, op: u64, held: Held, released: bool) {
        let parts = (op..).take(held.parts().len());
        for op in parts.clone() {
            self.log(op, now(), What::LettingGo { released });
        }
        if released {
            let outcome = match held.release().await {
                Ok(outcome) => format!("{outcome:?}"),
                Err(error) => format!("failed: {error}"),
            };
            for op in parts {
                let outcome = outcome.clone();
                self.log(op, now(), What::LetGo { outcome });
            }
        }
    }

    /// Detaches a hold and leaves it behind for any client, or releases one of a kind that can't be detached.
    pub(super) async fn leave(&self, op: u64, reason: String, name: &str, share: Share, held: Held) {
        let handle = match held {
            Held::Lock(handle) => handle,
            Held::Upgradeable(reader) => reader.into(),
            held => return self.let_go(op, held, true).await,
        };
        self.log(op, now(), What::LettingGo { released: true });
        let outcome = match handle.detach().await {
            Ok(hold) => {
                let name = name.to_owned();
                let left = Left {
                    reason,
                    name,
                    share,
                    hold,
                };
                left.write(&self.left);
                DETACHED.to_owned()
            }
            Err(error) => format!("failed: {error}"),
        };
        self.log(op, now(), What::LetGo { outcome });
    }

    /// Uses the lock of a document: reads a number, adds one and writes it back, under the lock. Returns whether it is
    /// still held.
    pub(super) async fn count_up(&self, op: u64, handle: &watchlock::Held<documents::Document<Document>>) -> bool {
        let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
        self.log(op, now(), What::Writing { count });
        let written = match handle.update(doc! { "$set": { "count": count } }).await {
            Ok(_) => Some(true),
            Err(HoldError::Lost(lost)) => {
                self.log(op, now(), What::Wrote { written: Some(false) });
                self.log(
                    op,
                    now(),
                    What::Lost {
                        reason: format!("{:?}", lost.reason),
                    },
                );
                return false;
            }
            Err(_) => None,
        };
        self.log(op, now(), What::Wrote { written });
        true
    }

    /// Does the same, and gives the document back by the same write.
    pub(super) async fn finish(&self, op: u64, handle: watchlock::Held<documents::Document<Document>>) {
        let count = handle.document().get_i64("count").unwrap_or(-1) + 1;
        self.log(op, now(), What::Writing { count });
        self.log(op, now(), What::LettingGo { released: true });
        let update = doc! { "$set": { "count": count } };
        let (written, outcome) = match handle.update_and_release(update).await {
            Ok(()) => (Some(true), format!("{:?}", Released::Released)),
            Err(HoldError::Lost(_)) => (Some(false), format!("{:?}", Released::WasLost)),
            Err(error) => (None, format!("failed: {error}")),
        };
        self.log(op, now(), What::Wrote { written });
        self.log(op, now(), What::LetGo { outcome });
    }
}
