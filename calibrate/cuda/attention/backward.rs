//! The graph of attention backward, as cuDNN recognises it and fuses it.
//!
//! ```text
//! δ  = Σ dO·O               P  = exp(scale·Q·Kᵀ − statistics), masked
//! dV = Pᵀ·dO                dS = P·(dO·Vᵀ − δ)·scale
//! dK = dSᵀ·Q                dQ = dS·K        summed over the query heads that share a key-value head
//! ```
//!
//! Two results are memory between kernels: δ, and dQ in fp32, into which every block of keys adds its part.

use super::forward::{masked, transposed};
use super::shape::Shape;
use crate::cuda::cudnn::{Graph, Mode, Reduce, Tensor, Type};

/// The graph and its tensors with memory.
pub struct Backward {
    /// The graph.
    pub graph: Graph,
    /// Queries.
    pub q: Tensor,
    /// Keys.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
    /// Output of the forward pass.
    pub o: Tensor,
    /// Its gradient.
    pub d_o: Tensor,
    /// Statistics of the forward pass.
    pub statistics: Tensor,
    /// Gradient of the queries.
    pub dq: Tensor,
    /// Gradient of the keys.
    pub dk: Tensor,
    /// Gradient of the values.
    pub dv: Tensor,
    /// δ, one fp32 number for each row: scratch.
    pub delta: Tensor,
    /// dQ in fp32: scratch.
    pub dq_sum: Tensor,
}

impl Backward {
    /// The graph of a shape.
    pub fn new(shape: &Shape) -> Self {
        let mut graph = Graph::default();
        let size = |size: u64| size as i64;
        let (b, n, s, t) = (size(shape.batch), size(shape.heads), size(shape.queries), size(shape.keys));
        let (h, w) = (size(shape.head_dim), size(shape.value_dim));
        let (whole, row, turned) = ([b, n, s, t], [b, n, s, 1], [b, n, t, s]);
        let turned_strides = [n * s * t, s * t, 1, t];
        let (queries, keys) = (shape.queries_lie(), shape.keys_lie());
        let (values, output) = (shape.values_lie(), shape.output_lies());

        let q = graph.bound("q", queries.dims(), queries.strides(), Type::Bf16);
        let k = graph.bound("k", transposed(keys.dims()), transposed(keys.strides()), Type::Bf16);
        let v = graph.bound("v", transposed(values.dims()), transposed(values.strides()), Type::Bf16);
        let o = graph.bound("o", output.dims(), output.strides(), Type::Bf16);
        let d_o = graph.bound("dO", output.dims(), output.strides(), Type::Bf16);
        let statistics = graph.bound("statistics", row, [n * s, s, 1, 1], Type::Fp32);
        let dq = graph.bound("dQ", queries.dims(), queries.strides(), Type::Bf16);
        let dk = graph.bound("dK", keys.dims(), keys.strides(), Type::Bf16);
        let dv = graph.bound("dV", values.dims(), values.strides(), Type::Bf16);
        let delta = graph.bound("delta", row, [n * s, s, 1, 1], Type::Fp32);
        let dq_sum = graph.bound("dQ's sum", [b, n, s, h], [n * s * h, s * h, h, 1], Type::Fp32);
        let scale = graph.constant("scale", shape.scale());

        let product = graph.virtual_strided("dO·O", [b, n, s, w], [n * s * w, s * w, n * w, 1], Type::Fp32);
        graph.binary(Mode::Multiply, d_o, o, product);
        let sum = graph.virtual_strided("sum of dO·O", row, [n * s, s, 1, 1], Type::Fp32);
        graph.reduce(Reduce::Sum, product, sum);
        let one = graph.constant("one", 1.0);
        graph.binary(Mode::Multiply, sum, one, delta);

        let scores = graph.virtual_("scores", whole, Type::Fp32);
        graph.matmul(q, k, scores);
        let scaled = graph.virtual_("scaled", whole, Type::Fp32);
        graph.binary(Mode::Multiply, scores, scale, scaled);
        let less = graph.virtual_("less the statistics", whole, Type::Fp32);
        graph.binary(Mode::Subtract, scaled, statistics, less);
        let seen = masked(&mut graph, shape, less);
        let weights = graph.virtual_("weights", whole, Type::Fp32);
        graph.unary(Mode::Exp, seen, weights);

        let weights_turned = graph.virtual_strided("weights, turned", turned, turned_strides, Type::Bf16);
        graph.reshape(weights, weights_turned);
        gather(&mut graph, shape, weights_turned, d_o, dv, [b, n, t, w], "dV of each head");

        let d_weights = graph.virtual_("gradient of the weights", whole, Type::Fp32);
        graph.matmul(d_o, v, d_weights);
        let centred = graph.virtual_("less delta", whole, Type::Fp32);
        graph.binary(Mode::Subtract, d_weights, delta, centred);
        let weighted = graph.virtual_("times the weights", whole, Type::Fp32);
        graph.binary(Mode::Multiply, centred, weights, weighted);
        let d_scores = graph.virtual_("gradient of the scores", whole, Type::Fp32);
        graph.binary(Mode::Multiply, weighted, scale, d_scores);

        let d_scores_turned =
            graph.virtual_strided("gradient of the scores, turned", turned, turned_strides, Type::Bf16);
        graph.reshape(d_scores, d_scores_turned);
        gather(&mut graph, shape, d_scores_turned, q, dk, [b, n, t, h], "dK of each head");

        let k_again = graph.virtual_strided("k, turned back", keys.dims(), keys.strides(), Type::Bf16);
        graph.reshape(k, k_again);
        graph.matmul(d_scores, k_again, dq_sum);
        graph.unary(Mode::Identity, dq_sum, dq);

        Self { graph, q, k, v, o, d_o, statistics, dq, dk, dv, delta, dq_sum }
    }
}

/// `to = a·b`, summed over the query heads that share a key-value head.
fn gather(graph: &mut Graph, shape: &Shape, a: Tensor, b: Tensor, to: Tensor, dims: [i64; 4], name: &'static str) {
    if shape.heads == shape.kv_heads {
        return graph.matmul(a, b, to);
    }
    let each = graph.virtual_(name, dims, Type::Bf16);
    graph.matmul(a, b, each);
    graph.reduce(Reduce::Sum, each, to);
}
