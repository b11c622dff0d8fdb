//! Scenarios for tests: a tiny model, and as text so that every test goes through the reader that users go through.

use proptest::prelude::*;
use windtunnel::program::{Category, Instr, Program, Rename};
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Prediction, Scenario, predict};

/// Paths in a test's scenario are relative to this (imaginary) file, beside which the tiny model lies.
pub const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny/scenario.toml");

/// A scenario's text with each of some words replaced, which it must have.
pub fn replaced(base: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(base.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

/// The tiny model on one node, everything else left open.
pub const TINY: &str = r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"

[mesh]
dp_shard = 8

[batch]
sequence = 128
"#;

/// The tiny model, of four blocks, under Megatron-Core: two stages on halves of it, everything else left open.
pub const MEGATRON: &str = r#"runtime = "megatron"

[topology]
name = "h100-sxm-80gb"
nodes = 1

[model]
huggingface = "config.json"
layers = 4

[mesh]
tp = 2
pp = 2

[batch]
sequence = 128
accumulation = 4
"#;

pub fn parse(text: &str) -> Scenario {
    Scenario::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n\n{text}"))
}

/// What each rank of a scenario issues, where all issue the same.
pub fn program(text: &str) -> Program {
    let flight = parse(text).job.compile();
    assert_eq!(flight.classes.len(), 1);
    flight.programs().remove(0)
}

pub fn fly(text: &str) -> Prediction {
    predict(&parse(text), Settings::default()).unwrap_or_else(|error| panic!("{error}\n\n{text}"))
}

/// A topology file of nodes of so many H100s with disks of a rate, which nobody states of nodes that are shipped.
pub fn disks(chips: u64, rate: &str) -> String {
    let shipped = include_str!("../topologies/h100-sxm-80gb.toml");
    let keys =
        ["read", "write"].map(|way| format!("disk_{way} = {{ value = {rate:?}, source = \"assumed: a test\" }}\n"));
    let own = shipped.replace("value = 8, source", &format!("value = {chips}, source"));
    let path = format!("{}/h100-{chips}-{}.toml", env!("CARGO_TARGET_TMPDIR"), rate.replace([' ', '/'], "-"));
    // Tests run side by side, some in processes of their own: nobody reads a file that is half written.
    let whole = format!("{path}.{}.{:?}", std::process::id(), std::thread::current().id());
    std::fs::write(&whole, own.replace("[node]\n", &format!("[node]\n{}", keys.concat()))).unwrap();
    std::fs::rename(&whole, &path).unwrap();
    path
}

/// The scenario with `table.key = value` set, as a user would set it.
pub fn with(text: &str, table: &str, key: &str, value: impl Into<toml::Value>) -> String {
    let mut file: toml::Table = text.parse().unwrap();
    let entry = file.entry(table).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    entry.as_table_mut().unwrap().insert(key.to_owned(), value.into());
    file.to_string()
}

/// The scenario with one line such as `fsdp.cpu_offload = true` (or several, separated by commas) applied.
pub fn apply(text: &str, change: &str) -> String {
    change.split(", ").fold(text.to_owned(), |text, line| {
        let change: toml::Table = line.parse().unwrap();
        let (table, keys) = change.iter().next().unwrap();
        let (key, value) = keys.as_table().unwrap().iter().next().unwrap();
        with(&text, table, key, value.clone())
    })
}

/// Random scenarios over everything that changes the program.
pub fn scenarios() -> impl Strategy<Value = String> {
    let plan = (1..=3_u32, any::<prop::sample::Index>(), 0..6_usize, 0..4_usize, 0..3_u32);
    let batch = (1..=3_u32, 1..=2_u32, any::<bool>(), any::<bool>(), prop::sample::select(vec![32_u32, 128, 513]));
    let fsdp = (0..=2_u32, 0..=2_u32, 1..=2_u32, any::<bool>(), 0..4_usize);
    let rest = (0..5_usize, 0..3_usize, any::<bool>(), any::<bool>(), 0..3_usize, 0..4_usize);
    (plan, batch, fsdp, rest).prop_map(|(plan, batch, fsdp, rest)| write(plan, batch, fsdp, rest))
}

fn write(
    (nodes, shard, wrap, reshard, split): (u32, prop::sample::Index, usize, usize, u32),
    (accumulation, micro, sync, last, sequence): (u32, u32, bool, bool, u32),
    (forward, backward, buffers, unshard, root): (u32, u32, u32, bool, usize),
    (checkpoint, optimizer, clip, expandable, precision, change): (usize, usize, bool, bool, usize, usize),
) -> String {
    let compile = buffers == 2;
    // Splitting the model leaves half of the data-parallel ranks.
    let tensor = split > 0 && change < 2 && sequence % 2 == 0;
    let tp = if tensor {
        format!("tp = 2\n\n[tensor_parallel]\nsequence = {}\nloss = {clip}", split == 2)
    } else {
        String::new()
    };
    let chips = nodes * if tensor { 4 } else { 8 };
    let divisors: Vec<u32> = (1..=chips).filter(|&shard| chips.is_multiple_of(shard)).collect();
    let shard = divisors[shard.index(divisors.len())];
    let replicate = chips / shard;
    let half = if shard >= 4 { (shard / 2).to_string() } else { "true".to_owned() };
    let reshard = ["true", "false", &half, "true"][reshard];
    let root = ["true", "false", "false", "true"][root];
    let wrap = ["\"root\"", "\"block\"", "\"torchtitan\"", "{ every = 2 }", "{ blocks = [0, 2] }", "\"block\""][wrap];
    let checkpoint = ["\"none\"", "\"full\"", "\"selective_op\"", "{ every = 2 }", "\"none\""][checkpoint];
    let (name, implementation) = [("adamw", "fused"), ("adamw", "foreach"), ("sgd", "foreach")][optimizer];
    let precision = [
        "storage = \"fp32\"\nparam = \"bf16\"\nreduce = \"fp32\"",
        "storage = \"bf16\"",
        "storage = \"fp32\"\nparam = \"fp32\"\nreduce = \"fp32\"",
    ][precision];
    // Only wrapped blocks have a policy to override.
    let change = match change {
        2 => "\n[loss]\nkind = \"flash_cross_entropy\"\n\n[loop]\ntrain_metrics = 2\nhost_syncs_per_step = 1\n",
        3 if !compile => "\n[attention]\nunpad = true\n",
        _ if !matches!(wrap, "\"block\"" | "\"torchtitan\"") => "",
        0 => "\n[[fsdp.override]]\nblocks = [0, 2]\nreshard_after_forward = false\n",
        1 => "\n[[fsdp.override]]\nblocks = [1, 3]\nreshard_after_forward = true\n",
        _ => "",
    };
    format!(
        r#"runtime = "fsdp2"

[topology]
name = "h100-sxm-80gb"
nodes = {nodes}

[model]
huggingface = "config.json"

[mesh]
dp_shard = {shard}
dp_replicate = {replicate}
{tp}

[batch]
sequence = {sequence}
micro = {micro}
accumulation = {accumulation}
sync_every_micro_batch = {sync}
set_is_last_backward = {last}

[precision]
{precision}

[fsdp]
wrap = {wrap}
reshard_after_forward = {reshard}
root_reshard_after_forward = {root}
forward_prefetch = {forward}
backward_prefetch = {backward}
reduce_scatter_buffers = {buffers}
unshard_in_backward = {unshard}

[compile]
blocks = {compile}

[activation_checkpointing]
policy = {checkpoint}

[optimizer]
name = "{name}"
implementation = "{implementation}"
clip_grad_norm = {clip}

[memory]
expandable_segments = {expandable}
{change}"#
    )
}

/// Bytes live after some instructions, without matmuls' workspaces, which a thread never gives back; every other buffer is
/// taken once and given back once.
pub fn live<'i>(program: &Program, list: impl IntoIterator<Item = &'i Instr>, live: &mut [bool]) -> u64 {
    for instr in list {
        match *instr {
            Instr::Alloc { buffer } if program.buffer(buffer).category == Category::Workspace => {}
            Instr::Alloc { buffer } => {
                let name = program.buffer(buffer).name;
                assert!(!std::mem::replace(&mut live[buffer.0 as usize], true), "{name}");
            }
            Instr::Free { buffer } => {
                let name = program.buffer(buffer).name;
                assert!(std::mem::replace(&mut live[buffer.0 as usize], false), "{name}");
            }
            Instr::Rename { rename } => {
                let Rename { from, to } = program.rename(rename);
                assert!(std::mem::replace(&mut live[from.0 as usize], false));
                assert!(!std::mem::replace(&mut live[to.0 as usize], true));
            }
            _ => {}
        }
    }
    live.iter().zip(program.buffers.iter()).filter(|(live, _)| **live).map(|(_, buffer)| buffer.bytes.0).sum()
}
