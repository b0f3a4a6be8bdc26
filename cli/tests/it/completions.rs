//! The completions of the names of locks.

use std::time::Instant;

use crate::{
    Done, bare,
    common::{Ground, PATIENCE},
    done, started_by,
};

/// Returns the program `bash`, with the program in its path and the completions loaded, which completes a line.
async fn completed(program: &tokio::process::Command, line: &str) -> Done {
    let script = done(bare().args(["completions", "bash"])).await.expect(0).out;
    let complete = r#"
        eval "$1"
        PATH=$(dirname "$3"):$PATH
        COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=9
        # As bash splits it.
        read -ra COMP_WORDS <<< "${COMP_LINE//:/ : }"
        [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _watchlock_with_names watchlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        for word in "${COMPREPLY[@]}"; do printf '%s\n' "$word"; done"#;
    done(&mut started_by(
        "bash",
        &["-c", complete, "bash", &script, line],
        program,
    ))
    .await
}

/// Returns what a line is completed to. There are no names where the server took longer than somebody who types would
/// wait; on a busy machine that is asked again.
async fn named(program: &tokio::process::Command, line: &str, has_names: bool) -> Done {
    let begun = Instant::now();
    loop {
        let words = completed(program, line).await.expect(0);
        let found = words.out.lines().any(|word| !word.starts_with('-'));
        if found || !has_names || begun.elapsed() > PATIENCE {
            return words;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_completes_the_names_of_locks_and_evaluates_none() {
    let ground = Ground::replica_set("cli_names").await;
    let locks = ground.locks().await;
    let hostile = format!("job $(touch {0}) `touch {0}`", ground.database);
    for name in [
        "invoice-1",
        "invoice-2",
        "nightly",
        "a:b",
        "a:c",
        &hostile,
        "job\u{1b}[2J",
    ] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
    let program = crate::program(&ground);
    for (line, names) in [
        ("watchlock show inv", &["invoice-1", "invoice-2"][..]),
        (
            "watchlock --collection distributed_locks run --try -t 5s --lease 1m n",
            &["nightly"],
        ),
        ("watchlock show a:", &["b", "c"]),
        ("watchlock show none", &[]),
        // The name is there already, and this is a command.
        ("watchlock run nightly inv", &[]),
        ("watchlock show --documents orders inv", &[]),
        ("watchlock ls inv", &[]),
    ] {
        let words = named(&program, line, !names.is_empty()).await;
        let found: Vec<&str> = words.out.lines().filter(|word| !word.starts_with('-')).collect();
        assert_eq!(found, names, "{line}: {words:?}");
        assert!(words.err.is_empty(), "{words:?}");
    }
    // Quoted for the shell, and never run.
    let words = named(&program, "watchlock break job", true).await;
    let quoted = words.out.trim_end();
    assert!(
        quoted.starts_with(r"job\ \$\(touch\ ") && quoted.lines().count() == 1,
        "{words:?}"
    );
    assert!(!std::path::Path::new(&ground.database).exists());

    // Options and commands are completed as before.
    let words = completed(&program, "watchlock show --js").await.expect(0);
    assert_eq!(words.out.trim_end(), "--json");
    let words = completed(&program, "watchlock do").await.expect(0);
    assert_eq!(words.out.trim_end(), "doctor");

    // Whatever is wrong, nobody hears of it while typing.
    for uri in ["mongodb://127.0.0.1:1/app", "nonsense"] {
        let mut program = bare();
        program.env("MONGODB_URI", uri);
        let words = completed(&program, "watchlock show inv").await.expect(0);
        assert!(words.out.is_empty() && words.err.is_empty(), "{words:?}");
    }
}

#[tokio::test]
async fn zsh_and_fish_ask_for_names_where_a_command_takes_one() {
    let zsh = done(bare().args(["completions", "zsh"])).await.expect(0).out;
    assert!(zsh.starts_with("#compdef watchlock\n"), "{zsh}");
    let asking = zsh.lines().filter(|line| line.contains(":_watchlock_names'"));
    // One for each command that takes a name.
    assert_eq!(asking.count(), 14, "{zsh}");
    assert!(zsh.contains("\n_watchlock_names() {"), "{zsh}");
    let fish = done(bare().args(["completions", "fish"])).await.expect(0).out;
    let commands = "run elect hold acquire lock unlock renew release wait observe show watch break permits";
    assert!(
        fish.contains(&format!("__fish_seen_subcommand_from {commands}\" ")),
        "{fish}"
    );
}
