//! `torch.autocast` in bf16 around a module of fp32 parameters: where PyTorch casts what operators read.
//!
//! Autocast has lists of functions (`aten/src/ATen/autocast_mode.h`, PyTorch 2.15). Linears and attention read bf16
//! (`AT_FORALL_LOWER_PRECISION_FP`), norms and powers read fp32 (`AT_FORALL_FP32`). All others run in the widest type that they are
//! given. Each cast is an operator with a backward of its own. The arguments of a call are cast from the last to the first.

use super::graph::{Graph, Op, OpKind, Value, ValueId};
use super::operators::{Arguments, Results};
use crate::program::DType;

/// What of a graph is not simulated under autocast, if anything.
pub fn refuses(graph: &Graph) -> Option<&'static str> {
    graph.ops.iter().find_map(|op| op.row().autocast.err())
}

/// A graph under autocast, and where each of its operators, with its casts, now begins; last, how many there are.
///
/// `graph` is what the module's code comes to in bf16. Its input is in the type that `input` says.
pub fn autocast(graph: Graph, input: DType) -> (Graph, Vec<usize>) {
    let old = graph.ops.clone();
    let mut cast = Autocast { graph: Graph { ops: vec![], ..graph } };
    cast.graph.values[0].dtype = input;
    let mut begins = Vec::with_capacity(old.len() + 1);
    for op in old {
        begins.push(cast.graph.ops.len());
        cast.op(op);
    }
    begins.push(cast.graph.ops.len());
    (cast.graph, begins)
}

struct Autocast {
    graph: Graph,
}

impl Autocast {
    fn dtype(&self, value: ValueId) -> DType {
        self.graph.values[value].dtype
    }

    fn op(&mut self, mut op: Op) {
        let rule = op.row().autocast.unwrap_or_else(|what| unreachable!("{what} is refused when the plan is checked"));
        let to = match rule.arguments {
            Arguments::Low => Some(DType::Bf16),
            Arguments::Full => Some(DType::Fp32),
            Arguments::Same => None,
        };
        if let Some(to) = to {
            if op.kind.is_linear() {
                // Weight and bias become values that the linear reads after its input.
                let params = std::mem::take(&mut op.params);
                let casts: Vec<ValueId> = params.iter().rev().map(|&param| self.weight(&op, param, to)).collect();
                op.inputs.extend(casts.iter().rev());
                op.drops.splice(0..0, casts.into_iter().rev());
            }
            for at in (0..op.inputs.len()).rev() {
                let value = op.inputs[at];
                if self.dtype(value) != to {
                    let made = self.cast(&op, value, to);
                    op.inputs[at] = made;
                    op.drops.insert(0, made);
                }
            }
        }
        let made = match rule.results {
            // Tables and what is made of their rows are in the parameters' type, the loss is in fp32.
            Results::Fp32 => DType::Fp32,
            Results::Stated => self.dtype(op.outputs[0]),
            Results::Asked if self.dtype(op.outputs[0]) == DType::Fp32 => DType::Fp32,
            Results::Asked => self.before_upcast(op.inputs[0]),
            Results::Widest => to.unwrap_or_else(|| self.widest(&op)),
        };
        if op.kind == OpKind::CAST && self.dtype(op.inputs[0]) == made {
            // A conversion to its own type returns the tensor itself.
            op.kind = OpKind::View;
        }
        for &value in &op.outputs {
            self.graph.values[value].dtype = made;
        }
        self.graph.ops.push(op);
    }

    fn widest(&self, op: &Op) -> DType {
        let wide = op.inputs.iter().any(|&value| self.dtype(value) == DType::Fp32);
        if wide { DType::Fp32 } else { DType::Bf16 }
    }

    /// The type that `x.float()` had before, of what was then made of it: what `type_as(x)` casts to.
    fn before_upcast(&self, mut value: ValueId) -> DType {
        while let Some(op) = self.graph.ops.iter().find(|op| op.outputs.contains(&value)) {
            let Some(&read) = op.inputs.first() else { break };
            value = read;
            if op.kind == OpKind::CAST || op.kind == OpKind::View {
                break;
            }
        }
        self.dtype(value)
    }

    fn value(&mut self, like: Value) -> ValueId {
        self.graph.values.push(like);
        self.graph.values.len() - 1
    }

    fn push(&mut self, like: &Op, kind: OpKind, inputs: Vec<ValueId>, params: Vec<usize>, output: ValueId) {
        let drops = vec![];
        self.graph.ops.push(Op { kind, inputs, params, outputs: vec![output], drops, ..like.clone() });
    }

    fn weight(&mut self, op: &Op, param: usize, dtype: DType) -> ValueId {
        let elements = self.graph.params[param].elements();
        let made = self.value(Value { name: "weight in bf16", shape: &[], elements, dtype });
        self.push(op, OpKind::CastWeight, vec![], vec![param], made);
        made
    }

    fn cast(&mut self, op: &Op, value: ValueId, dtype: DType) -> ValueId {
        let like = Value { dtype, ..self.graph.values[value].clone() };
        let made = self.value(like);
        self.push(op, OpKind::CAST, vec![value], vec![], made);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::block::{block, dims};
    use crate::model::huggingface;
    use crate::model::style::Style;
    use crate::model::tensor::TensorParallel;

    fn llama() -> (Graph, Vec<usize>) {
        let model = huggingface::parse(include_str!("../../tests/tiny/config.json"), "config.json").expect("a Llama");
        let dims = dims(&model, 1, 128, TensorParallel::NONE);
        autocast(block(&model, dims, DType::Bf16, model.layers.at(0), Style::default()), DType::Fp32)
    }

    #[test]
    fn linears_and_attention_read_bf16_norms_and_residuals_stay_in_fp32() {
        let (graph, _) = llama();
        for op in &graph.ops {
            let read = |dtype| op.inputs.iter().all(|&value| graph.values[value].dtype == dtype);
            match op.kind {
                OpKind::Linear { .. } => assert!(read(DType::Bf16) && op.inputs.len() == 2 && op.params.is_empty()),
                OpKind::Attention { .. } => assert!(read(DType::Bf16)),
                OpKind::Simple(row) if row.module || op.kind == OpKind::MUL => assert!(read(DType::Bf16)),
                OpKind::RmsNorm { .. } => assert!(read(DType::Fp32)),
                kind if kind == OpKind::ADD => assert_eq!(graph.values[op.outputs[0]].dtype, DType::Fp32),
                _ => {}
            }
        }
        let casts = |kind| graph.ops.iter().filter(|op| op.kind == kind).count();
        // Seven weights; the inputs of wq, wk, wv, w1 and w3, each for itself, and two for each of two rotations.
        assert_eq!([casts(OpKind::CastWeight), casts(OpKind::CAST)], [7, 5 + 4]);
    }
}
