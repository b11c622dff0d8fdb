//! What has no rules in a job of Megatron-Core whose sequences are packed documents (`qkv_format = "thd"`).

use crate::model::Mixer;
use crate::plan::megatron::{Core, Implementation, Split};
use crate::runtime::Refusal;

/// The key that says so.
const KEY: &str = "batch.documents";
/// What to write instead: attention is then priced over the whole sequence.
const WITHOUT: &str = "remove batch.documents";

/// The first thing that has none.
pub(super) fn refuses(job: &Split) -> Option<Refusal> {
    job.documents?;
    let engine = job.block.implementation == Implementation::TransformerEngine;
    let scans = |mixer: &Mixer| matches!(mixer, Mixer::Mamba2(_) | Mixer::GatedDelta(_));
    Refusal::first([
        (
            !(engine && job.block.core == Core::Flash),
            Refusal::new("documents-flash-core", "a mask by document without Transformer Engine's flash attention")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.mesh.cp > 1,
            Refusal::new("documents-shared-sequence", "documents of a sequence that context-parallel ranks share")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.model.has_windows(),
            Refusal::new("documents-sliding-window", "packed documents beside a sliding window")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.model.layers.kinds().iter().any(|kind| scans(&kind.mixer)),
            Refusal::new("documents-scans", "packed documents in layers of Mamba-2 or gated DeltaNet")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.copies_gradients,
            Refusal::new(
                "documents-deterministic-mode",
                "a deterministic backward of attention inside packed documents",
            )
            .on("megatron.deterministic_mode")
            .instead("write megatron.deterministic_mode = false, or remove batch.documents"),
        ),
    ])
}
