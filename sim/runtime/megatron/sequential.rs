//! A rank's experts one after the other (`SequentialMLP`, `core/transformer/moe/experts.py`, 0.16.1): rows are split without a copy,
//! each expert's linears are its own, and what they make is put together again.

use crate::model::graph::{Axis, GraphBuilder, OpKind, ValueId};
use crate::model::megatron::{Bias, MegatronOp, Reads, RoutedOp};

const C: &[Axis] = &[Axis::C];
const CD: &[Axis] = &[Axis::C, Axis::D];
const CX: &[Axis] = &[Axis::C, Axis::X];
const MODULE: &str = "mlp.experts.local_experts";

/// Experts of a rank.
pub(super) struct Sequential<'s> {
    /// Whether their linears are Transformer Engine's.
    pub(super) engine: bool,
    /// Rows of each.
    pub(super) rows: &'s [u64],
    /// Width of the model, of what the first linear makes, and of what the second reads.
    pub(super) widths: [u64; 3],
    /// Weights of their first and second linears.
    pub(super) params: [&'s [usize]; 2],
    /// Activation and weights of rows.
    pub(super) weigh: RoutedOp,
}

impl Sequential<'_> {
    /// Writes them down, on rows and their weights.
    pub(super) fn write(&self, g: &mut GraphBuilder, given: [ValueId; 2]) -> ValueId {
        let [d, up, width] = self.widths;
        let [parts, weights] = [(given[0], "rows_CD", CD, d), (given[1], "weight_C", C, 1)]
            .map(|(whole, name, shape, columns)| self.split(g, whole, (name, shape), columns));
        let mut outs = vec![];
        for (at, &rows) in self.rows.iter().enumerate() {
            let [first, second] = self.params.map(|params| params[at]);
            let raised = self.linear(g, parts[at], first, [d, up], ("up_CX", CX));
            g.resize(raised, rows * up);
            let kind = OpKind::Megatron(MegatronOp::Routed(self.weigh));
            let active = g.op(MODULE, kind, &[raised, weights[at]], &[], ("act_CX", CX));
            g.resize(active, rows * width);
            g.drop_values(&[raised]);
            let out = self.linear(g, active, second, [width, d], ("out_CD", CD));
            g.resize(out, rows * d);
            g.drop_values(&[active]);
            outs.push(out);
        }
        if let [only] = outs[..] {
            return only;
        }
        let whole = g.op(MODULE, OpKind::CONCAT, &outs, &[], ("out_CD", CD));
        g.resize(whole, self.rows.iter().sum::<u64>() * d);
        [outs, parts, weights].iter().for_each(|values| g.drop_values(values));
        whole
    }

    /// Each expert's part of rows, or the whole of a single one.
    fn split(
        &self,
        g: &mut GraphBuilder,
        whole: ValueId,
        output: (&'static str, &'static [Axis]),
        columns: u64,
    ) -> Vec<ValueId> {
        if self.rows.len() == 1 {
            return vec![whole];
        }
        let parts = g.split_many(MODULE, whole, output, self.rows.len());
        for (&part, rows) in parts.iter().zip(self.rows) {
            g.resize(part, rows * columns);
        }
        parts
    }

    /// A linear that exchanges nothing: the dispatcher has done so.
    fn linear(
        &self,
        g: &mut GraphBuilder,
        input: ValueId,
        param: usize,
        [inputs, outputs]: [u64; 2],
        output: (&'static str, &'static [Axis]),
    ) -> ValueId {
        let kind = if self.engine {
            MegatronOp::ColumnLinear { inputs, outputs, reads: Reads::Own, fp8: None }
        } else {
            MegatronOp::Linear { inputs, outputs, reads: Reads::Own, bias: Bias::Apart }
        };
        g.op(MODULE, OpKind::Megatron(kind), &[input], &[param], output)
    }
}
