//! `calibrate xla`, `compile-check` and `calibrate plugins`: against a stub plugin, built here, that fails in every way; and, where plugins
//! have been fetched, against the real ones.
//!
//! The real ones are hundreds of megabytes, so their tests are ignored unless asked for, as CI does:
//! `windtunnel calibrate plugins fetch cpu`, `… fetch tpu`, `cargo test -p windtunnel-calibrate --test calibrator xla:: -- --include-ignored`.

#[path = "xla/check.rs"]
mod check;
#[path = "xla/real.rs"]
mod real;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xla");

/// A folder for one test, empty.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("xla-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Builds the stub so that it fails in a way of its own.
fn stub(folder: &Path, how: &str) -> PathBuf {
    let library = folder.join(format!("{how}.so"));
    let built = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--crate-type=cdylib", "--edition=2024", "-Cpanic=abort", "--crate-name=stub", "--cfg", how, "-o"])
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stub/pjrt.rs"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    library
}

/// Runs the calibrator with a cache of its own.
fn run(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"));
    command.args(arguments).env("WINDTUNNEL_CACHE", cache).current_dir(PROGRAMS).output().unwrap()
}

/// Runs the calibrator where no file takes a byte.
fn on_a_full_disk(cache: &Path, arguments: &str) -> Output {
    let mut command = Command::new("bash");
    let line = format!("ulimit -f 0; exec \"$0\" {arguments}");
    command.args(["-c", &line, env!("CARGO_BIN_EXE_windtunnel-calibrate")]);
    command.env("WINDTUNNEL_CACHE", cache).current_dir(PROGRAMS).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut open, mut found) = (vec![folder.to_owned()], vec![]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() { open.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found
}

/// Compiles with a stub; the exit code, what was said, and how long it took. Nothing may be left behind.
fn compiled_by_stub(how: &str) -> (Option<i32>, String, Duration) {
    let folder = folder(how);
    let plugin = stub(&folder, how);
    let cache = folder.join("cache");
    let began = Instant::now();
    let plugin = plugin.to_str().unwrap();
    let output =
        run(&cache, &["xla", "compile", "matmul.mlir", "--topology", "v6e:4x4", "--plugin", plugin, "--timeout", "2"]);
    let (code, said) = said(&output);
    assert_eq!(files(&cache), Vec::<PathBuf>::new());
    (code, said, began.elapsed())
}

#[test]
fn a_plugin_that_was_not_fetched_is_asked_for_by_the_command_that_fetches_it() {
    let output = run(&folder("missing"), &["xla", "compile", "matmul.mlir", "--topology", "v6e:4x4"]);
    let (code, said) = said(&output);
    assert_eq!(code, Some(3));
    assert!(said.contains("windtunnel calibrate plugins fetch tpu`"), "{said}");
}

#[test]
fn a_plugin_of_an_old_api_is_refused_with_both_versions() {
    let (code, said, _) = compiled_by_stub("old");
    assert_eq!(code, Some(3));
    assert!(said.contains("is of PJRT API 0.54; 0.81 or a later 0.x is needed"), "{said}");
}

#[test]
fn a_plugin_that_lacks_a_function_is_not_called_into_the_void() {
    let (code, said, _) = compiled_by_stub("empty");
    assert_eq!(code, Some(3));
    assert!(said.contains("the plugin has no PJRT_TopologyDescription_Create"), "{said}");
}

#[test]
fn a_plugin_s_own_words_reach_the_user() {
    let (code, said, _) = compiled_by_stub("refuses");
    assert_eq!(code, Some(2));
    assert!(said.contains("PJRT_TopologyDescription_Create: internal: the stub says no"), "{said}");
}

#[test]
fn a_plugin_that_crashes_takes_only_its_own_process_with_it() {
    let (code, said, _) = compiled_by_stub("crashes");
    assert_eq!(code, Some(6));
    assert!(said.contains("the plugin died: signal 6 (abort") && said.contains("the stub is about to crash"), "{said}");
}

#[test]
fn a_plugin_that_hangs_is_ended() {
    let (code, said, _) = compiled_by_stub("hangs");
    assert_eq!(code, Some(6));
    assert!(said.contains("ended after 2 s without an answer: give it longer by --timeout"), "{said}");
}

#[test]
fn a_killed_command_takes_the_plugin_s_process_with_it() {
    let folder = folder("killed");
    let plugin = stub(&folder, "hangs");
    let mut child = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"))
        .args(["xla", "compile", "matmul.mlir", "--topology", "v6e:4x4", "--plugin"])
        .arg(&plugin)
        .env("WINDTUNNEL_CACHE", folder.join("cache"))
        .current_dir(PROGRAMS)
        .spawn()
        .unwrap();
    let holder = until(|| holders(&plugin).first().copied());
    child.kill().unwrap();
    child.wait().unwrap();
    until(|| (!holders(&plugin).contains(&holder)).then_some(()));
    assert_eq!(files(&folder.join("cache")), Vec::<PathBuf>::new());
}

/// Processes that have a library loaded.
fn holders(library: &Path) -> Vec<u32> {
    let loaded = |process: &u32| {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.contains(library.to_str().unwrap())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(loaded).collect()
}

/// Waits for something that must come.
fn until<T>(ask: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "it did not come within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_library_that_is_no_plugin_is_refused() {
    let folder = folder("text");
    std::fs::write(folder.join("plugin.so"), "not a library").unwrap();
    let plugin = folder.join("plugin.so");
    let output =
        run(&folder, &["xla", "compile", "matmul.mlir", "--topology", "v6e:4x4", "--plugin", plugin.to_str().unwrap()]);
    let (code, said) = said(&output);
    assert_eq!(code, Some(3));
    assert!(said.contains("cannot be loaded"), "{said}");
}

#[test]
fn slices_that_cannot_be_rented_are_refused_with_those_that_can() {
    for slice in ["v6e:3x5", "v6e:16x32"] {
        for command in [&["xla", "compile", "matmul.mlir", "--topology", slice][..], &["xla", "--topology", slice]] {
            let (code, said) = said(&run(&folder("slices"), command));
            assert_eq!(code, Some(2));
            assert!(said.contains("its slices are 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"), "{said}");
        }
    }
}

#[test]
fn a_mesh_that_is_not_the_slice_s_is_found_without_a_compiler() {
    let folder = folder("mesh");
    let plugin = stub(&folder, "refuses");
    let output =
        run(&folder, &["xla", "compile", "matmul.mlir", "--topology", "v6e:4x8", "--plugin", plugin.to_str().unwrap()]);
    let (code, said) = said(&output);
    assert_eq!(code, Some(2));
    assert!(said.contains("partitioned over 16 devices but the slice has 32 devices"), "{said}");
}

#[test]
fn a_wheel_of_another_hash_is_refused_and_nothing_is_left() {
    let folder = folder("wheel");
    let wheel = folder.join("libtpu.whl");
    std::fs::write(&wheel, "something else").unwrap();
    let cache = folder.join("cache");
    let (code, said) = said(&run(&cache, &["plugins", "fetch", "tpu", "--wheel", wheel.to_str().unwrap()]));
    assert_eq!(code, Some(2));
    assert!(said.contains("is not the wheel of libtpu 0.0.51 that is known: its SHA-256 is"), "{said}");
    assert_eq!(files(&cache), Vec::<PathBuf>::new());
}

#[test]
fn a_version_that_is_none_is_answered_with_where_to_read_one() {
    let fetched =
        |arguments: [&str; 3]| said(&run(&folder("version"), &[&["plugins", "fetch"], &arguments[..]].concat()));
    let (code, said) = fetched(["tpu", "--version", "../51"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("no version of libtpu") && said.contains("pip show libtpu"), "{said}");
    let (code, said) = fetched(["cpu", "--version", "0.0.9"]);
    assert!(code == Some(2) && said.contains("versions are: 0.0.1"), "{said}");
}

#[test]
fn a_kept_library_that_was_changed_is_not_loaded() {
    let cache = folder("changed").join("cache");
    let kept = cache.join("plugins/libtpu-0.0.51");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::write(kept.join("libtpu.so"), "something else").unwrap();
    for command in [&["xla", "compile", "matmul.mlir", "--topology", "v6e:4x4"][..], &["xla", "--topology", "v6e:4x4"]]
    {
        let (code, said) = said(&run(&cache, command));
        assert_eq!(code, Some(3), "{said}");
        let found = "its SHA-256 is f41f3fa625ff120ddca7ef456bf66371ecea23c129f4e4c32367101edb516cf8";
        assert!(
            said.contains("is not the library of libtpu 0.0.51 that was fetched") && said.contains(found),
            "{said}"
        );
    }
}

#[test]
fn a_module_of_the_working_directory_is_not_taken_for_pip() {
    let folder = folder("pip");
    let theirs = format!("open({:?}, 'w').close()\n", folder.join("imported"));
    std::fs::write(folder.join("pip.py"), theirs).unwrap();
    let mut fetch = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"));
    // An index that nobody serves: whatever pip is found has no more to say.
    fetch.env("PIP_INDEX_URL", "http://127.0.0.1:9/").env("PIP_RETRIES", "0").env("PIP_NO_INPUT", "1");
    let fetched =
        fetch.args(["plugins", "fetch", "cpu"]).env("WINDTUNNEL_CACHE", folder.join("cache")).current_dir(&folder);
    let (code, said) = said(&fetched.output().unwrap());
    assert_eq!(code, Some(2), "{said}");
    assert!(!folder.join("imported").exists(), "{said}");
    // As python by itself would have it.
    if Command::new("python3").args(["-m", "pip"]).current_dir(&folder).output().is_ok() {
        assert!(folder.join("imported").exists());
    }
}
