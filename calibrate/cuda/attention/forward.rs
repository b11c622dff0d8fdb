//! The graph of attention forward, as cuDNN recognises it and fuses it into one kernel.
//!
//! ```text
//! S = scale·Q·Kᵀ, masked      m = max S      e = exp(S − m)      l = Σ e
//! O = (e / l)·V               statistics = m + log l
//! ```
//!
//! That cuDNN fuses this very sequence, with the mask between the scale and the softmax, is documented in NVIDIA's
//! cudnn-frontend, which frameworks build their attention with.

use super::shape::Shape;
use crate::cuda::cudnn::{Graph, Mode, Reduce, Tensor, Type};

/// The graph and its tensors with memory.
pub struct Forward {
    /// The graph.
    pub graph: Graph,
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Output.
    pub o: Tensor,
    /// Logarithm of each row's sum of exponentials; backward reads it.
    pub statistics: Tensor,
}

impl Forward {
    /// The graph of a shape.
    pub fn new(shape: &Shape) -> Self {
        let mut graph = Graph::default();
        let rows = [shape.batch, shape.heads, shape.queries].map(|size| size as i64);
        let (b, n, s, t) = (rows[0], rows[1], rows[2], shape.keys as i64);
        let (whole, row) = ([b, n, s, t], [b, n, s, 1]);
        let (queries, keys) = (shape.queries_lie(), shape.keys_lie());
        let (values, output) = (shape.values_lie(), shape.output_lies());

        let q = graph.bound("q", queries.dims(), queries.strides(), Type::Bf16);
        let k = graph.bound("k", transposed(keys.dims()), transposed(keys.strides()), Type::Bf16);
        let v = graph.bound("v", values.dims(), values.strides(), Type::Bf16);
        let o = graph.bound("o", output.dims(), output.strides(), Type::Bf16);
        let statistics = graph.bound("statistics", row, [n * s, s, 1, 1], Type::Fp32);

        let scores = graph.virtual_("scores", whole, Type::Fp32);
        graph.matmul(q, k, scores);
        let scale = graph.constant("scale", shape.scale());
        let scaled = graph.virtual_("scaled", whole, Type::Fp32);
        graph.binary(Mode::Multiply, scores, scale, scaled);
        let masked = masked(&mut graph, shape, scaled);

        let most = graph.virtual_("row's most", row, Type::Fp32);
        graph.reduce(Reduce::Max, masked, most);
        let less = graph.virtual_("less the most", whole, Type::Fp32);
        graph.binary(Mode::Subtract, masked, most, less);
        let raised = graph.virtual_("exponentials", whole, Type::Fp32);
        graph.unary(Mode::Exp, less, raised);
        let sum = graph.virtual_("row's sum", row, Type::Fp32);
        graph.reduce(Reduce::Sum, raised, sum);
        let log = graph.virtual_("log of the sum", row, Type::Fp32);
        graph.unary(Mode::Log, sum, log);
        graph.binary(Mode::Add, most, log, statistics);
        let weights = graph.virtual_("weights", whole, Type::Bf16);
        graph.binary(Mode::Divide, raised, sum, weights);
        graph.matmul(weights, v, o);

        Self { graph, q, k, v, o, statistics }
    }
}

/// Dimensions or strides with the last two exchanged.
pub(super) fn transposed(of: [i64; 4]) -> [i64; 4] {
    [of[0], of[1], of[3], of[2]]
}

/// `scores` with minus infinity where a query does not see a key.
pub(super) fn masked(graph: &mut Graph, shape: &Shape, scores: Tensor) -> Tensor {
    let whole = [shape.batch, shape.heads, shape.queries, shape.keys].map(|size| size as i64);
    let mut masked = scores;
    if shape.causal {
        let (row, column) = indices(graph, masked, whole);
        let seen = graph.virtual_("not later", whole, Type::Boolean);
        graph.binary(Mode::AtLeast, row, column, seen);
        masked = hide(graph, masked, seen, whole, "causal");
    }
    if let Some(window) = shape.window {
        let (row, column) = indices(graph, masked, whole);
        let width = graph.constant("window", window as f32);
        let reach = graph.virtual_("column + window", whole, Type::Fp32);
        graph.binary(Mode::Add, column, width, reach);
        let seen = graph.virtual_("not too early", whole, Type::Boolean);
        graph.binary(Mode::Above, reach, row, seen);
        masked = hide(graph, masked, seen, whole, "windowed");
    }
    masked
}

/// The index of the query and of the key of each score.
fn indices(graph: &mut Graph, scores: Tensor, whole: [i64; 4]) -> (Tensor, Tensor) {
    let row = graph.virtual_("row", whole, Type::Int32);
    graph.unary(Mode::Index(2), scores, row);
    let column = graph.virtual_("column", whole, Type::Int32);
    graph.unary(Mode::Index(3), scores, column);
    (row, column)
}

fn hide(graph: &mut Graph, scores: Tensor, seen: Tensor, whole: [i64; 4], name: &'static str) -> Tensor {
    let nothing = graph.constant("minus infinity", f32::NEG_INFINITY);
    let masked = graph.virtual_(name, whole, Type::Fp32);
    graph.select(scores, nothing, seen, masked);
    masked
}
