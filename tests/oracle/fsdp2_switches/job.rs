//! A case's configuration as a job; none if a switch is not simulated.

use crate::oracle::cases::{self, Config, Dims};
use serde_json::{Value, json};
use windtunnel::program::DType;
use windtunnel::runtime::eager::{Saved, SavedOps};
use windtunnel::runtime::fsdp::{Inner, MixedPrecision, Reshard, Version};
use windtunnel::runtime::optimizer::{Adam, Decay, How, Optimizer, Sgd};
use windtunnel::runtime::train::{Autocast, Checkpoint, TorchPlan};

/// The job of a case.
pub fn job(case: &Value) -> Option<TorchPlan> {
    let c = &case["config"];
    let dims: Dims = serde_json::from_value(case["model_dims"].clone()).unwrap();
    // What the other oracles know by another name, or not at all.
    let mut known = c.clone();
    for (key, plain) in [("opt", "sgd"), ("ac", "none"), ("wrap", "block"), ("mp", "mixed")] {
        known[key] = match (key, c[key].as_str().unwrap()) {
            ("opt", _) => json!(plain),
            ("ac", "blocks" | "sac") | ("wrap", "units") | ("mp", "autocast") => json!(plain),
            (_, word) => json!(word),
        };
    }
    let config: Config = serde_json::from_value(known).unwrap();
    let mut job = cases::job(&dims, &config)?;
    let word = |key: &str| c[key].as_str().unwrap();
    let on = |key: &str| c[key].as_bool().unwrap();
    job.optimizer = optimizer(word("opt"), &c["opt_args"])?;
    job.master_weights = on("master");
    job.keeps_gathered = !on("ga_reshard_backward");
    job.all_reduce_every = word("ga_all_reduce") == "every";
    job.marks_last = on("ga_is_last");
    if word("runtime") == "single" {
        job.fsdp.version = Version::Unsharded;
        job.fsdp.wrap.blocks.fill(None);
        job.sync_every = true;
    }
    if word("mp") == "autocast" {
        job.fsdp.mixed_precision = MixedPrecision { storage: DType::Fp32, param: None, reduce: None };
        job.autocast = Some(Autocast { cache: on("autocast_cache") });
    }
    if word("ac") == "blocks" {
        let blocks = c["ac_blocks"].as_array().unwrap();
        let again = |layer: u64| blocks.iter().any(|block| block.as_u64() == Some(layer));
        job.checkpoint = Checkpoint::Blocks((0..dims.n_layers).map(again).collect());
    }
    let late = c["late_reshard"].as_array().map(|calls| calls.iter().try_for_each(|call| reshards(&mut job, call)));
    job.around_hooks = word("ac_impl").starts_with("plain");
    job.reentrant = word("ac_impl").ends_with("_reentrant");
    job.eager.unnamed_logits = true;
    if word("ac") == "sac" {
        let saved = c["sac_save"].as_array().unwrap();
        let op = |name: &Value| match name.as_str().unwrap() {
            "aten._scaled_dot_product_flash_attention" => Some(Saved::Attention),
            "aten.mm" => Some(Saved::Mm),
            "mm/2" => Some(Saved::EverySecondMm),
            "aten._fused_rms_norm" => Some(Saved::RmsNorm),
            "aten.silu" => Some(Saved::Silu),
            "aten.mul" => Some(Saved::Mul),
            "aten.add" => Some(Saved::Add),
            "aten._to_copy" => Some(Saved::ToCopy),
            // A Llama's layer has none.
            "aten.clone" => None,
            other => panic!("{other}"),
        };
        job.checkpoint = Checkpoint::Saving(saved.iter().filter_map(op).fold(SavedOps::default(), SavedOps::with));
    }
    if let Some(names) = c["shard1"].as_array() {
        job.fsdp.second_dims = names.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    }
    if on("compile_model") && word("runtime") == "fsdp2" && word("wrap") != "root" {
        job.compile = true;
    }
    if word("wrap") == "units" {
        units(&mut job, c);
    }
    let unknown = late == Some(None) || !c["reshard_backward"].is_null() || on("compile_model") && !job.compile;
    (!unknown).then_some(job)
}

/// `set_reshard_after_forward(value, recurse)` of a module, which says what the model's units then do.
fn reshards(job: &mut TorchPlan, call: &Value) -> Option<()> {
    let policy = if call[1].as_bool()? { Reshard::Always } else { Reshard::Never };
    let wrap = &mut job.fsdp.wrap;
    match call[0].as_str()? {
        "" => {
            wrap.root = policy;
            if call[2].as_bool()? {
                wrap.blocks.fill(Some(policy));
            }
        }
        block => wrap.blocks[block.strip_prefix("layers.")?.parse::<usize>().ok()?] = Some(policy),
    }
    Some(())
}

/// Modules that are given to `fully_shard` one after the other.
fn units(job: &mut TorchPlan, c: &Value) {
    let policies = c["unit_reshard"].as_array();
    let wrap = &mut job.fsdp.wrap;
    let plain = wrap.blocks[0].unwrap();
    wrap.blocks.fill(None);
    for (at, unit) in c["units"].as_array().unwrap().iter().enumerate() {
        let own = policies.and_then(|policies| policies[at].as_bool());
        let policy = own.map_or(plain, |again| if again { Reshard::Always } else { Reshard::Never });
        let names: Vec<&str> = match unit {
            Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
            name => vec![name.as_str().unwrap()],
        };
        let mut list = vec![];
        for name in &names {
            match name.split('.').collect::<Vec<_>>()[..] {
                ["tok_embeddings"] => wrap.embedding = Some(policy),
                ["norm"] if names.len() > 1 => {}
                ["norm"] => wrap.norm = Some(policy),
                ["output"] => {
                    wrap.head = Some(policy);
                    wrap.head_has_norm = names.len() > 1;
                }
                ["layers", block] => {
                    let block: usize = block.parse().unwrap();
                    wrap.blocks[block] = Some(policy);
                    list.push(block);
                }
                ["layers", block, ref module @ ..] => {
                    wrap.modules.push(Inner { block: block.parse().unwrap(), name: module.join("."), reshard: policy });
                }
                _ => panic!("{name}"),
            }
        }
        if list.len() > 1 {
            wrap.lists.push(list);
        }
    }
}

/// PyTorch's keyword arguments.
fn optimizer(name: &str, arguments: &Value) -> Option<Optimizer> {
    let known = ["foreach", "fused", "weight_decay", "amsgrad", "momentum", "nesterov", "dampening"];
    if !arguments.as_object()?.keys().all(|key| known.contains(&key.as_str())) {
        return None;
    }
    let on = |key: &str| arguments[key].as_bool();
    let number = |key: &str, default: f64| arguments[key].as_f64().unwrap_or(default);
    let how = match (on("fused"), on("foreach")) {
        (Some(true), _) => How::Fused,
        (_, Some(false)) => How::ForLoop,
        _ => How::Foreach,
    };
    let decays = number("weight_decay", if name == "adamw" { 0.01 } else { 0.0 }) > 0.0;
    let (amsgrad, nesterov) = (on("amsgrad") == Some(true), on("nesterov") == Some(true));
    let decay = match name {
        _ if !decays => Decay::None,
        "adamw" => Decay::OfWeights,
        _ => Decay::InGradients,
    };
    Some(match name {
        "sgd" => Optimizer::Sgd(Sgd { how, decays, momentum: number("momentum", 0.0) > 0.0, nesterov }),
        _ => Optimizer::Adam(Adam::new(how, decay, amsgrad)),
    })
}
