//! The events of the locks of an array's elements, many of which share a document.
//!
//! The server reports a write by its changes, under keys with dots, or by the whole document. The changes show which locks
//! were written. A whole document shows only how all of its locks are now: written were those whose time is that of the
//! event. If it has none of these, another program has put it there.

use std::collections::BTreeMap;

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{OLD, cut, keys, starts_with, when};
use crate::{
    protocol::{Location, ServerTime, wake},
    store::{
        Event,
        family::{Family, element_name},
    },
};

/// Selects, on the server, the events that concern a session, and shows of each only which locks were written, with
/// their `wake` and their time.
///
/// A write of the protocol has a new `wake` in each lock that it changes. It may also remove idle locks of other
/// elements, which concerns nobody. Without any new `wake` it is another program's write.
pub(super) fn concerning(session: &str, base: &Location) -> Vec<Document> {
    let segments: Vec<&str> = base.segments().collect();
    let above: Vec<String> = (1..=segments.len()).map(|depth| segments[..depth].join(".")).collect();
    let inside = base.key("");
    let updated = doc! { "$objectToArray": { "$ifNull": ["$updateDescription.updatedFields", {}] } };
    let length = i64::try_from(inside.len()).unwrap_or(i64::MAX);
    let rest = |key: &str| doc! { "$split": [{ "$substrBytes": [key, length, -1] }, "."] };

    // The map, where it was written with all that is in it.
    let mut branches = Vec::new();
    for (depth, key) in above.iter().enumerate() {
        let path: Vec<&str> = ["$$this.v"]
            .into_iter()
            .chain(segments[depth + 1..].iter().copied())
            .collect();
        branches.push(doc! { "case": { "$eq": ["$$this.k", key] }, "then": path.join(".") });
    }
    let written = doc! { "$reduce": {
        "input": &updated,
        "initialValue": Bson::Null,
        "in": { "$switch": { "branches": branches, "default": "$$value" } },
    } };
    let is_update = doc! { "$eq": ["$operationType", "update"] };
    let of_changes = doc! { "$project": {
        "operationType": 1, "documentKey": 1, "clusterTime": 1,
        "since": { "$subtract": [when(), OLD] },
        "whole": { "$or": [
            { "$not": [&is_update] },
            { "$ne": [{ "$setIntersection": [keys(), above] }, []] },
        ] },
        "map": { "$cond": [is_update, written, format!("$fullDocument.{}", base.path())] },
        "changes": { "$map": {
            "input": { "$filter": { "input": updated, "cond": starts_with("$$this.k", &inside) } },
            "in": { "path": rest("$$this.k"), "v": "$$this.v" },
        } },
        "cut": { "$map": {
            "input": { "$filter": { "input": cut(), "cond": starts_with("$$this", &inside) } },
            "in": { "$arrayElemAt": [rest("$$this"), 0] },
        } },
    } };
    let touched = doc! { "$match": { "$or": [
        { "whole": true },
        { "changes.0": { "$exists": true } },
        { "cut.0": { "$exists": true } },
    ] } };

    let of_change = |field: &str| {
        let whole = format!("$$this.v.{field}");
        let is_it = doc! { "$eq": [{ "$slice": ["$$this.path", 1, 2] }, [field]] };
        let is_whole = doc! { "$eq": [{ "$size": "$$this.path" }, 1] };
        doc! { "$cond": [is_whole, whole, { "$cond": [is_it, "$$this.v", "$$REMOVE"] }] }
    };
    let is_new = doc! { "$and": [
        { "$eq": [{ "$type": "$$this.wake" }, "string"] },
        { "$eq": [{ "$type": "$$this.at" }, "date"] },
        { "$gte": ["$$this.at", "$since"] },
    ] };
    let locks = doc! { "$concatArrays": [
        { "$map": {
            "input": "$changes",
            "in": { "code": { "$arrayElemAt": ["$$this.path", 0] }, "wake": of_change("wake"), "at": of_change("at") },
        } },
        { "$filter": {
            "input": { "$map": {
                "input": { "$objectToArray": { "$cond": [{ "$eq": [{ "$type": "$map" }, "object"] }, "$map", {}] } },
                "in": { "code": "$$this.k", "wake": "$$this.v.wake", "at": "$$this.v.at" },
            } },
            "cond": is_new,
        } },
    ] };
    let of_locks = doc! { "$project": {
        "operationType": 1, "documentKey": 1, "clusterTime": 1, "whole": 1, "cut": 1, "since": 1, "locks": locks,
    } };

    let is_old = doc! { "$and": [
        { "$eq": [{ "$type": "$$this.at" }, "date"] },
        { "$lt": ["$$this.at", "$since"] },
    ] };
    let shown = doc! { "$project": {
        "operationType": 1, "documentKey": 1, "clusterTime": 1, "whole": 1, "cut": 1, "locks": 1,
        "old": { "$anyElementTrue": { "$map": { "input": "$locks", "in": is_old } } },
    } };
    let told = doc! { "$match": { "$or": [
        { "locks.wake": { "$regex": wake::pattern(session) } },
        { "locks.wake": { "$not": { "$type": "string" } } },
        { "old": true },
    ] } };
    vec![
        doc! { "$match": { "operationType": { "$ne": "insert" } } },
        of_changes,
        touched,
        of_locks,
        shown,
        told,
    ]
}

/// Returns the events of the locks that one event of the stream concerns, in their order. `ours` is the pattern of the session's entries.
pub(crate) fn read_elements(family: &Family, ours: &str, event: &Document) -> Vec<Event> {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let document = id.and_then(|id| family.document(id));
    let (kind, document) = match (event.get_str("operationType"), document) {
        (Ok("insert"), _) => return Vec::new(),
        (Ok(kind @ ("update" | "replace" | "delete")), Some(document)) => (kind, document),
        _ => return vec![Event::Everything],
    };
    let all = |document| vec![Event::Document { document }];
    if kind == "delete" {
        return all(document);
    }
    let mut locks = BTreeMap::<&str, (Option<&str>, Option<DateTime>)>::new();
    for lock in event.get_array("locks").into_iter().flatten() {
        let Some((lock, code)) = lock
            .as_document()
            .and_then(|lock| Some((lock, lock.get_str("code").ok()?)))
        else {
            return all(document);
        };
        let (wake, at) = locks.entry(code).or_default();
        *wake = lock.get_str("wake").ok().or(*wake);
        *at = lock.get_datetime("at").ok().copied().or(*at);
    }
    let foreign = |code: &str| Event::Foreign {
        name: element_name(&document, code),
        left: None,
    };
    if locks.values().all(|(wake, _)| wake.is_none()) {
        let cut = event.get_array("cut").into_iter().flatten().filter_map(Bson::as_str);
        let touched: Vec<Event> = locks.keys().copied().chain(cut).map(foreign).collect();
        return match event.get_bool("whole") {
            Ok(false) if !touched.is_empty() => touched,
            _ => all(document),
        };
    }
    let mut events = Vec::new();
    for (code, lock) in locks {
        match lock {
            (Some(wake), _) if !wake.contains(ours) => {}
            (Some(wake), Some(at)) => events.push(Event::Addressed {
                name: element_name(&document, code),
                wake: wake.to_owned(),
                at: ServerTime(at.timestamp_millis()),
                logged_at: event.get_timestamp("clusterTime").ok(),
            }),
            _ => events.push(foreign(code)),
        }
    }
    if event.get_bool("old").unwrap_or(true) {
        // An earlier copy of a lock was restored, and other locks may be gone.
        events.push(Event::Document { document });
    }
    events
}
