//! The cause of an error, in a line for people.
//!
//! The texts of the driver are of any size: they quote the command with its pipeline, the server's answer with its
//! signature, or a document. So of an error with a code the code is shown, and of another text the part before the
//! first brace, with which all quotes begin.

use std::error::Error as StdError;

use mongodb::error::{Error as DriverError, ErrorKind, WriteFailure};

use super::failure;
use crate::truncated_debug::shown;

/// Returns the cause of an error: the server's code and its name, or otherwise a text. Never the server's own text, which
/// may have a value of the user's.
pub(super) fn cause(error: &(dyn StdError + Send + Sync + 'static)) -> String {
    let Some(error) = error.downcast_ref::<DriverError>() else {
        return shown(error);
    };
    match code(error) {
        Some((code, Some(name))) => format!("{} ({code})", shown(name)),
        Some((code, None)) => format!("code {code}"),
        None => match &*error.kind {
            ErrorKind::ServerSelection { message, .. } => shown(no_server(message)),
            kind => shown(before_quotes(&kind.to_string())),
        },
    }
}

/// Returns the server's code with its name.
fn code(error: &DriverError) -> Option<(i32, Option<&str>)> {
    if let ErrorKind::Write(WriteFailure::WriteConcernError(missing)) = &*error.kind {
        let name = Some(&*missing.code_name).filter(|name| !name.is_empty());
        return Some((missing.code, name));
    }
    let code = failure::code(error)?;
    // For errors of single writes the server seldom sends it.
    let known = || match code {
        121 => Some("DocumentValidationFailure"),
        10334 => Some("BSONObjectTooLarge"),
        11000 => Some("DuplicateKey"),
        _ => None,
    };
    Some((code, failure::code_name(error).or_else(known)))
}

/// Returns the server's own text about a refused command, as far as it quotes nothing.
pub(super) fn message(error: &DriverError) -> Option<&str> {
    let message = match &*error.kind {
        ErrorKind::Command(command) => &command.message,
        ErrorKind::Write(WriteFailure::WriteError(write)) => &write.message,
        _ => return None,
    };
    Some(before_quotes(message)).filter(|message| !message.is_empty())
}

/// Returns the part of the driver's text that quotes nothing, without the labels that end the text of an error in it.
fn before_quotes(text: &str) -> &str {
    let text = text.split('{').next().unwrap_or_default();
    let text = text.split(", labels").next().unwrap_or_default();
    text.trim_end_matches([' ', ':', '(', '[', '"'])
}

/// Shortens the driver's message that no server is fit for an operation: it describes all servers that it knows. The
/// first error of one of them speaks for all, or one that has said nothing so far.
fn no_server(message: &str) -> String {
    let (found, topology) = message.split_once(". Topology: ").unwrap_or((message, ""));
    let servers = topology.split("{ Address: ").skip(1);
    let mut servers = servers.filter_map(|server| server.split_once(", "));
    let silent = servers.clone().find(|(_, rest)| rest.starts_with("Type: Unknown"));
    let failed = servers.find_map(|(address, rest)| {
        let (_, error) = rest.split_once("Error: Kind: ")?;
        Some((address, error.split(", labels: ").next()?))
    });
    let found = before_quotes(found);
    match (failed, silent) {
        (Some((address, error)), _) => format!("{found}: {address}: {}", before_quotes(error)),
        (None, Some((address, _))) => format!("{found}: {address} has not answered"),
        (None, None) => found.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_text_of_the_driver_is_told_without_what_surrounds_it() {
        let driver = DriverError::from(io::Error::other("connection reset"));
        assert!(driver.to_string().contains("server response"), "{driver}");
        assert_eq!(cause(&driver), "I/O error: connection reset");
        assert_eq!(cause(&io::Error::other("no answer")), "no answer");
    }

    #[test]
    fn of_the_servers_that_are_not_found_the_first_error_is_told() {
        let message = "Server selection timeout: No available servers. Topology: { Type: Unknown, Servers: [ { Address: a:1, \
                       Type: Unknown, Error: Kind: I/O error: Connection refused (os error 111), labels: {}, source: None, \
                       server response: None }, { Address: b:1, Type: Unknown } ] }";
        assert_eq!(
            no_server(message),
            "Server selection timeout: No available servers: a:1: I/O error: Connection refused (os error 111)"
        );
        let signed = message.replace("refused (os", "{ signature: 5 } (os");
        assert!(no_server(&signed).ends_with("a:1: I/O error: Connection"), "{signed}");
        assert_eq!(no_server("anything { else"), "anything");
        // Connecting takes longer than the time for it; or there are servers, and none of them is the primary.
        let silent = "No available servers. Topology: { Type: Unknown, Servers: [ { Address: a:1, Type: Unknown } ] }";
        assert_eq!(no_server(silent), "No available servers: a:1 has not answered");
        let secondary = silent.replace("a:1, Type: Unknown", "a:1, Type: RsSecondary");
        assert_eq!(no_server(&secondary), "No available servers");
    }
}
