//! Fencing tokens.

use std::{fmt, str::FromStr};

use mongodb::bson::Bson;

use crate::{input::InvalidInput, truncated_debug::shown_in_a_line};

/// A number that is larger than that of every earlier holder of the same lock.
///
/// Send it along with your work under the lock, and let the receiver refuse a smaller number than it has seen: that
/// keeps out a holder that was frozen, lost the lock without noticing, and continues.
///
/// # Guarantees
///
/// Tokens of one name rise strictly across release, expiry, purge of the free lock and fail-over, and fit into 53 bits.
/// Only a reader that shares another's hold ([inside a process](crate::guarantees#inside-a-process)) can have a smaller
/// token than a reader of another client that was granted the lock before it.
#[doc(alias("revision", "fence"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "i64", try_from = "i64")
)]
pub struct FencingToken(i64);

impl FencingToken {
    pub(crate) fn new(token: i64) -> Self {
        Self(token)
    }

    /// Returns the number in the type that suits MongoDB best.
    pub fn as_i64(self) -> i64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl From<FencingToken> for Bson {
    fn from(token: FencingToken) -> Self {
        Self::Int64(token.0)
    }
}

/// For a token that was sent or stored as a number.
///
/// # Errors
///
/// If the number is negative.
impl TryFrom<i64> for FencingToken {
    type Error = InvalidInput;

    fn try_from(number: i64) -> Result<Self, InvalidInput> {
        if number < 0 {
            return Err(no_token(&number));
        }
        Ok(Self::new(number))
    }
}

/// For a token that was sent as text, for example in `WATCHLOCK_TOKEN`.
///
/// # Errors
///
/// If the text is not a whole number from 0 on.
impl FromStr for FencingToken {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        let number: i64 = text.parse().map_err(|_| no_token(&text))?;
        Self::try_from(number)
    }
}

fn no_token(value: &dyn fmt::Display) -> InvalidInput {
    let (value, most) = (value.to_string(), i64::MAX);
    InvalidInput::new(format!(
        "`{}` is not a fencing token; it must be a whole number from 0 to {most}",
        shown_in_a_line(&value)
    ))
}
