//! The checks that the server can be the home of locks at all: what it is, and whether it confirms writes.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::{Check, OUT_OF_TIME, Status, UNAUTHORIZED, ask, code, primary, told, unseen};
use crate::{
    connection::{Place, other_set},
    exit::Failure,
    text::{plain, span_of},
};

/// Maximum time for a majority to confirm: as long as `run --try` waits for it.
const CONFIRMED: Duration = Duration::from_secs(5);

/// Returns why this server takes no locks, and the next step; `None` if it does as far as its `hello` goes.
pub(super) fn unfit(hello: &Document, asked: Option<&str>, is_direct: bool) -> Option<(String, String)> {
    let is = |role: &str| hello.get_bool(role).unwrap_or(false);
    if hello.contains_key("isreplicaset") {
        return Some((
            "the server is meant for a replica set that was never initiated, or has removed it".to_owned(),
            "call rs.initiate() once, in mongosh on that server (one member is enough), or rs.add() on the primary"
                .to_owned(),
        ));
    }
    if let Some(found) = asked.and_then(|asked| other_set(hello, asked)) {
        let advice = match hello.get_str("setName") {
            Ok(there) => format!("put replicaSet={} into the connection string", plain(there)),
            Err(_) => "remove replicaSet from the connection string, or start the server with --replSet and call \
                       rs.initiate() once"
                .to_owned(),
        };
        return Some((found, advice));
    }
    if is("readOnly") {
        return Some((
            "the server is read-only".to_owned(),
            "start it without --queryableBackupMode, or keep the locks on another".to_owned(),
        ));
    }
    if !is_direct || is("isWritablePrimary") {
        return None;
    }
    let role = if is("arbiterOnly") {
        "an arbiter, which keeps no data"
    } else if is("secondary") {
        "a secondary, which takes no writes"
    } else {
        "neither the primary nor a secondary (it starts, recovers or rolls back)"
    };
    let advice = match (hello.get_str("primary"), hello.get_str("setName")) {
        (Ok(_), Ok(set)) => format!(
            "replace directConnection=true by replicaSet={}: the driver then finds the primary",
            plain(set)
        ),
        _ => "the set has no primary at present: see rs.status(). Then name the set (replicaSet) instead of \
              directConnection=true"
            .to_owned(),
    };
    Some((format!("the server is {role}"), advice))
}

/// Describes a server that answered.
pub(super) fn topology(hello: &Document) -> Check {
    // The driver chose it as the primary, unless it was told to look at no other.
    if let Some((found, advice)) = unfit(hello, None, true) {
        return Check::new("topology", Status::Problem, found).advice(advice);
    }
    if let Ok(name) = hello.get_str("setName") {
        let members = with_data(hello).len();
        let plural = if members == 1 { "member" } else { "members" };
        return Check::ok(
            "topology",
            format!("replica set {}; it names {members} {plural} with data", plain(name)),
        );
    }
    if hello.get_str("msg").is_ok_and(|message| message == "isdbgrid") {
        return Check::new("topology", Status::Warning, "sharded cluster").advice(
            "watchlock is not tested on one, and an idle shard can delay wake-ups by seconds: if you can, keep the locks in \
             their own replica set",
        );
    }
    if hides_its_set(hello) {
        return Check::new("topology", Status::Problem, HIDES_ITS_SET).advice(
            "connect without the program in between: through it waiters poll, and nothing shows who is the primary",
        );
    }
    Check::new("topology", Status::Warning, "standalone server").advice(
        "locks are safe here, but waiters poll: start the server with --replSet and call rs.initiate() once; one member is \
         enough for change streams",
    )
}

/// Returns the names of the set's members with data. It tells nobody of hidden ones.
pub(super) fn with_data(hello: &Document) -> Vec<&str> {
    ["hosts", "passives"]
        .iter()
        .flat_map(|field| hello.get_array(field).into_iter().flatten())
        .filter_map(Bson::as_str)
        .collect()
}

/// Checks that writes are confirmed, as every grant needs it, and writes nothing.
///
/// A linearizable read says so of a set: its primary makes a note in its log, and answers once a majority has that
/// note. A standalone is asked to change a document that is not there.
pub(super) async fn writes(place: &Place, hello: &Document) -> Result<Option<Check>, Failure> {
    let is_standalone = is_standalone(hello);
    let absent = format!("watchlock doctor {}", ObjectId::new().to_hex());
    let within = i64::try_from(CONFIRMED.as_millis()).unwrap_or(i64::MAX);
    let command = if is_standalone {
        doc! {
            "update": &place.collection, "updates": [{ "q": { "_id": absent }, "u": { "$set": { "at": 1 } } }],
            "maxTimeMS": within,
        }
    } else {
        doc! {
            "find": &place.collection, "filter": { "_id": absent }, "limit": 1, "singleBatch": true,
            "readConcern": { "level": "linearizable" }, "maxTimeMS": within,
        }
    };
    let database = place.database.clone();
    let answer = ask(async move { database.run_command(command).selection_criteria(primary()).await }).await?;
    let error = match answer {
        Ok(_) if is_standalone => return Ok(None),
        Ok(_) => return Ok(Some(Check::ok("writes", "a majority of the set confirms them"))),
        Err(error) => error,
    };
    let within = span_of(CONFIRMED);
    let (found, advice) = match code(&error) {
        // The privileges say it.
        Some(UNAUTHORIZED) => return Ok(None),
        Some(OUT_OF_TIME) if is_standalone => (
            format!("the server took none within {within}"),
            "see its log; db.fsyncUnlock() ends a lock by db.fsyncLock(), which stops all writes",
        ),
        Some(OUT_OF_TIME) => (
            format!("no majority of the set confirmed one within {within}"),
            "start or repair the members that are down, behind or stopped (rs.status()); an arbiter confirms nothing, and \
             db.fsyncLock() stops all writes",
        ),
        Some(_) if is_standalone => {
            let found = format!("the server refuses them: {}", told(&error));
            let check = Check::new("writes", Status::Problem, found);
            return Ok(Some(check.advice("the reason is the server's: its log may say more")));
        }
        // The collection shows whether it is a reason to refuse locks too.
        _ => return Ok(Some(unseen("writes", Some(&error)))),
    };
    Ok(Some(Check::new("writes", Status::Problem, found).advice(advice)))
}

/// Checks that a confirmed write is on the disks of a majority, where the user may see the settings of the set.
pub(super) async fn journal(place: &Place) -> Result<Option<Check>, Failure> {
    let admin = place.database.client().database("admin");
    let answer = ask(async move { admin.run_command(doc! { "replSetGetConfig": 1 }).await }).await?;
    Ok(answer.is_ok_and(|answer| forgets(&answer)).then(|| {
        Check::new("journal", Status::Problem, FORGETS)
            .advice("set writeConcernMajorityJournalDefault to true, by rs.reconfig()")
    }))
}

/// What it means that a set confirms writes which are not on its disks.
pub(crate) const FORGETS: &str =
    "writeConcernMajorityJournalDefault is false: when a majority of the members crashes, it forgets grants";

/// Returns whether a set, by its answer to `replSetGetConfig`, confirms writes which are not on its disks.
pub(crate) fn forgets(answer: &Document) -> bool {
    let config = answer.get_document("config");
    config.is_ok_and(|config| config.get_bool("writeConcernMajorityJournalDefault") == Ok(false))
}

/// What [`hides_its_set`] finds.
pub(crate) const HIDES_ITS_SET: &str = "it says that it is a standalone server, and tells the time of a replica set: something \
                                        in between changes its answers";

/// Whether the answer of a server that names no set has what only members of a set and routers know.
pub(crate) fn hides_its_set(hello: &Document) -> bool {
    is_standalone(hello) && hello.contains_key("$clusterTime")
}

/// Returns whether the server is neither a member of a set nor a router.
fn is_standalone(hello: &Document) -> bool {
    !hello.contains_key("setName") && !hello.contains_key("msg")
}
