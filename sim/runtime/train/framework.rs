//! What everything above asks of a job of PyTorch's own runtimes.

use super::{compile_within, documents, frozen, mixers, pipeline, plan, reference};
use crate::model::experts::{Experts, Implementation, Score, choice};
use crate::model::head::Loss;
use crate::plan::torch::Checkpoint;
use crate::plan::torch::KeepLogits;
use crate::plan::torch::TorchPlan;
use crate::program::Budget;
use crate::runtime::ddp;
use crate::runtime::fsdp::Version;
use crate::runtime::{Flight, Framework, Modules, Refusal};

impl Framework for TorchPlan {
    fn refuses(&self) -> Option<Refusal> {
        refuses(self)
    }

    fn modules(&self) -> Modules {
        let linears = self.float8.as_ref().map(|_| "fp8");
        let offload = "the optimizer runs on the host, at an assumed memory bandwidth";
        let doubts = if self.fsdp.cpu_offload { vec![offload] } else { vec![] };
        Modules { linears, doubts, ..Modules::of(if self.compile { "compiled" } else { "eager" }) }
    }

    fn compile(&self, budget: &Budget) -> Flight {
        match &self.pipeline {
            Some(stages) => pipeline::compile(self, stages, budget),
            None => Flight::alike(compile_within(self, budget)),
        }
    }
}

/// The first thing in a job that has no rules.
fn refuses(job: &TorchPlan) -> Option<Refusal> {
    let model = &job.model;
    if let Some(refusal) = mixers::refuses(job).or_else(|| documents::refuses(job)) {
        return Some(refusal);
    }
    if model.latent().is_some() && (job.compile || job.tensor.splits() || job.context > 1 || job.unpad) {
        return Some(Refusal::new(
            "latent-compiled-split-packed",
            "latent attention that is compiled, split or packed",
        ));
    }
    if let Some(refusal) = job.ddp.as_ref().and_then(|settings| ddp::refuses(job, settings)) {
        return Some(refusal);
    }
    if let Some(refusal) = job.trained.as_ref().and_then(|trained| frozen::refuses(job, trained)) {
        return Some(refusal);
    }
    if let Some(refusal) = reference::refuses(job) {
        return Some(refusal);
    }
    if let Loss::ChunkedGradients { chunks, .. } = job.loss {
        let list = [
            (
                job.fsdp.version != Version::Two,
                Refusal::new("loss-by-parts-unsharded", "torchtitan's loss by parts without fully_shard")
                    .on("loss.kind"),
            ),
            (
                model.tied_head,
                Refusal::new("loss-by-parts-tied-head", "torchtitan's loss by parts with a tied head").on("loss.kind"),
            ),
            (
                model.logit_softcap,
                Refusal::new("loss-by-parts-capped", "torchtitan's loss by parts with capped logits").on("loss.kind"),
            ),
            (
                job.tensor.splits(),
                Refusal::new("loss-by-parts-tensor-parallel", "torchtitan's loss by parts under tensor parallelism")
                    .on("loss.kind"),
            ),
            (
                !job.own_tokens().is_multiple_of(chunks.into()),
                Refusal::new("loss-by-parts-uneven", "a loss by parts that are not equally long").on("loss.kind"),
            ),
            (
                !job.sync_every,
                Refusal::new(
                    "loss-by-parts-unreduced",
                    "torchtitan's loss by parts over micro-batches that do not all reduce their gradients",
                )
                .on("loss.kind"),
            ),
        ];
        if let Some(refusal) = Refusal::first(list) {
            return Some(refusal);
        }
    }
    if job.cuda_graphs {
        let list = [
            (
                job.fsdp.version != Version::Two,
                Refusal::new("graph-unsharded", "a graph of forward and backward without fully_shard")
                    .on("framework.cuda_graphs"),
            ),
            (
                job.pipeline.is_some(),
                Refusal::new("graph-pipeline", "a graph of forward and backward in a pipeline")
                    .on("framework.cuda_graphs"),
            ),
            (
                model.experts().is_some(),
                Refusal::new("graph-experts", "a graph of forward and backward with experts")
                    .on("framework.cuda_graphs"),
            ),
            (
                job.context > 1,
                Refusal::new("graph-context-parallel", "a graph of forward and backward where ranks share a sequence")
                    .on("framework.cuda_graphs"),
            ),
            (
                job.fsdp.cpu_offload || job.eager.offload.is_some(),
                Refusal::new("graph-offload", "a CUDA graph of forward and backward with offload to the host's memory")
                    .on("framework.cuda_graphs"),
            ),
            (
                job.unpad || job.eager.attention_reads_back,
                Refusal::new("graph-host-waits", "a graph of forward and backward that wait for the host")
                    .on("framework.cuda_graphs"),
            ),
            (
                job.keep_logits != KeepLogits::No || job.training_loop.train_metrics > 0,
                Refusal::new("graph-kept-logits", "a graph of forward and backward whose logits are kept")
                    .on("framework.cuda_graphs"),
            ),
            (
                !job.sync_every || job.step_in_backward,
                Refusal::new("graph-unreduced", "a graph of forward and backward that do not reduce gradients")
                    .on("framework.cuda_graphs"),
            ),
        ];
        if let Some(refusal) = Refusal::first(list) {
            return Some(refusal);
        }
    }
    if job.eager.flex_attention && job.context > 1 {
        return Some(
            Refusal::new("flex-context-parallel", "FlexAttention where ranks share a sequence").on("attention.backend"),
        );
    }
    if model.has_sinks() {
        return Some(Refusal::new("sinks", "attention sinks"));
    }
    model.experts().and_then(|experts| run_experts(job, experts)).or_else(|| plan::refuses(job))
}

/// The first thing that has no rules in how a job runs its experts.
fn run_experts(job: &TorchPlan, experts: &Experts) -> Option<Refusal> {
    let titan = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let list = [
        (
            matches!(job.fsdp.version, Version::One(_)),
            Refusal::new("experts-fsdp1", "experts under FSDP1").on("runtime"),
        ),
        (
            job.tensor.splits(),
            Refusal::new("experts-tensor-parallel", "experts under tensor parallelism").on("mesh.tp"),
        ),
        (job.compile, Refusal::new("experts-compiled", "compiled blocks with experts").on("compile.blocks")),
        (
            !titan && job.checkpoint == Checkpoint::SelectiveOp,
            Refusal::new("experts-selective-checkpointing", "selective checkpointing of blocks with experts")
                .on("activation_checkpointing.policy"),
        ),
        (
            matches!(job.checkpoint, Checkpoint::Saving(_)),
            Refusal::new("experts-own-policy", "a selective policy of one's own for blocks with experts")
                .on("activation_checkpointing.policy"),
        ),
        (
            job.eager.offload.is_some(),
            Refusal::new("experts-offloaded-checkpoints", "checkpoints of blocks with experts in the host's memory")
                .on("activation_checkpointing.offload"),
        ),
    ];
    Refusal::first(list).or_else(|| mixture(job, experts))
}

/// The first thing in a mixture that has no rules.
fn mixture(job: &TorchPlan, experts: &Experts) -> Option<Refusal> {
    let router = experts.router;
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, job.batch * job.seq);
    // torchtitan scales always, and balances by a bias, whatever loss the model was published with.
    let titan = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let chosen = job.style.experts == Implementation::ExpertChoice;
    let many = experts.count >= 128 && choice::places(experts, job.batch * job.seq) > 4096;
    let list = [
        (
            chosen && experts.shared > 0,
            Refusal::new("expert-choice-shared", "shared experts with experts that choose their tokens")
                .on("framework.experts"),
        ),
        (
            chosen && many,
            Refusal::new("expert-choice-many", "128 experts or more that choose over 4,096 tokens each")
                .on("framework.experts"),
        ),
        (
            titan && router.score == Score::SoftmaxOfChosen,
            Refusal::new("router-softmax-of-chosen", "a router that is a softmax over the chosen experts"),
        ),
        (
            !titan && router.score != Score::Softmax && (chosen || router.score != Score::SoftmaxOfChosen),
            Refusal::new("router-not-softmax", "a router that is no softmax over all experts, or over the chosen ones")
                .on("framework.experts"),
        ),
        (
            !titan && !chosen && router.score == Score::Softmax && !router.normalises,
            Refusal::new("router-unnormalised", "a router whose weights do not sum to one").on("framework.experts"),
        ),
        (
            !titan && router.scales,
            Refusal::new("router-scales", "a router that scales its weights").on("framework.experts"),
        ),
        (
            router.bias || (!titan && router.correction),
            Refusal::new("router-bias", "a router with a bias").on("framework.experts"),
        ),
        (
            router.groups.is_some() && !titan,
            Refusal::new("router-groups", "a router that chooses among groups").on("framework.experts"),
        ),
        (
            router.groups.is_some() && job.checkpoint == Checkpoint::SelectiveOp,
            Refusal::new(
                "router-groups-selective-checkpointing",
                "selective checkpointing of a router that chooses among groups",
            )
            .on("activation_checkpointing.policy"),
        ),
        (experts.bias, Refusal::new("experts-biases", "experts with biases")),
        (
            experts.latent.is_some(),
            Refusal::new("latent-experts", "experts that see a narrower copy of the hidden state").on("runtime"),
        ),
        (
            !titan && !chosen && experts.auxiliary_loss,
            Refusal::new("experts-auxiliary-loss", "a loss that balances experts").on("framework.experts"),
        ),
        (
            titan && job.context > 1,
            Refusal::new("experts-context-parallel", "torchtitan's experts where ranks share a sequence").on("mesh.cp"),
        ),
        (
            job.model.dense().is_some_and(|dense| dense.bias),
            Refusal::new("experts-dense-biases", "dense layers with biases in a model with experts"),
        ),
        (
            counts.contains(&0),
            Refusal::new("experts-unreached", "experts that no token reaches").on("model.expert_load"),
        ),
    ];
    Refusal::first(list)
}
