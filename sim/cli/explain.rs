//! `windtunnel explain NAME`: what a key of a scenario, a table of keys, or the code of a refusal means.

use std::fmt::Write as _;
use std::process::ExitCode;

use super::{Failure, Outcome, print};
use windtunnel::hardware::registry;
use windtunnel::model::huggingface::shipped;
use windtunnel::near;
use windtunnel::report;
use windtunnel::scenario::Runtime;
use windtunnel::scenario::keys::{self, Key, Kind, TABLES, Table, example, words};

/// Explain a key of a scenario, a table of keys, or the code of a refusal.
#[derive(Debug, clap::Args)]
#[command(after_help = super::help::EXPLAIN)]
pub struct Args {
    /// A key such as batch.micro, a table such as zero, or a code such as sinks-flash-core. Without a name, all tables are listed.
    name: Option<String>,
}

/// Every refusal that has a code, a section each: `docs/errors.md`.
const REFUSALS: &str = include_str!("../../docs/errors.md");

/// Columns of a paragraph.
const WIDTH: usize = 92;

/// Columns of a label such as `default`.
const LABEL: usize = 14;

/// Names that are proposed in place of an unknown one.
const PROPOSED: usize = 5;

pub fn run(args: &Args) -> Outcome {
    let text = match args.name.as_deref() {
        None => tables(),
        Some(name) => explained(name)?,
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn rows() -> impl Iterator<Item = (&'static Table, &'static Key)> {
    TABLES.into_iter().flat_map(|table| table.keys.iter().map(move |key| (table, key)))
}

fn explained(asked: &str) -> Result<String, Failure> {
    let name = asked.trim().trim_matches(['[', ']']);
    if let Some((table, key)) = rows().find(|(_, key)| key.path == name) {
        return Ok(of_key(table, key));
    }
    if let Some(table) = TABLES.into_iter().find(|table| table.name == name && !name.is_empty()) {
        return Ok(of_table(table));
    }
    if let Some(section) = refusal(name) {
        return Ok(section);
    }
    if let Some(framework) = Runtime::ALL.map(Runtime::written).into_iter().find(|framework| *framework == name) {
        return Ok(of_framework(framework));
    }
    // A table in a table, then a key that is named without its table.
    let within: Vec<_> = rows().filter(|(_, key)| key.path.starts_with(&format!("{name}."))).collect();
    let alone: Vec<_> = rows().filter(|(_, key)| key.name() == name).collect();
    match (&within[..], &alone[..]) {
        ([_, ..], _) if !name.is_empty() => Ok(format!("[{name}]\n\n{}", list(&within))),
        (_, [(table, key)]) => Ok(of_key(table, key)),
        (_, [_, ..]) => Ok(format!("{name} is a key of several tables:\n\n{}", list(&alone))),
        _ => Err(unknown(asked)),
    }
}

/// What to say to a name that nothing has: those that are nearest.
fn unknown(asked: &str) -> Failure {
    let paths: Vec<&str> = keys::all().map(|key| key.path).collect();
    let mut names = paths.clone();
    names.extend(TABLES.iter().map(|table| table.name).filter(|name| !name.is_empty()));
    names.extend(codes());
    let guess = near::did_you_mean(asked, names.iter().copied());
    // Keys whose last part is like the asked one's stand before all others.
    let last = asked.rsplit('.').next().unwrap_or(asked);
    let part = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let parts: Vec<String> = paths.iter().map(|path| part(path)).collect();
    let like = near::nearest(last, parts.iter().map(String::as_str));
    let mut near: Vec<&str> = paths.into_iter().filter(|path| like == Some(part(path).as_str())).collect();
    let others: Vec<&str> = near::sorted(asked, names).into_iter().filter(|name| !near.contains(name)).collect();
    near.extend(others);
    near.truncate(PROPOSED);
    let listed: String = near.iter().map(|name| format!("\n  {name}")).collect();
    Failure::input(format!("nothing is called {asked:?}{guess}; the nearest names are:{listed}"))
}

/// All tables, a line each.
fn tables() -> String {
    let named = TABLES.iter().filter(|table| !table.name.is_empty());
    let mut text = "The tables of a scenario:\n\n".to_owned();
    for table in named {
        let _ = writeln!(text, "{}", entry(&format!("[{}]", table.name), table.help, 28));
    }
    text += "\n`windtunnel explain TABLE` lists the keys of one. docs/keys.md has all on one page.\n";
    text
}

/// A framework: the tables of which it reads keys.
fn of_framework(framework: &str) -> String {
    let read = TABLES.iter().filter(|table| !table.name.is_empty() && table.is_read_by(framework));
    let lines: String = read.map(|table| entry(&format!("[{}]", table.name), table.help, 28) + "\n").collect();
    format!("runtime = {framework:?}\n\n  A framework. It reads keys of these tables:\n\n{lines}")
}

/// A table: what it is about, and its keys.
fn of_table(table: &'static Table) -> String {
    let keys: Vec<_> = table.keys.iter().map(|key| (table, key)).collect();
    format!("[{}]\n\n{}\n\n{}", table.name, wrapped(table.help, 2), list(&keys))
}

/// Keys, a line each.
fn list(keys: &[(&'static Table, &'static Key)]) -> String {
    let widest = keys.iter().map(|(_, key)| key.path.len()).max().unwrap_or(0);
    let lines = keys.iter().map(|(_, key)| entry(key.path, &words::about(key), widest + 4) + "\n");
    lines.collect()
}

/// A name and what it says, which may take several lines.
fn entry(name: &str, help: &str, column: usize) -> String {
    let text = wrapped(help, column);
    format!("  {name:<width$}{}", text.trim_start(), width = column - 2)
}

fn of_key(table: &'static Table, key: &Key) -> String {
    let mut text = format!("{}\n\n{}\n\n", key.path, wrapped(&words::about(key), 2));
    let mut field = |label: &str, said: &str| {
        let said = wrapped(said, LABEL + 2);
        let _ = writeln!(text, "  {label:<LABEL$}{}", said.trim_start());
    };
    let values = match key.path {
        "runtime" => Runtime::ALL.map(Runtime::written).join(", "),
        "topology.name" => registry().iter().map(|listed| listed.name).collect::<Vec<_>>().join(", "),
        "model.name" => shipped::names().collect::<Vec<_>>().join(", "),
        _ => key.kind.values(),
    };
    let takes = match key.kind {
        Kind::Other(values) => values.to_owned(),
        kind if values.is_empty() => kind.word().to_owned(),
        kind => format!("{}: {values}", kind.word()),
    };
    field("takes", &takes);
    for preset in key.defaults {
        let frameworks = words::frameworks(preset.frameworks);
        let value = preset.value.replace("by size", "by the size of the job");
        field("default", &format!("{value} under {frameworks} ({})", preset.source()));
    }
    field("read by", &words::frameworks(key.read_by));
    for (frameworks, instead) in words::elsewhere(table, key) {
        field("not read by", &format!("{}: {instead}", frameworks.join(", ")));
    }
    let line = format!("{} = {}", key.name(), example::example(key));
    let head = if table.name.is_empty() { String::new() } else { format!("    [{}]\n", table.name) };
    let _ = writeln!(text, "\n  For example:\n\n{head}    {line}");
    text
}

/// Codes of all refusals.
fn codes<'n>() -> impl Iterator<Item = &'n str> {
    REFUSALS.lines().filter_map(|line| line.strip_prefix("## "))
}

/// A refusal's section of the page, for a terminal.
fn refusal(code: &str) -> Option<String> {
    let (_, rest) = REFUSALS.split_once(&format!("\n## {code}\n"))?;
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let mut text = format!("{code}\n");
    for line in section.lines().filter(|line| !line.is_empty()) {
        let _ = match line.strip_prefix("- ").and_then(|item| item.split_once(": ")) {
            Some((label, said)) => {
                let said = wrapped(said, LABEL + 2);
                write!(text, "\n  {:<LABEL$}{}", label.to_lowercase(), said.trim_start())
            }
            None => writeln!(text, "\n{}", wrapped(line, 2)),
        };
    }
    Some(text + "\n")
}

/// A paragraph of Markdown without its marks, in lines that begin at a column.
fn wrapped(text: &str, column: usize) -> String {
    let plain = text.replace('`', "");
    let words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines = report::text::wrapped(&words, WIDTH.saturating_sub(column));
    let margin = " ".repeat(column);
    lines.iter().map(|line| format!("{margin}{line}")).collect::<Vec<_>>().join("\n")
}
