//! What two scenarios differ in: rows that add up, each the difference of two runs.

use proptest::prelude::*;
use windtunnel::explore::compare::{Change, Fold, Row};
use windtunnel::explore::{Comparison, Side, compare};
use windtunnel::scenario::predict;
use windtunnel::scenario::predict::Settings;

use crate::command::Folder;
use crate::make;

const LLAMA: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");

fn sides(a: &str, b: &str) -> Comparison {
    let side = |name, text| Side::read(name, make::FILE, text).unwrap_or_else(|error| panic!("{error}\n\n{text}"));
    compare(&side("A", a), &side("B", b)).unwrap_or_else(|error| panic!("{error}\n\n{a}\n\n{b}"))
}

fn figures(change: &Change) -> [i128; 4] {
    [change.step(), change.allocated(), change.reserved(), change.mfu_billionths()]
}

fn sum(rows: &[Row]) -> [i128; 4] {
    rows.iter().map(|row| figures(&row.change)).fold([0; 4], |sum, row| std::array::from_fn(|at| sum[at] + row[at]))
}

fn keys(row: &Row) -> Vec<&str> {
    row.differences.iter().map(|difference| difference.key.as_str()).collect()
}

/// The text with everything it leaves open written in.
fn filled(text: &str) -> String {
    make::parse(text).defaults().into_iter().fold(text.to_owned(), |text, (key, value)| {
        let (table, key) = key.split_once('.').unwrap();
        make::with(&text, table, key, value)
    })
}

fn check_filled(text: &str) {
    let full = filled(text);
    let [before, after] = [text, &full].map(|text| {
        let answer = make::fly(text);
        let memory = &answer.memory;
        (answer.step, answer.interval, memory.wanted, memory.report.phases.clone(), answer.parts, answer.mfu)
    });
    assert_eq!(before, after, "{text}");
    let full = make::parse(&full);
    assert_eq!(full.defaults(), [], "{text}");
    let notes = ["model: ", "note: "];
    let left: Vec<_> =
        full.assumption_lines().into_iter().filter(|line| !notes.iter().any(|note| line.starts_with(note))).collect();
    assert!(left.is_empty(), "{left:?}\n{text}");
}

#[test]
fn writing_the_defaults_into_a_shipped_scenario_changes_nothing() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            // Paths count from the tests' folder.
            let text = std::fs::read_to_string(path).unwrap().replace("\"models/", "\"../../scenarios/models/");
            check_filled(&text);
        }
    }
    check_filled(make::TINY);
    check_filled(make::MEGATRON);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn writing_the_defaults_into_any_scenario_changes_nothing(text in make::scenarios()) {
        check_filled(&text);
    }

    #[test]
    fn the_rows_add_up_to_the_difference_of_the_two_runs(a in make::scenarios(), b in make::scenarios()) {
        let answer = sides(&a, &b);
        prop_assert_eq!(sum(&answer.rows), figures(&answer.total));
        let (before, after) = (make::fly(&a), make::fly(&b));
        prop_assert_eq!((answer.total.from.step, answer.total.to.step), (before.step, after.step));
        prop_assert_eq!(answer.total.to.reserved, after.memory.report.peak_reserved);
        for rows in answer.rows.windows(2) {
            prop_assert_eq!(rows[0].change.to, rows[1].change.from);
        }
    }
}

#[test]
fn a_scenario_against_itself_differs_in_nothing() {
    for text in [LLAMA, make::TINY] {
        let answer = sides(text, text);
        assert!(answer.rows.is_empty() && answer.follows.is_empty());
        assert_eq!(figures(&answer.total), [0; 4]);
    }
    let measured = format!("{LLAMA}\n[measured]\nstep_time = \"1.1 s\"\nsource = \"a log\"\n");
    assert!(sides(LLAMA, &measured).rows.is_empty());
    // What is written and what is taken for it are the same.
    let answer = sides(make::TINY, &filled(make::TINY));
    assert!(answer.rows.is_empty() && figures(&answer.total) == [0; 4], "{:?}", answer.rows);
}

#[test]
fn one_changed_key_is_one_row_and_the_difference_of_two_runs() {
    for (table, key, value) in [
        ("batch", "micro", toml::Value::from(2)),
        ("compile", "blocks", true.into()),
        ("topology", "name", "h200-sxm-141gb".into()),
        ("activation_checkpointing", "policy", "full".into()),
        ("precision", "reduce", "bf16".into()),
    ] {
        let changed = make::with(LLAMA, table, key, value);
        let answer = sides(LLAMA, &changed);
        let [row] = &answer.rows[..] else { panic!("{:?}", answer.rows) };
        assert_eq!(keys(row), [format!("{table}.{key}")]);
        let (before, after) = (make::fly(LLAMA), make::fly(&changed));
        assert_eq!(row.change.step(), i128::from(after.step.0) - i128::from(before.step.0));
        let reserved = |answer: &windtunnel::scenario::Prediction| i128::from(answer.memory.report.peak_reserved.0);
        assert_eq!(row.change.reserved(), reserved(&after) - reserved(&before));
        assert_eq!(row.alone, Ok(row.change));
    }
}

#[test]
fn differences_are_applied_from_the_hardware_up() {
    let mut changed = make::with(LLAMA, "compile", "blocks", true);
    for (table, key, value) in [
        ("optimizer", "implementation", toml::Value::from("foreach")),
        ("batch", "micro", 2.into()),
        ("activation_checkpointing", "policy", "full".into()),
        ("fsdp", "wrap", "block".into()),
        ("topology", "name", "h200-sxm-141gb".into()),
    ] {
        changed = make::with(&changed, table, key, value);
    }
    let answer = sides(LLAMA, &changed);
    let groups: Vec<_> = answer.rows.iter().map(|row| row.differences[0].group().name()).collect();
    assert_eq!(groups, ["hardware", "batch", "fsdp", "recompute", "compile", "rest"]);
    assert!(answer.rows.iter().all(|row| row.joined.is_none() && row.alone.is_ok()));
}

/// Two nodes with a mesh for one are no scenario: the row is both, though a batch stands between them.
#[test]
fn what_is_no_scenario_by_itself_is_joined_with_what_makes_it_one() {
    let a = make::with(LLAMA, "mesh", "dp_replicate", 1);
    let b =
        make::with(&make::with(&make::with(&a, "topology", "nodes", 2), "mesh", "dp_shard", 16), "model", "layers", 16);
    let answer = sides(&a, &b);
    let rows: Vec<_> = answer.rows.iter().map(keys).collect();
    assert_eq!(rows, [vec!["topology.nodes", "mesh.dp_shard"], vec!["model.layers"]]);
    assert!(answer.rows[0].joined.as_ref().unwrap().contains("the mesh holds 8 ranks"));
    assert!(answer.rows[1].joined.is_none());
    assert_eq!(sum(&answer.rows), figures(&answer.total));
}

/// Two layouts of the same model: 8-way data parallelism, and tensor and pipeline parallelism with more micro-batches.
const LAYOUTS: [&str; 2] = [
    "runtime = \"megatron\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 2\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\n\
     tp = 8\n[tensor_parallel]\nsequence = true\n[batch]\nsequence = 8192\naccumulation = 16\n[megatron]\n\
     recompute.uniform = 1\n",
    "runtime = \"megatron\"\n[topology]\nname = \"h100-sxm-80gb\"\nnodes = 2\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\n\
     tp = 2\npp = 4\n[tensor_parallel]\nsequence = true\n[batch]\nsequence = 8192\naccumulation = 32\n[pipeline]\n\
     layers = [8, 8, 8, 8]\n[megatron]\nrecompute = \"none\"\ndistributed_optimizer = true\n",
];

#[test]
fn every_plan_between_two_layouts_is_one_that_could_run() {
    let answer = sides(LAYOUTS[0], LAYOUTS[1]);
    assert!(!answer.total.from.refused && !answer.total.to.refused);
    assert_eq!(sum(&answer.rows), figures(&answer.total));
    for row in &answer.rows {
        assert!(!row.change.to.refused, "{:?}", keys(row));
    }
    let layout = answer.rows.iter().find(|row| keys(row).contains(&"mesh.tp")).unwrap();
    for key in ["mesh.pp", "pipeline.layers", "batch.accumulation"] {
        assert!(keys(layout).contains(&key), "{:?}", keys(layout));
    }
    // No row on the way is many times what the two differ by.
    let total = answer.total.from.step.0.max(answer.total.to.step.0);
    assert!(answer.rows.iter().all(|row| row.change.step().unsigned_abs() < u128::from(total)));
}

#[test]
fn a_comparison_of_two_layouts_says_first_that_their_batches_differ_and_keeps_to_a_page() {
    let folder = Folder::new("compare-layouts");
    folder.write("a.toml", LAYOUTS[0]);
    folder.write("b.toml", LAYOUTS[1]);
    let said = String::from_utf8(folder.windtunnel(&["compare", "a.toml", "b.toml"]).stdout).unwrap();
    let first = said.lines().nth(3).unwrap();
    assert!(first.starts_with("Not the same work: 262,144 tokens a step in A, 524,288 in B (2.000 ×);"), "{said}");
    let widest = said.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest}\n{said}");
    let same = sides(make::TINY, &make::with(make::TINY, "compile", "blocks", true));
    assert!(!windtunnel::explore::compare::text::report(&same, 100, Fold::Long).contains("Not the same work"));
}

#[test]
fn what_neither_file_writes_follows() {
    let b = make::with(make::TINY, "precision", "storage", "bf16");
    let answer = sides(make::TINY, &b);
    assert_eq!(answer.rows.len(), 1);
    let follows: Vec<_> = answer.follows.iter().map(|difference| difference.key.as_str()).collect();
    assert_eq!(follows, ["precision.param", "precision.reduce"]);
}

#[test]
fn printed_rows_add_up_too() {
    let folder = Folder::new("printed");
    folder.write("a.toml", LLAMA);
    folder.write("b.toml", include_str!("../scenarios/mistral-7b-mixed-policies-16xb200.toml"));
    let said = String::from_utf8(folder.windtunnel(&["compare", "a.toml", "b.toml"]).stdout).unwrap();
    let (_, table) = said.split_once("Applied to A one after the other\n").unwrap();
    let mut sums = [0_i64; 4];
    // A change may take several lines, the first of which has the figures.
    for line in table.lines().skip(1).filter(|line| line.ends_with("yes") || line.ends_with("NO")) {
        let cells: Vec<_> = line.split_whitespace().rev().skip(1).take(4).collect();
        let parsed = cells.iter().map(|cell| (cell.parse::<f64>().unwrap() * 100.0).round() as i64);
        let cells: Vec<_> = parsed.collect();
        if line.contains("all together") {
            assert_eq!(sums.to_vec(), cells, "{said}");
            return;
        }
        sums = std::array::from_fn(|at| sums[at] + cells[at]);
    }
    panic!("{said}");
}

#[test]
fn json_on_standard_output_is_nothing_but_json_and_adds_up() {
    let folder = Folder::new("comparejson");
    folder.write("a.toml", LLAMA);
    folder.write("b.toml", include_str!("../scenarios/llama2-7b-fsdp1-16xa100.toml"));
    let output = folder.windtunnel(&["compare", "a.toml", "b.toml", "--json", "-"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = value["rows"].as_array().unwrap();
    for key in ["step_time_ps", "allocated_bytes", "reserved_bytes", "mfu_billionths"] {
        let sum: i64 = rows.iter().map(|row| row["change"][key].as_i64().unwrap()).sum();
        assert_eq!(sum, value["total"][key].as_i64().unwrap(), "{key}");
        let side = |side: &str| value[side]["figures"][key].as_i64().unwrap();
        assert_eq!(sum, side("b") - side("a"), "{key}");
    }
}

#[test]
fn a_mistake_in_either_file_is_shown_where_it_stands() {
    let folder = Folder::new("comparebad");
    folder.write("a.toml", make::TINY);
    folder.write("b.toml", &make::TINY.replace("dp_shard", "dp_shards"));
    let said = folder.refuses(&["compare", "a.toml", "b.toml"]);
    assert!(said.contains("there is no key `dp_shards` here") && said.contains("b.toml:11:1"), "{said}");
    let said = folder.refuses(&["compare", "missing.toml", "a.toml"]);
    assert!(said.contains("cannot read the scenario missing.toml"), "{said}");
}

/// Shipped scenarios, smaller ones first: of each framework, with meshes of several axes, on several machines.
const SHIPPED: [&str; 8] = [
    include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml"),
    include_str!("../scenarios/llama2-7b-fsdp1-16xa100.toml"),
    include_str!("../scenarios/llama3.1-8b-deepspeed-zero3-8xh100.toml"),
    include_str!("../scenarios/internlm-7b-internevo-64xa100.toml"),
    include_str!("../scenarios/llama3.1-8b-maxtext-8xv6e.toml"),
    include_str!("../scenarios/llama3.1-70b-fsdp2-tp8-64xh100.toml"),
    include_str!("../scenarios/llama-8.9b-nanotron-8xh100.toml"),
    include_str!("../scenarios/gpt3-175b-megatron-1024xa100.toml"),
];

/// The file after each row, as a reader would write it.
fn walked(a: &str, b: &str, answer: &Comparison) -> Vec<String> {
    let mut table = open(a, b);
    let mut plans = vec![];
    for difference in answer.rows.iter().map(|row| &row.differences) {
        for one in difference {
            set(&mut table, &one.key, one.to.clone());
        }
        plans.push(table.to_string());
    }
    plans
}

/// A's keys, and the defaults that it takes for keys that only B writes.
fn open(a: &str, b: &str) -> toml::Table {
    let [mut table, b] = [a, b].map(|text| text.parse::<toml::Table>().unwrap());
    table.remove("measured");
    for (key, value) in make::parse(a).defaults() {
        let (name, inner) = key.split_once('.').unwrap();
        if b.get(name).is_some_and(|other| other.get(inner).is_some()) {
            set(&mut table, &key, Some(value));
        }
    }
    table
}

/// Sets a key, or removes it, and its table where that was the last; a mesh is a table always.
fn set(table: &mut toml::Table, key: &str, value: Option<toml::Value>) {
    let Some((name, inner)) = key.split_once('.') else {
        value.into_iter().for_each(|value| drop(table.insert(key.to_owned(), value)));
        return;
    };
    let entry = table.entry(name).or_insert(toml::Value::Table(toml::Table::new())).as_table_mut().unwrap();
    match value {
        Some(value) => entry.insert(inner.to_owned(), value),
        None => entry.remove(inner),
    };
    if entry.is_empty() && name != "mesh" {
        table.remove(name);
    }
}

/// Whatever two scenarios differ in, each row is the difference of two files that `windtunnel run` answers.
#[test]
fn between_shipped_scenarios_every_plan_runs_and_the_rows_add_up() {
    for (at, a) in SHIPPED.iter().enumerate() {
        // Each with the next two, in both directions by turns: all pairs take minutes.
        for (step, b) in SHIPPED.iter().cycle().skip(at + 1).take(2).enumerate() {
            let (a, b) = if (at + step) % 2 == 0 { (a, b) } else { (b, a) };
            let answer = sides(a, b);
            assert_eq!(sum(&answer.rows), figures(&answer.total));
            let plans = walked(a, b, &answer);
            for (plan, row) in plans.iter().zip(&answer.rows) {
                let settings = Settings { remedies: false, ..Settings::default() };
                let run = predict(&make::parse(plan), settings).unwrap_or_else(|error| panic!("{error}\n\n{plan}"));
                assert_eq!(row.change.to.step, run.step, "{plan}");
                assert!(!row.change.to.refused || answer.total.from.refused || answer.total.to.refused, "{plan}");
            }
        }
    }
}

/// Most keys belong to one framework alone; what both read is attributed on its own.
#[test]
fn between_two_frameworks_what_both_read_is_a_row_of_its_own() {
    let both = |a: usize, b: usize, expected: &[&str]| {
        let answer = sides(SHIPPED[a], SHIPPED[b]);
        let alone: Vec<_> = answer.rows.iter().map(keys).filter(|keys| keys.len() == 1).flatten().collect();
        assert!(expected.iter().all(|key| alone.contains(key)), "{alone:?}");
        answer
    };
    // FSDP1 to FSDP2, on other machines, of another model.
    let answer = both(
        1,
        0,
        &["topology.name", "model.name", "batch.sequence", "batch.micro", "activation_checkpointing.policy"],
    );
    let framework = answer.rows.iter().find(|row| keys(row).contains(&"runtime")).unwrap();
    let foreign = |key: &str| key == "runtime" || key.starts_with("fsdp1.");
    assert!(keys(framework).into_iter().all(foreign), "{:?}", keys(framework));
    // FSDP2 to ZeRO-3, which cannot save operators: its policy goes with it.
    let answer = both(0, 2, &["batch.sequence", "batch.accumulation", "framework.rope"]);
    let framework = answer.rows.iter().find(|row| keys(row).contains(&"runtime")).unwrap();
    let why = framework.joined.as_ref().unwrap();
    assert!(why.contains("without activation_checkpointing.policy: selective checkpointing"), "{why}");
    // FSDP2 to Megatron.
    both(5, 7, &["topology.name", "topology.nodes"]);
}

/// 70B parameters do not fit on the eight chips that 8B take, and neither fits the other's mesh.
#[test]
fn a_row_of_several_says_what_each_is_needed_for() {
    let answer = sides(include_str!("../scenarios/llama3.1-70b-fsdp2-256xh100.toml"), LLAMA);
    let row = &answer.rows[0];
    assert_eq!(keys(row), ["topology.nodes", "model.name", "mesh.dp_shard"]);
    let why = row.joined.as_ref().unwrap();
    assert!(why.contains("without model.name: the plan does not fit in memory"), "{why}");
    assert!(why.contains("without mesh.dp_shard: the mesh holds 256 ranks"), "{why}");
}

#[test]
fn a_long_row_is_folded_and_keeps_to_the_page_and_all_writes_it_out() {
    let answer = sides(SHIPPED[0], SHIPPED[4]);
    let count = answer.rows.iter().map(|row| row.differences.len()).max().unwrap();
    let said = |fold| windtunnel::explore::compare::text::report(&answer, 120, fold);
    let (folded, all) = (said(Fold::Long), said(Fold::Nothing));
    assert!(
        folded.contains(&format!("and {} more", count - 3)) && folded.contains("--all writes every key"),
        "{folded}"
    );
    assert!(folded.lines().count() < 70, "{folded}");
    for text in [&folded, &all] {
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
    for key in answer.rows.iter().flat_map(keys) {
        assert!(all.replace("\n", "").replace(' ', "").contains(&format!("{key}:")), "{key}\n{all}");
    }
    assert!(!all.contains("--all"));
}
