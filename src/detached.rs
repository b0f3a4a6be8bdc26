//! A hold without its handle.

use std::time::Duration;

use crate::token::FencingToken;

/// A hold that no client has: it stays taken until its lease is over, and nobody releases it by accident.
///
/// Made by [`Held::detach`](crate::Held::detach), or by [`new`](Self::new). With the feature `serde` it goes through a
/// file, a cookie or a message. [`LockClient::attach`](crate::LockClient::attach) takes the hold up again, once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "without it, the lock stays taken until its lease is over"]
pub struct Detached {
    pub(crate) name: String,
    pub(crate) token: FencingToken,
    /// The token of its entry in the document, where that is smaller.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) granted_as: Option<FencingToken>,
    /// The time after the grant for which a release keeps the lock taken.
    #[cfg_attr(
        feature = "serde",
        serde(default, rename = "at_least_ms", with = "crate::rfc3339::millis")
    )]
    pub(crate) at_least: Duration,
}

impl Detached {
    /// Names a detached hold by its lock and its token, as [`HolderInfo::token`](crate::operate::HolderInfo::token) and
    /// `watchlock acquire` show it.
    ///
    /// The time of [`at_least_for`](crate::Acquire::at_least_for) is not known by these: the release of such a hold opens
    /// the lock at once.
    pub fn new(name: impl Into<String>, token: FencingToken) -> Self {
        Self {
            name: name.into(),
            token,
            granted_as: None,
            at_least: Duration::ZERO,
        }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token of the hold, which stays the same.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    pub(crate) fn entry_token(&self) -> i64 {
        self.granted_as.unwrap_or(self.token).as_i64()
    }
}
