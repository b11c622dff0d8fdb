//! Where Megatron-LM's arguments stand: in a launch script's command, in a list, or below `MODEL_ARGS`.

use serde_json::Value;

use crate::import::error::ImportError;
use crate::import::importer::Request;
use crate::import::settings::Raw;
use crate::import::syntax::overrides::{is_option, scalar};
use crate::import::syntax::shell::{self, Word};
use crate::import::syntax::yaml;

/// Text in place of what only a shell knows.
const OPEN: &str = "(only the shell knows)";

/// Arguments that nobody else has.
const MARKS: [&str; 3] = ["--num-layers", "--hidden-size", "--num-attention-heads"];

/// The table of a functional test's arguments.
const TEST: &str = "MODEL_ARGS";

/// The key of the program that is started.
pub const PROGRAM: &str = "program";

pub fn sniff(text: &str) -> bool {
    MARKS.iter().all(|mark| text.contains(mark))
        && (text.contains("-model-parallel-size") || text.contains("pretrain_"))
}

/// Arguments, and variables that a branch assigns.
pub fn read(request: &Request<'_>) -> Result<(Vec<Raw>, Vec<String>), ImportError> {
    let (mut raw, branches) =
        if request.text.lines().any(|line| line.strip_prefix(TEST).is_some_and(|rest| rest.starts_with(':'))) {
            (of_test(request)?, vec![])
        } else {
            of_script(request)?
        };
    let words = beside_the_file(request.overrides);
    let beside = list(&words).into_iter().map(|raw| Raw { line: None, ..raw });
    raw.extend(beside);
    Ok((raw, branches))
}

/// Words of the command line beside the file: `--key value` as Megatron has it, or `key=value` as every importer takes it.
fn beside_the_file(words: &[String]) -> Vec<Word> {
    let mut out: Vec<Word> = vec![];
    for word in words {
        let is_value = out.last().is_some_and(|before| is_option(&before.text) && !before.text.contains('='));
        let is_key = !is_value && !is_option(word) && word.contains('=');
        let text = if is_key { format!("--{word}") } else { word.clone() };
        out.push(Word { text, line: 0, open: false });
    }
    out
}

/// The key of an argument.
fn name(argument: &str) -> String {
    argument.trim_start_matches('-').replace('-', "_")
}

/// Arguments below `MODEL_ARGS`, and variables below `ENV_VARS`.
fn of_test(request: &Request<'_>) -> Result<Vec<Raw>, ImportError> {
    let all = yaml::read(request.file, request.text)?;
    let mut out = vec![];
    for Raw { key, value, line } in all {
        let argument = key.strip_prefix(TEST).and_then(|key| key.strip_prefix('.'));
        if let Some(key) = argument {
            let value = match value {
                // Of a path the name may be known, and the folder not.
                Value::String(text) if text.rsplit('/').next().is_some_and(|name| name.contains('$')) => {
                    Value::String(OPEN.to_owned())
                }
                // An argument of several words stands in one line.
                Value::String(text) if text.contains(' ') && !text.contains('[') => {
                    Value::Array(text.split_whitespace().map(scalar).collect())
                }
                value => value,
            };
            out.push(Raw { key: name(key), value, line });
        } else if let Some(variable) = key.strip_prefix("ENV_VARS.") {
            out.push(Raw { key: format!("env.{variable}"), value, line });
        }
    }
    Ok(out)
}

/// Arguments of the command that starts the training, or of the whole text if it is no more than a list.
fn of_script(request: &Request<'_>) -> Result<(Vec<Raw>, Vec<String>), ImportError> {
    let script = shell::read(request.file, request.text)?;
    let is_program = |word: &Word| word.text.ends_with(".py");
    let commands: Vec<Vec<Word>> = script.commands.iter().map(|words| opened(words)).collect();
    let starts =
        |words: &&Vec<Word>| words.iter().any(is_program) && words.iter().any(|word| word.text.starts_with("--"));
    let training =
        commands.iter().filter(starts).max_by_key(|words| words.iter().any(|word| word.text.contains("pretrain")));
    let mut out = vec![];
    match training {
        Some(words) => {
            let at = words.iter().rposition(is_program).unwrap_or(0);
            let (before, after) = words.split_at(at);
            let known = ["nnodes", "nproc_per_node"];
            out.extend(list(before).into_iter().filter(|raw| known.contains(&raw.key.as_str())));
            out.extend(after.first().map(|word| Raw {
                key: PROGRAM.to_owned(),
                value: Value::String(word.text.rsplit('/').next().unwrap_or(&word.text).to_owned()),
                line: Some(word.line),
            }));
            out.extend(list(after));
        }
        None => {
            let words: Vec<Word> = commands.into_iter().flatten().collect();
            out.extend(list(&words));
        }
    }
    if out.is_empty() {
        return Err(ImportError::Missing {
            file: request.file.to_owned(),
            key: "command with arguments".to_owned(),
            expected: "one that starts a Python program, or a list of arguments".to_owned(),
            remedy: "write the arguments alone into a file, such as --num-layers 32 --hidden-size 4096 …".to_owned(),
        });
    }
    if let Some(word) = script.values.get("CUDA_DEVICE_MAX_CONNECTIONS") {
        let key = "env.CUDA_DEVICE_MAX_CONNECTIONS".to_owned();
        out.push(Raw { key, value: scalar(&word.text), line: Some(word.line) });
    }
    Ok((out, script.branches))
}

/// A command's words, where one that is a command or an argument with its value in quotes is taken apart.
fn opened(words: &[Word]) -> Vec<Word> {
    let parts = |word: &Word| {
        let command = word.text.contains(".py ") && word.text.contains(" --");
        let argument = word.text.starts_with("--") && word.text.contains(' ') && !word.text.contains('=');
        let whole = !command && !argument;
        let parts: Vec<&str> = if whole { vec![&word.text] } else { word.text.split_whitespace().collect() };
        parts.into_iter().map(|text| Word { text: text.to_owned(), ..word.clone() }).collect::<Vec<_>>()
    };
    words.iter().flat_map(parts).collect()
}

/// Words as arguments and their values.
fn list(words: &[Word]) -> Vec<Raw> {
    let mut out: Vec<Raw> = vec![];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        if !is_option(&word.text) {
            continue;
        }
        let line = Some(word.line);
        if let Some((key, value)) = word.text.split_once('=') {
            out.push(Raw { key: name(key), value: scalar(value), line });
            continue;
        }
        let mut values = vec![];
        while let Some(value) = words.next_if(|next| !is_option(&next.text)) {
            values.push(if value.open { Value::String(OPEN.to_owned()) } else { scalar(&value.text) });
        }
        let value = match values.len() {
            0 => Value::Bool(true),
            1 => values.remove(0),
            _ => Value::Array(values),
        };
        out.push(Raw { key: name(&word.text), value, line });
    }
    out
}
