//! Classification of the driver's errors: whether the operation was applied, and whether asking again helps.

use mongodb::error::{Error, ErrorKind, WriteFailure};

/// The class of a failed operation's error, which decides whether the operation is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Two commands created the document at once, and this one lost: nothing was written; ask again.
    Raced,
    /// The server can't be reached or is changing its primary. The write may have been applied; asking again is safe.
    Unavailable,
    /// The server refuses: asking again would bring the same answer. Nothing was written.
    Refused,
}

/// The server's code for a missing privilege.
pub(super) const UNAUTHORIZED: i32 = 13;

/// Classifies the driver's errors. An error is final only if the server certainly refused and would refuse again; an
/// error that can come with a fail-over, a cut connection or an overloaded server is not.
pub(super) fn failure(error: &Error) -> Failure {
    if error.contains_label("RetryableWriteError") || error.contains_label("TransientTransactionError") {
        return Failure::Unavailable;
    }
    if let Some(code) = code(error) {
        return failure_by_code(code);
    }
    match &*error.kind {
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::Authentication { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::Shutdown => Failure::Refused,
        _ => Failure::Unavailable,
    }
}

/// Reports whether the connection broke, so that the server may be gone.
pub(super) fn broke_off(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. })
}

/// Reports whether a write was applied, and is not confirmed by as many members as it should be.
pub(super) fn is_unconfirmed(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteConcernError(_)))
}

pub(super) fn found_no_server(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::ServerSelection { .. })
}

/// Reports whether the server gave up because its time was over: `MaxTimeMSExpired`, or a router's equivalent. A write
/// may have been applied, with only the majority missing.
pub(super) fn ran_out_of_time(error: &Error) -> bool {
    let missing = match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteConcernError(missing)) => Some(missing.code),
        _ => None,
    };
    matches!(missing.or(code(error)), Some(50 | 262))
}

pub(crate) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        _ => None,
    }
}

/// Returns the server's name for the code, if the server sent it.
pub(super) fn code_name(error: &Error) -> Option<&str> {
    let name = match &*error.kind {
        ErrorKind::Command(command) => Some(&command.code_name),
        ErrorKind::Write(WriteFailure::WriteError(write)) => write.code_name.as_ref(),
        _ => None,
    };
    name.map(String::as_str).filter(|name| !name.is_empty())
}

/// Classifies codes of the server: a duplicate key; then the codes in the driver specifications that depend on the
/// state of the replica set or the load of the server.
fn failure_by_code(code: i32) -> Failure {
    match code {
        11000 => Failure::Raced,
        // HostUnreachable, HostNotFound, LockTimeout, CursorNotFound, LockBusy, MaxTimeMSExpired, WriteConcernFailed,
        // NetworkTimeout, ShutdownInProgress, NotYetInitialized, WriteConflict, FailedToSatisfyReadPreference (of a
        // router that knows no primary), ReadConcernMajorityNotAvailableYet,
        // QueryPlanKilled, PrimarySteppedDown, NetworkInterfaceExceededTimeLimit, CursorKilled, ExceededTimeLimit,
        // ConnectionPoolExpired, TemporarilyUnavailable, SocketException, NotWritablePrimary, InterruptedAtShutdown,
        // Interrupted, InterruptedDueToReplStateChange, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        6 | 7 | 24 | 43 | 46 | 50 | 64 | 89 | 91 | 94 | 112 | 133 | 134 | 175 | 189 | 202 | 237 | 262 | 317 | 365
        | 9001 | 10107 | 11600 | 11601 | 11602 | 13435 | 13436 => Failure::Unavailable,
        _ => Failure::Refused,
    }
}
