//! Holds that ended: the history of a lock, for people to read. It decides nothing.

use std::fmt;

use super::{Owner, ServerTime};

/// Maximum number of ends that a document keeps.
///
/// Every write of the document rewrites them and every answer carries them, about 150 bytes each and with the longest
/// texts 4 kB. A history for longer belongs into logs: see the event `watchlock.released`.
pub(crate) const HISTORY_MOST: usize = 20;

/// The way in which a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
// `watchlock` has it in its public face.
#[warn(missing_docs)]
pub enum HoldEnd {
    /// Its holder released it.
    Released,
    /// It was not renewed in time: its holder died, hung or did not reach the server.
    Expired,
    /// An operator broke it.
    Broken,
    /// A later client with the same `owner_id` took it over.
    Adopted,
    /// It was held for as long as it may be (`lose_after`).
    HeldTooLong,
}

#[warn(missing_docs)]
impl HoldEnd {
    /// All of them, in the order in which they are documented.
    const ALL: [Self; 5] = [
        Self::Released,
        Self::Expired,
        Self::Broken,
        Self::Adopted,
        Self::HeldTooLong,
    ];

    /// Returns its name: `released`, `expired`, `broken`, `adopted` or `held_too_long`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Broken => "broken",
            Self::Adopted => "adopted",
            Self::HeldTooLong => "held_too_long",
        }
    }
}

/// Returns the end of this name.
pub fn read(text: &str) -> Option<HoldEnd> {
    HoldEnd::ALL.into_iter().find(|end| end.as_str() == text)
}

impl fmt::Display for HoldEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeldTooLong => "held too long",
            end => end.as_str(),
        })
    }
}

/// A hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub token: i64,
    pub permits: i64,
    pub since: ServerTime,
    pub owner: Owner,
    pub ended: ServerTime,
    pub how: HoldEnd,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_hold_has_a_name_by_which_it_is_read() {
        for (end, name, shown) in [
            (HoldEnd::Released, "released", "released"),
            (HoldEnd::Expired, "expired", "expired"),
            (HoldEnd::Broken, "broken", "broken"),
            (HoldEnd::Adopted, "adopted", "adopted"),
            (HoldEnd::HeldTooLong, "held_too_long", "held too long"),
        ] {
            assert_eq!((end.as_str(), read(name)), (name, Some(end)));
            assert_eq!(end.to_string(), shown);
        }
        assert_eq!(read("of another version"), None);
    }
}
