//! What an error of the driver's says about the operation that it ended.

use mongodb::error::{Error, ErrorKind, WriteFailure};

/// Why an operation failed, as far as it matters to whether it is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Two commands created the document at once, and this one lost: nothing was written; ask again.
    Raced,
    /// The server can't be reached or is changing its primary. It may have been written; asking again is safe.
    Unavailable,
    /// The server refuses: asking again would bring the same answer. Nothing was written.
    Refused,
}

/// Sorts the driver's errors. Only what the server certainly refused, and would refuse again, is final: whatever can
/// come with a fail-over, a cut connection or an overloaded server is not.
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

pub(super) fn found_no_server(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::ServerSelection { .. })
}

/// Whether the server gave up as its time was over: `MaxTimeMSExpired`, or the like from a router. A write may have been
/// done, where only the majority was missing.
pub(super) fn ran_out_of_time(error: &Error) -> bool {
    let missing = match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteConcernError(missing)) => Some(missing.code),
        _ => None,
    };
    matches!(missing.or(code(error)), Some(50 | 262))
}

pub(super) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(write)) => Some(write.code),
        _ => None,
    }
}

/// The server's name for the code, where it has said it.
pub(super) fn code_name(error: &Error) -> Option<&str> {
    let name = match &*error.kind {
        ErrorKind::Command(command) => Some(&command.code_name),
        ErrorKind::Write(WriteFailure::WriteError(write)) => write.code_name.as_ref(),
        _ => None,
    };
    name.map(String::as_str).filter(|name| !name.is_empty())
}

/// Codes of the server: a duplicate key; then those of the driver specifications that come and go with the state of
/// the replica set or the load of the server.
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
