//! The abilities of the terminal at an output of this program.

use std::{
    env,
    io::{self, BufRead as _, Write as _},
    os::fd::AsFd,
};

use rustix::termios::{isatty, tcgetwinsize};

use crate::exit::Failure;

/// Asks a question on standard error, and returns whether the answer is yes.
pub(crate) fn confirms(question: &str) -> Result<bool, Failure> {
    let mut err = io::stderr().lock();
    // If nobody reads the question, nobody answers it.
    let _ = err.write_all(question.as_bytes());
    let _ = err.flush();
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::internal(format!("the answer can't be read: {error}")))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Returns whether the output is a terminal that obeys escape sequences. A terminal without a name may show them.
pub(crate) fn can_draw(output: impl AsFd) -> bool {
    isatty(output) && !env::var_os("TERM").is_none_or(|terminal| terminal.is_empty() || terminal == "dumb")
}

/// Returns the number of columns, if the output is a terminal that says so.
pub(crate) fn columns(output: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(output).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
