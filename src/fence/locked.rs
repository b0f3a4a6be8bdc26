//! A fence from the handle of a document, used in that document's own collection.
//!
//! The document's lock is a field of the document itself: a replacement would delete it, and an update could overwrite
//! it. The fence knows the places of the locks in that collection and leaves them alone.

use mongodb::{
    bson::{Bson, Document, doc},
    options::UpdateModifications,
};

use crate::{
    documents,
    error::InvalidInput,
    protocol::Location,
    store::{LockLayout, lock_layout::overlap},
    truncated_debug::shown_in_a_line,
};

/// Checks that the token and the locks have separate fields.
pub(super) fn check_field_apart(field: &str, place: &LockLayout) -> Result<(), InvalidInput> {
    match place.paths().into_iter().find(|path| overlap(field, path)) {
        None => Ok(()),
        Some(path) => Err(InvalidInput::new(format!(
            "the fence keeps its token in `{}`, but the lock of the document is in `{path}`",
            shown_in_a_line(field)
        ))),
    }
}

/// Checks that an update leaves the locks alone. An update without operators only records the token.
pub(super) fn check_update_of_locked(update: &UpdateModifications, place: &LockLayout) -> Result<(), InvalidInput> {
    match update {
        UpdateModifications::Document(none) if none.is_empty() => Ok(()),
        update => documents::check_update(update, place),
    }
}

/// Returns a pipeline that replaces a document by this one and keeps the stored locks. A lock in `replacement` is
/// ignored, as it may have been read in an earlier state.
pub(super) fn replace(mut replacement: Document, place: &LockLayout) -> Result<Vec<Document>, InvalidInput> {
    let locks: Vec<Location> = place.paths().iter().map(|path| Location::under(path)).collect();
    for lock in &locks {
        let whole = lock.path();
        match lock.obstacle(&replacement) {
            Some(path) if path != whole => {
                return Err(InvalidInput::new(format!(
                    "the replacement has another value at `{path}`, but the lock of the document is in `{whole}`"
                )));
            }
            _ => lock.take_lock(&mut replacement),
        };
    }
    // One stage per lock puts it into the new document, which is a field next to the old one until the last stage.
    let new = "_watchlock_new";
    let mut stages = vec![doc! { "$replaceWith": {
        "old": "$$ROOT",
        new: { "$mergeObjects": [{ "_id": "$_id" }, { "$literal": &replacement }] },
    } }];
    for lock in &locks {
        let stored = format!("$old.{}", lock.path());
        let segments: Vec<&str> = lock.segments().collect();
        let mut with = Bson::from(stored.as_str());
        for depth in (0..segments.len()).rev() {
            let outer: Vec<&str> = ["$_watchlock_new"]
                .into_iter()
                .chain(segments[..depth].iter().copied())
                .collect();
            with = Bson::from(doc! { "$mergeObjects": [outer.join("."), { segments[depth]: with }] });
        }
        let is_lock = doc! { "$eq": [{ "$type": stored }, "object"] };
        stages.push(doc! { "$set": { new: { "$cond": [is_lock, with, "$_watchlock_new"] } } });
    }
    stages.push(doc! { "$replaceWith": "$_watchlock_new" });
    Ok(stages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lock_layout::Paths;

    #[test]
    fn a_replacement_has_room_for_the_lock() {
        let place = LockLayout::in_documents(None, "a.b", None, &Paths::default()).unwrap();
        for replacement in [doc! { "a": 7 }, doc! { "a": [1] }] {
            let refused = replace(replacement, &place).unwrap_err().to_string();
            assert!(refused.contains("`a`") && refused.contains("`a.b`"), "{refused}");
        }
        for replacement in [
            doc! {},
            doc! { "a": {} },
            doc! { "a": { "b": 1 } },
            doc! { "a": Bson::Null },
        ] {
            replace(replacement, &place).unwrap();
        }
    }

    #[test]
    fn an_update_may_be_empty_and_leaves_the_lock_alone() {
        let place = LockLayout::in_documents(None, "a.b", None, &Paths::default()).unwrap();
        let check = |update: Document| check_update_of_locked(&update.into(), &place);
        for update in [doc! {}, doc! { "$set": { "c": 1 } }] {
            check(update).unwrap();
        }
        for update in [
            doc! { "c": 1 },
            doc! { "$set": { "a.b": 1 } },
            doc! { "$unset": { "a": "" } },
        ] {
            check(update).unwrap_err();
        }
    }

    #[test]
    fn the_token_is_not_kept_in_the_lock() {
        let place = LockLayout::in_documents(None, "a.b", None, &Paths::default()).unwrap();
        for field in ["a", "a.b", "a.b.fence"] {
            check_field_apart(field, &place).unwrap_err();
        }
        for field in ["fence", "a.fence", "b"] {
            check_field_apart(field, &place).unwrap();
        }
    }
}
