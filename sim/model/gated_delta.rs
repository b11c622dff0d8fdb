//! A gated DeltaNet mixer as transformers' `Qwen3NextGatedDeltaNet` runs it on a GPU (5.24.0): two projections, what flash-linear-attention
//! and causal_conv1d do between them in one operator, and the output projection.

use super::graph::{Axis, GraphBuilder, OpKind, ParamId, ValueId};
use super::layer::GatedDelta;
use crate::program::DType;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];

/// Parameters of a mixer.
pub(super) struct Params {
    /// To queries, keys, values and the gate.
    wide: ParamId,
    /// To two numbers for each value head.
    narrow: ParamId,
    /// The convolution's, the decays, their biases, the norm's.
    rule: [ParamId; 4],
    /// To the width of the model.
    output: ParamId,
}

impl Params {
    /// Registers them.
    pub(super) fn new(g: &mut GraphBuilder, m: GatedDelta) -> Params {
        let d = g.dims().d;
        let bias = g.param("mixer.dt_bias", m.value_heads, 1);
        let decay = g.param("mixer.A_log", m.value_heads, 1);
        let conv = g.param("mixer.conv1d.weight", m.channels(), m.conv);
        let wide = g.param("mixer.in_proj_qkvz.weight", m.projected(), d);
        let narrow = g.param("mixer.in_proj_ba.weight", 2 * m.value_heads, d);
        let norm = g.param("mixer.norm.weight", m.value_dim, 1);
        let output = g.param("mixer.out_proj.weight", d, m.values());
        Params { wide, narrow, rule: [conv, decay, bias, norm], output }
    }
}

/// The mixer on `x_BSD`. What Python still names while the last projection runs are further results of the operator.
pub(super) fn mixer(g: &mut GraphBuilder, m: GatedDelta, x: ValueId, params: &Params) -> ValueId {
    let (d, tokens, compute) = (g.dims().d, g.dims().tokens(), g.compute());
    let linear = |g: &mut GraphBuilder, module, outputs, param, name| {
        let made = g.op(module, OpKind::Linear { inputs: d, outputs }, &[x], &[param], (name, BSD));
        g.resize(made, tokens * outputs);
        made
    };
    let wide = linear(g, "mixer.in_proj_qkvz", m.projected(), params.wide, "qkvz_BSP");
    let narrow = linear(g, "mixer.in_proj_ba", 2 * m.value_heads, params.narrow, "ba_BSN");
    let made = [
        ("normed_BSV", BSD, compute),
        ("z_BSV", BSD, compute),
        ("b_BSN", BSD, compute),
        ("a_BSN", BSD, compute),
        ("mixed_BSC", BSD, compute),
        ("beta_BSN", BSD, compute),
        ("g_BSN", BSD, DType::Fp32),
    ];
    let made @ [normed, z, b, a, mixed, beta, decay] =
        g.op_all("mixer", OpKind::GatedDelta(m), &[wide, narrow], &params.rule, made);
    let heads = m.value_heads;
    for (value, columns) in made.into_iter().zip([m.values(), m.values(), heads, heads, m.channels(), heads, heads]) {
        g.resize(value, tokens * columns);
    }
    let output = OpKind::Linear { inputs: m.values(), outputs: d };
    let out = g.op("mixer.out_proj", output, &[normed], &[params.output], ("mixed_BSD", BSD));
    g.drop_values(&[wide, narrow, z, b, a, mixed, beta, decay, normed]);
    out
}
