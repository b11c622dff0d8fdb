//! What of a plan is only simulated, and its optimizer.

use crate::model::{Gating, Norm, NormPlacement, Position};
use crate::plan::xla::{Targets, XlaPlan};
use crate::program::DType;
use crate::runtime::Refusal;
use crate::runtime::optimizer::{Optax, OptaxOf, Optimizer};

impl XlaPlan {
    /// What of it is only simulated: no program is written for it.
    pub fn only_simulated(&self) -> Option<Refusal> {
        let model = &self.model;
        let cases = [
            (
                self.gpu().is_some(),
                Refusal::new("step-gpu", "XLA on GPUs: steps are written for libtpu").on("topology.name"),
            ),
            (
                model.latent().is_some() || model.has_sinks(),
                Refusal::new("step-latent-attention-or-sinks", "latent attention, and sinks"),
            ),
            (model.norms().kind != Norm::Rms, Refusal::new("step-norm", "norms other than RMSNorm")),
            (
                !matches!(model.norms().placement, NormPlacement::Pre | NormPlacement::PreAndPost),
                Refusal::new("step-parallel-blocks", "attention and feed-forward side by side"),
            ),
            (
                !matches!(model.position, Position::Rope { .. }),
                Refusal::new("step-positions", "positions other than rotary ones"),
            ),
            (
                !matches!(model.gating(), Gating::Gated(_)),
                Refusal::new("step-ungated", "a feed-forward without a gate"),
            ),
            (model.has_biases(), Refusal::new("step-biases", "biases")),
            (
                self.quantization.is_some(),
                Refusal::new("step-quantised", "linears in eight bits").on("xla.quantization"),
            ),
            (self.torch.is_some(), Refusal::new("step-torch-xla", "PyTorch/XLA's: give its own program, by --program")),
            (
                self.accumulation > 1,
                Refusal::new(
                    "step-accumulation",
                    "gradient accumulation: its micro-batches are alike, so set batch.accumulation to 1",
                )
                .on("batch.accumulation"),
            ),
            (
                self.optax != OptaxOf::Adamw,
                Refusal::new("step-optimizer", "optimizers other than AdamW").on("optimizer.name"),
            ),
            (self.half_weights, Refusal::new("step-weight-dtype", "weights in bf16").on("xla.weight_dtype")),
            (
                self.targets == Targets::LogSoftmax,
                Refusal::new("step-log-softmax", "a loss by `jax.nn.log_softmax`").on("xla.targets"),
            ),
            (
                self.pipeline.is_some(),
                Refusal::new("step-pipeline", "a pipeline axis: set mesh.pipeline and mesh.dcn_pipeline to 1")
                    .on("mesh.pipeline"),
            ),
            (
                self.activation_embed && self.mesh.tensor > 1,
                Refusal::new(
                    "step-split-activations",
                    "activations on the tensor axis, MaxText's default: set xla.activation_embed = false",
                )
                .on("xla.activation_embed"),
            ),
        ];
        Refusal::first(cases)
    }

    /// The optimizer.
    pub(crate) fn optimizer(&self) -> Optimizer {
        let own = if self.half_weights { DType::Bf16 } else { DType::Fp32 };
        let first = if self.half_moment { DType::Bf16 } else { own };
        Optimizer::Optax(Optax { which: self.optax, moments: [first, own] })
    }
}
