//! One parameter group: the parameters that are gathered and reduced together.

use crate::model::graph::Stored;
use crate::plan::torch::fsdp::{MixedPrecision, Reshard};
use crate::program::{BufferId, DType, EventId, GroupId, ScopeId};
use crate::runtime::optimizer::param::{Owned, Role, Shape};

/// A parameter sharded on its rows, padded to a multiple of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardedParam {
    /// Index of the parameter in the model.
    pub index: usize,
    /// Dimension 0.
    pub rows: u64,
    /// All other dimensions together.
    pub cols: u64,
    /// Whether it is sharded on its second dimension, which comes as `rows`: parts are copied into place after they are
    /// gathered, and gradients out of it before they are reduced.
    pub second: bool,
    /// What backward makes of its gradient.
    pub gradient: Made,
    /// Whether it is gathered and used in fp8.
    pub narrow: Narrow,
    /// Its dimensions.
    pub shape: Shape,
    /// What it is for.
    pub role: Role,
    /// Whether it is trained: else it has no gradient, and the optimizer does not see it.
    pub trained: bool,
    /// How it is stored.
    pub stored: Stored,
}

/// Whether a shard is cast to fp8 before it is gathered (`fsdp_pre_all_gather` of torchao's weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    /// It is not.
    No,
    /// With a scale that was found after the optimizer's step.
    Scaled,
    /// With a scale that is found then.
    Unscaled,
}

/// What backward makes of a parameter's gradient, where tensor-parallel ranks share the model. FSDP brings it into the
/// parameter's own placement before it reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The gradient of what the rank holds.
    Own,
    /// A partial sum over the ranks (norms under sequence parallelism).
    Partial,
    /// The gradient of the whole parameter, of which the rank holds one of so many parts (an embedding's table).
    Whole(u64),
}

impl ShardedParam {
    /// Elements of the whole parameter.
    pub fn elements(&self) -> u64 {
        self.rows * self.cols
    }

    /// Elements of one rank's padded shard (`_get_dim0_padded_size`).
    pub fn padded_shard(&self, ranks: u32) -> u64 {
        self.rows.div_ceil(u64::from(ranks)) * self.cols
    }

    /// The parameter and one rank's padded shard of it, as the optimizer sees them.
    pub fn stepped(&self, (ranks, group): (u32, GroupId)) -> Owned {
        let mut shard = self.shape;
        let Shape { matrices, rows, cols } = &mut shard;
        let dim = match (self.role == Role::Expert, self.second) {
            (true, false) => matrices,
            (true, true) | (false, false) => rows,
            (false, true) => cols,
        };
        let known = *dim == self.rows;
        *dim = self.rows.div_ceil(u64::from(ranks));
        let shard = if known { shard } else { Shape::vector(self.padded_shard(ranks)) };
        Owned { shape: self.shape, shard, role: self.role, over: (ranks > 1).then_some(group) }
    }

    /// Bytes of an element as it is gathered and used.
    pub fn gathered(&self, precision: &MixedPrecision) -> u64 {
        if self.narrow != Narrow::No { DType::Fp8.bytes() } else { precision.compute().bytes() }
    }

    /// Elements the first rank really owns.
    pub fn owned(&self, ranks: u32) -> u64 {
        self.rows.div_ceil(u64::from(ranks)).min(self.rows) * self.cols
    }
}

/// Where a group's parameters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// One shard per rank.
    Sharded,
    /// Whole on every rank.
    Unsharded,
    /// A larger shard kept between forward and backward.
    ShardedPostForward,
}

/// What the group is doing (`TrainingState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Training {
    /// Between passes.
    Idle,
    /// In forward.
    Forward,
    /// Before or in backward.
    PreBackward,
    /// Backward done.
    PostBackward,
}

/// An all-gather whose output has not been copied out.
#[derive(Clone, Copy, Debug)]
pub struct AllGatherResult {
    /// The output buffer; none with one rank, where nothing is gathered.
    pub output: Option<BufferId>,
    /// Recorded behind the collective.
    pub event: EventId,
}

/// Which of its module's groups a group is (`shard_placement_fn` with meshes of its own for some parameters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The only one.
    #[default]
    Alone,
    /// The first of two, whose backward ends last.
    First,
    /// The second of two.
    Second,
}

/// A parameter group.
#[derive(Debug)]
pub struct Group {
    /// Module name.
    pub scope: ScopeId,
    /// Parameters in registration order.
    pub params: Vec<ShardedParam>,
    /// What happens after forward.
    pub reshard: Reshard,
    /// Which of its module's groups it is.
    pub place: Place,
    /// The ranks that its parameters are sharded over, where they are not all that share the model.
    pub over: Option<(u32, GroupId)>,
    /// Where the parameters are.
    pub state: State,
    /// What the group is doing.
    pub training: Training,
    pub(super) all_gather: Option<AllGatherResult>,
    pub(super) unsharded: Vec<BufferId>,
    pub(super) post_forward: Vec<BufferId>,
    pub(super) reshard_event: Option<EventId>,
    pub(super) post_forward_indices: Vec<usize>,
    pub(super) post_reduce: Option<EventId>,
    pub(super) all_reduce: Option<(BufferId, EventId)>,
    /// Sum of the reduce-scatters that no all-reduce has followed yet (`_partial_reduce_output`).
    pub(super) partial: Option<BufferId>,
    /// The rank's shards of the gradients, once reduced: a buffer for each reduction, and the first parameter in it.
    pub sharded_gradients: Vec<(usize, BufferId)>,
    /// Whether the gradient has arrived on the host.
    pub offloaded_gradient: bool,
}

impl Group {
    /// A group at rest.
    pub fn new(scope: ScopeId, params: Vec<ShardedParam>, reshard: Reshard) -> Self {
        Group {
            scope,
            params,
            reshard,
            place: Place::Alone,
            over: None,
            state: State::Sharded,
            training: Training::Idle,
            all_gather: None,
            unsharded: vec![],
            post_forward: vec![],
            reshard_event: None,
            post_forward_indices: vec![],
            post_reduce: None,
            all_reduce: None,
            partial: None,
            sharded_gradients: vec![],
            offloaded_gradient: false,
        }
    }

    /// One of a module's two groups, sharded over ranks of its own where it says some.
    pub fn of_two(self, place: Place, over: Option<(u32, GroupId)>) -> Self {
        Group { place, over, ..self }
    }

    /// Elements of one rank's padded shard of the whole group.
    pub fn padded_shard(&self, ranks: u32) -> u64 {
        self.params.iter().map(|param| param.padded_shard(ranks)).sum()
    }

    /// Bytes gathered for the group.
    pub fn gathered_bytes(&self, ranks: u32, precision: &MixedPrecision) -> u64 {
        let shard = |param: &ShardedParam| param.padded_shard(ranks) * param.gathered(precision);
        self.params.iter().map(shard).sum::<u64>() * u64::from(ranks)
    }

    /// The type a gather is of: bytes, if its parameters' types differ.
    pub fn gathered_dtype(&self, precision: &MixedPrecision) -> DType {
        if self.params.iter().any(|param| param.narrow != Narrow::No) { DType::Fp8 } else { precision.compute() }
    }
}
