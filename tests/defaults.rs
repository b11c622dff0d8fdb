//! What is taken for keys that a file leaves out is what the framework takes, and the table says where its source says so.
//!
//! A key's declaration has, for each runtime, what is taken, of which release, and the line or function. Values that follow
//! from the job's size are `by size`; several values, where they follow from the machine or from other keys, are joined by `or`.

use std::collections::{BTreeMap, BTreeSet};

use windtunnel::scenario::{Assumption, Scenario};

use crate::keys::rows;
use crate::make::{self, MEGATRON, TINY, replaced};

/// Small plans of every runtime which leave open what they can.
pub fn plans() -> Vec<String> {
    let fsdp = |changes: &[(&str, &str)]| replaced(TINY, changes);
    let megatron = |changes: &[(&str, &str)]| replaced(MEGATRON, changes);
    let add = |text: &str, keys: &str| format!("{text}\n{keys}\n");
    let a100 = ("h100-sxm-80gb", "a100-sxm-80gb");
    let deepspeed = megatron(&[("\"megatron\"", "\"deepspeed\""), a100]);
    let tpu = |mesh: &str| {
        format!(
            "runtime = \"xla\"\n[topology]\nname = \"tpu-v6e\"\nslice = \"4x4\"\n[model]\nname = \"llama-3.1-8b\"\n[mesh]\n{mesh}\n\
             [batch]\nsequence = 4096\n"
        )
    };
    let torch_xla = |keys: &str| tpu("").replace("\"xla\"", "\"torch_xla\"") + keys;
    let zero = |stage: u32| {
        let text = fsdp(&[("\"fsdp2\"", "\"deepspeed-zero\""), ("dp_shard", "dp")]);
        add(&text, &format!("[zero]\nstage = {stage}"))
    };
    // Defaults are listed where they are read.
    let checkpoints = "[activation_checkpointing]\npolicy = \"full\"";
    let fsdp1 = fsdp(&[("\"fsdp2\"", "\"fsdp1\"")]);
    let single = fsdp(&[("\"fsdp2\"", "\"single_device\""), ("nodes = 1", "chips = 1"), ("dp_shard = 8", "")]);
    let ddp = fsdp(&[("\"fsdp2\"", "\"ddp\""), ("dp_shard = 8", "")]);
    vec![
        add(&ddp, checkpoints),
        add(&ddp, "[precision]\nautocast = \"bf16\""),
        replaced(&ddp, &[("sequence = 128", "sequence = 128\naccumulation = 2")]),
        TINY.to_owned(),
        add(TINY, checkpoints),
        add(&fsdp1, checkpoints),
        add(&single, checkpoints),
        add(&zero(1), checkpoints),
        add(MEGATRON, "[megatron]\nattention = \"unfused\""),
        add(
            MEGATRON,
            "[pipeline]\nvirtual_stages = 2\n[megatron]\ndistributed_optimizer = true\noverlap_grad_reduce = true\n\
             overlap_param_gather = true",
        ),
        fsdp(&[("huggingface = \"config.json\"", "name = \"mixtral-8x7b\"")]) + "[framework]\nexperts = \"loop\"\n",
        add(&deepspeed, "[megatron]\nattention = \"flash\""),
        fsdp(&[("sequence = 128", "sequence = 128\naccumulation = 2")]),
        fsdp(&[a100]),
        fsdp(&[("dp_shard = 8", "dp_shard = 4\ncp = 2")]) + "[compile]\nblocks = true\n",
        fsdp(&[("huggingface = \"config.json\"", "name = \"qwen3-30b-a3b\"")]),
        add(TINY, "[optimizer]\nname = \"sgd\""),
        add(TINY, "[optimizer]\nname = \"adam\""),
        add(TINY, "[precision]\nautocast = \"bf16\""),
        fsdp(&[("dp_shard = 8", "tp = 2")]),
        fsdp(&[("\"fsdp2\"", "\"fsdp1\"")]),
        fsdp(&[("\"fsdp2\"", "\"fsdp1\""), ("sequence = 128", "sequence = 128\naccumulation = 2")]),
        fsdp(&[("\"fsdp2\"", "\"single_device\""), ("nodes = 1", "chips = 1"), ("dp_shard = 8", "")]),
        fsdp(&[("\"fsdp2\"", "\"single_device\""), ("nodes = 1", "chips = 1"), ("dp_shard = 8", "")]) + "[precision]\nautocast = \"bf16\"\n",
        MEGATRON.to_owned(),
        megatron(&[("pp = 2", "pp = 2\n[pipeline]\nvirtual_stages = 2")]),
        add(MEGATRON, "[megatron]\nimplementation = \"local\""),
        megatron(&[("huggingface = \"config.json\"", "name = \"mixtral-8x7b\""), ("tp = 2\npp = 2", "ep = 8")]),
        add(MEGATRON, "[megatron]\ndistributed_optimizer = true\noverlap_grad_reduce = true\noverlap_param_gather = true"),
        megatron(&[("pp = 2", "cp = 2")]),
        add(MEGATRON, "[megatron]\ndistributed_optimizer = true\nexp_avg_dtype = \"bf16\""),
        add(MEGATRON, "[precision]\nparam = \"fp16\""),
        add(MEGATRON, "[megatron]\nfp8 = \"delayed\""),
        add(&deepspeed, "[precision]\nparam = \"fp16\""),
        deepspeed,
        megatron(&[("\"megatron\"", "\"nanotron\"")]),
        "runtime = \"internevo\"\n[topology]\nname = \"a100-sxm-80gb\"\nnodes = 1\n[model]\nname = \"internlm-7b\"\n[mesh]\ndp = 8\n\
         [batch]\nsequence = 2048\n"
            .to_owned(),
        zero(1),
        zero(2),
        zero(3),
        torch_xla(""),
        torch_xla("accumulation = 2\n"),
        tpu("fsdp = 16"),
        tpu("fsdp = 4\ntensor = 4"),
    ]
}

/// Keys and values of what is taken.
fn taken(scenario: &Scenario) -> impl Iterator<Item = (&str, String)> {
    let taken = scenario.assumptions.iter().filter_map(Assumption::taken);
    taken.map(|taken| (taken.key.as_str(), taken.value.to_string()))
}

#[test]
fn every_default_is_the_frameworks_and_its_source_is_known() {
    let mut table: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (_, key) in rows() {
        for preset in key.defaults {
            let path = key.path;
            let is_sourced = !preset.release.is_empty() && preset.place.len() > 8;
            assert!(is_sourced, "{path} = {}: where does that stand?", preset.value);
            for framework in preset.frameworks {
                let other = table.insert((framework, path), preset.value.split(" or ").collect());
                assert!(other.is_none(), "{framework}: {path} has two defaults");
            }
        }
    }
    let mut met: BTreeSet<(String, String)> = BTreeSet::new();
    for text in plans() {
        let scenario = make::parse(&text);
        let runtime = scenario.runtime.written();
        for (key, value) in taken(&scenario) {
            let Some(values) =
                table.iter().find_map(|(known, values)| (known.0 == runtime && known.1 == key).then_some(values))
            else {
                panic!("{runtime}: {key} = {value} is taken, and the key's declaration does not say on what grounds");
            };
            let expected = values.contains(&value.as_str()) || values[..] == ["by size"];
            assert!(
                expected,
                "{runtime}: {key} = {value} is taken, and the key's declaration has {}",
                values.join(" or ")
            );
            met.insert((runtime.to_owned(), key.to_owned()));
        }
    }
    let never: Vec<_> =
        table.keys().filter(|(runtime, key)| !met.contains(&(runtime.to_string(), key.to_string()))).collect();
    assert!(never.is_empty(), "defaults that no plan leaves open: {never:?}");
}
