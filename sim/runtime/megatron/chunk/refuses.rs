//! What of a job Megatron's modules have no rules for here.

use super::Chunk;
use crate::model::{Norm, NormPlacement, Position, QkNorm};
use crate::plan::megatron::{Core, Fp8Recipe, Implementation, Matmuls, Split};
use crate::runtime::Refusal;
use crate::runtime::megatron::refused::{FP8, FP8_SIZES};
use crate::runtime::megatron::{builder, experts, latent, mtp};

/// Whether blocks of fp8 tensors have scales.
fn has_blocks(job: &Split) -> bool {
    job.matmuls.fp8().is_some_and(|fp8| fp8.recipe.of_blocks())
}

/// Whether norms on queries and keys, if any, are of a head each, without biases and Transformer Engine's.
fn heads_norms(job: &Split) -> bool {
    let engine = job.block.implementation == Implementation::TransformerEngine;
    engine && job.model.qk_norm() == Some(QkNorm::PerHead) && job.model.norms().kind == Norm::Rms
}

/// Whether tensor cores can multiply all sizes in fp8: widths in 16s, tokens in 8s
/// (`transformer_engine/pytorch/utils.py`, `assert_dim_for_fp8_exec`).
fn multiplies_in_fp8(job: &Split) -> bool {
    let d = builder::dims(job);
    let widths = [d.d, d.n * d.h, (d.n + 2 * d.k) * d.h, d.f];
    d.tokens().is_multiple_of(8) && widths.iter().all(|width| width.is_multiple_of(16))
}

/// Whether blocks of 128 numbers end where the parts of a sequence that ranks hold do, which are quantised before they are
/// gathered (`utils.py`, `assert_dim_for_all_gather`).
fn parts_fill_blocks(job: &Split) -> bool {
    let d = builder::dims(job);
    let ranks = job.model.latent().map_or([None; 2], |latent| [latent.query_rank, Some(latent.rank)]);
    let sizes = [d.local_tokens(), d.d].into_iter().chain(ranks.into_iter().flatten());
    !d.tensor.sequence || sizes.into_iter().all(|size| size.is_multiple_of(128))
}

impl Chunk {
    /// What of a job has no rules here, if anything: [`Chunk::new`] is for the others.
    pub fn refuses(job: &Split) -> Option<Refusal> {
        let (model, engine) = (&job.model, job.block.implementation == Implementation::TransformerEngine);
        let cases = [
            (
                job.matmuls != Matmuls::Plain && !engine,
                Refusal::new("fp8-without-transformer-engine", "fp8 matmuls without Transformer Engine")
                    .on(FP8)
                    .instead(FP8_SIZES),
            ),
            (
                job.matmuls != Matmuls::Plain && !multiplies_in_fp8(job),
                Refusal::new("fp8-sizes", "fp8 matmuls of sizes that 16 does not divide").on(FP8).instead(FP8_SIZES),
            ),
            (
                job.matmuls.fp8().is_some_and(|fp8| fp8.recipe == Fp8Recipe::Blockwise && fp8.parameters),
                Refusal::new("fp8-blockwise-parameters", "parameters kept in fp8 under blockwise scaling")
                    .on(FP8)
                    .instead(FP8_SIZES),
            ),
            (
                has_blocks(job) && !parts_fill_blocks(job),
                Refusal::new(
                    "fp8-blockwise-parts",
                    "blockwise scaling of fp8 where a rank's part of the sequence, or its width, is no multiple of 128",
                )
                .on(FP8)
                .instead(FP8_SIZES),
            ),
            (
                job.matmuls.fp8().is_some_and(|fp8| fp8.recipe == Fp8Recipe::Blockwise) && job.overlap_tensor.is_some(),
                Refusal::new("fp8-blockwise-tensor-overlap", "tensor-parallel overlap under blockwise scaling of fp8")
                    .on(FP8)
                    .instead("write megatron.tp_comm_overlap = false, or another megatron.fp8"),
            ),
            (
                job.mesh.cp > 1 && !(engine && job.block.core == Core::Flash),
                Refusal::new("context-parallel-flash-core", "context parallelism without a flash core").on("mesh.cp"),
            ),
            (
                model.kv_heads() < u64::from(job.mesh.tp),
                Refusal::new("few-kv-heads", "fewer key-value heads than tensor-parallel ranks").on("mesh.tp"),
            ),
            (
                model.has_sinks() && !(engine && job.block.core == Core::Flash),
                Refusal::new("sinks-flash-core", "attention sinks without a flash core").on("megatron.attention"),
            ),
            (
                model.has_sinks() && job.mesh.cp > 1,
                Refusal::new("sinks-context-parallel", "attention sinks of a sequence that ranks share").on("mesh.cp"),
            ),
            (
                job.overlap_tensor.is_some() && !engine,
                Refusal::new(
                    "tensor-overlap-without-transformer-engine",
                    "tensor-parallel overlap without Transformer Engine",
                )
                .on("megatron.tp_comm_overlap"),
            ),
            (
                model.qk_norm().is_some() && !heads_norms(job),
                Refusal::new("qk-norms", "norms on queries and keys other than Transformer Engine's, head by head"),
            ),
            (
                model.has_windows() && !(engine && job.block.core == Core::Flash),
                Refusal::new("window-flash-core", "a sliding window without a flash core").on("megatron.attention"),
            ),
            (
                model.has_windows() && job.mesh.cp > 1 && !job.mesh.sharing.comm_type.has_windows(),
                Refusal::new("window-ring", "a sliding window of a sequence whose keys go round a ring")
                    .on("megatron.cp_comm_type"),
            ),
            (
                model.norms().placement != NormPlacement::Pre,
                Refusal::new("norm-placement", "norms elsewhere than before attention and feed-forward"),
            ),
            (
                model.position == Position::Alibi && job.block.core == Core::Flash,
                Refusal::new("alibi-flash-core", "linear biases in a flash kernel").on("megatron.attention"),
            ),
            (
                engine && model.embedding_norm.is_some(),
                Refusal::new("embedding-norm-transformer-engine", "a norm on the embedding with Transformer Engine")
                    .on("megatron.implementation"),
            ),
            (model.caps_scores() || model.logit_softcap, Refusal::new("soft-caps", "capped scores or logits")),
        ];
        Refusal::first(cases)
            .or_else(|| latent::refuses(job).or_else(|| experts::refuses(job)))
            .or_else(|| mtp::refuses(job))
    }
}
