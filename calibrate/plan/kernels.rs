//! A kernel of a program as something that can be measured.

use windtunnel::cost::Software;
use windtunnel::program::{DType, MatmulLayout, MemoryKind, Work};

use crate::points::What;

/// The kernel that stands for a family; none where only one library's own would do.
fn stands_for(kind: MemoryKind) -> Option<&'static str> {
    Some(match kind {
        MemoryKind::Elementwise => "scale_1r1w",
        MemoryKind::Norm => "rms_norm_4096",
        MemoryKind::NormBackward => "rms_norm_backward_4096",
        MemoryKind::Softmax => "log_softmax_128256",
        MemoryKind::Gather => "embedding_4096",
        MemoryKind::Scatter => "embedding_backward_4096",
        MemoryKind::Foreach => "adamw",
        MemoryKind::Copy => "copy_1r1w",
        MemoryKind::Complex => "rotary_1r1w",
        MemoryKind::RmsNorm
        | MemoryKind::RmsNormBackward
        | MemoryKind::LayerNorm
        | MemoryKind::LayerNormBackward
        | MemoryKind::ApexNorm
        | MemoryKind::ApexNormBackward
        | MemoryKind::PersistentNorm
        | MemoryKind::PersistentNormBackward
        | MemoryKind::LogSoftmax
        | MemoryKind::LogSoftmaxBackward
        | MemoryKind::CompiledLogSoftmax
        | MemoryKind::CompiledLogSoftmaxBackward
        | MemoryKind::FusedOptimizer
        | MemoryKind::FusedOptimizer16
        | MemoryKind::ChunkCat
        | MemoryKind::Cast
        | MemoryKind::ChunkScan
        | MemoryKind::ChunkState
        | MemoryKind::GatedNormBackward
        | MemoryKind::Strided => return None,
    })
}

/// The end of the curves of memory-bound kernels \[B\].
const LARGEST: u64 = 2 << 30;

/// The name of a matmul's operand type among points.
fn format(dtype: DType, software: &Software) -> Option<&'static str> {
    match dtype {
        DType::Bf16 | DType::Fp16 => Some("bf16"),
        DType::Fp8 => Some("fp8_tensor"),
        DType::Fp32 if software.tf32 => Some("tf32"),
        DType::Fp32 => Some("fp32"),
        DType::Int64 | DType::Int32 => None,
    }
}

/// What to measure for a kernel; none for work that is not measured so.
///
/// Attention is asked of cuDNN, whose kernels the calibrator can call, whatever library a run uses. Sizes of memory-bound
/// kernels are rounded to half powers of two, up to 2 GiB: they are points of a curve whose end is straight.
pub fn what(work: &Work, software: &Software) -> Option<What> {
    match *work {
        Work::Matmul { m, n, k, dtype, layout } if m.min(n).min(k) > 0 => {
            let dtype = format(dtype, software)?;
            let layout = match layout {
                MatmulLayout::Forward => "forward",
                MatmulLayout::DataGradient => "data_gradient",
                MatmulLayout::MainGradient(DType::Fp32) => "weight_gradient_fp32",
                MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_) => "weight_gradient",
            };
            Some(What::Matmul { m, n, k, dtype: dtype.to_owned(), layout: layout.to_owned() })
        }
        Work::GroupedMatmul { groups, rows, inputs, outputs, dtype, layout, .. } if groups > 0 && rows >= groups => {
            let (dtype, rows) = (format(dtype, software)?.to_owned(), rows / groups);
            let (m, n, k) = match layout {
                MatmulLayout::Forward => (rows, outputs, inputs),
                MatmulLayout::DataGradient => (rows, inputs, outputs),
                MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_) => (outputs, inputs, rows),
            };
            Some(What::GroupedMatmul { groups, m, n, k, dtype })
        }
        Work::Attention { shape, dtype: DType::Bf16 | DType::Fp16, backward } if shape.head_dim > 0 => {
            Some(What::Attention {
                backend: "cudnn".to_owned(),
                backward,
                batch: shape.batch,
                heads: shape.heads,
                kv_heads: shape.kv_heads,
                queries: shape.queries,
                keys: shape.keys,
                head_dim: shape.head_dim,
                value_dim: shape.head_dim,
                causal: shape.causal,
                window: shape.window,
                dtype: "bf16".to_owned(),
            })
        }
        Work::Memory { kind, read, written } if read.0 + written.0 > 0 => {
            let kernel = crate::cuda::memory_kernel(stands_for(kind)?)?;
            let bytes = libm::exp2(libm::round(2.0 * libm::log2((read.0 + written.0) as f64)) / 2.0);
            Some(kernel.what(((bytes as u64).min(LARGEST) / (kernel.read + kernel.written)).max(1)))
        }
        _ => None,
    }
}
