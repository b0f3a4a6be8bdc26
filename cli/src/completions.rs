//! Completions for shells, generated from the definition of the command line.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{arguments::Arguments, exit::Outcome};

pub(crate) fn completions(shell: Shell) -> Outcome {
    // Into memory first, as the generator panics if it can't write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "watchlock", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
