//! `calibrate cuda` without a GPU: against stub libraries, built here, that play NVIDIA's and can be told to fail.
//!
//! What they prove: which calls are made, in which order, with which descriptors; what happens when something goes wrong;
//! that nothing measured is lost. They prove nothing about time.

#[path = "cuda/collectives.rs"]
mod collectives;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The stubs, and the names that NVIDIA's libraries have.
const STUBS: [(&str, &str, &[&str]); 4] = [
    ("driver", "libcuda.so.1", &["libcuda.so"]),
    ("cublaslt", "libcublasLt.so.13", &["libcublasLt.so"]),
    ("nvrtc", "libnvrtc.so.13", &["libnvrtc.so"]),
    ("nvml", "libnvidia-ml.so.1", &[]),
];

/// A folder with all stubs, built once.
fn stubs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let parent = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        // What ended processes left behind.
        for old in std::fs::read_dir(&parent).unwrap().flatten() {
            let name = old.file_name().into_string().unwrap_or_default();
            if name.strip_prefix("stubs-").is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = std::fs::remove_dir_all(old.path());
            }
        }
        let folder = parent.join(format!("stubs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, file, _) in STUBS {
            build(&folder, name, file, &[]);
        }
        folder
    })
}

/// Builds a stub; as the real libraries, all but the driver need the driver.
fn build(folder: &Path, name: &str, file: &str, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/stub/{name}.rs"));
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let driver = folder.join("libcuda.so.1");
    let built = Command::new(compiler)
        .args(["--crate-type=cdylib", "--edition=2024", "-Cpanic=abort", "--crate-name"])
        .args([format!("stub_{name}"), format!("-Clink-arg=-Wl,-soname,{file}"), "-o".to_owned()])
        .arg(folder.join(file))
        .arg(source)
        .args((name != "driver").then(|| format!("-Clink-arg={}", driver.display())))
        .args(options)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// A run in a folder of its own.
struct Run {
    folder: PathBuf,
    faults: Vec<(&'static str, String)>,
}

impl Run {
    /// With all stubs but those named.
    fn without(name: &str, missing: &[&str]) -> Self {
        let folder = stubs().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("lib")).unwrap();
        for (_, file, others) in STUBS.iter().filter(|(stub, ..)| !missing.contains(stub)) {
            for name in std::iter::once(file).chain(*others) {
                std::os::unix::fs::symlink(stubs().join(file), folder.join("lib").join(name)).unwrap();
            }
        }
        Self { folder, faults: vec![] }
    }

    fn new(name: &str) -> Self {
        Self::without(name, &[])
    }

    /// The same, and something goes wrong.
    fn fault(mut self, name: &'static str, value: impl ToString) -> Self {
        self.faults.push((name, value.to_string()));
        self
    }

    fn out(&self) -> PathBuf {
        self.folder.join("points.jsonl")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windtunnel-calibrate"));
        command.arg("cuda").args(arguments).arg("--out").arg(self.out());
        command.env("LD_LIBRARY_PATH", self.folder.join("lib"));
        for name in ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(name);
        }
        command.envs(self.faults.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(&self.command(arguments).output().unwrap())
    }

    /// The file's points, each as its own line; asserts that the file is whole.
    fn points(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.out()).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "a line without its end");
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter_map(|line| line.get("point").cloned()).collect()
    }
}

/// How a run ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    text: String,
}

impl Ended {
    fn of(output: &Output) -> Self {
        let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        Self { code: output.status.code(), text: text.concat() }
    }

    #[track_caller]
    fn is(&self, code: i32, says: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.text);
        for part in says {
            assert!(self.text.contains(part), "no {part:?} in\n{}", self.text);
        }
    }
}

/// Whether the loader finds a library here, so that its absence cannot be played.
fn here(run: &Run, library: &str) -> bool {
    let list = run.run(&["--list"]);
    let line = list.text.lines().find(|line| line.trim_start().starts_with(library)).unwrap().to_owned();
    let found = !line.contains("missing");
    if found {
        eprintln!("skipped: this machine has one:{line}");
    }
    found
}

#[test]
fn a_machine_without_a_driver_is_told_so() {
    let run = Run::without("no-driver", &["driver", "nvml"]);
    if here(&run, "CUDA driver") {
        return;
    }
    run.run(&[]).is(3, &["no CUDA driver is installed here", "install NVIDIA's driver"]);
    run.run(&["--list"]).is(0, &["CUDA driver  missing", "matmul       cannot run", "needs CUDA driver"]);
    assert!(!run.out().exists());
}

#[test]
fn a_driver_that_is_too_old_is_named_with_what_it_takes() {
    Run::new("old").fault("STUB_VERSION", 12_040).run(&[]).is(4, &["the driver runs CUDA 12.4, and 12.8 is needed"]);
    Run::new("mismatch").fault("STUB_INIT", 803).run(&[]).is(4, &["do not fit together"]);
    let behind = Run::new("behind").fault("STUB_VERSION", 12_080);
    behind.run(&["--sweeps", "matmul"]).is(4, &["cuBLASLt is of CUDA 13.0, and the driver runs 12.x at most"]);
    // What needs no such library runs all the same.
    behind.run(&["--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["new points"]);
}

#[test]
fn a_machine_without_a_device_is_told_so() {
    Run::new("none").fault("STUB_DEVICES", 0).run(&[]).is(3, &["sees no device", "CUDA_VISIBLE_DEVICES"]);
    Run::new("no-device").fault("STUB_INIT", 100).run(&[]).is(3, &["sees no device"]);
    Run::new("other").run(&["--device", "3"]).is(2, &["--device 3: there are 1 device(s)"]);
}

#[test]
fn a_busy_device_is_left_alone_unless_one_insists() {
    let run = Run::new("process").fault("STUB_PROCESS", 4711);
    run.run(&[]).is(5, &["device 0 is busy: 1 process(es) use it: 4711 (trainer)", "--busy-ok"]);
    run.run(&["--list"]).is(0, &["busy: 1 process(es)"]);
    assert!(!run.out().exists());
    run.run(&["--busy-ok", "--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["8 new points"]);
    // What was measured beside others says so, and is measured again where nobody else works.
    let machines = |run: &Run| {
        let text = std::fs::read_to_string(run.out()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let others = lines.filter_map(|line| Some(line.get("machine")?["disturbed"].as_str().map(str::to_owned)));
        others.collect::<Vec<_>>()
    };
    let others = Some("1 process(es) use it: 4711 (trainer)".to_owned());
    assert_eq!(machines(&run), std::slice::from_ref(&others));
    let alone = Run { folder: run.folder.clone(), faults: vec![] };
    alone.run(&["--busy-ok", "--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["8 new points"]);
    assert_eq!(machines(&run), [others, None]);
    alone.run(&["--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["0 new points, 8 were known"]);
    Run::new("load").fault("STUB_LOAD", 95).run(&[]).is(5, &["under load"]);
    Run::new("exclusive").fault("STUB_RETAIN", 46).run(&[]).is(5, &["taken by another process"]);
}

#[test]
fn what_does_not_fit_is_left_out_and_nothing_fitting_is_an_error() {
    let full = Run::new("full").fault("STUB_FREE", 1 << 20);
    full.run(&[]).is(8, &["out of device memory", "free the device"]);
    let tight = Run::new("tight").fault("STUB_FREE", 1u64 << 29);
    tight.run(&["--sweeps", "host_copy", "--minutes", "0.3"]).is(0, &["left out", "out of device memory: 1073.7 MB"]);
    assert!(tight.points().len() >= 14, "{} points", tight.points().len());
    // What was left out stands in the file, once however often it is tried.
    let skipped = || {
        let text = std::fs::read_to_string(tight.out()).unwrap();
        text.lines().filter(|line| line.starts_with("{\"skipped\":")).map(str::to_owned).collect::<Vec<_>>()
    };
    let first = skipped();
    assert!(first.iter().any(|line| line.contains("out of device memory: 1073.7 MB")), "{first:?}");
    tight.run(&["--sweeps", "host_copy", "--minutes", "0.3"]).is(0, &["left out"]);
    assert_eq!(skipped(), first);
}

#[test]
fn a_device_that_gives_up_ends_the_run_and_keeps_its_points() {
    let run = Run::new("breaks").fault("STUB_BREAK_AFTER", 40_000);
    run.run(&["--sweeps", "memory,overhead", "--minutes", "1", "--burst-only"]).is(6, &["the device gave up"]);
    assert!(!run.points().is_empty());
}

#[test]
fn a_missing_library_names_the_sweeps_that_it_costs() {
    let run = Run::without("no-nvrtc", &["nvrtc"]);
    if here(&run, "NVRTC") {
        return;
    }
    run.run(&["--list"]).is(0, &["NVRTC        missing", "memory       cannot run: the sweep memory needs NVRTC"]);
    run.run(&["--sweeps", "memory"]).is(7, &["the sweep memory needs NVRTC", "--libraries"]);
    run.run(&["--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["8 new points"]);
    run.run(&["--sweeps", "sideways"]).is(2, &["there is no sweep \"sideways\"", "matmul, grouped, attention, memory"]);
}

#[test]
fn every_sweep_runs_through_and_says_nothing_that_the_libraries_refuse() {
    let run = Run::new("all");
    run.run(&["--list"]).is(0, &["Stub H200, 132 processors", "idle", "matmul       can run", "overlap      can run"]);
    for (sweep, minutes, kinds) in [
        ("matmul,grouped", "0.15", ["matmul", "grouped_matmul"].as_slice()),
        ("memory,host_copy,overhead", "0.15", &["memory", "host_copy", "overhead"]),
        ("overlap", "0.15", &["overlap"]),
    ] {
        let ended = run.run(&["--sweeps", sweep, "--minutes", minutes, "--burst-only"]);
        ended.is(0, &["new points"]);
        assert!(!ended.text.contains("left out"), "{sweep}: {}", ended.text);
        let points = run.points();
        for kind in kinds {
            assert!(points.iter().any(|point| point["what"].get(kind).is_some()), "no {kind} from {sweep}");
        }
    }
    for point in run.points() {
        let board = &point["board"];
        assert_eq!((board["power"].as_f64(), board["clock"].as_f64()), (Some(400.0), Some(1830.0)), "{point}");
        assert!(point["repeats"].as_u64() >= Some(12), "{point}");
        if let Some(matmul) = point["what"].get("matmul") {
            // What the stub's clock says: 25 microseconds each, whatever the batch.
            assert_eq!(point["median"].as_f64(), Some(25.0), "{matmul}");
            assert!(point["algorithm"].as_str().unwrap().starts_with("id=1 tile=2 split_k=3"), "{point}");
        }
    }
}

#[test]
fn every_number_format_and_layout_is_put_to_the_library_as_it_wants_it() {
    let run = Run::new("formats");
    let mut plan = String::new();
    let mut planned = 0;
    for dtype in ["bf16", "fp8_tensor", "fp8_row", "fp8_block", "tf32", "fp32"] {
        for layout in ["forward", "data_gradient", "weight_gradient", "weight_gradient_fp32"] {
            let what = format!(r#"{{"matmul":{{"m":384,"n":640,"k":1280,"dtype":"{dtype}","layout":"{layout}"}}}}"#);
            plan += &format!("{{\"what\":{what},\"value\":1.0}}\n");
            planned += 1;
        }
        plan += &format!(
            "{{\"what\":{{\"grouped_matmul\":{{\"groups\":6,\"m\":256,\"n\":512,\"k\":384,\"dtype\":\"{dtype}\"}}}},\"value\":1.0}}\n"
        );
        planned += 1;
    }
    let file = run.folder.join("plan.jsonl");
    std::fs::write(&file, plan).unwrap();
    let arguments =
        ["--plan", file.to_str().unwrap(), "--sweeps", "matmul,grouped", "--minutes", "0.2", "--burst-only"];
    let ended = run.run(&arguments);
    ended.is(0, &["new points"]);
    assert!(!ended.text.contains("left out"), "{}", ended.text);
    let asked = |point: &&serde_json::Value| {
        let what = &point["what"];
        (what["matmul"]["m"] == 384 && what["matmul"]["n"] == 640) || what["grouped_matmul"]["groups"] == 6
    };
    assert_eq!(run.points().iter().filter(asked).count(), planned, "the plan's own are worth most");
    std::fs::write(&file, "{\"what\":{\"matmul\":{\"m\":1}},\"value\":1.0}\n").unwrap();
    run.run(&arguments).is(2, &["plan.jsonl:1: missing field"]);
    let whole = r#"{"matmul":{"m":4294967296,"n":4294967296,"k":4294967296,"dtype":"bf16","layout":"forward"}}"#;
    std::fs::write(&file, format!("\n{{\"what\":{whole},\"value\":1.0}}\n")).unwrap();
    run.run(&arguments).is(2, &["plan.jsonl:2: 1 matmul(s) of 4294967296 x", "above zero"]);
}

#[test]
fn wrong_results_are_found() {
    // The stub computes nothing: results are what operands are.
    let run = Run::new("check");
    run.run(&["--check"]).is(6, &["matmul: bf16 forward: row 0, column 0 is 12.0625, and"]);
    run.run(&["--check", "--sweeps", "memory"]).is(6, &["memory: add_2r1w does not compute what the host does"]);
    run.run(&["--check", "--sweeps", "overhead"]).is(0, &[]);
    let lost = Run::new("lost").fault("STUB_ZERO", 1);
    lost.run(&["--check"]).is(6, &["matmul: what was written to the device does not come back"]);
    assert!(!run.out().exists());
}

#[test]
fn sustained_clocks_are_measured_after_heating_up() {
    let run = Run::new("sustained");
    run.run(&["--sweeps", "matmul", "--minutes", "0.4"]).is(0, &["heating up", "400 W of 700 W"]);
    let regimes: BTreeSet<String> =
        run.points().iter().map(|point| point["regime"].as_str().unwrap().to_owned()).collect();
    assert_eq!(regimes, ["burst".to_owned(), "sustained".to_owned()].into());
}

#[test]
fn an_interrupt_loses_nothing_and_the_same_command_goes_on() {
    let run = Run::new("interrupt");
    for signal in ["INT", "TERM"] {
        let before = run.points().len();
        let child = run.command(&["--sweeps", "memory,matmul", "--minutes", "5"]).spawn().unwrap();
        let began = Instant::now();
        let size = || std::fs::metadata(run.out()).map_or(0, |file| file.len());
        let start = size();
        while size() < start + 3000 {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing was measured");
            std::thread::sleep(Duration::from_millis(20));
        }
        let asked = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        Ended::of(&child.wait_with_output().unwrap()).is(130, &["interrupted", "the same command goes on"]);
        assert!(run.points().len() > before + 2);
    }
    let before = run.points();
    run.run(&["--sweeps", "memory,matmul", "--minutes", "0.05", "--burst-only"]).is(0, &["were known"]);
    let after = run.points();
    assert_eq!(after[..before.len()], before, "what was measured stays as it was");
    let distinct: BTreeSet<String> =
        after.iter().map(|point| format!("{} {}", point["what"], point["regime"])).collect();
    assert_eq!(distinct.len(), after.len(), "nothing is measured twice");
}

#[test]
fn a_full_disk_ends_the_run_and_the_same_command_goes_on() {
    let run = Run::new("disk");
    let sweeps = ["--sweeps", "memory,matmul", "--minutes", "0.05", "--burst-only"];
    let asked = run.command(&sweeps);
    let mut limited = Command::new("bash");
    // Files end at 3 KiB, which is in the middle of a line.
    limited.args(["-c", "ulimit -f 3; exec \"$0\" \"$@\""]).arg(asked.get_program()).args(asked.get_args());
    for (name, value) in asked.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let full = limited.output().unwrap();
    Ended::of(&full).is(2, &["points.jsonl", "File too large"]);
    let before = run.points();
    assert!(!before.is_empty());
    run.run(&sweeps).is(0, &["were known"]);
    assert_eq!(run.points()[..before.len()], before, "what was measured stays as it was");
}

#[test]
fn points_of_another_machine_are_not_mixed_in() {
    let run = Run::new("mixed");
    run.run(&["--sweeps", "overhead", "--minutes", "0.1"]).is(0, &["8 new points"]);
    let file = std::fs::read(run.out()).unwrap();
    let other = Run { folder: run.folder.clone(), faults: vec![] }.fault("STUB_NAME", "Stub B200");
    other.run(&["--sweeps", "overhead"]).is(2, &["another machine: its chip is Stub H200, here it is Stub B200"]);
    let throttled = Run { folder: run.folder.clone(), faults: vec![] }.fault("STUB_LIMIT", 500);
    throttled.run(&["--sweeps", "overhead"]).is(2, &["its power limit is 700 W, here it is 500 W"]);
    assert_eq!(std::fs::read(run.out()).unwrap(), file);
}

#[test]
fn points_go_into_a_plain_file_and_a_reader_may_go_away() {
    let run = Run::new("plain");
    let pipe = run.out();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    run.run(&["--sweeps", "overhead", "--minutes", "0.1"]).is(2, &["points.jsonl: not a plain file"]);
    std::fs::remove_file(&pipe).unwrap();
    // The end that reads is closed before anything is printed: nothing is said, and it is no success.
    let mut child = run.command(&["--list"]).spawn().unwrap();
    drop(child.stdout.take());
    Ended::of(&child.wait_with_output().unwrap()).is(141, &[]);
}
