//! What the TOML parser says of a scenario, in the user's words: what was expected, what was found, what to try.

use std::ops::Range;

use crate::near::nearest;

/// What stands in the tables that every scenario has.
const EXAMPLES: [(&str, &str); 5] = [
    ("runtime", "runtime = \"fsdp2\""),
    ("topology", "[topology] with name = \"h100-sxm-80gb\""),
    ("model", "[model] with name = \"llama-3.1-8b\""),
    ("mesh", "[mesh] with dp_shard = 8"),
    ("batch", "[batch] with sequence = 8192 and micro = 1"),
];

/// Rewrites a parser's message about the text at `span`; words it does not know stay as they are.
pub(super) fn words(message: &str, text: &str, span: Range<usize>) -> String {
    let message = message.trim();
    let found = text.get(span).unwrap_or_default().lines().next().unwrap_or_default().trim();
    let expected = message.split_once(", expected ").map(|(_, expected)| expected);
    if let Some(key) = message.strip_prefix("missing field ") {
        let example = EXAMPLES.iter().find(|(table, _)| key == format!("`{table}`"));
        let example = example.map_or("add it".to_owned(), |(_, example)| format!("add it, such as {example}"));
        return format!("the key {key} is missing: {example}");
    }
    match (message, expected) {
        _ if found.starts_with("[[") && message.starts_with("invalid type") => {
            format!("there is one such table only: write {}", found.replace("[[", "[").replace("]]", "]"))
        }
        _ if message.starts_with("unknown field ") => {
            named("there is no key", message, expected.unwrap_or("none at all"))
        }
        _ if message.starts_with("unknown variant ") => {
            named("there is no choice", message, expected.unwrap_or("none at all"))
        }
        (_, Some("i64")) if found.parse::<i128>().is_ok() => {
            format!("{found} is too large for a count: write a smaller one")
        }
        (_, Some("i64")) => format!("expected a whole number, found {found}"),
        (_, Some("a boolean")) => format!("expected true or false, found {found}"),
        (_, Some("a string")) => format!("expected text in quotes, found {found}"),
        (_, Some("a tuple of size 2")) => format!("expected two numbers, found {found}"),
        (_, Some("newtype variant")) => {
            format!("{found} takes a value: write {{ {} = … }}", found.trim_matches(['"', '\'']))
        }
        (_, Some(what)) if message.starts_with("invalid type") => {
            let what = if what.starts_with("struct ") { "a table of keys" } else { what };
            format!("expected {what}, found {found}")
        }
        ("wanted exactly 1 element, more than 1 element", _) => {
            format!("{found} makes several choices, and there is one to make: write one of them")
        }
        ("wanted string or table", _) => format!("expected one of the choices in quotes, or a table, found {found}"),
        ("invalid boolean, expected `false`" | "invalid boolean, expected `true`", _) => {
            format!("expected a value, found {}: text stands in quotes", first_word(found))
        }
        _ => message.to_owned(),
    }
}

/// A framework's own word for a choice, one of the choices that it is written as here, and how.
const MEANT: [(&str, &str, &str); 2] = [
    ("full", "`uniform`", "{ uniform = 1 } is all blocks, each for itself, and { block = 8 } eight of each stage"),
    ("selective", "`core_attn`", "\"core_attn\" is the attention core, and recompute_modules names other parts"),
];

fn first_word(found: &str) -> &str {
    found.split_whitespace().next().unwrap_or("a bare word")
}

/// `unknown field `x`, expected `y` or `z`` → `there is no key `x` here (did you mean `y`?): expected `y` or `z``.
fn named(what: &str, message: &str, expected: &str) -> String {
    let name = message.split('`').nth(1).unwrap_or_default();
    let near = nearest(name, expected.split('`').skip(1).step_by(2));
    let hint = near.map_or(String::new(), |known| format!(" (did you mean `{known}`?)"));
    let meant = MEANT.iter().find(|(word, choice, _)| *word == name && expected.contains(choice));
    let meant = meant.map_or_else(String::new, |(.., how)| format!("; {how}"));
    format!("{what} `{name}` here{hint}: expected {expected}{meant}")
}
