//! A step being written: what has been made so far, and the instructions that all of its parts share.

use std::ops::Range;

use super::moves::Moves;
use super::shards::Among;
use super::turns::turns;
use crate::model::layer::KindId;
use crate::plan::xla::Pipeline;
use crate::plan::xla::XlaPlan;
use crate::plan::xla::{Keep, Policy};
use crate::program::{Category, Collective, Comm, DType, GroupId, MemoryKind, ScopeId, Work};
use crate::runtime::spmd::block::{Block, Named, Tensor};
use crate::runtime::spmd::room::Room;
use crate::runtime::spmd::tape::{At, FROM_HOST, TO_HOST, Tape, Value};
use crate::units::Bytes;

/// Bytes of a number in compute.
pub(super) const HALF: u64 = 2;
/// Bytes of a number in fp32.
pub(super) const FULL: u64 = 4;

/// Communicators.
pub(super) struct Groups {
    pub(super) fsdp: GroupId,
    pub(super) expert_fsdp: GroupId,
    pub(super) expert: GroupId,
    pub(super) tensor: GroupId,
    pub(super) context: GroupId,
    pub(super) data: GroupId,
    pub(super) data_fsdp: GroupId,
    pub(super) stage: GroupId,
    pub(super) stage_data: GroupId,
    pub(super) batch: GroupId,
}

/// Regions.
pub(super) struct Scopes {
    pub(super) embedding: ScopeId,
    pub(super) layers: Vec<ScopeId>,
    pub(super) head: ScopeId,
    pub(super) optimizer: ScopeId,
}

/// Blocks that are alike: layers of one kind, all in a stage of a pipeline or none.
pub(super) struct Variant {
    pub(super) block: Block,
    /// What of it is kept for backward: tensor, and where.
    pub(super) kept: Vec<(Tensor, Keep)>,
    /// Operators that run again.
    pub(super) again: Vec<usize>,
    /// The same where the layer behind it runs again, too, and reads its result.
    pub(super) whole: Vec<usize>,
}

/// Whose a buffer is that is kept for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// All iterations' of a pipeline.
    Iterations,
    /// All blocks' of a loop.
    Blocks,
    /// One block's, where blocks are written out.
    Block(usize),
}

/// A weight gradient whose input is made after the gradient of that input.
pub(super) struct Late {
    /// Inputs and outputs.
    pub(super) size: (u64, u64),
    pub(super) tokens: u64,
    pub(super) among: Among,
    /// What it reads besides.
    pub(super) reads: Vec<Value>,
}

/// A matmul that waits: the gradient of a mask's weights.
pub(super) struct LateMasks {
    /// Rows, columns, and what is summed over.
    pub(super) size: (u64, u64, u64),
    pub(super) reads: Vec<Value>,
    pub(super) gradient: Value,
}

/// A step being written.
pub(super) struct Step<'j> {
    /// What is run: all of it, or of a micro-batch, in a pipeline's loop.
    pub(super) job: &'j XlaPlan,
    /// The other of both.
    pub(super) other: Option<&'j XlaPlan>,
    /// The loop of the pipeline that is being written.
    pub(super) staged: Option<Pipeline>,
    /// All weights of a stage, where they are gathered once.
    pub(super) gathered: Option<Value>,
    /// The block that is being written, and weights that its loop finds gathered, by block and place.
    pub(super) layer: usize,
    pub(super) hoisted: Vec<((usize, usize), Value)>,
    pub(super) room: Room,
    pub(super) groups: Groups,
    pub(super) scopes: Scopes,
    pub(super) tape: Tape,
    pub(super) variants: Vec<Variant>,
    /// The variant of each block, those of a stage first.
    pub(super) variant_of: Vec<usize>,
    /// Layers behind the pipeline's that one turn of the scan runs.
    pub(super) turns: Vec<Range<usize>>,
    /// All blocks' weights in bf16, this chip's shards: made once, used by both loops.
    pub(super) shards: Option<Value>,
    /// What forward kept in HBM, by whose it is and by name or place.
    pub(super) stacks: Vec<((Whose, Tensor), Value)>,
    /// All blocks' gradients, this chip's shards, in the loop back.
    pub(super) gradients: Option<Value>,
    /// Gradients that the optimizer reads: all blocks', and each table's.
    pub(super) tables: Vec<Value>,
    /// The head's gradient where the loss was taken in parts, whole until blocks' backward is over.
    pub(super) whole_head: Option<Value>,
    /// What the head's gradient is made of, where it waits for blocks' backward.
    pub(super) late_head: Option<[Value; 2]>,
    /// Logits whose loss has not been summed, unless they were given up, and what they were made from.
    pub(super) late_loss: Option<(Option<Value>, Value)>,
    /// What the gradient of the last norm's scale is made of, where that waits.
    pub(super) late_scale: Option<[Value; 2]>,
    /// Reductions whose result is not stored yet.
    pub(super) pending: Vec<(Value, u64)>,
    /// What is on its way to matmuls, and from them, on GPUs.
    pub(super) moves: Moves,
    /// A weight gradient that waits for its input.
    pub(super) late: Option<Late>,
    /// Gradients of sorted experts' weights, that wait for those of their rows.
    pub(super) late_experts: Vec<Late>,
    /// Results of experts that are computed again and on their way home.
    pub(super) going_home: Vec<Value>,
    /// The gradient of a mask's weights, that waits for experts' backward.
    pub(super) late_masks: Option<LateMasks>,
    /// Keys and values of whole sequences, which attention that ran again has gathered and its backward reads.
    pub(super) sequences: Vec<Value>,
    /// Biases of experts that ran again, a row for each copy of a token.
    pub(super) bias_rows: Vec<Value>,
    /// Each row's log-sum-exp, of attention that ran again.
    pub(super) row_sums: Option<Value>,
    /// Words sorted, and where each stood, or their one-hot rows: for the embedding's gradient.
    pub(super) sorted_words: Option<Value>,
    /// The weight of the matmul that makes a gate's gradients in its own kernel.
    pub(super) gates_weight: Option<Value>,
    /// Whether a linear of a block is being written.
    pub(super) linear: bool,
    /// Gradients of the micro-batches so far, where there are several.
    pub(super) sums: Option<Value>,
    /// Embedding and head in bf16, cast once for all micro-batches.
    pub(super) cast_tables: Option<Value>,
    /// Where the last block's backward began: copies for the next one start then.
    pub(super) began: Vec<At>,
}

impl<'j> Step<'j> {
    pub(super) fn new(
        (job, micro): (&'j XlaPlan, Option<&'j XlaPlan>),
        room: Room,
        groups: Groups,
        scopes: Scopes,
    ) -> Self {
        let staged = job.pipeline.map_or(0, |all| all.layers_per_stage as usize);
        let kinds = (0..scopes.layers.len()).map(|at| (at < staged, job.model.layers.id(at as u64)));
        let mut seen: Vec<(bool, KindId)> = vec![];
        let mut variant_of = vec![];
        for kind in kinds {
            let at = seen.iter().position(|known| *known == kind).unwrap_or_else(|| {
                seen.push(kind);
                seen.len() - 1
            });
            variant_of.push(at);
        }
        let alone = staged.min(variant_of.len());
        let together = job.scan && job.gpu().is_none() && job.torch.is_none() && job.remat != Policy::None;
        let turns = match together {
            true => turns(&variant_of[alone..]).into_iter().map(|turn| turn.start + alone..turn.end + alone).collect(),
            false => (alone..variant_of.len()).map(|layer| layer..layer + 1).collect(),
        };
        let of = |staged: bool| micro.filter(|_| staged).unwrap_or(job);
        let variants = seen.into_iter().map(|(staged, kind)| Variant::new(of(staged), kind)).collect();
        Step {
            job,
            other: micro,
            staged: None,
            gathered: None,
            layer: 0,
            hoisted: vec![],
            room,
            groups,
            scopes,
            tape: Tape::new(),
            variants,
            variant_of,
            turns,
            shards: None,
            stacks: vec![],
            gradients: None,
            tables: vec![],
            whole_head: None,
            late_head: None,
            late_loss: None,
            late_scale: None,
            pending: vec![],
            moves: Moves::default(),
            late: None,
            late_experts: vec![],
            going_home: vec![],
            late_masks: None,
            sequences: vec![],
            bias_rows: vec![],
            row_sums: None,
            sorted_words: None,
            gates_weight: None,
            linear: false,
            sums: None,
            cast_tables: None,
            began: vec![],
        }
    }

    /// Blocks that are in no pipeline.
    pub(super) fn outside(&self) -> Range<usize> {
        self.stage_blocks().end..self.scopes.layers.len()
    }

    /// Blocks of a stage.
    pub(super) fn stage_blocks(&self) -> Range<usize> {
        0..self.job.pipeline.map_or(0, |all| all.layers_per_stage as usize)
    }

    /// Sets of weights that a chip has of a block.
    pub(super) fn times(&self, layer: usize) -> u64 {
        self.job.pipeline.filter(|_| self.stage_blocks().contains(&layer)).map_or(1, |all| all.repeats)
    }

    /// How often the loop that is being written runs a block.
    pub(super) fn runs(&self) -> u64 {
        self.staged.map_or(self.outside().len() as u64, |all| all.iterations() * all.layers_per_stage)
    }

    /// Who has other tokens and the same shards of what is being written, and how many: in the pipeline replicas of a stage,
    /// outside of it all stages.
    pub(super) fn replicas(&self) -> (u32, GroupId) {
        let mesh = self.job.mesh;
        match self.staged {
            Some(_) => (mesh.replicas(), self.groups.data),
            None => (mesh.replicas() * mesh.stages(), self.groups.stage_data),
        }
    }

    /// Whether the embedding's table is gathered, and its gradient all-reduced. Else all tokens are looked up in each chip's columns,
    /// and tokens and columns change places. Stages of a pipeline have other tokens and the same columns; without them the
    /// partitioner takes what moves less (openxla/xla, `xla/service/spmd/gather_scatter_handler.cc`, which orders its ways by cost):
    /// a row for each word, or a row for each token of a chip.
    pub(super) fn gathers_table(&self) -> bool {
        let fewer = self.tokens() > self.job.model.vocab;
        self.job.mesh.shards() > 1 && (self.job.mesh.stages() > 1 || (fewer && self.job.gpu().is_none()))
    }

    /// Whether weights of what is being written stay gathered through the loop, and gradients whole.
    pub(super) fn gathered_once(&self) -> bool {
        self.staged.is_some_and(|all| all.gather_once) && self.job.mesh.shards() > 1
    }

    /// Bytes of a number of parameters and of their gradients.
    pub(super) fn full(&self) -> u64 {
        if self.job.half_weights { HALF } else { FULL }
    }

    pub(super) fn tokens(&self) -> u64 {
        self.job.own_tokens()
    }

    /// Bytes of what a chip holds between the halves of a block.
    pub(super) fn activation(&self) -> u64 {
        self.job.residual() * self.job.stream() * self.tokens()
    }

    /// Bytes of a tensor.
    pub(super) fn bytes(tensor: Named) -> u64 {
        tensor.element * tensor.numbers()
    }

    /// A kernel bounded by memory.
    pub(super) fn memory(kind: MemoryKind, read: u64, written: u64) -> Work {
        Work::Memory { kind, read: Bytes(read), written: Bytes(written) }
    }

    pub(super) fn comm(&self, kind: Collective, group: GroupId, bytes: u64) -> Comm {
        Comm { kind, group, bytes: Bytes(bytes), dtype: DType::Bf16 }
    }

    /// Copies a tensor to the host beside what follows.
    pub(super) fn send_to_host(&mut self, value: Value, bytes: u64) {
        let work = Work::HostCopy { bytes: Bytes(bytes), to_host: true };
        self.tape.copy(TO_HOST, work, (&[value], &[]), vec![]);
    }

    /// Copies a tensor back, from when `after` is over.
    pub(super) fn fetch_from_host(&mut self, bytes: u64, after: Vec<At>) -> Value {
        let value = self.tape.value("from host", bytes, Category::Activation);
        let work = Work::HostCopy { bytes: Bytes(bytes), to_host: false };
        self.tape.copy(FROM_HOST, work, (&[], &[value]), after);
        value
    }
}

impl Variant {
    /// Blocks of a kind of layer.
    fn new(job: &XlaPlan, kind: KindId) -> Variant {
        let block = Block::of(job, &job.model.layers.kinds()[kind.index()]);
        let remat = if job.merges_blocks() { Policy::None } else { job.remat };
        let (mut kept, again) = (remat.kept(&block), remat.again(&block));
        // What is cheap is made again within what reads it, but where a loop over windows finds it in memory.
        if remat == Policy::None && !job.scan && (job.merges_blocks() || !job.in_memory(false)) {
            kept.retain(|(tensor, _)| !block.ops.iter().any(|op| op.output == *tensor && op.is_fused()));
        }
        let whole = remat.again_whole(&block);
        Variant { block, kept, again, whole }
    }
}
