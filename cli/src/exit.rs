//! How the program ends: its exit codes, and what it says when it fails.

use std::{
    error::Error,
    fmt::Display,
    io::{self, ErrorKind},
    process::ExitCode,
};

use mongodb::error::{Error as DriverError, ErrorKind as DriverKind};
use tokio::task::JoinError;
use watchlock::{AcquireError, BuildError, OperateError, ServerError};

use crate::{json, messages};

/// The command line, or a value in it, is wrong. The numbers are those of sysexits.h, as small ones belong to the command
/// that is run.
pub(crate) const USAGE: u8 = 64;
/// What stands under the name is not what was asked for: another kind of lock, or no lock at all.
pub(crate) const DATA: u8 = 65;
/// The server can't be reached, or it refuses.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The machine does not let the program do its work.
pub(crate) const INTERNAL: u8 = 70;
/// The lock was not free in time.
pub(crate) const NOT_OBTAINED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The user of the connection is not permitted to do it, or is not known.
pub(crate) const NOT_PERMITTED: u8 = 77;
/// The command is there and can't be started.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command is not there.
pub(crate) const NOT_FOUND: u8 = 127;
/// What is added to the number of the signal that ended the command.
pub(crate) const SIGNALLED: u8 = 128;

/// The same for people, at the end of the help and of the manual page.
pub(crate) const TABLE: &str = "\
Exit codes:
    0  done
    1  show, break: there is no such lock, or nobody holds it; break: not confirmed; doctor: something is wrong
   64  the command line or a value in it is wrong; nothing was sent
   65  the name is in use as another kind of lock, or its document is not a lock's
   69  the server can't be reached, or it refuses
   70  the machine refuses: no process or thread can be started
   75  run: the lock was not free in time (--try, --timeout)
   76  run: the lock was lost while the command ran, so that the command was terminated
   77  the user of the connection is unknown, or lacks a privilege
  126  run: the command can't be executed
  127  run: the command was not found
128+n  run: the command was ended by signal n, or watchlock was while it waited

Otherwise `watchlock run` exits with the code of its command.";

pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Why the program ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// `None`: nobody is there to read it.
    message: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            message: Some(message.to_string()),
        }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn internal(message: impl Display) -> Self {
        Self::new(INTERNAL, message)
    }

    pub(crate) fn driver(error: &DriverError) -> Self {
        Self::new(code(error), cause(error))
    }

    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }

    /// The same, when its message has been told already.
    pub(crate) fn told(self) -> Self {
        Self { message: None, ..self }
    }

    /// The same with another code, where it has the first.
    pub(crate) fn with_code_for(self, code: u8, other: u8) -> Self {
        let code = if self.code == code { other } else { self.code };
        Self { code, ..self }
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// The same with more to its message.
    pub(crate) fn and(self, more: &str) -> Self {
        let message = self.message.map(|message| format!("{message}; {more}"));
        Self { message, ..self }
    }

    pub(crate) fn tell(self, as_json: bool) -> ExitCode {
        if let Some(message) = &self.message {
            messages::fail(message);
            if as_json {
                let (error, code) = (&message[..], self.code);
                // Nobody may be there to read it.
                let _ = json::print(&json::Failed { error, code });
            }
        }
        self.code.into()
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let source = error.source();
        let by_driver = source.and_then(|source| source.downcast_ref::<DriverError>());
        let code = match by_driver {
            Some(error) => code(error),
            // No answer in time, or no task to wait for it.
            None if source.is_none_or(|source| source.is::<io::Error>() || source.is::<JoinError>()) => UNAVAILABLE,
            // The library refuses a document that is not a lock's.
            None => DATA,
        };
        let message = match (by_driver, source) {
            (Some(by_driver), _) if is_unauthorized(by_driver) => cause(by_driver),
            (Some(by_driver), _) => format!("{error}: {}", cause(by_driver)),
            (None, Some(source)) => format!("{error}: {source}"),
            (None, None) => error.to_string(),
        };
        Self::new(code, message)
    }
}

/// What the driver says, without labels and the like. A refusal quotes the whole command, of which only what is missing
/// matters.
pub(crate) fn cause(error: &DriverError) -> String {
    match &*error.kind {
        DriverKind::Command(command) if is_unauthorized(error) => missing(&command.message),
        kind => kind.to_string(),
    }
}

fn is_unauthorized(error: &DriverError) -> bool {
    matches!(&*error.kind, DriverKind::Command(command) if command.code == 13)
}

/// Of `not authorized on app to execute command { find: "locks", … }`, which privilege that is.
fn missing(message: &str) -> String {
    let read = || {
        let (_, rest) = message.split_once("not authorized on ")?;
        let (database, rest) = rest.split_once(" to execute command { ")?;
        let (command, rest) = rest.split_once(": ")?;
        let collection = rest.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0));
        let actions = match command {
            "find" | "count" => "`find`",
            "aggregate" if rest.contains("$changeStream") => "`changeStream` and `find`",
            "aggregate" => "`find`",
            "findAndModify" | "findandmodify" | "update" => "`update` (or `find`, or `insert`)",
            "insert" => "`insert`",
            "createIndexes" => "`createIndex`",
            "listIndexes" => "`listIndexes`",
            other => return Some(format!("missing a privilege on {database} for the command `{other}`")),
        };
        let place = collection.map_or_else(|| database.to_owned(), |collection| format!("{database}.{collection}"));
        Some(format!("missing {actions} on {place}"))
    };
    let what = read().unwrap_or_else(|| {
        // Without the command that it quotes.
        let told = message.split(" to execute command").next().unwrap_or_default();
        told.to_owned()
    });
    format!("{what}; see `watchlock doctor`")
}

/// Unauthorized, AuthenticationFailed, and what Atlas says instead.
fn code(error: &DriverError) -> u8 {
    match &*error.kind {
        DriverKind::Authentication { .. } => NOT_PERMITTED,
        DriverKind::Command(command) if [13, 18, 8000].contains(&command.code) => NOT_PERMITTED,
        _ => UNAVAILABLE,
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Server(error) => error.into(),
            BuildError::Invalid(error) => Self::usage(error),
            error => Self::new(UNAVAILABLE, error),
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Server(error) => error.into(),
            AcquireError::Invalid(error) => Self::usage(error),
            // It may have been free: that is another story to a script than a lock that is taken.
            AcquireError::Timeout {
                source: Some(ref source),
                ..
            } => {
                let code = Self::from(source.clone()).code;
                Self::new(code, error)
            }
            AcquireError::Timeout { .. } | AcquireError::Held { .. } => Self::new(NOT_OBTAINED, error),
            AcquireError::KindMismatch(error) => Self::new(DATA, error),
            error => Self::internal(error),
        }
    }
}

impl From<OperateError> for Failure {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Server(error) => error.into(),
            OperateError::Invalid(error) => Self::usage(error),
            OperateError::KindMismatch(error) => Self::new(DATA, error),
            error => Self::internal(error),
        }
    }
}

/// Of standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            // Whoever read has read enough.
            return Self { code: 0, message: None };
        }
        Self::internal(format!("the output can't be written: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_what_is_missing() {
        let told = missing(
            "not authorized on app to execute command { findAndModify: \"distributed_locks\", query: { _id: \"x\" }, lsid: \
             { id: UUID(\"0\") } }",
        );
        assert_eq!(
            told,
            "missing `update` (or `find`, or `insert`) on app.distributed_locks; see `watchlock doctor`"
        );
        let stream =
            "not authorized on app to execute command { aggregate: \"locks\", pipeline: [ { $changeStream: {} } ] }";
        assert_eq!(
            missing(stream),
            "missing `changeStream` and `find` on app.locks; see `watchlock doctor`"
        );
        for odd in [
            "",
            "not authorized on",
            "not authorized on é to execute command { x",
            "command quit requires",
        ] {
            assert!(missing(odd).ends_with("see `watchlock doctor`"), "{odd}");
        }
    }
}
