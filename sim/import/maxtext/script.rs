//! What a file of MaxText's says: keys of a YAML configuration, or of the command of a script, and the compiler's flags.

use serde_json::Value;

use crate::import::error::ImportError;
use crate::import::importer::Request;
use crate::import::settings::Raw;
use crate::import::syntax::shell::{self, OPEN, Script, UNKNOWN, Word};
use crate::import::syntax::{overrides, yaml};

/// The configuration that a script's command names.
pub(super) const CONFIG: &str = "base_config";

/// Keys and flags of the compiler.
pub(super) struct Said {
    pub raw: Vec<Raw>,
    pub flags: Vec<String>,
    /// Whether the keys are words of a command, which MaxText lays over a model's own sizes, and not those of a file.
    pub is_command: bool,
}

/// Whether a line of a script starts a training.
pub(super) fn starts_training(line: &str) -> bool {
    line.contains("base.yml") && !line.contains(CONFIG)
}

/// Whether a text is a script and no YAML.
fn is_script(text: &str) -> bool {
    text.starts_with("#!") || text.lines().any(starts_training)
}

/// Reads a file, and the words beside it.
pub(super) fn read(request: &Request<'_>) -> Result<Said, ImportError> {
    let is_command = is_script(request.text);
    let mut raw = match is_command {
        true => of_script(request)?,
        false => yaml::read(request.file, request.text)?,
    };
    raw.extend(overrides::read(request.overrides));
    Ok(Said { raw, flags: flags(request.text), is_command })
}

/// Flags of XLA that stand anywhere in a text but in its comments.
fn flags(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(|line| line.split(|sign: char| sign.is_whitespace() || "\"'\\".contains(sign)));
    words.filter(|word| word.starts_with("--xla_")).map(|word| word.trim_start_matches('-').to_owned()).collect()
}

/// `key=value` words of the command that names `base.yml` or another configuration.
fn of_script(request: &Request<'_>) -> Result<Vec<Raw>, ImportError> {
    let script = shell::read(request.file, request.text)?;
    let words = match command(&script) {
        Some(words) => words,
        None => handed_over(request, &script)?,
    };
    let pairs = words.iter().filter_map(|word| Some((word, word.text.split_once('=')?)));
    let pairs = pairs.filter(|(_, (key, _))| !key.starts_with('-') && !key.is_empty());
    let mut raw: Vec<Raw> = pairs
        .map(|(word, (key, value))| {
            let value = if word.open { Value::from(OPEN) } else { overrides::scalar(value) };
            Raw { key: key.to_owned(), value, line: Some(word.line) }
        })
        .collect();
    let config = words.iter().find(|word| is_config(word));
    raw.extend(config.map(|word| Raw {
        key: CONFIG.to_owned(),
        value: Value::from(word.text.clone()),
        line: Some(word.line),
    }));
    Ok(raw)
}

fn is_config(word: &Word) -> bool {
    word.text.ends_with(".yml") && !word.text.contains(char::is_whitespace)
}

fn command(script: &Script) -> Option<Vec<Word>> {
    script.commands.iter().find(|words| words.iter().any(is_config)).cloned()
}

/// The command that a launcher such as xpk is given as one word (`--command="… train base.yml …"`).
fn handed_over(request: &Request<'_>, script: &Script) -> Result<Vec<Word>, ImportError> {
    let given = script.commands.iter().flatten().find(|word| word.text.contains(".yml "));
    let Some(given) = given else { return Ok(vec![]) };
    let inner = shell::read(request.file, &given.text)?;
    let words = command(&inner).unwrap_or_default();
    let placed = words.into_iter().map(|word| {
        let line = request.text.lines().position(|line| line.contains(&word.text)).map_or(given.line, |at| at + 1);
        Word { line, open: word.open || given.open && word.text.contains(UNKNOWN), ..word }
    });
    Ok(placed.collect())
}
