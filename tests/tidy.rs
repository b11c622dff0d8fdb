//! The house rules that a compiler does not check, each with the line that breaks it.

use std::fs;
use std::path::{Path, PathBuf};

use windtunnel::hardware;
use windtunnel::model::huggingface::shipped;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::samples::SAMPLES;
use windtunnel::scenario::{Scenario, predict};

/// The layers, lowest first: a file names only layers above it in this list. `program` is the language the later ones
/// speak, so it stands early.
const LAYERS: [&str; 27] = [
    "near",
    "statistics",
    "budget",
    "tables",
    "files",
    "bug",
    "units",
    "trace",
    "log",
    "hardware",
    "failures",
    "model",
    "program",
    "cost",
    "schedule",
    "plan",
    "runtime",
    "network",
    "memory",
    "engine",
    "scenario",
    "import",
    "report",
    "gap",
    "explore",
    "receipt",
    "cli",
];

/// Names that are not in the order above, and why.
const CROSSINGS: [(&str, &str, &str); 1] = [("model", "program", "operators carry the program's number formats")];

/// Files over 500 lines, and why.
const LONG: [(&str, &str); 0] = [];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files under `folder` that end in `ending`, in order.
pub fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} under {folder}");
    found
}

/// The source files of all crates.
fn sources() -> impl Iterator<Item = PathBuf> {
    ["sim", "calibrate", "python"].into_iter().flat_map(|folder| files(folder, ".rs"))
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// Lines of a source file outside its tests and comments, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end]
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn is_test(path: &Path) -> bool {
    let name = name(path);
    name.ends_with("tests.rs") || name.contains("/tests/")
}

/// Fails with every line of `sim/`, tests aside, for which `breaks` has something to say.
fn no_line(rule: &str, breaks: impl Fn(&str, &str) -> Option<String>) {
    let mut broken = vec![];
    for path in files("sim", ".rs").into_iter().filter(|path| !is_test(path)) {
        let (name, text) = (name(&path), fs::read_to_string(&path).unwrap());
        for (line, content) in code(&text) {
            if let Some(what) = breaks(&name, content) {
                broken.push(format!("{name}:{line}: {what}"));
            }
        }
    }
    assert!(broken.is_empty(), "{rule}\n{}", broken.join("\n"));
}

#[test]
fn a_layer_names_only_layers_above_it() {
    let place = |layer: &str| LAYERS.iter().position(|&known| known == layer);
    no_line("a layer may use only layers before it (see LAYERS)", |file, line| {
        let own = file.strip_prefix("sim/").unwrap().split(['/', '.']).next().unwrap();
        if matches!(own, "lib" | "main") {
            return None;
        }
        let Some(own_place) = place(own) else { return Some(format!("{own} is not in the list of layers")) };
        let named = line.split("crate::").skip(1).chain(line.split("windtunnel::").skip(1));
        for rest in named {
            let layer: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let allowed = CROSSINGS.iter().any(|&(from, to, _)| from == own && to == layer);
            match place(&layer) {
                None => return Some(format!("{layer:?} is not in the list of layers")),
                Some(at) if at > own_place && !allowed => return Some(format!("{own} uses {layer}, a later layer")),
                Some(_) => {}
            }
        }
        None
    });
}

#[test]
fn no_file_outgrows_500_lines() {
    let mut long = vec![];
    for path in sources() {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        let name = name(&path);
        if lines > 500 && !LONG.iter().any(|(known, _)| *known == name) {
            long.push(format!("{name}:{lines}: split it, or give a reason in LONG"));
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn no_page_holds_both_sides_of_a_merge() {
    for page in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/receipts/README.md", "tests/oracles/README.md"]
    {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mark = text.lines().position(|line| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "));
        assert_eq!(mark.map(|line| line + 1), None, "{page}");
    }
}

#[test]
fn every_source_file_opens_with_what_it_is() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! "), "{}:1: open with one sentence, //! …", name(&path));
    }
}

#[test]
fn every_data_file_opens_with_what_it_is_and_whence() {
    for folder in ["scenarios", "topologies", "docs/start"] {
        for path in files(folder, ".toml") {
            let text = fs::read_to_string(&path).unwrap();
            let comment = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
            assert!(comment.len() > 20, "{}:1: open with a comment that says what it is", name(&path));
        }
    }
}

#[test]
fn every_shipped_scenario_flies() {
    for path in files("scenarios", ".toml").into_iter().chain(files("docs/start", ".toml")) {
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let answer = predict(&scenario, Settings::default()).unwrap_or_else(|error| panic!("{error}"));
        assert!(answer.step.0 > 0, "{}", name(&path));
        assert!(answer.mfu[0].utilisation > 0.0 && answer.mfu[0].utilisation < 1.0, "{}", name(&path));
    }
}

/// The stems of a folder's files.
fn stems(folder: &str, ending: &str) -> Vec<String> {
    let stem = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().strip_suffix(ending).unwrap().to_owned();
    files(folder, ending).into_iter().map(stem).collect()
}

#[test]
fn a_registry_lists_all_of_its_folder() {
    let mut topologies: Vec<String> = hardware::registry().iter().map(|listed| listed.name.to_owned()).collect();
    topologies.sort();
    assert_eq!(topologies, stems("topologies", ".toml"));
    let mut models: Vec<String> = shipped::names().map(str::to_owned).collect();
    models.sort();
    let mut files = stems("scenarios/models", ".json");
    files.sort();
    assert_eq!(models, files);
    let mut samples: Vec<&str> = SAMPLES.iter().map(|sample| sample.name).collect();
    samples.sort_unstable();
    let mut files = stems("scenarios", ".toml");
    files.sort();
    assert_eq!(samples, files);
    let profiles = fs::read_to_string(root().join("sim/cost/registry.rs")).unwrap();
    for profile in stems("sim/cost/profiles", ".toml") {
        assert!(profiles.contains(&format!("{profile:?}")), "sim/cost/registry.rs lacks {profile}");
    }
}

#[test]
fn order_never_comes_from_a_hash() {
    // Both find an id by what it is of, and hand ids out in the order of first appearance. The second is keyed at random, against names
    // in a trace that were chosen to collide.
    let interners = ["sim/program/intern.rs", "sim/trace/intern.rs"];
    no_line("a HashMap iterates in an order of its own: use a BTreeMap or a Vec by id", |file, line| {
        let hashed = ["HashMap", "HashSet", "HashTable", "RandomState"].iter().any(|kind| line.contains(kind));
        (hashed && !interners.contains(&file)).then(|| line.trim().to_owned())
    });
    let names = fs::read_to_string(root().join("sim/trace/intern.rs")).unwrap();
    for (line, content) in code(&names) {
        let iterated = [".iter()", ".iter_mut()", ".drain()", ".into_iter()", ".extract_if("]
            .iter()
            .any(|how| content.contains(&format!("ids{how}")));
        assert!(!iterated, "sim/trace/intern.rs:{line}: {}", content.trim());
    }
    let builder = fs::read_to_string(root().join("sim/program/builder.rs")).unwrap();
    for (line, content) in code(&builder) {
        let iterated = ["kernels", "comms", "transfers", "exchanges"].iter().any(|map| {
            [".iter()", ".values()", ".keys()", ".drain()", ".into_iter()"]
                .iter()
                .any(|how| content.contains(&format!("self.{map}{how}")))
        });
        assert!(!iterated, "sim/program/builder.rs:{line}: {}", content.trim());
    }
}

#[test]
fn lists_of_all_variants_are_derived_from_their_enum() {
    no_line("derive strum::VariantArray and write `pub const ALL: &[Kind] = Kind::VARIANTS`", |file, line| {
        // The registry of runtimes is no list of variants.
        let by_hand = line.contains("const ALL: [") && file != "sim/scenario/registry.rs";
        by_hand.then(|| line.trim().to_owned())
    });
}

#[test]
fn nothing_outside_the_command_line_reads_a_clock_or_the_environment() {
    no_line("predictions depend on files alone", |file, line| {
        let reads =
            ["std::time", "std::env", "env::var", "Instant::", "SystemTime", "SysRng", "rand::rng(", "thread::"];
        // Streams of a seed ask the system for nothing, and `rand` is built without the system's own source.
        let found = reads.iter().find(|&&what| line.contains(what))?;
        // Of files a thread listens for interrupts, and predicts nothing.
        (!file.starts_with("sim/cli") && !file.starts_with("sim/files")).then(|| (*found).to_owned())
    });
}

#[test]
fn everything_is_printed_by_files_which_tells_when_it_fails() {
    no_line("print by files::print and files::complain", |_, line| {
        let prints = ["println!", "print!(", "eprint", "dbg!"].iter().any(|what| line.contains(what));
        prints.then(|| line.trim().to_owned())
    });
}

#[test]
fn files_are_read_and_written_in_one_place() {
    no_line("read and write by sim/files: with a limit, whole or not at all", |file, line| {
        let calls = ["read_to_string(", "fs::read(", "fs::write(", "File::create(", "File::open("];
        let found = calls.iter().find(|&&call| line.contains(call))?;
        (!file.starts_with("sim/files")).then(|| (*found).to_owned())
    });
}

#[test]
fn no_operator_takes_the_rule_of_all_others() {
    let of_operators = [
        "sim/model/autocast.rs",
        "sim/model/fuse/joint.rs",
        "sim/model/operators",
        "sim/runtime/eager/backward.rs",
        "sim/runtime/eager/experts.rs",
        "sim/runtime/eager/forward.rs",
        "sim/runtime/eager/internlm.rs",
        "sim/runtime/eager/keep.rs",
        "sim/runtime/eager/megatron.rs",
        "sim/runtime/eager/megatron/dispatch.rs",
        "sim/runtime/eager/nanotron.rs",
        "sim/runtime/eager/recompute.rs",
        "sim/runtime/eager/simple.rs",
        "sim/runtime/eager/titan.rs",
    ];
    no_line("name every operator, or ask its row: a new one must not get another's rule", |file, line| {
        let arm = line.trim_start();
        let all_others = arm.starts_with("_ =>") || arm.starts_with("_ if") || arm.contains("matches!(op.kind, _");
        (all_others && of_operators.iter().any(|place| file.starts_with(place))).then(|| arm.to_owned())
    });
}

#[test]
fn nothing_is_unwrapped() {
    no_line("give the error a place and a remedy, or say with expect why it cannot be", |_, line| {
        (line.contains(".unwrap()") || line.contains("todo!") || line.contains("unimplemented!"))
            .then(|| line.trim().to_owned())
    });
}
