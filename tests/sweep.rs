//! A sweep's rows are its runs, one by one: on any number of threads, and wherever it was interrupted.

use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use windtunnel::explore::sweep::{self, Grid, Row, held};
use windtunnel::scenario::{Scenario, keys};

use crate::command::Folder;
use crate::make::{FILE, MEGATRON, TINY, parse, replaced, with};

fn grid(text: &str, vary: &[&str]) -> Grid {
    let vary: Vec<String> = vary.iter().map(|&written| written.to_owned()).collect();
    Grid::new(parse(text), &vary).unwrap_or_else(|error| panic!("{error}"))
}

/// The lines of a grid's rows from one on.
fn lines(grid: &Grid, from: u64) -> Vec<String> {
    let mut lines = vec![];
    sweep::sweep(grid, from, &mut |row| {
        lines.push(row.line());
        ControlFlow::Continue(())
    });
    lines
}

fn rows(grid: &Grid) -> Vec<Row> {
    lines(grid, 0).iter().map(|line| Row::read(line).unwrap()).collect()
}

/// Why a grid is none.
fn refused(vary: &[&str]) -> String {
    let vary: Vec<String> = vary.iter().map(|&written| written.to_owned()).collect();
    Grid::new(parse(TINY), &vary).expect_err("it is none").to_string()
}

/// A row's figures as the report of one run has them.
fn of_a_run(text: &str) -> Value {
    let scenario = parse(text);
    let report = scenario.predict().unwrap().report(&scenario);
    let json = serde_json::to_value(&report).unwrap();
    let (memory, mfu) = (&json["memory"], &json["mfu"][0]);
    serde_json::json!({
        "verdict": memory["verdict"],
        "step_time_s": json["step_time_s"],
        "step_time_low_s": json["step_time_interval_80_s"][0],
        "step_time_high_s": json["step_time_interval_80_s"][1],
        "tokens_per_step": json["tokens_per_step"],
        "chips": json["topology"]["chips"],
        "tokens_per_second_per_chip": json["tokens_per_second_per_chip"],
        "mfu": mfu["utilisation"],
        "mfu_convention": mfu["convention"],
        "bound_by": json["bound_by"],
        "allocated_bytes": memory["allocated_bytes"],
        "reserved_bytes": memory["reserved_bytes"],
        "device_total_bytes": memory["device_total_bytes"],
        "capacity_bytes": memory["capacity_bytes"],
        "doubt_bytes": memory["doubt_bytes"],
        "allocator_retries": memory["allocator_retries"],
    })
}

#[test]
fn a_grid_is_its_runs_one_by_one() {
    let found = lines(&grid(TINY, &["batch.micro=1,2", "activation_checkpointing.policy=none,{every=2},full"]), 0);
    let mut next = found.iter();
    for micro in [1, 2] {
        let every = toml::Value::Table(toml::Table::from_iter([("every".to_owned(), 2.into())]));
        for policy in ["none".into(), every, "full".into()] {
            let text = with(&with(TINY, "batch", "micro", micro), "activation_checkpointing", "policy", policy);
            let line = next.next().unwrap();
            for (key, value) in of_a_run(&text).as_object().unwrap() {
                // To the last digit, which reading a number may change.
                assert!(line.contains(&format!("\"{key}\":{value},")), "{key} is {value}: {line}\n{text}");
            }
        }
    }
    assert!(next.next().is_none());
}

#[test]
fn a_plan_that_does_not_fit_keeps_its_row_and_what_it_wants() {
    let found = rows(&grid(TINY, &["batch.micro=1,65536"]));
    let (small, large) = (&found[0], &found[1]);
    assert!(small.verdict == "yes" && small.headroom_bytes > Some(0));
    assert!(large.verdict == "NO" && large.wanted_bytes > large.capacity_bytes);
    let missing = large.wanted_bytes.unwrap() - large.capacity_bytes.unwrap();
    assert_eq!(large.headroom_bytes, Some(-i64::try_from(missing).unwrap()));
}

#[test]
fn refused_combinations_keep_their_rows_with_reason_and_code() {
    let base = with(&with(TINY, "mesh", "dp_shard", 4), "batch", "accumulation", 2);
    let found = rows(&grid(&base, &["mesh.pp=1,2", "fsdp.cpu_offload=false,true", "batch.micro=1,none"]));
    let refusals: Vec<bool> = found.iter().map(Row::is_refused).collect();
    assert_eq!(refusals, [false, true, false, true, false, true, true, true]);
    assert_eq!(found[1].refused_reason.as_deref(), Some("expected a whole number, found \"none\""));
    assert_eq!((found[1].refused_code.as_deref(), found[1].step_time_s), (None, None));
    let text = with(&with(&base, "mesh", "pp", 2), "fsdp", "cpu_offload", true);
    let said = Scenario::parse(FILE, &text).and_then(|scenario| scenario.predict()).unwrap_err();
    assert_eq!(found[6].refused_code.as_deref(), Some("pipeline-offloaded-parameters"));
    assert_eq!(found[6].refused_reason.as_deref(), said.to_string().lines().next());
}

#[test]
fn the_last_key_changes_fastest_and_a_key_may_be_left_to_its_default() {
    let grid = grid(TINY, &["mesh.dp_shard=8,unset", "loss.kind=unset,fused_linear"]);
    let shown: Vec<Vec<String>> = (0..grid.runs()).map(|run| grid.shown(run)).collect();
    assert_eq!(shown, [["8", "unset"], ["8", "fused_linear"], ["unset", "unset"], ["unset", "fused_linear"]]);
    let varied: Vec<String> = rows(&grid).iter().map(|row| row.varied.get().to_owned()).collect();
    assert_eq!(varied[2], r#"{"mesh.dp_shard":null,"loss.kind":null}"#);
}

#[test]
fn combinations_that_are_the_same_plan_have_the_same_figures() {
    // Unset is what `flash` says, and the file's own value is 4.
    let found = rows(&grid(MEGATRON, &["megatron.attention=unset,flash", "batch.accumulation=4,8"]));
    let alike = |one: usize, other: usize| {
        let row = Row { index: 0, varied: found[one].varied.clone(), ..found[other].clone() };
        row.line() == Row { index: 0, ..found[one].clone() }.line()
    };
    assert!(alike(0, 2) && alike(1, 3) && !alike(0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_combination_comes_once_and_in_order(sizes in prop::collection::vec(1..5_usize, 1..4)) {
        let names = ["batch.micro", "batch.sequence", "mesh.dp_shard"];
        let values = |size: &usize| (1..=*size).map(|value| value.to_string()).collect::<Vec<_>>().join(",");
        let vary: Vec<String> = sizes.iter().zip(names).map(|(size, name)| format!("{name}={}", values(size))).collect();
        let grid = Grid::new(parse(TINY), &vary).unwrap();
        let shown: Vec<Vec<String>> = (0..grid.runs()).map(|run| grid.shown(run)).collect();
        prop_assert_eq!(shown.len(), sizes.iter().product::<usize>());
        prop_assert!(shown.is_sorted() && shown.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn what_asks_for_no_grid_is_refused_with_what_to_write() {
    for (vary, said) in [
        (&["mesh.dp_shart=8"][..], "did you mean \"mesh.dp_shard\"?"),
        (&["mesh=8"], "mesh is a table: vary keys of it, such as mesh."),
        (&["mesh.tp"], "names no values: write a key and its values"),
        (&["mesh.tp="], "names no values"),
        (&["batch.micro=1,,2"], "a value is empty"),
        (&["batch.micro=1,2,1"], "has 1 twice"),
        (&["batch.micro=1..8"], "1..8 is a range: write its values out"),
        (&["megatron.recompute={uniform=1"], "no value of TOML"),
        (&["measured.step_time=1 s"], "what a run has measured"),
        (&["mesh.tp=1,2", "mesh.tp=4"], "mesh.tp is varied twice"),
    ] {
        let found = refused(vary);
        assert!(found.contains(said), "{vary:?}: {found}");
    }
    let many = |key: &str| format!("{key}={}", (1..=400).map(|value| value.to_string()).collect::<Vec<_>>().join(","));
    let found = refused(&[&many("batch.micro"), &many("batch.accumulation")]);
    assert!(found.contains("160000 runs, and a sweep 100000 at most"), "{found}");
}

/// The last of two keys would undo the first.
#[test]
fn no_key_of_a_scenario_lies_in_another() {
    let all: Vec<&str> = keys::all().map(|key| key.path).collect();
    let within = |inner: &str, outer: &str| inner.starts_with(&format!("{outer}."));
    assert!(!all.iter().any(|inner| all.iter().any(|outer| within(inner, outer))));
}

#[test]
fn a_file_that_ends_anywhere_is_gone_on_with_to_the_same_bytes() {
    let grid = grid(TINY, &["batch.micro=1,2,4", "mesh.dp_shard=8,7"]);
    let all = lines(&grid, 0);
    let whole: String = all.iter().map(|line| format!("{line}\n")).collect();
    let rest: Vec<String> = (0..=all.len())
        .map(|from| lines(&grid, from as u64).iter().map(|line| format!("{line}\n")).collect())
        .collect();
    for cut in 0..=whole.len() {
        let held = held(&grid, &whole.as_bytes()[..cut]).unwrap_or_else(|error| panic!("{cut}: {error}"));
        let kept = &whole[..usize::try_from(held.bytes).unwrap()];
        assert!(
            kept.len() <= cut
                && *kept == all[..held.lines.len()].iter().map(|line| format!("{line}\n")).collect::<String>()
        );
        assert!(format!("{kept}{}", rest[held.lines.len()]) == whole, "{cut}");
    }
}

#[test]
fn rows_of_another_sweep_are_not_gone_on_with() {
    let vary = ["batch.micro=1,2"];
    let theirs: String = lines(&grid(TINY, &vary), 0).iter().map(|line| format!("{line}\n")).collect();
    let said = |grid: &Grid, bytes: &str| held(grid, bytes.as_bytes()).expect_err("another's").to_string();
    assert!(said(&grid(&replaced(TINY, &[("128", "256")]), &vary), &theirs).contains("of another scenario"));
    assert!(said(&grid(TINY, &["batch.micro=2,1"]), &theirs).contains("its row 0 is the run with {\"batch.micro\":1}"));
    assert!(said(&grid(TINY, &["batch.micro=1"]), &theirs).contains("of another scenario"));
    let older =
        theirs.replace(&format!("\"windtunnel\":\"{}\"", env!("CARGO_PKG_VERSION")), "\"windtunnel\":\"0.0.1\"");
    assert!(said(&grid(TINY, &vary), &older).contains("are of windtunnel 0.0.1"));
    // Nobody's figure is believed because it stands in the right place.
    let better = theirs.replacen("\"step_time_s\":0", "\"step_time_s\":1", 1);
    assert!(better != theirs && said(&grid(TINY, &vary), &better).contains("line 1 was changed after it was written"));
    let alone: String =
        theirs.lines().map(|line| format!("{}}}\n", line.rsplit_once(",\"digest\"").unwrap().0)).collect();
    assert!(said(&grid(TINY, &vary), &alone).contains("line 1 was changed"));
    assert!(said(&grid(TINY, &vary), "{\"point\":1}\n").contains("line 1 is no row of a sweep"));
    assert!(said(&grid(TINY, &vary), "my notes, without an end").contains("does not begin as the row that is missing"));
    assert!(said(&grid(TINY, &vary), &format!("{theirs}more")).contains("it has 3 rows, and this sweep has 2 runs"));
}

/// A comment or an order of tables decides nothing.
#[test]
fn a_scenario_with_another_comment_is_the_same() {
    let vary = ["batch.micro=1,2"];
    assert_eq!(grid(TINY, &vary).id(), grid(&format!("# said otherwise\n{TINY}"), &vary).id());
}

const VARY: &str = "sweep tiny.toml --vary batch.micro=1,2,4 --vary activation_checkpointing.policy=none,{every=2},full \
    --vary mesh.dp_shard=8,7 --out rows.jsonl --csv rows.csv";

fn folder(test: &str) -> Folder {
    let folder = Folder::new(test);
    folder.write("tiny.toml", TINY);
    folder
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Runs a command that goes well.
fn done(folder: &Folder, line: &str) -> Vec<u8> {
    let output = folder.windtunnel(&words(line));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let folder = folder("sweep-threads");
    let answers: Vec<[Vec<u8>; 3]> = ["1", "2", "7"]
        .into_iter()
        .map(|threads| {
            let line = format!("{VARY} --force");
            let output = folder.command().args(words(&line)).env("RAYON_NUM_THREADS", threads).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            [output.stdout, folder.read("rows.jsonl"), folder.read("rows.csv")]
        })
        .collect();
    assert!(answers[0] == answers[1] && answers[0] == answers[2]);
    assert_eq!(answers[0][1].iter().filter(|&&byte| byte == b'\n').count(), 18);
}

#[test]
fn both_formats_say_the_same() {
    let folder = folder("sweep-formats");
    done(&folder, VARY);
    let [json, csv] = ["rows.jsonl", "rows.csv"].map(|name| String::from_utf8(folder.read(name)).unwrap());
    // No cell but the policy's table has a comma or a quote in it.
    let csv = csv.replace("\"{\"\"every\"\":2}\"", "{\"every\":2}");
    let mut table = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = table.next().unwrap();
    assert_eq!(header[..5], ["index", "batch.micro", "activation_checkpointing.policy", "mesh.dp_shard", "verdict"]);
    assert_eq!(json.lines().count(), table.clone().count());
    for (line, cells) in json.lines().zip(table) {
        assert_eq!(header.len(), cells.len());
        let row: Value = serde_json::from_str(line).unwrap();
        for (name, cell) in header.iter().zip(cells) {
            let value = if name.contains('.') { &row["varied"][name] } else { &row[name] };
            let said = match value {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                // A number is the same to the last digit.
                other => other.to_string(),
            };
            let number = value.is_f64() && line.contains(&format!("\"{name}\":{cell},"));
            assert!(number || said == cell, "{name}: {said} and {cell}");
        }
    }
}

#[test]
fn the_guide_explains_every_column() {
    let page = include_str!("../docs/guide/sweep.md");
    let row: Value = serde_json::from_str(&lines(&grid(TINY, &["batch.micro=1"]), 0)[0]).unwrap();
    for column in row.as_object().unwrap().keys() {
        assert!(page.contains(&format!("| `{column}` |")), "docs/guide/sweep.md says nothing of {column}");
    }
}

#[test]
fn a_finished_sweep_is_read_and_not_simulated_again() {
    let folder = folder("sweep-again");
    let first = done(&folder, VARY);
    let [rows, csv] = ["rows.jsonl", "rows.csv"].map(|name| folder.read(name));
    let output = folder.windtunnel(&words(VARY));
    assert!(output.status.success() && output.stdout == first);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "18 of 18 rows are in the file already\n");
    assert!(folder.read("rows.jsonl") == rows && folder.read("rows.csv") == csv);
    // Half a row is mended.
    std::fs::write(folder.path.join("rows.jsonl"), &rows[..rows.len() / 2]).unwrap();
    assert!(done(&folder, VARY) == first && folder.read("rows.jsonl") == rows && folder.read("rows.csv") == csv);
}

#[test]
fn a_file_of_something_else_is_left_alone_unless_it_may_go() {
    let folder = folder("sweep-else");
    for text in ["my notes\n", "my notes, without an end", "\n"] {
        folder.write("rows.jsonl", text);
        let said = folder.refuses(&words(VARY));
        assert!(said.contains("cannot go on with rows.jsonl") && said.contains("--force"), "{said}");
        assert_eq!(folder.read("rows.jsonl"), text.as_bytes());
    }
    done(&folder, &format!("{VARY} --force"));
    assert!(folder.read("rows.jsonl").starts_with(b"{\"index\":0,"));
    // A scenario that is none costs no rows.
    let rows = folder.read("rows.jsonl");
    folder.write("tiny.toml", "runtime = 1\n");
    folder.refuses(&words(&format!("{VARY} --force")));
    assert!(folder.read("rows.jsonl") == rows);
}

#[test]
fn a_file_of_rows_that_cannot_be_written_is_refused_first() {
    let folder = folder("sweep-places");
    for (place, why) in [
        ("/proc/rows.jsonl", "cannot write /proc/rows.jsonl"),
        ("tiny.toml/rows.jsonl", "cannot write tiny.toml/rows.jsonl"),
        (".", "it is no plain file"),
        ("/dev/full", "it is no plain file"),
    ] {
        let said = folder.refuses(&["sweep", "no-such.toml", "--vary", "batch.micro=1", "--out", place]);
        assert!(said.contains(why) && !said.contains("no-such") && !said.contains(".part"), "{said}");
    }
    let said = folder.refuses(&["sweep", "tiny.toml", "--vary", "batch.micro=1", "--out", "./tiny.toml"]);
    assert!(said.contains("tiny.toml") && said.contains("would write it, too"), "{said}");
    assert_eq!(folder.read("tiny.toml"), TINY.as_bytes());
    let said = folder.refuses(&["sweep", "tiny.toml", "--vary", "batch.micro=1", "--out", "-"]);
    assert!(said.contains("--out keeps rows in a file") && said.contains("--csv -"), "{said}");
    let both = ["sweep", "tiny.toml", "--vary", "batch.micro=1", "--out", "rows", "--csv", "./rows"];
    assert!(folder.refuses(&both).contains("writes it already"));
}

#[test]
fn a_disk_that_is_full_keeps_whole_rows() {
    let folder = folder("sweep-full");
    done(&folder, VARY);
    let whole = folder.read("rows.jsonl");
    std::fs::remove_file(folder.path.join("rows.jsonl")).unwrap();
    // Blocks of 1,024 bytes: a row and a half.
    let mut command = Command::new("bash");
    command.args(["-c", &format!("ulimit -f 1; \"$0\" {VARY}"), env!("CARGO_BIN_EXE_windtunnel")]);
    let output = command.current_dir(&folder.path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("rows.jsonl: File too large"), "{said}");
    let kept = folder.read("rows.jsonl");
    assert!(kept.ends_with(b"\n") && kept.len() <= 1024 && whole.starts_with(&kept));
    done(&folder, VARY);
    assert!(folder.read("rows.jsonl") == whole);
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_stopped() {
    let folder = folder("sweep-interrupted");
    let lengths: Vec<String> = (1..=1500).map(|at| (64 * at).to_string()).collect();
    let vary = format!("batch.sequence={}", lengths.join(","));
    let line = ["sweep", "tiny.toml", "--vary", &vary, "--best", "1", "--out"];
    let whole = {
        done(&folder, &[&line[..], &["whole.jsonl"]].concat().join(" "));
        folder.read("whole.jsonl")
    };
    let mut command = folder.command();
    command.args(line).arg("rows.jsonl").stdout(Stdio::null()).stderr(Stdio::piped()).env("RAYON_NUM_THREADS", "1");
    let child = command.spawn().unwrap();
    let (begun, path) = (Instant::now(), folder.path.join("rows.jsonl"));
    while std::fs::metadata(&path).map_or(0, |file| file.len()) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no row was written");
        std::thread::sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("interrupted: rows.jsonl keeps its lines"), "{said}");
    let kept = folder.read("rows.jsonl");
    assert!(kept.ends_with(b"\n") && kept.len() < whole.len() && whole.starts_with(&kept));
    done(&folder, &[&line[..], &["rows.jsonl"]].concat().join(" "));
    assert!(folder.read("rows.jsonl") == whole);
}
