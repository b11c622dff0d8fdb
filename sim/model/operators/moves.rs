//! Operators that put values elsewhere and compute nothing: copies, views, rows looked up.

use super::row::{
    Autocast, Fused, Gradient, Gradients, Of, Parameters, Reads, Results, Row, Selective, Simple, Space, Step, Stop,
    Strides,
};
use crate::program::MemoryKind;

/// Kernels of a compiler by these names.
const fn fused(forward: &'static str, backward: &'static str, (memory, space): (MemoryKind, Space)) -> Fused {
    Fused { forward, backward, memory, space, mask: false }
}

/// A copy with rows next to each other, of a part that has them apart.
pub const CONTIGUOUS: Simple = Simple {
    label: "Contiguous",
    kernel: "aten.clone",
    memory: MemoryKind::Copy,
    saves: &[],
    gradients: Gradients::Handed,
    fused: fused("triton_to_copy", "triton_to_copy", (MemoryKind::Elementwise, Space::Input)),
    autocast: Autocast::WIDEST,
    policy: None,
    module: false,
    strides: Strides::Together,
};

/// Key-value heads copied to each of their query heads.
pub const REPEAT_KV: Simple = Simple {
    label: "RepeatKv",
    kernel: "aten.clone",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Made(&[SUM]),
    fused: fused("triton_clone", "triton_to_copy", (MemoryKind::Copy, Space::Output)),
    autocast: Autocast::WIDEST,
    policy: None,
    module: false,
    strides: Strides::Together,
};

/// The gradient of what was repeated: a sum.
pub const SUM: Gradient =
    Gradient { of: 0, temporaries: &[], result: Step { kernel: "aten.sum", reads: Reads::Gradient }, with: &[] };

/// Values joined on one axis; backward hands out views of the gradient.
pub const CONCAT: Simple = Simple {
    label: "Concat",
    kernel: "aten.cat",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Parts,
    fused: fused("triton_to_copy", "triton_slice", (MemoryKind::Elementwise, Space::Input)),
    autocast: Autocast::WIDEST,
    policy: None,
    module: false,
    strides: Strides::Kept,
};

/// Row indices 0 … S−1, made anew; no inputs.
pub const POSITIONS: Simple = Simple {
    label: "Positions",
    kernel: "aten.arange",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Nothing,
    fused: fused("triton_to_copy", "triton_to_copy", (MemoryKind::Elementwise, Space::Output)),
    autocast: Autocast { results: Results::Stated, ..Autocast::WIDEST },
    policy: None,
    module: false,
    strides: Strides::Together,
};

/// What saves nothing and has no parameters, and is simulated everywhere.
const MOVE: Row = Row {
    kernel: "aten.view",
    saves: &[],
    stop: Stop::After,
    unpacks: true,
    policy: None,
    selective: Selective::Never,
    autocast: Ok(Autocast::WIDEST),
    strides: Strides::Together,
    parameters: Parameters::Own,
    compiles: Ok(()),
};

/// Views of one value as several.
pub(super) const SPLIT: Row = Row { kernel: "aten.split", stop: Stop::Nowhere, strides: Strides::Joined, ..MOVE };
/// A view of a part of one value.
pub(super) const SLICE: Row = Row { stop: Stop::Nowhere, ..MOVE };
/// One value in another shape.
pub(super) const VIEW: Row = MOVE;
/// One value seen by every query head.
pub(super) const EXPAND: Row = MOVE;
/// Tokens packed without padding, which no compiler sees.
pub(super) const UNPAD: Row = Row {
    kernel: "aten.gather",
    autocast: Err("packed tokens under torch.autocast"),
    compiles: Err("packed tokens in compiled blocks"),
    ..MOVE
};
/// Packed tokens put back.
pub(super) const PAD: Row = Row { kernel: "aten.index_put_", ..UNPAD };
/// A bias of scores, from a mask.
pub(super) const MASK_BIAS: Row = Row { kernel: "aten.where", ..MOVE };
/// A parameter in another type, made anew for one call.
pub(super) const CAST_WEIGHT: Row = Row {
    kernel: "aten._to_copy",
    stop: Stop::Nowhere,
    compiles: Err("weights cast by autocast in compiled blocks"),
    ..MOVE
};
/// An exchange between tensor-parallel ranks, which keeps nothing.
const EXCHANGE: Row =
    Row { kernel: "redistribute", unpacks: false, autocast: Err("tensor parallelism under torch.autocast"), ..MOVE };

/// An exchange between tensor-parallel ranks; torchtitan's policy keeps what is reduced and scattered.
pub(super) const fn redistribute(scatters: bool) -> Row {
    let selective = if scatters { Selective::Always } else { Selective::Never };
    Row { selective, ..EXCHANGE }
}

/// Rows of a table. The rows' indices are kept where they are no token ids, which live for the whole run.
pub(super) const fn embedding(of_tokens: bool) -> Row {
    let saves: &[Of] = if of_tokens { &[] } else { &[Of::Input(0)] };
    Row {
        kernel: "aten.embedding",
        saves,
        autocast: Ok(Autocast::FP32),
        parameters: Parameters::Whole,
        compiles: Err("embeddings in compiled blocks"),
        ..MOVE
    }
}
