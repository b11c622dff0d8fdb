//! What is decisive and the file does not state: where throughput lies at its other values, one at a time.

use rayon::prelude::*;

use super::defaults;
use super::tried::{Moved, Tried, tried_beside};
use crate::scenario::predict::Prediction;
use crate::scenario::{Change, Scenario};

/// Instructions, at most, of all classes of ranks of a step that `Advice::of` may try changes of: a second or two for all.
pub const SHORT: u64 = 200_000;
/// How many times longer than [`SHORT`] a step may be of which these few changes are tried unasked.
const LONGER: u64 = 5;
/// The least by which a value counts, as a share.
const COUNTS: f64 = 0.01;

/// What runs of one model on one machine most often differ in, and what a description of a run most often leaves out: stages of a
/// pipeline, whose kernels attention runs, the dispatch of experts and their load, what overlaps, graphs, what is recomputed or kept, and
/// the micro-batch.
const DECISIVE: [&str; 24] = [
    "activation_checkpointing.policy",
    "attention.backend",
    "batch.micro",
    "compile.blocks",
    "framework.cuda_graphs",
    "internevo.checkpoint",
    "megatron.cuda_graph_impl",
    "megatron.moe_flex_dispatcher_backend",
    "megatron.moe_shared_expert_overlap",
    "megatron.moe_token_dispatcher_type",
    "megatron.overlap_grad_reduce",
    "megatron.overlap_moe_expert_parallel_comm",
    "megatron.overlap_param_gather",
    "megatron.recompute",
    "megatron.tp_comm_overlap",
    "model.expert_load",
    "nanotron.recompute_layer",
    "pipeline.overlap_p2p",
    "pipeline.virtual_stages",
    "topology.power_limit",
    "torch_xla.gradient_checkpointing",
    "xla.num_pipeline_repeats",
    "xla.remat_policy",
    "zero.overlap_comm",
];

/// Where throughput lies if defaults that decide it are not what runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Unstated {
    /// Tokens per second and chip at the slowest and at the fastest of the values that fit, the default's among them if it does.
    pub rates: (f64, f64),
    /// The defaults, as lines of the scenario, the one with which throughput moves most first.
    pub defaults: Vec<String>,
    /// Of each the other value that moves it most.
    pub others: Vec<Tried>,
}

impl Unstated {
    /// Simulates the other values of what decides. `tick` is called once with how many there are, and as each is done.
    pub fn of(scenario: &Scenario, answer: &Prediction, tick: impl Fn(Option<usize>) + Sync) -> Option<Unstated> {
        let before = Tried::of(String::new(), scenario, answer);
        let others: Vec<(String, Change)> =
            defaults::others(scenario).into_iter().filter(|(default, _)| is_decisive(default)).collect();
        tick(Some(others.len()));
        let moved = others.into_par_iter().filter_map(|(default, change)| {
            let other = tried_beside((scenario, answer), &change);
            tick(None);
            Some(Moved::by(&before, default, other?))
        });
        Unstated::among(&before, &moved.collect::<Vec<Moved>>())
    }

    /// Whether a step is short enough for these changes to be simulated unasked.
    pub fn is_quick(answer: &Prediction) -> bool {
        answer.classes.iter().map(|class| class.program.instructions()).sum::<u64>() <= LONGER * SHORT
    }

    /// What decides of what was tried.
    pub(super) fn among(before: &Tried, moved: &[Moved]) -> Option<Unstated> {
        let counts = |one: &&Moved| is_decisive(&one.default) && one.other.fits && one.rate.abs() >= COUNTS;
        let mut moved: Vec<&Moved> = moved.iter().filter(counts).collect();
        moved.sort_by(|a, b| b.rate.abs().total_cmp(&a.rate.abs()));
        let rates = moved.iter().map(|one| one.other.rate).chain(before.fits.then_some(before.rate));
        let rates = rates.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), rate| (low.min(rate), high.max(rate)));
        let (mut defaults, mut others): (Vec<String>, Vec<Tried>) = (vec![], vec![]);
        for one in moved {
            if !defaults.contains(&one.default) {
                defaults.push(one.default.clone());
                others.push(one.other.clone());
            }
        }
        (!defaults.is_empty()).then_some(Unstated { rates, defaults, others })
    }
}

/// Whether a default, as a line of the scenario, is of a key that decides.
fn is_decisive(default: &str) -> bool {
    default.split(" = ").next().is_some_and(|key| DECISIVE.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::super::defaults::alternatives;
    use super::*;
    use crate::scenario::keys;
    use toml::Value;

    #[test]
    fn what_decides_is_a_key_with_other_values() {
        let taken = [Value::Boolean(true), Value::Integer(1), Value::from("as nobody calls it"), Value::from("700 W")];
        let other = |key: &str| {
            keys::row(key).is_some_and(|row| taken.iter().any(|value| !alternatives(row, value).is_empty()))
        };
        assert_eq!(DECISIVE.into_iter().filter(|key| !other(key)).collect::<Vec<_>>(), [""; 0]);
    }
}
