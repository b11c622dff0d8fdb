//! Where Megatron-LM's arguments stand: in a launch script's command, in a list, or below `MODEL_ARGS`.

use serde_json::{Map, Value};

use crate::import::error::ImportError;
use crate::import::importer::Request;
use crate::import::settings::Raw;
use crate::import::syntax::overrides::{is_option, scalar};
use crate::import::syntax::shell::{self, OPEN, Word};
use crate::import::syntax::yaml;

/// Arguments that nobody else has.
const MARKS: [&str; 3] = ["--num-layers", "--hidden-size", "--num-attention-heads"];

/// Tables of arguments: of a functional test, and of a recipe (`examples/moe_recipes`).
const TABLES: [&str; 2] = ["MODEL_ARGS", "ARGS"];

/// Variables of the environment that a step depends on.
const VARIABLES: [&str; 3] = ["CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The key of the program that is started.
pub const PROGRAM: &str = "program";

pub fn sniff(text: &str) -> bool {
    let below = |mark: &&str| {
        let key = name(mark);
        text.lines().any(|line| line.trim_start().strip_prefix(&key).is_some_and(|rest| rest.starts_with(':')))
    };
    if table(text).is_some() && MARKS.iter().all(below) {
        return true;
    }
    MARKS.iter().all(|mark| text.contains(mark))
        && (text.contains("-model-parallel-size") || text.contains("pretrain_"))
}

/// Arguments, and variables that a branch assigns.
pub fn read(request: &Request<'_>) -> Result<(Vec<Raw>, Vec<String>), ImportError> {
    let (mut raw, branches) =
        if let Some(table) = table(request.text) { (of_yaml(request, table)?, vec![]) } else { of_script(request)? };
    let words = beside_the_file(request.overrides);
    let beside = list(&words).into_iter().map(|raw| Raw { line: None, ..raw });
    raw.extend(beside);
    Ok((raw, branches))
}

/// The table of arguments that a file of YAML has.
pub fn table(text: &str) -> Option<&'static str> {
    TABLES
        .into_iter()
        .find(|table| text.lines().any(|line| line.strip_prefix(table).is_some_and(|rest| rest.starts_with(':'))))
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

/// Arguments of a table, and variables below `ENV_VARS`.
fn of_yaml(request: &Request<'_>, table: &str) -> Result<Vec<Raw>, ImportError> {
    let all = yaml::read(request.file, request.text)?;
    let mut out = vec![];
    for Raw { key, value, line } in all {
        let argument = key.strip_prefix(table).and_then(|key| key.strip_prefix('.'));
        if let Some(key) = argument {
            out.push(Raw { key: name(key), value: of_line(value), line });
        } else if let Some(variable) = key.strip_prefix("ENV_VARS.") {
            out.push(Raw { key: format!("env.{variable}"), value: of_variable(value), line });
        }
    }
    Ok(out)
}

/// Arguments of a functional test and variables of its environment, as a table has them.
pub fn of_tables(arguments: &Map<String, Value>, variables: &Map<String, Value>) -> Vec<Raw> {
    let of = |key: String, value: Value| Raw { key, value, line: None };
    let arguments = arguments.iter().map(|(key, value)| of(name(key), of_line(value.clone())));
    let variables = variables.iter().map(|(key, value)| of(format!("env.{key}"), of_variable(value.clone())));
    arguments.chain(variables).collect()
}

/// A variable of the environment, which may stand in quotes.
fn of_variable(value: Value) -> Value {
    if let Value::String(text) = &value { scalar(text) } else { value }
}

/// What a line of a functional test gives an argument (`tests/functional_tests/shell_test_utils/_run_training.sh`).
fn of_line(value: Value) -> Value {
    let Value::String(text) = value else { return value };
    let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).filter(|text| !text.contains(']'));
    // Of a path the name may be known, and the folder not.
    if text.rsplit('/').next().is_some_and(|name| name.contains('$')) {
        return Value::String(OPEN.to_owned());
    }
    match list {
        Some(list) => Value::Array(list.split_whitespace().map(scalar).collect()),
        // An argument of several words stands in one line.
        None if text.contains(' ') && !text.contains('[') => {
            Value::Array(text.split_whitespace().map(scalar).collect())
        }
        None => Value::String(text),
    }
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
    for variable in VARIABLES {
        let found = script.values.get(variable);
        out.extend(found.map(|word| Raw {
            key: format!("env.{variable}"),
            value: scalar(&word.text),
            line: Some(word.line),
        }));
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

/// An argument's value: `none` is a word here, as argparse has it.
fn argument(text: &str) -> Value {
    match scalar(text) {
        Value::Null if !text.is_empty() => Value::String(text.to_owned()),
        value => value,
    }
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
            let value = if word.open { Value::String(OPEN.to_owned()) } else { argument(value) };
            out.push(Raw { key: name(key), value, line });
            continue;
        }
        let mut values = vec![];
        while let Some(value) = words.next_if(|next| !is_option(&next.text)) {
            values.push(if value.open { Value::String(OPEN.to_owned()) } else { argument(&value.text) });
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
