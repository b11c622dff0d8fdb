//! Named axes, and what is sharded over them.
//!
//! MaxText's rules (`configs/base.yml`, `logical_axis_rules`): the embedding dimension of a weight lies on `fsdp` and
//! `fsdp_transpose` (of an MLP's weights, its width on `fsdp_transpose`), and on `context`; heads and MLP width on `tensor`; a
//! norm's weight on `tensor` alone, so data-parallel chips all hold it. Batches lie on `data`, `fsdp`, `fsdp_transpose` and
//! `expert`, sequences on `context`. Experts lie on `expert`, and on the others as other weights do; those lie on it with
//! their embedding dimension. Blocks of a pipeline lie on `stage`; what is outside of it takes that axis for one more of data
//! (`activation_embed_and_logits_batch`). With a pipeline, `stage` comes before `data` (`configs/types.py`).
//!
//! Other rules name axes otherwise; what counts is what lies on them. `expert` may hold experts and nothing else
//! ([`Mesh::experts_only`]): then its chips have the same tokens and the same other weights.

use crate::program::Group;

/// Sizes of the axes, over ICI unless named otherwise; ranks in this order, `tensor` fastest. MaxText has `expert` inside
/// `tensor`, which differs where both are larger than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Mesh {
    /// `dcn_data_parallelism`: replicas of the slice, over DCN.
    pub dcn_data: u32,
    /// `dcn_pipeline_parallelism`: stages of a pipeline that are slices.
    pub dcn_pipeline: u32,
    /// `ici_pipeline_parallelism`: stages of a pipeline within a slice.
    pub pipeline: u32,
    /// `ici_data_parallelism`: replicas in the slice.
    pub data: u32,
    /// `fsdp`, over ICI and DCN.
    pub fsdp: u32,
    /// `fsdp_transpose`, over both.
    pub fsdp_transpose: u32,
    /// `context`, over both: chips that share a sequence, and shard weights besides.
    pub context: u32,
    /// `expert`, over both: chips that share experts, and shard other weights besides.
    pub expert: u32,
    /// `tensor`, over both.
    pub tensor: u32,
    /// Slices that the last five lie over: `dcn_fsdp_parallelism` and its like.
    pub across: Across,
    /// Whether `expert` holds experts and nothing else.
    pub experts_only: bool,
}

/// Slices that axes inside of replicas lie over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Across {
    /// `dcn_fsdp_parallelism`.
    pub fsdp: u32,
    /// `dcn_fsdp_transpose_parallelism`.
    pub fsdp_transpose: u32,
    /// `dcn_context_parallelism`.
    pub context: u32,
    /// `dcn_expert_parallelism`.
    pub expert: u32,
    /// `dcn_tensor_parallelism`.
    pub tensor: u32,
}

impl Across {
    /// One slice.
    pub const ONE: Across = Across { fsdp: 1, fsdp_transpose: 1, context: 1, expert: 1, tensor: 1 };

    /// Slices.
    pub fn slices(self) -> u32 {
        self.fsdp * self.fsdp_transpose * self.context * self.expert * self.tensor
    }
}

impl Mesh {
    /// One chip.
    pub const ONE: Mesh = Mesh {
        dcn_data: 1,
        dcn_pipeline: 1,
        pipeline: 1,
        data: 1,
        fsdp: 1,
        fsdp_transpose: 1,
        context: 1,
        expert: 1,
        tensor: 1,
        across: Across::ONE,
        experts_only: false,
    };

    /// Chips.
    pub fn ranks(self) -> u32 {
        self.data_ranks() * self.context * self.alike()
    }

    /// Chips that have the same tokens: those of `tensor`, and of `expert` where it holds nothing else.
    pub fn alike(self) -> u32 {
        self.tensor * if self.experts_only { self.expert } else { 1 }
    }

    /// Chips of the axis of experts that have tokens, and shards of other weights, of their own.
    fn expert_data(self) -> u32 {
        if self.experts_only { 1 } else { self.expert }
    }

    /// Groups of chips that have data of their own: those of all stages do, before the pipeline and behind it.
    pub fn data_ranks(self) -> u32 {
        self.dcn_data * self.stages() * self.data * self.fsdp * self.fsdp_transpose * self.expert_data()
    }

    /// Stages of the pipeline.
    pub fn stages(self) -> u32 {
        self.dcn_pipeline * self.pipeline
    }

    /// Chips that have the same shards of a stage's weights, and other tokens.
    pub fn replicas(self) -> u32 {
        self.dcn_data * self.data
    }

    /// Chips that a weight's embedding dimension is sharded over, and that gather it.
    pub fn shards(self) -> u32 {
        self.fsdp * self.fsdp_transpose * self.context * self.expert_data()
    }

    /// Those of them that the embedding dimension of experts is sharded over.
    pub fn expert_shards(self) -> u32 {
        self.shards() / self.expert_data()
    }

    /// Sizes of the axes within a slice, outermost first, where no sequence is shared.
    pub fn in_slice(self) -> [u32; 6] {
        let [pipeline, data, fsdp, transpose, context, expert, tensor] = self.laid();
        [pipeline, data, fsdp, transpose * context, expert, tensor]
    }

    /// All axes but those of a pipeline and of replicas over slices.
    pub fn axes(self) -> [u32; 6] {
        [self.data, self.fsdp, self.fsdp_transpose, self.context, self.expert, self.tensor]
    }

    /// All of a slice.
    pub fn laid(self) -> [u32; 7] {
        let over = self.across;
        [
            self.pipeline,
            self.data,
            self.fsdp / over.fsdp,
            self.fsdp_transpose / over.fsdp_transpose,
            self.context / over.context,
            self.expert / over.expert,
            self.tensor / over.tensor,
        ]
    }

    /// Who gathers weights and scatters their gradients.
    pub(crate) fn fsdp_group(self) -> Group {
        Group::new("fsdp", self.shards(), self.alike())
    }

    /// Who holds the parts of a sequence.
    pub(crate) fn context_group(self) -> Group {
        Group::new("context", self.context, self.expert * self.tensor)
    }

    /// Who gathers an expert's weights and scatters their gradients.
    pub(crate) fn expert_fsdp_group(self) -> Group {
        Group::new("expert_fsdp", self.expert_shards(), self.expert * self.tensor)
    }

    /// Who has different experts, and sends tokens to one another.
    pub(crate) fn expert_group(self) -> Group {
        Group::new("expert", self.expert, self.tensor)
    }

    /// Who has other tokens, or other parts of a sequence, on all slices.
    pub(crate) fn batch_group(self) -> Group {
        Group::new("batch", self.ranks() / self.alike(), self.alike())
    }

    /// Who holds the parts of a head or of an MLP's width.
    pub(crate) fn tensor_group(self) -> Group {
        Group::new("tensor", self.tensor, 1)
    }

    /// Who adds up sharded gradients: replicas in a slice and across slices. With a pipeline they are one or the other.
    pub(crate) fn data_group(self) -> Group {
        let between = if self.data > 1 { 1 } else { self.stages() };
        Group::new("data", self.replicas(), between * self.shards() * self.alike())
    }

    /// Who has other tokens of a stage, in a slice, where no sequence is shared.
    pub(crate) fn data_fsdp_group(self) -> Group {
        Group::new("data_fsdp", self.data * self.shards(), self.alike())
    }

    /// Who sends a stage's results to the next, and the last to the first.
    pub(crate) fn stage_group(self) -> Group {
        Group::new("stage", self.stages(), self.data * self.shards() * self.alike())
    }

    /// Who adds up gradients of what lies on no stage.
    pub(crate) fn stage_data_group(self) -> Group {
        Group::new("stage_data", self.stages() * self.replicas(), self.shards() * self.alike())
    }
}
