//! Model FLOPs utilisation, in the conventions in use.
//!
//! The first convention leads, as long as it counts nothing that the step does not compute. It counts every pair of a query and a key:
//! where windows hide keys, what the model attends to is counted in its place, and where kernels run fewer FLOPs still (weights that are
//! frozen have no gradients), what they run. One that comes to more than the peak never leads.

use super::class::Class;
use super::conventions::{ATTENDED, WITHIN_DOCUMENTS, mfu_conventions};
use super::kind::{EIGHT, Kind};
use crate::model::Position;
use crate::model::documents::Documents;
use crate::program::DType;
use crate::scenario::understood::Scenario;
use crate::units::{Flops, Time};

/// Model FLOPs utilisation under one convention.
#[derive(Clone, Debug, PartialEq)]
pub struct Mfu {
    /// Short name.
    pub name: &'static str,
    /// The formula per token.
    pub formula: &'static str,
    /// Why it leads in place of the first convention; none where it does not.
    pub because: Option<String>,
    /// The peak that it is a share of, where that is not the one of the type that matmuls multiply in.
    pub of: Option<&'static str>,
    /// FLOPs of a step of the whole job.
    pub flops: Flops,
    /// Share of the chips' dense peak in the compute type; of fp8 matmuls the peak in bf16, the type that all else runs in.
    pub utilisation: f64,
}

/// The conventions in use (`tests/receipts/README.md` says who uses which).
pub(super) fn mfu(scenario: &Scenario, classes: &[Class], step: Time, tokens: u64) -> Vec<Mfu> {
    let model = scenario.job.model();
    let params = model.params();
    let tokens = u128::from(tokens);
    // Of a mixture of experts the parameters that a token meets count (torchtitan's `get_nparams_and_flops`; NVIDIA's
    // model FLOPs): the same number for a dense model.
    let all = u128::from(params.active);
    let positions = match model.position {
        Position::Learned { positions } => positions,
        _ => 0,
    };
    // N without look-ups; a tied table is multiplied with as the head, and stays.
    let looked_up = if model.tied_head { positions } else { positions + model.vocab };
    // A block that predicts further ahead counts as one more, and the head once more (`num_floating_point_operations`).
    let heads = model.mtp_layers * model.vocab * model.width;
    let matmul = all + u128::from(heads) - u128::from(looked_up * model.width);
    let ahead = model.mtp_layers * model.ahead().iter().map(|layer| layer.mixer.score_width()).sum::<u64>();
    let scores = model.layers.iter().map(|layer| layer.mixer.score_width()).sum::<u64>() + ahead;
    let attention = u128::from(scores) * u128::from(scenario.job.seq());
    let ranks: u32 = classes.iter().map(|class| class.ranks).sum();
    let chips = f64::from(ranks);
    let peaks = &scenario.topology.chip.peak;
    let peak = match scenario.job.dtype() {
        DType::Fp32 if scenario.software.tf32 => peaks.tf32.unwrap_or(peaks.bf16),
        DType::Fp32 => peaks.fp32.unwrap_or(peaks.bf16),
        _ => peaks.bf16,
    };
    let eight = Kind::of(scenario).matmuls == EIGHT;
    let hardware = classes.iter().map(|class| class.counts.flops.0 * u128::from(class.ranks)).sum();
    // Of a sequence's pairs of tokens, those that a mask by document lets through: Σl² for S².
    let seen = |documents: Documents| {
        u128::from(scores) * u128::from(documents.squares) * tokens / u128::from(scenario.job.seq())
    };
    let masked = scenario.job.documents().map(|documents| {
        let formula =
            "6·N + 6·L·H·Σl²/S, N without the input embedding, causal pairs within documents only (Megatron-Bridge 26)";
        (WITHIN_DOCUMENTS, (formula, tokens * 6 * matmul + 6 * seen(documents)))
    });
    let attended = attended(scenario);
    let entries = [
        (
            "6·N + 12·L·H·S, N without the input embedding, all pairs of tokens (torchtitan, PaLM)",
            tokens * (6 * matmul + 12 * attention),
        ),
        (
            "6·N + 6·L·H·S, N without the input embedding, causal pairs only (Megatron-Bridge, NeMo 25)",
            tokens * (6 * matmul + 6 * attention),
        ),
        ("6·N + 12·L·H·S, N with the input embedding", tokens * (6 * all + 12 * attention)),
        ("6·N, N without the input embedding, no attention", tokens * 6 * matmul),
        ("every matmul and attention kernel run, recompute included (FlopCounterMode)", hardware),
        (
            "6·N + 12·H·Σ keys that a token attends to, N without the input embedding",
            tokens * 6 * matmul
                + 12 * (attended + u128::from(ahead) * pairs(scenario, None)) * tokens / u128::from(scenario.job.seq()),
        ),
    ];
    let all = mfu_conventions()
        .into_iter()
        .zip(entries)
        .chain(masked)
        .map(|(name, (formula, flops))| Mfu {
            name,
            formula,
            because: None,
            of: eight.then_some("of the bf16 peak, which 8-bit matmuls exceed"),
            flops: Flops(flops),
            utilisation: flops as f64 / (step.seconds() * chips * peak.0),
        })
        .collect();
    let windows = model.layers.iter().any(|layer| layer.window().is_some_and(|window| window < scenario.job.seq()));
    let hidden =
        if windows { Some("that windows hide") } else { scenario.job.documents().map(|_| "in other documents") };
    led(all, hidden)
}

/// Pairs of a query and a key of a sequence, under a causal mask, inside a window and inside documents.
fn pairs(scenario: &Scenario, window: Option<u64>) -> u128 {
    let seq = u128::from(scenario.job.seq());
    let reach = window.map_or(seq, |window| u128::from(window).min(seq));
    let causal = reach * seq - reach * reach.saturating_sub(1) / 2;
    let within = scenario.job.documents().map_or(causal, |documents| (u128::from(documents.squares) + seq).div_ceil(2));
    causal.min(within)
}

/// Of a sequence, the sum over layers of the pairs that its mask lets through, times the width of its heads.
fn attended(scenario: &Scenario) -> u128 {
    let layers = scenario.job.model().layers.iter();
    layers.map(|layer| u128::from(layer.mixer.score_width()) * pairs(scenario, layer.window())).sum()
}

/// What conventions may be off by where they round: they count norms, which multiply no matrices.
const ROUNDED: f64 = 1.01;

/// The conventions, the one that leads first.
fn led(mut all: Vec<Mfu>, hidden: Option<&str>) -> Vec<Mfu> {
    let at = |name: &str| all.iter().position(|mfu| mfu.name == name);
    let (Some(own), Some(run), Some(first)) = (at(ATTENDED), at("hardware"), all.first()) else { return all };
    let would = format!("{} would give {:.1} %, and counts", first.name, 100.0 * first.utilisation);
    let (leads, why) = if let Some(hidden) = hidden {
        (own, format!("{would} keys {hidden}"))
    } else if first.utilisation > 1.0 && first.of.is_none() {
        (own, format!("{would} keys that the causal mask hides"))
    } else {
        (0, String::new())
    };
    let beyond = all[own].flops.0 as f64 > ROUNDED * all[run].flops.0 as f64;
    let (leads, why) = if beyond { (run, format!("{would} FLOPs that no kernel runs")) } else { (leads, why) };
    if leads > 0 {
        let mut chosen = all.remove(leads);
        chosen.because = Some(why);
        all.insert(0, chosen);
    }
    all
}
