//! What a backward of attention costs that adds up the gradient of queries in one order (`torch.use_deterministic_algorithms`).
//!
//! - FlashAttention 2 gives each of g = ceil(SMs / (B·N)) blocks of a head a copy of the gradient of its own and sums the copies
//!   (`csrc/flash_attn/src/flash_bwd_launch_template.h`, `gridDimx`). A block that wants a whole SM for keys from end to end makes
//!   g·B·N of them, in whole waves: with 32 heads on 132 SMs 160 blocks, in two waves, take 1.65 times as long as 132 would. The zeros and the sum
//!   are the runtime's (`runtime/eager/accumulator.rs`).
//! - FlashAttention 3 waits for its turn: 2.900 over 2.391 ms since September 2025, causal, head dimension 128 on H100
//!   (Dao-AILab/flash-attention#1893; 3.804 ms before).
//! - cuDNN's factors are in a profile where they were measured (`in_order`; attention_cudnn.csv, Blackwell).
//! - FlexAttention writes each gradient from one block: its backward is the same (`torch/_inductor/kernel/flex`).

use super::{Attention, Backend};
use crate::cost::basis::{Basis, Cost};
use crate::program::AttentionShape;

/// Keys of a block of FlashAttention 2's backward at head dimensions of 128 and less: 128 (`run_mha_bwd_hdim*`).
const KEYS: u64 = 128;

/// FlashAttention 3: 2.900 over 2.391 ms.
const FLASH3: f64 = 2.900 / 2.391;

/// cuDNN at head dimensions of 64 and less, where a profile's kernels are of wider heads: GB200, a window of 128
/// (attention_cudnn.csv, five sequences from 2,048 to 32,768).
const CUDNN_64: f64 = 1.295;

/// cuDNN where nobody measured it: between 1.0 and 1.3 on Blackwell. Assumed.
const CUDNN: f64 = 1.15;

/// Half-width of an 80 % interval around what was not measured on this chip at this shape. Assumed.
const DOUBT: f64 = 0.15;

/// Copies of the gradient of queries in FlashAttention 2's deterministic backward.
pub fn copies(processors: u64, batch: u64, heads: u64) -> u64 {
    processors.div_ceil((batch * heads).max(1)).max(1)
}

/// Time of FlashAttention 2's deterministic backward over the other's on a device with this many processors: one at least.
pub fn waves(processors: u64, shape: &AttentionShape) -> f64 {
    let heads = (shape.batch * shape.heads).max(1);
    let (split, blocks) = (copies(processors, shape.batch, shape.heads), shape.keys.div_ceil(KEYS).max(1));
    // Blocks of a head that have keys, the waves they come in, and the keys of the longest.
    let running = heads * split.min(blocks);
    let steps = running.div_ceil(processors.max(1)) * blocks.div_ceil(split);
    let whole = (blocks * heads).div_ceil(processors.max(1));
    (steps as f64 / whole as f64).max(1.0)
}

impl Attention {
    /// A backward's cost where gradients are added up in one order.
    pub(in crate::cost) fn in_order(&self, backend: Backend, shape: &AttentionShape, cost: Cost) -> Cost {
        let (factor, spread, basis) = match backend {
            Backend::Flash2 => (waves(self.processors as u64, shape), DOUBT, Basis::Extrapolated),
            Backend::Flash3 => (FLASH3, DOUBT, Basis::Extrapolated),
            Backend::Cudnn => match self.nearest((backend, None), true, shape).0.in_order {
                Some(_) if shape.head_dim <= 64 => (CUDNN_64, 0.05, Basis::Extrapolated),
                Some(factor) => (factor, 0.05, Basis::Extrapolated),
                None => (CUDNN, DOUBT, Basis::Assumed),
            },
            Backend::Flex => return cost,
            // Refused before: nobody has measured them.
            Backend::Flash1 | Backend::Triton | Backend::Splash | Backend::Tokamax => {
                (CUDNN, 2.0 * DOUBT, Basis::Assumed)
            }
        };
        Cost {
            time: crate::units::Time::from_seconds(cost.time.seconds() * factor),
            spread: libm::hypot(cost.spread, spread),
            basis: cost.basis.and(basis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(batch: u64, heads: u64, keys: u64) -> AttentionShape {
        let (queries, kv_heads, head_dim) = (keys, heads, 128);
        AttentionShape { batch, heads, kv_heads, queries, keys, head_dim, causal: true, window: None, squares: None }
    }

    #[test]
    fn blocks_of_whole_heads_come_in_whole_waves() {
        // 32 heads on 132 SMs: five blocks a head, 160 in two waves, each of 13 of 64 blocks of keys; without, 2048 in 16.
        assert_eq!(copies(132, 1, 32), 5);
        assert_eq!(waves(132, &shape(1, 32, 8192)), 26.0 / 16.0);
        // As many heads as SMs: one block each, and nothing is lost.
        assert_eq!((copies(132, 4, 33), waves(132, &shape(4, 33, 8192))), (1, 1.0));
        // One block of keys: nothing to order.
        assert_eq!(waves(132, &shape(8, 16, 128)), 1.0);
    }
}
