//! The end of the program: its exit codes, and its messages when it fails.

use std::{
    fmt::{Display, Write as _},
    io::{self, ErrorKind},
    process::ExitCode,
};

use mongodb::error::Error as DriverError;
use rustix::process::Signal;
use watchlock::errors::{AcquireError, BuildError, OperateError, ServerError, ServerErrorKind};

use crate::{
    json, messages,
    text::{plain, wrapped},
};

/// The command line, or a value in it, is wrong. The numbers are those of sysexits.h, as small numbers belong to the
/// command that is run.
pub(crate) const USAGE: u8 = 64;
/// Nothing is known of a promise, as the server was too slow. It is only of `verify`, which runs no command.
pub(crate) const INCONCLUSIVE: u8 = 2;
/// The document under the name is not the requested lock: it is another kind of lock, or not a lock.
pub(crate) const DATA: u8 = 65;
/// The server can't be reached, or it refuses.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The machine refuses: no process or thread can be started. Or this program has a bug.
pub(crate) const INTERNAL: u8 = 70;
/// The job was done in this period already.
pub(crate) const RAN_ALREADY: u8 = 74;
/// The lock was not free in time.
pub(crate) const NOT_OBTAINED: u8 = 75;
/// The lock was lost while the command ran.
pub(crate) const LOST: u8 = 76;
/// The user of the connection lacks a privilege, or is unknown.
pub(crate) const NOT_PERMITTED: u8 = 77;
/// The command exists but can't be started.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command.
pub(crate) const SIGNALLED: u8 = 128;

/// The exit codes, the commands that have them, and their meaning there. The guide's page has the same table, and a test
/// plays a scene for each of its rows.
const CODES: &str = "\
0 | all | done
1 | show, permits | there is no trace of the lock
1 | break | nobody holds the lock, or it was not confirmed
1 | renew, release | the lock is not held under this token any more
1 | observe | nobody leads (--once)
1 | doctor | it found a problem
1 | verify | a promise was broken
2 | verify | a check took too long, and so did the server: nothing is known of that promise
64 | all | the command line or a value in it is wrong; nothing was sent
65 | all but ls, watch, doctor, verify, bench, completions, man | the name is in use as another kind of lock, or its \
document is not a lock
65 | wait, show, watch, break | the name can be that of several documents (--documents)
69 | all but completions, man | the server can't be reached, does not answer or refuses
70 | all | the machine refuses: no process or thread can be started, no output be written; or watchlock has a bug
74 | run | the command was run in this period already (--once-per)
75 | run, elect, hold, acquire, wait | the lock was not free in time
75 | run | another run is in progress (--once-per)
76 | run, elect | the lock was lost while the command ran, so the command was terminated
76 | hold, acquire | the lock was lost
77 | all but completions, man | the user of the connection is unknown, or lacks a privilege
126 | run, elect | the command can't be executed
127 | run, elect | the command was not found
128+n | all | signal n ended the command that was run, or watchlock itself
";

/// Returns the exit codes of a command for people, at the end of its help and of its manual page; without a command,
/// those of all.
pub(crate) fn table(command: Option<&str>) -> String {
    let mut table = "Exit codes:\n".to_owned();
    for row in CODES.lines() {
        let mut cells = row.splitn(3, " | ");
        let [code, of, meaning] = [(); 3].map(|()| cells.next().unwrap_or_default());
        let is_one_of = |list: &str, command| list.split(", ").any(|name| name == command);
        let has = |command| match of.strip_prefix("all") {
            Some(but) => !is_one_of(but.trim_start_matches(" but "), command),
            None => is_one_of(of, command),
        };
        if command.is_some_and(|command| !has(command)) {
            continue;
        }
        let which = match command {
            None if !of.starts_with("all") => format!("{of}: "),
            _ => String::new(),
        };
        // Writing to a String can't fail.
        let _ = writeln!(table, "{code:>6}  {}", wrapped(&format!("{which}{meaning}"), 8));
    }
    if command.is_none_or(|command| ["run", "elect"].contains(&command)) {
        table += "\nOtherwise run and elect exit with the command's code.";
    }
    table
}

/// Returns the code of a program that a signal ended, as a shell reports it.
pub(crate) fn ended_by(signal: Signal) -> ExitCode {
    code_of(signal).into()
}

pub(crate) fn code_of(signal: Signal) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal.as_raw()).unwrap_or(0))
}

pub(crate) type Outcome = Result<ExitCode, Failure>;

/// The reason why the program ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    /// Whether the server answered, and would refuse again.
    refused: bool,
    /// `None`: nobody is there to read it.
    message: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self {
            code,
            refused: false,
            message: Some(message.to_string()),
        }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn internal(message: impl Display) -> Self {
        Self::new(INTERNAL, message)
    }

    pub(crate) fn lost(name: &str, why: impl Display) -> Self {
        Self::new(LOST, format!("`{}` is lost: {why}", plain(name)))
    }

    pub(crate) fn driver(error: &DriverError) -> Self {
        ServerError::from(error.clone()).into()
    }

    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }

    /// Removes the message, when it has already been printed.
    pub(crate) fn silenced(self) -> Self {
        Self { message: None, ..self }
    }

    /// Exits with another code if the lock was not obtained, and says nothing of it with `--quiet`: a skipped run is no
    /// error, and the code tells it.
    pub(crate) fn if_not_obtained(self, code: u8) -> Self {
        if self.code != NOT_OBTAINED {
            return self;
        }
        Self { code, ..self }.unless_quiet()
    }

    /// Removes the message with `--quiet`.
    pub(crate) fn unless_quiet(self) -> Self {
        if messages::is_quiet() { self.silenced() } else { self }
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// Reports whether nothing more can be found out: there is no server to work with, or not for this user.
    pub(crate) fn ends_a_run(&self) -> bool {
        self.is_unavailable() && !self.refused || self.code == NOT_PERMITTED
    }

    /// Appends to the message.
    pub(crate) fn and(self, more: &str) -> Self {
        let message = self.message.map(|message| format!("{message}; {more}"));
        Self { message, ..self }
    }

    pub(crate) fn report(self, as_json: bool) -> ExitCode {
        if let Some(message) = &self.message {
            messages::fail(message);
            if as_json {
                let (error, code) = (&message[..], self.code);
                // Nobody may be there to read it.
                let _ = json::print(&json::Failed { error, code });
            }
        }
        self.code.into()
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Self {
        let code = match error.kind() {
            ServerErrorKind::NotALock => DATA,
            ServerErrorKind::Unauthenticated | ServerErrorKind::Unauthorized(_) => NOT_PERMITTED,
            _ => UNAVAILABLE,
        };
        Self {
            refused: matches!(error.kind(), ServerErrorKind::Refused | ServerErrorKind::NotALock),
            ..Self::new(code, message(&error))
        }
    }
}

/// Describes the trouble in one line.
fn message(error: &ServerError) -> String {
    match error.kind() {
        ServerErrorKind::Unauthorized(_) => format!("{error}; see `watchlock doctor`"),
        _ => error.to_string(),
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Server(error) => error.into(),
            BuildError::Invalid(error) => Self::usage(error),
            error => Self {
                refused: true,
                ..Self::new(UNAVAILABLE, error)
            },
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Server(error) => error.into(),
            AcquireError::Invalid(error) => Self::usage(error),
            // The lock may have been free: to a script that differs from a lock that is taken.
            AcquireError::Unanswered { error: ref cause, .. } => {
                let code = cause.clone().map_or(UNAVAILABLE, |cause| Self::from(cause).code);
                Self::new(code, error)
            }
            AcquireError::Timeout { .. } | AcquireError::Held { .. } => Self::new(NOT_OBTAINED, error),
            AcquireError::KindMismatch(error) => Self::new(DATA, error),
            error => Self::internal(error),
        }
    }
}

impl From<OperateError> for Failure {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Server(error) => error.into(),
            OperateError::Invalid(error) => Self::usage(error),
            OperateError::KindMismatch(error) => Self::new(DATA, error),
            OperateError::TooMany { .. } => Self::new(UNAVAILABLE, error),
            error => Self::internal(error),
        }
    }
}

/// Exits with this code once the output is written: a reader that has read enough changes nothing about it.
pub(crate) fn after(written: io::Result<()>, code: ExitCode) -> Outcome {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(code),
    }
}

/// For errors of standard output, where the output is the whole purpose.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            // The reader has read enough.
            return Self {
                code: 0,
                refused: false,
                message: None,
            };
        }
        Self::internal(format!("the output can't be written: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_lists_its_own_codes_in_lines_that_fit() {
        for command in [None, Some("run"), Some("show"), Some("man")] {
            let table = table(command);
            assert!(table.lines().all(|line| line.len() <= 79), "{table}");
        }
        let (run, show) = (table(Some("run")), table(Some("show")));
        assert!(
            run.contains("126") && !run.contains("leads") && !run.contains("elect:"),
            "{run}"
        );
        assert!(
            show.contains("no trace") && !show.contains("75") && !show.contains("--once"),
            "{show}"
        );
        let guide = include_str!("../../docs/command-line.md").replace('`', "");
        let rows = guide.split_once("| code | commands | |\n|---|---|---|\n").unwrap().1;
        let rows: Vec<&str> = rows.lines().take_while(|line| !line.is_empty()).collect();
        let expected: Vec<String> = CODES.lines().map(|row| format!("| {row} |")).collect();
        assert_eq!(rows, expected);
    }
}
