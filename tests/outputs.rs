//! Whatever happens to an output, the old file stays or the new one is whole, the exit code is not 0, and somebody is told.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::command::Folder;
use crate::make::TINY;

/// A folder with the tiny scenario.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("config.json", include_str!("tiny/config.json"));
    folder.write("scenario.toml", TINY);
    folder
}

/// A shell's command line, with the binary as `$0`.
fn shell(folder: &Folder, line: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", line, env!("CARGO_BIN_EXE_windtunnel")]).current_dir(&folder.path);
    command.output().expect("bash runs")
}

/// Files of a folder that are half-written.
fn parts(folder: &Folder) -> usize {
    let names = fs::read_dir(&folder.path).unwrap().flatten().map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".part")).count()
}

#[test]
fn a_report_that_a_full_disk_does_not_take_is_no_success() {
    let folder = folder("a_report_that_a_full_disk_does_not_take_is_no_success");
    for arguments in
        ["run scenario.toml", "run scenario.toml --json -", "show plan scenario.toml", "topology list", "--help"]
    {
        let output = shell(&folder, &format!("\"$0\" {arguments} > /dev/full"));
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("cannot write to standard output: No space left"), "{arguments}: {said}");
    }
}

#[test]
fn a_reader_that_goes_away_is_told_nothing_and_is_no_success() {
    let folder = folder("a_reader_that_goes_away_is_told_nothing_and_is_no_success");
    let output = shell(&folder, "set -o pipefail; { sleep 1; \"$0\" topology list; } | true");
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_anything_is_computed() {
    let folder = folder("an_output_that_cannot_be_written_is_refused_before_anything_is_computed");
    // The scenario is refused, too: what is said is of the output.
    folder.write("scenario.toml", "runtime = \"none\"");
    for (option, place) in [("--json", "no/such/a.json"), ("--trace", "."), ("--json", "scenario.toml/a.json")] {
        let said = folder.refuses(&["run", "scenario.toml", option, place]);
        assert!(said.contains(&format!("cannot write {place}: ")), "{said}");
    }
    for command in
        ["ceiling scenario.toml --html", "compare scenario.toml scenario.toml --json", "check scenario.toml --runs"]
    {
        let arguments: Vec<&str> = command.split(' ').chain(["no/such/file"]).collect();
        assert!(folder.refuses(&arguments).contains("cannot write no/such/file: "), "{command}");
    }
}

#[test]
fn a_file_that_may_not_grow_keeps_what_it_held() {
    let folder = folder("a_file_that_may_not_grow_keeps_what_it_held");
    folder.write("trace.json", "old");
    let output = shell(&folder, "ulimit -f 4; \"$0\" run scenario.toml --trace trace.json > /dev/null");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write trace.json: File too large"), "{said}");
    assert_eq!(folder.read("trace.json"), b"old");
    assert_eq!(parts(&folder), 0);
}

#[test]
fn an_interrupt_leaves_the_old_file_and_nothing_beside_it() {
    let folder = folder("an_interrupt_leaves_the_old_file_and_nothing_beside_it");
    folder.write("answer.json", "old");
    // The scenario comes from a pipe that nobody writes to: the command waits with its output open.
    assert!(Command::new("mkfifo").arg(folder.path.join("pipe.toml")).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel"));
    command.args(["run", "pipe.toml", "--json", "answer.json"]).current_dir(&folder.path).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begun = Instant::now();
    while parts(&folder) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the output was not opened");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("interrupted: answer.json is as it was"));
    assert_eq!(folder.read("answer.json"), b"old");
    assert_eq!(parts(&folder), 0);
}

#[test]
fn names_in_a_file_cannot_drive_the_terminal() {
    let folder = folder("names_in_a_file_cannot_drive_the_terminal");
    folder.write("scenario.toml", &format!("description = \"a\\u001b[2Jb\\u202ec\"\n{TINY}"));
    for arguments in [&["run", "scenario.toml"][..], &["run", "scenario.toml", "--json", "-"]] {
        let output = folder.windtunnel(arguments);
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(!said.contains('\u{1b}') && !said.contains('\u{202e}'), "{said}");
        assert!(said.contains("u{1b}[2J") || said.contains("u001b[2J"), "{said}");
    }
    let said = folder.refuses(&["run", "\u{1b}[31mred.toml"]);
    assert!(said.contains("\\u{1b}[31mred.toml"), "{said}");
}

#[test]
fn a_file_without_end_is_refused() {
    let folder = folder("a_file_without_end_is_refused");
    let endless = "runtime = \"fsdp2\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 1\n[model]\nhuggingface = \"/dev/zero\"\n[mesh]\n[batch]\nsequence = 128\n";
    folder.write("endless.toml", endless);
    assert!(folder.refuses(&["run", "endless.toml"]).contains("longer than 256 MiB"));
    assert!(folder.refuses(&["run", "/dev/zero", "--mfu-all"]).contains("longer than 256 MiB"));
    assert!(folder.refuses(&["check", "/dev/zero"]).contains("longer than 256 MiB"));
}
