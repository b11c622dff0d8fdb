//! Ceilings by the axes of a mesh, at a fixed number of sequences a step: each is the ceiling of a scenario that a reader would write.

use toml::Value;
use windtunnel::explore::ceiling::Options;
use windtunnel::explore::variants::{Ceilings, Row};
use windtunnel::explore::{ceiling, variants};

use crate::command::Folder;
use crate::make;

const LLAMA: &str = include_str!("../scenarios/llama3.1-8b-fsdp2-8xh100.toml");
const HSDP: &str = include_str!("../scenarios/llama3.1-8b-hsdp-64xh200.toml");
const NARROW: &str = include_str!("../scenarios/two-narrow-blocks-4xv6e.toml");
const MIXTURE: &str = include_str!("../scenarios/deepseek-v2-lite-torchtitan-8xh100.toml");

const COARSE: Options = Options { step: 4096, max: None };

/// Half of a 7B model that Megatron splits over eight chips, with four sequences a step.
const SPLIT: &str = "runtime = \"megatron\"\n[topology]\nname = \"a100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"llama-2-7b\"\n\
                     layers = 16\n[mesh]\ntp = 4\npp = 2\n[batch]\nsequence = 4096\naccumulation = 4\n[tensor_parallel]\n\
                     sequence = true\n";

fn by(text: &str, what: &str, options: Options) -> Ceilings {
    variants::ceilings(&make::parse(text).draft, what, options, &|| {})
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The text with keys of the mesh and of the batch.
fn with(text: &str, keys: &[(&str, &str, i64)]) -> String {
    keys.iter().fold(text.to_owned(), |text, &(table, key, value)| make::with(&text, table, key, Value::from(value)))
}

fn longest(row: &Row) -> Option<u64> {
    row.ceiling.as_ref().unwrap_or_else(|why| panic!("{}: {why}", row.name)).longest.as_ref().map(|top| top.sequence)
}

/// Each row's ceiling is the ceiling of the text beside it, and all rows have as many tokens a step at the common length.
fn rows_are(text: &str, what: &str, options: Options, written: &[String]) {
    let answer = by(text, what, options);
    assert_eq!(answer.rows.len(), written.len(), "{what}");
    let own = make::parse(text).job;
    for (row, text) in answer.rows.iter().zip(written) {
        let alone = ceiling(&make::parse(text).draft, options, &|| {}).unwrap();
        assert_eq!(longest(row), alone.longest.map(|top| top.sequence), "{what}: {}\n{text}", row.name);
        let common = row.common.as_ref().unwrap();
        assert_eq!(common.tokens, own.tokens() / own.seq() * common.sequence, "{what}: {}", row.name);
        let run = make::fly(&make::with(text, "batch", "sequence", common.sequence as i64));
        assert_eq!((run.step, run.tokens), (common.step, common.tokens), "{what}: {}", row.name);
    }
}

#[test]
fn ceilings_by_context_parallelism_are_those_of_scenarios_with_as_many_sequences_a_step() {
    let compiled = make::with(LLAMA, "compile", "blocks", true);
    let at =
        |cp: i64| with(&compiled, &[("mesh", "cp", cp), ("mesh", "dp_shard", 8 / cp), ("batch", "accumulation", cp)]);
    rows_are(&compiled, "cp=1,2,4", COARSE, &[compiled.clone(), at(2), at(4)]);
}

#[test]
fn ceilings_by_tensor_and_pipeline_parallelism_are_those_of_scenarios_with_as_many_sequences_a_step() {
    let at = |tp: i64| with(LLAMA, &[("mesh", "tp", tp), ("mesh", "dp_shard", 8 / tp), ("batch", "accumulation", tp)]);
    rows_are(LLAMA, "tp=1,2", COARSE, &[LLAMA.to_owned(), at(2)]);
    let table = "[tensor_parallel]\nsequence = true\n";
    let one = with(&SPLIT.replace(table, ""), &[("mesh", "tp", 1), ("batch", "accumulation", 1)]);
    let two = with(SPLIT, &[("mesh", "tp", 2), ("batch", "accumulation", 2)]);
    rows_are(SPLIT, "tp=1,2,4", Options { step: 8192, max: Some(32_768) }, &[one, two, SPLIT.to_owned()]);
    let whole = with(SPLIT, &[("mesh", "pp", 1), ("batch", "accumulation", 2)]);
    rows_are(SPLIT, "pp=1,2", Options { step: 8192, max: Some(32_768) }, &[whole, SPLIT.to_owned()]);
}

/// Experts lie on ranks that data-parallel ranks are too: nothing else changes.
#[test]
fn ceilings_by_expert_parallelism_leave_mesh_and_batch_alone() {
    let at = |ep: i64| with(MIXTURE, &[("mesh", "ep", ep)]);
    rows_are(MIXTURE, "ep=2,4,8", COARSE, &[at(2), at(4), at(8)]);
    assert!(by(MIXTURE, "ep=2", Options { step: 1024, max: Some(1024) }).rows[0].note.is_none());
}

/// A step of XLA is one micro-batch, so a chip takes more sequences where fewer read their own.
#[test]
fn under_xla_an_axis_goes_by_both_names_and_the_micro_batch_grows() {
    let at = |tensor: i64| {
        with(NARROW, &[("mesh", "tensor", tensor), ("mesh", "fsdp", 4 / tensor), ("batch", "micro", 2 * tensor)])
    };
    let options = Options { step: 1024, max: Some(4096) };
    for name in ["tp", "tensor", "mesh.tensor"] {
        rows_are(NARROW, &format!("{name}=1,2"), options, &[NARROW.to_owned(), at(2)]);
    }
    let answer = by(NARROW, "cp=2", options);
    assert_eq!((answer.along, answer.rows[0].note.as_deref()), ("context", Some("mesh.fsdp = 2, batch.micro = 4")));
}

#[test]
fn data_parallel_axes_give_way_and_each_row_names_the_keys_that_changed() {
    let quick = Options { step: 1024, max: Some(1024) };
    let note = |text: &str, what: &str| by(text, what, quick).rows[0].note.clone().unwrap_or_default();
    // 64 chips: eight replicas of eight shards.
    assert_eq!(note(HSDP, "tp=2"), "mesh.dp_shard = 4, batch.accumulation = 2");
    assert_eq!(note(HSDP, "pp=8"), "mesh.dp_shard = 1, batch.accumulation = 8");
    let open = HSDP.replace("dp_replicate = 8\n", "").replace("dp_shard = 8\n", "");
    assert_eq!(note(&open, "tp=2"), "batch.accumulation = 2");
    let replicas = HSDP.replace("dp_replicate = 8", "dp_replicate = 64").replace("dp_shard = 8", "dp_shard = 1");
    assert_eq!(note(&replicas, "tp=2"), "mesh.dp_replicate = 32, batch.accumulation = 2");
    assert_eq!(note(SPLIT, "tp=1"), "batch.accumulation = 1, without tensor_parallel");
}

#[test]
fn a_size_that_does_not_divide_keeps_its_row_with_the_reason() {
    let quick = Options { step: 1024, max: Some(1024) };
    let why = |text: &str, what: &str| by(text, what, quick).rows[0].ceiling.clone().unwrap_err();
    assert!(why(LLAMA, "tp=3").contains("mesh.tp = 3 does not divide the 8 chips"));
    // More replicas than sequences.
    let text = with(LLAMA, &[("mesh", "tp", 8), ("mesh", "dp_shard", 1)]);
    assert!(why(&text, "tp=4").contains("1 sequences a step do not divide into 2 replicas"), "{}", why(&text, "tp=4"));
    let larger = with(&text, &[("batch", "micro", 8)]);
    assert!(
        why(&larger, "tp=4").ends_with("which are 16; batch.micro = 4 would divide them"),
        "{}",
        why(&larger, "tp=4")
    );
    assert!(why(LLAMA, "cp=2").contains("compiled blocks"));
    assert!(why(NARROW, "tp=3").contains("a slice of"), "{}", why(NARROW, "tp=3"));
}

#[test]
fn the_name_alone_tries_powers_of_two_up_to_the_first_that_is_refused() {
    let quick = Options { step: 1024, max: Some(1024) };
    let names = |text: &str, what: &str| -> Vec<(String, bool)> {
        by(text, what, quick).rows.iter().map(|row| (row.name.clone(), row.ceiling.is_ok())).collect()
    };
    let sizes = |sizes: &[u32]| -> Vec<(String, bool)> { sizes.iter().map(|size| (size.to_string(), true)).collect() };
    assert_eq!(names(LLAMA, "tp"), sizes(&[1, 2, 4, 8]));
    assert_eq!(names(LLAMA, "cp"), [("1".to_owned(), true), ("2".to_owned(), false)]);
    assert_eq!(names(MIXTURE, "ep"), sizes(&[1, 2, 4, 8]));
}

/// The tokens of a step, written in the file, are so many sequences at every length.
#[test]
fn a_global_batch_in_tokens_stays_a_number_of_sequences() {
    let tokens = make::with(LLAMA, "batch", "global_tokens", 4 * 8 * 8192);
    let sequences = make::with(LLAMA, "batch", "global", 4 * 8);
    let written = make::with(LLAMA, "batch", "accumulation", 4);
    let found = [tokens, sequences, written].map(|text| ceiling(&make::parse(&text).draft, COARSE, &|| {}).unwrap());
    for ceiling in &found {
        assert!(ceiling.ladder.iter().all(|point| point.tokens == 32 * point.sequence));
        assert_eq!(ceiling.longest.as_ref().map(|top| top.sequence), found[0].longest.as_ref().map(|top| top.sequence));
    }
}

#[test]
fn what_is_fixed_is_said_and_an_axis_that_a_scenario_lacks_is_refused() {
    let folder = Folder::new("axes");
    folder.write("a.toml", LLAMA);
    let output = folder.windtunnel(&["ceiling", "a.toml", "--max", "1024", "--compare", "tp=1,2", "--json", "a.json"]);
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "fixed: 8 sequences a step of the whole job at every length: 65,536 tokens at the file's own 8,192",
        "follows: data-parallel ranks and batch.accumulation",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("2: mesh.dp_shard = 4, batch.accumulation = 2"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&folder.read("a.json")).unwrap();
    assert_eq!(json["fixed"]["sequences_per_step"], 8);
    for (what, answer) in [
        ("ep=1,2", "cannot vary \"ep\": llama-3.1-8b has no experts"),
        ("context=2", "cannot vary \"context\": this runtime calls it cp"),
        ("tp=0", "there is no \"0\"; write some of: 1, 2, 4, 8"),
        ("tp=two", "there is no \"two\""),
    ] {
        let said = folder.refuses(&["ceiling", "a.toml", "--compare", what]);
        assert!(said.contains(answer), "{said}");
    }
}
