//! `precision.autocast`: whether forward and loss run under `torch.autocast`, and in which jobs that is simulated.

use super::entry::Runtime;
use super::error::ScenarioError;
use super::names::{FSDP1, FSDP2};
use super::reader::Reader;
use super::written;
use crate::model::head::Loss;
use crate::model::style::{Linears, Modules, Rope};
use crate::model::{Norm, Position};
use crate::program::DType;
use crate::runtime::train::{Autocast, TorchPlan};

/// What the file says of autocast, of parameters that are fp32 all over.
pub(super) fn autocast(
    reader: &mut Reader<'_>,
    written: &written::Precision,
    runtime: Runtime,
) -> Result<Option<Autocast>, ScenarioError> {
    let Some(at) = &written.autocast else {
        return match &written.autocast_cache {
            Some(at) => Err(reader.plan(
                at,
                "precision.autocast_cache is of torch.autocast, which is off",
                "remove the key, or write precision.autocast = \"bf16\"",
            )),
            None => Ok(None),
        };
    };
    if *at.get_ref() != DType::Bf16 {
        let problem = format!("torch.autocast in {} is not simulated", at.get_ref().name());
        return Err(reader.plan(at, problem, "write precision.autocast = \"bf16\", or remove the key"));
    }
    if runtime == FSDP1 {
        let problem = "torch.autocast is not simulated with FSDP1's flat parameters";
        let remedy = "write precision.param = \"bf16\" in place of precision.autocast, or runtime = \"fsdp2\"";
        return Err(reader.plan(at, problem, remedy));
    }
    for (key, dtype) in [("storage", &written.storage), ("param", &written.param)] {
        let Some(at) = dtype.as_ref().filter(|at| *at.get_ref() != DType::Fp32) else { continue };
        let problem = format!(
            "autocast casts fp32 parameters at each use, and precision.{key} = \"{}\" leaves it none to cast",
            at.get_ref().name()
        );
        return Err(reader.plan(at, problem, format!("remove precision.{key}, or precision.autocast")));
    }
    let cache = match &written.autocast_cache {
        Some(at) => *at.get_ref(),
        None => reader.assume("precision.autocast_cache", true, true),
    };
    Ok(Some(Autocast { cache }))
}

/// Refuses what autocast is not simulated with.
pub(super) fn check(reader: &Reader<'_>, scenario: &written::Scenario, job: &TorchPlan) -> Result<(), ScenarioError> {
    let (Some(at), Some(_)) = (&scenario.precision.autocast, job.autocast) else { return Ok(()) };
    let (model, style) = (&job.model, job.style);
    let plain_loss = matches!(job.loss, Loss::Fp32CrossEntropy { compiled: false });
    let with = [
        (job.reference.is_some(), "a loss over pairs of sequences", ""),
        (job.compile, "compiled blocks", "write compile.blocks = false"),
        (job.tensor.splits(), "tensor parallelism", "write mesh.tp = 1"),
        (job.context > 1, "context parallelism", "write mesh.cp = 1"),
        (job.pipeline.is_some(), "a pipeline", "write mesh.pp = 1"),
        (job.cuda_graphs, "CUDA graphs", "write framework.cuda_graphs = false"),
        (model.experts().is_some(), "experts", ""),
        (model.latent().is_some(), "latent attention", ""),
        (model.position == Position::Alibi, "ALiBi", ""),
        (
            model.norms().kind == Norm::Rms && !job.eager.fused_rms_norm,
            "an RMSNorm in parts",
            "write framework.fused_rms_norm = true",
        ),
        (style.modules != Modules::Plain, "transformers' classes", "remove framework.modules"),
        (style.linears != Linears::Torch, "other linears than PyTorch's", "remove framework.linears"),
        (!matches!(style.rope, Rope::Complex), "a rotary embedding in real numbers", "remove framework.rope"),
        (style.repeat_kv, "copied key-value heads", "remove framework.repeat_kv"),
        (job.checkpoint.is_selective(), "selective checkpoints", "write activation_checkpointing.policy = \"full\""),
        (job.eager.offload.is_some(), "offloaded activations", "remove activation_checkpointing.offload"),
        (job.eager.flex_attention, "FlexAttention", "remove attention.backend"),
        (job.unpad, "packed tokens", "write attention.unpad = false"),
        (job.output.is_some(), "a root whose output is cast", "remove precision.output"),
        (job.loss_inside, "a loss inside the model", "write loss.inside_model = false"),
        (
            !plain_loss,
            "another loss than plain cross-entropy in fp32",
            "write loss.kind = \"fp32\" and loss.compiled = false",
        ),
    ];
    let Some((_, what, remedy)) = with.into_iter().find(|(has, ..)| *has) else { return Ok(()) };
    let instead = match scenario.runtime.get_ref() == FSDP2 {
        true => "write precision.param = \"bf16\" in place of precision.autocast",
        false => "write precision.storage = \"bf16\" in place of precision.autocast",
    };
    let remedy = if remedy.is_empty() { instead.to_owned() } else { format!("{remedy}, or {instead}") };
    Err(reader.plan(at, format!("torch.autocast is not simulated with {what}"), remedy))
}
