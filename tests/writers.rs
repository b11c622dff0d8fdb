//! Every file that a command of either binary writes, under every fault: the old file or the new one whole, an exit code that is not 0,
//! a message that names the path. The calibrator's tests include this file for its half of the table.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What a command line does without a fault.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    /// Writes a file, in place of one that is there.
    Replace,
    /// Writes a file that is not there yet.
    Create,
    /// Needs more than a test has to get as far as writing; the path is tried all the same.
    Try,
}

use Does::{Create, Replace, Try};

/// Binary, command line, what it does: `{}` is the file that is written, `@` marks the input that it waits for when it is a pipe.
/// A line ends with the option that names the file.
const WRITERS: [(&str, &str, Does); 28] = [
    ("windtunnel", "run @scenario.toml --json {}", Replace),
    ("windtunnel", "run @scenario.toml --trace {}", Replace),
    ("windtunnel", "run @scenario.toml --html {}", Replace),
    ("windtunnel", "why @scenario.toml --json {}", Replace),
    ("windtunnel", "ceiling @scenario.toml --max 256 --html {}", Replace),
    ("windtunnel", "ceiling @scenario.toml --max 256 --json {}", Replace),
    ("windtunnel", "sweep @scenario.toml --vary batch.micro=1,2 --csv {}", Replace),
    ("windtunnel", "plan @request.toml --html {}", Replace),
    ("windtunnel", "plan @request.toml --json {}", Replace),
    ("windtunnel", "compare @scenario.toml measured.toml --html {}", Replace),
    ("windtunnel", "compare @scenario.toml measured.toml --json {}", Replace),
    ("windtunnel", "check @measured.toml --json {}", Replace),
    ("windtunnel", "check @measured.toml --html {}", Replace),
    ("windtunnel", "check @measured.toml --runs {}", Replace),
    ("windtunnel", "check @measured.toml --row measured.toml --trace {}", Replace),
    ("windtunnel", "receipt to-scenario tt-llama31-8b-h100x8-fsdp --from @receipts.jsonl --to {}", Replace),
    ("windtunnel", "import torchtitan @titan.toml --on h100-sxm-80gb --nodes 1 --out {}", Replace),
    ("windtunnel", "import trace @trace.json --json {}", Replace),
    ("windtunnel", "import log @run.log --out {}", Replace),
    ("windtunnel", "profile merge @base.toml h100-sxm-80gb --out {}", Replace),
    ("windtunnel-calibrate", "fit @points.jsonl --base h200-sxm-141gb --out {}", Replace),
    ("windtunnel-calibrate", "import nccl-tests @nccl.log --out {}", Create),
    ("windtunnel-calibrate", "import csv @table.csv --out {}", Create),
    ("windtunnel-calibrate", "compile-check @compiled.toml --plugin cpu --json {}", Try),
    ("windtunnel-calibrate", "compile-check @compiled.toml --plugin cpu --emit {}", Try),
    ("windtunnel-calibrate", "compile-check --program @program.mlir --topology v6e:2x2 --html {}", Try),
    ("windtunnel-calibrate", "xla compile @program.mlir --hlo {}", Try),
    ("windtunnel-calibrate", "cuda --plan @plan.jsonl --out {}", Try),
];

/// Options that name a folder or a file that grows, and have tests of their own.
const OTHER_WRITERS: [(&str, &str); 9] = [
    ("windtunnel", "check --cache"),
    ("windtunnel", "man --out"),
    ("windtunnel", "new --out"),
    ("windtunnel", "plan --out"),
    ("windtunnel", "plan --resume"),
    ("windtunnel", "sweep --out"),
    ("windtunnel-calibrate", "import published --out"),
    ("windtunnel-calibrate", "import published --held-out"),
    ("windtunnel-calibrate", "xla --out"),
];

/// Options with a value that is not the name of a file that is written.
const NO_WRITERS: &str = "on micro rank trace-in scenario slices budget chips days draws framework global-batch headroom model money on price prices set tokens top base best between changes chip collective compare compilations costs device devices fail-above flag for from grade \
    hardware hop kernels lane libraries limit max microbatches minutes nodes partitions plan plugin program ranks row sample sequence slice \
    source stage stages step sweeps timeout topology uncertainty vary version virtual wheel";

/// Subcommands that become the calibrator.
const PASSED_ON: [&str; 4] = ["calibrate", "compile-check", "profile fit", "profile residuals"];

/// A binary under test, and a folder with all inputs.
pub struct Bench {
    name: &'static str,
    binary: &'static str,
    folder: PathBuf,
}

impl Bench {
    /// In a fresh folder with these files.
    pub fn new(name: &'static str, binary: &'static str, tmp: &str, files: &[(&str, String)]) -> Bench {
        let folder = Path::new(tmp)
            .join(format!("writers-{name}-{}", std::thread::current().name().unwrap_or("main").replace(':', "-")));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
        Bench { name, binary, folder }
    }

    fn writers(&self) -> impl Iterator<Item = (&'static str, Does)> {
        let name = self.name;
        WRITERS.iter().filter(move |(binary, ..)| *binary == name).map(|(_, line, does)| (*line, *does))
    }

    /// Runs a line of a shell in which the binary is `$0`.
    pub fn shell(&self, line: &str) -> Output {
        let mut command = Command::new("bash");
        command.args(["-c", line, self.binary]).current_dir(&self.folder).stdin(Stdio::null());
        command.env("WINDTUNNEL_CACHE", self.folder.join("cache")).output().unwrap()
    }

    /// An output with something in it, or none.
    fn output(&self, old: Option<&str>) -> PathBuf {
        let path = self.folder.join("answer.toml");
        let _ = fs::remove_file(&path);
        old.iter().for_each(|old| fs::write(&path, old).unwrap());
        path
    }

    fn parts(&self) -> Vec<String> {
        let names = fs::read_dir(&self.folder).unwrap().flatten().map(|entry| entry.file_name());
        names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.ends_with(".part")).collect()
    }

    /// What a command writes where nothing goes wrong.
    pub fn written(&self, line: &str) -> Vec<u8> {
        let path = self.output(None);
        let done = self.shell(&format!("\"$0\" {}", plain(line)));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success() && path.is_file(), "{line}: {said}");
        fs::read(path).unwrap()
    }

    /// Every option of every subcommand that takes a value is known to write a file or not to.
    pub fn every_writer_is_in_the_table(&self) {
        let mut found = vec![];
        let mut open = vec![String::new()];
        while let Some(command) = open.pop() {
            let help = self.shell(&format!("\"$0\" {command} --help"));
            let text = String::from_utf8(help.stdout).unwrap();
            assert!(help.status.success() && text.contains("Usage:"), "{command}: {text}");
            let commands = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
            for line in commands.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
                let name = format!("{command} {}", line.split_whitespace().next().unwrap()).trim().to_owned();
                let passed_on = self.name == "windtunnel" && PASSED_ON.contains(&&*name);
                if !passed_on && !name.ends_with("help") {
                    open.push(name);
                }
            }
            for line in text.lines().map(str::trim_start) {
                let line = if line.starts_with('-') && line.as_bytes().get(2) == Some(&b',') {
                    line[3..].trim_start()
                } else {
                    line
                };
                let Some((option, _)) = line.strip_prefix("--").and_then(|rest| rest.split_once(" <")) else {
                    continue;
                };
                if !NO_WRITERS.split_whitespace().any(|known| known == option) {
                    found.push(format!("{command} --{option}"));
                }
            }
        }
        let words = |line: &str| {
            let named: Vec<&str> = line
                .split(" @")
                .next()
                .unwrap()
                .split(' ')
                .take_while(|word| {
                    !word.starts_with("--") && !["tt-llama31-8b-h100x8-fsdp", "torchtitan"].contains(word)
                })
                .collect();
            format!("{} {}", named.join(" "), line.split(' ').rev().nth(1).unwrap())
        };
        let mut known: Vec<String> = self.writers().map(|(line, _)| words(line)).collect();
        known.extend(
            OTHER_WRITERS.iter().filter(|(binary, _)| *binary == self.name).map(|(_, option)| (*option).to_owned()),
        );
        found.sort();
        known.sort();
        assert_eq!(found, known, "an option that writes a file belongs into WRITERS, another into NO_WRITERS");
    }

    /// A place that cannot be written to is refused before the inputs are looked at, which are not there.
    pub fn a_place_that_cannot_be_written_is_refused_first(&self) {
        let locked = self.folder.join("locked.toml");
        fs::write(&locked, "old").unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o444)).unwrap();
        for (line, _) in self.writers() {
            // A folder of the kernel's takes no file, not even from root; nor does a file.
            for place in ["/proc/answer.toml", "locked.toml/answer.toml", ".", "locked.toml"] {
                // A journal is appended to, which root may do to any file.
                if line.starts_with("cuda") && place == "locked.toml" {
                    continue;
                }
                let missing = line.replace('@', "no-such-").replace("{}", place);
                let done = self.shell(&format!("\"$0\" {missing}"));
                let said = String::from_utf8_lossy(&done.stderr);
                assert!(matches!(done.status.code(), Some(1..=3)), "{line}: {said}");
                assert!(
                    said.contains(place) && !said.contains("no-such-") && !said.contains(".part"),
                    "{line}: {said}"
                );
            }
        }
        assert_eq!(fs::read(&locked).unwrap(), b"old");
        assert_eq!(self.parts(), Vec::<String>::new());
    }

    /// A disk that takes nothing leaves the old file, or none.
    pub fn a_full_disk_leaves_the_old_file(&self) {
        for (line, does) in self.writers().filter(|(_, does)| *does != Try) {
            for old in [Some("old"), None] {
                let path = self.output(old);
                let done = self.shell(&format!("ulimit -f 0; \"$0\" {} > /dev/null", plain(line)));
                let said = String::from_utf8_lossy(&done.stderr);
                assert_eq!(done.status.code(), Some(2), "{line}: {said}");
                let why = if does == Create && old.is_some() { "is there already" } else { "File too large" };
                assert!(
                    said.contains("answer.toml") && said.contains(why) && !said.contains(".part"),
                    "{line}: {said}"
                );
                assert_eq!(fs::read_to_string(path).ok().as_deref(), old, "{line}");
                assert_eq!(self.parts(), Vec::<String>::new(), "{line}");
            }
            let done = self.shell(&format!("\"$0\" {} > /dev/null", line.replace('@', "").replace("{}", "/dev/full")));
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.code() == Some(2) && said.contains("/dev/full"), "{line}: {said}");
        }
    }

    /// A terminal or a reader of standard output that takes nothing is no success, and the file is whole all the same.
    pub fn a_report_that_nobody_takes_costs_no_file(&self) {
        for (line, _) in self.writers().filter(|(_, does)| *does != Try) {
            let whole = self.written(line);
            for line in [
                format!("\"$0\" {} > /dev/full", plain(line)),
                format!("{{ sleep 0.2; \"$0\" {}; }} | true; exit ${{PIPESTATUS[0]}}", plain(line)),
            ] {
                let path = self.output(None);
                let done = self.shell(&line);
                // A command that prints nothing has nothing to fail at.
                let prints =
                    ["import torchtitan ", "import trace ", "import log "].iter().any(|start| line.contains(start));
                let silent = line.contains("import ") && !prints;
                assert_eq!(done.status.success(), silent, "{line}: {}", String::from_utf8_lossy(&done.stderr));
                assert!(fs::read(path).unwrap() == whole, "{line}");
            }
        }
    }

    /// Whatever signal ends a command while it works, the old file stays, nothing lies beside it, and somebody is told.
    pub fn an_interrupt_leaves_the_old_file(&self) {
        let signals = ["INT", "TERM", "HUP", "QUIT"];
        for (at, (line, does)) in self.writers().enumerate() {
            let old = (does != Create).then_some("old");
            let path = self.output(old);
            let pipe = line.split_once('@').unwrap().1.split(' ').next().unwrap();
            let pipe = format!("pipe-{pipe}");
            let _ = fs::remove_file(self.folder.join(&pipe));
            assert!(Command::new("mkfifo").arg(self.folder.join(&pipe)).status().unwrap().success());
            let arguments = line.replace('@', "pipe-").replace("{}", "answer.toml");
            let mut command = Command::new(self.binary);
            command.args(arguments.split(' ')).current_dir(&self.folder).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = command.env("WINDTUNNEL_CACHE", self.folder.join("cache")).spawn().unwrap();
            // A journal lies open only when there is a device.
            let waits = || !arguments.starts_with("cuda") && self.parts().is_empty();
            let begun = Instant::now();
            while waits() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{line}: the output was not opened");
                std::thread::sleep(Duration::from_millis(5));
            }
            let signal = signals[at % signals.len()];
            assert!(
                Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success()
            );
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(!ended.status.success(), "{line}: {said}");
            if !arguments.starts_with("cuda") {
                assert!(said.contains("interrupted: answer.toml is as it was"), "{line}, {signal}: {said}");
            }
            assert_eq!(fs::read_to_string(path).ok().as_deref(), old, "{line}");
            assert_eq!(self.parts(), Vec::<String>::new(), "{line}, {signal}");
        }
    }

    /// An output that is also an input, under whichever name, is refused, and the input is as it was.
    pub fn what_is_read_is_not_written(&self) {
        for (line, does) in self.writers().filter(|(line, _)| !line.starts_with("cuda")) {
            let input = line.split_once('@').unwrap().1.split(' ').next().unwrap();
            let before = fs::read(self.folder.join(input)).unwrap_or_default();
            let done = self.shell(&format!("\"$0\" {}", line.replace('@', "").replace("{}", &format!("./{input}"))));
            let said = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(2), "{line}: {said}");
            let why = if does == Create { "is there already" } else { "would write it, too" };
            // A profile is known by its ending, and points have another.
            let ending = said.contains("ends in .toml");
            assert!(said.contains(input) && (said.contains(why) || ending), "{line}: {said}");
            assert!(fs::read(self.folder.join(input)).unwrap_or_default() == before, "{line}");
        }
    }

    /// A file here.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs arguments here, for tests of one command.
    pub fn run(&self, line: &str) -> (Option<i32>, String) {
        let done = self.shell(&format!("\"$0\" {line}"));
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

fn plain(line: &str) -> String {
    line.replace('@', "").replace("{}", "answer.toml")
}
