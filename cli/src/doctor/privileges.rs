//! The check of the user's privileges.

use mongodb::{
    bson::{Bson, Document, doc},
    error::Error,
    options::ReadConcern,
};

use super::{Check, Status, UNAUTHORIZED, ask, code, documents, told, unseen};
use crate::{connection::Place, exit::Failure};

/// Actions of the library on the collection; what comes of it if one is missing.
const ACTIONS: [(&str, Status, &str); 5] = [
    ("find", Status::Problem, "nothing works without it"),
    ("insert", Status::Problem, "nothing can be acquired without it"),
    ("update", Status::Problem, "nothing can be acquired without it"),
    ("changeStream", Status::Warning, "without it watchlock polls"),
    (
        "createIndex",
        Status::Warning,
        "without it somebody else must create the index that purges free locks",
    ),
];

/// Checks the privileges, each missing one by itself; also returns whether the index may be created.
pub(super) async fn privileges(place: &Place) -> Result<(Vec<Check>, bool), Failure> {
    let info = match info(place).await? {
        Ok(info) => info,
        Err(error) => return Ok((vec![unseen("privileges", error.as_ref())], false)),
    };
    if is_nobody(&info) {
        return Ok((vec![anybody(place).await?], false));
    }
    let has = |action: &str| has(&info, place, action);
    let missing: Vec<Check> = ACTIONS
        .iter()
        .filter(|(action, ..)| !has(action))
        .map(|(action, status, why)| {
            let namespace = format!("{}.{}", place.database.name(), place.collection);
            Check::new("privileges", *status, format!("missing: {action}; {why}"))
                .advice(format!("grant the user a role with the action {action} on {namespace}"))
        })
        .collect();
    if missing.is_empty() {
        let all = ACTIONS.map(|(action, ..)| action).join(", ");
        return Ok((
            vec![Check::ok("privileges", format!("all that watchlock uses: {all}"))],
            true,
        ));
    }
    Ok((missing, has("createIndex")))
}

/// Returns those of the actions on the collection that the user lacks, as far as the server says. Fails for a user that
/// it does not know.
pub(crate) async fn missing(place: &Place, actions: &[&'static str]) -> Result<Vec<&'static str>, Failure> {
    match info(place).await? {
        Ok(info) if !is_nobody(&info) => {
            let missing = actions.iter().filter(|action| !has(&info, place, action));
            Ok(missing.copied().collect())
        }
        Err(Some(error)) if Failure::driver(&error).ends_a_run() => Err(Failure::driver(&error)),
        _ => Ok(Vec::new()),
    }
}

/// Asks who the user is, and for the privileges. The inner error: the server does not say, with its reason if it gave one.
async fn info(place: &Place) -> Result<Result<Document, Option<Error>>, Failure> {
    let database = place.database.clone();
    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let answer = ask(async move { database.run_command(status).await }).await?;
    Ok(match answer {
        Ok(answer) => answer.get_document("authInfo").cloned().map_err(|_| None),
        Err(error) => Err(Some(error)),
    })
}

/// Returns whether no user has logged in.
fn is_nobody(info: &Document) -> bool {
    info.get_array("authenticatedUsers").map_or(0, Vec::len) == 0
}

fn has(info: &Document, place: &Place, action: &str) -> bool {
    let given = info.get_array("authenticatedUserPrivileges").into_iter().flatten();
    given
        .filter_map(Bson::as_document)
        .any(|one| grants(one, place, action))
}

/// Checks the privileges without a login: either everybody may do everything, or nobody may do anything.
async fn anybody(place: &Place) -> Result<Check, Failure> {
    let collection = documents(place);
    let found = ask(async move { collection.find_one(doc! {}).read_concern(ReadConcern::local()).await }).await?;
    Ok(match found {
        Ok(_) => Check::ok(
            "privileges",
            "the server requires no authentication, so everything is permitted",
        ),
        Err(error) if code(&error) == Some(UNAUTHORIZED) => Check::new(
            "privileges",
            Status::Problem,
            "the server requires authentication, and nobody has logged in",
        )
        .advice("put user, password and authSource into the connection string, in MONGODB_URI"),
        Err(error) => Check::new(
            "privileges",
            Status::Problem,
            format!("the locks can't be read: {}", told(&error)),
        )
        .advice("the reason is the server's: its log may say more"),
    })
}

/// Returns whether a privilege covers an action on the locks' collection.
fn grants(privilege: &Document, place: &Place, action: &str) -> bool {
    let Ok(resource) = privilege.get_document("resource") else {
        return false;
    };
    let any = resource.get_bool("anyResource").unwrap_or(false);
    // An empty text stands for all.
    let covers = |field: &str, name: &str| resource.get_str(field).is_ok_and(|it| it.is_empty() || it == name);
    let actions = privilege.get_array("actions").map_or(&[][..], |actions| actions);
    (any || covers("db", place.database.name()) && covers("collection", &place.collection))
        && actions.iter().any(|given| {
            given
                .as_str()
                .is_some_and(|given| given == action || given == "anyAction")
        })
}
