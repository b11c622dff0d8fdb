//! What everything above asks of a job of PyTorch's own runtimes.

use super::pipeline::Order;
use super::{Checkpoint, Job, KeepLogits, compile_within, pipeline, plan};
use crate::model::experts::{Experts, Implementation, Score, choice};
use crate::model::head::Loss;
use crate::program::Budget;
use crate::runtime::fsdp::Version;
use crate::runtime::{self, Flight, Framework, Modules, Parts};

impl Framework for Job {
    fn parts(&self) -> Parts<'_> {
        Parts::Whole(self)
    }

    fn with_micro_batches(&self, count: u32) -> Option<runtime::Job> {
        let from_file = self.pipeline.as_ref().is_some_and(|pipeline| matches!(pipeline.schedule, Order::File(..)));
        (!from_file).then(|| runtime::Job::of(Job { accumulation: count, ..self.clone() }))
    }

    fn refuses(&self) -> Option<&'static str> {
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
fn refuses(job: &Job) -> Option<&'static str> {
    let model = &job.model;
    if model.latent.is_some() && (job.compile || job.tensor.splits() || job.context > 1 || job.unpad) {
        return Some("latent attention that is compiled, split or packed");
    }
    if let Loss::ChunkedGradients { chunks, .. } = job.loss {
        let list = [
            (job.fsdp.version != Version::Two, "torchtitan's loss by parts without fully_shard"),
            (model.tied_head, "torchtitan's loss by parts with a tied head"),
            (model.logit_softcap, "torchtitan's loss by parts with capped logits"),
            (job.tensor.splits(), "torchtitan's loss by parts under tensor parallelism"),
            (!job.own_tokens().is_multiple_of(chunks.into()), "a loss by parts that are not equally long"),
            (!job.sync_every, "torchtitan's loss by parts over micro-batches that do not all reduce their gradients"),
        ];
        if let Some((_, what)) = list.into_iter().find(|&(applies, _)| applies) {
            return Some(what);
        }
    }
    if job.cuda_graphs {
        let list = [
            (job.fsdp.version != Version::Two, "a graph of forward and backward without fully_shard"),
            (job.pipeline.is_some(), "a graph of forward and backward in a pipeline"),
            (model.experts.is_some(), "a graph of forward and backward with experts"),
            (job.context > 1, "a graph of forward and backward where ranks share a sequence"),
            (
                job.fsdp.cpu_offload || job.eager.offload.is_some(),
                "a graph of forward and backward beside the host's memory",
            ),
            (job.unpad || job.eager.attention_reads_back, "a graph of forward and backward that wait for the host"),
            (
                job.keep_logits != KeepLogits::No || job.training_loop.train_metrics > 0,
                "a graph of forward and backward whose logits are kept",
            ),
            (!job.sync_every || job.step_in_backward, "a graph of forward and backward that do not reduce gradients"),
        ];
        if let Some((_, what)) = list.into_iter().find(|&(applies, _)| applies) {
            return Some(what);
        }
    }
    if job.eager.flex_attention && job.context > 1 {
        return Some("FlexAttention where ranks share a sequence");
    }
    if model.sinks {
        return Some("attention sinks");
    }
    model.experts.as_ref().and_then(|experts| run_experts(job, experts)).or_else(|| plan::refuses(job))
}

/// The first thing that has no rules in how a job runs its experts.
fn run_experts(job: &Job, experts: &Experts) -> Option<&'static str> {
    let titan = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let list = [
        (matches!(job.fsdp.version, Version::One(_)), "experts under FSDP1"),
        (job.tensor.splits(), "experts under tensor parallelism"),
        (job.compile, "compiled blocks with experts"),
        (!titan && job.checkpoint == Checkpoint::SelectiveOp, "selective checkpointing of blocks with experts"),
        (matches!(job.checkpoint, Checkpoint::Saving(_)), "a selective policy of one's own for blocks with experts"),
        (job.eager.offload.is_some(), "checkpoints of blocks with experts in the host's memory"),
    ];
    list.into_iter().find(|&(applies, _)| applies).map(|(_, what)| what).or_else(|| mixture(job, experts))
}

/// The first thing in a mixture that has no rules.
fn mixture(job: &Job, experts: &Experts) -> Option<&'static str> {
    let router = experts.router;
    let counts = experts.load.tokens_per_expert(experts.count, experts.top_k, job.batch * job.seq);
    // torchtitan scales always, and balances by a bias, whatever loss the model was published with.
    let titan = matches!(job.style.experts, Implementation::Torchtitan { .. });
    let chosen = job.style.experts == Implementation::ExpertChoice;
    let many = experts.count >= 128 && choice::places(experts, job.batch * job.seq) > 4096;
    let list = [
        (chosen && experts.shared > 0, "shared experts beside some that choose their tokens"),
        (chosen && many, "128 experts or more that choose over 4,096 tokens each"),
        (titan && router.score == Score::SoftmaxOfChosen, "a router that is a softmax over the chosen experts"),
        (!titan && router.score != Score::Softmax, "a router that is not a softmax over all experts"),
        (!titan && !chosen && !router.normalises, "a router whose weights do not sum to one"),
        (!titan && router.scales, "a router that scales its weights"),
        (router.bias || (!titan && router.correction), "a router with a bias"),
        (router.groups.is_some() && !titan, "a router that chooses among groups"),
        (
            router.groups.is_some() && job.checkpoint == Checkpoint::SelectiveOp,
            "selective checkpointing of a router that chooses among groups",
        ),
        (experts.bias, "experts with biases"),
        (!titan && !chosen && experts.auxiliary_loss, "a loss that balances experts"),
        (titan && job.context > 1, "torchtitan's experts where ranks share a sequence"),
        (job.model.ffn_bias, "dense blocks with biases beside experts"),
        (counts.contains(&0), "experts that no token reaches"),
    ];
    list.into_iter().find(|&(applies, _)| applies).map(|(_, what)| what)
}
