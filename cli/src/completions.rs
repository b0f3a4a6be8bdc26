//! Completions for shells, generated from the definition of the command line, and of the names of locks.
//!
//! The generated scripts know the commands and options. The parts added here complete the names: they call this program
//! again, as [`NAMES`], which prints the names that begin with the typed text. Other people have written these names,
//! so the scripts hand them to the shell as they are, and nothing ever evaluates them.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use clap::Parser as _;
use clap_complete::Shell;
use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};
use tokio::time::timeout;

use crate::{
    arguments::{Arguments, COMPLETED, definition},
    connection::to_its_end,
    exit::{Failure, Outcome},
    text::is_obeyed,
};

/// The word by which the scripts ask for names; the beginning of the name follows. People use the command `ls` instead.
pub(crate) const NAMES: &str = "__names";

/// Limit for the wait of a user who has pressed a key. Without an answer there are no names.
const PATIENCE: Duration = Duration::from_secs(1);

/// Limits the names: a longer list is of no use to somebody who types one.
const NAMES_MOST: i64 = 200;

pub(crate) fn completions(shell: Shell) -> Outcome {
    // Into memory first, as the generator panics if it can't write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut definition(), "watchlock", &mut script);
    let script = String::from_utf8(script).map_err(|error| Failure::internal(format!("not UTF-8: {error}")))?;
    let script = match shell {
        Shell::Bash => script + &with_names(include_str!("completions/names.bash")),
        Shell::Fish => script + &with_names(include_str!("completions/names.fish")),
        Shell::Zsh => zsh(&script),
        _ => script,
    };
    io::stdout().lock().write_all(script.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Fills the definition of the command line into a part of a script: the commands that take a name, and the options
/// that take a value.
fn with_names(part: &str) -> String {
    let mut whole = definition();
    whole.build();
    let commands = whole
        .get_subcommands()
        .filter(|command| COMPLETED.contains(&command.get_name()));
    let commands: Vec<&clap::Command> = commands.collect();
    let mut valued = BTreeSet::new();
    for argument in commands.iter().flat_map(|command| command.get_arguments()) {
        if argument.get_action().takes_values() {
            valued.extend(argument.get_long().map(|long| format!("--{long}")));
            valued.extend(argument.get_short().map(|short| format!("-{short}")));
        }
    }
    let valued: Vec<&str> = valued.iter().map(String::as_str).collect();
    part.replace("@COMMANDS@", &COMPLETED.join(" "))
        .replace("@VALUED@", &valued.join(" "))
}

/// Has the script of zsh complete names with a function of its own.
fn zsh(script: &str) -> String {
    let lines = script.lines().map(|line| {
        let of_name = ["':name -- ", "'::name -- "]
            .iter()
            .any(|start| line.starts_with(start));
        match line.strip_suffix(":_default' \\") {
            Some(start) if of_name => format!("{start}:_watchlock_names' \\\n"),
            _ => format!("{line}\n"),
        }
    });
    let script: String = lines.collect();
    // The first line tells zsh whose completion it is.
    let (first, rest) = script.split_once('\n').unwrap_or((&script, ""));
    format!("{first}\n\n{}{rest}", include_str!("completions/names.zsh"))
}

/// Prints the names of locks that begin with the next word. It prints no errors, as the user is typing.
pub(crate) fn names(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let prefix = words.next().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let (Some(prefix), Ok(runtime)) = (prefix.to_str(), runtime) {
        let found = runtime.block_on(async { timeout(PATIENCE, find(prefix.to_owned())).await });
        if let Ok(Some(names)) = found {
            // Nobody may be there to read it.
            let _ = io::stdout().lock().write_all(names.as_bytes());
        }
        runtime.shutdown_background();
    }
    ExitCode::SUCCESS
}

async fn find(prefix: String) -> Option<String> {
    // The environment has the connection.
    let Arguments { connection, .. } = Arguments::try_parse_from(["watchlock", "ls"]).ok()?;
    let place = connection.within(PATIENCE).await.ok()?;
    let finding = async move {
        let locks = place.database.collection::<Document>(&place.collection);
        // Only the index is read.
        let names = doc! { "_id": { "$gte": &prefix, "$lte": format!("{prefix}\u{10ffff}") } };
        let find = locks.find(names).projection(doc! { "_id": 1 }).sort(doc! { "_id": 1 });
        let found = find.limit(NAMES_MOST).max_time(PATIENCE).await?;
        found.try_collect::<Vec<Document>>().await
    };
    let found = to_its_end(finding).await.ok()?.ok()?;
    let names = found.into_iter().filter_map(|mut lock| match lock.remove("_id") {
        // A shell could not show any other name, or take it in one line.
        Some(Bson::String(name)) if !name.chars().any(is_obeyed) => Some(name + "\n"),
        _ => None,
    });
    Some(names.collect())
}
