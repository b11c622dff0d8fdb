//! `--help` of every command of a binary, as `docs/commands.md` has it. The calibrator's tests include this file for its half.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What stands above each half of the page.
const HEAD: &str = "# Commands\n\nGenerated from the two binaries: `UPDATE=1 cargo test --workspace help` writes this page. \
                    [exit-codes.md](exit-codes.md) explains the exit codes.\n";

/// Where the calibrator's half begins.
const OTHER: &str = "\n# windtunnel-calibrate\n";

/// Commands that become the calibrator, whose half of the page has them.
const PASSED_ON: [&str; 4] = ["calibrate", "compile-check", "profile fit", "profile residuals"];

/// What a command's `--help` prints, in columns that no terminal decides.
fn help(binary: &str, command: &str) -> String {
    let mut asked = Command::new(binary);
    asked.args(command.split_whitespace()).arg("--help").env("COLUMNS", "100");
    let output = asked.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("Usage:"), "{command}: {text}");
    text
}

/// Every command of a binary with its help, those in a command after it.
fn commands(name: &str, binary: &str) -> Vec<(String, String)> {
    let mut all = vec![];
    let mut open = vec![String::new()];
    while let Some(command) = open.pop() {
        if name == "windtunnel" && PASSED_ON.contains(&&*command) {
            continue;
        }
        let text = help(binary, &command);
        let list = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
        let lines = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        let within: Vec<String> = names.map(|name| format!("{command} {name}").trim().to_owned()).collect();
        open.extend(within.into_iter().rev());
        all.push((command, text));
    }
    all
}

/// A binary's half of the page.
fn half(name: &str, commands: &[(String, String)]) -> String {
    let mut half = String::new();
    for (command, text) in commands.iter().filter(|(command, _)| !command.is_empty()) {
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let _ = write!(half, "\n## {name} {command}\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    }
    let (_, whole) = &commands[0];
    let lines: Vec<&str> = whole.lines().map(str::trim_end).collect();
    format!("\n# {name}\n\n```text\n{}\n```\n{half}", lines.join("\n").trim_end())
}

fn page(root: &str, name: &str) -> String {
    fs::read_to_string(Path::new(root).join("docs").join(name)).unwrap_or_default()
}

/// The page has what a binary prints, or `UPDATE` is set: then that half is written.
#[track_caller]
pub fn the_page_has_the_help_of_every_command(name: &str, binary: &str, root: &str) {
    let commands = commands(name, binary);
    assert!(commands.len() > 8, "{} commands", commands.len());
    let half = half(name, &commands);
    let text = page(root, "commands.md");
    let (first, second) = text.split_once(OTHER).unwrap_or((&text, ""));
    let first = first.strip_prefix(HEAD).unwrap_or_default();
    let (first, second) = match name {
        "windtunnel" => (half.clone(), format!("{OTHER}{second}")),
        _ => (first.to_owned(), half.clone()),
    };
    if std::env::var_os("UPDATE").is_some() {
        fs::write(Path::new(root).join("docs/commands.md"), format!("{HEAD}{first}{second}")).unwrap();
    }
    let text = page(root, "commands.md");
    assert!(text.contains(&half), "docs/commands.md says something else than {name} --help: UPDATE=1 cargo test help");
    assert!(text.starts_with(HEAD), "docs/commands.md begins otherwise: UPDATE=1 cargo test help");
}

/// Every code that a command's help lists has a row in the page of codes, which has no other.
#[track_caller]
pub fn every_exit_code_is_explained(name: &str, binary: &str, root: &str) {
    let mut listed: BTreeSet<String> = BTreeSet::new();
    for (command, text) in commands(name, binary) {
        let (_, codes) = text.split_once("\nExit codes:\n").unwrap_or_else(|| panic!("{name} {command} has no codes"));
        let first = codes.lines().filter_map(|line| line.get(..6)).map(str::trim);
        listed.extend(first.filter(|code| code.parse::<u8>().is_ok()).map(str::to_owned));
    }
    let page = page(root, "exit-codes.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let explained: BTreeSet<String> = rows.filter(|code| code.parse::<u8>().is_ok()).map(str::to_owned).collect();
    let missing: Vec<_> = listed.difference(&explained).collect();
    assert!(missing.is_empty(), "docs/exit-codes.md does not explain {missing:?} of {name}");
    assert!(listed.contains("0") && listed.contains("2") && listed.contains("141"), "{listed:?}");
}
