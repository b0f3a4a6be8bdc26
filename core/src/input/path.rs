//! Paths of fields in documents of the user's own: for the locks in them, and for the token of a fence.

use super::InvalidInput;
use crate::truncated_debug::shown;

/// Longest path of a field, in bytes: more than anybody needs, and less than a server accepts.
const PATH_MOST: usize = 255;

/// Maximum number of names in a path: that many sub-documents.
const PATH_NAMES_MOST: usize = 16;

/// Checks the path of a field that the library writes to; `purpose` follows the path in the message.
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
        shown(path.escape_debug())
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

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
