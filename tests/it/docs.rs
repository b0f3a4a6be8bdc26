//! The links of the README and of the pages beside it lead somewhere, on the file's own page and in the API's
//! documentation, of which they are a part. rustdoc checks links to items; it takes a relative path as it is.

use std::{collections::BTreeSet, fs, path::Path};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text outside of code blocks, where nothing is a link.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of `[text](target)`.
fn inline_targets(text: &str) -> Vec<&str> {
    let after = text.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// What is defined by `[name]: target` at the beginning of a line.
fn definitions(text: &str) -> Vec<(&str, &str)> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    lines.collect()
}

/// The anchors that headings get.
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

#[test]
fn links_lead_somewhere() {
    let library = read("src/lib.rs");
    for page in ["README.md", "docs/guarantees.md", "docs/observability.md"] {
        let text = prose(&read(page));
        let anchors = anchors(&text);
        for target in inline_targets(&text) {
            let anchored = target.strip_prefix('#').is_some_and(|anchor| anchors.contains(anchor));
            let elsewhere = target.starts_with("https://") || target.starts_with("crate::");
            assert!(anchored || elsewhere, "{page} links to {target}");
        }
        for (name, target) in definitions(&text) {
            assert!(
                Path::new(env!("CARGO_MANIFEST_DIR")).join(target).exists(),
                "{page} links to {target}"
            );
            assert!(text.contains(&format!("[{name}]")), "{page} does not use [{name}]");
            // On the front page of the API's documentation there is no such file.
            assert!(
                library.contains(&format!("[{name}]: crate::")),
                "src/lib.rs has no other target for [{name}]"
            );
        }
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
