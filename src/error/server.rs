//! Errors of the server, and how a program can distinguish them.

use std::{error::Error as StdError, fmt};

use mongodb::error::{Error as DriverError, ErrorKind};

use super::{failure::UNAUTHORIZED, store::StoreError};

/// The server could not be reached, or it refused.
///
/// [`kind`](Self::kind) distinguishes these cases for a program; [`source`](StdError::source) is the driver's error if
/// there is one.
#[derive(Clone, Debug)]
pub struct ServerError(StoreError);

/// The kind of a [`ServerError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server was not reached or did not answer in time, or there is no primary at the moment. The operation may
    /// have been carried out. It may succeed later.
    Unavailable,
    /// The server does not know the user of the connection, or rejects the credentials.
    Unauthenticated,
    /// The user of the connection lacks a privilege for the operation.
    Unauthorized(MissingPrivilege),
    /// The document under the name is not a lock, or was written by a later version of this library.
    NotALock,
    /// The client's runtime has ended or stands still, or this is a fork of its process.
    NoRuntime,
    /// The server or the driver refused for another reason, and would refuse again. The server's reason has a
    /// [`code`](ServerError::code).
    Refused,
}

/// The privilege that the user of the connection lacks, as far as the server's message names it.
///
/// It is meant for people: the server names the refused command, from which the actions are derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPrivilege {
    /// The actions that the command needs, at least one of which is missing; empty if they are unknown.
    pub actions: Vec<&'static str>,
    /// The database, or the collection with its database in front (`app.distributed_locks`); `None` if the server does
    /// not name it.
    pub namespace: Option<String>,
}

impl ServerError {
    pub(crate) fn store(&self) -> &StoreError {
        &self.0
    }

    /// Returns the kind of this error.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: watchlock::LockClient) {
    /// use watchlock::{AcquireError, ServerErrorKind};
    ///
    /// match locks.mutex("invoices").acquire().await {
    ///     Err(AcquireError::Server(error)) => match error.kind() {
    ///         ServerErrorKind::Unauthorized(missing) => eprintln!("{missing}: ask for it"),
    ///         ServerErrorKind::Unavailable => eprintln!("try again later"),
    ///         _ => eprintln!("{error}"),
    ///     },
    ///     other => drop(other),
    /// }
    /// # }
    /// ```
    pub fn kind(&self) -> ServerErrorKind {
        if self.0.is_no_lock() {
            return ServerErrorKind::NotALock;
        }
        if self.0.has_no_runtime() {
            return ServerErrorKind::NoRuntime;
        }
        let unauthenticated = self
            .driver()
            .is_some_and(|error| matches!(&*error.kind, ErrorKind::Authentication { .. }));
        match self.code() {
            Some(UNAUTHORIZED) => ServerErrorKind::Unauthorized(self.missing_privilege()),
            Some(AUTHENTICATION_FAILED) => ServerErrorKind::Unauthenticated,
            // Atlas uses one code for many forbidden operations.
            Some(ATLAS) => ServerErrorKind::Unauthorized(MissingPrivilege::default()),
            _ if unauthenticated => ServerErrorKind::Unauthenticated,
            _ if self.0.is_final() => ServerErrorKind::Refused,
            _ => ServerErrorKind::Unavailable,
        }
    }

    /// Returns the server's number for the error (`13` is `Unauthorized`), if the server sent one.
    pub fn code(&self) -> Option<i32> {
        self.0.code()
    }

    /// Returns the driver's error, with its labels and the server's full answer, if the driver reported it.
    pub fn driver(&self) -> Option<&DriverError> {
        self.source()?.downcast_ref()
    }

    /// Returns whether the driver's error has this label, such as
    /// [`TRANSIENT_TRANSACTION_ERROR`](mongodb::error::TRANSIENT_TRANSACTION_ERROR).
    pub fn contains_label(&self, label: &str) -> bool {
        self.driver().is_some_and(|error| error.contains_label(label))
    }

    fn missing_privilege(&self) -> MissingPrivilege {
        match self.driver().map(|error| &*error.kind) {
            Some(ErrorKind::Command(command)) => MissingPrivilege::parse(&command.message),
            _ => MissingPrivilege::default(),
        }
    }
}

const AUTHENTICATION_FAILED: i32 = 18;
const ATLAS: i32 = 8000;

impl MissingPrivilege {
    /// Parses the server's message, `not authorized on app to execute command { find: "locks", … }`.
    fn parse(message: &str) -> Self {
        let read = || {
            let (_, rest) = message.split_once("not authorized on ")?;
            let (database, rest) = rest.split_once(" to execute command { ")?;
            let (command, rest) = rest.split_once(": ")?;
            let collection = rest.strip_prefix('"').and_then(|rest| Some(rest.split_once('"')?.0));
            let actions: &[&str] = match command {
                "find" | "count" => &["find"],
                "aggregate" if rest.contains("$changeStream") => &["changeStream", "find"],
                "aggregate" => &["find"],
                "findAndModify" | "findandmodify" | "update" => &["find", "insert", "update"],
                "insert" => &["insert"],
                "delete" => &["remove"],
                "createIndexes" => &["createIndex"],
                "listIndexes" => &["listIndexes"],
                _ => &[],
            };
            let namespace = collection.map_or_else(|| database.to_owned(), |name| format!("{database}.{name}"));
            Some(Self {
                actions: actions.to_vec(),
                namespace: Some(namespace),
            })
        };
        read().unwrap_or_default()
    }
}

impl fmt::Display for MissingPrivilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("missing ")?;
        match &self.actions[..] {
            [] => f.write_str("a privilege")?,
            [action] => write!(f, "`{action}`")?,
            actions => write!(f, "one of `{}`", actions.join("`, `"))?,
        }
        match &self.namespace {
            Some(namespace) => write!(f, " on {namespace}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for ServerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl From<StoreError> for ServerError {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

/// For operations on the user's own documents: there a duplicate key is not a race for the document of a lock.
impl From<DriverError> for ServerError {
    fn from(error: DriverError) -> Self {
        Self(StoreError::of_users_write(error))
    }
}

/// Converts into the driver's own error: the original if there is one, with its labels.
impl From<ServerError> for DriverError {
    fn from(error: ServerError) -> Self {
        error.0.into_driver_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_read_from_what_the_server_says() {
        let described = |message: &str| MissingPrivilege::parse(message).to_string();
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
            assert_eq!(described(odd), "missing a privilege", "{odd}");
        }
    }

    #[test]
    fn the_library_s_own_refusals_have_kinds() {
        let kind = |error: StoreError| ServerError::from(error).kind();
        assert_eq!(kind(StoreError::runtime_ended()), ServerErrorKind::NoRuntime);
        assert_eq!(kind(StoreError::forked()), ServerErrorKind::NoRuntime);
        assert_eq!(kind(StoreError::overdue()), ServerErrorKind::Unavailable);
        let error = DriverError::custom("a test");
        let back = DriverError::from(ServerError::from(error.clone()));
        assert_eq!(back.to_string(), error.to_string());
    }
}
