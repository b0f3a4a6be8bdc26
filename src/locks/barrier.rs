//! A barrier at which a number of parties wait for each other.
//!
//! A party takes a place, which is a hold of one permit, and watches the document. When all places are held, the parties
//! of this *generation* pass: each marks its place with the generation, releases it, and leaves it taken. The mark tells
//! those who look later that they have passed too, even if places are gone by then; and as the places stay taken, nobody
//! of the next generation comes in before all have looked. Then one write clears them.
//!
//! Of a place whose hold is valid and a mark with a larger token it follows that both were held at the same time, with all
//! others: tokens rise, the generation's last token was granted after the place, and its places were all held after that.

use std::{fmt, future::IntoFuture, pin::pin, str::FromStr, time::Duration};

use crate::{
    config::millis,
    error::{AcquireError, BarrierError},
    handle::LockHandle,
    locks::{
        acquire::Acquire,
        watched::{Places, Watch},
    },
    name::LockName,
    protocol::{KeptUntil, Kind, State},
    session::{hold::Hold, locks::LockSession},
    status::LostReason,
    token::FencingToken,
};

/// Time for which a passed place stays taken beyond the longest lease among the parties, if nobody clears it before: a
/// party that holds its place has looked by then, or has lost it.
const BEYOND_LEASE: Duration = Duration::from_secs(2);

/// A number of parties of any processes that wait for each other, again and again. Made by
/// [`LockClient::barrier`](crate::LockClient::barrier).
///
/// It is for work in phases: nobody begins the next phase before everybody has finished the present one.
///
/// # Guarantees
///
/// - [`wait`](Self::wait) returns only after `parties` calls of it were at the barrier at one moment, all with valid
///   places.
/// - Each of them passes once, and all under the same [generation](BarrierPass::generation), which rises from one to the
///   next. If a party dies at the moment of passing, another can fill its place for those who have not looked yet: then
///   they have a later generation than those who have.
/// - A party that dies or gives up while it waits is not counted any more: at once if its future was dropped, and at the end
///   of its lease if its process died. Those who wait go on waiting, until another takes its place.
/// - More calls than parties wait for the next generation, first come, first served.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let phase = locks.barrier("rebuild/phase", 2);
/// let (one, other) = tokio::try_join!(phase.wait(), phase.wait())?;
/// assert_eq!(one.generation(), other.generation());
/// assert!(one.is_leader() != other.is_leader());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Barrier {
    places: Places,
}

/// A passed barrier. From [`Barrier::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "one of the parties may have to do something for all"]
pub struct BarrierPass {
    generation: FencingToken,
    is_leader: bool,
}

impl BarrierPass {
    /// Returns the number of the generation: larger than that of each earlier one. It is a fencing token, the last that
    /// was issued to one of its parties.
    pub fn generation(self) -> FencingToken {
        self.generation
    }

    /// Returns whether this party is the one that came first, for what one of them has to do. If the leader dies at the
    /// moment of passing, there may be none, or another.
    pub fn is_leader(self) -> bool {
        self.is_leader
    }
}

impl Barrier {
    pub(crate) fn new(session: LockSession, name: LockName, parties: u32) -> Self {
        let kind = Kind::Barrier;
        Self {
            places: Places {
                session,
                name,
                kind,
                count: parties,
            },
        }
    }

    /// Returns the name of the barrier.
    pub fn name(&self) -> &str {
        &self.places.name
    }

    /// Returns the number of parties that wait for each other.
    pub fn parties(&self) -> u32 {
        self.places.count
    }

    /// Waits until as many calls as there are parties wait, and passes with them. Wrap it in `tokio::time::timeout` to give
    /// up after some time.
    ///
    /// While the server can't be reached it keeps waiting, for as long as its place is not lost.
    ///
    /// # Errors
    ///
    /// [`BarrierError::Enter`] if it took no place: a barrier of no parties or of more than 256 is invalid.
    /// [`BarrierError::Lost`] if it lost its place, as with any [lock](crate::LockView::lost), and
    /// [`BarrierError::Server`]: the others may have passed with this party counted, or go on waiting for another.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place is given back in the background, and the others wait for another party. Those who
    /// have seen all there pass without it.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::time::Duration;
    ///
    /// let phase = locks.barrier("rebuild/phase", 2);
    /// let alone = tokio::time::timeout(Duration::from_millis(10), phase.wait()).await;
    /// assert!(alone.is_err(), "the other one did not come");
    /// # Ok(()) }
    /// ```
    pub async fn wait(&self) -> Result<BarrierPass, BarrierError> {
        self.places.check("parties").map_err(AcquireError::from)?;
        let mut watch = self.places.watch();
        let place = self.enter(&mut watch).await?;
        let generation = self.gather(&place, &mut watch).await?;
        let pass = BarrierPass {
            generation: FencingToken::new(generation.last),
            is_leader: place.hold().granted_as == generation.first,
        };
        self.leave(place, generation).await?;
        Ok(pass)
    }

    /// Takes a place: of the next generation, where that of the last one is still taken.
    async fn enter(&self, watch: &mut Watch<'_>) -> Result<LockHandle, BarrierError> {
        let mut acquiring = pin!(Acquire::new(self.places.one()).into_future());
        loop {
            tokio::select! {
                biased;
                place = &mut acquiring => return Ok(place?),
                changed = watch.changed() => changed?,
            }
            self.clear_behind(watch.last()).await;
        }
    }

    /// Waits until all are there, or until one of them says so.
    async fn gather(&self, place: &LockHandle, watch: &mut Watch<'_>) -> Result<Generation, BarrierError> {
        let hold = place.hold();
        loop {
            let complete = |state| Generation::marked(state, hold).or_else(|| Generation::complete(state, hold));
            if let Some(generation) = watch.last().and_then(complete) {
                return Ok(generation);
            }
            self.clear_behind(watch.last()).await;
            tokio::select! {
                biased;
                reason = place.lost() => return Err(reason.into()),
                changed = watch.changed() => changed.map_err(while_waiting)?,
            }
        }
    }

    /// Marks the place as passed, and leaves it taken until all have passed.
    async fn leave(&self, place: LockHandle, generation: Generation) -> Result<(), BarrierError> {
        let (hold, session) = (place.hold(), self.places.session.session().clone());
        let marked = session.proclaim(hold, generation.to_string()).await?;
        if !marked {
            // The watch over the hold may not have noticed yet.
            return Err(place.lost_reason().unwrap_or(LostReason::Overwritten).into());
        }
        hold.keep(KeptUntil::AfterRelease(generation.kept_for));
        // All is told by the mark. If the release fails, the lease ends the place.
        let _ = place.release().await;
        // The last one clears the places. Nobody waits for that, and whoever comes next does it otherwise.
        let barrier = self.clone();
        drop(session.spawn_for(async move {
            let state = barrier.places.read().await.ok().flatten();
            barrier.clear_behind(state.as_ref()).await;
        }));
        Ok(())
    }

    /// Clears the places of a generation that all its parties have passed. Best effort: they end by themselves.
    async fn clear_behind(&self, state: Option<&State>) {
        if let Some(last) = state.and_then(passed) {
            let _ = self.places.session.clear(&self.places.name, last).await;
        }
    }
}

/// The parties that pass together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Generation {
    /// The token of the party that came first.
    first: i64,
    /// The token of the party that came last.
    last: i64,
    /// Time for which the places stay taken after it, in milliseconds.
    kept_for: i64,
}

impl Generation {
    /// Returns the generation, if all its places are held, this one among them.
    fn complete(state: &State, hold: &Hold) -> Option<Self> {
        let held = || state.holders.iter().filter(|holder| !holder.is_kept());
        let all = i64::try_from(held().count()).ok()? == state.capacity;
        let tokens = || held().map(|holder| holder.token);
        (all && held().any(|holder| hold.is(holder))).then_some(Self {
            first: tokens().min()?,
            last: tokens().max()?,
            kept_for: Self::kept_for(state),
        })
    }

    /// Returns the generation of a party that has passed together with this one.
    fn marked(state: &State, hold: &Hold) -> Option<Self> {
        let with_us = |generation: &Self| generation.last >= hold.granted_as;
        marks(state).find(with_us).map(|generation| Self {
            kept_for: Self::kept_for(state),
            ..generation
        })
    }

    fn kept_for(state: &State) -> i64 {
        let longest = state.holders.iter().map(|holder| holder.lease).max().unwrap_or(0);
        longest.saturating_add(millis(BEYOND_LEASE))
    }
}

/// Returns the generations whose marks are in the document.
fn marks(state: &State) -> impl Iterator<Item = Generation> {
    let values = state.holders.iter().filter_map(|holder| holder.owner.value.as_deref());
    values.filter_map(|value| value.parse().ok())
}

/// Returns the last token of the generation that all its parties have passed, if its places are still there.
fn passed(state: &State) -> Option<i64> {
    let last = marks(state).map(|generation| generation.last).max()?;
    // It may not have looked yet.
    let waits = state
        .holders
        .iter()
        .any(|holder| !holder.is_kept() && holder.token <= last);
    (!waits).then_some(last)
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "passed with tokens {} to {}", self.first, self.last)
    }
}

impl FromStr for Generation {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let tokens = text.strip_prefix("passed with tokens ").ok_or(())?;
        let (first, last) = tokens.split_once(" to ").ok_or(())?;
        Ok(Self {
            first: first.parse().map_err(drop)?,
            last: last.parse().map_err(drop)?,
            kept_for: 0,
        })
    }
}

/// Returns the error of a party that has its place.
fn while_waiting(error: AcquireError) -> BarrierError {
    match error {
        AcquireError::Server(error) => error.into(),
        error => error.into(),
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier")
            .field("name", &self.places.name)
            .field("parties", &self.parties())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Holder, Owner, ServerTime};

    fn place(token: i64, passed: Option<(i64, i64)>, released: bool) -> Holder {
        let mark = passed.map(|(first, last)| Generation {
            first,
            last,
            kept_for: 0,
        });
        Holder {
            id: format!("p-{token}"),
            permits: 1,
            token,
            since: ServerTime(token),
            until: ServerTime(1_000),
            lease: 30_000,
            claim: 300,
            owner: Owner {
                value: mark.map(|mark| mark.to_string()),
                ..Owner::default()
            },
            released: released.then_some(ServerTime(500)),
        }
    }

    fn state(holders: Vec<Holder>) -> State {
        let mut state = State::from_document(&mongodb::bson::doc! {
            "kind": "barrier", "capacity": 3_i64, "token": 50_i64, "holders": [], "queue": [], "wake": "", "version": 1_i64,
            "at": mongodb::bson::DateTime::from_millis(0), "purge_at": mongodb::bson::DateTime::from_millis(0),
        })
        .expect("a lock");
        state.holders = holders;
        state
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let generation = Generation {
            first: 17,
            last: 42,
            kept_for: 0,
        };
        assert_eq!(generation.to_string().parse(), Ok(generation));
        for other in ["", "passed with tokens 1", "passed with tokens a to b", "node 7"] {
            assert_eq!(other.parse::<Generation>(), Err(()));
        }
    }

    #[test]
    fn places_are_cleared_once_nobody_of_their_generation_may_still_look() {
        let mark = Some((1, 3));
        let all = [place(1, mark, true), place(2, mark, true), place(3, mark, true)];
        assert_eq!(passed(&state(all.to_vec())), Some(3));
        // One has not passed yet; of one that died only its lease tells that it won't.
        assert_eq!(
            passed(&state(vec![all[0].clone(), place(2, None, false), all[2].clone()])),
            None
        );
        assert_eq!(passed(&state(vec![all[0].clone(), all[2].clone()])), Some(3));
        // One that has marked its place, and not released it.
        assert_eq!(passed(&state(vec![all[0].clone(), place(2, mark, false)])), None);
        // One of the next generation has come in beside what is left of this.
        assert_eq!(passed(&state(vec![all[0].clone(), place(4, None, false)])), Some(3));
        assert_eq!(passed(&state(vec![place(4, None, false)])), None);
        assert_eq!(passed(&state(Vec::new())), None);
    }
}
