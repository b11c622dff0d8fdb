//! What no kernel is faster than, whatever family prices it: its FLOPs at the chip's peak, and what HBM must bring and take.
//!
//! ```text
//! least = max(FLOPs / (1.05 · peak), (bytes − L2) / bandwidth)
//! ```
//!
//! Bytes are those of operands and results, each once. What the L2 holds may still be there from the kernel before, so as much is
//! taken off. Of causal attention those pairs count that the mask lets through.

use super::attention;
use super::matmul::{Matmul, PEAK_READ};
use super::profile::Profile;
use crate::program::{AttentionShape, DType, MatmulLayout, Work};
use crate::units::{Bytes, Time};

/// The largest last cache before HBM of any chip with a profile: 126.5 MiB of a B200's L2, 128 MiB of a TPU v6e's VMEM. It stands
/// for chips whose profile states none.
const LARGEST_CACHE: Bytes = Bytes(128 << 20);

/// The least time of a kernel on a profile's chip, whose matmuls of its type are in `matmul`.
pub(super) fn least(profile: &Profile, matmul: &Matmul, work: &Work) -> Time {
    let (flops, bytes) = match *work {
        Work::Matmul { m, n, k, dtype, layout } => {
            (work.flops().0 as f64, bytes_of(1.0, (m as f64, n as f64, k as f64), dtype, layout))
        }
        Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, .. } => {
            let active = groups.min(rows);
            let each = rows as f64 / active.max(1) as f64;
            let [inputs, outputs] = [inputs, outputs].map(|numbers| numbers as f64);
            let shape = match layout {
                MatmulLayout::Forward => (each, outputs, inputs),
                MatmulLayout::DataGradient => (each, inputs, outputs),
                MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_) => (inputs, outputs, each),
            };
            (work.flops().0 as f64, bytes_of(active as f64, shape, dtype, layout))
        }
        Work::Attention { ref shape, dtype, backward } => {
            let matmuls = if backward { 5.0 } else { 2.0 };
            let pairs = attention::pairs(shape) * shape.batch as f64 * shape.heads as f64;
            (matmuls * 2.0 * pairs * shape.head_dim as f64, attended(shape, dtype, backward))
        }
        Work::Memory { read, written, .. } => (0.0, read.0.saturating_add(written.0) as f64),
        Work::HostMemory { .. } | Work::HostCopy { .. } | Work::Disk { .. } => return Time::ZERO,
    };
    let cache = profile.machine.l2.unwrap_or(LARGEST_CACHE).0 as f64;
    let moved = (bytes - cache).max(0.0) / profile.bf16.chip.bandwidth.0;
    Time::from_seconds((flops / (PEAK_READ * matmul.chip.peak.0)).max(moved))
}

/// Bytes of the operands and the result of matmuls, the result in 16 bits or a main gradient that is read and written.
fn bytes_of(groups: f64, (m, n, k): (f64, f64, f64), dtype: DType, layout: MatmulLayout) -> f64 {
    let result = match layout {
        MatmulLayout::MainGradient(main) => 2 * main.bytes(),
        _ => 2,
    };
    groups * (dtype.bytes() as f64 * (m * k + k * n) + result as f64 * m * n)
}

/// Bytes of q, k, v and the result, and in backward of their gradients.
fn attended(shape: &AttentionShape, dtype: DType, backward: bool) -> f64 {
    let rows = 2 * shape.heads * shape.queries + 2 * shape.kv_heads * shape.keys;
    let bytes = (shape.batch * rows * shape.head_dim * dtype.bytes()) as f64;
    if backward { 2.0 * bytes } else { bytes }
}
