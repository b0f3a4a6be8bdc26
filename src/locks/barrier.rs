//! A barrier at which a number of parties wait for each other.
//!
//! A party takes a place, which is a hold of one permit, records in it that it is here, and watches the document. When
//! all are here, the parties of this *generation* pass: each marks its place with the generation, releases it, and
//! leaves it taken. From the mark, parties that look later learn that they have passed too, even if places are gone by
//! then. As the places stay taken, no party of the next generation comes in before all have looked. Then one write
//! clears them.
//!
//! A place counts only once its party has recorded that it is here: a waiter that was granted a place by an event may
//! never learn of it, and takes another. A party whose hold is valid and that finds a mark with a larger token knows
//! that all were here at the same time. Tokens rise, so the generation's last place was granted after this party's, and
//! after that grant all places were held, each by a party that was here.

use std::{
    future::Future,
    hash::{BuildHasher, RandomState},
    marker::PhantomData,
    ops::RangeInclusive,
    pin::pin,
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    config::millis,
    error::AcquireError,
    handle::{Released, owned::OwnedHold},
    locks::{
        request::Share,
        watched::{self, KEPT, Watch},
    },
    protocol::{Entry, KeptUntil, State},
    session::hold::Hold,
    status::LostReason,
    token::FencingToken,
    world::{Async, World},
};
#[cfg(feature = "sync")]
use crate::{input::check_duration, world::Blocking};

/// Least time without news after which a party that waits clears the places of a generation that has passed, in case the
/// last of its parties died before it cleared them: that takes a read and a write. The most is three times as long: all
/// that wait hear the same news, and would send the same write.
const CLEARS_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of parties. In each generation every party writes the document a few times, and every party receives
/// the events of all these writes.
const PARTIES_MOST: usize = 64;

/// The value in the place of a party that waits.
const HERE: &str = "waits for the others";

/// A number of parties of any processes that wait for each other, again and again. Made by
/// [`LockClient::barrier`](crate::LockClient::barrier).
///
/// Use it for work in phases: no party begins the next phase before all have finished the present one.
///
/// # Guarantees
///
/// - [`wait`](Self::wait) returns only after `parties` calls of it were at the barrier at one moment, each with a place
///   that was valid at the server.
/// - Each of them passes once, and all under the same [generation](BarrierPass::generation). If a party dies or gives
///   up at the moment of passing, another can fill its place for the parties that have not looked yet; these then have
///   a later generation than the parties that have.
/// - A party that gives up stops being counted as soon as its place is given back; one that dies, at the end of its
///   lease. The others go on waiting until another call of [`wait`](Self::wait) takes its place.
/// - More calls than parties wait for the next generation, first come, first served.
///
/// Poll `wait` while it waits, or spawn it: the next generation does not begin before all parties of this one have
/// looked. Parties in several clients need different [owner ids](crate::LockClientBuilder::owner_id), or none.
///
/// # When a party has died
///
/// Those that remain leave the barrier if one of them takes the place of the dead one too, by a second call of `wait`
/// beside its own. A party that died while it waited is still counted for the rest of its lease: if the others come by
/// then, they pass without the second call, which would wait for the next generation. The leader may be the second
/// call: then nobody else is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let phase = locks.barrier("rebuild/phase", 2);
/// // In the party that learns that the other one is dead.
/// let instead = { let phase = phase.clone(); tokio::spawn(async move { phase.wait().await }) };
/// let pass = phase.wait().await?;
/// instead.abort(); // It has passed too, or is not needed.
/// # drop(pass);
/// # Ok(()) }
/// ```
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
#[doc(alias("DoubleBarrier", "CyclicBarrier"))]
#[derive(Clone, Debug)]
pub struct Barrier<W: World = Async> {
    place: Share,
    of: PhantomData<fn() -> W>,
}

/// A passed barrier. From [`Barrier::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "one of the parties may have to do something for all"]
pub struct BarrierPass {
    generation: FencingToken,
    is_leader: bool,
}

impl BarrierPass {
    /// Returns the number of the generation, which is larger than that of each earlier one. It is a fencing token: the
    /// last that was issued to one of the generation's parties.
    pub fn generation(self) -> FencingToken {
        self.generation
    }

    /// Returns whether this party came first, for work that one party does on behalf of all. If the leader dies at the
    /// moment of passing, there may be no leader, or another.
    pub fn is_leader(self) -> bool {
        self.is_leader
    }
}

impl<W: World> Barrier<W> {
    pub(crate) fn new(place: Share) -> Self {
        Self { place, of: PhantomData }
    }

    /// Returns the name of the barrier.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Returns the number of parties that wait for each other.
    pub fn parties(&self) -> u32 {
        self.place.count()
    }

    /// Waits until as many calls as there are parties wait, and passes with them. Wrap it in `tokio::time::timeout` to
    /// give up after some time. While the server can't be reached, it keeps waiting until its place is lost.
    /// [`Barrier`] has an example.
    ///
    /// # Errors
    ///
    /// Those of an acquire; a barrier of no parties or of more than 64 is invalid. [`AcquireError::Lost`] if this party
    /// lost its place, also by the client's shutdown. After any error but [`AcquireError::Invalid`], the others may
    /// have passed with this party counted, or go on waiting for another.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place is given back in the background. Parties that have already seen all there
    /// pass without it; a retry then waits for the next generation, so a party that gave up must compare the
    /// [`generation`](BarrierPass::generation) where parties keep in step.
    pub fn wait(&self) -> W::Call<impl Future<Output = Result<BarrierPass, AcquireError>>> {
        W::call(self.passed())
    }

    async fn passed(&self) -> Result<BarrierPass, AcquireError> {
        watched::check(&self.place, "parties", PARTIES_MOST)?;
        let mut watch = Watch::begin(&self.place);
        let place = self.enter(&mut watch).await?;
        let generation = self.gather(&place, &mut watch).await?;
        let pass = BarrierPass {
            generation: FencingToken::new(*generation.end()),
            is_leader: place.hold().granted_as == *generation.start(),
        };
        let lost = place.lost_as(LostReason::Released);
        // Runs to its end, even if its future was dropped: the others go by its mark.
        let leaving = self.clone().leave(place, generation);
        match self.place.session.spawn_for(leaving).await {
            Ok(left) => left.map(|()| pass),
            // The runtime ended.
            Err(_) => Err(lost.into()),
        }
    }

    /// Takes a place (of the next generation, if that of the last one is still taken) and records that this party is
    /// here.
    async fn enter(&self, watch: &mut Watch<'_>) -> Result<OwnedHold, AcquireError> {
        let mut acquiring = watched::take(&self.place, None);
        let mut clearing = pin!(sleep(clears_after()));
        let place = loop {
            tokio::select! {
                biased;
                place = &mut acquiring => break place?,
                changed = watch.changed() => changed?,
                () = &mut clearing => {
                    self.clear(watch.last());
                    clearing.set(sleep(clears_after()));
                }
            }
        };
        self.say(&place, HERE.to_owned()).await?;
        Ok(place)
    }

    /// Waits until all parties are there, or until the mark of one of them says so.
    async fn gather(&self, place: &OwnedHold, watch: &mut Watch<'_>) -> Result<Generation, AcquireError> {
        let hold = place.hold();
        let mut clearing = pin!(sleep(clears_after()));
        loop {
            let complete = |state| marked(state, hold).or_else(|| complete(state, hold));
            if let Some(generation) = watch.last().and_then(complete) {
                return Ok(generation);
            }
            tokio::select! {
                biased;
                lost = place.lost() => return Err(lost.into()),
                changed = watch.changed() => changed?,
                () = &mut clearing => {
                    self.clear(watch.last());
                    clearing.set(sleep(clears_after()));
                }
            }
        }
    }

    /// Marks the place as passed, and leaves it taken until all have passed.
    async fn leave(self, place: OwnedHold, generation: Generation) -> Result<(), AcquireError> {
        self.say(&place, mark(&generation)).await?;
        let lost = place.lost_as(LostReason::Released);
        // A party can be late by any time as long as its place is renewed, which does not depend on whether its future
        // is polled. The last party to leave clears the places, or a party of the next generation once no party is
        // late, so nothing waits for the end of this time.
        place.hold().keep(KeptUntil::AfterRelease(millis(KEPT)));
        if place.leave().await? != Released::Kept {
            // Its mark may be gone before all have seen it.
            return Err(lost.into());
        }
        // The last party clears the places. Nobody waits for that, and otherwise a party of the next generation does
        // it.
        let barrier = self.clone();
        drop(self.place.session.spawn_for(async move {
            let state = barrier.place.newest::<AcquireError>().await.ok().flatten();
            barrier.clear(state.as_ref());
        }));
        Ok(())
    }

    /// Writes a value into the place for the others to read.
    async fn say(&self, place: &OwnedHold, word: String) -> Result<(), AcquireError> {
        if self.place.session.proclaim(place.hold(), word).await? {
            return Ok(());
        }
        Err(place.loss().await.into())
    }

    /// Clears, in the background, the places of a generation that all its parties have passed, if there are any. The
    /// write itself checks that they have, as the state that shows it may be old.
    fn clear(&self, state: Option<&State>) {
        let Some(last) = state.and_then(passed) else { return };
        let (session, name) = (self.place.session.clone(), self.place.name.clone());
        let clearing = session.clone();
        drop(session.spawn_for(async move { clearing.clear(&name, last).await }));
    }
}

/// Returns the time after which one of those that wait clears the places.
fn clears_after() -> Duration {
    let most = 1 + 2 * millis(CLEARS_AFTER).unsigned_abs();
    CLEARS_AFTER + Duration::from_millis(RandomState::new().hash_one(()) % most)
}

/// The parties that pass together: the tokens of the one that came first and the one that came last.
type Generation = RangeInclusive<i64>;

/// Returns the generation, if the parties of all places are here, this one among them.
fn complete(state: &State, hold: &Hold) -> Option<Generation> {
    let among = state.holders.iter().any(|holder| hold.is(holder));
    all_here(state).filter(|_| among)
}

/// Returns the generation of a party that has passed together with this one.
fn marked(state: &State, hold: &Hold) -> Option<Generation> {
    marks(state).find(|generation| *generation.end() >= hold.granted_as)
}

/// Returns the generation, if the parties of all places are here and none has passed.
fn all_here(state: &State) -> Option<Generation> {
    let is_here = |holder: &&Entry| !holder.is_kept() && holder.owner.value.as_deref() == Some(HERE);
    let here = || state.holders.iter().filter(is_here).map(|holder| holder.token);
    let all = i64::try_from(here().count()).ok()? == state.capacity;
    all.then_some(here().min()?..=here().max()?)
}

/// Returns the mark of a party that has passed.
fn mark(generation: &Generation) -> String {
    format!("passed with tokens {} to {}", generation.start(), generation.end())
}

/// Reads a mark.
fn marked_with(value: &str) -> Option<Generation> {
    let (first, last) = value.strip_prefix("passed with tokens ")?.split_once(" to ")?;
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Returns the generations whose marks are in the document.
fn marks(state: &State) -> impl Iterator<Item = Generation> {
    let values = state.holders.iter().filter_map(|holder| holder.owner.value.as_deref());
    values.filter_map(marked_with)
}

/// Returns the last token of the generation that all its parties have passed, if its places are still there.
fn passed(state: &State) -> Option<i64> {
    let last = marks(state).map(|generation| *generation.end()).max()?;
    // It may not have looked yet.
    let waits = state
        .holders
        .iter()
        .any(|holder| !holder.is_kept() && holder.token <= last);
    (!waits).then_some(last)
}

#[cfg(feature = "sync")]
impl Barrier<Blocking> {
    /// Waits as [`wait`](Self::wait) does, for at most `timeout` (up to 366 days). Returns `None` if this party gave
    /// up; others may have passed with it counted, if they had seen all there by then. Errors are those of `wait`, and
    /// [`AcquireError::Invalid`] for a timeout out of bounds.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<BarrierPass>, AcquireError> {
        check_duration("timeout", timeout)?;
        let waited = Blocking::call(async { tokio::time::timeout(timeout, self.passed()).await });
        waited.map_or(Ok(None), |passed| passed.map(Some))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::{join, join_all, select_all};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::{
        client::LockClient,
        config::Config,
        protocol::{Owner, ServerTime},
        session::Session,
        store::{MemoryStore, Store},
        tests::simulated::Link,
        wake_mode::WakeMode,
    };

    fn client(memory: &Arc<MemoryStore>, id: &str) -> (Arc<Link>, LockClient) {
        let link = Link::new(memory.clone(), 1);
        link.calm();
        let (config, store) = (Config::default(), Store::Simulated(link.clone()));
        let session = Session::of(id.to_owned(), config, store, None, WakeMode::ChangeStream);
        (link, LockClient::new(session))
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_wait_leave_the_clearing_to_those_that_passed() {
        const GENERATIONS: u64 = 20;
        let (link, locks) = client(&Arc::new(MemoryStore::default()), "0123456789abcdef");
        let barrier = locks.barrier("x", 2);
        let calls = (0..2 * GENERATIONS).map(|_| barrier.wait());
        for passed in join_all(calls).await {
            let _ = passed.unwrap();
        }
        sleep(Duration::from_secs(5)).await;
        // Both parties of a generation may have seen that the other has left.
        let clears = link.clears();
        assert!((GENERATIONS..=2 * GENERATIONS).contains(&clears), "{clears}");
    }

    #[tokio::test(start_paused = true)]
    async fn places_are_cleared_by_those_that_wait_if_nobody_else_does() {
        let memory = Arc::new(MemoryStore::default());
        let ((dying, one), (_, other)) = (client(&memory, "0123456789abcdef"), client(&memory, "fedcba9876543210"));
        let first = one.barrier("x", 1).wait().await.unwrap();
        dying.cut(true);
        sleep(Duration::from_secs(1)).await;
        memory.look("x", |state, _| assert!(state.and_then(passed).is_some()));
        let barrier = other.barrier("x", 1);
        let second = timeout(5 * CLEARS_AFTER, barrier.wait()).await;
        assert!(second.unwrap().unwrap().generation() > first.generation());
    }

    /// They all hear of it at the same time.
    #[tokio::test(start_paused = true)]
    async fn places_are_cleared_by_few_of_those_that_wait() {
        let memory = Arc::new(MemoryStore::default());
        let ((dying, one), (link, other)) = (client(&memory, "0123456789abcdef"), client(&memory, "fedcba9876543210"));
        let _ = one.barrier("x", 1).wait().await.unwrap();
        dying.cut(true);
        let barrier = other.barrier("x", 1);
        let calls = (0..200).map(|_| Box::pin(barrier.wait()));
        let (first, ..) = timeout(5 * CLEARS_AFTER, select_all(calls)).await.unwrap();
        let _ = first.unwrap();
        assert!((1..20).contains(&link.clears()), "{}", link.clears());
    }

    /// Each of those that come and go is news, more often than the clearing takes.
    #[tokio::test(start_paused = true)]
    async fn places_are_cleared_although_others_come_and_go() {
        let memory = Arc::new(MemoryStore::default());
        let ((dying, one), (_, other)) = (client(&memory, "0123456789abcdef"), client(&memory, "fedcba9876543210"));
        let (_, visitor) = client(&memory, "00000000ffffffff");
        let _ = one.barrier("x", 1).wait().await.unwrap();
        dying.cut(true);
        let (barrier, visited) = (other.barrier("x", 1), visitor.barrier("x", 1));
        let visits = async { while timeout(CLEARS_AFTER / 4, visited.wait()).await.is_err() {} };
        let passes = timeout(10 * CLEARS_AFTER, barrier.wait());
        let (passed, ()) = timeout(20 * CLEARS_AFTER, join(passes, visits)).await.unwrap();
        let _ = passed.unwrap().unwrap();
    }

    fn place(token: i64, passed: Option<(i64, i64)>, released: bool) -> Entry {
        let mark = passed.map(|(first, last)| mark(&(first..=last)));
        Entry {
            id: format!("p-{token}"),
            permits: 1,
            token,
            since: ServerTime(token),
            until: ServerTime(1_000),
            lease: 30_000,
            claim: 300,
            owner: Owner {
                value: mark.or(Some(HERE.to_owned())),
                ..Owner::default()
            },
            released: released.then_some(ServerTime(500)),
            shown: None,
        }
    }

    fn state(holders: Vec<Entry>) -> State {
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
        assert_eq!(marked_with(&mark(&(17..=42))), Some(17..=42));
        for other in ["", "passed with tokens 1", "passed with tokens a to b", "node 7"] {
            assert_eq!(marked_with(other), None);
        }
    }

    #[test]
    fn all_are_here_when_each_place_is_held_by_a_party_that_says_so() {
        let here = [place(4, None, false), place(5, None, false), place(6, None, false)];
        assert_eq!(all_here(&state(here.to_vec())), Some(4..=6));
        assert_eq!(all_here(&state(here[..2].to_vec())), None);
        // A party that was granted its place and may not know of it; a party that has passed, whether released or not.
        let mut silent = here[2].clone();
        silent.owner.value = None;
        for other in [silent, place(6, Some((1, 6)), false), place(6, Some((1, 6)), true)] {
            assert_eq!(all_here(&state(vec![here[0].clone(), here[1].clone(), other])), None);
        }
    }

    #[test]
    fn places_are_cleared_once_nobody_of_their_generation_may_still_look() {
        let mark = Some((1, 3));
        let all = [place(1, mark, true), place(2, mark, true), place(3, mark, true)];
        assert_eq!(passed(&state(all.to_vec())), Some(3));
        // One party has not passed yet. If it died, only the end of its lease shows that it won't.
        assert_eq!(
            passed(&state(vec![all[0].clone(), place(2, None, false), all[2].clone()])),
            None
        );
        assert_eq!(passed(&state(vec![all[0].clone(), all[2].clone()])), Some(3));
        // A party that has marked its place, and not released it.
        assert_eq!(passed(&state(vec![all[0].clone(), place(2, mark, false)])), None);
        // A party of the next generation has come in beside the remaining places of this one.
        assert_eq!(passed(&state(vec![all[0].clone(), place(4, None, false)])), Some(3));
        assert_eq!(passed(&state(vec![place(4, None, false)])), None);
        assert_eq!(passed(&state(Vec::new())), None);
    }
}
