//! Looks for failures that no test knows: every property, every seed of the fuzz targets and the hostile scenarios with seeds that were
//! never drawn before, and the fuzz targets where cargo-fuzz is installed. `WILD_MINUTES=30 cargo wild`.
//!
//! A round takes each of them for a share of the time, and rounds follow until the time is over. What fails is printed with what to
//! keep: proptest writes its case to `proptest-regressions/`, libFuzzer its input to `tests/fuzz/artifacts/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

use crate::hostile;
use crate::mutations;
use crate::tidy::files;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// How long it looks where `WILD_MINUTES` does not say.
const MINUTES: f64 = 30.0;
/// Hostile scenarios of a round, behind those of single keys, which every run of the tests takes.
const HOSTILE: u64 = 4_000;
/// How long a fuzz target runs in a round.
const FUZZED: Duration = Duration::from_secs(40);
/// What a fuzz target may hold \[MiB\], and take for one input \[s\].
const LIMITS: [&str; 3] = ["-rss_limit_mb=1024", "-timeout=10", "-max_len=16384"];

/// The names of tests that draw their input: functions whose parameters are drawn from strategies.
fn properties() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let sources = ["sim", "tests", "calibrate"].into_iter().flat_map(|folder| files(folder, ".rs"));
    for text in sources.map(|path| std::fs::read_to_string(path).unwrap()) {
        if !text.contains("proptest! {") {
            continue;
        }
        for function in text.split("fn ").skip(1) {
            let Some((name, rest)) = function.split_once('(') else { continue };
            let parameters = rest.split_once(") {").map_or("", |(parameters, _)| parameters);
            if parameters.contains(" in ") && !parameters.contains('{') {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// The programs of this workspace's tests, built as this one is.
fn programs(own: &Path) -> Vec<PathBuf> {
    let built = own.parent().and_then(Path::parent).and_then(Path::file_name).unwrap().to_string_lossy().into_owned();
    let profile = if built == "debug" { "dev".to_owned() } else { built };
    let output = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--no-run", "--message-format", "json", "--profile", &profile])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let said = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    said.filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect()
}

/// Tests of a program that draw: properties, and what damages seeds.
fn drawing(program: &Path, properties: &BTreeSet<String>) -> Vec<String> {
    let listed = Command::new(program).args(["--list", "--format", "terse"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let draws = |test: &&str| {
        let name = test.rsplit("::").next().unwrap_or(test);
        properties.contains(name) || test.starts_with("seeds::")
    };
    tests.filter(draws).map(str::to_owned).collect()
}

/// What has been looked at, and what was found.
struct Wild {
    /// This program, by its name from before it was built anew: what runs has none once its file is replaced.
    own: PathBuf,
    until: Instant,
    rng: TestRng,
    found: Vec<String>,
    looked: u64,
}

impl Wild {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Runs something; what it says counts if it fails.
    fn run(&mut self, what: &str, command: &mut Command, kept: fn(&str) -> bool) -> Output {
        let begun = Instant::now();
        let output = command.current_dir(ROOT).output().unwrap();
        self.looked += 1;
        let failed = !output.status.success();
        println!("{what}: {} ({:.0} s)", if failed { "FAILED" } else { "clean" }, begun.elapsed().as_secs_f64());
        if failed {
            let said = [&output.stdout[..], &output.stderr[..]].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            let lines: Vec<&str> = said.lines().filter(|line| kept(line)).take(40).collect();
            let found = format!("{what}, {}:\n  {}", output.status, lines.join("\n  "));
            println!("{found}");
            self.found.push(found);
        }
        output
    }

    fn properties(&mut self, program: &Path, tests: &[String]) {
        let kept = |line: &str| {
            ["panicked", "minimal failing", "cc ", "successes", "Saving", "assertion", "left:", "right:", "FAILED"]
                .iter()
                .any(|word| line.contains(word))
        };
        let mut command = Command::new(program);
        command.arg("--exact").args(tests).env_remove("PROPTEST_RNG_SEED");
        let seed = self.rng.next_u64();
        command.env(mutations::SEED, seed.to_string());
        let name = program.file_stem().unwrap().to_string_lossy().into_owned();
        self.run(&format!("{} properties of {name}, damage of seed {seed}", tests.len()), &mut command, kept);
    }

    fn hostile(&mut self) {
        let seed = self.rng.next_u64() >> 1;
        let mut command = Command::new(&self.own);
        command
            .args(["hostile::as_many", "--ignored", "--nocapture"])
            .env("HOSTILE_SEED", seed.to_string())
            .env("HOSTILE_FROM", hostile::Ground::new().singles().to_string())
            .env("HOSTILE_CASES", HOSTILE.to_string());
        self.run(&format!("{HOSTILE} hostile scenarios of seed {seed}"), &mut command, |line| line.contains("case "));
    }

    fn target(&mut self, target: &str) {
        let left = self.until.saturating_duration_since(Instant::now()).min(FUZZED);
        let (corpus, seeds) = (format!("tests/fuzz/corpus/{target}"), format!("tests/fuzz/seeds/{target}"));
        std::fs::create_dir_all(Path::new(ROOT).join(&corpus)).unwrap();
        let mut command = fuzz();
        command.args(["run", "--fuzz-dir", "tests/fuzz", "-s", "none", target, &corpus]);
        command.args([&seeds, "tests/traces/small"].into_iter().filter(|seeds| Path::new(ROOT).join(seeds).is_dir()));
        command.arg("--").args(LIMITS).arg(format!("-max_total_time={}", left.as_secs().max(1)));
        command.arg(format!("-seed={}", self.rng.next_u64() as u32));
        let kept = |line: &str| {
            ["panicked", "ERROR", "Test unit", "artifact", "SUMMARY", "assertion", "left:", "right:", "error"]
                .iter()
                .any(|word| line.contains(word))
        };
        self.run(&format!("fuzz target {target}"), &mut command, kept);
    }
}

/// cargo-fuzz on the stable compiler, which has its flags under this name only.
fn fuzz() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.arg("fuzz").env("RUSTC_BOOTSTRAP", "1");
    command
}

/// The fuzz targets, if there is something to run them.
fn targets() -> Vec<String> {
    let is_there = fuzz().arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("cargo-fuzz is not installed, so no fuzz target runs: cargo install cargo-fuzz");
        return vec![];
    }
    let files = std::fs::read_dir(Path::new(ROOT).join("tests/fuzz/fuzz_targets")).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
#[ignore = "looks for new failures for WILD_MINUTES minutes"]
fn minutes() {
    let said = std::env::var("WILD_MINUTES").ok();
    let minutes = said.map_or(MINUTES, |said| said.parse().expect("WILD_MINUTES is a number"));
    let own = std::env::current_exe().unwrap();
    let (programs, targets, properties) = (programs(&own), targets(), properties());
    let drawing: Vec<(PathBuf, Vec<String>)> =
        programs.into_iter().map(|program| (program.clone(), drawing(&program, &properties))).collect();
    // Time as a seed: what was never drawn before is what this is for.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let mut seed = [0; 32];
    seed[..16].copy_from_slice(&now.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let until = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let mut wild = Wild { own, until, rng, found: vec![], looked: 0 };
    while !wild.is_over() {
        for (program, tests) in drawing.iter().filter(|(_, tests)| !tests.is_empty()) {
            wild.properties(program, tests);
        }
        for target in &targets {
            if !wild.is_over() {
                wild.target(target);
            }
        }
        if !wild.is_over() {
            wild.hostile();
        }
    }
    println!("{} runs in {minutes} minutes, {} failed", wild.looked, wild.found.len());
    assert!(wild.found.is_empty(), "{}", wild.found.join("\n"));
}

/// Whoever writes a property writes it so that `cargo wild` finds it, and each fuzz target has seeds, which every run of the tests reads.
#[test]
fn properties_and_fuzz_targets_are_found() {
    let properties = properties();
    assert!(properties.len() > 70, "{}", properties.len());
    let own = drawing(&std::env::current_exe().unwrap(), &properties);
    assert!(own.len() > 20 && own.iter().any(|test| test.starts_with("seeds::")), "{own:?}");
    let listed = std::fs::read_to_string(Path::new(ROOT).join("tests/fuzz/Cargo.toml")).unwrap();
    let read = ["tests/seeds.rs", "calibrate/tests/seeds.rs"]
        .map(|file| std::fs::read_to_string(Path::new(ROOT).join(file)).unwrap())
        .concat();
    for entry in std::fs::read_dir(Path::new(ROOT).join("tests/fuzz/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let target = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(std::fs::read_to_string(&path).unwrap().contains("fuzz_target!("), "{target} reads nothing");
        assert!(listed.contains(&format!("name = \"{target}\"")), "{target} is not in tests/fuzz/Cargo.toml");
        assert!(read.contains(&format!("\"{target}\"")), "no test reads the seeds of {target}");
    }
}
