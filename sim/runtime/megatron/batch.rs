//! What a micro-batch reads, besides what the stage before sends.

use crate::model::graph::Dims;
use crate::runtime::eager::{Eager, Storage};

/// The data loader's part of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) tokens: Storage,
    pub(super) labels: Storage,
    pub(super) positions: Storage,
    pub(super) mask: Storage,
    pub(super) loss_mask: Storage,
}

impl Batch {
    /// Tokens, labels and positions (8 B each), the attention mask of each sequence of `seq` tokens (1 B for each pair), and
    /// the loss mask in fp32. Of ranks that share a sequence each has its tokens' rows.
    pub(super) fn read(eager: &mut Eager, d: Dims, seq: u64) -> Batch {
        let mut made = |(bytes, name)| eager.storage(bytes, name);
        let [tokens, labels, positions, mask, loss_mask] = Batch::sizes(d, seq);
        Batch {
            tokens: made(tokens),
            labels: made(labels),
            positions: made(positions),
            mask: made(mask),
            loss_mask: made(loss_mask),
        }
    }

    /// Bytes and names of its parts.
    pub(super) fn sizes(d: Dims, seq: u64) -> [(u64, &'static str); 5] {
        [
            (8 * d.tokens(), "tokens"),
            (8 * d.tokens(), "labels"),
            (8 * d.tokens(), "position_ids"),
            (d.tokens() * seq, "attention_mask"),
            (4 * d.tokens(), "loss_mask"),
        ]
    }

    /// All of it.
    pub(super) fn all(self) -> [Storage; 5] {
        [self.tokens, self.labels, self.positions, self.mask, self.loss_mask]
    }
}
