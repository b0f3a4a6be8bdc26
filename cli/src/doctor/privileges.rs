//! The check of the user's privileges.

use mongodb::{
    bson::{Bson, Document, doc},
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
    let database = place.database.clone();
    let status = doc! { "connectionStatus": 1, "showPrivileges": true };
    let answer = ask(async move { database.run_command(status).await }).await?;
    let info = answer
        .as_ref()
        .ok()
        .and_then(|answer| answer.get_document("authInfo").ok());
    let Some(info) = info else {
        return Ok((vec![unseen("privileges", answer.err().as_ref())], false));
    };
    if info.get_array("authenticatedUsers").map_or(0, Vec::len) == 0 {
        return Ok((vec![anybody(place).await?], false));
    }
    let given = info
        .get_array("authenticatedUserPrivileges")
        .map_or(&[][..], |given| given);
    let has = |action: &str| {
        given
            .iter()
            .filter_map(Bson::as_document)
            .any(|one| grants(one, place, action))
    };
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
