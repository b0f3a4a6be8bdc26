//! The guide's page about the command line, compared with the program's help.

use crate::{bare, done};

pub(super) const PAGE: &str = include_str!("../../../docs/command-line.md");

/// Returns the lines after `heading`, up to the next empty line.
pub(super) fn list<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let (_, after) = text.split_once(heading).unwrap_or_else(|| panic!("no {heading}"));
    after.trim_start().lines().take_while(|line| !line.trim().is_empty())
}

/// Returns the names of the commands, from the help.
pub(super) async fn commands() -> Vec<String> {
    let help = done(bare().arg("--help")).await.expect(0).out;
    let commands = list(&help, "Commands:\n").filter_map(|line| line.split_whitespace().next());
    let commands = commands.filter(|command| *command != "help");
    commands.map(str::to_owned).collect()
}

#[tokio::test]
async fn every_command_is_shown() {
    let commands = commands().await;
    assert!(commands.contains(&"run".to_owned()), "{commands:?}");
    for command in commands {
        assert!(PAGE.contains(&format!("\nwatchlock {command}")), "{command}");
    }
}
