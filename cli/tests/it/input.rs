//! Bad input: it is refused before anything is sent, with its value and its bound.

use std::time::Duration;

use crate::{bare, common::within, done};

/// Command lines, and words that the refusal has, with bars between them. `''` is an empty word, `N*100` one of a
/// hundred letters.
const REFUSED: &str = r"
run '' -- true                                          : 0 bytes | 1 to 1024
run N*1025 -- true                                      : 1025 bytes | 1 to 1024
show N*1025                                             : 1025 bytes | 1 to 1024
break --yes ''                                          : is empty | 1 to 1024
run x                                                   : COMMAND
run x --lease 1ms -- true                               : 1ms | 500ms
run x --lease 400days -- true                           : lease
run x --semaphore 2 --permits 3 -- true                 : 3 | 1 to 2
run x --at-least-for 400days -- true                    : 400d is longer than the longest accepted value, 366d
run x --warn-after 0s -- true                           : the warning limit
run x --and N*1025 -- true                              : 1025 bytes | 1 to 1024
run x --and y --semaphore 2 -- true                     : --and | --semaphore
run x --and y --and x -- true                           : `x` | more than once
run x --once-per 1month -- true                         : `month` has no fixed length
run x --once-per 1day --offset 1y -- true               : `y` has no fixed length
run x --once-per 1ms -- true                            : period of 1ms is shorter than 1s
run x --once-per 400days -- true                        : 400d is longer than the longest accepted value, 366d
run x --once-per 1h --offset 1h -- true                 : offset of 3600s
elect x --value N*1025 -- true                          : 1025 | 1024
acquire x --for 1ms                                     : 1ms
acquire x --for 400days                                 : 400d is longer than the longest accepted value, 366d
acquire '' --for 1m                                     : 0 bytes
release x --token 0                                     : 0
wait N*1025                                             : 1025 bytes | 1 to 1024
wait --documents o N*9000                               : 9005 bytes | 8192
observe ''                                              : 0 bytes | 1 to 1024
show --documents '' x                                   : 0 bytes | 1 to 254
show --documents orders N*9000                          : 9005 bytes | 8192
ls --documents N*255                                    : 255 bytes | 1 to 254
ls --documents a$b                                      : a$b | `$`
ls --documents orders --field a..b                      : `a..b` | empty name
ls --collection a$b                                     : a$b | `$`
ls --database a.b                                       : a.b | contains
watch --documents orders --field _id.x                  : `_id.x`
watch --documents orders {$gt:5}                        : extended JSON
break --yes --documents orders {x                       : `{x` | extended JSON
man frobnicate                                          : frobnicate | doctor
";

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_before_anything_is_sent() {
    for line in REFUSED.trim().lines() {
        let (words, told) = line.split_once(" : ").unwrap();
        let words = words.split_whitespace().map(|word| match word.strip_prefix("N*") {
            Some(length) => "n".repeat(length.parse().unwrap()),
            None if word == "''" => String::new(),
            None => word.to_owned(),
        });
        let mut program = bare();
        program.env("MONGODB_URI", "mongodb://127.0.0.1:9/app").args(words);
        // Nobody listens there.
        let refused = within(Duration::from_secs(1), line, done(&mut program))
            .await
            .expect(64);
        assert!(refused.out.is_empty(), "{line}: {refused:?}");
        for part in told.split(" | ") {
            assert!(refused.err.contains(part), "{line}: {part} is not in {}", refused.err);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_named_as_it_must_be_is_refused() {
    for (uri, words, told) in [
        ("mongodb://127.0.0.1:9/app", &[][..], "Usage"),
        ("mongodb://localhost:27017", &["ls"], "--database"),
        ("localhost", &["ls"], "scheme"),
        (
            "mongodb://127.0.0.1:9/app",
            &["watch", "--documents", "orders", r#"{"$gt": 5}"#],
            "operators",
        ),
    ] {
        let refused = done(bare().env("MONGODB_URI", uri).args(words)).await.expect(64);
        assert!(refused.out.is_empty() && refused.err.contains(told), "{refused:?}");
    }
}
