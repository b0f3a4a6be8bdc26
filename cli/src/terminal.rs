//! The abilities of the terminal at an output of this program.

use std::{env, os::fd::AsFd};

use rustix::termios::{isatty, tcgetwinsize};

/// Returns whether the output is a terminal that obeys escape sequences. A terminal without a name may show them.
pub(crate) fn can_draw(output: impl AsFd) -> bool {
    isatty(output) && !env::var_os("TERM").is_none_or(|terminal| terminal.is_empty() || terminal == "dumb")
}

/// Returns the number of columns, if the output is a terminal that says so.
pub(crate) fn columns(output: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(output).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}
