//! The README shows real output: every `console` block is run, and what it prints is what stands there. A last line `…`
//! leaves the rest out. `UPDATE_README=1 cargo test readme` writes what the command prints now.

use std::path::Path;
use std::process::Command;

/// Lines kept where the rest is left out.
const SHOWN: usize = 16;

fn output_of(command: &str) -> String {
    let arguments = command.strip_prefix("windtunnel ").expect("a console block runs windtunnel");
    let output = Command::new(env!("CARGO_BIN_EXE_windtunnel"))
        .args(arguments.split_whitespace())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    text.trim_end().to_owned()
}

#[test]
fn the_readme_shows_real_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut fresh = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find("```console\n$ ") {
        let body = start + "```console\n$ ".len();
        let end = body + rest[body..].find("\n```").unwrap();
        let (command, shown) = rest[body..end].split_once('\n').unwrap_or((&rest[body..end], ""));
        let mut output = output_of(command);
        if shown.lines().last() == Some("…") {
            output = output.lines().take(SHOWN).collect::<Vec<_>>().join("\n") + "\n…";
        }
        fresh += &rest[..body];
        fresh += &format!("{command}\n{output}");
        rest = &rest[end..];
    }
    fresh += rest;
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&path, fresh).unwrap();
    } else {
        assert!(
            fresh == text,
            "README.md shows something else than the command prints: UPDATE_README=1 cargo test readme"
        );
    }
}
