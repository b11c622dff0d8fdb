//! Whole answers to single mistakes, to the letter.

use super::{edited, refused};
use crate::command::Folder;

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
    let said = refused("tp-eager", "dp_shard = 8", "tp = 2\n[tensor_parallel]\nasynchronous = true");
    assert!(said.contains("layers are not compiled") && said.contains("write compile.blocks = true"), "{said}");
    let said = refused("cp-eager", "dp_shard = 8", "cp = 2");
    assert!(said.contains("context parallelism is modelled in compiled blocks alone"), "{said}");
    let said =
        refused("cp-alone", "dp_shard = 8", "dp_shard = 8\n[framework]\ncontext_parallel_rotate_method = \"alltoall\"");
    assert!(said.contains("how ranks share a sequence, and mesh.cp does not split it"), "{said}");
    let said = refused(
        "cp-parts",
        "dp_shard = 8\n\n[batch]\nsequence = 128",
        "cp = 2\n\n[batch]\nsequence = 126\n[compile]\nblocks = true",
    );
    assert!(said.contains("cuts a sequence into 4 parts, and 126 tokens are no multiple"), "{said}");
    let said = refused("float8-eager", "", "[float8]\nrecipe = \"tensorwise\"");
    assert!(said.contains("[float8] is modelled in compiled blocks alone"), "{said}");
    let rowwise = "[compile]\nblocks = true\n[float8]\nrecipe = \"rowwise\"\nall_gather = true";
    let said = refused("float8-rows", "", rowwise);
    assert!(said.contains("a gather in fp8 needs one scale a tensor"), "{said}");
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
error: there is no key `dp_shards` here (did you mean `dp_shard`?): expected one of `dp_shard`, `dp_replicate`, `tp`, `cp`, `pp`, `dp`, `ep`, `etp`, `data`, `fsdp`, `fsdp_transpose`, `context`, `expert`, `tensor`, `pipeline`, `dcn_pipeline`, `dcn_data`, `dcn_fsdp`, `dcn_fsdp_transpose`, `dcn_context`, `dcn_expert`, `dcn_tensor`, `allow_split_physical_axes`, `logical_axis_rules`
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
error: tpu-v6e is not a CUDA machine, and FSDP2 runs on CUDA GPUs
 --> my.toml:4:8
4 | name = \"tpu-v6e\"
  |        ^
name a GPU topology (`windtunnel topology list` shows them), or write runtime = \"xla\"",
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
        "huggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 128",
        "huggingface = \"config.json\"\nvocab = 1000000\n\n[mesh]\ndp_shard = 8\n\n[loss]\nkind = \"vocabulary_chunked\"\n\
         words = 1\n\n[batch]\nsequence = 128\naccumulation = 65536",
        "
error: a step has more than the 4,000,000 instructions that are simulated: 1,000,000 parts of the vocabulary (loss.words) × 65,536 micro-batches (batch.accumulation) × 3 layers (model.layers)
  --> my.toml:20:16
20 | accumulation = 65536
   |                ^
write a larger loss.words",
    );
}

#[test]
fn a_step_too_long_to_count_is_refused() {
    check(
        "time",
        "huggingface = \"config.json\"\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 128",
        "name = \"llama-3.1-8b\"\nlayers = 1024\n\n[mesh]\ndp_shard = 8\n\n[batch]\nsequence = 16777216",
        "
error: one step would keep a chip busy for more than 100 days
  --> my.toml:15:12
15 | sequence = 16777216
   |            ^
the simulated clock holds ten: write a shorter batch.sequence, or fewer micro-batches",
    );
}

#[test]
fn a_wrong_unit_in_ones_own_topology_is_shown_in_that_file() {
    let folder = Folder::new("unit");
    let shipped = include_str!("../../topologies/h100-sxm-80gb.toml");
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
