//! Manual pages, and completions for shells, generated from the definition of the command line.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::{
    arguments::Arguments,
    exit::{Failure, Outcome},
};

/// Returns the whole command line, with the options for the connection passed on to the commands.
fn whole() -> Command {
    let mut whole = Arguments::command();
    whole.build();
    whole
}

/// Writes the pages of the program and of all its commands.
pub(crate) fn pages(folder: &Path) -> Outcome {
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(whole(), folder));
    written.map_err(|error| {
        let folder = folder.display();
        Failure::internal(format!("the pages can't be written into {folder}: {error}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn page(command: Option<&str>) -> Outcome {
    let whole = whole();
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

pub(crate) fn completions(shell: Shell) -> Outcome {
    // Into memory first, as the generator panics if it can't write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "watchlock", &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
