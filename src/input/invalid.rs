//! The error of every rule for input.

/// A value that watchlock does not accept, refused before anything is sent.
///
/// The message names the value and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidInput {
    message: String,
}

impl InvalidInput {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}
