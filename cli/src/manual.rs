//! Manual pages, generated from the definition of the command line.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::CommandFactory as _;

use crate::{
    arguments::Arguments,
    exit::{Failure, Outcome},
};

pub(crate) fn page(command: Option<&str>) -> Outcome {
    let mut whole = Arguments::command();
    // Passes the options for the connection on to the commands.
    whole.build();
    let described = match command {
        None => whole,
        Some(name) => {
            let known: Vec<_> = whole
                .get_subcommands()
                .map(|known| known.get_name().to_owned())
                .collect();
            let found = whole.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                let (name, known) = (name.escape_debug(), known.join(", "));
                Failure::usage(format!(
                    "`{name}` is not a command of watchlock; the commands are {known}"
                ))
            })?
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(described).render(&mut page)?;
    io::stdout().lock().write_all(&page)?;
    Ok(ExitCode::SUCCESS)
}
