//! One leader at a time.

mod candidacy;

use std::{future::Future, marker::PhantomData, ops::ControlFlow, time::SystemTime};

use super::{
    acquire::{Acquire, Wait, unless_lost},
    options::Options,
    request::Share,
};
#[cfg(feature = "sync")]
use crate::world::Blocking;
use crate::{
    error::{AcquireError, HoldError, OperateError},
    handle::{Held, View},
    input::{check_name, check_text},
    inspect::HolderInfo,
    operate::events::{Events, Seen},
    protocol::{Kind, State},
    session::streams::observers::Scope,
    token::FencingToken,
    world::{Async, World},
};

pub use candidacy::Candidacy;

/// An election of one leader among all processes. Made by [`LockClient::election`](crate::LockClient::election).
///
/// A candidate campaigns and waits for its turn to lead; a leader may proclaim a value (an address, a version) that all
/// can read. An election is built on a [`Mutex`](crate::locks::Mutex), with the same guarantees.
///
/// # Guarantees
///
/// - One valid leadership at a time. A leader that died is followed by the next within its lease.
/// - A leader that is [released](Held::release) has resigned: the next candidate leads at once.
/// - [`observe`](Self::observe) reports the leaders, in order.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = watchlock::LockClient::in_memory();
/// let election = locks.election("scheduler");
/// let mut leaders = election.observe();
/// assert!(leaders.next().await.expect("it goes on")?.is_none());
///
/// let leadership = election.campaign("10.0.0.7:8080, starting").await?;
/// let leader = leaders.next().await.expect("it goes on")?;
/// assert_eq!(leader.expect("a leader").value, "10.0.0.7:8080, starting");
/// leadership.proclaim("10.0.0.7:8080").await?;
/// assert_eq!(election.leader().await?.expect("there is one").value, "10.0.0.7:8080");
/// tokio::select! {
///     biased; // The loss first.
///     reason = leadership.lost() => println!("no longer the leader: {reason}"),
///     () = async { /* lead */ } => {}
/// }
/// leadership.release().await?;
/// # Ok(()) }
/// ```
#[doc(alias("leader election", "leader"))]
#[derive(Clone, Debug)]
pub struct Election<W: World = Async> {
    share: Share,
    waits_out_other_uses: bool,
    of: PhantomData<fn() -> W>,
}

/// The present leader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Leader {
    /// The value it proclaims.
    pub value: String,
    /// The fencing token of its leadership.
    pub token: FencingToken,
    /// When it was elected, by the server's clock.
    #[cfg_attr(feature = "serde", serde(with = "crate::rfc3339"))]
    pub since: SystemTime,
    /// The host of the leader.
    pub host: String,
    /// The process id of the leader on its host.
    pub pid: u32,
    /// The label of the leader's client.
    pub label: Option<String>,
}

impl Leader {
    fn of(state: &State) -> Option<Self> {
        let holder = state.holders.first().filter(|_| state.kind == Kind::Election)?;
        let holder = HolderInfo::new(state, holder);
        Some(Self {
            value: holder.owner.value.unwrap_or_default(),
            token: holder.token,
            since: holder.since,
            host: holder.owner.host,
            pid: holder.owner.pid,
            label: holder.owner.label,
        })
    }
}

/// Follows the leaders of an election.
fn leaders() -> impl FnMut(String, Seen) -> Vec<Option<Leader>> {
    let mut past = None;
    move |_, seen| {
        // A document that is no lock has no leader.
        let leader = seen.ok().flatten().and_then(|state| Leader::of(&state));
        // Renewals and queued candidates change nothing for an observer.
        if past.replace(leader.clone()).as_ref() == Some(&leader) {
            return Vec::new();
        }
        vec![leader]
    }
}

impl<W: World> Election<W> {
    pub(crate) fn new(share: Share) -> Self {
        Self {
            share,
            waits_out_other_uses: false,
            of: PhantomData,
        }
    }

    /// Returns the name of the election.
    pub fn name(&self) -> &str {
        &self.share.name
    }

    /// Campaigns until elected, proclaiming `value` (up to 1,024 bytes) from then on. Errors and cancel safety are
    /// those of an [`Acquire`]; [`Election`] has an example.
    pub fn campaign(&self, value: impl Into<String>) -> Acquire<Election, Wait, W> {
        let share = Share {
            value: Some(value.into()),
            ..self.share.clone()
        };
        // A leader leads for as long as it can, unless this campaign has a limit.
        Acquire::with(share, Options::unlimited())
    }

    /// Returns the leader at this moment; `None` if there is none.
    ///
    /// Cancel safe: it only reads. An [`OperateError`] says why it failed. [`Election`] has an example.
    pub fn leader(&self) -> W::Call<impl Future<Output = Result<Option<Leader>, OperateError>>> {
        W::call(async move {
            check_name(&self.share.name)?;
            let state = self.share.newest::<OperateError>().await?;
            Ok(state.as_ref().and_then(Leader::of))
        })
    }

    /// Observes the leadership: the present leader first, then every change: another leader, another value, none.
    /// [`Election`] has an example.
    ///
    /// The latest leader always arrives, even if the stream breaks. A leader or value that lasted for less than a hop
    /// (about a millisecond; while polling, the longest poll interval) may be skipped. All else is as for
    /// [`LockClient::watch`](crate::LockClient::watch).
    pub fn observe(&self) -> Events<Option<Leader>, W> {
        let Share { session, name, .. } = &self.share;
        let place = check_name(name).map(|()| (session.clone(), Scope::One(name.to_string())));
        Events::new(place, leaders())
    }
}

impl Election {
    /// Leads repeatedly: campaigns, runs the future that `lead` makes for as long as it leads, and campaigns again when
    /// the leadership is lost.
    ///
    /// If the leadership is lost, the future is dropped at its next await point. When the future completes, the leader
    /// resigns: after [`ControlFlow::Continue`] it campaigns again, after [`ControlFlow::Break`] it returns.
    ///
    /// Errors are those of an [`Acquire`]. Dropping the future drops the present `lead` future, and resigns in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = watchlock::LockClient::in_memory();
    /// use std::ops::ControlFlow;
    /// use watchlock::{View, election::Election};
    ///
    /// let mut terms = 0;
    /// let lead = |leading: View<Election>| {
    ///     terms += 1;
    ///     let done = terms == 3;
    ///     async move { if done { ControlFlow::Break(leading.token()) } else { ControlFlow::Continue(()) } }
    /// };
    /// let last = locks.election("scheduler").run("node 7", lead).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<T, F, Fut>(&self, value: impl Into<String>, mut lead: F) -> Result<T, AcquireError>
    where
        F: FnMut(View<Election>) -> Fut,
        Fut: Future<Output = ControlFlow<T>>,
    {
        let value = value.into();
        loop {
            let leadership = self.campaign_on(&value).await?;
            let Ok(led) = unless_lost(leadership.lost(), lead(leadership.view())).await else {
                continue;
            };
            // An event reports an unconfirmed resignation.
            let _ = leadership.release().await;
            if let ControlFlow::Break(output) = led {
                return Ok(output);
            }
        }
    }
}

#[cfg(feature = "sync")]
impl Election<Blocking> {
    /// Leads repeatedly: campaigns, does the work, resigns, and campaigns again after [`ControlFlow::Continue`];
    /// returns after [`ControlFlow::Break`]. Errors are those of an [`Acquire`].
    ///
    /// A thread can't be stopped from outside: if the leadership is lost, the work must notice it through its
    /// [`lost_reason`](View::lost_reason), and return. To lead alongside other work, run it on its own thread.
    pub fn run<T>(
        &self,
        value: impl Into<String>,
        mut lead: impl FnMut(View<Election, Blocking>) -> ControlFlow<T>,
    ) -> Result<T, AcquireError> {
        let value = value.into();
        loop {
            let leadership = Blocking::call(self.campaign_on(&value))?;
            let led = lead(leadership.view());
            // An event reports an unconfirmed resignation.
            let _ = leadership.release();
            if let ControlFlow::Break(output) = led {
                return Ok(output);
            }
        }
    }
}

/// # A leadership
impl<W: World> Held<Election, W> {
    /// Proclaims another value, up to 1,024 bytes. [`Election`] has an example.
    ///
    /// Of two values, that of the later call stays, even if it reaches the server first: an overtaken call returns once
    /// the later value is there. At the server it also renews the leadership for a lease, on which this handle does not
    /// count.
    ///
    /// [`HoldError::Invalid`] for a longer value: nothing was sent. [`HoldError::Lost`] if the leadership is lost.
    /// After that and [`HoldError::Server`], or if the future is dropped, the value may be proclaimed or not, and the
    /// lock stay taken for up to a lease more.
    pub fn proclaim(&self, value: impl Into<String>) -> W::Call<impl Future<Output = Result<(), HoldError>>> {
        let value = value.into();
        W::call(async move {
            check_text("value", &value)?;
            self.check()?;
            self.own.changed(self.own.session().proclaim(self.hold(), value)).await
        })
    }
}
