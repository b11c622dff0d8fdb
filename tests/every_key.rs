//! Nothing in a file is read over: whatever somebody writes, under any framework and in any plan, changes the prediction, is
//! refused, or is said to have no effect.
//!
//! Keys and the values they take are learnt from the reader itself, which names them to whoever misspells one ([`keys`]). To
//! cover more, add a plan to [`plans`].

pub mod keys;
pub mod plans;

use std::collections::BTreeSet;

use rayon::prelude::*;
use toml::Table;
use windtunnel::report;
use windtunnel::scenario::predict::Settings;
use windtunnel::scenario::{Idle, Scenario, predict};

use crate::make::FILE;
use keys::Key;

/// Keys of which no plan here takes a second value: they go with machines, mixtures, policies or disks that none has, and only
/// their own tests reach them. A plan that reaches one strikes it off.
const UNREACHED: &[&str] = &[
    "float8.precompute_scale",
    "framework.cublas",
    "fsdp.head_reshard_after_forward",
    "loss.unshards_head",
    "loss.words",
    "megatron.cuda_graph_scope",
    "megatron.delay_wgrad_compute",
    "megatron.fp8_param_gather",
    "megatron.hierarchical_context_parallel_sizes",
    "megatron.moe_expert_capacity_factor",
    "megatron.moe_grouped_gemm",
    "megatron.moe_pad_expert_input_to_capacity",
    "megatron.moe_shared_expert_overlap",
    "megatron.overlap_moe_expert_parallel_comm",
    "megatron.use_megatron_fsdp",
    "megatron.waited_collectives",
    "mesh.context",
    "mesh.data",
    "mesh.dcn_data",
    "mesh.dp",
    "mesh.dp_replicate",
    "mesh.expert",
    "mesh.fsdp",
    "mesh.fsdp_transpose",
    "mesh.pipeline",
    "mesh.tensor",
    "model.huggingface",
    "nanotron.tp_mode",
    "optimizer.in_backward",
    "optimizer.step_on_device",
    "pipeline.layers_per_stage",
    "tensor_parallel.asynchronous",
    "topology.chips",
    "topology.profile",
    "topology.slice",
    "xla.context",
    "xla.decoder_layer_input",
    "xla.expert_exchange",
    "xla.fixed_calibration",
    "xla.key_proj",
    "xla.mlpwi_0",
    "xla.mlpwi_1",
    "xla.mlpwo",
    "xla.num_layers_per_pipeline_stage",
    "xla.num_pipeline_repeats",
    "xla.out_proj",
    "xla.pipeline_fsdp_ag_per_repeat",
    "xla.pipeline_parallel_layers",
    "xla.query_proj",
    "xla.scan_pipeline_iterations",
    "xla.set_remat_policy_on_layers_per_stage",
    "xla.value_proj",
    "zero.aio.block_size",
    "zero.aio.intra_op_parallelism",
    "zero.aio.overlap_events",
    "zero.aio.queue_depth",
    "zero.aio.single_submit",
    "zero.aio.use_gds",
    "zero.contiguous_gradients",
    "zero.offload_optimizer.buffer_size",
    "zero.offload_optimizer.max_in_cpu",
    "zero.offload_optimizer.pin_memory",
    "zero.offload_optimizer.ratio",
    "zero.offload_param.fast_init",
    "zero.offload_param.pin_memory",
    "zero.offload_param.pipeline_read",
    "zero.offload_param.pipeline_write",
    "zero.offload_param.ratio",
    "zero.reduce_scatter",
];

/// Keys of which the report does not say what is taken: without them nothing is asked for.
const UNSTATED: &[&str] = &[];

/// What a file comes to.
struct Seen {
    /// All that the report says, but what was left open, what has no effect, and what was asked.
    said: String,
    idle: Vec<Idle>,
    /// What was taken for keys that the file leaves out.
    taken: Vec<String>,
}

impl Seen {
    /// A file's prediction, or why there is none.
    fn of(text: &str) -> Result<Seen, String> {
        let scenario = Scenario::parse(FILE, text).map_err(|error| error.to_string())?;
        // Of most keys the scenario says whether they have an effect; of this one a second prediction does.
        let settings = Settings { remedies: text.contains("device_max_connections"), ..Settings::default() };
        let answer = predict(&scenario, settings).map_err(|error| error.to_string())?;
        let mut said = report::json::report(&scenario, &answer);
        for key in ["assumptions", "keys_without_effect", "questions"] {
            said.as_object_mut().unwrap().remove(key).unwrap();
        }
        let idle = [scenario.idle, answer.idle].concat();
        Ok(Seen { said: said.to_string(), idle, taken: scenario.assumptions })
    }

    fn names(&self, key: &str) -> bool {
        self.idle.iter().any(|idle| idle.key == key)
    }

    /// Whether the report says what was taken for a key, or for its table.
    fn states(&self, key: &str) -> bool {
        let taken = self.taken.iter().filter_map(|line| line.split_once(" = "));
        taken.map(|(taken, _)| taken).any(|taken| key == taken || key.starts_with(&format!("{taken}.")))
    }
}

/// What becomes of a key in a plan.
#[derive(PartialEq, Eq)]
enum Fate {
    /// All values but at most one are refused.
    Refused,
    /// A value changes the prediction.
    Counts,
    /// The report says that none does.
    Named,
    /// Several values come to the same, and the report does not say so; or it says so and is wrong.
    Wrong(String),
}

fn fate(file: &Table, key: &Key, plain: &Seen) -> Fate {
    let (mut named, mut silent) = (false, vec![]);
    for value in key.values.iter().filter(|value| keys::get(file, &key.name) != Some(value)) {
        let seen = match Seen::of(&keys::set(file, &key.name, value.clone()).to_string()) {
            Ok(seen) => seen,
            Err(why) if why.contains("means nothing under") || why.contains("belongs to runtime") => {
                return Fate::Refused;
            }
            Err(_) => continue,
        };
        match (seen.names(&key.name), seen.said == plain.said) {
            (true, false) => return Fate::Wrong(format!("{value} has an effect, and is said to have none")),
            (true, true) => named = true,
            (false, false) => return Fate::Counts,
            (false, true) => silent.push(value.to_string()),
        }
    }
    match (named, silent.len(), key.values.len()) {
        (true, ..) => Fate::Named,
        (_, 2.., _) | (_, 1, 1) => Fate::Wrong(format!("{} come to the same in silence", silent.join(" and "))),
        _ => Fate::Refused,
    }
}

#[test]
fn every_key_changes_the_prediction_or_is_refused_or_is_said_to_have_no_effect() {
    let keys = keys::all();
    let plans = plans::plans();
    let plain: Vec<(Table, Seen)> = plans
        .par_iter()
        .map(|plan| (plan.parse().unwrap(), Seen::of(plan).unwrap_or_else(|why| panic!("{why}\n\n{plan}"))))
        .collect();
    let pairs: Vec<(usize, &Key)> = (0..plans.len()).flat_map(|plan| keys.iter().map(move |key| (plan, key))).collect();
    let fates: Vec<Fate> = pairs.par_iter().map(|&(plan, key)| fate(&plain[plan].0, key, &plain[plan].1)).collect();
    let mut wrong = vec![];
    let mut met = BTreeSet::new();
    let mut unstated = BTreeSet::new();
    for ((plan, key), fate) in pairs.into_iter().zip(fates) {
        let (file, seen) = &plain[plan];
        if fate == Fate::Counts && keys::get(file, &key.name).is_none() && !seen.states(&key.name) {
            unstated.insert(format!("{} {}", file["runtime"].as_str().unwrap(), key.name));
        }
        match fate {
            Fate::Wrong(how) => wrong.push(format!("{}: {}: {how}", plans::name(&plans[plan]), key.name)),
            Fate::Counts | Fate::Named => drop(met.insert(key.name.as_str())),
            Fate::Refused => {}
        }
    }
    wrong.sort();
    let never: Vec<&str> = keys.iter().map(|key| key.name.as_str()).filter(|key| !met.contains(key)).collect();
    let unstated: Vec<&str> = unstated.iter().map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}\nunreached: {never:?}\nunstated: {unstated:?}", wrong.join("\n"));
    assert_eq!(never, UNREACHED, "keys of which no plan takes a second value; unstated: {unstated:?}");
    assert_eq!(unstated, UNSTATED, "keys that change the prediction, and of which the report does not say what is taken");
}
