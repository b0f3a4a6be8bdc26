//! The guide's page about the command line, compared with the program's help.

use std::collections::BTreeSet;

use crate::bare;

const PAGE: &str = include_str!("../../../docs/command-line.md");

/// Returns the lines after `heading`, up to the next empty line.
fn list<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let (_, after) = text.split_once(heading).unwrap_or_else(|| panic!("no {heading}"));
    after.trim_start().lines().take_while(|line| !line.trim().is_empty())
}

async fn help() -> String {
    let output = bare().arg("--help").output().await.unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_exit_codes_are_those_of_the_help() {
    let help = help().await;
    // Long lines are wrapped.
    let words = list(&help, "Exit codes:\n").filter_map(|line| line.split_whitespace().next());
    let codes = words
        .filter(|word| word.starts_with(char::is_numeric))
        .map(str::to_owned);
    let rows = list(PAGE, "| code | |\n|---|---|\n").filter_map(|row| row.split('|').nth(1));
    let documented = rows.flat_map(|codes| codes.split(',').map(|code| code.replace(' ', "")));
    assert_eq!(documented.collect::<BTreeSet<_>>(), codes.collect::<BTreeSet<_>>());
}

#[tokio::test]
async fn every_command_is_shown() {
    let help = help().await;
    let commands = list(&help, "Commands:\n").filter_map(|line| line.split_whitespace().next());
    let commands: Vec<_> = commands.filter(|command| *command != "help").collect();
    assert!(commands.contains(&"run"), "{commands:?}");
    for command in commands {
        assert!(PAGE.contains(&format!("\nwatchlock {command}")), "{command}");
    }
}
