//! A Mamba-2 mixer as operators (`core/ssm/mamba_mixer.py`, `core/models/mamba/mamba_layer_specs.py`, 0.16.1): Transformer Engine's linears around
//! mamba_ssm's function, and the norm between.
//!
//! Tensor-parallel ranks have heads and groups of their own. Ranks that share a sequence exchange tokens for heads around the scan.

use super::builder::{Modules, NormAndLinear, RowLinear};
use crate::model::graph::{Axis, ValueId};
use crate::model::layer::Mamba2;
use crate::model::megatron::mamba::MambaOp;
use crate::model::megatron::{Bias, MegatronOp};
use crate::plan::megatron::{CpCommType, Implementation, MegatronPlan, Recompute, Split};
use crate::runtime::Refusal;

const SBD: &[Axis] = &[Axis::S, Axis::B, Axis::D];
const MODULE: &str = "mixer";
/// Tokens of a chunk of the scan, whatever the model says (`MambaMixer.__init__`).
const CHUNK: u64 = 128;

/// Parameters of a mixer, in the order of Megatron's modules.
pub(super) struct Params {
    /// Of the function: convolution, its bias, dt's bias, A and D.
    scan: [usize; 5],
    input_norm: Vec<usize>,
    input: Vec<usize>,
    norm: usize,
    output: usize,
}

/// What of a job's hybrid stack has no rules here, if anything.
pub(super) fn refuses(job: &MegatronPlan) -> Option<Refusal> {
    let split = &job.split;
    if split.model.is_transformer() {
        return None;
    }
    let cases = [
        (
            split.block.implementation != Implementation::TransformerEngine,
            Refusal::new("hybrid-implementation", "a stack of Mamba-2, attention and feed-forward layers without Transformer Engine, for which Megatron-Core has no layer specification")
                .on("megatron.implementation")
                .instead("write megatron.implementation = \"transformer_engine\""),
        ),
        (
            matches!(split.block.recompute, Recompute::Uniform { .. } | Recompute::Block { .. }),
            Refusal::new("hybrid-full-recompute", "whole layers of a hybrid stack that are recomputed: Megatron-Core up to 0.17 ignores --recompute-granularity full there")
                .on("megatron.recompute")
                .instead("remove megatron.recompute, and name parts in megatron.recompute_modules"),
        ),
        (
            split.model.mtp_layers > 0 && split.model.mtp_block.is_empty(),
            Refusal::new("hybrid-multi-token", "multi-token prediction behind a hybrid stack by modules whose layers nobody names")
                .on("megatron.mtp_num_layers")
                .instead("write megatron.mtp_num_layers = 0"),
        ),
        (
            job.fsdp.is_some(),
            Refusal::new("hybrid-megatron-fsdp", "Megatron-FSDP around a hybrid stack").on("megatron.data_parallel_sharding_strategy"),
        ),
        (
            split.combines(),
            Refusal::new("hybrid-combined-exchanges", "exchanges of experts overlapped with another micro-batch in a hybrid stack")
                .on("megatron.overlap_moe_expert_parallel_comm"),
        ),
        (
            split.mesh.cp > 1 && split.mesh.sharing.comm_type == CpCommType::A2aP2p,
            Refusal::new("hybrid-two-way-context-parallel", "Mamba-2 where ranks share a sequence in two ways").on("megatron.cp_comm_type"),
        ),
    ];
    Refusal::first(cases)
        .or_else(|| split.model.layers.kinds().iter().find_map(|kind| sizes(split, kind.mixer.mamba()?)))
}

/// Sizes that do not divide over ranks (asserted in `MambaMixer.__init__` and `MambaContextParallel.__init__`).
fn sizes(job: &Split, m: &Mamba2) -> Option<Refusal> {
    let (tp, cp) = (u64::from(job.mesh.tp), u64::from(job.mesh.cp));
    let groups = m.groups / tp;
    let shared = groups.is_multiple_of(cp) || groups > 0 && cp.is_multiple_of(groups);
    let cases = [
        (
            !m.heads.is_multiple_of(tp) || !m.groups.is_multiple_of(tp),
            Refusal::new(
                "mamba-tensor-parallel",
                "heads or groups of Mamba-2 that tensor-parallel ranks do not divide",
            )
            .on("mesh.tp"),
        ),
        (
            cp > 1 && !((m.heads / tp).is_multiple_of(cp) && shared),
            Refusal::new("mamba-context-parallel", "heads or groups of Mamba-2 that ranks of a sequence do not divide")
                .on("mesh.cp"),
        ),
        (
            job.matmuls.fp8().is_some() && !m.split(tp).projected().is_multiple_of(16),
            Refusal::new("mamba-fp8-sizes", "Mamba-2 in fp8 whose projection 16 does not divide")
                .on(super::refused::FP8)
                .instead(super::refused::FP8_SIZES),
        ),
        (m.bias, Refusal::new("mamba-projection-biases", "Mamba-2 with biases on its projections")),
        (!m.conv_bias, Refusal::new("mamba-convolution-without-bias", "Mamba-2 whose convolution has no bias")),
    ];
    Refusal::first(cases)
}

/// Registers a mixer's parameters.
pub(super) fn params(m: &mut Modules, mamba: Mamba2) -> Params {
    let (own, d) = (mamba.split(u64::from(m.job.mesh.tp)), m.dims.d);
    let [bias, decay, skip] = ["mixer.dt_bias", "mixer.A_log", "mixer.D"].map(|name| m.g.param(name, own.heads, 1));
    let input_norm = m.norm_params("mixer.in_proj.layer_norm_weight", "mixer.in_proj.layer_norm_bias");
    let input = m.linear_params("mixer.in_proj.weight", None, own.projected(), d);
    // One filter a channel: no matrix that is multiplied.
    let conv = m.g.param("mixer.conv1d.weight", own.channels() * own.conv, 1);
    let conv_bias = m.g.param("mixer.conv1d.bias", own.channels(), 1);
    let norm = m.g.param("mixer.norm.weight", own.inner(), 1);
    let output = m.g.param("mixer.out_proj.weight", d, own.inner());
    Params { scan: [conv, conv_bias, bias, decay, skip], input_norm, input, norm, output }
}

/// The hidden state behind the mixer, before its residual.
pub(super) fn mixer(m: &mut Modules, mamba: Mamba2, x: ValueId, params: &Params) -> ValueId {
    let (tp, cp) = (u64::from(m.job.mesh.tp), u64::from(m.job.mesh.cp));
    let own = Mamba2 { chunk: CHUNK, ..mamba.split(tp) };
    let (tokens, several) = (m.dims.tokens(), m.dims.b > 1);
    let part = |m: &mut Modules, kind, input, params: &[usize], (name, elements)| {
        let made = m.megatron(MODULE, MegatronOp::Mamba(kind), &[input], params, (name, SBD));
        m.g.resize(made, elements);
        made
    };
    let (mut value, xn) = m.up(
        x,
        NormAndLinear {
            norm: "norm",
            norm_params: &params.input_norm,
            linear: "mixer.in_proj",
            params: &params.input,
            bias: Bias::Apart,
            shape: SBD,
        },
    );
    m.g.resize(value, tokens * own.projected());
    // The caller's frame names what the projection made until the mixer returns.
    let mut held = vec![value];
    let scanned = own.shared(cp);
    if cp > 1 {
        let elements = tokens * cp * scanned.projected();
        value = part(m, MambaOp::ToHeads { mamba: own, ranks: cp }, value, &[], ("zxbcdt_SBP", elements));
        m.g.drop_values(&held);
        held = vec![value];
    }
    if several {
        value = part(m, MambaOp::SequencesFirst, value, &[], ("zxbcdt_BSP", tokens * cp * scanned.projected()));
        held.push(value);
    }
    let inner = tokens * own.inner();
    let mut y = part(m, MambaOp::Scan(scanned), value, &params.scan, ("y_BSI", inner));
    if several {
        m.g.drop_values(&held[held.len() - 1..]);
        held.pop();
        let before = y;
        y = part(m, MambaOp::TokensFirst, before, &[], ("y_SBI", inner));
        m.g.drop_values(&[before]);
    }
    if cp > 1 {
        let before = y;
        y = part(m, MambaOp::ToTokens, before, &[], ("y_SBI", inner));
        m.g.drop_values(&[before]);
    }
    let normed = part(m, MambaOp::Norm { groups: own.groups }, y, &[params.norm], ("yn_SBI", inner));
    m.g.drop_values(&[y]);
    held.push(normed);
    let out = m.row_linear(
        normed,
        RowLinear { module: "mixer.out_proj", inputs: own.inner(), params: &[params.output], held: &held, kept: false },
    );
    m.g.drop_values(&xn);
    out
}
