//! The error of every rule for input.

// `watchlock` has it in its public face.
#![warn(missing_docs)]

use std::fmt;

use crate::truncated_debug::{MESSAGE_MOST, shown_up_to};

/// A value that watchlock does not accept, refused before anything is sent.
///
/// The message names the value and the bound.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidInput {
    message: String,
}

impl InvalidInput {
    #[doc(hidden)]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: shown_up_to(MESSAGE_MOST, message.into()),
        }
    }
}

impl fmt::Debug for InvalidInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InvalidInput").field(&format_args!("{self}")).finish()
    }
}
