//! `windtunnel calibrate …` becomes the calibrator that lies beside it, or says where there is none.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use crate::command::Folder;

/// A copy of the binary in a folder of its own, so that nothing lies beside it but what a test puts there.
fn alone(test: &str) -> Folder {
    let folder = Folder::new(test);
    // A link: a file that was just written may still be open in a process that another test starts, and does not run then.
    std::fs::hard_link(env!("CARGO_BIN_EXE_windtunnel"), folder.path.join("windtunnel")).unwrap();
    folder
}

/// A calibrator that says by whom and with what it was called, and exits with 7.
fn calibrator(folder: &Folder, place: &str) {
    std::fs::create_dir_all(folder.path.join(place)).unwrap();
    let name = format!("{place}/windtunnel-calibrate");
    folder.write(&name, &format!("#!/bin/sh\necho {place}: \"$@\"\nexit 7\n"));
    std::fs::set_permissions(folder.path.join(name), PermissionsExt::from_mode(0o755)).unwrap();
}

fn run(folder: &Folder, arguments: &[&str]) -> Output {
    let path = std::env::join_paths([folder.path.join("installed"), "/bin".into(), "/usr/bin".into()]).unwrap();
    Command::new(folder.path.join("windtunnel")).args(arguments).env("PATH", path).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned())
}

#[test]
fn the_calibrator_beside_the_binary_gets_the_arguments_as_they_are_and_its_exit_code_counts() {
    let folder = alone("calibrate-beside");
    calibrator(&folder, ".");
    calibrator(&folder, "installed");
    let output = run(&folder, &["calibrate", "cuda", "--minutes", "3", "--help"]);
    assert_eq!(said(&output), (Some(7), ".: cuda --minutes 3 --help\n".to_owned()));
    let output = run(&folder, &["profile", "fit", "points.jsonl", "--base", "h100-sxm-80gb"]);
    assert_eq!(said(&output), (Some(7), ".: fit points.jsonl --base h100-sxm-80gb\n".to_owned()));
}

#[test]
fn a_calibrator_on_the_path_is_found_where_none_lies_beside() {
    let folder = alone("calibrate-path");
    calibrator(&folder, "installed");
    assert_eq!(said(&run(&folder, &["calibrate", "plan"])), (Some(7), "installed: plan\n".to_owned()));
}

#[test]
fn without_a_calibrator_it_says_how_to_get_one() {
    let (code, said) = said(&run(&alone("calibrate-none"), &["calibrate", "plan"]));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("cannot start windtunnel-calibrate: ") && said.contains("cargo build --release --workspace"));
}
