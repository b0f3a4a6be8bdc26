//! Names of locks and collections, paths of fields, and texts for people.

use super::{InvalidInput, check_count};
use crate::truncated_debug::{shown, shown_in_a_line};

/// Longest name of a lock, label or reason, in bytes. Labels and reasons are stored with every entry, and much longer
/// names would kill every change stream on the collection.
pub const TEXT_MOST: usize = 1_024;

/// Maximum number of names of a multi-lock: each costs a round trip before the lock is held, one after the other.
const MULTI_NAMES_MOST: usize = 128;

/// Longest name of a collection, in bytes: the server allows 255, those of the database included.
const COLLECTION_MOST: usize = 200;

/// Longest path of a field, in bytes: more than anybody needs, and less than a server accepts.
const PATH_MOST: usize = 255;

/// Maximum number of names in a path: that many sub-documents.
const PATH_NAMES_MOST: usize = 16;

/// Checks a name: 1 to 1,024 bytes of any text.
pub fn check_name(name: &str) -> Result<(), InvalidInput> {
    check_filled("name of a lock", name)
}

/// Checks a text that must not be empty.
pub(crate) fn check_filled(what: &str, text: &str) -> Result<(), InvalidInput> {
    if text.is_empty() {
        return Err(InvalidInput::new(format!(
            "the {what} is empty; it must have 1 to {TEXT_MOST} bytes"
        )));
    }
    check_count(what, text.len(), "bytes", 1..=TEXT_MOST)
}

/// Checks a label, a reason, a value or a prefix: it has no more bytes than every entry may bring along.
pub fn check_text(what: &str, text: &str) -> Result<(), InvalidInput> {
    check_count(what, text.len(), "bytes", 0..=TEXT_MOST)
}

/// Checks the names of a multi-lock, sorted: at least one, not too many, and each once.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), InvalidInput> {
    let names: Vec<&str> = names.into_iter().collect();
    check_count("multi-lock", names.len(), "names", 1..=MULTI_NAMES_MOST)?;
    names.iter().try_for_each(|name| check_name(name))?;
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = shown(twice[0].escape_debug());
        return Err(InvalidInput::new(format!(
            "`{name}` is given more than once; each name of a multi-lock must be given once"
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
        shown_in_a_line(name)
    )))
}

/// Checks the path of a field in the user's own documents that the library writes to; `purpose` follows the path in the
/// message.
pub fn check_path(path: &str, purpose: &str) -> Result<(), InvalidInput> {
    let names = || path.split('.');
    let problem = if path.len() > PATH_MOST {
        format!("has {} bytes; it must have 1 to {PATH_MOST}", path.len())
    } else if names().any(str::is_empty) {
        "contains an empty name".to_owned()
    } else if names().count() > PATH_NAMES_MOST {
        format!("has {} names; it must have at most {PATH_NAMES_MOST}", names().count())
    } else if path.contains('\0') || names().any(|name| name.starts_with('$')) {
        "contains a name that begins with `$` or has a NUL".to_owned()
    } else if names().any(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        "contains a number as a name, which would be an array index".to_owned()
    } else if names().next() == Some("_id") {
        "is in `_id`, which can't be written to".to_owned()
    } else {
        return Ok(());
    };
    Err(InvalidInput::new(format!(
        "the field `{}` {purpose} {problem}",
        shown_in_a_line(path)
    )))
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

    #[test]
    fn a_path_that_no_document_can_have_is_refused_with_its_problem() {
        let long = "x".repeat(PATH_MOST + 1);
        let deep = ["a"; PATH_NAMES_MOST + 1].join(".");
        for (path, problem) in [
            ("", "empty name"),
            ("a..b", "empty name"),
            ("$a", "`$`"),
            ("a\0", "NUL"),
            ("a.0", "array index"),
            ("_id.x", "`_id`"),
            (&long, "256 bytes; it must have 1 to 255"),
            (&deep, "17 names; it must have at most 16"),
        ] {
            let error = check_path(path, "of a test").unwrap_err().to_string();
            assert!(error.contains(problem) && error.len() < 400, "{error}");
        }
        for path in [
            "a",
            "a.b",
            "_idea",
            "a0.b1",
            &"x".repeat(PATH_MOST),
            &["a"; PATH_NAMES_MOST].join("."),
        ] {
            check_path(path, "of a test").unwrap();
        }
    }
}
