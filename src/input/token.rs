//! Fencing tokens that were sent or stored as numbers and texts.

use std::{fmt, str::FromStr};

use super::InvalidInput;
use crate::{brief::shown, token::FencingToken};

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
        shown(value.escape_debug())
    ))
}
