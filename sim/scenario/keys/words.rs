//! What the table of keys says of a key, in words: for `docs/keys.md` and for `windtunnel explain`.

use std::collections::{BTreeMap, BTreeSet};

use super::super::entry::Runtime;
use super::row::{Choice, Key, Kind, Table, instead};

impl Kind {
    /// The type in a word.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Count(_) => "count",
            Kind::Flag => "flag",
            Kind::Number => "number",
            Kind::Text => "text",
            Kind::Quantity(_) => "quantity",
            Kind::Choice(_) => "choice",
            Kind::List(_) => "list",
            Kind::Other(_) => "other",
        }
    }

    /// The values and bounds, in Markdown; empty where the type says all.
    pub fn values(self) -> String {
        match self {
            Kind::Count(None) | Kind::Number | Kind::Text | Kind::List([]) => String::new(),
            Kind::Count(Some((least, i64::MAX))) => format!("{least} or more"),
            Kind::Count(Some((least, most))) => format!("{least} to {most}"),
            Kind::Flag => "`true`, `false`".to_owned(),
            Kind::Quantity(example) => format!("such as `\"{example}\"`"),
            Kind::Choice(choices) => {
                let form = |choice: &Choice| match choice {
                    Choice::Word(word) => format!("`\"{word}\"`"),
                    Choice::With(word, what) => format!("`{{ {word} = {what} }}`"),
                };
                choices.iter().map(form).collect::<Vec<_>>().join(", ")
            }
            Kind::List(words) => {
                format!("of {}", words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "))
            }
            Kind::Other(words) => words.to_owned(),
        }
    }
}

/// What a key says, without its name where the text begins with that, as it does where a framework calls it the same.
pub fn about(key: &Key) -> String {
    let own = key.path.rsplit('.').next().unwrap_or(key.path);
    let rest = key.help.strip_prefix(&format!("`{own}`: ")).unwrap_or(key.help);
    let mut letters = rest.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Frameworks in words: all, or those that are fewer to name.
pub fn frameworks(names: &[&str]) -> String {
    match Runtime::ALL.len() - names.len() {
        0 => "all".to_owned(),
        1..=3 => {
            let others = Runtime::ALL.map(Runtime::written).into_iter().filter(|name| !names.contains(name));
            format!("all but {}", others.collect::<Vec<_>>().join(", "))
        }
        _ => names.join(", "),
    }
}

/// A default's value in Markdown.
pub fn value(value: &str) -> String {
    match value {
        "by size" => "by size".to_owned(),
        value => value.split(" or ").map(|one| format!("`{one}`")).collect::<Vec<_>>().join(" or "),
    }
}

/// All defaults of a key in Markdown, with the frameworks that have them where they differ.
pub fn defaults(key: &Key) -> String {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for preset in key.defaults {
        all.entry(preset.value).or_default().extend(preset.frameworks);
    }
    let each = |(one, names): (&&str, &BTreeSet<&str>)| {
        format!("{} ({})", value(one), names.iter().copied().collect::<Vec<_>>().join(", "))
    };
    match all.len() {
        1 => all.keys().map(|one| value(one)).collect(),
        _ => all.iter().map(each).collect::<Vec<_>>().join("; "),
    }
}

/// What to write under the frameworks that do not read a key, those told together that are told the same.
pub fn elsewhere(table: &Table, key: &Key) -> Vec<(Vec<&'static str>, &'static str)> {
    let mut all: Vec<(Vec<&str>, &str)> = vec![];
    let others = Runtime::ALL.map(Runtime::written).into_iter().filter(|name| !key.is_read_by(name));
    for framework in others {
        let of_table = || instead(table.instead, framework);
        let whole = match table.is_read_by(framework) {
            true => instead(key.instead, framework).or_else(of_table).unwrap_or("remove the key"),
            false => of_table().unwrap_or("remove the table"),
        };
        match all.iter_mut().find(|(_, words)| *words == whole) {
            Some((frameworks, _)) => frameworks.push(framework),
            None => all.push((vec![framework], whole)),
        }
    }
    all
}
