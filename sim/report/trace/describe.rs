//! What an event is called: names, categories and shapes in words.

use crate::program::{Comm, DType, ExchangeId, MatmulLayout, MemoryKind, Program, Transfer, Work};

/// A collective with its group and size: `all-gather dp_shard 416 MiB`.
pub(super) fn comm(program: &Program, comm: &Comm) -> String {
    let kind = comm.kind.name();
    format!("{kind} {} {}", program.group(comm.group).name, comm.bytes)
}

/// Sends and receives with their groups and sizes: `send pp 32 MiB, receive pp 32 MiB`.
pub(super) fn exchange(program: &Program, exchange: ExchangeId) -> String {
    let end = |end: &Transfer| format!("{} {} {}", end.direction.name(), program.group(end.group).name, end.bytes);
    program.exchange(exchange).map(end).collect::<Vec<_>>().join(", ")
}

/// An element type.
pub(super) fn dtype(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bf16",
        DType::Fp16 => "fp16",
        DType::Fp32 => "fp32",
        DType::Fp8 => "fp8",
        DType::Int32 => "int32",
        DType::Int64 => "int64",
    }
}

/// The shape of a kernel's work, in the letters B (batch), S (queries), T (keys), N and K (heads), H (head dimension).
pub(super) fn work(work: &Work) -> String {
    match *work {
        Work::Matmul { m, n, k, dtype: element, layout } => {
            let layout = match layout {
                MatmulLayout::Forward => "forward",
                MatmulLayout::DataGradient => "data gradient",
                MatmulLayout::WeightGradient => "weight gradient",
                MatmulLayout::MainGradient(_) => "weight gradient, added to the main gradient",
            };
            format!("{} [{m}, {k}]·[{k}, {n}], {layout}", dtype(element))
        }
        Work::GroupedMatmul { groups, rows, inputs, outputs, dtype: element, layout, .. } => {
            let product = match layout {
                MatmulLayout::Forward => format!("[{rows}/{groups}, {inputs}]·[{inputs}, {outputs}]"),
                MatmulLayout::DataGradient => format!("[{rows}/{groups}, {outputs}]·[{outputs}, {inputs}]"),
                MatmulLayout::WeightGradient | MatmulLayout::MainGradient(_) => {
                    format!("[{inputs}, {rows}/{groups}]·[{rows}/{groups}, {outputs}]")
                }
            };
            format!("{} {groups} groups of {product}", dtype(element))
        }
        Work::Attention { shape: s, dtype: element, backward } => {
            let way = if backward { "backward" } else { "forward" };
            let mask = if s.causal { ", causal" } else { "" };
            let window = s.window.map(|keys| format!(", window {keys}")).unwrap_or_default();
            let documents = s.squares.map(|squares| format!(", documents of Σl² = {squares}")).unwrap_or_default();
            format!(
                "{} B={} S={} T={} N={} K={} H={}{mask}{window}{documents}, {way}",
                dtype(element),
                s.batch,
                s.queries,
                s.keys,
                s.heads,
                s.kv_heads,
                s.head_dim
            )
        }
        Work::Memory { kind, read, written } => format!("{}, reads {read}, writes {written}", family(kind)),
        Work::HostMemory { bytes } => format!("{bytes} in the host's memory"),
        Work::HostCopy { bytes, to_host } => format!("{bytes} {} host", if to_host { "to" } else { "from" }),
        Work::Disk { bytes, write } => format!("{bytes} {} disks", if write { "to" } else { "from" }),
    }
}

fn family(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Elementwise => "elementwise",
        MemoryKind::Strided => "elementwise, strided",
        MemoryKind::Norm => "norm",
        MemoryKind::NormBackward => "norm backward",
        MemoryKind::RmsNorm => "RMSNorm",
        MemoryKind::RmsNormBackward => "RMSNorm backward",
        MemoryKind::LayerNorm => "LayerNorm",
        MemoryKind::LayerNormBackward => "LayerNorm backward",
        MemoryKind::ApexNorm => "norm by Apex",
        MemoryKind::ApexNormBackward => "norm backward by Apex",
        MemoryKind::PersistentNorm => "norm, rows in registers",
        MemoryKind::PersistentNormBackward => "norm backward, rows in registers",
        MemoryKind::Softmax => "softmax",
        MemoryKind::LogSoftmax => "log-softmax",
        MemoryKind::LogSoftmaxBackward => "log-softmax backward",
        MemoryKind::CompiledLogSoftmax => "log-softmax, compiled",
        MemoryKind::CompiledLogSoftmaxBackward => "log-softmax backward, compiled",
        MemoryKind::Gather => "gather",
        MemoryKind::Scatter => "scatter",
        MemoryKind::Foreach => "multi-tensor",
        MemoryKind::FusedOptimizer => "fused optimizer",
        MemoryKind::FusedOptimizer16 => "fused optimizer in 16 bits",
        MemoryKind::ChunkCat => "chunk_cat",
        MemoryKind::Copy => "copy",
        MemoryKind::Complex => "complex elementwise",
        MemoryKind::Cast => "cast",
        MemoryKind::ChunkScan => "scan within chunks",
        MemoryKind::ChunkState => "states of chunks",
        MemoryKind::GatedNormBackward => "gated norm backward",
    }
}
