//! What has no rules in a job whose sequences are packed documents, with attention that stays inside each.

use crate::model::Position;
use crate::model::style::{AttentionCode, Modules};
use crate::plan::torch::TorchPlan;
use crate::program::DType;
use crate::runtime::Refusal;

/// The key that says so.
const KEY: &str = "batch.documents";
/// What to write instead: attention is then priced over the whole sequence.
const WITHOUT: &str = "remove batch.documents";

/// The first thing that has none.
pub(super) fn refuses(job: &TorchPlan) -> Option<Refusal> {
    job.documents?;
    let transformers = job.style.modules == Modules::Transformers;
    let windowed = job.model.layers.kinds().iter().any(|kind| kind.window().is_some_and(|window| window < job.seq));
    Refusal::first([
        (
            job.context > 1,
            Refusal::new("documents-context-parallel", "a mask by document where ranks share a sequence")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            transformers && job.style.attention != AttentionCode::Flash,
            Refusal::new(
                "documents-dense-mask",
                "a mask by document for transformers' attention other than flash_attention_2: a tensor of S·S numbers",
            )
            .on(KEY)
            .instead("write attention.implementation = \"flash_attention_2\", or remove batch.documents"),
        ),
        (
            windowed,
            Refusal::new("documents-window", "a mask by document beside a sliding window shorter than the sequence")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            !job.model.is_transformer(),
            Refusal::new("documents-mixers", "documents packed for layers of Mamba-2 or gated DeltaNet")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.model.position == Position::Alibi,
            Refusal::new("documents-alibi", "a mask by document beside ALiBi's biases").on(KEY).instead(WITHOUT),
        ),
        (
            job.multiplies_in() == DType::Fp32,
            Refusal::new("documents-fp32", "a mask by document in fp32: flash kernels take bf16 and fp16")
                .on(KEY)
                .instead(WITHOUT),
        ),
        (
            job.unpad,
            Refusal::new("documents-unpad", "a mask by document beside bert_padding's packing")
                .on("attention.unpad")
                .instead("write attention.unpad = false, or remove batch.documents"),
        ),
        (
            job.eager.copies_gradients,
            Refusal::new("documents-deterministic", "a deterministic backward of attention inside documents")
                .on("attention.deterministic")
                .instead("write attention.deterministic = false, or remove batch.documents"),
        ),
    ])
}
