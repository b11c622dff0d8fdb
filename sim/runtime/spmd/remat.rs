//! Rematerialisation: which tensors of a block's forward backward finds again, and where.
//!
//! What backward needs and does not find, it computes again from what it finds, and only that: the compiler drops the rest of
//! the second forward.

use super::block::{Block, Tensor};
use crate::plan::xla::{Keep, Policy};

impl Policy {
    /// Operators of a block that run again in backward.
    pub fn again(self, block: &Block) -> Vec<usize> {
        match self {
            Policy::None => vec![],
            Policy::Names(_) => block.again(|tensor| self.keep(block.tensors[tensor].name) != Keep::Remat),
        }
    }

    /// The same, and what makes the block's result.
    pub fn again_whole(self, block: &Block) -> Vec<usize> {
        match self {
            Policy::None => vec![],
            Policy::Names(_) => {
                let found = |tensor: Tensor| self.keep(block.tensors[tensor].name) != Keep::Remat;
                block.again_for(block.needed().into_iter().chain([block.tensors.len() - 1]), found)
            }
        }
    }

    /// What of a block is kept for backward, and where: what backward and operators that run again read. All else that the
    /// policy would keep, the compiler drops.
    pub fn kept(self, block: &Block) -> Vec<(Tensor, Keep)> {
        let mut read = block.needed();
        self.again(block).iter().for_each(|&at| read.extend(&block.ops[at].inputs));
        read.sort_unstable();
        read.dedup();
        let kept = read.into_iter().map(|tensor| (tensor, self.keep(block.tensors[tensor].name)));
        kept.filter(|(_, keep)| *keep != Keep::Remat).collect()
    }
}
