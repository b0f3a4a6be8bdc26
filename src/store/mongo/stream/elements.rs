//! The events of the locks of an array's elements, many of which share a document.
//!
//! The server reports a write by its changes, under keys with dots, or by the whole document. The changes show which
//! locks were written. A whole document shows only how all of its locks are now: written were those whose time is that
//! of the event. If it has none of these, another program has put it there.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, doc};

use super::{OLD, ObservedIds, cut, down_to, given, keys, starts_with, updated, when};
use crate::{
    protocol::{Location, ServerTime, wake},
    store::{
        Event, Observed,
        lock_layout::{LockLayout, element_name},
    },
};

/// Selects, on the server, the events that concern a session, and shows of each only which locks were written, with
/// their `wake` and their time, or that they were removed.
///
/// A write of the protocol has a new `wake` in each lock that it changes. It may also remove free locks of other
/// elements, which concerns nobody. Without any new `wake` it is another program's write.
///
/// Of the documents with observed locks it also reports all other writes of locks.
pub(super) fn concerning(session: &str, base: &Location, observed: ObservedIds) -> Vec<Document> {
    let mut comes = vec![doc! { "operationType": { "$ne": "insert" } }];
    let touched = doc! { "$match": { "$or": [{ "whole": true }, { "changes.0": { "$exists": true } }] } };
    let mut of_locks = doc! {
        "operationType": 1, "documentKey": 1, "clusterTime": 1, "whole": 1, "since": 1,
        "locks": written_locks(), "ours": having_entries_of(session),
    };
    let is_old = doc! { "$and": [
        { "$eq": [{ "$type": "$$this.at" }, "date"] },
        { "$lt": ["$$this.at", "$since"] },
    ] };
    let is_any_old = doc! { "$anyElementTrue": { "$map": { "input": "$locks", "in": is_old } } };
    let mut told = vec![
        doc! { "locks.wake": { "$regex": wake::pattern(session) } },
        doc! { "locks.wake": { "$not": { "$type": "string" } } },
        doc! { "old": true },
        // Only the session knows whether a lock of its own is missing.
        doc! { "whole": true },
    ];
    if observed.as_ref().is_none_or(|ids| !ids.is_empty()) {
        comes.push(doc! { format!("fullDocument.{}", base.path()): { "$exists": true } });
        told.push(observed.map_or_else(Document::new, |ids| doc! { "documentKey._id": { "$in": ids } }));
        of_locks.insert("codes", doc! { "$map": { "input": locks_in_map(), "in": "$$this.k" } });
    }
    vec![
        doc! { "$match": { "$or": comes } },
        of_changes(base),
        touched,
        doc! { "$project": of_locks },
        doc! { "$set": { "old": is_any_old } },
        doc! { "$match": { "$or": told } },
    ]
}

/// Returns the stage that shows what an event's write did to the map of the locks: the `changes` inside it, those that
/// removed something without a value, and whether the map was written as a `whole`; if so, also the `map`. A lock whose
/// time is before `since` is as an earlier write left it.
fn of_changes(base: &Location) -> Document {
    let inside = base.key("");
    let length = i64::try_from(inside.len()).unwrap_or(i64::MAX);
    let rest = |key: &str| doc! { "$split": [{ "$substrBytes": [key, length, -1] }, "."] };
    let is_update = doc! { "$eq": ["$operationType", "update"] };
    let removed = doc! { "$map": { "input": cut(), "in": { "k": "$$this" } } };
    let changed = doc! { "$concatArrays": [updated(), removed] };
    doc! { "$project": {
        "operationType": 1, "documentKey": 1, "clusterTime": 1,
        "since": { "$subtract": [when(), OLD] },
        "whole": { "$or": [
            { "$not": [&is_update] },
            { "$ne": [{ "$setIntersection": [keys(), down_to(base)] }, []] },
        ] },
        "map": { "$cond": [is_update, given(base.path()), format!("$fullDocument.{}", base.path())] },
        "changes": { "$map": {
            "input": { "$filter": { "input": changed, "cond": starts_with("$$this.k", &inside) } },
            "in": { "path": rest("$$this.k"), "v": "$$this.v" },
        } },
    } }
}

/// Returns the expression for the locks that were written, with their `wake` and their time: those that were changed,
/// and those in the map whose time is that of the event.
fn written_locks() -> Document {
    let is_whole = doc! { "$eq": [{ "$size": "$$this.path" }, 1] };
    let of_change = |field: &str| {
        let whole = format!("$$this.v.{field}");
        let is_it = doc! { "$eq": [{ "$slice": ["$$this.path", 1, 2] }, [field]] };
        doc! { "$cond": [&is_whole, whole, { "$cond": [is_it, "$$this.v", "$$REMOVE"] }] }
    };
    let is_removed = doc! { "$and": [&is_whole, { "$eq": [{ "$type": "$$this.v" }, "missing"] }] };
    let is_new = doc! { "$and": [
        { "$eq": [{ "$type": "$$this.wake" }, "string"] },
        { "$eq": [{ "$type": "$$this.at" }, "date"] },
        { "$gte": ["$$this.at", "$since"] },
    ] };
    doc! { "$concatArrays": [
        { "$map": {
            "input": "$changes",
            "in": {
                "code": { "$arrayElemAt": ["$$this.path", 0] }, "wake": of_change("wake"), "at": of_change("at"),
                "removed": is_removed,
            },
        } },
        { "$filter": {
            "input": { "$map": {
                "input": locks_in_map(),
                "in": { "code": "$$this.k", "wake": "$$this.v.wake", "at": "$$this.v.at" },
            } },
            "cond": is_new,
        } },
    ] }
}

/// Returns the expression for all locks in the map, as codes and locks; for none where there is no map.
fn locks_in_map() -> Document {
    doc! { "$objectToArray": { "$cond": [{ "$eq": [{ "$type": "$map" }, "object"] }, "$map", {}] } }
}

/// Returns the expression for the codes of the locks in the map that have an entry of this session.
fn having_entries_of(session: &str) -> Document {
    let list = |list: &str| doc! { "$cond": [{ "$isArray": [list] }, list, []] };
    let is_ours = doc! { "$cond": [
        { "$eq": [{ "$type": "$$entry.id" }, "string"] },
        starts_with("$$entry.id", &format!("{session}-")),
        false,
    ] };
    let entries = doc! { "$concatArrays": [list("$$this.v.holders"), list("$$this.v.queue")] };
    let any = doc! { "$anyElementTrue": [{ "$map": { "input": entries, "as": "entry", "in": is_ours } }] };
    doc! { "$map": { "input": { "$filter": { "input": locks_in_map(), "cond": any } }, "in": "$$this.k" } }
}

/// Returns the events of the locks that one event of the stream concerns, in their order. `ours` is the pattern of the
/// session's entries.
pub(crate) fn read_elements(layout: &LockLayout, ours: &str, event: &Document) -> Vec<Event> {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let document = id.and_then(|id| layout.document(id));
    let (kind, document) = match (event.get_str("operationType"), document) {
        (Ok("insert"), _) => return Vec::new(),
        (Ok(kind @ ("update" | "replace" | "delete")), Some(document)) => (kind, document),
        _ => return vec![Event::Everything],
    };
    let all = |document| {
        vec![Event::Document {
            document,
            but: Vec::new(),
        }]
    };
    if kind == "delete" {
        return all(document);
    }
    let mut locks = HashMap::<&str, (Option<&str>, Option<ServerTime>, bool)>::new();
    for lock in event.get_array("locks").into_iter().flatten() {
        let Some((lock, code)) = lock
            .as_document()
            .and_then(|lock| Some((lock, lock.get_str("code").ok()?)))
        else {
            return all(document);
        };
        let (wake, at, is_removed) = locks.entry(code).or_default();
        *wake = lock.get_str("wake").ok().or(*wake);
        *at = ServerTime::in_field(lock, "at").or(*at);
        *is_removed = lock.get_bool("removed").unwrap_or(false);
    }
    let mut locks: Vec<_> = locks.into_iter().collect();
    locks.sort_unstable_by_key(|(code, _)| *code);
    let foreign = |code: &str| Event::Foreign {
        name: element_name(&document, code),
        after: None,
    };
    if locks.iter().all(|(_, (wake, ..))| wake.is_none()) {
        let touched: Vec<Event> = locks.iter().map(|(code, _)| foreign(code)).collect();
        return match event.get_bool("whole") {
            Ok(false) if !touched.is_empty() => touched,
            _ => all(document),
        };
    }
    let mut events = Vec::new();
    for (code, lock) in locks {
        match lock {
            // A free lock that a write of another has removed.
            (None, _, true) => {}
            (Some(wake), ..) if !wake.contains(ours) => {}
            (Some(wake), Some(at), _) => events.push(Event::Addressed {
                name: element_name(&document, code),
                wake: wake.to_owned(),
                at,
                logged_at: event.get_timestamp("clusterTime").ok(),
            }),
            _ => events.push(foreign(code)),
        }
    }
    if event.get_bool("old").unwrap_or(true) {
        // An earlier copy of a lock was restored, and other locks may be gone.
        events.extend(all(document));
    } else if event.get_bool("whole").unwrap_or(true) {
        // Another program may have put it there with a copy that is hardly older, and without a lock of ours.
        let but = event.get_array("ours").into_iter().flatten();
        let but = but.filter_map(|code| code.as_str().map(str::to_owned)).collect();
        events.push(Event::Document { document, but });
    }
    events
}

/// Returns the events of the observed locks that one event of the stream changed or put there. Those that it took away with
/// their document are not in it.
pub(crate) fn read_observed(layout: &LockLayout, observed: &Observed, event: &Document) -> Vec<Event> {
    let id = event.get_document("documentKey").ok().and_then(|key| key.get("_id"));
    let Some(document) = id.and_then(|id| layout.document(id)) else {
        return Vec::new();
    };
    let list = |field| event.get_array(field).into_iter().flatten();
    let written = list("locks").filter_map(|lock| lock.as_document()?.get_str("code").ok());
    let others = list("codes").filter_map(Bson::as_str);
    let mut codes: Vec<&str> = written.chain(others).collect();
    codes.sort_unstable();
    codes.dedup();
    let names = codes.into_iter().map(|code| element_name(&document, code));
    names.filter(|name| observed.has(name)).map(Event::Written).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::TryStreamExt;
    use mongodb::bson::{DateTime, Timestamp};
    use watchlock_testkit::shared;

    use super::*;
    use crate::store::lock_layout::Paths;

    const OURS: &str = "cc.1:;me-1+7;";
    const THEIRS: &str = "cc.1:h;dd-1+7;";

    /// The time of the events, and those of locks: written right before it, and by an earlier write.
    const NOW: i64 = 1_700_000_000_900;
    const NEW: i64 = NOW - 20;
    const EARLIER: i64 = NOW - 10_000;

    /// An event of the server, and the events of locks that it stands for.
    type Case = (Document, Vec<Event>);

    fn lock(wake: &str, at: i64) -> Document {
        doc! { "holders": [], "wake": wake, "at": dated(at), "version": 1 }
    }

    /// A lock as an earlier write left it, with this entry in its queue.
    fn lock_with(id: &str) -> Document {
        let mut lock = lock(THEIRS, EARLIER);
        lock.insert("queue", vec![doc! { "id": "dd-2" }, doc! { "id": id }]);
        lock
    }

    fn dated(at: i64) -> DateTime {
        DateTime::from_millis(at)
    }

    fn logged_at() -> Timestamp {
        Timestamp {
            time: 1_700_000_000,
            increment: 1,
        }
    }

    fn event(kind: &str, more: Document) -> Document {
        let mut event = doc! {
            "operationType": kind, "documentKey": { "_id": 7 },
            "clusterTime": logged_at(), "wallTime": dated(NOW),
        };
        event.extend(more);
        event
    }

    fn replaced(document: Document) -> Document {
        event("replace", doc! { "fullDocument": document })
    }

    /// A document that was written as a whole, with these locks in its map.
    fn whole(locks: Document) -> Document {
        replaced(doc! { "_id": 7, "lines": [], "w": { "lines": locks, "other": { "x": lock(OURS, NEW) } } })
    }

    fn changes(updated: Document, removed: &[&str]) -> Document {
        let removed = removed.to_vec();
        let changes = doc! { "updatedFields": updated, "removedFields": removed, "truncatedArrays": [] };
        event("update", doc! { "updateDescription": changes })
    }

    fn addressed(code: &str, at: i64) -> Event {
        Event::Addressed {
            name: format!("7/{code}"),
            wake: OURS.to_owned(),
            at: ServerTime(at),
            logged_at: Some(logged_at()),
        }
    }

    fn foreign(code: &str) -> Event {
        Event::Foreign {
            name: format!("7/{code}"),
            after: None,
        }
    }

    fn all_but(codes: &[&str]) -> Event {
        Event::Document {
            document: "7".to_owned(),
            but: codes.iter().map(|code| (*code).to_owned()).collect(),
        }
    }

    fn all() -> Event {
        all_but(&[])
    }

    fn whole_documents() -> Vec<Case> {
        let (ours, before) = (lock(OURS, NEW), lock(OURS, EARLIER));
        let theirs = lock(THEIRS, NEW);
        let written = whole(doc! { "x": &ours, "y": &before });
        // As servers before 6.0 report it.
        let mut without_wall_time = written.clone();
        without_wall_time.remove("wallTime");
        let strange = doc! { "queue": [{ "id": 5 }] };
        vec![
            (written, vec![addressed("x", NEW), all()]),
            (without_wall_time, vec![addressed("x", NEW), all()]),
            // Another program may have put it there without a lock of ours.
            (whole(doc! { "x": &theirs, "y": &before }), vec![all()]),
            (
                whole(doc! { "x": theirs, "y": lock_with("me-1"), "z": lock_with("you-1"), "v": strange }),
                vec![all_but(&["y"])],
            ),
            (whole(doc! { "x": before, "y": lock(THEIRS, EARLIER) }), vec![all()]),
            (whole(doc! { "x": 5, "y": { "wake": 7, "at": "now" } }), vec![all()]),
            (replaced(doc! { "_id": 7 }), vec![all()]),
            (replaced(doc! { "_id": 7, "w": { "lines": [1] } }), vec![all()]),
            (event("insert", doc! { "fullDocument": { "_id": 7 } }), vec![]),
            (event("delete", doc! {}), vec![all()]),
            (event("drop", doc! { "documentKey": 1 }), vec![Event::Everything]),
        ]
    }

    fn changes_by_the_protocol() -> Vec<Case> {
        let new = dated(NEW);
        let (ours, theirs) = (lock(OURS, NEW), doc! { "w.lines.x.wake": THEIRS, "w.lines.x.at": new });
        let nobodys = "cc.2:;";
        vec![
            (
                changes(
                    doc! { "w.lines.x.wake": OURS, "w.lines.x.at": new, "w.lines.x.queue.0.until": 1 },
                    &[],
                ),
                vec![addressed("x", NEW)],
            ),
            (changes(doc! { "w.lines.x": &ours }, &[]), vec![addressed("x", NEW)]),
            (
                changes(doc! { "w.lines": { "x": &ours } }, &[]),
                vec![addressed("x", NEW), all()],
            ),
            (
                changes(doc! { "w": { "lines": { "x": ours } } }, &[]),
                vec![addressed("x", NEW), all()],
            ),
            (changes(theirs.clone(), &[]), vec![]),
            (changes(theirs, &["w.lines.y"]), vec![]),
            (
                changes(doc! { "w.lines.x.wake": nobodys, "lines.0.picked": true }, &[]),
                vec![],
            ),
            (
                changes(doc! { "w.lines.x.wake": nobodys, "w.lines.y.wake": nobodys }, &[]),
                vec![],
            ),
        ]
    }

    fn changes_by_other_programs() -> Vec<Case> {
        let before = lock(OURS, EARLIER);
        let truncated = doc! {
            "updatedFields": {}, "removedFields": [],
            "truncatedArrays": [{ "field": "w.lines.x.queue", "newSize": 1 }],
        };
        vec![
            (changes(doc! { "w.lines.x.holders": [] }, &[]), vec![foreign("x")]),
            (changes(doc! { "w.lines.x": 5 }, &[]), vec![foreign("x")]),
            (
                changes(doc! { "w.lines.x.wake": 5 }, &["w.lines.y.holders"]),
                vec![foreign("x"), foreign("y")],
            ),
            (
                changes(
                    doc! { "w.lines.x": lock(OURS, NEW), "w.lines.y.holders": [], "w.lines.z": 5 },
                    &["w.lines.u", "w.lines.v.queue"],
                ),
                vec![foreign("v"), addressed("x", NEW), foreign("y"), foreign("z")],
            ),
            (changes(doc! {}, &["w.lines.y"]), vec![foreign("y")]),
            (changes(doc! {}, &["w.lines"]), vec![all()]),
            (changes(doc! {}, &["w"]), vec![all()]),
            (changes(doc! { "w": 7 }, &[]), vec![all()]),
            (changes(doc! { "w.lines": { "x": &before } }, &[]), vec![all()]),
            (
                changes(doc! { "w.lines.x": before }, &[]),
                vec![addressed("x", EARLIER), all()],
            ),
            (
                changes(doc! { "w.lines.x": lock(THEIRS, EARLIER) }, &["w.lines.y"]),
                vec![all()],
            ),
            (
                event("update", doc! { "updateDescription": truncated }),
                vec![foreign("x")],
            ),
        ]
    }

    fn changes_of_anything_else() -> Vec<Case> {
        let elsewhere = doc! { "lines": [], "w.linesx": 1, "w.other.x.wake": OURS };
        vec![
            (changes(elsewhere, &["w.other", "line"]), vec![]),
            (event("update", doc! {}), vec![]),
        ]
    }

    /// The server's selection and our reading of it, on events as servers of all versions report them.
    #[tokio::test]
    async fn an_event_concerns_the_locks_that_were_written() {
        let cases = [
            whole_documents(),
            changes_by_the_protocol(),
            changes_by_other_programs(),
            changes_of_anything_else(),
        ];
        let layout = layout();
        for (event, expected) in cases.into_iter().flatten() {
            // Others that are observed make no difference.
            for observed in [Some(vec![]), Some(vec![Bson::from(8)]), Some(vec![Bson::from(7)]), None] {
                let told = told(&layout, event.clone(), observed).await;
                let read = told
                    .iter()
                    .flat_map(|told| read_elements(&layout, &wake::pattern("me"), told));
                assert_eq!(read.collect::<Vec<_>>(), expected, "{event}: {told:?}");
                // Nothing else of the document is sent.
                assert!(
                    told.iter().all(|told| !told.to_string().contains("version")),
                    "{told:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn an_event_is_told_of_the_observed_locks_that_it_changed_or_put_there() {
        let layout = layout();
        let theirs = || lock(THEIRS, NEW);
        let inserted = doc! { "_id": 7, "w": { "lines": { "x": theirs(), "y": lock(THEIRS, EARLIER) } } };
        let new = dated(NEW);
        for (event, codes) in [
            (
                whole(doc! { "x": theirs(), "y": lock(THEIRS, EARLIER) }),
                vec!["x", "y"],
            ),
            (event("insert", doc! { "fullDocument": inserted }), vec!["x", "y"]),
            (event("insert", doc! { "fullDocument": { "_id": 7 } }), vec![]),
            (event("delete", doc! {}), vec![]),
            (
                changes(doc! { "w.lines.x.wake": THEIRS, "w.lines.x.at": new }, &["w.lines.y"]),
                vec!["x", "y"],
            ),
            (changes(doc! { "w.lines.x.holders.0.until": 1 }, &[]), vec!["x"]),
            (changes(doc! { "w.lines": { "x": theirs() } }, &[]), vec!["x"]),
            (changes(doc! { "lines": [], "w.other.x.wake": THEIRS }, &[]), vec![]),
        ] {
            let names = |codes: &[&str]| -> std::collections::BTreeSet<String> {
                codes.iter().map(|code| format!("7/{code}")).collect()
            };
            for observed in [Observed::All, Observed::These(names(&["x"]))] {
                let ids = match &observed {
                    Observed::All => None,
                    Observed::These(_) => Some(vec![Bson::from(7)]),
                };
                let told = told(&layout, event.clone(), ids).await;
                let read = told.iter().flat_map(|told| read_observed(&layout, &observed, told));
                let expected = names(&codes).into_iter().filter(|name| observed.has(name));
                let expected: Vec<Event> = expected.map(Event::Written).collect();
                assert_eq!(read.collect::<Vec<_>>(), expected, "{event}: {told:?}");
            }
        }
    }

    fn layout() -> Arc<LockLayout> {
        LockLayout::in_documents(None, "w.lines", Some(("lines", "lock")), &Paths::default()).unwrap()
    }

    /// Returns the event as a server tells it, if it does.
    async fn told(layout: &LockLayout, mut event: Document, observed: ObservedIds) -> Vec<Document> {
        let client = shared::replica_set().await.client().await.unwrap();
        let database = client.database(&shared::unique_name("events"));
        let collection = database.collection::<Document>("events");
        event.insert("_id", 1);
        collection.insert_one(&event).await.unwrap();
        let told = collection.aggregate(concerning("me", layout.base(), observed));
        told.await.unwrap().try_collect().await.unwrap()
    }
}
