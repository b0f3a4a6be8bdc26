//! The pages of the guide, as a part of the API's documentation, and with the README as a description of the code.
//! `.ci/links` checks that their links lead to files; rustdoc checks links to items, and takes a relative path as it
//! is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::common::users::LEAST;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the pages of the guide, by their paths within `docs`.
fn pages() -> BTreeSet<String> {
    let (mut folders, mut found) = (vec![PathBuf::from("docs")], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.insert(path.strip_prefix("docs").unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    assert!(found.remove("SUMMARY.md"));
    found
}

/// Returns the text outside of code blocks, where nothing is a link.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the targets of `[text](target)`.
fn inline_targets(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// Returns the definitions by `[name]: target` at the beginning of a line.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.collect()
}

/// Returns the anchors of the headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Returns the path of a module's page within `docs`.
fn page_of(module: &str) -> String {
    let page = module.strip_prefix("crate::").unwrap();
    let page = page.strip_prefix("guide::").unwrap_or(page);
    format!("{}.md", page.replace("::", "/").replace('_', "-"))
}

#[test]
fn links_lead_somewhere_in_the_documentation_of_the_api() {
    let modules = read("src/guide/links.md");
    let modules: BTreeMap<_, _> = definitions(&modules).into_iter().collect();
    for page in pages().into_iter().map(|page| format!("docs/{page}")) {
        let text = prose(&read(&page));
        let anchors = anchors(&text);
        for target in inline_targets(&text) {
            let anchored = target.strip_prefix('#').is_some_and(|anchor| anchors.contains(anchor));
            let elsewhere = target.starts_with("https://") || target.starts_with("crate::");
            assert!(anchored || elsewhere, "{page} links to {target}");
        }
        for (name, target) in definitions(&text) {
            assert_eq!(name, target, "{page}: a name is the path, so that it has one module");
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = root().join(&page).with_file_name("").join(path);
            let file = file
                .canonicalize()
                .unwrap_or_else(|_| panic!("{page} links to {target}"));
            // In the API's documentation there is no such file, but the heading is the same.
            let module = modules.get(name);
            let module = module.unwrap_or_else(|| panic!("src/guide/links.md has no module for [{name}] of {page}"));
            let (module, heading) = module.split_once('#').unwrap_or((module, ""));
            assert_eq!(anchor, heading, "{page}: [{name}]");
            let of_module = root().join("docs").join(page_of(module)).canonicalize().unwrap();
            assert_eq!(file, of_module, "{page}: [{name}] is another page than {module}");
        }
    }
}

#[test]
fn every_page_is_a_module_whose_examples_are_compiled() {
    let included = read("src/guide.rs") + &read("src/lib.rs");
    for page in pages() {
        let name = Path::new(&page)
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .replace('-', "_");
        let by_macro = included.contains(&format!("{name}: \"{page}\","));
        let by_itself = included.contains(&format!("include_str!(\"../docs/{page}\")"));
        assert!(by_macro || by_itself, "no module includes docs/{page}");
        for block in read(format!("docs/{page}"))
            .lines()
            .filter(|line| line.starts_with("```"))
        {
            let is_recipe = recipes().iter().any(|(shown_by, _)| *shown_by == page);
            assert!(
                !block.contains("ignore") || is_recipe,
                "docs/{page} has an example that is not compiled"
            );
        }
    }
}

/// Returns the recipes, which are compiled and run as a crate of their own: the page that shows each, and its code. Those
/// of a migration are shown by its page.
fn recipes() -> Vec<(String, String)> {
    let files = fs::read_dir(root().join("recipes/src")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let recipes = names.filter(|name| name != "lib.rs").map(|name| {
        let page = format!("{}.md", name.strip_suffix(".rs").unwrap().replace('_', "-"));
        let folders = ["recipes", "migrating"].map(|folder| format!("{folder}/{page}"));
        let page = folders.into_iter().find(|page| root().join("docs").join(page).exists());
        let page = page.unwrap_or_else(|| panic!("no page shows {name}"));
        let code = read(format!("recipes/src/{name}"));
        // The page has its own introduction.
        let (_, code) = code.split_once("\n\n").unwrap();
        (page, code.to_owned())
    });
    recipes.collect()
}

#[test]
fn the_pages_of_recipes_show_the_code_that_runs() {
    let recipes = recipes();
    assert!(recipes.len() >= 5, "{recipes:?}");
    for (page, code) in recipes {
        let text = read(format!("docs/{page}"));
        let shown: Vec<_> = text.split("```rust,ignore\n").skip(1).collect();
        let [shown] = shown[..] else {
            panic!("docs/{page} shows {} recipes", shown.len());
        };
        let (shown, _) = shown.split_once("```").unwrap();
        assert_eq!(shown, code, "docs/{page} differs from its recipe");
        // About a page.
        let lines = code.lines().count();
        assert!((20..=75).contains(&lines), "docs/{page} has {lines} lines of code");
    }
}

/// Returns the text of all sources in a folder; what is built or hidden is left out.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.fold(String::new(), |text, entry| {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            text + &sources(&path)
        } else if name.ends_with(".rs") {
            text + &fs::read_to_string(&path).unwrap()
        } else {
            text
        }
    })
}

#[test]
fn every_test_that_a_guarantee_names_exists() {
    let code = sources(root());
    let page = read("docs/why-it-holds.md");
    let in_backticks = page.split('`').skip(1).step_by(2);
    let is_sentence = |name: &&str| {
        let is_name = name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        is_name && !name.starts_with('_') && name.matches('_').count() > 1
    };
    let names: BTreeSet<_> = in_backticks.filter(is_sentence).collect();
    assert!(names.contains("a_renewal_never_shortens"), "{names:?}");
    let functions = code.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
    let functions: BTreeSet<_> = functions.map(|(name, _)| name).collect();
    for name in names {
        assert!(functions.contains(name), "nothing is named {name}");
    }
}

#[test]
fn links_are_seen() {
    let text = "# A b, c\n[d](#a-b-c) [e](f.md)\n```\n[g](h)\n```\n[i]: j.md";
    let text = prose(text);
    assert_eq!(inline_targets(&text), ["#a-b-c", "f.md"]);
    assert_eq!(definitions(&text), [("i", "j.md")]);
    assert!(anchors(&text).contains("a-b-c"));
}

#[test]
fn the_minimum_role_is_the_one_that_the_tests_use() {
    let page = read("docs/privileges.md");
    let (_, actions) = page.split_once("actions: [").unwrap();
    let (actions, _) = actions.split_once(']').unwrap();
    let actions: Vec<_> = actions.split(", ").map(|action| action.trim_matches('"')).collect();
    assert_eq!(actions, [&LEAST[..], &["createIndex"]].concat());
}

#[test]
fn the_command_of_the_readme_is_the_one_that_ci_runs() {
    const COMMAND: &str = "cargo test --workspace";
    assert!(read("README.md").lines().any(|line| line == COMMAND));
    assert!(
        read(".ci/run")
            .lines()
            .any(|line| line.starts_with(&format!("step {COMMAND} ")))
    );
    // Else it would take no more of the proofs than a daily run.
    assert!(
        read(".ci/run")
            .lines()
            .any(|line| line == "export WATCHLOCK_PROOFS=whole")
    );
    for proof in ["model/src/tests.rs", "proofs/src/lib.rs"] {
        assert!(read(proof).contains(r#"var("WATCHLOCK_PROOFS")"#), "{proof}");
    }
}
