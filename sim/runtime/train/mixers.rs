//! What has no rules in a job whose layers have mixers other than attention, or gates.

use crate::model::experts::Implementation;
use crate::model::style::Modules;
use crate::plan::torch::{Checkpoint, TorchPlan};
use crate::runtime::Refusal;

/// The most dimensions of a key that flash-linear-attention's kernels take (`chunk_gated_delta_rule_fwd_h`).
const WIDEST_KEYS: u64 = 256;

/// The first thing that has none.
pub(super) fn refuses(job: &TorchPlan) -> Option<Refusal> {
    let (mixes, gates) = (!job.model.is_transformer(), job.model.has_gates());
    let delta = job.model.gated_delta();
    let titan = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let weighed = job.model.experts().is_some_and(|experts| experts.shared_gate);
    let list = [
        (
            mixes && job.compile,
            Refusal::new("mixers-compiled", "Mamba-2 or gated DeltaNet in compiled blocks").on("compile.blocks"),
        ),
        (
            mixes && job.tensor.splits(),
            Refusal::new("mixers-tensor-parallel", "Mamba-2 or gated DeltaNet under tensor parallelism").on("mesh.tp"),
        ),
        (
            mixes && job.context > 1,
            Refusal::new("mixers-context-parallel", "Mamba-2 or gated DeltaNet where ranks share a sequence")
                .on("mesh.cp"),
        ),
        (
            mixes && job.unpad,
            Refusal::new("mixers-unpadded", "Mamba-2 or gated DeltaNet on sequences without padding")
                .on("attention.unpad"),
        ),
        (
            delta.is_some() && matches!(job.checkpoint, Checkpoint::Saving(_)),
            Refusal::new("delta-own-policy", "a selective policy of one's own for layers of gated DeltaNet")
                .on("activation_checkpointing.policy"),
        ),
        (
            delta.is_some_and(|delta| delta.key_dim > WIDEST_KEYS),
            Refusal::new("delta-wide-keys", "a gated DeltaNet whose keys have more than 256 dimensions"),
        ),
        (
            gates && job.compile,
            Refusal::new("gates-compiled", "gated attention in compiled blocks").on("compile.blocks"),
        ),
        (
            gates && job.tensor.splits(),
            Refusal::new("gates-tensor-parallel", "gated attention under tensor parallelism").on("mesh.tp"),
        ),
        (
            gates && job.context > 1,
            Refusal::new("gates-context-parallel", "gated attention where ranks share a sequence").on("mesh.cp"),
        ),
        (
            gates && job.unpad,
            Refusal::new("gates-unpadded", "gated attention on sequences without padding").on("attention.unpad"),
        ),
        (
            gates && job.autocast.is_some(),
            Refusal::new("gates-autocast", "gated attention under torch.autocast").on("precision.autocast"),
        ),
        (
            gates && job.style.fused_qkv,
            Refusal::new("gates-fused", "gated attention whose queries, keys and values come from one linear")
                .on("framework.fused_qkv"),
        ),
        (
            gates && job.style.modules == Modules::Transformers,
            Refusal::new("gates-modules", "gated attention as transformers' classes write it").on("framework.modules"),
        ),
        (
            weighed && titan,
            Refusal::new("gates-torchtitan", "shared experts with a gate among torchtitan's experts")
                .on("framework.experts"),
        ),
    ];
    Refusal::first(list)
}
