//! Answers that are kept in a file: the same bytes come out, and nothing is simulated for them.

use std::fs;
use std::path::Path;

use crate::command::Folder;
use crate::make;

const CONFIG: &str = include_str!("tiny/config.json");

/// A small plan, with what was measured of it.
fn measured(step: &str) -> String {
    format!("{}\n[measured]\nstep_time = \"{step}\"\nsource = \"a test\"\n", make::TINY)
}

/// What a command writes to standard output and error.
fn said(folder: &Folder, arguments: &[&str]) -> (String, String) {
    let output = folder.windtunnel(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).into()
}

#[test]
fn a_row_that_stands_as_it_stood_is_not_simulated_again() {
    let folder = Folder::new("kept-check");
    folder.write("config.json", CONFIG);
    folder.write("one.toml", &measured("10 ms"));
    folder.write("other.toml", &measured("12 ms"));
    let public = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receipts/public.jsonl");
    let public = fs::read_to_string(public).expect("receipts");
    let rows: Vec<&str> = public.lines().filter(|row| row.contains("\"tt-llama31-8b-h100x8-")).take(3).collect();
    assert_eq!(rows.len(), 3);
    folder.write("rows.jsonl", &rows.join("\n"));
    let check = ["check", "rows.jsonl", "one.toml", "other.toml", "--json", "-", "--cache", "answers.jsonl"];
    let (first, note) = said(&folder, &check);
    assert!(note.contains("0 of 5 answers were in answers.jsonl"), "{note}");
    assert_eq!(first, said(&folder, &check[..6]).0, "without a cache");
    let (again, note) = said(&folder, &check);
    assert!(again == first && note.contains("5 of 5 answers"), "{note}");
    // A file that has changed is asked anew, and one that it names is, too.
    folder.write("one.toml", &measured("10.5 ms"));
    assert!(said(&folder, &check).1.contains("4 of 5 answers"));
    folder.write("config.json", &CONFIG.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"));
    let (other, note) = said(&folder, &check);
    assert!(other != first && note.contains("3 of 5 answers"), "{note}");
    // Chips that differ are another question.
    let (_, note) = said(&folder, &[&check[..], &["--ranks", "gemm"]].concat());
    assert!(note.contains("0 of 5 answers"), "{note}");
}

#[test]
fn a_search_goes_on_from_what_it_simulated() {
    let folder = Folder::new("kept-plan");
    let plan = |more: &[&str]| {
        let asked = "plan --model llama-3.2-1b --on h100-sxm-80gb:1 --global-batch 64 --sequence 2048 --json -";
        said(&folder, &asked.split(' ').chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let (whole, _) = plan(&[]);
    let (first, note) = plan(&["--resume", "plans.jsonl"]);
    assert!(first == whole && note.contains("0 simulated plans were in plans.jsonl"), "{note}");
    let kept = folder.read("plans.jsonl");
    let (again, note) = plan(&["--resume", "plans.jsonl"]);
    assert!(again == whole && !note.contains(" 0 simulated"), "{note}");
    assert_eq!(folder.read("plans.jsonl"), kept, "nothing is left to be simulated");
    // A search that was cut short: half its plans are there.
    let text = String::from_utf8(kept).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    folder.write("plans.jsonl", &(lines[..lines.len() / 2].join("\n") + "\n"));
    assert_eq!(plan(&["--resume", "plans.jsonl"]).0, whole);
    assert_eq!(folder.read("plans.jsonl").len(), text.len(), "the other half was simulated");
}

#[test]
fn a_file_that_holds_no_answers_is_left_alone() {
    let folder = Folder::new("kept-other");
    folder.write("config.json", CONFIG);
    folder.write("one.toml", &measured("10 ms"));
    folder.write("notes.txt", "a note\n");
    let said = folder.refuses(&["check", "one.toml", "--cache", "notes.txt"]);
    assert!(said.contains("notes.txt") && said.contains("no answers of windtunnel"), "{said}");
    assert_eq!(folder.read("notes.txt"), b"a note\n");
}
