//! How a step divides by part of the model: time in kernels, FLOPs, parameters, activations.
//!
//! Time and FLOPs are sums over what the program launches, each launch under the part whose operator it serves
//! ([`Owner`](crate::program::Owner)). Model FLOPs and parameters come from the model's sizes: `6·N + 12·L·H·S` with N and L of the part.
//! An activation is of the part that asked for its memory, whoever reads it.

use super::Prediction;
use crate::model::{ModelConfig, Position};
use crate::program::{Category, Discipline, Owner};
use crate::scenario::understood::Scenario;
use crate::units::{Bytes, Flops, Time};

/// What a part of the model has of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartShare {
    /// The part.
    pub owner: Owner,
    /// Layers that have it.
    pub layers: u64,
    /// Time that its kernels ran, but for those of the communication pass: the mean of all ranks \[ps\].
    pub busy: Time,
    /// FLOPs that all ranks ran for it, as PyTorch's FlopCounterMode counts them.
    pub flops: Flops,
    /// Model FLOPs of a step of the whole job, by `6·N + 12·L·H·S`.
    pub model_flops: Flops,
    /// Parameters.
    pub params: u64,
    /// What it has asked for of the activations that are live at the peak of the fullest device.
    pub activations: Bytes,
}

/// Sizes of a part in a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    layers: u64,
    params: u64,
    /// Parameters that a token is multiplied with, or that are applied to it: no rows that are looked up.
    met: u64,
    /// What scores are computed over, all layers together.
    scores: u64,
}

/// Sizes by part.
fn sizes(model: &ModelConfig) -> [Sizes; Owner::COUNT] {
    let (count, mut sizes) = (model.params(), [Sizes::default(); Owner::COUNT]);
    let ahead =
        (0..model.mtp_layers).flat_map(|at| model.ahead().iter().map(move |layer| (layer, 0, at < model.mtp_sets())));
    for (layer, one, own) in model.layers.iter().map(|layer| (layer, 1, true)).chain(ahead) {
        let owners = [layer.mixer.owner(), layer.feed_forward.owner()];
        for (owner, (all, met)) in owners.into_iter().zip(layer.halves(model.width)) {
            let of = &mut sizes[owner as usize];
            (of.layers, of.met) = (of.layers + one, of.met + met);
            of.params += if own { all } else { 0 };
        }
        sizes[owners[0] as usize].scores += layer.mixer.score_width();
    }
    // What has no part is no layer's.
    sizes[Owner::Rest as usize].layers = 0;
    let positions = match model.position {
        Position::Learned { positions } => positions,
        _ => 0,
    };
    let embedding = &mut sizes[Owner::Embedding as usize];
    embedding.params += count.embedding;
    embedding.met += count.embedding - (model.vocab + positions) * model.width;
    // Modules that predict further ahead have a projection and norms, and use the head once more each. A tied head multiplies with the
    // embedding's table.
    let beside = count.ahead - model.ahead().iter().map(|layer| layer.params(model.width).0).sum::<u64>();
    let head = &mut sizes[Owner::Head as usize];
    head.params += count.head + count.final_norm + model.mtp_sets() * beside;
    head.met += (1 + model.mtp_layers) * model.vocab * model.width + count.final_norm + model.mtp_layers * beside;
    sizes
}

/// Whether layers of a model differ in more than their windows: in what mixes tokens, or in what follows on each alone.
pub(super) fn mixes(model: &ModelConfig) -> bool {
    let several = |mut owners: Vec<Owner>| {
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|&owner| owner != Owner::Rest);
        owners.len() > 1
    };
    let used = || model.layers.used().iter();
    several(used().map(|layer| layer.mixer.owner()).collect())
        || several(used().map(|layer| layer.feed_forward.owner()).collect())
}

impl Prediction {
    /// How the step divides by part of the model, the part with the most time first; nothing where a compiler has made one program of the
    /// whole step, which does not say what belongs to which part.
    pub fn by_part(&self, scenario: &Scenario) -> Vec<PartShare> {
        if self.classes.iter().any(|class| class.program.memory == Discipline::Static) {
            return vec![];
        }
        let ranks = self.classes.iter().map(|class| u128::from(class.ranks)).sum::<u128>().max(1);
        let live = self.memory.report.by_owner(&self.classes[self.tightest].program);
        let (sizes, seq) = (sizes(scenario.job.model()), scenario.job.seq());
        // Sums are rounded, not parts, so that the parts still sum to the mean of the sums.
        let (mut sum, mut before) = (0, Time::ZERO);
        let share = |&owner: &Owner| {
            let at = owner as usize;
            let each = self.classes.iter().zip(&self.timeline.busy);
            sum += each.map(|(class, busy)| u128::from(class.ranks) * u128::from(busy.owner[at].0)).sum::<u128>();
            let until = Time((sum / ranks) as u64);
            let run = self.classes.iter().map(|class| class.counts.owners[at].0 * u128::from(class.ranks)).sum();
            let Sizes { layers, params, met, scores } = sizes[at];
            let of_token = 6 * u128::from(met) + 12 * u128::from(scores) * u128::from(seq);
            let held = [Category::Activation, Category::Logits, Category::Recompute].map(|of| live[of as usize][at]);
            PartShare {
                owner,
                layers,
                busy: until - std::mem::replace(&mut before, until),
                flops: Flops(run),
                model_flops: Flops(u128::from(self.tokens) * of_token),
                params,
                activations: Bytes(held.iter().sum()),
            }
        };
        let mut parts: Vec<PartShare> = Owner::ALL.iter().map(share).collect();
        parts.retain(|part| {
            part.busy > Time::ZERO || part.params > 0 || part.activations.0 > 0 || part.flops.0 + part.model_flops.0 > 0
        });
        parts.sort_by_key(|part| std::cmp::Reverse(part.busy));
        parts
    }

    /// The same where kinds of layers differ in more than their windows, which a report of a step then shows.
    pub fn by_part_if_mixed(&self, scenario: &Scenario) -> Vec<PartShare> {
        if mixes(scenario.job.model()) { self.by_part(scenario) } else { vec![] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::huggingface::shipped;

    #[test]
    fn parts_have_all_parameters_of_every_shipped_model_and_a_token_meets_as_many() {
        for name in shipped::names() {
            let model = shipped::named(name).expect("a shipped model");
            let (count, parts) = (model.params(), sizes(&model));
            assert_eq!(parts.iter().map(|part| part.params).sum::<u64>(), count.total, "{name}");
            let positions = match model.position {
                Position::Learned { positions } => positions,
                _ => 0,
            };
            let looked_up = if model.tied_head { positions } else { positions + model.vocab };
            let heads = model.mtp_layers * model.vocab * model.width;
            let met = parts.iter().map(|part| part.met).sum::<u64>();
            assert_eq!(met, count.active + heads - looked_up * model.width, "{name}");
            assert_eq!(parts[Owner::Rest as usize], Sizes::default(), "{name}");
        }
    }

    #[test]
    fn layers_mix_where_mixers_or_feed_forwards_differ_and_not_by_windows() {
        let mixed = |name: &str| mixes(&shipped::named(name).expect("a shipped model"));
        assert!(["nemotron-h-8b", "granite-4.0-h-small", "qwen3-next-80b-a3b", "deepseek-v3"].into_iter().all(mixed));
        assert!(!["llama-3.1-8b", "gemma-3-12b", "mamba2-2.7b", "mixtral-8x7b", "gpt-oss-20b"].into_iter().any(mixed));
    }
}
