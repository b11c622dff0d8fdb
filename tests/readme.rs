//! The README and the book show real output: every `console` block is run, and what it prints is what stands there. A last line
//! `…` leaves the rest out. A block after `<!-- file PATH -->` is that file. A picture after `<!-- picture N of COMMAND -->` is the
//! N-th drawing of the page that the command writes with `--html`. The table of accuracy is that of
//! `sim/cost/profiles/measured-runs.csv`.
//!
//! `UPDATE_README=1 cargo test readme` writes what the commands print now.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use windtunnel::scenario::predict::{Confidence, Held};

/// Lines kept of an output whose block has nothing but `…`. Otherwise a cut block keeps as many lines as it has.
const SHOWN: usize = 16;

/// How a block begins.
const OPEN: &str = "```console\n$ ";

/// What stands before a block that shows a file, up to the file's path, and from there on.
const FILE: (&str, &str) = ("<!-- file ", " -->\n```toml\n");

/// What stands before a picture that a command draws.
const PICTURE: &str = "<!-- picture ";

/// A table that is computed: what stands around it, and what makes it.
type Table = ((&'static str, &'static str), fn() -> String);

const TABLES: [Table; 2] = [
    (("<!-- accuracy -->\n", "<!-- /accuracy -->"), accuracy),
    (("<!-- confidence -->\n", "<!-- /confidence -->"), confidence),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All pages of the book, in order.
pub(crate) fn book() -> Vec<PathBuf> {
    let mut pages = vec![];
    let mut open = vec![root().join("docs")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn output_of(command: &str) -> String {
    let arguments = command.strip_prefix("windtunnel ").expect("a console block runs windtunnel");
    let output = Command::new(env!("CARGO_BIN_EXE_windtunnel"))
        .args(arguments.split_whitespace())
        .env("NO_COLOR", "1")
        .current_dir(root())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    text.trim_end().to_owned()
}

/// A page with what its commands print now.
fn with_outputs(text: &str, printed: &mut BTreeMap<String, String>) -> String {
    let (mut fresh, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(OPEN) {
        let body = start + OPEN.len();
        let end = body + rest[body..].find("\n```").expect("a console block ends");
        let (command, shown) = rest[body..end].split_once('\n').unwrap_or((&rest[body..end], ""));
        let output = printed.entry(command.to_owned()).or_insert_with(|| output_of(command));
        fresh += &rest[..body];
        fresh += command;
        fresh.push('\n');
        let lines = shown.lines().count();
        if shown.lines().last() == Some("…") {
            let kept = if lines > 1 { lines - 1 } else { SHOWN };
            fresh += &output.lines().take(kept).collect::<Vec<_>>().join("\n");
            fresh += "\n…";
        } else {
            fresh += output;
        }
        rest = &rest[end..];
    }
    fresh + rest
}

/// A page with the files that it shows as they are now.
fn with_files(text: &str) -> String {
    let (mut fresh, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(FILE.0) {
        let path = start + FILE.0.len();
        let body = path + rest[path..].find(FILE.1).expect("a block follows the name of its file");
        let file = &rest[path..body];
        let body = body + FILE.1.len();
        let end = body + rest[body..].find("```").expect("the block of a file ends");
        fresh += &rest[..body];
        fresh += &std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        rest = &rest[end..];
    }
    fresh + rest
}

/// The N-th drawing of the page that a command writes with `--html`, as a file of its own: with the page's style inside.
fn drawing(command: &str, number: usize) -> String {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    output_of(&format!("{command} --html {}", page.display()));
    let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{command} --html: {error}"));
    let style =
        page.split_once("<style>").and_then(|(_, rest)| rest.split_once("</style>")).map_or("", |(style, _)| style);
    let svg = page.split("<svg ").nth(number).unwrap_or_else(|| panic!("{command} --html draws no picture {number}"));
    let (svg, _) = svg.split_once("</svg>").expect("a drawing ends");
    let (attributes, drawn) = svg.split_once('>').expect("a drawing's tag ends");
    format!("<svg {attributes}><style>{style}\nsvg{{background:var(--paper,#fff)}}</style>{drawn}</svg>\n")
}

/// Pictures that a page shows and commands draw: their files, and what these should hold.
fn pictures(page: &Path, text: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    for rest in text.split(PICTURE).skip(1) {
        let (drawn, rest) = rest.split_once(" -->\n![").expect("a picture follows its command");
        let (number, command) = drawn.split_once(" of ").expect("a picture says which of a command's it is");
        let (_, path) = rest.split_once("](").expect("a picture has a path");
        let (path, _) = path.split_once(')').expect("the path of a picture ends");
        found.push((page.parent().unwrap().join(path), drawing(command, number.parse().unwrap())));
    }
    found
}

/// A public run: the columns of its kind that the table tells apart, its weight, and the error of its step time.
struct Run<'a> {
    framework: &'a str,
    experts: bool,
    eight_bit: bool,
    on_tpu: bool,
    weight: f64,
    error: f64,
}

fn runs(csv: &str) -> Vec<Run<'_>> {
    let mut rows = csv.lines().filter(|line| !line.starts_with('#'));
    let columns: Vec<&str> = rows.next().unwrap().split(',').collect();
    let place = |name: &str| columns.iter().position(|&column| column == name).unwrap();
    rows.map(|row| {
        let cells: Vec<&str> = row.split(',').collect();
        let cell = |name: &str| cells[place(name)];
        Run {
            framework: cell("framework"),
            experts: cell("blocks") == "experts",
            eight_bit: cell("matmuls") == "8-bit",
            on_tpu: cell("machine").starts_with("tpu"),
            weight: cell("weight").parse().unwrap(),
            error: (-cell("log_measured_over_predicted").parse::<f64>().unwrap()).exp() - 1.0,
        }
    })
    .collect()
}

/// The value that this share of the weight is below; between two, the mean of both.
fn quantile(mut values: Vec<(f64, f64)>, share: f64) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted = share * values.iter().map(|value| value.1).sum::<f64>();
    let mut below = 0.0;
    for (at, &(value, weight)) in values.iter().enumerate() {
        below += weight;
        if (below - wanted).abs() < 1e-3 && at + 1 < values.len() {
            return f64::midpoint(value, values[at + 1].0);
        }
        if below > wanted {
            return value;
        }
    }
    values.last().unwrap().0
}

/// A kind of run in the table: its name, and which runs are of it.
type Kind = (&'static str, fn(&Run) -> bool);

const KINDS: [Kind; 14] = [
    ("FSDP1, dense, 16-bit", |run| run.framework == "fsdp1"),
    ("FSDP2, dense, 16-bit", |run| run.framework == "fsdp2" && !run.experts && !run.eight_bit),
    ("FSDP2, dense, fp8", |run| run.framework == "fsdp2" && !run.experts && run.eight_bit),
    ("FSDP2, experts", |run| run.framework == "fsdp2" && run.experts),
    ("one GPU", |run| run.framework == "single_device"),
    ("Megatron-Core, dense, 16-bit", |run| run.framework == "megatron" && !run.experts && !run.eight_bit),
    ("Megatron-Core, dense, fp8", |run| run.framework == "megatron" && !run.experts && run.eight_bit),
    ("Megatron-Core, experts", |run| run.framework == "megatron" && run.experts),
    ("Megatron-DeepSpeed", |run| run.framework == "deepspeed"),
    ("InternEvo", |run| run.framework == "internevo"),
    ("nanotron", |run| run.framework == "nanotron"),
    ("XLA on TPU, dense", |run| run.framework == "xla" && run.on_tpu && !run.experts),
    ("XLA on TPU, experts", |run| run.framework == "xla" && run.on_tpu && run.experts),
    ("XLA on GPU, dense", |run| run.framework == "xla on GPUs"),
];

/// The table of accuracy: errors of step times of all public runs that can be simulated.
fn accuracy() -> String {
    let csv = std::fs::read_to_string(root().join("sim/cost/profiles/measured-runs.csv")).unwrap();
    let runs = runs(&csv);
    let mut table = "| Kind of run | Runs | Half are within | Nine in ten are within | The median prediction is |\n\
                     |---|---|---|---|---|\n"
        .to_owned();
    let mut row = |name: &str, of: &dyn Fn(&Run) -> bool| {
        let these: Vec<&Run> = runs.iter().filter(|run| of(run)).collect();
        let count: f64 = these.iter().map(|run| run.weight).sum();
        let signed = || these.iter().map(|run| (run.error, run.weight)).collect();
        let absolute = || these.iter().map(|run| (run.error.abs(), run.weight)).collect();
        let bias = 100.0 * quantile(signed(), 0.5);
        writeln!(
            table,
            "| {name} | {count:.0} | {:.1} % | {:.1} % | {:.1} % too {} |",
            100.0 * quantile(absolute(), 0.5),
            100.0 * quantile(absolute(), 0.9),
            bias.abs(),
            if bias > 0.0 { "long" } else { "short" },
        )
        .unwrap();
        these.len()
    };
    let mut counted = 0;
    for (name, of) in KINDS {
        counted += row(name, &of);
    }
    assert_eq!(counted, row("all", &|_| true), "a kind of run is in no row of the table, or in two");
    table
}

/// How far predictions were off by how much they are said to be worth: each run is judged without those of its model.
fn confidence() -> String {
    let mut table = "| Confidence | Half of the interval's width | Runs | Half are within | Nine in ten are within | In the interval |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    let all = Held::all();
    let mut narrower = 0.0;
    for &word in Confidence::ALL {
        let these: Vec<&Held> = all.iter().filter(|run| run.confidence() == word).collect();
        let count: f64 = these.iter().map(|run| run.weight()).sum();
        let inside: f64 = these.iter().filter(|run| run.holds()).map(|run| run.weight()).sum();
        let off = || these.iter().map(|run| (run.miss().abs(), run.weight())).collect();
        let width = match 100.0 * word.half() {
            half if half.is_infinite() => format!("more than {narrower:.0} %"),
            half => format!("at most {half:.0} %"),
        };
        narrower = 100.0 * word.half();
        let (half, most) = (100.0 * quantile(off(), 0.5), 100.0 * quantile(off(), 0.9));
        let inside = 100.0 * inside / count;
        writeln!(table, "| {word} | {width} | {count:.0} | {half:.1} % | {most:.1} % | {inside:.0} % |").unwrap();
    }
    table
}

/// A page as it should be.
fn refreshed(text: &str, printed: &mut BTreeMap<String, String>) -> String {
    let mut fresh = with_outputs(&with_files(text), printed);
    for ((before, after), made) in TABLES {
        if let (Some(start), Some(end)) = (fresh.find(before), fresh.find(after)) {
            fresh.replace_range(start + before.len()..end, &made());
        }
    }
    fresh
}

/// Fails with every page that shows something else than the commands print, or writes it anew.
fn hold(pages: &[PathBuf]) {
    let update = std::env::var_os("UPDATE_README").is_some();
    let (mut stale, mut printed) = (vec![], BTreeMap::new());
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap();
        for (picture, fresh) in pictures(page, &text) {
            if std::fs::read_to_string(&picture).is_ok_and(|old| old == fresh) {
                continue;
            }
            if update {
                std::fs::write(picture, fresh).unwrap();
            } else {
                stale.push(format!("{}: another picture is drawn", picture.display()));
            }
        }
        let fresh = refreshed(&text, &mut printed);
        if fresh == text {
            continue;
        }
        if update {
            std::fs::write(page, fresh).unwrap();
            continue;
        }
        let at = text.lines().zip(fresh.lines()).position(|(old, new)| old != new);
        let at = at.unwrap_or_else(|| text.lines().count().min(fresh.lines().count()));
        let line = |text: &str| text.lines().nth(at).unwrap_or("(nothing)").to_owned();
        let name = page.strip_prefix(root()).unwrap().display();
        stale.push(format!("{name}:{}:\n  shown    {}\n  printed  {}", at + 1, line(&text), line(&fresh)));
    }
    assert!(
        stale.is_empty(),
        "pages show something else than the commands print; UPDATE_README=1 cargo test readme writes them\n{}",
        stale.join("\n")
    );
}

/// Someone who is new is held to two commands: one runs the main job, one passes the tests.
#[test]
fn the_readme_begins_with_the_main_job_and_the_tests() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<&str> =
        text.split("```sh\n").skip(1).take(2).map(|rest| rest.split("\n```").next().unwrap()).collect();
    let main_job = "cargo run --release -- run scenarios/llama3.1-8b-fsdp2-8xh100.toml";
    assert_eq!(blocks, [main_job, "cargo test --release --workspace"]);
    let second = text.find(blocks[1]).unwrap();
    assert!(text[..second].lines().count() < 45, "both stand on the first screen");
}

#[test]
fn the_readme_shows_real_output() {
    hold(&[root().join("README.md")]);
}

#[test]
fn the_readme_is_read_in_three_minutes() {
    let lines = std::fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 220, "README.md has {lines} lines, and 220 at most: details are for the book");
}

#[test]
fn the_book_shows_real_output() {
    hold(&book());
}
