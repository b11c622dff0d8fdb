//! What a user of `fully_shard` sets.

use crate::program::DType;

/// Mixed precision (`MixedPrecisionPolicy`), with the type parameters are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct MixedPrecision {
    /// Type of the sharded parameters, which the optimizer updates.
    pub storage: DType,
    /// Type parameters are gathered and used in; none: as stored.
    pub param: Option<DType>,
    /// Type gradients are reduced in; none: the type parameters are used in.
    pub reduce: Option<DType>,
}

impl MixedPrecision {
    /// The type modules compute in.
    pub fn compute(&self) -> DType {
        self.param.unwrap_or(self.storage)
    }

    /// The type gradients are reduced in.
    pub fn reduce_dtype(&self) -> DType {
        self.reduce.unwrap_or(self.compute())
    }

    /// Whether parameters are cast before they are gathered.
    pub fn casts(&self) -> bool {
        self.compute() != self.storage
    }
}

/// `reshard_after_forward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Reshard {
    /// Free the full parameters after forward, gather them again before backward.
    Always,
    /// Keep the full parameters until backward.
    Never,
    /// Keep `1/N` of them between forward and backward: the gather before backward spans N ranks.
    To(u32),
}

/// Which modules are wrapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Wrap {
    /// For each block, its reshard policy if it is wrapped; none: its parameters belong to the root.
    pub blocks: Vec<Option<Reshard>>,
    /// Blocks that are one unit with others, list by list: each a module of one call (`fully_shard([…])`).
    pub lists: Vec<Vec<usize>>,
    /// Modules inside blocks that are units of their own.
    pub modules: Vec<Inner>,
    /// The embedding's policy if it is wrapped on its own.
    pub embedding: Option<Reshard>,
    /// The final norm's policy if it is wrapped on its own.
    pub norm: Option<Reshard>,
    /// The head's policy if it is wrapped: with the final norm, unless that is a unit of its own or the root's.
    pub head: Option<Reshard>,
    /// Whether the head's unit has the final norm, too.
    pub head_has_norm: bool,
    /// Whether token table, position table, final norm and head are each a unit, as llm-foundry marks its model's
    /// children (`_fsdp_wrap`); with a tied head the table's unit runs forward twice. Else the embedding's modules are
    /// one unit, and norm and head are.
    pub apart: bool,
    /// The root's policy. `fully_shard`'s default keeps the root's parameters between forward and backward.
    pub root: Reshard,
}

/// A module inside a block that is a unit of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Inner {
    /// The block.
    pub block: usize,
    /// The module's name in it, such as `feed_forward` or `attention.wq`.
    pub name: String,
    /// Its policy.
    pub reshard: Reshard,
}

impl Inner {
    /// Whether something is the module or a part of it, by its name in the block.
    pub fn has(&self, name: &str) -> bool {
        name.strip_prefix(self.name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl Wrap {
    /// All blocks under these policies, and nothing else.
    pub fn of_blocks(blocks: Vec<Option<Reshard>>, root: Reshard) -> Wrap {
        Wrap {
            blocks,
            lists: vec![],
            modules: vec![],
            embedding: None,
            norm: None,
            head: None,
            head_has_norm: true,
            apart: false,
            root,
        }
    }

    /// The numbers of ranks that modules keep their parameters on between forward and backward, where that is a part.
    pub fn post_forward(&self) -> Vec<u32> {
        let Wrap { blocks, modules, embedding, norm, head, root, .. } = self;
        let root = Some(*root);
        let policies = blocks.iter().chain([embedding, norm, head, &root]).flatten();
        let policies = policies.chain(modules.iter().map(|module| &module.reshard));
        policies.filter_map(|policy| if let Reshard::To(ranks) = policy { Some(*ranks) } else { None }).collect()
    }
}

/// Which of PyTorch's two implementations runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Version {
    /// `FullyShardedDataParallel`: one flat parameter per wrapped module.
    One(One),
    /// `fully_shard`: every parameter sharded on its rows.
    Two,
    /// Neither: one device holds the model as it is.
    Unsharded,
}

/// When FSDP1 gathers the unit that comes next in backward (`BackwardPrefetch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub enum BackwardPrefetch {
    /// Before the current unit's backward.
    #[default]
    Pre,
    /// After it.
    Post,
    /// When it is needed.
    None,
}

/// What only FSDP1 has. Its forward prefetch is one unit deep, whatever count is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct One {
    /// Whether the optimizer sees the original parameters as views, or the flat ones (`use_orig_params`).
    pub use_orig_params: bool,
    /// Prefetch in backward.
    pub backward_prefetch: BackwardPrefetch,
    /// Whether the host waits until an earlier unit is freed before it gathers another (`limit_all_gathers`).
    pub limit_all_gathers: bool,
    /// Whether a gradient that needs no padding is copied all the same, and the block it is reduced into filled with
    /// zeros: `F.pad` by nothing clones, and PyTorch 1.13 did not look.
    pub always_pads: bool,
}

impl Default for One {
    fn default() -> Self {
        One {
            use_orig_params: false,
            backward_prefetch: BackwardPrefetch::Pre,
            limit_all_gathers: true,
            always_pads: false,
        }
    }
}

/// Settings of `fully_shard` or its predecessor, and of the loop around it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Fsdp {
    /// The implementation.
    pub version: Version,
    /// Ranks over which parameters are sharded.
    pub shard: u32,
    /// Ranks over which shards are replicated (HSDP).
    pub replicate: u32,
    /// Wrapping.
    pub wrap: Wrap,
    /// Mixed precision.
    pub mixed_precision: MixedPrecision,
    /// Blocks that each block prefetches explicitly in forward (`set_modules_to_forward_prefetch`).
    pub forward_prefetch: usize,
    /// Blocks that each block prefetches explicitly in backward; 0: the implicit one.
    pub backward_prefetch: usize,
    /// Whether the model's ends prefetch, and are prefetched, too (torchtitan, where experts are spread over ranks).
    pub prefetches_ends: bool,
    /// Parameters that are sharded on their second dimension, by the ends of their names (`shard_placement_fn` with
    /// `Shard(1)`).
    pub second_dims: Vec<String>,
    /// Reduce-scatter inputs that may be in flight (`set_reduce_scatter_max_input_buffers`).
    pub reduce_scatter_buffers: usize,
    /// Whether parameters are gathered again for backward (`set_unshard_in_backward`).
    pub unshard_in_backward: bool,
    /// Parameters, gradients and optimizer state live on the host (`CPUOffloadPolicy`).
    pub cpu_offload: bool,
}

/// A setting the chosen implementation does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// `reshard_after_forward = N`.
    #[error("reshard_after_forward = {0} is a setting of fsdp2; fsdp1 reshards to all ranks or to none")]
    PartialReshard(u32),
    /// Explicit prefetch in backward.
    #[error("backward_prefetch of {0} blocks is a setting of fsdp2; fsdp1 takes \"pre\", \"post\" or \"none\"")]
    ExplicitPrefetch(usize),
    /// Keeping sharded parameters in backward.
    #[error("unshard_in_backward = false is a setting of fsdp2; remove it or choose fsdp2")]
    NoUnshardInBackward,
    /// Wrapping a table that is used twice on its own.
    #[error("units of single modules at the model's ends are a wrapping of fsdp1")]
    Apart,
}

/// Whether a name is the end of a parameter's: `wo`, `wo.weight` and `attention.wo` are of `attention.wo.weight`.
pub fn names_parameter(name: &str, parameter: &str) -> bool {
    let ends = |of: &str| of.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    !name.is_empty() && (ends(parameter) || parameter.strip_suffix(".weight").is_some_and(ends))
}

impl Fsdp {
    /// Whether a parameter is sharded on its second dimension.
    pub fn names_second(&self, parameter: &str) -> bool {
        self.second_dims.iter().any(|name| names_parameter(name, parameter))
    }

    /// Refuses what the chosen implementation does not have; to be asked before a program is compiled.
    pub fn check(&self) -> Result<(), Unsupported> {
        if !matches!(self.version, Version::One(_)) {
            return if self.wrap.apart { Err(Unsupported::Apart) } else { Ok(()) };
        }
        let Wrap { blocks, embedding, head, root, .. } = &self.wrap;
        for reshard in blocks.iter().chain([embedding, head, &Some(*root)]).flatten() {
            if let Reshard::To(ranks) = reshard {
                return Err(Unsupported::PartialReshard(*ranks));
            }
        }
        match (self.backward_prefetch, self.unshard_in_backward) {
            (0, true) => Ok(()),
            (0, false) => Err(Unsupported::NoUnshardInBackward),
            (blocks, _) => Err(Unsupported::ExplicitPrefetch(blocks)),
        }
    }
}
