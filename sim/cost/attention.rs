//! Fused attention: a rate that rises with the sequence, by kernel library, pass, head dimension and mask.
//!
//! ```text
//! FLOPs = matmuls · 2 · B·N·pairs·H        matmuls: 2 forward, 5 backward
//! pairs = query-key pairs a query may see: S²/2 under a causal mask (halved, unlike FlopCounterMode)
//! time  = launch + FLOPs/(rate·s/(s + knee)) + tail      tail = 0.8 · the time of one 128-query tile
//! ```
//!
//! `rate` and `knee` are fitted to published sweeps over the sequence s with the device full. The tail is what a
//! device pays that is not: with B·N·S/128 tiles on P processors the time rises by 0.8·P/tiles. On the published A100
//! points for 4 to 64 heads this leaves 6 % median forward and 1.3 % backward.
//!
//! Where attention stays inside packed documents, pairs are those of the documents, and s is their mean length weighted by tokens,
//! Q/S with Q the sum of squares: Σ l·(l + knee) over documents is then the same as Q + knee·S, so that each is priced at the rate of
//! its own length.
//!
//! Splash attention on TPUs is told in which blocks to work. Blocks on the diagonal are computed whole, so that pairs grow
//! as S·(S + block)/2: the knee is about the block. A backward pass that is not fused computes dQ and dK, dV in kernels of
//! their own, seven matmuls for five; its FLOPs are counted as five here too.

mod deterministic;

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::basis::{Basis, Cost, Evidence};
use super::matmul::PEAK_READ;
use crate::program::AttentionShape;
use crate::units::{FlopRate, Time};

pub use deterministic::copies;

/// FlexAttention's rate over FlashAttention-2's, forward and backward, where a profile has none of its own: "90 % of
/// FlashAttention2's performance in the forward pass and 85 % in the backward pass", causal, on A100 (PyTorch's announcement,
/// August 2024, <https://pytorch.org/blog/flexattention/>).
pub const FLEX_OVER_FLASH2: [f64; 2] = [0.90, 0.85];

/// Half-width of an 80 % interval around that: assumed, for other chips than A100.
const FLEX_SPREAD: f64 = 0.2;

/// Half-width of an 80 % interval around what a kernel over packed documents takes, beside the kernel's own: assumed. The sweeps that
/// rates are fitted to have batches of one length.
const DOCUMENTS_SPREAD: f64 = 0.2;

/// Which library's kernels run attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, VariantArray)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// FlashAttention-2, PyTorch's own flash kernels and the default of eager `scaled_dot_product_attention`.
    #[default]
    Flash2,
    /// cuDNN's fused attention.
    Cudnn,
    /// FlashAttention-3, for Hopper.
    Flash3,
    /// PyTorch's FlexAttention, kernels that inductor writes in Triton.
    Flex,
    /// FlashAttention 1 (flash-attn 1.x).
    Flash1,
    /// flash-attn's `flash_attn_triton`, the first version in Triton.
    Triton,
    /// JAX's splash attention for TPUs (`jax.experimental.pallas.ops.tpu.splash_attention`).
    Splash,
    /// Tokamax's splash attention for TPUs, with a bound on the logits (`max_logit_const`).
    Tokamax,
}

/// How attention is cut, where its kernels are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// Queries, and keys, of a block.
    pub size: u64,
    /// Whether backward computes all gradients in one kernel (`use_fused_bwd_kernel`).
    pub fused: bool,
}

impl Backend {
    /// All of them.
    pub const ALL: &[Backend] = Backend::VARIANTS;

    /// As a scenario writes it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Flash2 => "flash2",
            Backend::Cudnn => "cudnn",
            Backend::Flash3 => "flash3",
            Backend::Flex => "flex",
            Backend::Flash1 => "flash1",
            Backend::Triton => "triton",
            Backend::Splash => "splash",
            Backend::Tokamax => "tokamax",
        }
    }
}

/// The section as written.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    launch: Time,
    kernels: Vec<Kernel>,
}

/// One fitted rate.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Whose kernels.
    pub backend: Backend,
    /// Backward or forward.
    pub backward: bool,
    /// Head dimension.
    pub head_dim: u64,
    /// Causal mask.
    pub causal: bool,
    /// Its blocks, for kernels that are told.
    pub blocks: Option<Blocks>,
    /// Rate of an endless sequence, causal pairs halved.
    pub rate: FlopRate,
    /// Sequence at which half the rate is reached.
    pub knee: f64,
    /// Time of the backward that adds up in one order over this one's, where it was measured.
    pub in_order: Option<f64>,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Attention on one chip.
#[derive(Clone, Debug)]
pub struct Attention {
    launch: f64,
    processors: f64,
    kernels: Vec<Kernel>,
}

impl Attention {
    pub(super) fn new(written: Written, (processors, peak): (f64, FlopRate)) -> Result<Attention, String> {
        for kernel in &written.kernels {
            if kernel.in_order.is_some_and(|factor| !(0.5..=10.0).contains(&factor)) {
                return Err(format!(
                    "attention for head dimension {} has in_order {}: expected the time of the deterministic backward over the \
                     other's, between 0.5 and 10",
                    kernel.head_dim,
                    kernel.in_order.unwrap_or(f64::NAN)
                ));
            }
            if !(kernel.rate.0 > 0.0 && kernel.knee >= 0.0 && kernel.knee.is_finite() && kernel.head_dim > 0) {
                return Err(format!(
                    "attention for head dimension {} has rate {} and knee {}: expected a rate above zero",
                    kernel.head_dim, kernel.rate, kernel.knee
                ));
            }
        }
        if let Some(fast) = written.kernels.iter().find(|kernel| kernel.rate.0 > PEAK_READ * peak.0) {
            let of = format!("attention for head dimension {} has the rate {}", fast.head_dim, fast.rate);
            return Err(format!(
                "{of}, above the chip's peak of {peak} in bf16: measure it again, or correct the peak"
            ));
        }
        for backward in [false, true] {
            if !written.kernels.iter().any(|k| k.backward == backward) {
                let pass = if backward { "backward" } else { "forward" };
                return Err(format!("attention has no {pass} kernel: add one for any head dimension"));
            }
        }
        Ok(Attention { launch: written.launch.seconds(), processors, kernels: written.kernels })
    }

    /// The same on a chip of so many processors and so many times the peak.
    pub(super) fn carried_over(&mut self, peak: f64, processors: f64, error: f64) {
        self.processors = processors;
        for kernel in &mut self.kernels {
            kernel.rate = FlopRate(kernel.rate.0 * peak);
            kernel.evidence.carried_over(error);
        }
    }

    /// The fitted rate that is nearest to what is asked, and whether it is the very one.
    fn nearest(
        &self,
        (backend, blocks): (Backend, Option<Blocks>),
        backward: bool,
        shape: &AttentionShape,
    ) -> (&Kernel, bool) {
        // No block is longer than the sequence.
        let asked = blocks.map(|blocks| Blocks { size: blocks.size.clamp(1, shape.queries.max(1)), ..blocks });
        let distance = |kernel: &Kernel| {
            let head = libm::fabs(libm::log2(kernel.head_dim as f64 / shape.head_dim.max(1) as f64));
            let cut = asked.zip(kernel.blocks).map_or((false, 0.0), |(asked, own)| {
                let size = libm::fabs(libm::log2(own.size as f64 / asked.size as f64));
                (backward && own.fused != asked.fused, size)
            });
            (kernel.backend != backend, kernel.causal != shape.causal, head, cut)
        };
        let kernel = self
            .kernels
            .iter()
            .filter(|kernel| kernel.backward == backward)
            .min_by(|a, b| {
                let (a, b) = (distance(a), distance(b));
                let exact = (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2));
                exact.then(a.3.0.cmp(&b.3.0)).then(a.3.1.total_cmp(&b.3.1))
            })
            .expect("checked on construction: every pass has a kernel");
        let cut = asked.zip(kernel.blocks);
        let as_asked = cut.is_none_or(|(asked, own)| asked.size == own.size && (asked.fused == own.fused || !backward));
        let same = kernel.backend == backend && kernel.causal == shape.causal && kernel.head_dim == shape.head_dim;
        (kernel, same && as_asked)
    }

    /// Whether there are rates for a library's kernels.
    pub fn has(&self, backend: Backend) -> bool {
        self.kernels.iter().any(|kernel| kernel.backend == backend)
    }

    /// Whether rates of another library's kernels stand for a library's own: FlexAttention's are FlashAttention-2's, slowed.
    pub fn stands_in(&self, backend: Backend) -> bool {
        backend == Backend::Flex && !self.has(Backend::Flex) && self.has(Backend::Flash2)
    }

    /// Time of one attention kernel of a library, cut into blocks where it is told; `regime` makes of its seconds at burst
    /// clocks and its FLOPs what the clocks allow.
    pub fn cost(
        &self,
        kernels: (Backend, Option<Blocks>),
        backward: bool,
        shape: &AttentionShape,
        regime: impl Fn(f64, f64) -> f64,
    ) -> Cost {
        let pairs = pairs(shape);
        // Not rounded up: else one query more, and with it one tile more, would shorten the tail.
        let tiles = shape.batch as f64 * shape.heads as f64 * (shape.queries as f64 / 128.0).max(1.0);
        if pairs == 0.0 || shape.batch == 0 || shape.heads == 0 || shape.head_dim == 0 {
            return Cost::NOTHING;
        }
        let stands_in = self.stands_in(kernels.0);
        let asked = if stands_in { (Backend::Flash2, kernels.1) } else { kernels };
        let (kernel, same) = self.nearest(asked, backward, shape);
        let matmuls = if backward { 5.0 } else { 2.0 };
        let flops = matmuls * 2.0 * shape.batch as f64 * shape.heads as f64 * pairs * shape.head_dim as f64;
        let seen = match shape.squares {
            Some(squares) => squares as f64 / shape.queries as f64,
            None => (shape.keys as f64).min(shape.window.map_or(f64::INFINITY, |w| w as f64)),
        };
        let sequence = seen.max(1.0);
        let slowed = if stands_in { FLEX_OVER_FLASH2[usize::from(backward)] } else { 1.0 };
        let rate = slowed * kernel.rate.0 * sequence / (sequence + kernel.knee);
        let seconds = self.launch + regime(flops / rate * (1.0 + 0.8 * self.processors / tiles), flops);
        let mut cost = if same { kernel.evidence.cost(seconds) } else { kernel.evidence.beyond(seconds) };
        if stands_in {
            cost = Cost { spread: cost.spread.max(FLEX_SPREAD), basis: cost.basis.and(Basis::Extrapolated), ..cost };
        }
        if shape.squares.is_some() {
            let spread = libm::hypot(cost.spread, DOCUMENTS_SPREAD);
            cost = Cost { spread, basis: cost.basis.and(Basis::Extrapolated), ..cost };
        }
        let thin = sequence < 512.0 || tiles < self.processors;
        Cost { basis: if thin { cost.basis.and(Basis::Interpolated) } else { cost.basis }, ..cost }
    }
}

/// Query-key pairs of one head that the mask lets through.
pub(super) fn pairs(shape: &AttentionShape) -> f64 {
    if let Some(squares) = shape.squares {
        return if shape.causal { squares as f64 / 2.0 } else { squares as f64 };
    }
    let (q, k) = (shape.queries as f64, shape.keys as f64);
    let seen = match (shape.causal, k >= q) {
        (false, _) => q * k,
        (true, true) => q * (k - q / 2.0),
        (true, false) => k * k / 2.0,
    };
    // A causal window of w keys: queries with fewer behind them see fewer, w²/2 pairs less than q·w if all keys are theirs.
    let within = |w: f64| {
        let few = (w - (k - q).max(0.0)).clamp(0.0, q);
        if shape.causal && w < k { w * q - few * few / 2.0 } else { q * w }
    };
    shape.window.map_or(seen, |w| seen.min(within(w as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_windowed_sequence_see_what_the_whole_does() {
        let seen = |queries, keys, window| {
            let (batch, heads, kv_heads, head_dim) = (1, 1, 1, 64);
            pairs(&AttentionShape {
                batch,
                heads,
                kv_heads,
                queries,
                keys,
                head_dim,
                causal: true,
                window,
                squares: None,
            })
        };
        for window in [None, Some(1), Some(100), Some(512), Some(700)] {
            // The later half sees its window's keys of the earlier one.
            let later = window.map_or(1024, |window: u64| 512 + window.min(512));
            assert_eq!(seen(512, 512, window) + seen(512, later, window), seen(1024, 1024, window), "{window:?}");
        }
    }

    #[test]
    fn documents_see_what_as_many_sequences_do() {
        let (heads, kv_heads, head_dim, window) = (1, 1, 64, None);
        let of = |batch, queries, squares| {
            let keys = queries;
            let shape =
                AttentionShape { batch, heads, kv_heads, queries, keys, head_dim, causal: true, window, squares };
            batch as f64 * pairs(&shape)
        };
        assert_eq!(of(1, 4096, Some(8 * 512 * 512)), of(8, 512, None));
        assert_eq!(of(1, 4096, Some(4096 * 4096)), of(1, 4096, None));
    }
}
