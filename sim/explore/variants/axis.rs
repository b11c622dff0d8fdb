//! Variants with other sizes of an axis of the mesh, at a fixed batch of the whole job.
//!
//! The data-parallel axes give way ([`super::replicas`]), and micro-batches follow, so that a step has as many sequences
//! ([`Fixed`]). A size that does not divide keeps its row, with the reason. To compare another axis: an entry in [`AXES`].

use super::replicas::{common, fit, rest, size};
use super::variant::{Variant, checked};
use crate::explore::fixed::Fixed;
use crate::scenario::{Draft, Runtime, Scenario, keys};

/// An axis that splits a model, a sequence or experts.
#[derive(Debug)]
pub(super) struct Axis {
    /// Its key, but for XLA.
    name: &'static str,
    /// Its key for XLA.
    compiled: &'static str,
    /// Keys about an axis that splits, which give way at one rank.
    about: &'static [&'static str],
    /// Keys made for one size of it, which give way at another.
    sized: &'static [&'static str],
}

const AXES: [Axis; 4] = [
    Axis { name: "tp", compiled: "tensor", about: &["tensor_parallel"], sized: &[] },
    Axis {
        name: "pp",
        compiled: "pipeline",
        about: &[
            "pipeline",
            "xla.num_layers_per_pipeline_stage",
            "xla.pipeline_parallel_layers",
            "xla.pipeline_delay_activation_forwarding",
            "xla.pipeline_fsdp_ag_once",
            "xla.pipeline_fsdp_ag_per_repeat",
            "xla.set_remat_policy_on_pipeline_iterations",
            "xla.set_remat_policy_on_layers_per_stage",
            "xla.scan_pipeline_iterations",
            "xla.scan_layers_per_stage",
        ],
        sized: &["pipeline.layers", "xla.num_pipeline_repeats", "xla.num_pipeline_microbatches"],
    },
    Axis {
        name: "cp",
        compiled: "context",
        about: &[
            "framework.context_parallel_rotate_method",
            "framework.context_parallel_load_balancer",
            "megatron.cp_comm_type",
        ],
        sized: &["megatron.hierarchical_context_parallel_sizes"],
    },
    Axis { name: "ep", compiled: "expert", about: &["mesh.etp"], sized: &[] },
];

/// The axes that a runtime's scenarios have, by their names there.
pub(super) fn names(scenario: &Scenario) -> Vec<&'static str> {
    let read = |axis: &&Axis| axis.lacks(scenario).is_none();
    AXES.iter().filter(read).map(|axis| axis.name(scenario.runtime)).collect()
}

/// The axis that is asked for, or why the scenario does not have it; none if there is no such axis.
pub(super) fn find(asked: &str, scenario: &Scenario) -> Option<Result<&'static Axis, String>> {
    let asked = asked.strip_prefix("mesh.").unwrap_or(asked);
    let axis = AXES.iter().find(|axis| axis.name == asked || axis.compiled == asked)?;
    let foreign = axis.name(scenario.runtime) != asked && axis.name != asked;
    let why = if foreign { Some(format!(": this runtime calls it {}", axis.name)) } else { axis.lacks(scenario) };
    Some(why.map_or(Ok(axis), Err))
}

impl Axis {
    /// As a runtime's scenarios write it, without its table.
    pub(super) fn name(&self, runtime: Runtime) -> &'static str {
        if runtime.is_compiled() { self.compiled } else { self.name }
    }

    fn key(&self, runtime: Runtime) -> String {
        format!("mesh.{}", self.name(runtime))
    }

    /// Why a scenario cannot have it, if so.
    fn lacks(&self, scenario: &Scenario) -> Option<String> {
        let (key, runtime) = (self.key(scenario.runtime), scenario.runtime.written());
        if !keys::row(&key).is_some_and(|row| row.is_read_by(runtime)) {
            return Some(format!(": runtime = \"{runtime}\" does not read {key}"));
        }
        let model = scenario.job.model();
        (self.spreads_experts() && model.experts().is_none()).then(|| format!(": {} has no experts", model.name))
    }

    fn spreads_experts(&self) -> bool {
        self.name == "ep"
    }

    /// Whether its ranks are others than data-parallel ones. But for XLA, experts are spread over ranks that are both.
    pub(super) fn tiles(&self, runtime: Runtime) -> bool {
        runtime.is_compiled() || !self.spreads_experts()
    }

    /// The powers of two that divide what the other axes leave. Of those at the end that are refused, only the first is shown.
    pub(super) fn values(&self, draft: &Draft, scenario: &Scenario) -> Vec<String> {
        let key = self.key(scenario.runtime);
        let left = rest(draft, scenario).unwrap_or(1);
        let tiles = match scenario.job.model().experts().filter(|_| self.spreads_experts()) {
            Some(experts) if scenario.runtime.is_compiled() => common(experts.count, left * size(draft, &key)),
            Some(experts) => common(experts.count, u64::from(scenario.topology.ranks())),
            None => left * size(draft, &key),
        };
        let powers = std::iter::successors(Some(1_u64), |size| size.checked_mul(2));
        let mut values: Vec<String> =
            powers.take_while(|&size| tiles.is_multiple_of(size)).map(|size| size.to_string()).collect();
        let refused = |value: &String| self.vary(draft, scenario, value).is_none_or(|variant| variant.draft.is_err());
        while values.len() > 1 && values[values.len() - 2..].iter().all(refused) {
            values.pop();
        }
        values
    }

    /// The scenario with so many ranks on the axis; none if that is no number of ranks.
    pub(super) fn vary(&self, draft: &Draft, scenario: &Scenario, value: &str) -> Option<Variant> {
        let ranks = value.parse::<u32>().ok().filter(|&ranks| ranks > 0)?;
        let key = self.key(scenario.runtime);
        if u64::from(ranks) == size(draft, &key) {
            return Some(checked(value, draft.clone(), None));
        }
        let mut changed = draft.clone();
        changed.set(&key, i64::from(ranks));
        let about = self.about.iter().filter(|_| ranks == 1);
        let gone: Vec<&str> = about.chain(self.sized).copied().filter(|key| draft.get(key).is_some()).collect();
        gone.iter().for_each(|key| changed.remove(key));
        let mut notes = fit(&mut changed, draft, scenario);
        let fixed = Fixed::of(scenario);
        let smaller = smaller(&changed, scenario, fixed);
        let changed = fixed.on_every_mesh(&changed);
        if let Ok(scenario) = changed.scenario() {
            let now = Fixed::of(&scenario);
            let follows = [
                ("accumulation", u64::from(fixed.micro_batches), u64::from(now.micro_batches)),
                ("micro", fixed.micro, now.micro),
            ];
            let follows = follows.into_iter().filter(|(_, before, now)| before != now);
            notes.extend(follows.map(|(key, _, now)| format!("batch.{key} = {now}")));
        }
        notes.extend(gone.iter().map(|key| format!("without {key}")));
        let mut variant = checked(value, changed, (!notes.is_empty()).then(|| notes.join(", ")));
        if let Some(micro) = smaller {
            variant.draft = variant.draft.map_err(|why| format!("{why}; batch.micro = {micro} would divide them"));
        }
        Some(variant)
    }
}

/// A smaller micro-batch that shares out the sequences of a step, where the file's own is too large for the replicas.
fn smaller(draft: &Draft, scenario: &Scenario, fixed: Fixed) -> Option<u64> {
    let replicas = rest(draft, scenario).filter(|_| !fixed.compiled)?;
    let each = (fixed.sequences / replicas).max(1);
    let divides = fixed.sequences.is_multiple_of(replicas);
    (divides && !each.is_multiple_of(fixed.micro)).then(|| common(each, fixed.micro))
}
