//! Layers of several kinds over the stages of a pipeline, so that the stage with the most to compute has as little as can be.
//!
//! A layer costs what its kernels ran in the prediction: the time of a part of the model over the layers that have it. The first layer is given
//! the embedding's, the last the head's.

use crate::program::Owner;
use crate::runtime::Plan;
use crate::scenario::{Change, Prediction, Scenario};
use crate::schedule::most_even;

/// Keys by which torchtitan finds stages, which a list of them stands in place of.
const FOUND: [&str; 4] = [
    "pipeline.layers_per_stage",
    "pipeline.first_stage_less_layers",
    "pipeline.last_stage_less_layers",
    "pipeline.virtual_stages",
];

/// The list to write, if it is another than the plan's.
pub fn even(scenario: &Scenario, answer: &Prediction) -> Option<Change> {
    let layers = match &scenario.job {
        Plan::Torch(job) => &job.pipeline.as_ref()?.layers,
        Plan::Megatron(job) => &job.split.pipeline.layers,
        Plan::Zero(_) | Plan::InternEvo(_) | Plan::Nanotron(_) | Plan::Xla(_) => return None,
    };
    let (model, parts) = (scenario.job.model(), answer.by_part_if_mixed(scenario));
    if parts.is_empty() || layers.len() < 2 || model.mtp_layers > 0 {
        return None;
    }
    let part = |owner: Owner| parts.iter().find(|part| part.owner == owner);
    let each = |owner| part(owner).map_or(0, |part| part.busy.0 / part.layers.max(1));
    let cost = |owners: [Owner; 2]| owners.into_iter().filter(|&owner| owner != Owner::Rest).map(each).sum();
    let mut costs: Vec<u64> =
        model.layers.iter().map(|layer| cost([layer.mixer.owner(), layer.feed_forward.owner()])).collect();
    *costs.first_mut()? += each(Owner::Embedding);
    *costs.last_mut()? += each(Owner::Head);
    let even = most_even(&costs, layers.len()).filter(|even| even != layers)?;
    let list: Vec<i64> = even.into_iter().map(i64::try_from).collect::<Result<_, _>>().ok()?;
    let change = Change::set("pipeline.layers", list);
    let stale = FOUND.iter().filter(|key| matches!(scenario.job, Plan::Torch(_)) && scenario.draft.get(key).is_some());
    Some(stale.fold(change, |change, key| change.and(Change::remove(key))))
}
