//! Classification of the driver's errors: whether the operation was applied, and whether asking again helps.

use mongodb::{
    bson::{Bson, Document},
    error::{CommandError, Error, ErrorKind, WriteError, WriteFailure},
};

/// The class of a failed operation's error, which decides whether the operation is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another command came first, or others shared this one: ask again, at once.
    Raced,
    /// The server can't be reached or is changing its primary. The write may have been applied; asking again is safe.
    Unavailable,
    /// The server refuses, or the driver does before anything is sent: asking again would bring the same answer. Nothing
    /// was written.
    Refused,
}

/// The server's code for a missing privilege.
pub(super) const UNAUTHORIZED: i32 = 13;

/// Classifies the driver's errors. An error is final only if the server certainly refused and would refuse again; an
/// error that can come with a fail-over, a cut connection or an overloaded server is not.
pub(crate) fn failure(error: &Error) -> Failure {
    if error.contains_label("RetryableWriteError") || error.contains_label("TransientTransactionError") {
        return Failure::Unavailable;
    }
    if let Some(code) = code(error) {
        // In another unique index it would be the same again.
        return if is_duplicate(error) && is_of_id(error) {
            Failure::Raced
        } else {
            failure_by_code(code)
        };
    }
    match &*error.kind {
        // The driver's own refusals: of a command that is too long or can't be written as BSON, of credentials and
        // settings, of a server that is too old, of a session without the transaction that it should have, and of a
        // client that the user has shut down.
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::BsonSerialization(_)
        | ErrorKind::Authentication { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported
        | ErrorKind::Transaction { .. }
        | ErrorKind::Shutdown => Failure::Refused,
        // An outage, if no server was reached (`DnsResolve`, `ServerSelection`, `ConnectionPoolCleared`, `Io`). All
        // others may come after the write: an answer that can't be read (`InvalidResponse`, `BsonDeserialization`), a
        // write without its majority, an error inside the driver, a panic.
        _ => Failure::Unavailable,
    }
}

/// Reports whether a unique index had the key already.
pub(crate) fn is_duplicate(error: &Error) -> bool {
    // DuplicateKey
    code(error) == Some(11_000)
}

/// Reports whether the unique index with the key is that of `_id`, and none that somebody made.
fn is_of_id(error: &Error) -> bool {
    let answer = error.server_response();
    let answer: Option<Document> = answer.and_then(|answer| Document::from_reader(answer.as_bytes()).ok());
    match (answer.as_ref().and_then(pattern), &*error.kind) {
        (Some(pattern), _) => pattern.keys().eq(["_id"]),
        // Servers also name the index in the text, and no other index can have this name. An index without a name is
        // the one that every collection has.
        (None, ErrorKind::Command(CommandError { message, .. }))
        | (None, ErrorKind::Write(WriteFailure::WriteError(WriteError { message, .. }))) => {
            message.contains(" index: _id_ ") || !message.contains(" index: ")
        }
        (None, _) => false,
    }
}

/// Returns the fields of the index from the server's answer: next to a write error, or next to the error of a command.
fn pattern(answer: &Document) -> Option<&Document> {
    let errors = answer.get_array("writeErrors").ok();
    let error = errors.and_then(|errors| errors.first()).and_then(Bson::as_document);
    error.unwrap_or(answer).get_document("keyPattern").ok()
}

/// Reports whether the connection broke, so that the server may be gone.
pub(super) fn broke_off(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. })
}

/// Reports whether a write was applied, and is not confirmed by as many members as it should be.
pub(crate) fn is_unconfirmed(error: &Error) -> bool {
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

/// Classifies codes of the server: those in the driver specifications that depend on the state of the replica set or
/// the load of the server, and all others.
fn failure_by_code(code: i32) -> Failure {
    match code {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mongodb::{
        Client,
        bson::{self, Document, RawDocumentBuf, doc},
        options::{ClientOptions, Credential, ServerAddress},
    };
    use watchlock_testkit::shared;

    use super::*;
    use crate::store::read_as;

    fn of_server(code: i32, message: &str) -> Error {
        ErrorKind::Command(read_as(&doc! { "code": code, "errmsg": message }).unwrap()).into()
    }

    async fn options() -> ClientOptions {
        let mut options = ClientOptions::parse(shared::standalone().await.uri()).await.unwrap();
        options.server_selection_timeout = Some(Duration::from_millis(500));
        options
    }

    fn collection(options: ClientOptions) -> mongodb::Collection<Document> {
        Client::with_options(options)
            .unwrap()
            .database("failures")
            .collection("any")
    }

    /// An error that the driver makes before it sends anything is no outage. Most of its kinds can't be made here, so
    /// the driver makes them.
    #[tokio::test(flavor = "multi_thread")]
    async fn each_kind_of_error_is_an_outage_or_a_refusal() {
        let normal = collection(options().await);
        let mut session = normal.client().start_session().await.unwrap();
        let stopped = collection(options().await);
        stopped.client().clone().shutdown().immediate(true).await;
        let mut nowhere = options().await;
        nowhere.hosts = vec![ServerAddress::parse("127.0.0.1:1").unwrap()];
        let nowhere = collection(nowhere);
        let mut strange = options().await;
        let nobody = Credential::builder()
            .username("nobody".to_owned())
            .password("secret".to_owned());
        strange.credential = Some(nobody.build());
        let strange = collection(strange);
        let insecure = ClientOptions::parse("mongodb://a/?tls=true&tlsCAFile=/no/such/file")
            .await
            .unwrap();
        let write_concern = read_as(&doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting" });
        let duplicate = |index: &str| of_server(11_000, &format!("E11000 duplicate key error collection: a.b {index}"));
        let long = doc! { "a": vec!["x".repeat(16 << 20); 3] };
        for (name, error, class) in [
            // Never sent, and never will be.
            (
                "setting",
                ClientOptions::parse("mongodb://a/?maxPoolSize=0").await.err(),
                Failure::Refused,
            ),
            ("files of TLS", Client::with_options(insecure).err(), Failure::Refused),
            ("too long", normal.find_one(long).await.err(), Failure::Refused),
            (
                "encoding",
                bson::to_document(&5).err().map(Error::from),
                Failure::Refused,
            ),
            (
                "no transaction",
                session.commit_transaction().await.err(),
                Failure::Refused,
            ),
            (
                "no sessions",
                Some(ErrorKind::SessionsNotSupported.into()),
                Failure::Refused,
            ),
            (
                "client shut down",
                stopped.find_one(doc! {}).await.err(),
                Failure::Refused,
            ),
            // Not sent so far.
            ("no server", nowhere.find_one(doc! {}).await.err(), Failure::Unavailable),
            // Sent, and maybe carried out.
            (
                "connection",
                Some(std::io::Error::other("broken").into()),
                Failure::Unavailable,
            ),
            (
                "answer",
                RawDocumentBuf::from_bytes(vec![]).err().map(Error::from),
                Failure::Unavailable,
            ),
            (
                "value",
                bson::from_document::<i32>(doc! {}).err().map(Error::from),
                Failure::Unavailable,
            ),
            (
                "stream",
                Some(ErrorKind::MissingResumeToken.into()),
                Failure::Unavailable,
            ),
            (
                "majority",
                write_concern
                    .ok()
                    .map(|it| ErrorKind::Write(WriteFailure::WriteConcernError(it)).into()),
                Failure::Unavailable,
            ),
            ("other", Some(Error::custom("other")), Failure::Unavailable),
            // Answered.
            ("unknown user", strange.find_one(doc! {}).await.err(), Failure::Refused),
            ("stepped down", Some(of_server(189, "")), Failure::Unavailable),
            ("not permitted", Some(of_server(UNAUTHORIZED, "")), Failure::Refused),
            (
                "bad value",
                normal.find_one(doc! { "$a": 1 }).await.err(),
                Failure::Refused,
            ),
            ("race", Some(duplicate("index: _id_ dup key: { : 1 }")), Failure::Raced),
            (
                "race without a name",
                Some(duplicate("dup key: { : 1 }")),
                Failure::Raced,
            ),
            (
                "other unique index",
                Some(duplicate("index: kind_1 dup key: { : 1 }")),
                Failure::Refused,
            ),
        ] {
            let error = error.unwrap_or_else(|| panic!("{name} is no error"));
            assert_eq!(failure(&error), class, "{name}: {:?}", error.kind);
        }
    }
    #[test]
    fn the_index_is_told_by_its_fields() {
        let answer = |pattern: Document| doc! { "ok": 1, "writeErrors": [{ "code": 11_000, "keyPattern": pattern }] };
        for (fields, is_id) in [
            (doc! { "_id": 1 }, true),
            (doc! { "email": 1 }, false),
            (doc! { "_id": 1, "email": 1 }, false),
        ] {
            let answer = answer(fields);
            assert_eq!(pattern(&answer).unwrap().keys().eq(["_id"]), is_id, "{answer}");
        }
        assert_eq!(
            pattern(&doc! { "ok": 0, "keyPattern": { "_id": 1 } }),
            Some(&doc! { "_id": 1 })
        );
        assert_eq!(pattern(&doc! { "ok": 1, "writeErrors": [1] }), None);
    }

    #[test]
    fn the_index_is_told_by_its_name_where_there_is_nothing_else() {
        let duplicate = |index: &str| {
            let message = format!("E11000 duplicate key error collection: a.b index: {index} dup key: {{ : 1 }}");
            let error = doc! { "code": 11_000, "errmsg": message };
            failure(&ErrorKind::Write(WriteFailure::WriteError(read_as(&error).unwrap())).into())
        };
        assert_eq!(duplicate("_id_"), Failure::Raced);
        assert_eq!(duplicate("email_1"), Failure::Refused);
        let nameless = doc! { "code": 11_000, "errmsg": "E11000 duplicate key error collection: a.b dup key: { : 1 }" };
        let nameless = ErrorKind::Write(WriteFailure::WriteError(read_as(&nameless).unwrap()));
        assert_eq!(failure(&nameless.into()), Failure::Raced);
        let message = "E11000 duplicate key error collection: a.b index: _id_ dup key: { : 1 }";
        let command = doc! { "code": 11_000, "codeName": "DuplicateKey", "errmsg": message };
        let command: Error = ErrorKind::Command(read_as(&command).unwrap()).into();
        assert_eq!(failure(&command), Failure::Raced);
        assert!(is_duplicate(&command));
        let other = doc! { "code": 121, "errmsg": "Document failed validation" };
        let other: Error = ErrorKind::Write(WriteFailure::WriteError(read_as(&other).unwrap())).into();
        assert!(!is_duplicate(&other));
    }
}
