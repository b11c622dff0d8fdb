//! Operators that compute each element of their result from the elements in its place: sums, products, powers, casts, dropout.
//!
//! To add one: a row here, and whoever writes it into a model's forward.

use super::row::{
    Autocast, Fused, Gradient, Gradients, Of, Parameters, Reads, Results, Row, Saved, Selective, Simple, Space, Step,
    Stop, Strides,
};
use crate::program::MemoryKind;

/// A kernel that reads so many tensors of the input's size.
const fn step(kernel: &'static str, tensors: u64) -> Step {
    Step { kernel, reads: Reads::Tensors(tensors) }
}

/// Kernels of a compiler by these names, from the elements of the first input.
const fn fused(forward: &'static str, backward: &'static str) -> Fused {
    Fused { forward, backward, memory: MemoryKind::Elementwise, space: Space::Input, mask: false }
}

/// Conversion to the output's type.
pub const CAST: Simple = Simple {
    label: "Cast",
    kernel: "aten._to_copy",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Made(&[Gradient {
        of: 0,
        temporaries: &[],
        result: Step { kernel: "aten._to_copy", reads: Reads::Gradient },
        with: &[],
    }]),
    fused: fused("triton_to_copy", "triton_to_copy"),
    autocast: Autocast { results: Results::Asked, ..Autocast::WIDEST },
    policy: Some(Saved::ToCopy),
    module: false,
    strides: Strides::Kept,
};

/// Product of two values.
pub const MUL: Simple = Simple {
    label: "Mul",
    kernel: "aten.mul",
    memory: MemoryKind::Elementwise,
    saves: &[Of::Input(1), Of::Input(0)],
    gradients: Gradients::Made(&[
        Gradient { of: 1, temporaries: &[], result: step("aten.mul", 2), with: &[Of::Input(0)] },
        Gradient { of: 0, temporaries: &[], result: step("aten.mul", 2), with: &[Of::Input(1)] },
    ]),
    fused: fused("triton_mul", "triton_mul"),
    autocast: Autocast::WIDEST,
    policy: Some(Saved::Mul),
    module: false,
    strides: Strides::Together,
};

/// Sum of two values, of which the second may lack the batch axis; or of one and what needs no gradient.
pub const ADD: Simple = Simple {
    label: "Add",
    kernel: "aten.add",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Shared,
    fused: fused("triton_add", "triton_add"),
    autocast: Autocast::WIDEST,
    policy: Some(Saved::Add),
    module: false,
    strides: Strides::Together,
};

/// Product with, or quotient by, a number.
pub const SCALE: Simple = Simple {
    label: "Scale",
    kernel: "aten.mul",
    memory: MemoryKind::Elementwise,
    saves: &[],
    gradients: Gradients::Made(&[Gradient { of: 0, temporaries: &[], result: step("aten.mul", 1), with: &[] }]),
    fused: fused("triton_to_copy", "triton_to_copy"),
    autocast: Autocast::WIDEST,
    policy: Some(Saved::Mul),
    module: false,
    strides: Strides::Together,
};

/// Hyperbolic tangent; keeps its output.
pub const TANH: Simple = Simple {
    label: "Tanh",
    kernel: "aten.tanh",
    memory: MemoryKind::Elementwise,
    saves: &[Of::Output],
    gradients: Gradients::Made(&[Gradient {
        of: 0,
        temporaries: &[],
        result: step("aten.tanh_backward", 2),
        with: &[Of::Output],
    }]),
    fused: fused("triton_to_copy", "triton_tanh_backward"),
    autocast: Autocast::WIDEST,
    policy: None,
    module: false,
    strides: Strides::Together,
};

/// Logistic function; keeps its output.
pub const SIGMOID: Simple = Simple {
    label: "Sigmoid",
    kernel: "aten.sigmoid",
    gradients: Gradients::Made(&[Gradient {
        of: 0,
        temporaries: &[],
        result: step("aten.sigmoid_backward", 2),
        with: &[Of::Output],
    }]),
    fused: fused("triton_to_copy", "triton_sigmoid_backward"),
    ..TANH
};

/// Square, or a higher power; keeps its input. Its gradient is `grad · 2x`, as `pow_backward` writes it.
pub const SQUARE: Simple = Simple {
    label: "Square",
    kernel: "aten.pow",
    memory: MemoryKind::Elementwise,
    saves: &[Of::Input(0)],
    gradients: Gradients::Made(&[Gradient {
        of: 0,
        temporaries: &[step("aten.pow", 1), step("aten.mul", 1)],
        result: step("aten.mul", 2),
        with: &[Of::Input(0)],
    }]),
    fused: fused("triton_to_copy", "triton_mul"),
    autocast: Autocast::FULL,
    policy: None,
    module: false,
    strides: Strides::Together,
};

/// Zeroes a random part in training; keeps a mask.
pub(super) const DROPOUT: Row = Row {
    kernel: "aten.native_dropout",
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
