//! One flat parameter (`FlatParamHandle`): its pieces, padding and shards.
//!
//! `shard = ⌈numel / ranks⌉`. With original parameters every piece starts at a multiple of 16 B in the compute type and
//! the sum is padded to a multiple of the ranks, so `numel` includes padding and the gradient needs none
//! (`_init_flat_param_and_metadata`); without, only the gathered storage and the reduce-scatter input are padded.

use crate::plan::torch::fsdp::{Fsdp, One};
use crate::program::{BufferId, DType};
use crate::runtime::fsdp::group::Group;

/// Alignment of each original parameter \[B\] (`_get_aligned_numel`).
const ALIGNMENT: u64 = 16;

/// A stretch of the flat parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The model's index of the parameter; none for padding.
    pub param: Option<usize>,
    /// Elements.
    pub elements: u64,
}

/// A flat parameter and where its data and gradient are.
#[derive(Debug)]
pub(super) struct Handle {
    /// Parameters and padding, in order.
    pub pieces: Vec<Piece>,
    /// Elements of the pieces together.
    pub numel: u64,
    /// Elements of one rank's shard.
    pub shard: u64,
    /// Ranks over which it is sharded.
    pub ranks: u32,
    /// The gathered storage (`_full_param_padded`).
    pub unsharded: Option<BufferId>,
    /// The shard in the compute type (`_mp_shard`), which without sharding is what modules read.
    pub low_precision: Option<BufferId>,
    /// The unsharded gradient, while it is accumulated or, without sharding, until it is zeroed.
    pub gradient: Option<(BufferId, DType)>,
    /// The reduced shard of the gradient.
    pub sharded_gradient: Option<BufferId>,
    /// Whether it was gathered ahead of its hook.
    pub prefetched: bool,
    /// Whether its views were made ahead of the forward of the unit before it.
    pub early_views: bool,
    /// Whether a forward is to come, so that a prefetch is not in vain.
    pub needs_forward: bool,
    /// Whether a backward is to come.
    pub needs_backward: bool,
    /// Its place among this pass's forwards.
    pub post_forward_index: Option<usize>,
}

impl Handle {
    /// The flat parameter of a group, at rest.
    pub fn new(group: &Group, config: &Fsdp, settings: One) -> Self {
        let mut pieces = vec![];
        let mut numel = 0;
        let pad = |to: u64, numel: &mut u64, pieces: &mut Vec<Piece>| {
            let elements = numel.next_multiple_of(to) - *numel;
            if elements > 0 {
                pieces.push(Piece { param: None, elements });
                *numel += elements;
            }
        };
        for param in &group.params {
            if settings.use_orig_params {
                pad(ALIGNMENT / config.mixed_precision.compute().bytes(), &mut numel, &mut pieces);
            }
            pieces.push(Piece { param: Some(param.index), elements: param.elements() });
            numel += param.elements();
        }
        if settings.use_orig_params {
            let ranks = if config.shard > 1 { config.shard } else { config.replicate };
            pad(u64::from(ranks), &mut numel, &mut pieces);
        }
        Handle {
            pieces,
            numel,
            shard: numel.div_ceil(u64::from(config.shard)),
            ranks: config.shard,
            unsharded: None,
            low_precision: None,
            gradient: None,
            sharded_gradient: None,
            prefetched: false,
            early_views: false,
            needs_forward: false,
            needs_backward: false,
            post_forward_index: None,
        }
    }

    /// Whether anything is gathered and scattered at all.
    pub fn is_sharded(&self) -> bool {
        self.ranks > 1
    }

    /// Elements of the gathered storage.
    pub fn padded(&self) -> u64 {
        self.shard * u64::from(self.ranks)
    }

    /// Elements of each parameter that fall into the first rank's shard, with the parameter's index.
    pub fn views(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let mut start = 0;
        self.pieces.iter().filter_map(move |piece| {
            let inside = piece.elements.min(self.shard.saturating_sub(start));
            start += piece.elements;
            piece.param.filter(|_| inside > 0).map(|param| (param, inside))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::ScopeId;
    use crate::runtime::fsdp::group::{Made, Narrow, ShardedParam};
    use crate::runtime::fsdp::{MixedPrecision, Reshard, Version, Wrap};
    use crate::runtime::optimizer::{Role, Shape};

    fn handle(shapes: &[(u64, u64)], ranks: u32, use_orig_params: bool) -> Handle {
        let settings = One { use_orig_params, ..One::default() };
        let params = shapes
            .iter()
            .enumerate()
            .map(|(index, &(rows, cols))| ShardedParam {
                index,
                rows,
                cols,
                second: false,
                gradient: Made::Own,
                narrow: Narrow::No,
                shape: Shape::matrix(rows, cols),
                role: Role::Matrix,
                trained: true,
                stored: crate::model::graph::Stored::Plain,
            })
            .collect();
        let config = Fsdp {
            version: Version::One(settings),
            shard: ranks,
            replicate: 1,
            wrap: Wrap::of_blocks(vec![], Reshard::Always),
            mixed_precision: MixedPrecision { storage: DType::Fp32, param: Some(DType::Bf16), reduce: None },
            forward_prefetch: 0,
            backward_prefetch: 0,
            prefetches_ends: false,
            second_dims: vec![],
            reduce_scatter_buffers: 1,
            unshard_in_backward: true,
            cpu_offload: false,
        };
        Handle::new(&Group::new(ScopeId::default(), params, Reshard::Always), &config, settings)
    }

    #[test]
    fn a_flat_parameter_is_cut_across_parameters_and_padded_at_its_end() {
        let flat = handle(&[(5, 2), (7, 1)], 4, false);
        assert_eq!((flat.numel, flat.shard, flat.padded()), (17, 5, 20));
        assert_eq!(flat.views().collect::<Vec<_>>(), [(0, 5)]);
    }

    #[test]
    fn original_parameters_start_at_16_bytes_and_need_no_padding_of_the_gradient() {
        let flat = handle(&[(5, 2), (7, 1)], 4, true);
        // 10 elements, 6 of padding to the eighth bf16 number, 7, and 1 up to a multiple of 4 ranks.
        assert_eq!((flat.numel, flat.shard, flat.padded()), (24, 6, 24));
        assert_eq!(handle(&[(5, 2), (7, 1)], 1, true).views().collect::<Vec<_>>(), [(0, 10), (1, 7)]);
    }
}
