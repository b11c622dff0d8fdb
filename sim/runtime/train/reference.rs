//! The reference model of a loss over pairs of sequences. It runs forward, without gradients, between the policy's log-probabilities
//! and the loss (`dpo_trainer.py` of TRL 1.13.0; `full_dpo_distributed.py` and `lora_dpo_distributed.py` of torchtune 0.6.1).
//!
//! It is a second model, or the policy without its adapters. A second model that is sharded is a root of its own. Its root's
//! parameters stay gathered from the first forward on, if its policy keeps them for a backward: none ever comes.

use super::models::{Body, Reference};
use super::part::Part;
use super::plan::{Scopes, graphs, layout};
use super::reducer;
use super::training::Training;
use super::units::Maker;
use crate::model::graph::{Graph, OpKind};
use crate::model::head::Loss;
use crate::model::preference::{LogProbs, PreferenceOp};
use crate::model::style::Linears;
use crate::model::trained::{Lora, Trained};
use crate::plan::torch::fsdp::{Version, Wrap};
use crate::plan::torch::{Checkpoint, Reference as Source, TorchPlan};
use crate::program::{Builder, Category, Collective, Comm, DType, Dispatch, ScopeId, Work};
use crate::runtime::Refusal;
use crate::runtime::eager::{COMPUTE, Frame, Storage};
use crate::units::Bytes;

/// Numbers that TRL's trainer reads back when it has the loss, and those that ranks gather for them.
const READ_BACK: u32 = 13;
const GATHERED: u32 = 15;

/// The job of the reference model of another, where that runs one: nothing is trained, and nothing checkpointed.
pub(super) fn plan(job: &TorchPlan) -> Option<TorchPlan> {
    let source = job.reference.filter(|source| source.runs())?;
    let lora = job.trained.as_ref().and_then(|trained| trained.lora.clone());
    let lora = lora.map(|lora| Lora { modules: vec![], ..lora });
    let layers_from = job.model.layers.count();
    let nothing = Trained { embedding: false, layers_from, norm: false, head: false, inputs: false, lora };
    let mut plan = TorchPlan { trained: Some(nothing), checkpoint: Checkpoint::None, ..job.clone() };
    let blocks = &plan.fsdp.wrap.blocks;
    if source == Source::Model && job.loss == Loss::Preference(LogProbs::Trl) {
        // `prepare_fsdp` shards the root alone, under the policy that it is given (`trl/models/utils.py`).
        let policy = blocks.iter().flatten().next().copied().unwrap_or(plan.fsdp.wrap.root);
        plan.fsdp.wrap = Wrap::of_blocks(vec![None; blocks.len()], policy);
    }
    Some(plan)
}

/// The first thing in a job with a loss over pairs that has no rules.
pub(super) fn refuses(job: &TorchPlan) -> Option<Refusal> {
    let source = job.reference?;
    let list = [
        (
            job.pipeline.is_some(),
            Refusal::new("preference-pipeline", "a loss over pairs of sequences in a pipeline").on("mesh.pp"),
        ),
        (
            job.tensor.splits(),
            Refusal::new("preference-tensor-parallel", "a loss over pairs of sequences under tensor parallelism")
                .on("mesh.tp"),
        ),
        (
            job.context > 1,
            Refusal::new("preference-context-parallel", "a loss over pairs of sequences where ranks share a sequence")
                .on("mesh.cp"),
        ),
        (
            job.cuda_graphs,
            Refusal::new("preference-graph", "a CUDA graph of a step with a loss over pairs of sequences")
                .on("framework.cuda_graphs"),
        ),
        (
            job.unpad,
            Refusal::new("preference-unpad", "a loss over pairs of sequences with packed tokens").on("attention.unpad"),
        ),
        (
            job.model.experts().is_some(),
            Refusal::new("preference-experts", "a loss over pairs of sequences in a model with experts")
                .on("dpo.reference"),
        ),
        (
            !job.model.is_transformer() || job.model.has_gates(),
            Refusal::new(
                "preference-mixers",
                "a loss over pairs of sequences in a model with Mamba-2, gated DeltaNet or gated attention",
            )
            .on("dpo.reference"),
        ),
        (
            job.compile && source.runs(),
            Refusal::new("preference-compiled", "compiled blocks that run without gradients as the reference model")
                .on("compile.blocks"),
        ),
        (
            job.fsdp.cpu_offload && source.runs(),
            Refusal::new("preference-offload", "a reference model in the host's memory").on("fsdp.cpu_offload"),
        ),
        (
            job.eager.offload.is_some(),
            Refusal::new(
                "preference-offloaded-checkpoints",
                "a loss over pairs of sequences with checkpoints in the host's memory",
            )
            .on("activation_checkpointing.offload"),
        ),
        (
            job.style.linears == Linears::EngineFp8,
            Refusal::new("preference-engine", "a loss over pairs of sequences with Transformer Engine's linears")
                .on("framework.linears"),
        ),
    ];
    Refusal::first(list)
}

impl<'j> Training<'j> {
    /// The reference model comes to stand beside the policy.
    pub(super) fn refer_to(&mut self, plan: Option<&'j TorchPlan>) {
        let Some(job) = plan else { return };
        let (graphs, part) = (graphs(job), Part::whole(job));
        let mut layout = layout(job, &graphs, std::slice::from_ref(&part));
        let scopes = scopes(&mut self.run.eager.program, job);
        let (mut root, mut first) = (0, None);
        if job.has_reference() {
            let policy = self.layout.params.len();
            layout.params.iter_mut().for_each(|param| param.index += policy);
            if job.fsdp.version == Version::Unsharded {
                self.run.add_whole(&layout.params);
            } else {
                let maker = Maker { job, graphs: &graphs, layout: &layout, part: &part, scopes: &scopes, own: None };
                let units = maker.groups(&mut self.run.groups);
                self.run.add_root(units);
                root = 1;
            }
            self.layout.params.extend_from_slice(&layout.params);
            self.layout.names.extend_from_slice(&layout.names);
            first = Some(policy);
        }
        let body = Body::default();
        self.reference = Some(Box::new(Reference { job, graphs, layout, scopes, body, root, first, running: false }));
    }

    /// Whether the reference model runs now.
    pub(super) fn refers(&self) -> bool {
        self.reference.as_ref().is_some_and(|reference| reference.running)
    }

    /// Whether it does, and none of its blocks is a unit of its own.
    pub(super) fn refers_by_root_alone(&self) -> bool {
        self.refers() && self.job.fsdp.wrap.blocks.iter().all(Option::is_none)
    }

    /// Whether the loop's name `_` holds the reference's logits until the next reference forward has returned
    /// (`lora_dpo_distributed.py:711`, `lora_dpo_single_device.py`, torchtune 0.6.1).
    pub(super) fn keeps_reference_logits(&self) -> bool {
        self.reference.is_some() && self.job.loss == Loss::Preference(LogProbs::Torchtune { halves: false })
    }

    /// What the phase that ends with the loss is called.
    pub(super) fn forward_ends_as(&self) -> &'static str {
        if self.reference.is_some() { "ref" } else { "fwd" }
    }

    /// Buffers of a second model.
    pub(super) fn set_up_reference(&mut self) {
        let Some(job) = self.reference.as_ref().filter(|own| own.first.is_some()).map(|own| own.job) else { return };
        let program = &mut self.run.eager.program;
        program.count_as(Some(Category::Reference));
        for bytes in reducer::buffers(job).0.into_iter().flat_map(|(_, sizes)| sizes) {
            program.alloc(Bytes(bytes), COMPUTE, Category::Buffer, "buffer");
        }
        program.count_as(None);
    }

    /// Policy and reference change places.
    fn exchange(&mut self) {
        let Some(mut other) = self.reference.take() else { return };
        std::mem::swap(&mut self.job, &mut other.job);
        std::mem::swap(&mut self.graphs, &mut other.graphs);
        std::mem::swap(&mut self.layout, &mut other.layout);
        std::mem::swap(&mut self.scopes, &mut other.scopes);
        std::mem::swap(&mut self.body, &mut other.body);
        other.running = !other.running;
        self.run.turn_to(if other.running { other.root } else { 0 });
        self.reference = Some(other);
    }

    /// Log-probabilities of the policy, then of the reference, then the loss. `from`: the first operator after the loss was handed
    /// the logits.
    pub(super) fn loss_over_pairs(&mut self, head: &mut Frame, from: usize, micro_batch: u32) {
        let graph = &self.graphs.head.graph;
        let at = loss(graph);
        self.run.eager.forward_ops(graph, head, from..at);
        let mut held = vec![];
        if self.reference.is_some() {
            self.phase_end("fwd", micro_batch);
            held = self.refer();
        }
        let graph = &self.graphs.head.graph;
        self.run.eager.forward_ops(graph, head, at..graph.ops.len());
        held.into_iter().for_each(|storage| self.run.eager.release(storage));
        if self.job.loss == Loss::Preference(LogProbs::Trl) {
            self.read_metrics_back();
        }
    }

    /// The reference's forward, and what of it is held until the loss has been computed.
    fn refer(&mut self) -> Vec<Storage> {
        self.exchange();
        self.run.eager.program.count_as(Some(Category::Reference));
        let (mut frames, _) = self.forward(None);
        let scope = self.run.eager.program.enter(self.scopes.head);
        let mut held = vec![];
        if let Some(mut head) = frames.head.take() {
            let (graph, from) = (&self.graphs.head.graph, self.graphs.head.loss_from);
            let (at, (logits, handed)) = (loss(graph), self.graphs.head.logits.clone());
            let eager = &mut self.run.eager;
            eager.forward_ops(graph, &mut head, from..handed);
            let named: Vec<Storage> = logits.iter().map(|&value| eager.hold(&head, value)).collect();
            eager.forward_ops(graph, &mut head, handed..at);
            held.extend(graph.ops[at].inputs.iter().filter_map(|&value| eager.take(&mut head, value)));
            if self.keeps_reference_logits() {
                let before = std::mem::replace(&mut self.kept, named);
                if before.is_empty() {
                    // The first micro-batch: what the step before left.
                    for &buffer in &self.kept_across {
                        self.run.eager.program.free(buffer);
                    }
                }
                before.into_iter().for_each(|storage| self.run.eager.release(storage));
            } else {
                named.into_iter().for_each(|storage| self.run.eager.release(storage));
            }
        }
        self.body_ended();
        self.run.eager.program.enter(scope);
        self.run.eager.program.count_as(None);
        self.run.eager.category = Category::Logits;
        self.exchange();
        held
    }

    /// What TRL's trainer logs of a loss: gathered from all ranks, and read back.
    fn read_metrics_back(&mut self) {
        let (world, ranks) = (self.run.communicators.world, self.job.data_ranks());
        let program = &mut self.run.eager.program;
        for _ in 0..if ranks > 1 { GATHERED } else { 0 } {
            let bytes = Bytes(DType::Fp32.bytes() * u64::from(ranks));
            program.collective(COMPUTE, Comm { kind: Collective::AllGather, group: world, bytes, dtype: DType::Fp32 });
        }
        for _ in 0..READ_BACK {
            let work = Work::HostCopy { bytes: Bytes(DType::Fp32.bytes()), to_host: true };
            program.launch(COMPUTE, "aten._local_scalar_dense", work, Dispatch::EagerForward);
            program.wait_for_host(COMPUTE);
        }
    }
}

/// The operator that makes the loss of log-probabilities.
fn loss(graph: &Graph) -> usize {
    let is_loss = |kind: OpKind| matches!(kind, OpKind::Preference(PreferenceOp::Loss(_)));
    graph.ops.iter().position(|op| is_loss(op.kind)).expect("a loss over pairs ends with its loss")
}

/// Names of the reference's modules.
fn scopes(program: &mut Builder, job: &TorchPlan) -> Scopes {
    let mut add = |name: &str| program.add_scope(format!("reference {name}"));
    Scopes {
        root: add("model"),
        embedding: add("tok_embeddings"),
        blocks: (0..job.model.layers.count()).map(|layer| add(&format!("layers.{layer}"))).collect(),
        head: add("norm, output"),
        optimizer: ScopeId::default(),
        metrics: ScopeId::default(),
    }
}
