//! Names of locks and collections, and texts for people.

use super::InvalidInput;
use crate::truncated_debug::shown;

/// Longest name of a lock, label or reason, in bytes. Labels and reasons are stored with every entry, and much longer
/// names would kill every change stream on the collection.
pub const TEXT_MOST: usize = 1_024;

/// Maximum number of names of a multi-lock: each costs a round trip before the lock is held, one after the other.
const MULTI_NAMES_MOST: usize = 128;

/// Longest name of a collection, in bytes: the server allows 255, those of the database included.
const COLLECTION_MOST: usize = 200;

/// Checks a name: 1 to 1,024 bytes of any text.
pub fn check_name(name: &str) -> Result<(), InvalidInput> {
    if name.is_empty() {
        return Err(InvalidInput::new(format!(
            "the name of a lock is empty; it must have 1 to {TEXT_MOST} bytes"
        )));
    }
    if name.len() > TEXT_MOST {
        let length = name.len();
        return Err(InvalidInput::new(format!(
            "the name of a lock has {length} bytes; it must have 1 to {TEXT_MOST}"
        )));
    }
    Ok(())
}

/// Checks the names of a multi-lock, sorted: at least one, not too many, and each once.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), InvalidInput> {
    let names: Vec<&str> = names.into_iter().collect();
    if !(1..=MULTI_NAMES_MOST).contains(&names.len()) {
        let count = names.len();
        return Err(InvalidInput::new(format!(
            "the multi-lock has {count} names; it must have 1 to {MULTI_NAMES_MOST}"
        )));
    }
    names.iter().try_for_each(|name| check_name(name))?;
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = shown(twice[0].escape_debug());
        return Err(InvalidInput::new(format!(
            "`{name}` is given more than once; each name of a multi-lock must be given once"
        )));
    }
    Ok(())
}

/// Checks a prefix: it is no longer than a name.
pub fn check_prefix(prefix: &str) -> Result<(), InvalidInput> {
    if prefix.len() > TEXT_MOST {
        let length = prefix.len();
        return Err(InvalidInput::new(format!(
            "the name prefix has {length} bytes; it must have at most {TEXT_MOST}"
        )));
    }
    Ok(())
}

/// Checks that a database is not one of the server's own. `local` is not replicated, so a fail-over loses its locks;
/// on the others, the server sets concerns of its own and opens no change stream.
pub fn check_database(name: &str) -> Result<(), InvalidInput> {
    if !["admin", "config", "local"].contains(&name) {
        return Ok(());
    }
    let loses = if name == "local" {
        ", and a fail-over loses what is in it"
    } else {
        ""
    };
    Err(InvalidInput::new(format!(
        "locks can't be kept in the database `{name}`: it is the server's own{loses}"
    )))
}

pub fn check_collection(name: &str) -> Result<(), InvalidInput> {
    let problem = if name.is_empty() {
        "is empty".to_owned()
    } else if name.len() > COLLECTION_MOST {
        format!("is longer than {COLLECTION_MOST} bytes")
    } else if name.contains(['$', '\0']) {
        "contains `$` or NUL".to_owned()
    } else if name.starts_with("system.") || name.starts_with('.') || name.ends_with('.') {
        "starts with `system.`, or starts or ends with a dot".to_owned()
    } else {
        return Ok(());
    };
    Err(InvalidInput::new(format!(
        "the collection name `{}` {problem}",
        shown(name.escape_debug())
    )))
}

/// Checks an owner id: a text that is not empty.
pub(crate) fn check_owner_id(id: &str) -> Result<(), InvalidInput> {
    if id.is_empty() {
        return Err(InvalidInput::new(format!(
            "the owner id is empty; it must have 1 to {TEXT_MOST} bytes"
        )));
    }
    check_text("owner id", id)
}

/// Checks a label, a reason or a value: it has no more bytes than every entry may bring along.
pub fn check_text(what: &str, text: &str) -> Result<(), InvalidInput> {
    if text.len() > TEXT_MOST {
        let length = text.len();
        return Err(InvalidInput::new(format!(
            "the {what} has {length} bytes; it must have at most {TEXT_MOST}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_bytes() {
        check_name("x").unwrap();
        check_name(&"é".repeat(512)).unwrap();
        assert!(check_name("").unwrap_err().to_string().contains("1 to 1024"));
        assert!(check_name(&"é".repeat(513)).unwrap_err().to_string().contains("1026"));
        for name in ["", "a$b", "a\0", "system.x", ".a", "a."] {
            check_collection(name).unwrap_err();
        }
        check_collection("a.b").unwrap();
        for name in ["admin", "config", "local"] {
            check_database(name).unwrap_err();
        }
        check_database("app").unwrap();
    }
}
