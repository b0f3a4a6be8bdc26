//! Hostile text for every place that takes text from the user.

/// Text that is something else to somebody: an operator, a path, a separator of the protocol, a command to a terminal.
pub(crate) fn hostile() -> Vec<String> {
    let texts = [
        "$$ROOT",
        "$$NOW",
        "$set",
        "$",
        "a.b",
        ".",
        "a..b",
        "_id",
        "0",
        "holders.0.until",
        "\0",
        "a\0b",
        " ",
        "\n",
        "{$gt: \"\"}",
        "{ \"$where\": \"sleep(1000)\" }",
        "op.1:h;me-1+7;",
        "…~;|,-",
        ";-+!~:",
        "'; db.dropDatabase(); //",
        "../../admin",
        "🔒",
        "e\u{301}",
        "\u{202e}abc",
        "שלום",
        "\u{1b}[2J",
        "\u{9b}31m",
        "%s%n",
    ];
    let mut all: Vec<String> = texts.map(str::to_owned).into();
    all.push("x".repeat(1024));
    all.push("$".repeat(1024));
    all.push("🔒".repeat(256));
    all
}
