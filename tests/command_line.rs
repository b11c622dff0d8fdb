//! The manners of the command line: its page, its exit codes, completions, manual pages, and `--quiet`.

use std::fs;

use crate::command::Folder;
use crate::help;
use crate::make::{TINY, replaced};

const BINARY: &str = env!("CARGO_BIN_EXE_windtunnel");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_page_of_commands_has_the_help_of_every_command() {
    help::the_page_has_the_help_of_every_command("windtunnel", BINARY, ROOT);
}

#[test]
fn every_exit_code_is_explained() {
    help::every_exit_code_is_explained("windtunnel", BINARY, ROOT);
}

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    let folder = Folder::new("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = folder.windtunnel(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{shell}");
        for word in ["ceiling", "to-scenario", "fail-if-oom"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn bash_takes_its_completions_and_completes_a_command() {
    let folder = Folder::new("completions-bash");
    folder.write("script", &String::from_utf8(folder.windtunnel(&["completions", "bash"]).stdout).unwrap());
    let line = "source ./script && COMP_WORDS=(windtunnel ce) COMP_CWORD=1 && _windtunnel windtunnel ce windtunnel && \
                echo \"${COMPREPLY[@]}\"";
    let done = std::process::Command::new("bash").args(["-c", line]).current_dir(&folder.path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), "ceiling", "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn man_prints_the_page_of_a_command_and_writes_those_of_all() {
    let folder = Folder::new("man");
    let page = |words: &[&str]| {
        let output = folder.windtunnel(&[&["man"], words].concat());
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(page(&[]).contains(".SH NAME") && page(&["show", "memory"]).contains("windtunnel\\-show\\-memory"));
    assert!(folder.refuses(&["man", "celing"]).contains("did you mean \"ceiling\"?"));
    let output = folder.windtunnel(&["man", "--out", "pages/man1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names: Vec<String> = fs::read_dir(folder.path.join("pages/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        names.len() > 20 && names.iter().all(|name| name.starts_with("windtunnel") && name.ends_with(".1")),
        "{names:?}"
    );
    assert!(String::from_utf8(folder.read("pages/man1/windtunnel-run.1")).unwrap().contains("fail\\-if\\-oom"));
}

#[test]
fn pages_that_cannot_be_written_are_refused_and_named() {
    let folder = Folder::new("man-nowhere");
    folder.write("file", "");
    let said = folder.refuses(&["man", "--out", "file/man1"]);
    assert!(said.contains("cannot write file/man1/windtunnel.1"), "{said}");
}

#[test]
fn quiet_leaves_the_result_and_the_errors() {
    let folder = Folder::new("quiet");
    folder.write("my.toml", TINY);
    let [loud, quiet] = [&["run", "my.toml"][..], &["--quiet", "run", "my.toml"]].map(|line| folder.windtunnel(line));
    assert!(quiet.status.success() && quiet.stderr.is_empty() && quiet.stdout == loud.stdout);
    folder.write("my.toml", &replaced(TINY, &[("dp_shard = 8", "dp_shard = 7")]));
    let [loud, quiet] = [&["run", "my.toml"][..], &["run", "my.toml", "-q"]].map(|line| folder.windtunnel(line));
    assert!(quiet.status.code() == Some(2) && !quiet.stderr.is_empty() && quiet.stderr == loud.stderr);
}
