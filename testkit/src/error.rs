//! The one error of this crate.

use std::{error, fmt, io};

/// A failure to find, start or command a server.
///
/// Meant for people to read: the message lists the attempts and, if a server did not start, ends with the last lines
/// of its log.
pub struct Error {
    message: String,
    source: Option<Box<dyn error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    pub(crate) fn caused(message: impl Into<String>, source: impl Into<Box<dyn error::Error + Send + Sync>>) -> Self {
        Self {
            message: message.into(),
            source: Some(source.into()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

// Tests mostly `unwrap` this error, which prints the debug form: the message is more useful there than the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// The message contains the cause already, so it is not returned once more as `source`.
impl error::Error for Error {}

impl From<mongodb::error::Error> for Error {
    fn from(error: mongodb::error::Error) -> Self {
        Self::caused("a MongoDB command failed", error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::caused("an operating system call failed", error)
    }
}
