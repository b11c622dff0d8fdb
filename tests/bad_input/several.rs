use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use windtunnel::scenario::keys::{self, Kind};
use windtunnel::scenario::{Scenario, ScenarioError};

use super::{Folder, MISTAKES, edited};
use crate::make::{FILE, TINY};

/// The lines at which problems of a text are, and how many it is said that there are.
fn lines(text: &str) -> Vec<usize> {
    let error = Scenario::proofread(FILE, text).err();
    let problems = error.iter().flat_map(ScenarioError::problems);
    problems.map(|problem| problem.place().unwrap_or_else(|| panic!("{problem}")).line).collect()
}

#[test]
fn five_mistakes_in_a_file_are_named_in_one_run() {
    let folder = Folder::new("five-mistakes");
    let file = r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80"
nodes = 1

[model]
name = "gpt2"
layers = "four"

[mesh]
dp_shard = 8
dp_shrad = 8

[batch]
micro = 0

[optimizer]
fused = true
"#;
    folder.write("my.toml", file);
    let said = folder.refuses(&["run", "my.toml"]);
    let at: Vec<&str> = said.lines().filter_map(|line| line.split_once("--> ")).map(|(_, at)| at).collect();
    assert_eq!(
        at,
        ["my.toml:4:8", "my.toml:9:10", "my.toml:13:1", "my.toml:15:1", "my.toml:16:9", "my.toml:19:1"],
        "{said}"
    );
    for words in [
        "error: no topology is named \"h100-sxm-80\" (did you mean \"h100-sxm-80gb\"?)",
        "expected a whole number, found \"four\"",
        "there is no key `dp_shrad` here (did you mean `dp_shard`?)",
        "the key `sequence` is missing: add it",
        "batch.micro = 0 is out of range: expected 1 to 65536",
        "there is no key `fused` here",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(said.ends_with("\n\n6 problems\n"), "{said}");
}

#[test]
fn one_mistake_is_told_as_if_nothing_else_were_looked_for() {
    for (old, new, _) in MISTAKES {
        let text = edited(old, new);
        let (first, all) = (Scenario::parse(FILE, &text), Scenario::proofread(FILE, &text));
        let [first, all] = [first, all].map(|read| read.map(|_| ()).map_err(|error| error.to_string()));
        assert_eq!(first, all, "{text}");
    }
}

#[test]
fn what_follows_from_a_mistake_is_no_mistake_of_its_own() {
    for (old, new) in [
        // Without its value the key is missing, and the mesh does not tile the machine.
        ("dp_shard = 8", "dp_shard = \"eight\""),
        ("sequence = 128", "sequence = \"128\""),
        ("nodes = 1", "nodes = 0"),
        // What a framework reads, and whose chips it runs on.
        ("\"fsdp2\"", "\"maxtext2\""),
        // A config that is not there has no layers.
        ("\"config.json\"", "\"elsewhere.json\""),
        ("\"h100-sxm-80gb\"", "\"h100\""),
        ("", "[[fsdp.override]]\nblocks = [0]\nreshard_after_forward = true"),
        ("", "[[fsdp.override]]\nblocks = [0, 1]"),
        // A choice without its value is none.
        ("", "[activation_checkpointing]\npolicy.every = \"2\""),
        // A key that is missing, for it is misspelt.
        ("sequence = 128", "sequnce = 128"),
        ("[mesh]", "[mess]"),
        ("", "[optimizer]\nname = \"sdg\"\nmomentum = 0.9"),
    ] {
        let text = edited(old, new);
        assert_eq!(lines(&text).len(), 1, "{:?}", Scenario::proofread(FILE, &text).map(|_| ()));
    }
}

#[test]
fn a_plan_is_judged_once_its_keys_are_right() {
    // 16 ranks on 8 chips.
    let plan = edited("dp_shard = 8", "dp_shard = 16");
    let [.., last] = &plan.lines().collect::<Vec<_>>()[..] else { panic!("a file") };
    assert_eq!(*last, "sequence = 128");
    let problem = Scenario::proofread(FILE, &plan).unwrap_err();
    assert!(matches!(problem, ScenarioError::Plan { .. }), "{problem}");
    let wrong = format!("{plan}micro = 0\naccumulation = 0\n");
    assert_eq!(lines(&wrong), [15, 16]);
}

#[test]
fn the_same_mistake_in_two_tables_of_a_list_is_two() {
    let list = "[[fsdp.override]]\nblocks = [0]\nreshard_after_forward = true\n";
    assert_eq!(lines(&format!("{TINY}{list}{list}")), [16, 19]);
}

#[test]
fn more_mistakes_than_anybody_reads_are_cut_short() {
    let text = format!("{TINY}{}", (0..50).map(|key| format!("key{key} = 1\n")).collect::<String>());
    let said = Scenario::proofread(FILE, &text).unwrap_err().to_string();
    assert!(said.ends_with("20 problems, and there may be more"), "{said}");
}

/// Lines of a shipped scenario at which a mistake can be made: the line, and what to write there.
fn slips(text: &str) -> Vec<(usize, String)> {
    let (mut table, mut slips) = (String::new(), vec![]);
    for (at, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix('[') {
            name.trim_end_matches(']').clone_into(&mut table);
            continue;
        }
        let Some((key, value)) = line.split_once(" = ").filter(|(key, _)| !key.contains(['#', ' ', '"'])) else {
            continue;
        };
        // Not part of a list over several lines, and no table of its own.
        if value.starts_with(['[', '{', '\'']) || value.starts_with("\"\"\"") || table.contains(['[', '.']) {
            continue;
        }
        // No key takes a day.
        slips.push((at + 1, format!("{key} = 2026-11-25")));
        slips.push((at + 1, format!("{line}\nno_such_{key} = 1")));
        let row = keys::table(&table).and_then(|table| table.keys.iter().find(|row| row.name() == key));
        if let Some(Kind::Count(Some(_))) = row.map(|row| row.kind) {
            slips.push((at + 1, format!("{key} = -1")));
        }
    }
    slips
}

/// A shipped scenario with mistakes, each on a line of its own, and these lines.
fn with_mistakes() -> impl Strategy<Value = (String, Vec<usize>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "toml"));
    files.sort();
    let of = move |file: Index, which: Vec<(Index, Index)>| {
        let text = std::fs::read_to_string(file.get(&files)).unwrap();
        let all = slips(&text);
        let mut chosen: Vec<(usize, String)> = which
            .into_iter()
            .map(|(line, kind)| {
                let (line, _) = *line.get(&all);
                let kinds: Vec<_> = all.iter().filter(|(at, _)| *at == line).collect();
                (*kind.get(&kinds)).clone()
            })
            .collect();
        chosen.sort();
        chosen.dedup_by_key(|(line, _)| *line);
        let (mut lines, mut found) = (String::new(), vec![]);
        for (at, line) in text.lines().enumerate() {
            match chosen.iter().find(|(line, _)| *line == at + 1) {
                None => lines += line,
                Some((_, slip)) => {
                    lines += slip;
                    found.push(lines.lines().count());
                }
            }
            lines += "\n";
        }
        (lines, found)
    };
    (any::<Index>(), prop::collection::vec(any::<(Index, Index)>(), 1..7))
        .prop_map(move |(file, which)| of(file, which))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn exactly_the_mistakes_that_were_made_are_named((text, made) in with_mistakes()) {
        let file = format!("{}/scenarios/mine.toml", env!("CARGO_MANIFEST_DIR"));
        let error = Scenario::proofread(&file, &text).err();
        let problems = error.iter().flat_map(ScenarioError::problems);
        let named: Vec<usize> = problems.filter_map(ScenarioError::place).map(|place| place.line).collect();
        prop_assert_eq!(&named, &made, "{}\n\n{}", text, error.map_or_else(String::new, |error| error.to_string()));
    }
}
