//! A mistake in a file is answered with its place, what was expected and what to try; never with a panic, a hang or half
//! a report.

use proptest::prelude::*;
use windtunnel::cost::Profile;
use windtunnel::hardware::{Size, Topology};
use windtunnel::model::huggingface;
use windtunnel::runtime::Job;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Scenario, predict};

use crate::command::Folder;
use crate::make::{FILE, TINY};

/// The tiny scenario with `old` replaced by `new`; without `old`, `new` is added at the end.
fn edited(old: &str, new: &str) -> String {
    if old.is_empty() {
        return format!("{TINY}\n{new}\n");
    }
    assert!(TINY.contains(old), "{old}");
    TINY.replacen(old, new, 1)
}

/// Runs the binary on the edited scenario, saved as `my.toml`.
fn refused(test: &str, old: &str, new: &str) -> String {
    let folder = Folder::new(test);
    folder.write("my.toml", &edited(old, new));
    folder.refuses(&["run", "my.toml"])
}

/// One mistake and the whole answer to it.
fn check(test: &str, old: &str, new: &str, expected: &str) {
    let said = refused(test, old, new);
    assert_eq!(said.trim_end(), expected.trim(), "\n{said}");
}

#[test]
fn broken_toml_is_shown_where_it_breaks() {
    check(
        "broken",
        "[mesh]",
        "[mesh",
        "
error: unclosed table, expected `]`
  --> my.toml:10:6
10 | [mesh
   |      ^",
    );
}

#[test]
fn a_model_that_cannot_be_split_so_far_is_told_how_far() {
    check(
        "tp-heads",
        "dp_shard = 8",
        "tp = 4",
        "
error: mesh.tp = 4 does not divide the 2 key-value heads of config
  --> my.toml:11:6
11 | tp = 4
   |      ^
write mesh.tp = 1 or 2",
    );
    check(
        "tp-chips",
        "dp_shard = 8",
        "tp = 3",
        "
error: mesh.tp = 3 does not divide the 8 chips of h100-sxm-80gb
  --> my.toml:11:6
11 | tp = 3
   |      ^
write a divisor, or change the topology's size",
    );
    let said = refused("tp-none", "[batch]", "[tensor_parallel]\nsequence = true\n\n[batch]");
    assert!(said.contains("[tensor_parallel] says how a model is split, and mesh.tp does not split it"), "{said}");
    let said = refused("tp-compiled", "dp_shard = 8", "tp = 2\n[compile]\nblocks = true");
    assert!(said.contains("tensor parallelism of compiled blocks is not modelled yet"), "{said}");
}

#[test]
fn text_without_quotes_is_told_about_quotes() {
    check(
        "unquoted",
        "\"fsdp2\"",
        "fsdp2",
        "
error: expected a value, found fsdp2: text stands in quotes
 --> my.toml:1:11
1 | runtime = fsdp2
  |           ^",
    );
}

#[test]
fn a_misspelt_key_is_told_the_right_one() {
    check(
        "misspelt",
        "dp_shard",
        "dp_shards",
        "
error: there is no key `dp_shards` here (did you mean `dp_shard`?): expected one of `dp_shard`, `dp_replicate`, `tp`, `cp`, `pp`, `dp`
  --> my.toml:11:1
11 | dp_shards = 8
   | ^",
    );
}

#[test]
fn a_mesh_that_does_not_tile_the_machine_says_both_numbers() {
    check(
        "mesh",
        "dp_shard = 8",
        "dp_shard = 16",
        "
error: the mesh holds 16 ranks but the topology has 8 chips (1 node of 8 chips = 8 chips of h100-sxm-80gb)
  --> my.toml:11:12
11 | dp_shard = 16
   |            ^
dp_shard × dp_replicate must be 8; or change the topology's size",
    );
}

#[test]
fn resharding_to_a_number_that_does_not_divide_is_refused() {
    check(
        "reshard",
        "",
        "[fsdp]\nreshard_after_forward = 3",
        "
error: reshard_after_forward = 3 does not divide dp_shard = 8
  --> my.toml:17:25
17 | reshard_after_forward = 3
   |                         ^
write true, false, or a divisor of dp_shard above 1",
    );
}

#[test]
fn a_tpu_is_no_place_for_fsdp2() {
    check(
        "tpu",
        "name = \"h100-sxm-80gb\"\nnodes = 1",
        "name = \"tpu-v6e\"\nslice = \"4x4\"",
        "
error: tpu-v6e is not a CUDA machine, and FSDP2 is the CUDA lane
 --> my.toml:4:8
4 | name = \"tpu-v6e\"
  |        ^
name a GPU topology: `windtunnel topology list` shows them",
    );
}

#[test]
fn an_unknown_model_is_told_the_nearest() {
    check(
        "model",
        "huggingface = \"config.json\"",
        "name = \"llama-3.1-9b\"",
        "
error: no model is named \"llama-3.1-9b\"
 --> my.toml:8:8
8 | name = \"llama-3.1-9b\"
  |        ^
the nearest are \"llama-3.1-8b\", \"llama-3.1-70b\", \"llama-3.2-1b\"; all are in scenarios/models/, and \
         huggingface = \"path/config.json\" reads your own",
    );
}

#[test]
fn a_sequence_beyond_the_learned_positions_is_refused() {
    check(
        "positions",
        "huggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 128",
        "name = \"gpt2\"\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 2048",
        "
error: batch.sequence = 2048 but gpt2 has a table of 1024 learned positions
  --> my.toml:14:12
14 | sequence = 2048
   |            ^
train on 1024 tokens or fewer, or write model.positions = 2048",
    );
}

#[test]
fn a_program_too_long_to_hold_is_refused() {
    check(
        "program",
        "sequence = 128",
        "sequence = 128\naccumulation = 65536",
        "
error: 3 blocks × 65536 micro-batches are 196608 blocks to run in a step, and at most 32768 are simulated
  --> my.toml:15:16
15 | accumulation = 65536
   |                ^
write batch.accumulation = 10922 or less: every further micro-batch adds the same time",
    );
}

#[test]
fn a_step_too_long_to_count_is_refused() {
    check(
        "time",
        "huggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 128",
        "name = \"llama-3.1-8b\"\nlayers = 10000\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 16777216",
        "
error: one step would keep a chip busy for more than 2000 days
  --> my.toml:15:12
15 | sequence = 16777216
   |            ^
the simulated clock holds ten: write a shorter batch.sequence, or fewer micro-batches",
    );
}

#[test]
fn a_wrong_unit_in_ones_own_topology_is_shown_in_that_file() {
    let folder = Folder::new("unit");
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let line = shipped.lines().position(|line| line.starts_with("memory_bandwidth")).unwrap();
    let mut lines: Vec<&str> = shipped.lines().collect();
    lines[line] = "memory_bandwidth = { value = \"3.3 furlongs\", source = \"aic\" }";
    folder.write("mine.toml", &lines.join("\n"));
    folder.write("my.toml", &edited("h100-sxm-80gb", "mine.toml"));
    let expected = format!(
        "error: \"3.3 furlongs\" has the unit \"furlongs\": expected one of B/s, MB/s, GB/s, TB/s, Gbit/s, Tbit/s, \
         for example \"4.8 TB/s\"\n  --> mine.toml:{0}:30\n{0} | {1}\n   |                              ^\n \
         --> my.toml:4:8\n4 | name = \"mine.toml\"\n  |        ^\n",
        line + 1,
        lines[line]
    );
    assert_eq!(folder.refuses(&["run", "my.toml"]), expected);
}

/// Every other mistake: what is changed, into what, and words the answer must hold.
const MISTAKES: &[(&str, &str, &[&str])] = &[
    // A key nobody knows, in every table.
    ("", "x = 1", &["my.toml:16:1", "no key `x`", "expected one of `sequence`"]),
    ("[mesh]", "x = 1\n[mesh]", &["my.toml:10:1", "no key `x`"]),
    ("[model]", "x = 1\n[model]", &["my.toml:7:1", "no key `x`"]),
    ("[topology]", "x = 1\n[topology]", &["my.toml:3:1", "no key `x`"]),
    ("[batch]", "x = 1\n[batch]", &["my.toml:13:1", "no key `x`", "`dp_shard`"]),
    ("", "[precision]\nx = 1", &["my.toml:17:1", "no key `x`", "`storage`"]),
    ("", "[fsdp]\nx = 1", &["my.toml:17:1", "no key `x`", "`wrap`"]),
    ("", "[[fsdp.override]]\nx = 1", &["my.toml:17:1", "no key `x`", "`blocks`"]),
    ("", "[activation_checkpointing]\nx = 1", &["my.toml:17:1", "no key `x`", "`policy`"]),
    ("", "[optimizer]\nx = 1", &["my.toml:17:1", "no key `x`", "`implementation`"]),
    ("", "[attention]\nx = 1", &["my.toml:17:1", "no key `x`", "`backend`"]),
    ("", "[memory]\nx = 1", &["my.toml:17:1", "no key `x`", "`expandable_segments`"]),
    ("", "[loss]\nx = 1", &["my.toml:17:1", "no key `x`", "`kind`"]),
    ("", "[engine]\nx = 1", &["my.toml:16:", "no key `engine`"]),
    // Keys and tables that are missing.
    ("runtime = \"fsdp2\"", "", &["my.toml:1:1", "`runtime` is missing"]),
    ("sequence = 128", "", &["my.toml:13:1", "`sequence` is missing"]),
    ("nodes = 1", "", &["my.toml:4:8", "no size", "nodes = 1"]),
    ("huggingface = \"config.json\"", "", &["my.toml:7:1", "exactly one of the two", "name ="]),
    ("huggingface", "name = \"gpt2\"\nhuggingface", &["my.toml:7:1", "exactly one of the two"]),
    ("nodes = 1", "nodes = 1\nslice = \"4x4\"", &["my.toml:6:9", "not both", "remove one"]),
    // Wrong types.
    ("nodes = 1", "nodes = 2.5", &["my.toml:5:9", "whole number, found 2.5"]),
    ("nodes = 1", "nodes = \"two\"", &["my.toml:5:9", "whole number, found \"two\""]),
    ("nodes = 1", "nodes = nan", &["my.toml:5:9", "whole number, found nan"]),
    ("nodes = 1", "nodes = inf", &["my.toml:5:9", "whole number, found inf"]),
    ("\"h100-sxm-80gb\"", "3", &["my.toml:4:8", "text in quotes, found 3"]),
    ("[mesh]", "[[mesh]]", &["my.toml:10:1", "write [mesh]"]),
    ("[mesh]\ndp_shard = 8", "", &["my.toml:1:1", "`mesh` is missing"]),
    ("", "[fsdp]\ncpu_offload = 1", &["my.toml:17:15", "true or false, found 1"]),
    ("", "[fsdp]\nwrap = 3", &["my.toml:17:8", "found 3"]),
    ("", "[fsdp]\nwrap = \"blocks\"", &["my.toml:17:8", "write { blocks = … }"]),
    ("", "[fsdp]\nwrap = \"blok\"", &["my.toml:17:8", "did you mean `block`?"]),
    ("", "[fsdp]\nreshard_after_forward = \"yes\"", &["my.toml:17:25", "true, false, or a number of ranks"]),
    ("", "[[fsdp.override]]\nblocks = [0]\nreshard_after_forward = true", &["my.toml:17:10", "two numbers, found [0]"]),
    ("", "[memory]\nexpandable_segments = true\nexpandable_segments = true", &["my.toml:18:1", "duplicate key"]),
    // Choices there are not.
    ("\"fsdp2\"", "\"fsdp9\"", &["my.toml:1:11", "no runtime \"fsdp9\"", "fsdp2"]),
    ("h100-sxm-80gb", "h100", &["my.toml:4:8", "did you mean \"h100-sxm-80gb\"?"]),
    ("nodes = 1", "slice = \"4x4\"", &["my.toml:4:8", "sold in nodes of 8"]),
    ("nodes = 1", "nodes = 1\nclocks = \"fast\"", &["my.toml:6:10", "`burst`", "`sustained`"]),
    ("", "[precision]\nstorage = \"fp8\"", &["my.toml:17:11", "cannot be fp8", "\"bf16\""]),
    ("", "[precision]\nreduce = \"int64\"", &["my.toml:17:10", "cannot be int64", "\"bf16\""]),
    ("", "[precision]\nparam = \"bf61\"", &["my.toml:17:9", "did you mean `bf16`?"]),
    ("", "[optimizer]\nname = \"lion\"", &["my.toml:17:8", "no optimizer \"lion\"", "\"adamw\""]),
    ("", "[fsdp]\nwrap = \"llm_foundry\"", &["my.toml:17:8", "fsdp1"]),
    ("", "[attention]\nunpad = true\n[compile]\nblocks = true", &["my.toml:17:9", "packing tokens"]),
    ("", "[optimizer]\nstep_on_device = true", &["my.toml:17:18", "keeps its number of steps on the host"]),
    ("", "[optimizer]\nname = \"sgd\"\nweight_decay = 0.1", &["my.toml:18:16", "not modelled"]),
    (
        "",
        "[loss]\nkind = \"chunked_linear\"\n[compile]\nloss = true",
        &["my.toml:19:8", "\"fp32\", \"bf16\" and \"chunked_output\"", "remove compile.loss"],
    ),
    ("", "[compile]\nloss = 1", &["my.toml:17:8", "true or false, found 1"]),
    ("", "[loss]\nkind = \"fused_linear\"\n[loop]\ntrain_metrics = 2", &["my.toml:19:17", "whole logits"]),
    ("", "[optimizer]\nname = \"sgd\"\nimplementation = \"fused\"", &["my.toml:18:18", "\"foreach\" for sgd"]),
    ("", "[attention]\nbackend = \"flash9\"", &["my.toml:17:11", "did you mean `flash1`?"]),
    ("", "[activation_checkpointing]\npolicy = \"some\"", &["my.toml:17:10", "`selective_op`"]),
    // Blocks that are not there.
    ("", "[fsdp]\nwrap = { every = 0 }", &["my.toml:17:", "every = 0", "1 or more"]),
    ("", "[fsdp]\nwrap = { every = -1 }", &["my.toml:17:", "every = -1", "1 or more"]),
    ("", "[fsdp]\nwrap = { blocks = [0, 3] }", &["my.toml:17:", "block 3", "blocks 0 to 2"]),
    ("", "[fsdp]\nwrap = { blocks = [-1] }", &["my.toml:17:", "block -1", "blocks 0 to 2"]),
    (
        "",
        "[[fsdp.override]]\nblocks = [0, 4]\nreshard_after_forward = true",
        &["my.toml:17:10", "the 3 blocks", "[first"],
    ),
    (
        "",
        "[[fsdp.override]]\nblocks = [2, 1]\nreshard_after_forward = true",
        &["my.toml:17:10", "the 3 blocks", "[first"],
    ),
    (
        "",
        "[[fsdp.override]]\nblocks = [-1, 1]\nreshard_after_forward = true",
        &["my.toml:17:10", "the 3 blocks", "[first"],
    ),
    ("", "[[fsdp.override]]\nblocks = [0, 1]\nreshard_after_forward = 5", &["my.toml:18:25", "divide dp_shard = 8"]),
    (
        "",
        "[fsdp]\nreshard_after_forward = 2\n[[fsdp.override]]\nblocks = [0, 1]\nreshard_after_forward = 4",
        &["my.toml:10:1", "one post-forward mesh"],
    ),
    ("", "[activation_checkpointing]\npolicy = { every = 0 }", &["my.toml:17:", "every = 0", "1 (every block)"]),
    ("dp_shard = 8", "dp_replicate = 3", &["my.toml:11:16", "3 ranks", "8 chips"]),
    ("dp_shard = 8", "dp_shard = 4\ndp_replicate = 4", &["my.toml:11:12", "16 ranks", "8 chips"]),
    // Files that are not there, or hold something else.
    ("config.json", "nowhere.json", &["my.toml:8:15", "cannot read nowhere.json"]),
    ("h100-sxm-80gb", "nowhere.toml", &["my.toml:4:8", "cannot read", "nowhere.toml"]),
    ("nodes = 1", "nodes = 1\nprofile = \"nowhere.toml\"", &["my.toml:6:11", "cannot read", "nowhere.toml"]),
    ("nodes = 1", "nodes = 1\nprofile = \"nowhere\"", &["my.toml:6:11", "no profile is named", "h100-sxm-80gb"]),
    ("h100-sxm-80gb", "config.json", &["my.toml:4:8"]),
    ("h100-sxm-80gb", "my.toml", &["my.toml:"]),
    ("nodes = 1", "nodes = 1\nprofile = \"my.toml\"", &["my.toml:"]),
    ("config.json", "my.toml", &["my.toml:8:15", "not JSON"]),
    ("\"config.json\"", "\"config.json\"\npositions = 99", &["my.toml:9:13", "no table of learned positions"]),
];

#[test]
fn every_mistake_is_shown_with_its_place_and_a_remedy() {
    for (number, (old, new, words)) in MISTAKES.iter().enumerate() {
        let said = refused(&format!("mistake-{number}"), old, new);
        for word in *words {
            assert!(said.contains(word), "{old:?} → {new:?}: expected {word:?} in\n{said}");
        }
    }
}

#[test]
fn a_model_without_a_field_says_which() {
    let folder = Folder::new("field");
    folder.write("my.toml", TINY);
    for key in
        ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "model_type"]
    {
        let config = include_str!("tiny/config.json").replacen(&format!("\"{key}\""), "\"_unused\"", 1);
        folder.write("config.json", &config);
        let said = folder.refuses(&["run", "my.toml"]);
        for word in [format!("{key:?} is missing: expected"), "config.json".to_owned(), "my.toml:8:15".to_owned()] {
            assert!(said.contains(&word), "{said}");
        }
        for value in ["0", "-1", "1e30", "9223372036854775807", "null", "[]", "\"x\""] {
            let config = include_str!("tiny/config.json");
            let line = config.lines().find(|line| line.contains(&format!("\"{key}\""))).unwrap();
            folder.write("config.json", &config.replacen(line, &format!("  \"{key}\": {value},"), 1));
            let said = folder.refuses(&["run", "my.toml"]);
            assert!(said.contains(key) && said.contains("config.json"), "{key} = {value}: {said}");
        }
    }
}

#[test]
fn a_scenario_that_is_not_there_is_named() {
    let folder = Folder::new("nowhere");
    assert_eq!(
        folder.refuses(&["run", "nowhere.toml"]),
        "error: cannot read the scenario nowhere.toml: No such file or directory (os error 2)\n"
    );
    assert!(folder.refuses(&["run"]).contains("<SCENARIO>"));
    assert!(folder.refuses(&["fly"]).contains("unrecognized subcommand 'fly'"));
    assert!(folder.refuses(&["topology", "show", "h100"]).contains("did you mean \"h100-sxm-80gb\"?"));
}

/// Every whole number a scenario may hold: its line as a template.
const NUMBERS: &[(&str, &str)] = &[
    ("nodes = 1", "nodes = @"),
    ("dp_shard = 8", "dp_shard = @"),
    ("dp_shard = 8", "dp_replicate = @"),
    ("sequence = 128", "sequence = @"),
    ("sequence = 128", "sequence = 128\nmicro = @"),
    ("sequence = 128", "sequence = 128\naccumulation = @"),
    ("huggingface", "layers = @\nhuggingface"),
    ("", "[fsdp]\nreshard_after_forward = @"),
    ("", "[fsdp]\nroot_reshard_after_forward = @"),
    ("", "[fsdp]\nforward_prefetch = @"),
    ("", "[fsdp]\nbackward_prefetch = @"),
    ("", "[fsdp]\nreduce_scatter_buffers = @"),
    ("", "[fsdp]\nwrap = { every = @ }"),
    ("", "[fsdp]\nwrap = { blocks = [@] }"),
    ("", "[[fsdp.override]]\nblocks = [0, @]\nreshard_after_forward = true"),
    ("", "[[fsdp.override]]\nblocks = [@, 2]\nreshard_after_forward = true"),
    ("", "[activation_checkpointing]\npolicy = { every = @ }"),
    ("", "[loss]\nkind = \"chunked_output\"\nchunks = @"),
];

#[test]
fn no_number_is_too_small_or_too_large_for_an_answer() {
    // Zero prefetches and a range that starts at block 0 are sound; nothing else is.
    let zero_is_sound = ["forward_prefetch", "backward_prefetch", "blocks = [@", "wrap = { blocks"];
    let folder = Folder::new("numbers");
    for (old, template) in NUMBERS {
        for value in ["0", "-1", "-9223372036854775808", "9223372036854775807", "99999999999999999999", "1e30"] {
            if value == "0" && zero_is_sound.iter().any(|sound| template.contains(sound)) {
                continue;
            }
            folder.write("my.toml", &edited(old, &template.replace('@', value)));
            let output = folder.windtunnel(&["run", "my.toml"]);
            let said = String::from_utf8(output.stderr).unwrap();
            let clamped = template.contains("every = @") && value == "9223372036854775807";
            if clamped && output.status.success() {
                continue;
            }
            assert_eq!(output.status.code(), Some(2), "{template} with {value}: {said}");
            assert!(output.stdout.is_empty() && !said.contains("panicked"), "{template} with {value}: {said}");
            assert!(said.contains("my.toml:"), "{template} with {value}: {said}");
        }
    }
}

#[test]
fn the_largest_number_allowed_gets_an_answer() {
    for (old, new) in [
        (
            "nodes = 1\n\n[model]\nhuggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8",
            "nodes = 16384\n\n[model]\nhuggingface = \"config.json\"\n\n[mesh]\ndp_shard = 131072",
        ),
        ("sequence = 128", "sequence = 4194304"),
        ("sequence = 128", "sequence = 128\nmicro = 65536"),
        ("sequence = 128", "sequence = 1\naccumulation = 2000"),
        ("huggingface", "layers = 10000\nhuggingface"),
        ("", "[fsdp]\nforward_prefetch = 65536"),
        ("", "[fsdp]\nbackward_prefetch = 65536"),
        ("", "[fsdp]\nreduce_scatter_buffers = 65536"),
    ] {
        let scenario = Scenario::parse(FILE, &edited(old, new)).unwrap_or_else(|error| panic!("{new}: {error}"));
        let settings = Settings { remedies: false, ..Settings::default() };
        let answer = predict(&scenario, settings).unwrap_or_else(|error| panic!("{new}: {error}"));
        assert!(answer.step.0 > 0, "{new}");
    }
}

/// Reads and, if it can be read, flies: the point is that this returns.
fn survives(text: &str) {
    // Small enough that hundreds take seconds: the tiny model, few micro-batches.
    let text: String = text.lines().map(tiny).collect();
    if let Ok(scenario) = Scenario::parse(FILE, &text)
        && scenario.job.model().layers * u64::from(scenario.job.micro_batches()) <= 64
    {
        let settings = Settings { remedies: false, ..Settings::default() };
        let _ = predict(&scenario, settings);
    }
}

fn tiny(line: &str) -> String {
    let model =
        line.starts_with("name = ") && windtunnel::model::huggingface::shipped(line[7..].trim_matches('"')).is_some();
    if model { "huggingface = \"config.json\"\n".to_owned() } else { format!("{line}\n") }
}

fn shipped_scenarios() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// One change to a file, as fingers slip.
fn mutate(text: &str, at: &prop::sample::Index, how: usize) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if lines.is_empty() {
        return String::new();
    }
    let line = at.index(lines.len());
    let values =
        ["0", "-1", "9223372036854775807", "1e30", "nan", "inf", "\"text\"", "true", "[]", "{}", "", "3", "65536"];
    match how {
        0 => drop(lines.remove(line)),
        1 => lines.insert(line, lines[line].clone()),
        2 => lines[line] = lines[line].chars().rev().collect(),
        3 => lines.swap(line, 0),
        _ => {
            if let Some((key, _)) = lines[line].clone().split_once('=') {
                lines[line] = format!("{key}= {}", values[(how - 4) % values.len()]);
            }
        }
    }
    lines.join("\n")
}

/// Replaces the first quoted quantity of a line by one that nobody sells.
fn mutate_quantity(text: &str, at: &prop::sample::Index, value: usize) -> String {
    let values =
        ["0 B", "1 B", "1 MiB", "1e300 GB", "-1 GB", "1e-300 GB/s", "1 B/s", "1e30 TB/s", "1e30 TFLOP/s", "1 FLOP/s"];
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if let (Some(value), Some(line)) = (values.get(value), (!lines.is_empty()).then(|| at.index(lines.len()))) {
        let mut parts: Vec<&str> = lines[line].split('"').collect();
        if parts.len() >= 3 {
            parts[1] = value;
            lines[line] = parts.join("\"");
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_get_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        survives(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_slip_in_ones_own_topology_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize, 0..20_usize), 1..4),
    ) {
        let mut text = include_str!("../topologies/h100-sxm-80gb.toml").to_owned();
        for (at, how, value) in &slips {
            text = mutate_quantity(&mutate(&text, at, *how), at, *value);
        }
        let mut scenario = Scenario::parse(FILE, TINY).unwrap();
        match Topology::parse("mine.toml", &text, &Size::Nodes(1)) {
            Ok(topology) if topology.chips() == 8 => {
                scenario.topology = topology;
                if let Ok(answer) = predict(&scenario, Settings::default()) {
                    let report = windtunnel::report::text::report(&scenario, &answer, Default::default());
                    prop_assert!(!report.contains("NaN"), "{report}");
                }
            }
            Ok(_) => {}
            Err(error) => prop_assert!(error.to_string().contains("mine.toml:"), "{error}"),
        }
    }

    #[test]
    fn any_slip_in_ones_own_profile_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize, 0..20_usize), 1..4),
    ) {
        let mut text = include_str!("../calibrate/profiles/h100-sxm-80gb.toml").to_owned();
        for (at, how, value) in &slips {
            text = mutate_quantity(&mutate(&text, at, *how), at, *value);
        }
        if let Ok(profile) = Profile::parse("mine.toml", &text) {
            let mut scenario = Scenario::parse(FILE, TINY).unwrap();
            scenario.profile = profile;
            let _ = predict(&scenario, Settings::default());
        }
    }

    #[test]
    fn any_slip_in_ones_own_model_gets_an_answer(
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize), 1..4),
    ) {
        let mut text = include_str!("tiny/config.json").to_owned();
        for (at, how) in &slips {
            text = mutate(&text.replace(": ", "= "), at, *how).replace("= ", ": ");
        }
        if let Ok(model) = huggingface::parse(&text, "mine.json")
            && model.layers <= 64
        {
            let mut scenario = Scenario::parse(FILE, TINY).unwrap();
            let Job::Train(job) = &mut scenario.job else { unreachable!("FSDP2") };
            job.fsdp.wrap.blocks = vec![None; model.layers as usize];
            job.model = model;
            let _ = predict(&scenario, Settings { remedies: false, ..Settings::default() });
        }
    }

    #[test]
    fn any_slip_in_a_shipped_scenario_gets_an_answer(
        which in any::<prop::sample::Index>(),
        slips in prop::collection::vec((any::<prop::sample::Index>(), 0..17_usize), 1..4),
    ) {
        let shipped = shipped_scenarios();
        let mut text = shipped[which.index(shipped.len())].clone();
        for (at, how) in &slips {
            text = mutate(&text, at, *how);
            if text.is_empty() { break; }
        }
        survives(&text);
    }
}
