//! What writes modules down as operators, with what several of them have: norms, linears, residuals, logits and losses
//! (`core/tensor_parallel/layers.py`, `core/models/gpt/gpt_model.py`, 0.16.1).

use crate::model::Norm;
use crate::model::block;
use crate::model::graph::{Axis, Dims, GraphBuilder, OpKind, ValueId};
use crate::model::megatron::{Bias, MegatronOp, Reads};
use crate::model::tensor::TensorParallel;
use crate::plan::megatron::{Implementation, Split};
use crate::program::DType;

/// Attention's projection.
pub(super) const PROJ: &str = "self_attention.linear_proj";

pub(super) const BS: &[Axis] = &[Axis::B, Axis::S];
pub(super) const SS: &[Axis] = &[Axis::S, Axis::S];
pub(super) const BSD: &[Axis] = &[Axis::S, Axis::B, Axis::D];
pub(super) const BLD: &[Axis] = &[Axis::L, Axis::B, Axis::D];
const BSV: &[Axis] = &[Axis::S, Axis::B, Axis::V];

/// The sizes of a rank's part of a micro-batch.
pub(super) fn dims(job: &Split) -> Dims {
    let tp = u64::from(job.mesh.tp);
    let tensor =
        TensorParallel { ranks: tp, sequence: job.sequence_parallel && tp > 1, loss: true, asynchronous: false };
    let dims = block::dims(&job.model, job.batch, job.seq / u64::from(job.mesh.cp), tensor);
    Dims { v: job.padded_vocabulary() / tp, documents: job.documents, ..dims }
}

/// A builder with what is asked of the job again and again.
pub(super) struct Modules<'a> {
    pub(super) g: GraphBuilder,
    pub(super) job: &'a Split,
    pub(super) dims: Dims,
}

/// A norm, and a linear split on its rows that reads it.
pub(super) struct NormAndLinear<'p> {
    /// The norm's module.
    pub(super) norm: &'static str,
    pub(super) norm_params: &'p [usize],
    /// The linear's module.
    pub(super) linear: &'static str,
    pub(super) params: &'p [usize],
    pub(super) bias: Bias,
    /// The result's axes.
    pub(super) shape: &'static [Axis],
}

/// What a linear reads and makes, beside which an adapter stands.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    /// What the linear has made.
    pub(super) base: ValueId,
    /// What the adapter reads.
    pub(super) input: ValueId,
    /// Whether nobody else reads that.
    pub(super) own_input: bool,
    /// Columns of the rank's part of the linear's weight, and rows.
    pub(super) sizes: (u64, u64),
    /// The first of the adapter's two parameters.
    pub(super) first: usize,
    /// The result's axes.
    pub(super) shape: &'static [Axis],
}

/// A linear split on its columns.
pub(super) struct RowLinear<'p> {
    pub(super) module: &'static str,
    /// Columns of the input.
    pub(super) inputs: u64,
    pub(super) params: &'p [usize],
    /// Values that Python lets go of after it.
    pub(super) held: &'p [ValueId],
    /// In fp8 it keeps what it was given, because another does so anyway.
    pub(super) kept: bool,
}

impl Modules<'_> {
    pub(super) fn megatron(
        &mut self,
        module: &'static str,
        op: MegatronOp,
        inputs: &[ValueId],
        params: &[usize],
        output: (&'static str, &'static [Axis]),
    ) -> ValueId {
        self.g.op(module, OpKind::Megatron(op), inputs, params, output)
    }

    pub(super) fn norm_params(&mut self, weight: &'static str, bias: &'static str) -> Vec<usize> {
        let mut params = vec![self.g.param(weight, self.dims.d, 1)];
        if self.job.model.norms().kind == (Norm::Layer { bias: true }) {
            params.push(self.g.param(bias, self.dims.d, 1));
        }
        params
    }

    pub(super) fn norm(&mut self, module: &'static str, input: ValueId, params: &[usize]) -> ValueId {
        if self.engine() {
            return self.megatron(module, MegatronOp::Norm, &[input], params, ("xn_LBD", BLD));
        }
        let rows = self.dims.local_tokens();
        let kind = match self.job.model.norms().kind {
            Norm::Rms => OpKind::RmsNorm { rows },
            Norm::Layer { .. } => OpKind::LayerNorm { rows },
        };
        self.g.op(module, kind, &[input], params, ("xn_LBD", BLD))
    }

    pub(super) fn linear_params(
        &mut self,
        weight: &'static str,
        bias: Option<&'static str>,
        rows: u64,
        cols: u64,
    ) -> Vec<usize> {
        let mut params = vec![self.g.param(weight, rows, cols)];
        params.extend(bias.map(|bias| self.g.param(bias, rows, 1)));
        self.adapter_params(weight, (rows, cols));
        params
    }

    /// What a linear split on its rows reads.
    pub(super) fn reads(&self) -> Reads {
        match (self.dims.tensor.sequence, self.dims.tensor.splits()) {
            (true, _) => Reads::Gathered,
            (false, true) => Reads::Copied,
            (false, false) => Reads::Own,
        }
    }

    /// A norm and a linear split on its rows. Also the norm's result, where it is a value of its own.
    pub(super) fn up(&mut self, input: ValueId, both: NormAndLinear<'_>) -> (ValueId, Vec<ValueId>) {
        let NormAndLinear { norm, norm_params, linear: module, params, bias, shape } = both;
        let (inputs, outputs) = (self.dims.d, self.g.rows(params[0]));
        if self.engine() {
            let adapted = self.adapter(module);
            let params = [norm_params, params].concat();
            let (norms, overlap, fp8) = (norm_params.len(), self.overlap(), self.job.matmuls.fp8());
            let kind = MegatronOp::NormLinear { inputs, outputs, norms, overlap, bias, fp8 };
            if let Some(adapted) = adapted {
                return (self.adapted_up(input, kind, both, adapted), vec![]);
            }
            return (self.megatron(module, kind, &[input], &params, ("up_SBF", shape)), vec![]);
        }
        let xn = self.norm(norm, input, norm_params);
        let kind = MegatronOp::Linear { inputs, outputs, reads: self.reads(), bias };
        (self.megatron(module, kind, &[xn], params, ("up_SBF", shape)), vec![xn])
    }

    /// Whether what tensor-parallel ranks exchange runs in parts beside matmuls.
    fn overlap(&self) -> bool {
        self.job.overlap_tensor.is_some() && self.dims.tensor.sequence
    }

    pub(super) fn engine(&self) -> bool {
        self.job.block.implementation == Implementation::TransformerEngine
    }

    /// A linear split on its columns, and the sum over ranks of what it leaves.
    pub(super) fn row_linear(
        &mut self,
        input: ValueId,
        RowLinear { module, inputs, params, held, kept }: RowLinear<'_>,
    ) -> ValueId {
        if self.engine() {
            let fp8 = self.job.matmuls.fp8().map(|fp8| fp8.keeping(kept));
            let outputs = self.dims.d;
            let overlap = self.job.overlap_tensor.filter(|_| self.overlap());
            let overlap = overlap.map(|overlap| if module == PROJ { overlap.proj } else { overlap.fc2 });
            let kind = MegatronOp::RowLinear { inputs, outputs, overlap, fp8 };
            let mut sum = self.megatron(module, kind, &[input], params, ("y_LBD", BLD));
            if let Some(adapted) = self.adapter(module) {
                let first = params.iter().max().map_or(0, |last| last + 1);
                let sizes = (inputs, outputs);
                sum = self.adapt(adapted, Beside { base: sum, input, own_input: false, sizes, first, shape: BLD });
            }
            self.g.drop_values(held);
            return sum;
        }
        let kind = MegatronOp::Linear { inputs, outputs: self.dims.d, reads: Reads::Own, bias: Bias::Apart };
        let partial = self.megatron(module, kind, &[input], params, ("y_SBD", BSD));
        if !self.dims.tensor.splits() {
            self.g.drop_values(held);
            return partial;
        }
        let sum = self.megatron(module, MegatronOp::Sum, &[partial], &[], ("y_LBD", BLD));
        self.g.drop_values(&[partial]);
        self.g.drop_values(held);
        sum
    }

    pub(super) fn residual(
        &mut self,
        module: &'static str,
        branch: ValueId,
        residual: ValueId,
        bias: Option<usize>,
    ) -> ValueId {
        let block = self.job.block;
        let kind = MegatronOp::BiasDropoutAdd { dropout: block.hidden_dropout, fused: block.fused_dropout };
        let bias: Vec<usize> = bias.into_iter().collect();
        self.megatron(module, kind, &[branch, residual], &bias, ("h_LBD", BLD))
    }

    /// The head.
    pub(super) fn logits(&mut self, xn: ValueId, weight: usize) -> ValueId {
        let kind =
            MegatronOp::Linear { inputs: self.dims.d, outputs: self.dims.v, reads: self.reads(), bias: Bias::Apart };
        self.megatron("output_layer", kind, &[xn], &[weight], ("logits_SBV", BSV))
    }

    /// The loss of every token.
    pub(super) fn losses(&mut self, logits: ValueId) -> ValueId {
        let kind = OpKind::Megatron(MegatronOp::VocabularyLoss { kernels: self.job.block.cross_entropy });
        self.g.op_in("loss", kind, &[logits], &[], ("losses_BS", BS), DType::Fp32)
    }

    /// Their masked mean, with what is reported.
    pub(super) fn mean(&mut self, losses: ValueId, mask: ValueId) -> ValueId {
        let one: &[Axis] = &[];
        let outputs = [("loss", one, DType::Fp32), ("tokens", one, DType::Fp32), ("report", one, DType::Fp32)];
        let [loss, ..] = self.g.op_many("loss", OpKind::Megatron(MegatronOp::MaskedMean), &[losses, mask], outputs);
        self.g.drop_values(&[losses]);
        loss
    }
}

/// A builder of a graph whose first input is this; and that input.
pub(super) fn modules<'a>(
    job: &'a Split,
    name: &'static str,
    input: (&'static str, &'static [Axis]),
) -> (Modules<'a>, ValueId) {
    let dims = dims(job);
    let (g, x) = GraphBuilder::new(name, dims, job.dtype, (input.0, input.1, job.dtype));
    (Modules { g, job, dims }, x)
}
