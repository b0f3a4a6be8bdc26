//! Renewals: the writes that only extend leases.

use mongodb::bson::{Bson, Document, doc};

use super::{
    expression::{bind, cond, filter, literal, map},
    fields_of_stamp, is_not_kept, live,
    selecting::is_known,
};
use crate::protocol::{Awaited, Location, Showing, wake};

/// Returns the pipeline of [`crate::protocol::state::renew_and_show`], for all documents at once that hold one of
/// `ids`.
pub fn renewal(
    at: &Location,
    operation: &str,
    (ids, shows): (&[String], Option<&Showing>),
    keep: i64,
    now: &Bson,
) -> Vec<Document> {
    let holders = extended(at, is_renewed(ids, now), now);
    let holders = match shows {
        Some(shows) => bind(
            doc! { "extended": holders },
            map("$$extended", cond(is_renewed(ids, now), shown(shows), "$$this")),
        ),
        None => holders,
    };
    let written = cond(
        doc! { "$ne": ["$$holders", at.value("holders")] },
        written(at, operation, "$$holders".into(), keep, now),
        "$$ROOT",
    );
    let renewed = bind(doc! { "holders": holders }, written);
    vec![doc! { "$replaceWith": cond(is_known(at), renewed, "$$ROOT") }]
}

/// Returns the condition that a holder is renewed: it is one of `ids`, and holds the lock.
pub(super) fn is_renewed(ids: &[String], now: &Bson) -> Document {
    doc! { "$and": [live(now), is_not_kept(), { "$in": ["$$this.id", literal(ids)] }] }
}

/// Returns the filter for the document while a holder with this id and token holds its lock.
pub fn holding(at: &Location, document: &Bson, (id, token): (&str, i64), now: &Bson) -> Document {
    let holders = at.value("holders");
    let holders = cond(doc! { "$isArray": &holders }, holders, Bson::Array(Vec::new()));
    let live = filter(holders, live(now));
    doc! {
        "_id": document,
        at.key("holders"): { "$elemMatch": { "id": id, "token": token, "released": null } },
        "$expr": { "$and": [
            is_known(at),
            bind(doc! { "live": live }, doc! { "$in": [literal(id), "$$live.id"] }),
        ] },
    }
}

/// Returns the pipeline of [`crate::protocol::state::renew`] for one holder in a document that [`holding`] selects,
/// except that it writes even where the lease is as long already.
pub fn guard(at: &Location, operation: &str, id: &str, keep: i64, now: &Bson) -> Vec<Document> {
    let holders = extended(at, doc! { "$eq": ["$$this.id", literal(id)] }, now);
    vec![doc! { "$replaceWith": written(at, operation, holders, keep, now) }]
}

/// Returns the holders; each that meets the condition has a full lease from now.
pub(super) fn extended(at: &Location, condition: Document, now: &Bson) -> Bson {
    // Renewals overtake each other, and the server's clock is read when a command begins.
    let until = doc! { "$max": ["$$this.until", { "$add": [now, "$$this.lease"] }] };
    let extended = doc! { "$mergeObjects": ["$$this", { "until": until }] };
    map(at.value("holders"), cond(condition, extended, "$$this"))
}

/// Returns the holder, which shows what its client does with it.
fn shown(Showing { idle, awaits, as_of }: &Showing) -> Bson {
    let idle: Vec<&str> = idle.iter().map(String::as_str).collect();
    let is_idle = doc! { "$in": ["$$this.id", literal(idle)] };
    let mut awaits: Vec<(&str, &Awaited)> = awaits.iter().map(|(id, awaited)| (&**id, awaited)).collect();
    awaits.sort_unstable_by_key(|(id, _)| *id);
    let waiting: Vec<&str> = awaits.iter().map(|(id, _)| *id).collect();
    let mut awaited: Vec<Bson> = awaits.iter().map(|(_, awaited)| awaited.to_document().into()).collect();
    // The position of one that is not found is that of the last.
    awaited.push(Bson::Null);
    let awaited = literal(awaited);
    let awaits = doc! { "$arrayElemAt": [awaited, { "$indexOfArray": [literal(waiting), "$$this.id"] }] };
    let shown = doc! { "$mergeObjects": ["$$this", { "idle": is_idle, "shown": as_of, "awaits": awaits }] };
    // A holder without the number is less than any.
    cond(doc! { "$lt": ["$$this.shown", as_of] }, shown, "$$this")
}

fn written(at: &Location, operation: &str, holders: Bson, keep: i64, now: &Bson) -> Bson {
    at.merged([fields_of_renewal(at, operation, holders, keep, now).into()])
}

/// Returns the fields of a lock after a renewal.
pub(super) fn fields_of_renewal(at: &Location, operation: &str, holders: Bson, keep: i64, now: &Bson) -> Document {
    let mut fields = doc! { "holders": holders, "wake": literal(wake::of_change(operation)) };
    fields.extend(fields_of_stamp(at, keep, now));
    fields
}
