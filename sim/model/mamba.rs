//! A Mamba-2 mixer as mamba_ssm and transformers run it on a GPU (`Mamba2`, `use_mem_eff_path`; `NemotronHMamba2Mixer`): the first
//! projection, and everything else in one function.

use super::graph::{Axis, GraphBuilder, OpKind, ParamId, ValueId};
use super::layer::Mamba2;

const BSD: &[Axis] = &[Axis::B, Axis::S, Axis::D];

/// Parameters of a mixer.
pub(super) struct Params {
    /// The first projection.
    input: Vec<ParamId>,
    /// Those of the function, in the order in which its backward returns their gradients.
    scan: Vec<ParamId>,
}

impl Params {
    /// Registers them.
    pub(super) fn new(g: &mut GraphBuilder, m: Mamba2) -> Params {
        let d = g.dims().d;
        let bias = [g.param("mixer.dt_bias", m.heads, 1)];
        let decay = g.param("mixer.A_log", m.heads, 1);
        let skip = g.param("mixer.D", m.heads, 1);
        let mut scan = vec![g.param("mixer.conv1d.weight", m.channels(), m.conv)];
        if m.conv_bias {
            scan.push(g.param("mixer.conv1d.bias", m.channels(), 1));
        }
        let mut input = vec![g.param("mixer.in_proj.weight", m.projected(), d)];
        if m.bias {
            input.push(g.param("mixer.in_proj.bias", m.projected(), 1));
        }
        let norm = g.param("mixer.norm.weight", m.inner(), 1);
        let output = g.param("mixer.out_proj.weight", d, m.inner());
        scan.extend(bias);
        scan.extend([decay, skip, norm, output]);
        Params { input, scan }
    }
}

/// The mixer on `x_BSD`.
pub(super) fn mixer(g: &mut GraphBuilder, m: Mamba2, x: ValueId, params: &Params) -> ValueId {
    let (d, tokens) = (g.dims().d, g.dims().tokens());
    let linear = OpKind::Linear { inputs: d, outputs: m.projected() };
    let projected = g.op("mixer.in_proj", linear, &[x], &params.input, ("zxbcdt_BSP", BSD));
    g.resize(projected, tokens * m.projected());
    let out = g.op("mixer", OpKind::Mamba2(m), &[projected], &params.scan, ("mixed_BSD", BSD));
    g.drop_values(&[projected]);
    out
}
