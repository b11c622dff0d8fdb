//! Files that no importer takes for its framework's.

use super::error::ImportError;
use super::importer::Importer;

/// What a file that none of `tried` knows looks like, and what each would know it by.
pub(super) fn nobody(file: &str, text: &str, tried: &[Importer]) -> ImportError {
    let tried: Vec<String> = tried.iter().map(|importer| format!("  {}: {}", importer.name, importer.marks)).collect();
    ImportError::Nobody { file: file.to_owned(), kind: kind(text), tried: tried.join("\n") }
}

/// Lines by which a text is told.
const FIRST: usize = 200;

/// What a text looks like, in words. Nothing is parsed: a text may be of any size.
fn kind(text: &str) -> &'static str {
    let lines = || text.lines().take(FIRST).filter(|line| !line.trim_start().starts_with('#'));
    let starts = |words: &[&str]| lines().any(|line| words.iter().any(|word| line.starts_with(word)));
    let word = |name: &str| {
        let letters = |c: char| c.is_alphanumeric() || "_-.\"'".contains(c);
        !name.trim().is_empty() && name.trim().chars().all(letters)
    };
    let sets = |sign: char| lines().any(|line| line.split_once(sign).is_some_and(|(name, _)| word(name)));
    if text.trim().is_empty() {
        "empty"
    } else if text.starts_with("#!") || starts(&["export ", "torchrun ", "python ", "python3 ", "srun "]) {
        "a shell script"
    } else if starts(&["import ", "from ", "def ", "class "]) {
        "Python, which is not run"
    } else if text.trim_start().starts_with(['{']) || text.trim_start().starts_with("[{") {
        "JSON"
    } else if sets('=') {
        "TOML"
    } else if sets(':') {
        "YAML"
    } else {
        "text of no format that is read"
    }
}

#[cfg(test)]
mod tests {
    use crate::import::{IMPORTERS, recognise};

    #[test]
    fn a_file_that_nobody_knows_gets_what_it_was_taken_for_and_what_each_framework_is_known_by() {
        for (text, kind) in [
            ("trainer:\n  steps: 10\n", "YAML"),
            ("#!/bin/bash\npython train.py --lr 1\n", "a shell script"),
            ("{\"steps\": 10}", "JSON"),
            ("import torch\n", "Python, which is not run"),
            ("steps = 10\n", "TOML"),
            ("", "empty"),
        ] {
            let error = recognise("a.cfg", text).expect_err(kind).to_string();
            assert!(error.starts_with(&format!("a.cfg is {kind}, and neither")), "{error}");
            assert!(IMPORTERS.iter().all(|known| error.contains(&format!("  {}: ", known.name))), "{error}");
        }
    }
}
