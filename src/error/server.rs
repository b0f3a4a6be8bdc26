//! Errors of the server, and how a program can distinguish them.

use std::{error::Error as StdError, fmt, sync::Arc};

use mongodb::error::{Error as DriverError, ErrorKind};

use super::{
    cause,
    failure::{self, Failure, UNAUTHORIZED},
};
use crate::truncated_debug::shown_in_a_line;

/// The server could not be reached, or it refused.
///
/// [`kind`](Self::kind) distinguishes these cases for a program. The message says the cause in a line: the server's
/// code and its name, and the missing privilege. `Debug` shows no more, and there is no [`source`](StdError::source):
/// the driver's own error, which [`driver`](Self::driver) returns, is of any size.
///
/// # Examples
///
/// ```
/// # async fn example(locks: watchlock::LockClient) {
/// use watchlock::errors::{AcquireError, ServerErrorKind};
///
/// match locks.mutex("invoices").acquire().await {
///     Err(AcquireError::Server(error)) => match error.kind() {
///         // missing one of `find`, `insert`, `update` on app.locks
///         ServerErrorKind::Unauthorized(missing) => eprintln!("{missing}"),
///         ServerErrorKind::Unavailable => eprintln!("try again later"),
///         _ => eprintln!("{error}"),
///     },
///     other => drop(other),
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct ServerError {
    pub(crate) kind: Failure,
    pub(crate) source: Arc<dyn StdError + Send + Sync>,
}

/// The kind of a [`ServerError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server was not reached or did not answer in time, or there is no primary at the moment. The operation may
    /// have been carried out. It may succeed later.
    Unavailable,
    /// The server does not know the user of the connection, or rejects the credentials.
    Unauthenticated,
    /// The user of the connection lacks a privilege for the operation. The text says which, for people, as far as the
    /// server's message shows: it names the refused command, from which the actions are derived.
    Unauthorized(String),
    /// The document under the name is not a lock, or was written by a later version of this library.
    NotALock,
    /// The client's runtime has ended or stands still, or this is a fork of its process.
    NoRuntime,
    /// The server or the driver refused for another reason, and would refuse again. The server's reason has a
    /// [`code`](ServerError::code).
    Refused,
}

impl ServerError {
    /// Returns the kind of this error.
    pub fn kind(&self) -> ServerErrorKind {
        if self.is_no_lock() {
            return ServerErrorKind::NotALock;
        }
        if self.has_no_runtime() {
            return ServerErrorKind::NoRuntime;
        }
        let unauthenticated = self
            .driver()
            .is_some_and(|error| matches!(&*error.kind, ErrorKind::Authentication { .. }));
        match self.code() {
            // Atlas uses one code for many forbidden operations.
            Some(UNAUTHORIZED | 8000) => {
                let missing = self.missing_privilege();
                ServerErrorKind::Unauthorized(missing.unwrap_or_else(|| "missing a privilege".to_owned()))
            }
            // AuthenticationFailed
            Some(18) => ServerErrorKind::Unauthenticated,
            _ if unauthenticated => ServerErrorKind::Unauthenticated,
            _ if self.is_final() => ServerErrorKind::Refused,
            _ => ServerErrorKind::Unavailable,
        }
    }

    /// Returns the server's number for the error (`13` is `Unauthorized`), if the server sent one.
    pub fn code(&self) -> Option<i32> {
        failure::code(self.driver()?)
    }

    /// Returns the driver's error, with its labels and the server's full answer, if the driver reported it.
    ///
    /// Its `Display` and `Debug` have no bounds: they show the refused command with its pipeline, the server's answer,
    /// and documents. So think before you log them.
    pub fn driver(&self) -> Option<&DriverError> {
        self.source.downcast_ref()
    }

    /// Returns whether the driver's error has this label, such as
    /// [`TRANSIENT_TRANSACTION_ERROR`](mongodb::error::TRANSIENT_TRANSACTION_ERROR).
    pub fn contains_label(&self, label: &str) -> bool {
        self.driver().is_some_and(|error| error.contains_label(label))
    }

    fn fmt_by_failure(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.own().is_some() {
            return f.write_str(&self.cause());
        }
        let kind = match self.kind {
            Failure::Raced => "the lock's document was created by two commands at once",
            Failure::Unavailable if self.driver().is_some_and(failure::is_unconfirmed) => {
                "the server did not confirm the write"
            }
            Failure::Unavailable if self.code().is_some() => "the server is not available",
            Failure::Unavailable => "the server can't be reached",
            Failure::Refused => "the server refused the operation",
        };
        write!(f, "{kind}: {}", self.cause())?;
        match self.driver().and_then(cause::message) {
            Some(message) => write!(f, ": {}", shown_in_a_line(message)),
            None => Ok(()),
        }
    }

    /// Returns the privilege that is missing, for people; `None` if the server does not name the refused command.
    fn missing_privilege(&self) -> Option<String> {
        match self.driver().map(|error| &*error.kind) {
            Some(ErrorKind::Command(command)) if command.code == UNAUTHORIZED => missing_privilege(&command.message),
            _ => None,
        }
    }
}

/// Derives the privilege from the server's message, `not authorized on app to execute command { find: "locks", … }`.
fn missing_privilege(message: &str) -> Option<String> {
    let (_, rest) = message.split_once("not authorized on ")?;
    let (database, rest) = rest.split_once(" to execute command { ")?;
    let (command, rest) = rest.split_once(": ")?;
    let collection = rest.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0));
    let actions = match command {
        "aggregate" if rest.contains("$changeStream") => "one of `changeStream`, `find`",
        "find" | "count" | "aggregate" => "`find`",
        "findAndModify" | "findandmodify" | "update" => "one of `find`, `insert`, `update`",
        "insert" => "`insert`",
        "delete" => "`remove`",
        "createIndexes" => "`createIndex`",
        "listIndexes" => "`listIndexes`",
        _ => "a privilege",
    };
    let namespace = collection.map_or_else(|| database.to_owned(), |name| format!("{database}.{name}"));
    Some(format!("missing {actions} on {}", shown_in_a_line(&namespace)))
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.missing_privilege() {
            // The server's text has the command instead.
            Some(missing) => write!(f, "the server refused the operation: {}: {missing}", self.cause()),
            None => self.fmt_by_failure(f),
        }
    }
}

debug_as_message!(ServerError);

impl StdError for ServerError {}

/// For operations on the user's own documents: there a duplicate key is not a race for the document of a lock.
impl From<DriverError> for ServerError {
    fn from(error: DriverError) -> Self {
        // The write was never answered by the driver.
        if let Some(own) = error.get_custom::<Self>() {
            return own.clone();
        }
        let mut error = Self::of_lock(error);
        if error.kind == Failure::Raced {
            error.kind = Failure::Refused;
        }
        error
    }
}

/// Converts into the driver's own error: the original if there is one, with its labels.
impl From<ServerError> for DriverError {
    fn from(error: ServerError) -> Self {
        let own = || DriverError::custom(error.to_string());
        error.driver().cloned().unwrap_or_else(own)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::{
        bson::{Bson, Deserializer, Document, doc},
        error::{CommandError, WriteConcernError, WriteError, WriteFailure},
    };
    use serde::Deserialize;

    use super::*;
    use crate::{
        contention::Contention,
        error::{AcquireError, BuildError, CandidacyError, FenceError, GuardError, HoldError, OperateError, own::Own},
        protocol::document::Malformed,
        store::typed::read_as,
    };

    /// A part of an answer as the driver reads it.
    fn part<T: for<'de> Deserialize<'de>>(answer: Document) -> T {
        T::deserialize(Deserializer::new(Bson::Document(answer))).unwrap()
    }

    fn refusal(code: i32, name: &str, message: &str) -> DriverError {
        let answer = doc! { "code": code, "codeName": name, "errmsg": message };
        ErrorKind::Command(part::<CommandError>(answer)).into()
    }

    /// A text that nobody wants to read in a log.
    fn pipeline() -> String {
        "{ $set: { holders: { $filter: { signature: 5 } } } }, ".repeat(200)
    }

    /// Errors of all kinds, and what their messages must have.
    fn errors() -> Vec<(ServerError, &'static str)> {
        let quoted = pipeline();
        let command =
            format!("not authorized on app to execute command {{ findAndModify: \"locks\", update: [ {quoted} ] }}");
        let write: WriteError =
            part(doc! { "code": 121, "errmsg": "Document failed validation", "errInfo": { "x": &quoted } });
        let duplicate: WriteError = part(doc! {
            "code": 11000, "errmsg": format!("E11000 duplicate key error collection: app.x index: y dup key: {quoted}"),
        });
        let concern: WriteConcernError = part(
            doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": &quoted, "errInfo": { "x": &quoted } },
        );
        let (lock, later) = (
            Malformed::occupied("watchlock".to_owned()),
            Malformed::Newer { found: 9 },
        );
        let drivers: [(DriverError, &str); 8] = [
            (refusal(13, "Unauthorized", &command), "Unauthorized (13)"),
            (
                refusal(18, "AuthenticationFailed", "Authentication failed."),
                "AuthenticationFailed (18)",
            ),
            (
                refusal(2, "BadValue", &format!("unknown operator: $foo{quoted}")),
                "BadValue (2): unknown operator: $foo",
            ),
            (
                ErrorKind::Write(WriteFailure::WriteError(write)).into(),
                "DocumentValidationFailure (121): Document failed",
            ),
            (
                ErrorKind::Write(WriteFailure::WriteError(duplicate)).into(),
                "DuplicateKey (11000): E11000 duplicate key",
            ),
            (
                ErrorKind::Write(WriteFailure::WriteConcernError(concern)).into(),
                "UnsatisfiableWriteConcern (100)",
            ),
            (
                std::io::Error::other(format!("connection reset by peer {quoted}")).into(),
                "I/O error: connection reset",
            ),
            (
                DriverError::custom("word ".repeat(1_000)),
                "Custom user error: word word",
            ),
        ];
        let mut errors: Vec<_> = drivers.map(|(error, cause)| (error.into(), cause)).into();
        errors.extend([
            (ServerError::overdue(), "did not answer in time"),
            (
                ServerError::unanswered(std::time::Duration::from_micros(4_003_218)),
                "did not answer for 4s",
            ),
            (ServerError::runtime_ended(), "the runtime"),
            (Own::Forked.into(), "forked"),
            (Own::RuntimeStalled.into(), "stalled"),
            (Own::TooLong(9_000).into(), "9000 bytes"),
            (lock.into(), "is not a lock: field `watchlock` is not a sub-document"),
            (later.into(), "protocol 9"),
        ]);
        errors
    }

    /// The message, `Debug`, and the chain of sources as programs print it.
    fn checked(error: &(dyn StdError + 'static)) -> String {
        let mut chain = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            chain = format!("{chain}: {cause}");
            source = cause.source();
        }
        for told in [format!("{error:?}"), format!("{error:#?}"), chain] {
            assert!(told.len() < 1_000, "{} bytes: {told}", told.len());
            let quotes = ["$set", "$filter", "signature", "RawDocument", "{ "];
            assert!(!quotes.iter().any(|quote| told.contains(quote)), "{told}");
        }
        error.to_string()
    }

    #[test]
    fn every_error_says_its_cause_in_a_line() {
        let long = format!("app.a\nb{}", "k".repeat(2_000));
        let told = checked(&BuildError::Unsuitable {
            namespace: long.clone(),
            problem: long,
        });
        assert!(told.contains("locks can't be kept in app.a\\nb"), "{told}");
        for (error, cause) in errors() {
            let told = checked(&error);
            assert!(told.contains(cause), "{told}");
            let name = "\u{1}".repeat(1_024);
            let contention = || Some(Box::new(Contention::behind(3)));
            let waited = std::time::Duration::from_secs(5);
            let unanswered = AcquireError::Unanswered {
                name: name.clone(),
                waited,
                contention: contention(),
                error: Some(error.clone()),
            };
            let unclaimable = AcquireError::Unclaimable {
                name: name.clone(),
                cause: std::sync::Arc::new(error.clone()),
            };
            let release = HoldError::Unconfirmed {
                name,
                error: error.clone(),
            };
            let errors: [Box<dyn StdError>; 12] = [
                Box::new(error.clone()),
                Box::new(AcquireError::from(error.clone())),
                Box::new(unanswered),
                Box::new(unclaimable),
                Box::new(release),
                Box::new(BuildError::from(error.clone())),
                Box::new(CandidacyError::Campaign(error.clone().into())),
                Box::new(HoldError::from(error.clone())),
                Box::new(OperateError::from(error.clone())),
                Box::new(FenceError::from(error.clone())),
                Box::new(GuardError::from(error.clone())),
                Box::new(GuardError::Outdated(error)),
            ];
            for (number, error) in errors.iter().enumerate() {
                let told = checked(&**error);
                // The last one is about the transaction.
                assert!(number == 11 || told.contains(cause), "{told}");
            }
        }
    }

    #[test]
    fn a_release_that_is_not_confirmed_names_its_lock() {
        let error = HoldError::Unconfirmed {
            name: "x".to_owned(),
            error: ServerError::overdue(),
        };
        assert_eq!(
            checked(&error),
            "the release of `x` was not confirmed: the server did not answer in time"
        );
    }

    #[test]
    fn what_can_t_be_read_is_told_without_the_document() {
        let long = doc! { "n": "x".repeat(1 << 20) };
        #[derive(Debug, Deserialize)]
        struct Numbered {
            #[expect(dead_code, reason = "it can't be read")]
            n: i32,
        }
        let cause = read_as::<Numbered>(&long).unwrap_err();
        let error = AcquireError::Unreadable {
            name: "7".to_owned(),
            cause: cause.clone(),
        };
        let told = checked(&error);
        assert!(
            told.starts_with("the document 7 could not be read: ") && told.contains("i32"),
            "{told}"
        );
        checked(&HoldError::Unreadable { cause });
    }

    #[test]
    fn a_missing_privilege_is_read_from_what_the_server_says() {
        let described = |message: &str| missing_privilege(message).unwrap_or_default();
        assert_eq!(
            described(
                "not authorized on app to execute command { findAndModify: \"distributed_locks\", query: { _id: \"x\" }, \
                 lsid: { id: UUID(\"0\") } }"
            ),
            "missing one of `find`, `insert`, `update` on app.distributed_locks"
        );
        assert_eq!(
            described(
                "not authorized on app to execute command { aggregate: \"locks\", pipeline: [ { $changeStream: {} } ] }"
            ),
            "missing one of `changeStream`, `find` on app.locks"
        );
        assert_eq!(
            described("not authorized on admin to execute command { hostInfo: 1 }"),
            "missing a privilege on admin"
        );
        for odd in [
            "",
            "not authorized on",
            "not authorized on é to execute command { x",
            "command quit requires authentication",
        ] {
            assert_eq!(described(odd), "", "{odd}");
        }
    }

    #[test]
    fn the_library_s_own_refusals_have_kinds() {
        let kind = |error: ServerError| error.kind();
        assert_eq!(kind(ServerError::runtime_ended()), ServerErrorKind::NoRuntime);
        assert_eq!(kind(Own::Forked.into()), ServerErrorKind::NoRuntime);
        assert_eq!(kind(ServerError::overdue()), ServerErrorKind::Unavailable);
        // A write of the user's own that was stopped with the runtime.
        let stopped = DriverError::custom(ServerError::runtime_ended());
        assert_eq!(ServerError::from(stopped).kind(), ServerErrorKind::NoRuntime);
        let error = DriverError::custom("a test");
        let back = error.clone();
        assert_eq!(back.to_string(), error.to_string());
    }
}
