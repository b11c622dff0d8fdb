//! A mistake in a file is answered with its place, what was expected and what to try; never with a panic, a hang or half
//! a report.

/// What is said of a plan that flies.
mod noted;
/// Numbers at and beyond their limits.
mod numbers;
/// What answers propose.
mod remedies;
/// Several mistakes in one file.
mod several;
/// Whole answers, as they are shown.
mod shown;
/// Files that fingers slipped on.
mod slips;
/// Switches of FSDP2, checkpoints and optimizers.
mod switches;

use crate::command::Folder;
use crate::make::TINY;

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
    (
        "",
        "[loss]\nkind = \"chunked_linear\"\n[compile]\nloss = true",
        &["my.toml:19:8", "\"fp32\", \"bf16\", \"chunked_output\" and \"chunked_gradients\"", "remove compile.loss"],
    ),
    ("", "[loss]\nunshards_head = true", &["my.toml:17:17", "leaves the head's parameters", "\"chunked_gradients\""]),
    ("", "[loss]\nchunks = 4", &["my.toml:17:10", "not chunked", "remove loss.chunks"]),
    ("", "[memory]\ninitialisation = \"random\"", &["my.toml:17:18", "`truncated_normal`"]),
    (
        "",
        "[framework]\nrelease = \"torchtitan 9\"",
        &["my.toml:17:11", "no table of the defaults", "\"torchtitan 0.3.0\""],
    ),
    ("", "[framework]\nrope = \"by_position\"", &["my.toml:17:8", "`complex_by_position`"]),
    (
        "",
        "[framework]\ncuda_graphs = true\n[fsdp]\ncpu_offload = true",
        &[
            "my.toml:7:",
            "a CUDA graph of forward and backward with offload to the host's memory",
            "framework.cuda_graphs = false",
        ],
    ),
    ("", "[compile]\nloss = 1", &["my.toml:17:8", "true or false, found 1"]),
    ("", "[loss]\nkind = \"fused_linear\"\n[loop]\ntrain_metrics = 2", &["my.toml:19:17", "whole logits"]),
    ("", "[optimizer]\nname = \"sgd\"\nimplementation = \"fused\"", &["my.toml:18:18", "which is PyTorch's default"]),
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
        "error: cannot read the scenario nowhere.toml: No such file or directory (os error 2); windtunnel new --list shows samples, \
         windtunnel models shows models\n"
    );
    assert!(folder.refuses(&["run"]).contains("<SCENARIO>"));
    assert!(folder.refuses(&["fly"]).contains("unrecognized subcommand 'fly'"));
    assert!(folder.refuses(&["topology", "show", "h100"]).contains("did you mean \"h100-sxm-80gb\"?"));
}
